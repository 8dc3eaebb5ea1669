/* shard.c - a shard: create, destroy, dispatch of messages. */
#include "server/shard/shard_state.h"
#include "server/shard/shard_test.h"

#include "common/base/log.h"
#include "common/base/mutation.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LOG_TURNED (UINT64_C(0x7a4e) << 32) /* of log_allowed(), by shard */

/* ---- life ------------------------------------------------------------------------------------ */
shard *shard_create(const shard_options *options, const shard_outside *outside, pen_error *why)
{
    assert(options->stats != NULL && outside->send != NULL && outside->snapshot != NULL &&
           outside->report != NULL);
    shard *s = calloc(1, sizeof *s);
    if (s == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for a shard");
        return NULL;
    }
    s->options      = *options;
    s->outside      = *outside;
    s->primary_peer = SHARD_NONE;
    return s;
}

static void free_kept(shard_kept *kept)
{
    while (kept != NULL) {
        shard_kept *next = kept->next;
        free(kept);
        kept = next;
    }
}

void shard_destroy(shard *s)
{
    if (s == NULL) return;
    shard_capture_fini(s);
    shard_states_fini(s);
    shard_scalars_fini(s);
    shard_gate_forget(s);
    shard_log_fini(s);
    for (uint32_t i = 0; s->chunk != NULL && i < s->n_chunks; i++) {
        shard_drop_staged(s, &s->chunk[i]);
        shard_chunk_free(&s->chunk[i]);
        shard_table_free(&s->chunk[i]);
        handler_part_close(s->chunk[i].handler);
    }
    for (uint32_t i = 0; s->partition != NULL && i < s->n_partitions; i++)
        free(s->partition[i].squares);
    shard_core_destroy(s->core);
    free_kept(s->spare_kept);
    shard_pool_fini(&s->pool);
    shard_offload_close(s);
    recycler_destroy(s->recycler);
    shard_reply_fini(s);
    free(s->chunk);
    free(s->partition);
    free(s->group);
    free(s->index_of);
    free(s->partition_index);
    free(s->incarnation);
    free(s->node);
    free(s->peer_of);
    free(s->missing);
    free(s->parked_bytes);
    free(s->span);
    free(s->scratch);
    free(s);
}

/* ---- work ------------------------------------------------------------------------------------ */
static pen_status check_sender(const shard *s, const wire_data *d, const buf *payload,
                               bool *is_member, pen_error *why)
{
    const size_t size = payload != NULL ? payload->size : 0;
    if (d->payload_bytes != size)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "expected a payload of %" PRIu64 " bytes, got %zu", d->payload_bytes, size);
    const pen_status status = shard_core_admit(s->core, d->rank, d->from, d->term, d->epoch, why);
    *is_member              = status == PEN_OK;
    if (status != PEN_OK) return status;
    if (d->to != s->setup.incarnation && !mutation(MUTATION_NO_INCARNATION_CHECK) &&
        !mutation(MUTATION_NO_FENCE))
        return why_set(why, PEN_NOT_A_MEMBER,
                       "the message is for an earlier server, which has ended");
    if (shard_is_sealed(s) && !mutation(MUTATION_SEAL_GOES_ON))
        return why_set(why, PEN_AGAIN, "an epoch change is in progress");
    if (s->role != SHARD_PRIMARY)
        return why_set(why, PEN_AGAIN, "this server has only a copy of shard %u", s->setup.self);
    return PEN_OK;
}

static void turn_away(shard *s, uint32_t peer, const wire_data *d, const pen_error *why)
{
    if (why->status != PEN_AGAIN) {
        stat_add(s->options.stats, STAT_REFUSED, 1);
        if (log_allowed(LOG_TURNED | s->setup.self))
            log_warning("refused a message of rank %d: %s", d->rank, why->text);
    }
    shard_refuse(s, peer, d, why->status, why->text);
}

bool shard_receive(shard *s, uint32_t peer, const wire_data *d, buf *payload)
{
    const bool has_rows = d->size != NULL;
    bool is_member      = false;
    pen_error why;
    if (s->core == NULL || s->has_failed) return false;
    if (d->kind == WIRE_LOG) {
        shard_follow_receive(s, peer, d, payload);
        return false;
    }
    if (d->kind == WIRE_LOGGED) {
        shard_copies_heard(s, d);
        return false;
    }
    if (check_sender(s, d, payload, &is_member, &why) != PEN_OK) {
        turn_away(s, peer, d, &why);
        return is_member;
    }
    s->peer_of[d->rank] = peer;
    if (has_rows && (d->kind == WIRE_PUSH || d->kind == WIRE_PULL))
        shard_receive_rows(s, peer, d, payload);
    else if (d->kind == WIRE_PUSH)
        shard_receive_push(s, peer, d, payload);
    else if (d->kind == WIRE_INIT)
        shard_receive_init(s, peer, d, payload);
    else if (d->kind == WIRE_PULL)
        shard_receive_pull(s, peer, d);
    else if (d->kind == WIRE_INQUIRE)
        shard_receive_inquiry(s, peer, d);
    else {
        why_set(&why, PEN_INVALID_ARGUMENT, "%s is not for a server", wire_kind_name((int)d->kind));
        turn_away(s, peer, d, &why);
    }
    return true;
}

void shard_flush(shard *s)
{
    if (s->core == NULL || s->has_failed) return;
    shard_follow_acknowledge(s);
    shard_reply_flush(s);
    if (s->n_copies > 0) shard_log_send(s);
    if (s->log.n > 0 || s->watch.lag_entries > 0) shard_log_notify_lag(s);
}

void shard_peer_down(shard *s, uint32_t peer)
{
    shard_reply_forget_peer(s, peer);
    shard_gate_forget_peer(s, peer);
    if (s->primary_peer == peer) s->primary_peer = SHARD_NONE;
    for (uint32_t r = 0; s->peer_of != NULL && r < s->setup.world_size; r++)
        if (s->peer_of[r] == peer) s->peer_of[r] = SHARD_NONE;
    if (s->core != NULL) shard_core_peer_down(s->core, peer);
}

/* ---- queries --------------------------------------------------------------------------------- */
bool shard_missing(const shard *s, int32_t rank, uint64_t *step, uint32_t *chunk,
                   const char **tensor)
{
    uint32_t index;
    if (s->core == NULL || s->role != SHARD_PRIMARY ||
        !shard_core_owes(s->core, rank, step, &index))
        return false;
    *chunk  = s->chunk[index].number;
    *tensor = shard_tensor_name(s, &s->chunk[index]);
    return true;
}

bool shard_lacks_values(const shard *s)
{
    if (s->core == NULL || s->role != SHARD_PRIMARY) return false;
    uint32_t i = 0;
    while (i < s->n_chunks && shard_core_has_values(s->core, i)) i++;
    return i < s->n_chunks;
}

static const shard_chunk *chunk_of(const shard *s, uint32_t number)
{
    return s->core != NULL ? shard_find(s, number) : NULL;
}

const float *shard_values(const shard *s, uint32_t chunk, uint64_t *version)
{
    const shard_chunk *k = chunk_of(s, chunk);
    if (k == NULL) return NULL;
    if (version != NULL) *version = k->version;
    return k->values != NULL ? k->values->data : shard_offload_look(s, k, 0);
}

const float *shard_slot(const shard *s, uint32_t chunk, int slot)
{
    const shard_chunk *k = chunk_of(s, chunk);
    if (k == NULL || slot < 0 || slot >= OPTIM_SLOTS_MAX) return NULL;
    return k->slot[slot] != NULL ? k->slot[slot]->data
                                 : shard_offload_look(s, k, 1 + (uint32_t)slot);
}

const row_store *shard_rows(const shard *s, uint32_t chunk)
{
    const shard_chunk *k = chunk_of(s, chunk);
    return k != NULL && k->table != NULL ? shard_table_rows(k) : NULL;
}

int64_t shard_applied(const shard *s)
{
    return s->core != NULL ? shard_core_applied(s->core) : 0;
}

bool shard_has_handlers(const shard *s)
{
    return s->has_handlers;
}

shard_role shard_role_of(const shard *s)
{
    return s->role;
}

const uint64_t *shard_clocks(const shard *s, uint32_t chunk, uint64_t *round)
{
    const shard_chunk *k = chunk_of(s, chunk);
    if (k == NULL) return NULL;
    if (round != NULL) *round = shard_core_round(s->core, k->index);
    return shard_core_clocks(s->core, k->index);
}
