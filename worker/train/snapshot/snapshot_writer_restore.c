/* snapshot_writer_restore.c - chooses and restores the snapshot of a job without servers. */
#include "worker/train/snapshot/snapshot_writer_internal.h"

#include "common/base/log.h"
#include "common/base/why.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- which one ------------------------------------------------------------------------------- */
typedef struct { /* made by position 0 */
    uint64_t run;
    int64_t step; /* -1: starts over */
    int64_t kept[SNAPSHOT_WRITER_KEEP_MAX];
    uint32_t n_kept;
    int32_t status; /* not OK: nothing is chosen, for the reason in `text` */
    char text[sizeof((pen_error *)0)->text];
} choice;

/* Notes the newest of n, as many as the settings keep. */
static void note_kept(const snapshot_writer *k, const int64_t *all, size_t n, choice *c)
{
    const size_t most = (size_t)k->ctx->settings.snapshot_keep, kept = most < n ? most : n;
    memcpy(c->kept, all + (n - kept), kept * sizeof *all);
    c->n_kept = (uint32_t)kept;
}

static pen_status look(snapshot_writer *k, store_reader *r, choice *c, pen_error *why)
{
    const worker_settings *s = &k->ctx->settings;
    pen_status status        = store_reader_trouble(r, why);
    if (status != PEN_OK) return status;
    int64_t all[1024];
    size_t n = store_reader_steps(r, all, 1024);
    if (n > 1024) n = 1024;
    note_kept(k, all, n, c);
    if (s->resume && n == 0)
        return why_set(why, PEN_NOT_FOUND,
                       "--resume found no snapshot in store %.200s; use --fresh to start over",
                       s->store);
    if (!s->resume && n > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "store %.200s holds a snapshot of step %" PRId64
                       "; use --resume to continue from it or --fresh to start over",
                       s->store, all[n - 1]);
    if (s->resume) c->step = all[n - 1];
    return PEN_OK;
}

static pen_status choose(snapshot_writer *k, choice *c, pen_error *why)
{
    const worker_settings *s = &k->ctx->settings;
    store_reader *r;
    *c = (choice){.step = -1};
    if (getrandom(&c->run, sizeof c->run, 0) != (ssize_t)sizeof c->run)
        return why_set(why, PEN_INTERNAL, "cannot get random numbers: %m");
    if (s->resume && s->store[0] == '\0')
        return why_set(why, PEN_BAD_SETTING,
                       "--resume needs a store; set the folder of the snapshots with --store DIR");
    if (s->store[0] == '\0' || s->fresh) return PEN_OK;
    pen_status status = store_reader_open(s->store, &r, why);
    if (status != PEN_OK) return status;
    status = look(k, r, c, why);
    store_reader_close(r);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */
/* An import has only parameters: the rule's slots begin as in a new job. */
static void begin_slots(const pen_params *group, state_range *span)
{
    optim_span whole = {.param = span->param, .n = span->count};
    for (int s = 0; s < group->ops->slot_count; s++) {
        memset(span->slot[s], 0, span->count * sizeof(float));
        whole.slot[s] = span->slot[s];
    }
    if (group->ops->slot_init != NULL) group->ops->slot_init(&group->hyper, &whole);
}

static pen_status read_span(snapshot_writer *k, store_reader *r, const store_manifest *m,
                            state_range *span, pen_error *why)
{
    const pen_tensor *t     = k->ctx->model.tensor[span->tensor];
    const pen_params *group = k->ctx->model.group[t->desc.group];
    pen_status status =
        store_read(r, m->step, t->name, "param", span->start, span->count, span->param, why);
    span->version = (uint64_t)m->applied;
    if (status != PEN_OK || !t->trained) return status;
    if (m->is_import) {
        span->version = 0;
        begin_slots(group, span);
    }
    for (int s = 0; s < group->ops->slot_count && status == PEN_OK && !m->is_import; s++)
        status = store_read(r, m->step, t->name, group->ops->slot_names[s], span->start,
                            span->count, span->slot[s], why);
    return status;
}

typedef struct {
    const plan *plan;
    uint64_t *version; /* [n_tensors]; equal in all chunks of a tensor */
    bool *is_told;
} versions;

/* The blob comes from disk: any length, any alignment. */
static void adopt_versions(const void *data, size_t size, void *user)
{
    const versions *v = user;
    for (size_t at = 0; size - at >= sizeof(describe_version); at += sizeof(describe_version)) {
        describe_version row;
        memcpy(&row, (const char *)data + at, sizeof row);
        if (row.chunk >= v->plan->n_chunks) continue;
        const uint32_t t = v->plan->chunk[row.chunk].tensor;
        v->version[t]    = row.version;
        v->is_told[t]    = true;
    }
}

static pen_status read_versions(snapshot_writer *k, store_reader *r, int64_t step, state_ranges *h,
                                pen_error *why)
{
    const uint32_t n = k->ctx->model.n_tensors;
    versions v = {k->plan, calloc(n + 1, sizeof *v.version), calloc(n + 1, sizeof *v.is_told)};
    pen_status status =
        v.version != NULL && v.is_told != NULL
            ? store_read_blobs(r, step, DESCRIBE_VERSIONS_BLOB, adopt_versions, &v, why)
            : why_set(why, PEN_NO_MEMORY, "no memory for the counters of a snapshot");
    for (uint32_t i = 0; i < h->n && status == PEN_OK; i++)
        if (v.is_told[h->span[i].tensor]) h->span[i].version = v.version[h->span[i].tensor];
    free(v.version);
    free(v.is_told);
    return status;
}

/* ---- states ---------------------------------------------------------------------------------- */
typedef struct {
    uint8_t *bytes;
    size_t size;
    bool failed;
} bundle;

static void add_bundle(const void *data, size_t size, void *user)
{
    bundle *b = user;
    b->failed |= !bundle_merge(&b->bytes, &b->size, data, size);
}

static pen_status read_states(snapshot_writer *k, store_reader *r, const store_manifest *m,
                              pen_error *why)
{
    bundle b = {0};
    pen_status status =
        m->is_import ? PEN_OK
                     : store_read_blobs(r, m->step, DESCRIBE_STATES_BLOB, add_bundle, &b, why);
    if (status == PEN_OK && b.failed)
        status = why_set(why, PEN_CORRUPT,
                         "the states in the snapshot of step %" PRId64
                         " are invalid, or memory ran out; use an older snapshot",
                         m->step);
    if (status == PEN_OK && !m->is_import)
        status = state_table_restore(&k->ctx->states, m->step, b.bytes, b.size, why);
    free(b.bytes);
    return status;
}

/* ---- the whole snapshot ---------------------------------------------------------------------- */
static pen_status read_all(snapshot_writer *k, store_reader *r, int64_t step, pen_error *why)
{
    const store_manifest *m;
    state_ranges h    = {.copies = 1};
    pen_status status = store_reader_manifest(r, step, &m, why);
    if (status == PEN_OK)
        status = snapshot_is_of(m, &k->ctx->model.wire, k->ctx->settings.store, why);
    if (status == PEN_OK) status = k->ctx->strategy->ops->state_ranges(k->ctx->strategy, &h, why);
    for (uint32_t i = 0; i < h.n && status == PEN_OK; i++)
        status = read_span(k, r, m, &h.span[i], why);
    if (status == PEN_OK && !m->is_import) status = read_versions(k, r, step, &h, why);
    if (status == PEN_OK) status = read_states(k, r, m, why);
    if (status == PEN_OK) k->ctx->restored = (context_restored){true, step, m->applied};
    return status == PEN_OK ? own_state_adopt(k->ctx, why) : status;
}

static pen_status read_snapshot(snapshot_writer *k, int64_t step, pen_error *why)
{
    store_reader *r;
    pen_status status = store_reader_open(k->ctx->settings.store, &r, why);
    if (status != PEN_OK) return status;
    status = read_all(k, r, step, why);
    store_reader_close(r);
    return status;
}

static pen_status go_on(snapshot_writer *k, pen_error *why)
{
    pen_ctx *ctx = k->ctx;
    const pen_status status =
        ctx->strategy->ops->restored(ctx->strategy, ctx->restored.applied, why);
    if (status != PEN_OK) return status;
    ctx->step.next_index = ctx->restored.step;
    ctx->step.applied    = ctx->restored.applied;
    atomic_store(&ctx->step_index, ctx->restored.step);
    if (snapshot_writer_position(k) == 0)
        log_notice("%d worker%s restored step %" PRId64 " from %s", snapshot_writer_members(k),
                   snapshot_writer_members(k) == 1 ? "" : "s", ctx->restored.step,
                   ctx->settings.store);
    return PEN_OK;
}

static void refuse(choice *c, const pen_error *why)
{
    c->status = why->status;
    snprintf(c->text, sizeof c->text, "%s", why->text);
}

/* Position 0 has chosen, and may send anything. */
static pen_status follow(snapshot_writer *k, choice *c, pen_error *why)
{
    bool is_told;
    if (k->group_calls != NULL &&
        group_calls_broadcast(k->group_calls, c, sizeof *c, "which snapshot to go on from", why) !=
            PEN_OK)
        return why->status;
    if (c->status != PEN_OK)
        return snapshot_writer_heard("", c->status, c->text, sizeof c->text, why);
    if (c->n_kept > SNAPSHOT_WRITER_KEEP_MAX)
        return why_set(why, PEN_CORRUPT, "rank %d keeps %u snapshots, where %d are the most",
                       k->group_calls->group->ranks[0], c->n_kept, SNAPSHOT_WRITER_KEEP_MAX);
    k->run             = c->run;
    k->writer.restored = c->step;
    k->n_kept          = c->n_kept;
    memcpy(k->kept, c->kept, c->n_kept * sizeof *c->kept);
    if (c->step < 0) return PEN_OK;
    pen_status status = read_snapshot(k, c->step, why);
    status            = snapshot_writer_agree(k, status, &is_told, why);
    return status == PEN_OK ? go_on(k, why) : status;
}

static pen_status restore(snapshot_writer *k, pen_error *why)
{
    choice c;
    if (snapshot_writer_position(k) == 0 && choose(k, &c, why) != PEN_OK) refuse(&c, why);
    return follow(k, &c, why);
}

pen_status snapshot_writer_commit(pen_ctx *ctx, group_calls *t, pen_error *why)
{
    snapshot_writer *k      = ctx->snapshot_writer;
    const pen_status status = plan_create(&ctx->model.wire, &k->plan, why);
    k->group_calls          = t;
    k->writer = (part_writer){.dir = ctx->settings.store, .rank = ctx->env.rank, .restored = -1};
    return status == PEN_OK ? restore(k, why) : status;
}

/* ---- back to an earlier one ------------------------------------------------------------------ */
static pen_status find_snapshot(const snapshot_writer *k, store_reader *r, int64_t step, choice *c,
                                pen_error *why)
{
    int64_t all[1024];
    char number[24] = "";
    size_t n        = store_reader_steps(r, all, 1024);
    if (step >= 0) snprintf(number, sizeof number, "%" PRId64, step);
    if (n > 1024) n = 1024;
    while (n > 0 && step >= 0 && all[n - 1] > step) n--;
    if (n == 0 || (step >= 0 && all[n - 1] != step))
        return why_set(why, PEN_NOT_FOUND, "store %.200s has no complete snapshot%s%s",
                       k->ctx->settings.store, step >= 0 ? " of step " : "", number);
    c->step = all[n - 1];
    note_kept(k, all, n, c);
    return PEN_OK;
}

static pen_status choose_back(const snapshot_writer *k, int64_t step, choice *c, pen_error *why)
{
    store_reader *r;
    *c = (choice){.step = -1, .run = k->run};
    if (k->ctx->settings.store[0] == '\0')
        return why_set(why, PEN_STORE,
                       "missing store; set the folder of the snapshots with `penstock run --store "
                       "DIR`, or the setting store");
    pen_status status = store_reader_open(k->ctx->settings.store, &r, why);
    if (status != PEN_OK) return status;
    status = find_snapshot(k, r, step, c, why);
    store_reader_close(r);
    return status;
}

pen_status snapshot_writer_go_back(pen_ctx *ctx, int64_t step, pen_error *why)
{
    choice c;
    snapshot_writer *k = ctx->snapshot_writer;
    if (snapshot_writer_position(k) == 0 && choose_back(k, step, &c, why) != PEN_OK)
        refuse(&c, why);
    k->writer.is_settled    = false; /* the next snapshot removes newer ones */
    const pen_status status = follow(k, &c, why);
    if (status == PEN_OK) ctx->step.flags |= PEN_STEP_REWOUND;
    return status;
}
