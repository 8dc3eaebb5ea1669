/* store_part.c - writes this server's part of a snapshot; releases each chunk once it is copied. */
#include "server/process/store_thread.h"

#include "common/base/log.h"
#include "common/snapshot/bundle.h"
#include "common/trace/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- writing --------------------------------------------------------------------------------- */
static uint64_t chunk_bytes(const shard_capture_chunk *k)
{
    uint64_t bytes = k->count * sizeof(float) * (1 + k->n_slots);
    for (uint32_t i = 0; i < k->n_blocks; i++) bytes += shard_capture_used(k, i);
    return bytes;
}

uint64_t store_part_chunk_memory(const shard_capture_chunk *k)
{
    uint64_t bytes = k->values != NULL ? k->values->size : 0;
    for (uint32_t i = 0; i < k->n_slots; i++) bytes += k->slot[i] != NULL ? k->slot[i]->size : 0;
    for (uint32_t i = 0; i < k->n_blocks; i++) bytes += k->block[i]->size;
    return bytes;
}

/* Releases a chunk's references; memory is freed if its shard has a copy by now. */
static void let_go(store_thread *t, shard_capture_chunk *k)
{
    if (!k->is_taken) return;
    const buf *any        = k->values != NULL ? k->values : k->slot[0];
    const bool was_copied = any != NULL && buf_is_alone(any);
    const uint64_t bytes  = store_part_chunk_memory(k);
    shard_capture_release(k);
    snapshot_memory_release(t->memory, bytes, was_copied);
}

/* The blocks of a part's rows, and what they are. */
static pen_status put_rows(store_thread *t, const shard_capture_chunk *k, const char *table,
                           pen_error *why)
{
    char name[STORE_NAME_BYTES];
    const wire_tensor *of    = &t->plan->message.u.plan.model.tensor[k->tensor];
    const describe_part part = {
        .blocks = k->n_blocks, .dim = plan_table_dim(of), .has_handler = k->has_handler};
    if (k->failed != PEN_OK)
        return why_set(why, k->failed,
                       "save() of handler '%.64s' failed on part %" PRIu64 " of table '%.64s': %s",
                       of->handler, k->start, table,
                       k->failed == PEN_UNSUPPORTED ? "it has none"
                                                    : pen_status_info(k->failed)->text);
    pen_status status = store_put_blob(t->writer.store, describe_rows(name, table, k->start, NULL),
                                       &part, sizeof part, why);
    for (uint32_t i = 0; i < k->n_blocks && status == PEN_OK; i++)
        status = store_put_blob(t->writer.store, describe_rows(name, table, k->start, &i),
                                k->block[i]->data, shard_capture_used(k, i), why);
    return status;
}

static pen_status put_chunk(store_thread *t, shard_capture_chunk *k, uint64_t *bytes,
                            pen_error *why)
{
    const store_tensor *row = &t->writer.row[k->tensor];
    pen_status status       = PEN_OK;
    for (uint32_t a = 0; status == PEN_OK && a <= k->n_slots; a++) {
        buf *numbers = NULL;
        status       = shard_capture_read(k, a, &numbers, why);
        if (status == PEN_OK)
            status =
                store_put(t->writer.store, row->name, a == 0 ? "param" : row->slot_names[a - 1],
                          k->start, k->count, numbers->data, why);
        buf_release(numbers);
    }
    if (status == PEN_OK && k->is_table) status = put_rows(t, k, row->name, why);
    *bytes += chunk_bytes(k);
    let_go(t, k);
    return status;
}

static pen_status put_versions(store_thread *t, const pending *p, pen_error *why)
{
    size_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) n += p->capture[i]->n;
    describe_version *version = calloc(n + 1, sizeof *version);
    if (version == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the counters of a snapshot");
    n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t k = 0; k < p->capture[i]->n; k++)
            version[n++] = (describe_version){.chunk   = p->capture[i]->chunk[k].chunk,
                                              .version = p->capture[i]->chunk[k].version};
    const pen_status status =
        store_put_blob(t->writer.store, DESCRIBE_VERSIONS_BLOB, version, n * sizeof *version, why);
    free(version);
    return status;
}

/* Each shard has the states it received from each rank; most are the same. */
static pen_status put_states(store_thread *t, const pending *p, pen_error *why)
{
    uint8_t *all      = NULL;
    size_t size       = 0;
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < p->n && status == PEN_OK; i++)
        if (!bundle_merge(&all, &size, p->capture[i]->states, p->capture[i]->states_bytes))
            status = why_set(why, PEN_NO_MEMORY, "no memory for the states of a snapshot");
    if (status == PEN_OK && size > BUNDLE_BYTES_MAX)
        status = why_set(why, PEN_UNSUPPORTED,
                         "the states of all ranks (pen_state_add) take %zu bytes together; servers "
                         "store at most %d",
                         size, BUNDLE_BYTES_MAX);
    if (status == PEN_OK && size > 0)
        status = store_put_blob(t->writer.store, DESCRIBE_STATES_BLOB, all, size, why);
    free(all);
    return status;
}

static int64_t applied_of(const pending *p)
{
    int64_t applied = 0;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->capture[i]->applied > applied) applied = p->capture[i]->applied;
    return applied;
}

static pen_status put_all(store_thread *t, const pending *p, uint64_t *bytes, pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t k = 0; status == PEN_OK && k < p->capture[i]->n; k++)
            status = put_chunk(t, &p->capture[i]->chunk[k], bytes, why);
    if (status == PEN_OK) status = put_versions(t, p, why);
    return status == PEN_OK ? put_states(t, p, why) : status;
}

pen_status store_part_open(store_thread *t, pen_error *why)
{
    if (t->writer.dir[0] != '\0') return part_writer_open(&t->writer, why);
    return why_set(why, PEN_STORE, "this server has no store; give it a directory with --store");
}

static pen_status write_pending(store_thread *t, const pending *p, uint64_t *bytes, pen_error *why)
{
    const store_manifest head = {.step    = p->step,
                                 .applied = applied_of(p),
                                 .id      = snapshot_id(t->plan->term, p->step),
                                 .job     = t->server->job};
    pen_status status         = store_part_open(t, why);
    if (status == PEN_OK)
        status = part_writer_begin(&t->writer, &t->plan->message.u.plan.model, &head, why);
    if (status == PEN_OK) status = put_all(t, p, bytes, why);
    return part_writer_end(&t->writer, status, why);
}

void store_part_drop_capture(store_thread *t, shard_capture *capture)
{
    for (uint32_t k = 0; k < capture->n; k++) let_go(t, &capture->chunk[k]);
    shard_capture_destroy(capture);
}

void store_part_forget(store_thread *t, pending *p)
{
    for (uint32_t i = 0; i < p->n; i++) store_part_drop_capture(t, p->capture[i]);
    free(p->capture);
    free(p->shard);
    *p = (pending){0};
}

static void set_writing(store_thread *t, int64_t step)
{
    pthread_mutex_lock(&t->lock);
    t->writing = step;
    t->waiting = -1;
    pthread_mutex_unlock(&t->lock);
}

void store_part_write(store_thread *t, pending *p)
{
    server_part part = {.server = t->server, .step = p->step, .n_shards = p->n, .shard = p->shard};
    const uint64_t begun = trace_begin(), since = stat_begin(&t->server->stats);
    set_writing(t, p->step);
    part.status     = write_pending(t, p, &part.bytes, &part.why);
    part.lacks_room = part.status == PEN_STORE && store_lacked_room();
    stat_took(&t->server->stats, STAT_SPREAD_SNAPSHOT, since);
    trace_span(TRACE_SNAPSHOT, begun, &(trace_note){.step = p->step, .bytes = part.bytes});
    if (server_notify_main(t->server, SERVER_PART_WRITTEN, &part, sizeof part)) p->shard = NULL;
    store_part_forget(t, p);
    set_writing(t, -1);
}
