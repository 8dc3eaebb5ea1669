/* snapshot_writer.c - writes snapshots without servers. */
#include "worker/train/snapshot/snapshot_writer_internal.h"

#include "common/base/log.h"
#include "common/base/utf8.h"
#include "common/base/why.h"
#include "common/containers/hash.h"
#include "common/system/file_limit.h"
#include "common/trace/trace.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- each other ------------------------------------------------------------------------------ */
int snapshot_writer_position(const snapshot_writer *k)
{
    return k->group_calls != NULL ? k->group_calls->group->rank : 0;
}

int snapshot_writer_members(const snapshot_writer *k)
{
    return k->group_calls != NULL ? k->group_calls->group->size : 1;
}

pen_status snapshot_writer_heard(const char *before, int32_t status, const char *text, size_t size,
                                 pen_error *why)
{
    char words[sizeof why->text];
    snprintf(words, sizeof words, "%s%.*s", before, (int)size, text);
    utf8_clean(words, sizeof words - 1);
    return why_set(why, why_is_failure(status) ? (pen_status)status : PEN_CORRUPT, "%s", words);
}

typedef struct {
    int32_t status, lacks_room;
    char text[SNAPSHOT_WRITER_TEXT];
} told;

pen_status snapshot_writer_agree(snapshot_writer *k, pen_status own, bool *is_told, pen_error *why)
{
    *is_told = true;
    if (k->group_calls == NULL) return own;
    const int n = snapshot_writer_members(k);
    told mine   = {.status = own, .lacks_room = k->lacks_room};
    told *all   = calloc((size_t)n, sizeof *all);
    if (own != PEN_OK)
        snprintf(mine.text, sizeof mine.text, "%.*s", SNAPSHOT_WRITER_TEXT - 1, why->text);
    *is_told = false;
    if (all == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %d ranks", n);
    group_calls_gather(k->group_calls, PEN_U8, sizeof mine, NULL, &mine, all,
                       "result of a snapshot");
    pen_status status = group_calls_wait(k->group_calls, why);
    *is_told          = status == PEN_OK;
    for (int i = 0; i < n && *is_told; i++) k->lacks_room |= all[i].lacks_room != 0;
    for (int i = 0; i < n && status == PEN_OK; i++) {
        char before[32];
        const int rank = k->group_calls->group->ranks[i];
        if (all[i].status == PEN_OK) continue;
        snprintf(before, sizeof before, "rank %d: ", rank);
        status = snapshot_writer_heard(before, all[i].status, all[i].text, sizeof all[i].text, why);
        why_culprit(why, PEN_WORKER, rank, k->ctx->step.next_index, NULL);
    }
    free(all);
    return status;
}

/* ---- this rank's part ------------------------------------------------------------------------ */
/* This rank's share of ranges that several members hold: every `copies`-th piece. */
typedef struct {
    const state_ranges *held;
    uint64_t piece;
} share;

static bool is_mine(share *s)
{
    return s->piece++ % (uint64_t)s->held->copies == (uint64_t)s->held->copy;
}

static pen_status put_piece(snapshot_writer *k, const state_range *span, const store_tensor *row,
                            uint64_t at, uint64_t n, pen_error *why)
{
    const uint64_t start = span->start + at;
    pen_status status =
        store_put(k->writer.store, row->name, "param", start, n, span->param + at, why);
    for (int32_t s = 0; s < row->slots && status == PEN_OK; s++)
        status = store_put(k->writer.store, row->name, row->slot_names[s], start, n,
                           span->slot[s] + at, why);
    return status;
}

static pen_status put_spans(snapshot_writer *k, const state_ranges *h, pen_error *why)
{
    share s           = {.held = h};
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < h->n; i++) {
        const state_range *span = &h->span[i];
        for (uint64_t at = 0; at < span->count && status == PEN_OK; at += SNAPSHOT_WRITER_PIECE) {
            const uint64_t left = span->count - at,
                           n    = left < SNAPSHOT_WRITER_PIECE ? left : SNAPSHOT_WRITER_PIECE;
            if (is_mine(&s)) status = put_piece(k, span, &k->writer.row[span->tensor], at, n, why);
        }
    }
    return status;
}

/* Writes versions of the chunks that begin in this rank's ranges: all parts together have every chunk. */
static pen_status put_versions(snapshot_writer *k, const state_ranges *h, pen_error *why)
{
    const plan *p          = k->plan;
    describe_version *rows = calloc(p->n_chunks + 1, sizeof *rows);
    size_t n               = 0;
    if (rows == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the counters of a snapshot");
    for (uint32_t i = 0; i < h->n; i++) {
        const state_range *span = &h->span[i];
        for (uint32_t c = p->first_chunk[span->tensor]; c < p->first_chunk[span->tensor + 1]; c++)
            if (p->chunk[c].start >= span->start && p->chunk[c].start - span->start < span->count)
                rows[n++] = (describe_version){.chunk = c, .version = span->version};
    }
    const pen_status status =
        store_put_blob(k->writer.store, DESCRIBE_VERSIONS_BLOB, rows, n * sizeof *rows, why);
    free(rows);
    return status;
}

static pen_status put_states(snapshot_writer *k, int64_t step, pen_error *why)
{
    const bool is_in_step = step > k->ctx->step.next_index; /* else between two steps */
    void *bytes;
    size_t size;
    own_state_note(k->ctx, is_in_step ? k->ctx->step.outcome.outcome : OWN_STATE_SETTLED);
    pen_status status =
        state_table_pack(&k->ctx->states, snapshot_writer_position(k) == 0, &bytes, &size, why);
    if (status == PEN_OK && size > 0)
        status = store_put_blob(k->writer.store, DESCRIBE_STATES_BLOB, bytes, size, why);
    free(bytes);
    return status;
}

static pen_status write_part(snapshot_writer *k, int64_t step, pen_error *why)
{
    FILE_LIMIT_IS_AN_ERROR();
    state_ranges h    = {.copies = 1};
    pen_status status = k->ctx->strategy->ops->state_ranges(k->ctx->strategy, &h, why);
    if (status == PEN_OK) {
        const store_manifest head = {.step    = step,
                                     .applied = h.applied,
                                     .id      = snapshot_id(k->run, step),
                                     .job     = k->ctx->job};
        status                    = part_writer_begin(&k->writer, &k->ctx->model.wire, &head, why);
    }
    if (status == PEN_OK) status = put_spans(k, &h, why);
    if (status == PEN_OK) status = put_versions(k, &h, why);
    if (status == PEN_OK) status = put_states(k, step, why);
    status        = part_writer_end(&k->writer, status, why);
    k->lacks_room = status == PEN_STORE && store_lacked_room();
    return status;
}

/* ---- old ones -------------------------------------------------------------------------------- */
static pen_status forget_oldest(snapshot_writer *k, uint32_t gone, pen_error *why)
{
    k->n_kept -= gone;
    memmove(k->kept, k->kept + gone, k->n_kept * sizeof *k->kept);
    pen_status status = store_forget(k->writer.store, k->kept, k->n_kept, why);
    /* Also deletes folders of lost ranks; folders in use are skipped. */
    const int32_t world = k->ctx->env.world_size;
    const int32_t first = snapshot_writer_members(k) < world ? 0 : world;
    if (status == PEN_OK && snapshot_writer_position(k) == 0)
        status = store_forget_strays(k->ctx->settings.store, first, k->kept, k->n_kept, why);
    return status;
}

static void forget_old(snapshot_writer *k, int64_t step)
{
    pen_error why        = {0};
    const uint32_t keep  = (uint32_t)k->ctx->settings.snapshot_keep;
    k->kept[k->n_kept++] = step;
    if (forget_oldest(k, k->n_kept > keep ? k->n_kept - keep : 0, &why) != PEN_OK)
        log_warning("cannot delete an old snapshot: %s", why.text);
}

static void drop_part(snapshot_writer *k, int64_t step)
{
    pen_error why = {0};
    if (k->writer.store != NULL &&
        store_drop(k->writer.store, step, snapshot_id(k->run, step), &why) != PEN_OK)
        log_warning("cannot delete a part of a failed snapshot: %s", why.text);
}

/* No rank writes again before all have deleted their parts: they may share the disk. */
static pen_status make_room(snapshot_writer *k, int64_t step, bool *is_told, pen_error *why)
{
    if (snapshot_writer_position(k) == 0)
        log_notice("no room for the snapshot of step %" PRId64 " beside %u others: deleting "
                   "that of step %" PRId64 ", then trying again",
                   step, k->n_kept, k->kept[0]);
    pen_status status = part_writer_open(&k->writer, why);
    if (status == PEN_OK) status = forget_oldest(k, 1, why);
    return snapshot_writer_agree(k, status, is_told, why);
}

/* If the snapshot cannot be complete, this rank deletes its part at once. */
static pen_status write_and_agree(snapshot_writer *k, int64_t step, bool *is_told, pen_error *why)
{
    const uint64_t begun = trace_begin();
    const pen_status own = write_part(k, step, why);
    trace_span(TRACE_SNAPSHOT, begun, &(trace_note){.step = step});
    const pen_status status = snapshot_writer_agree(k, own, is_told, why);
    if (status != PEN_OK && own == PEN_OK && *is_told) drop_part(k, step);
    return status;
}

/* ---- asked for ------------------------------------------------------------------------------- */
static void answer(snapshot_writer *k, int64_t step, pen_status status, const pen_error *why)
{
    pthread_mutex_lock(&k->lock);
    request *r = k->asked;
    k->asked   = NULL;
    pthread_mutex_unlock(&k->lock);
    while (r != NULL) {
        request *next  = r->next;
        r->result.step = status == PEN_OK ? step : -1;
        request_end(r, status, status != PEN_OK ? why : NULL);
        r = next;
    }
}

pen_status snapshot_writer_step(pen_ctx *ctx, int64_t step, bool is_wanted, pen_error *why)
{
    snapshot_writer *k = ctx->snapshot_writer;
    bool is_told;
    if (!is_wanted) return PEN_OK;
    pen_error failure = {0};
    pen_status status = write_and_agree(k, step, &is_told, &failure);
    if (status != PEN_OK && is_told && k->lacks_room && k->n_kept > 1) {
        status = make_room(k, step, &is_told, &failure);
        if (status == PEN_OK) status = write_and_agree(k, step, &is_told, &failure);
    }
    stat_add(&ctx->stats, status == PEN_OK ? STAT_SNAPSHOTS : STAT_SNAPSHOTS_FAILED, 1);
    ctx->is_saved = status == PEN_OK;
    const uint64_t reason =
        status == PEN_OK ? 0 : hash_bytes(failure.text, strlen(failure.text)) | 1;
    if (status == PEN_OK) {
        forget_old(k, step);
        if (k->said != 0 && snapshot_writer_position(k) == 0)
            log_notice("the snapshot of step %" PRId64 " is complete, the first since then", step);
        else
            log_info("the snapshot of step %" PRId64 " is complete", step);
    } else if (is_told && reason != k->said && snapshot_writer_position(k) == 0) {
        log_warning("no snapshot of step %" PRId64 ": %s; said once", step, failure.text);
    }
    k->said = reason;
    answer(k, step, status, &failure);
    if (is_told) return PEN_OK;
    *why = failure;
    return status;
}

static pen_status check_asked(const snapshot_writer *k, pen_error *why)
{
    if (k->ctx->mode == MODE_LOCAL && k->ctx->phase != CONTEXT_COMMITTED)
        return why_set(
            why, PEN_WRONG_STATE,
            "pen_snapshot: pen_commit has not been called; register, then commit, then step");
    if (k->ctx->settings.store[0] == '\0')
        return why_set(why, PEN_STORE,
                       "missing store for the snapshot; set a folder that all workers reach with "
                       "`penstock run --store DIR`, or the setting store");
    return PEN_OK;
}

static void take_now(pen_ctx *ctx)
{
    pen_error why;
    pthread_mutex_lock(&ctx->strategy->lock);
    (void)snapshot_writer_step(ctx, ctx->step.next_index, true, &why);
    pthread_mutex_unlock(&ctx->strategy->lock);
    atomic_store(&ctx->snapshot_wanted, false);
}

void snapshot_writer_start(snapshot_writer *k, request *r)
{
    pen_error why;
    pen_ctx *ctx = k->ctx;
    if (check_asked(k, &why) == PEN_OK) {
        pthread_mutex_lock(&k->lock);
        r->next  = k->asked;
        k->asked = r;
        pthread_mutex_unlock(&k->lock);
        atomic_store(&ctx->snapshot_wanted, true);
        if (ctx->mode == MODE_LOCAL) take_now(ctx);
    } else {
        request_end(r, why.status, &why);
    }
    request_notify(&ctx->requests);
}

/* ---- create and destroy ---------------------------------------------------------------------- */
pen_status snapshot_writer_create(pen_ctx *ctx, pen_error *why)
{
    if (ctx->settings.snapshot_every > 0 && ctx->settings.store[0] == '\0')
        return why_set(why, PEN_BAD_SETTING,
                       "snapshot_every=%" PRIu64 " needs a store: give a folder that all workers "
                       "reach with `penstock run --store DIR`, or the setting store",
                       ctx->settings.snapshot_every);
    snapshot_writer *k = calloc(1, sizeof *k);
    if (k == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to keep snapshots");
    k->ctx = ctx;
    pthread_mutex_init(&k->lock, NULL);
    ctx->snapshot_writer = k;
    return PEN_OK;
}

void snapshot_writer_destroy(pen_ctx *ctx)
{
    snapshot_writer *k = ctx->snapshot_writer;
    if (k == NULL) return;
    store_close(k->writer.store);
    plan_destroy(k->plan);
    pthread_mutex_destroy(&k->lock);
    free(k);
    ctx->snapshot_writer = NULL;
}
