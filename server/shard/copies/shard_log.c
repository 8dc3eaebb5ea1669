/* shard_log.c - the log of a shard's changes, sent to its copies in order.
 *
 * DESIGN.  The primary appends an entry for every change a copy must know: first values, sums, votes, decisions,
 * updates.  Payloads are references: a sum is sent from its accumulator (or message), values from the values
 * themselves.  Entries stay until every copy has acknowledged them, and are sent from the first one a copy lacks:
 * in order, large ones alone and at once, small ones packed at the flush.  A shard without copies appends nothing.
 */
#include "server/shard/shard_state.h"
#include "server/shard/shard_test.h"

#include "common/base/crc.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM_FIRST = 64 };

bool shard_is_logging(const shard *s)
{
    return s->role == SHARD_PRIMARY && s->n_copies > 0 && !s->is_settling;
}

/* ---- entries --------------------------------------------------------------------------------- */
static shard_entry *place(shard *s, uint32_t i)
{
    return &s->log.entry[(s->log.first + i) % s->log.capacity];
}

shard_entry *shard_log_at(shard *s, uint64_t index)
{
    if (index > s->log.index || index + s->log.n <= s->log.index) return NULL;
    return place(s, (uint32_t)(index + s->log.n - s->log.index - 1));
}

static void free_entry(shard_entry *entry)
{
    buf_release(entry->payload);
    free(entry->lists);
}

static bool make_room(shard_log *log)
{
    if (log->n < log->capacity) return true;
    const uint32_t capacity = log->capacity == 0 ? ROOM_FIRST : log->capacity * 2;
    shard_entry *more       = calloc(capacity, sizeof *more);
    if (more == NULL) return false;
    for (uint32_t i = 0; i < log->n; i++) more[i] = log->entry[(log->first + i) % log->capacity];
    free(log->entry);
    log->entry    = more;
    log->capacity = capacity;
    log->first    = 0;
    return true;
}

/* Copies the caller's numbers and rates one after the other. */
static bool keep_lists(shard_entry *entry)
{
    wire_entry *e          = &entry->e;
    e->inputs.states       = NULL;
    e->inputs.states_bytes = 0;
    const size_t wide      = e->n_numbers * sizeof *e->number;
    const size_t rates     = e->has_inputs ? e->inputs.n_rates * sizeof *e->inputs.rate : 0;
    if (wide + rates == 0) return true;
    char *lists = malloc(wide + rates);
    if (lists == NULL) return false;
    if (wide > 0) memcpy(lists, e->number, wide);
    if (rates > 0) memcpy(lists + wide, e->inputs.rate, rates);
    e->number      = (const uint64_t *)(const void *)lists;
    e->inputs.rate = (const double *)(const void *)(lists + wide);
    entry->lists   = lists;
    return true;
}

void shard_log_append(shard *s, const wire_entry *e, int32_t only, buf *payload)
{
    shard_entry entry = {.e = *e, .only = only, .digest = s->log.digest, .before = s->log.bytes};
    if (!make_room(&s->log) || !keep_lists(&entry)) {
        buf_release(payload);
        shard_no_memory(s);
        return;
    }
    entry.payload = payload;
    entry.e.bytes = payload != NULL ? payload->size : 0;
    if (payload != NULL && e->crc == 0) entry.e.crc = crc32c(0, payload->data, payload->size);
    s->log.n++;
    s->log.index++;
    s->log.bytes += entry.e.bytes;
    if (e->what != WIRE_ENTRY_COMMIT) s->log.ungated = s->log.index;
    *place(s, s->log.n - 1) = entry;
    for (uint32_t i = 0; i < s->n_copies && entry.e.bytes >= SHARD_SMALL_BYTES; i++)
        (void)shard_log_send_to(s, &s->copy[i]);
}

void shard_log_changed(shard *s, shard_chunk *k)
{
    if (s->n_copies == 0 && s->role == SHARD_PRIMARY) return;
    if (s->role == SHARD_LEARNER && !s->is_whole) return;
    const uint32_t crc = k->table != NULL ? k->rows_crc : shard_offload_crc(s, k);
    s->log.digest += crc * (2 * (uint64_t)k->number + 1);
}

void shard_log_applied(shard *s)
{
    if (shard_is_logging(s) && s->log.n > 0) place(s, s->log.n - 1)->digest = s->log.digest;
}

/* ---- slices ---------------------------------------------------------------------------------- */
typedef struct {
    buf base;
    buf *holder;
} slice;

static void release_slice(buf *self)
{
    buf_release(((slice *)self)->holder);
    free(self);
}

static buf *slice_of(const void *data, size_t size, buf *holder)
{
    if (holder->data == data && holder->size == size) return buf_acquire(holder);
    slice *part = malloc(sizeof *part);
    if (part == NULL) return NULL;
    buf_init(&part->base, (void *)(uintptr_t)data, size, release_slice);
    part->holder = buf_acquire(holder);
    return &part->base;
}

static void append_slice(shard *s, const wire_entry *e, int32_t only, const void *data, size_t size,
                         buf *holder)
{
    buf *payload = data != NULL ? slice_of(data, size, holder) : NULL;
    if (data != NULL && payload == NULL)
        shard_no_memory(s);
    else
        shard_log_append(s, e, only, payload);
}

/* ---- entries of the primary ------------------------------------------------------------------ */
static void append_sum(shard *s, const wire_entry *e, shard_chunk *k, int32_t only)
{
    buf *holder = k->accumulator != NULL ? k->accumulator : k->holder;
    append_slice(s, e, only, k->sum, k->count * sizeof(float), holder);
}

void shard_log_first(shard *s, shard_chunk *k)
{
    if (!shard_is_logging(s)) return;
    const wire_entry e = {
        .what = WIRE_ENTRY_FIRST, .object = k->number, .rank = -1, .crc = shard_offload_crc(s, k)};
    buf *values = shard_offload_array(s, k, 0);
    if (values == NULL) return;
    shard_log_append(s, &e, -1, values);
    shard_log_changed(s, k);
    shard_log_applied(s);
}

void shard_log_sum(shard *s, shard_chunk *k, int32_t only)
{
    if (!shard_is_logging(s)) return;
    const wire_entry e = {.what   = WIRE_ENTRY_SUM,
                          .object = k->number,
                          .rank   = -1,
                          .step   = shard_core_partition_step(s->core, k->partition)};
    append_sum(s, &e, k, only);
}

void shard_log_prepared(shard *s, uint32_t partition, int32_t only)
{
    if (!shard_is_logging(s)) return;
    const shard_partition *p  = &s->partition[partition];
    const wire_inputs *inputs = shard_core_step_inputs(s->core, p->step);
    buf *squares              = buf_new(p->blocks * sizeof(double));
    if (squares == NULL || inputs == NULL) {
        buf_release(squares);
        shard_no_memory(s);
        return;
    }
    memcpy(squares->data, p->squares, squares->size);
    const wire_entry e = {.what       = WIRE_ENTRY_PREPARE,
                          .object     = p->number,
                          .rank       = shard_core_step_rank(s->core, p->step),
                          .step       = p->step,
                          .capture    = shard_core_partition_cut(s->core, partition),
                          .has_inputs = true,
                          .inputs     = *inputs,
                          .has_vote   = true,
                          .vote       = p->vote};
    shard_log_append(s, &e, only, squares);
}

void shard_log_commit(shard *s, uint32_t partition, uint64_t step, const wire_decision *decision)
{
    if (!shard_is_logging(s)) return;
    const wire_entry e = {.what         = WIRE_ENTRY_COMMIT,
                          .object       = s->partition[partition].number,
                          .rank         = -1,
                          .step         = step,
                          .has_decision = true,
                          .decision     = *decision};
    shard_log_append(s, &e, -1, NULL);
}

void shard_log_update(shard *s, shard_chunk *k, uint64_t round, const wire_inputs *inputs)
{
    if (!shard_is_logging(s)) return;
    wire_entry e = {.what       = WIRE_ENTRY_UPDATE,
                    .object     = k->number,
                    .rank       = -1,
                    .step       = round,
                    .weight_sum = k->weight_sum,
                    .has_inputs = true,
                    .inputs     = *inputs};
    if (shard_scalars_are_of(s, k)) e.inputs.scalars = s->scalars.sum;
    append_sum(s, &e, k, -1);
}

void shard_log_apply(shard *s, shard_chunk *k, int32_t rank, uint64_t seq,
                     const wire_inputs *inputs, const void *data, size_t size, buf *holder)
{
    if (!shard_is_logging(s)) return;
    const wire_entry e = {.what       = WIRE_ENTRY_APPLY,
                          .object     = k->number,
                          .rank       = rank,
                          .step       = seq,
                          .has_inputs = true,
                          .inputs     = *inputs};
    append_slice(s, &e, -1, data, size, holder);
}

void shard_log_rows(shard *s, shard_chunk *k, uint64_t round, const wire_inputs *inputs,
                    double weight_sum, buf *sum)
{
    if (!shard_is_logging(s)) return;
    const wire_entry e = {.what       = WIRE_ENTRY_UPDATE,
                          .object     = k->number,
                          .rank       = -1,
                          .step       = round,
                          .weight_sum = weight_sum,
                          .has_inputs = true,
                          .inputs     = *inputs};
    shard_log_append(s, &e, -1, buf_acquire(sum));
}

/* ---- sending --------------------------------------------------------------------------------- */
static bool is_for(const shard_entry *entry, const shard_copy *copy)
{
    return entry->only < 0 || entry->only == copy->server;
}

/* Number of next entries in one message. */
static uint32_t choose_batch(shard *s, const shard_copy *copy, uint64_t *bytes)
{
    uint32_t n = 0;
    *bytes     = 0;
    while (n < WIRE_ENTRIES_MAX && copy->sent + n < s->log.index) {
        const shard_entry *entry = shard_log_at(s, copy->sent + n + 1);
        const uint64_t more      = is_for(entry, copy) ? entry->e.bytes : 0;
        if (n > 0 && *bytes + more > SHARD_BATCH_BYTES) break;
        *bytes += more;
        n++;
        if (more >= SHARD_SMALL_BYTES) break;
    }
    return n;
}

static buf *pack(shard *s, const shard_copy *copy, wire_entry *entries, uint32_t n, uint64_t bytes)
{
    buf *payload  = NULL;
    uint64_t used = 0;
    for (uint32_t i = 0; i < n; i++) {
        const shard_entry *entry = shard_log_at(s, copy->sent + i + 1);
        entries[i] =
            is_for(entry, copy) ? entry->e : (wire_entry){.what = WIRE_ENTRY_VOID, .rank = -1};
        if (entries[i].bytes == 0) continue;
        if (entries[i].bytes == bytes) {
            payload = buf_acquire(entry->payload); /* the others have none */
            continue;
        }
        if (payload == NULL) payload = buf_new(bytes);
        if (payload == NULL) return NULL;
        memcpy((char *)payload->data + used, entry->payload->data, entries[i].bytes);
        used += entries[i].bytes;
    }
    return payload;
}

static wire_data addressed(const shard *s, const shard_copy *copy)
{
    return (wire_data){.kind   = WIRE_LOG,
                       .shard  = s->setup.self,
                       .term   = s->term,
                       .epoch  = s->epoch,
                       .from   = s->setup.incarnation,
                       .to     = copy->incarnation,
                       .rank   = s->setup.server,
                       .index  = copy->sent + 1,
                       .stream = copy->stream,
                       .flags  = copy->is_fresh && copy->sent == copy->base ? WIRE_FRESH : 0,
                       .text   = ""};
}

static bool send_batch(shard *s, shard_copy *copy)
{
    wire_entry entries[WIRE_ENTRIES_MAX];
    uint64_t bytes;
    const uint32_t n = choose_batch(s, copy, &bytes);
    buf *payload     = NULL;
    if (bytes > 0 && (payload = pack(s, copy, entries, n, bytes)) == NULL) return false;
    if (bytes == 0) (void)pack(s, copy, entries, n, bytes);
    wire_data d     = addressed(s, copy);
    d.n_entries     = n;
    d.entry         = entries;
    d.payload_bytes = bytes;
    const bool sent = s->outside.send_replica(s->outside.user, copy->server, &d, payload);
    buf_release(payload);
    if (sent) copy->sent += n;
    return sent;
}

bool shard_log_send_to(shard *s, shard_copy *copy)
{
    if (!copy->has_stream) return true;
    while (copy->sent < s->log.index)
        if (!send_batch(s, copy)) return false;
    return true;
}

void shard_log_send(shard *s)
{
    if (s->role != SHARD_PRIMARY) return;
    for (uint32_t i = 0; i < s->n_copies; i++) (void)shard_log_send_to(s, &s->copy[i]);
}

/* What a failed shard has logged last it may not have done itself. */
void shard_log_mark(shard *s)
{
    if (s->has_failed || s->role != SHARD_PRIMARY) return;
    for (uint32_t i = 0; i < s->n_copies; i++) {
        shard_copy *copy = &s->copy[i];
        if (!copy->is_learner) copy->sent = copy->acked; /* no more resends */
        if (!copy->has_stream || !shard_log_send_to(s, copy)) continue;
        wire_data d = addressed(s, copy);
        d.flags |= WIRE_SEALING;
        d.step = s->sealed_epoch;
        (void)s->outside.send_replica(s->outside.user, copy->server, &d, NULL);
    }
}

/* ---- progress -------------------------------------------------------------------------------- */
uint64_t shard_index(const shard *s, uint64_t *digest)
{
    if (digest != NULL) *digest = s->log.digest;
    return s->log.index;
}

uint64_t shard_log_bytes(const shard *s)
{
    return s->log.n > 0 ? s->log.bytes - s->log.entry[s->log.first].before : 0;
}

void shard_log_trim(shard *s)
{
    uint64_t kept = s->log.index;
    for (uint32_t i = 0; i < s->n_copies; i++)
        if (s->copy[i].has_stream && s->copy[i].acked < kept) kept = s->copy[i].acked;
    while (s->log.n > 0 && s->log.index - s->log.n < kept) {
        free_entry(place(s, 0));
        s->log.first = (s->log.first + 1) % s->log.capacity;
        s->log.n--;
    }
}

void shard_log_notify_lag(shard *s)
{
    const uint64_t entries = s->log.n, bytes = shard_log_bytes(s);
    stat_add(s->options.stats, STAT_LAG_ENTRIES, entries - s->watch.lag_entries);
    stat_add(s->options.stats, STAT_LAG_BYTES, bytes - s->watch.lag_bytes);
    s->watch.lag_entries = entries;
    s->watch.lag_bytes   = bytes;
}

void shard_log_fini(shard *s)
{
    for (uint32_t i = 0; i < s->log.n; i++) free_entry(place(s, i));
    free(s->log.entry);
    s->log.entry    = NULL;
    s->log.capacity = s->log.n = s->log.first = 0;
    shard_log_notify_lag(s);
}
