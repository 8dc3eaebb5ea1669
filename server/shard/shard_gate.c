/* shard_gate.c - delays messages to workers until backups have acknowledged.
 *
 * A message is stamped with the newest log entry when it is made.  It is sent once all backups have acknowledged that
 * entry: then its content survives the loss of this server.  Messages are sent in order.  Messages without promises
 * (receipts, requests to ask again) do not wait.  What waits for one rank is bounded: it asks again for the rest.
 */
#include "server/shard/shard_state.h"

#include "common/base/mutation.h"
#include "common/containers/list.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES_PER_RANK = 64 << 20 }; /* beside four times the values of the shard */

static bool promises_nothing(const wire_data *d)
{
    if (d->kind == WIRE_REFUSED) return d->status == PEN_AGAIN || d->status == PEN_CORRUPT;
    return d->kind == WIRE_RECEIPT || d->kind == WIRE_WAITING || d->kind == WIRE_LOGGED;
}

static bool is_let_through(const wire_data *d)
{
    if (mutation(MUTATION_PULL_BEFORE_BACKUPS) && d->kind == WIRE_VALUES) return true;
    if (mutation(MUTATION_ACK_BEFORE_REPLICATE) && d->payload_bytes == 0 && d->kind == WIRE_VALUES)
        return true;
    return mutation(MUTATION_ACK_BEFORE_REPLICATE) && d->kind == WIRE_PREPARED;
}

static uint64_t stamp_of(const shard *s, const wire_data *d)
{
    if (mutation(MUTATION_COMMIT_NOT_GATED) && d->kind == WIRE_VALUES) return s->log.ungated;
    return s->log.index;
}

static bool must_wait(const shard *s, const wire_data *d)
{
    if (s->n_backups == 0 || promises_nothing(d)) return false;
    if (mutation(MUTATION_GATE_IGNORES_BACKUP) || is_let_through(d)) return false;
    return s->parked != NULL || s->open_to < stamp_of(s, d);
}

/* ---- parking --------------------------------------------------------------------------------- */
/* Bytes that wait for a rank; all that are none share one. */
static uint64_t *parked_of(shard *s, int32_t rank)
{
    const bool is_rank = rank >= 0 && (uint32_t)rank < s->setup.world_size;
    return &s->parked_bytes[is_rank ? (uint32_t)rank : s->setup.world_size];
}

static bool has_room(shard *s, int32_t rank, size_t bytes)
{
    uint64_t all = *parked_of(s, rank) + bytes, most = BYTES_PER_RANK;
    for (uint32_t i = 0; i < s->n_chunks && all > most; i++)
        most += 4 * s->chunk[i].count * sizeof(float);
    return all <= most;
}

static void park(shard *s, uint32_t peer, const wire_data *d, buf *payload)
{
    wire_data kept     = *d;
    const size_t lists = wire_data_copy_lists(&kept, NULL);
    const size_t bytes = sizeof(shard_parked) + lists + (payload != NULL ? payload->size : 0);
    shard_parked *m    = has_room(s, d->rank, bytes) ? malloc(sizeof *m + lists) : NULL;
    if (m == NULL) return; /* it asks again */
    *m = (shard_parked){.stamp   = stamp_of(s, d),
                        .peer    = peer,
                        .bytes   = bytes,
                        .payload = buf_acquire(payload),
                        .d       = kept};
    (void)wire_data_copy_lists(&m->d, m + 1);
    *parked_of(s, d->rank) += bytes;
    LIST_APPEND(s->parked, m);
}

static void drop(shard *s, shard_parked *m)
{
    *parked_of(s, m->d.rank) -= m->bytes;
    LIST_REMOVE(s->parked, m);
    buf_release(m->payload);
    free(m);
}

/* ---- the gate -------------------------------------------------------------------------------- */
void shard_send(shard *s, uint32_t peer, int32_t rank, wire_data *d, buf *payload)
{
    d->shard         = s->setup.self;
    d->term          = s->term;
    d->epoch         = s->epoch;
    d->from          = s->setup.incarnation;
    d->to            = rank >= 0 && (uint32_t)rank < s->setup.world_size ? s->incarnation[rank] : 0;
    d->rank          = rank;
    d->payload_bytes = payload != NULL ? payload->size : 0;
    if (d->text == NULL) d->text = "";
    if (must_wait(s, d))
        park(s, peer, d, payload);
    else
        s->outside.send(s->outside.user, peer, d, payload);
}

void shard_gate_open(shard *s)
{
    s->open_to = UINT64_MAX;
    for (uint32_t i = 0; i < s->n_copies; i++)
        if (!s->copy[i].is_learner && s->copy[i].acked < s->open_to) s->open_to = s->copy[i].acked;
    while (s->parked != NULL && s->parked->stamp <= s->open_to) {
        s->outside.send(s->outside.user, s->parked->peer, &s->parked->d, s->parked->payload);
        drop(s, s->parked);
    }
}

void shard_gate_forget(shard *s)
{
    LIST_EACH(m, s->parked) drop(s, m);
}

void shard_gate_forget_peer(shard *s, uint32_t peer)
{
    LIST_EACH(m, s->parked)
        if (m->peer == peer) drop(s, m);
}
