/* shard_follow.c - a copy: applies its primary's log entry by entry and acknowledges it. */
#include "server/shard/shard_state.h"

#include "common/base/crc.h"
#include "common/base/log.h"
#include "common/base/mutation.h"

#include <inttypes.h>
#include <string.h>

typedef struct { /* one entry and its bytes */
    const wire_entry *e;
    const uint8_t *data; /* e->bytes of them */
    buf *holder;         /* NULL: no bytes */
} logged;

/* ---- entry lookups --------------------------------------------------------------------------- */
static uint32_t partition_of(const shard *s, const wire_entry *e)
{
    return e->object < s->setup.plan->n_partitions ? s->partition_index[e->object] : SHARD_NONE;
}

static bool has_numbers(const shard_chunk *k, const wire_entry *e)
{
    return e->bytes == k->count * sizeof(float);
}

static bool has_rates(const shard *s, const wire_entry *e)
{
    return e->has_inputs && e->inputs.n_rates == s->setup.model->n_groups;
}

static bool is_missing(const shard_chunk *k)
{
    return !k->is_filled && !mutation(MUTATION_FILL_UNORDERED);
}

static void refer_to_sum(shard *s, shard_chunk *k, const logged *l)
{
    shard_drop_sum(s, k);
    if (l->e->bytes == 0) return;
    k->sum    = (const float *)(const void *)l->data;
    k->holder = buf_acquire(l->holder);
}

/* ---- entries: false if an entry does not fit ------------------------------------------------- */
static bool follow_first(shard *s, const logged *l)
{
    shard_chunk *k = shard_find(s, l->e->object);
    if (k == NULL || !has_numbers(k, l->e)) return false;
    if (!k->is_filled || !shard_offload_first_in(s, k) || !shard_chunk_make_writable(s, k))
        return true;
    memcpy(k->values->data, l->data, l->e->bytes);
    shard_chunk_first_slots(s, k);
    shard_chunk_changed(k);
    shard_log_changed(s, k);
    shard_offload_out(s, k);
    shard_core_first_values(s->core, k->index);
    return true;
}

static bool follow_sum(shard *s, const logged *l)
{
    shard_chunk *k = shard_find(s, l->e->object);
    if (k == NULL || !k->decided || (l->e->bytes > 0 && !has_numbers(k, l->e))) return false;
    refer_to_sum(s, k, l);
    return true;
}

static bool keep_vote(shard *s, uint32_t p, uint64_t step, const logged *l)
{
    shard_partition *at = &s->partition[p];
    if (l->e->bytes != at->blocks * sizeof(double)) return false;
    at->step     = step;
    at->vote     = l->e->vote;
    at->is_fresh = false;
    if (l->e->bytes > 0) memcpy(at->squares, l->data, l->e->bytes);
    return true;
}

static bool follow_prepare(shard *s, const logged *l)
{
    const wire_entry *e = l->e;
    const uint32_t p    = partition_of(s, e);
    if (p == SHARD_NONE || !e->has_vote || !has_rates(s, e)) return false;
    return keep_vote(s, p, e->step, l) &&
           shard_core_follow_prepared(s->core, p, e->step, e->rank, &e->inputs, e->vote.hash,
                                      e->capture);
}

static bool follow_commit(shard *s, const logged *l)
{
    const wire_entry *e = l->e;
    const uint32_t p    = partition_of(s, e);
    if (p == SHARD_NONE || !e->has_decision) return false;
    const wire_data d      = {.rank = -1, .has_decision = true, .decision = e->decision};
    const shard_arrival in = {.d = &d};
    const uint64_t hash    = s->partition[p].vote.hash;
    const shard_core_actions actions =
        shard_core_decide(s->core, p, e->step, hash, &e->decision, CORE_EVERYONE);
    if (actions.n > 0 && actions.at[0].verb == CORE_REFUSE) return false;
    shard_act(s, actions, &in);
    return true;
}

static bool follow_rows(shard *s, shard_chunk *k, const logged *l)
{
    if (!shard_table_follow(s, k, l->e, l->data)) return false;
    shard_log_changed(s, k);
    return true;
}

static bool follow_update(shard *s, const logged *l)
{
    shard_chunk *k = shard_find(s, l->e->object);
    if (k == NULL || k->handler != NULL || !has_rates(s, l->e) ||
        (k->table == NULL && l->e->bytes > 0 && !has_numbers(k, l->e)))
        return false;
    if (is_missing(k)) return true;
    if (!shard_core_follow_update(s->core, k->index, l->e->step)) return false;
    if (k->table != NULL) return follow_rows(s, k, l);
    refer_to_sum(s, k, l);
    k->weight_sum = l->e->weight_sum;
    shard_scalars_follow(s, k, &l->e->inputs.scalars);
    shard_update_with_mean(s, k, &l->e->inputs);
    shard_drop_sum(s, k);
    shard_log_changed(s, k);
    return true;
}

static bool follow_apply(shard *s, const logged *l)
{
    shard_chunk *k = shard_find(s, l->e->object);
    if (k == NULL || k->handler != NULL || !has_rates(s, l->e) ||
        (k->table == NULL && l->e->bytes != k->count * plan_dtype_bytes(k->push_dtype)))
        return false;
    if (is_missing(k)) return true;
    const bool counts = k->table == NULL || !mutation(MUTATION_ROWS_NOT_COUNTED);
    if (counts && !shard_core_follow_apply(s->core, k->index, l->e->rank, l->e->step)) return false;
    if (k->table != NULL) return follow_rows(s, k, l);
    shard_scalars_take(s, k, l->e->rank, &l->e->inputs);
    shard_scalars_close(s, k);
    shard_update_with_one(s, k, &l->e->inputs, l->data);
    shard_drop_sum(s, k);
    shard_log_changed(s, k);
    return true;
}

static bool follow_begin(shard *s, const logged *l)
{
    const wire_entry *e = l->e;
    const uint32_t p    = partition_of(s, e);
    if (p == SHARD_NONE) return false;
    shard_core_follow_begin(s->core, p, e->step, e->applied, e->has_decision ? &e->decision : NULL);
    return !e->has_vote || keep_vote(s, p, e->step - 1, l);
}

static void note_filled(shard *s, shard_chunk *k, bool is_last)
{
    if (!is_last || k->is_filled) return;
    k->is_filled = true;
    s->n_unfilled--;
}

static bool follow_state(shard *s, const logged *l)
{
    const wire_entry *e = l->e;
    shard_chunk *k      = shard_find(s, e->object);
    if (k != NULL && k->table != NULL && e->slot > 0) {
        /* A block of rows comes in place of a slot. */
        pen_error why;
        if (row_store_blocks(shard_table_rows(k)) + 1 != l->e->slot) return false;
        if (row_store_add_block(shard_table_rows(k), l->data, l->e->bytes, &why) != PEN_OK)
            return false;
        note_filled(s, k, l->e->is_last);
        return true;
    }
    if (k != NULL && k->handler != NULL && e->slot > 0)
        return shard_handler_follow(s, k, e, l->data);
    if (k == NULL || e->slot > k->slots || (e->bytes > 0 && !has_numbers(k, e))) return false;
    if (k->table != NULL) row_store_clear(shard_table_rows(k));
    k->version = e->version;
    if (e->slot == 0) {
        shard_core_follow_state(s->core, k->index, e->bytes > 0, e->step, e->number, e->n_numbers);
        if (e->has_vote) shard_scalars_follow(s, k, &e->vote.scalars);
    }
    if (!shard_chunk_make_writable(s, k)) return true;
    if (e->bytes > 0 && !shard_offload_replace(s, k, e->slot, l->data)) return true;
    shard_chunk_changed(k);
    note_filled(s, k, e->is_last);
    return true;
}

static bool follow_filled(shard *s, const logged *l)
{
    if (s->n_unfilled > 0) return false;
    s->is_whole   = true;
    s->log.digest = l->e->digest;
    return true;
}

static bool follow_settle(shard *s, const logged *l)
{
    const wire_entry *e = l->e;
    if (e->version <= s->settled_epoch) return true; /* already resolved with the epoch */
    s->settled_epoch = e->version;
    shard_settle(s, (int64_t)e->step - 1, e->has_decision ? &e->decision : NULL);
    return shard_join_listed(s, e->number, e->n_numbers) &&
           (!e->restart || (shard_restart(s), true));
}

static bool follow_void(shard *s, const logged *l)
{
    (void)s;
    return l->e->bytes == 0;
}

static bool (*const entries[WIRE_ENTRY_END])(shard *s, const logged *l) = {
    [WIRE_ENTRY_FIRST] = follow_first,     [WIRE_ENTRY_SUM] = follow_sum,
    [WIRE_ENTRY_PREPARE] = follow_prepare, [WIRE_ENTRY_COMMIT] = follow_commit,
    [WIRE_ENTRY_UPDATE] = follow_update,   [WIRE_ENTRY_APPLY] = follow_apply,
    [WIRE_ENTRY_BEGIN] = follow_begin,     [WIRE_ENTRY_STATE] = follow_state,
    [WIRE_ENTRY_FILLED] = follow_filled,   [WIRE_ENTRY_SETTLE] = follow_settle,
    [WIRE_ENTRY_VOID] = follow_void,
};

/* ---- receiving the log ----------------------------------------------------------------------- */
static void empty(shard *s, const wire_data *d)
{
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        shard_drop_staged(s, &s->chunk[i]);
        s->chunk[i].is_filled = false;
    }
    shard_core_empty(s->core);
    s->n_unfilled = s->n_chunks;
    s->is_whole   = false;
    s->stream     = d->stream;
    s->log.index  = d->index - 1;
    s->log.digest = 0;
}

/* A backup follows its primary from its own position; a learner only its known stream, or one that starts empty. */
static bool follows(shard *s, const wire_data *d)
{
    if (d->stream == s->stream) return true;
    if (s->role == SHARD_BACKUP) {
        s->stream = d->stream;
        return !(d->flags & WIRE_FRESH);
    }
    if (!(d->flags & WIRE_FRESH)) return false;
    empty(s, d);
    return true;
}

static void does_not_fit(shard *s, const wire_data *d, const wire_entry *e)
{
    pen_error error;
    why_set(&error, PEN_INTERNAL,
            "shard %u: the copy on server %d cannot follow its primary on server %d: entry %" PRIu64
            " of kind %d about %u, step %" PRIu64 ", does not fit its state",
            s->setup.self, s->setup.server, d->rank, s->log.index + 1, (int)e->what, e->object,
            e->step);
    why_culprit(&error, PEN_SERVER, s->setup.server, (int64_t)e->step, NULL);
    shard_fail(s, &error);
}

static bool is_intact(shard *s, const logged *l)
{
    if (l->e->bytes == 0 || crc32c(0, l->data, l->e->bytes) == l->e->crc) return true;
    stat_add(s->options.stats, STAT_CORRUPT, 1);
    return false;
}

static void take_entries(shard *s, const wire_data *d, buf *payload)
{
    const uint8_t *at = payload != NULL ? payload->data : NULL;
    for (uint32_t i = 0; i < d->n_entries && !s->has_failed; i++) {
        const logged l       = {&d->entry[i], at, payload};
        const uint64_t index = d->index + i;
        if (at != NULL) at += l.e->bytes;
        if (index <= s->log.index) continue;
        if ((index > s->log.index + 1 && !mutation(MUTATION_LOG_OUT_OF_ORDER)) ||
            !is_intact(s, &l)) {
            s->has_gap = true;
            return;
        }
        if (!entries[l.e->what](s, &l)) does_not_fit(s, d, l.e);
        s->log.index = index;
        s->has_gap   = false;
    }
}

static bool is_from_primary(const shard *s, const wire_data *d, const buf *payload)
{
    const size_t size = payload != NULL ? payload->size : 0;
    if (mutation(MUTATION_NO_FENCE)) return s->role != SHARD_PRIMARY && d->payload_bytes == size;
    return (s->role == SHARD_BACKUP || s->role == SHARD_LEARNER) && d->epoch == s->epoch &&
           (d->term == s->term || mutation(MUTATION_TERM_IGNORED)) && d->payload_bytes == size &&
           ((d->from == s->primary && d->to == s->setup.incarnation) ||
            mutation(MUTATION_NO_INCARNATION_CHECK)) &&
           (!shard_is_sealed(s) || mutation(MUTATION_SEAL_GOES_ON));
}

/* The primary was faster.  Once the epoch is here too, asks it to send that again. */
static void remember_early(shard *s, uint32_t peer, const wire_data *d)
{
    if (d->to != s->setup.incarnation || d->term < s->term || d->epoch <= s->epoch) return;
    s->early_peer  = peer;
    s->early_epoch = d->epoch;
    s->early_from  = d->from;
}

void shard_follow_receive(shard *s, uint32_t peer, const wire_data *d, buf *payload)
{
    if (!is_from_primary(s, d, payload)) { /* of an older or a later epoch */
        remember_early(s, peer, d);
        return;
    }
    s->primary_peer = peer;
    s->owes_ack     = true;
    if (!follows(s, d)) return;
    take_entries(s, d, payload);
    if (!(d->flags & WIRE_SEALING)) return;
    s->mark_epoch = d->step;
    s->mark_index = d->index + d->n_entries - 1;
    if (s->log.index < s->mark_index) s->has_gap = true;
}

void shard_follow_acknowledge(shard *s)
{
    if (!s->owes_ack || shard_is_sealed(s)) return;
    s->owes_ack = false;
    wire_data d = {.kind   = WIRE_LOGGED,
                   .shard  = s->setup.self,
                   .term   = s->term,
                   .epoch  = s->epoch,
                   .from   = s->setup.incarnation,
                   .to     = s->primary,
                   .rank   = s->setup.server,
                   .index  = s->log.index,
                   .stream = s->stream,
                   .digest = s->log.digest,
                   .flags  = s->has_gap ? WIRE_REPEATED : 0,
                   .text   = ""};
    s->outside.send(s->outside.user, s->primary_peer, &d, NULL);
}
