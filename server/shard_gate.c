/* shard_gate.c - every message to a worker, and when it may leave.
 *
 * A message is stamped with the newest entry of the log at the time it is made.  It leaves when all
 * backups have acknowledged that entry: then whatever it tells survives the loss of this server.
 * Messages leave in the order in which they were made.  What promises nothing (receipts, requests to
 * ask again) does not wait.
 */
#include "server/shard_state.h"

#include "common/list.h"
#include "common/plant.h"

#include <stdlib.h>
#include <string.h>

static bool promises_nothing(const wire_data *d)
{
    if (d->kind == WIRE_REFUSED) return d->status == PEN_AGAIN || d->status == PEN_CORRUPT;
    return d->kind == WIRE_RECEIPT || d->kind == WIRE_WAITING || d->kind == WIRE_LOGGED;
}

static bool is_let_through(const wire_data *d)
{
    if (plant(PLANT_PULL_BEFORE_BACKUPS) && d->kind == WIRE_VALUES) return true;
    if (plant(PLANT_ACK_BEFORE_REPLICATE) && d->payload_bytes == 0 && d->kind == WIRE_VALUES)
        return true;
    return plant(PLANT_ACK_BEFORE_REPLICATE) && d->kind == WIRE_PREPARED;
}

static uint64_t stamp_of(const shard *s, const wire_data *d)
{
    if (plant(PLANT_COMMIT_NOT_GATED) && d->kind == WIRE_VALUES) return s->log.ungated;
    return s->log.index;
}

static bool must_wait(const shard *s, const wire_data *d)
{
    if (s->n_backups == 0 || promises_nothing(d)) return false;
    if (plant(PLANT_GATE_IGNORES_BACKUP) || is_let_through(d)) return false;
    return s->parked != NULL || s->open_to < stamp_of(s, d);
}

/* ---- parking --------------------------------------------------------------------------------- */
static size_t list_bytes(const void *list, size_t bytes)
{
    return list != NULL ? (bytes + 7) / 8 * 8 : 0;
}

static const void *keep_list(char **at, const void *list, size_t bytes)
{
    if (list == NULL || bytes == 0) return NULL;
    void *kept = memcpy(*at, list, bytes);
    *at += list_bytes(list, bytes);
    return kept;
}

/* The lists that answers have; both walks are in the same order. */
static size_t lists_of(const wire_data *d)
{
    return list_bytes(d->chunk, d->n * sizeof *d->chunk) +
           list_bytes(d->seq, d->n * sizeof *d->seq) + list_bytes(d->crc, d->n * sizeof *d->crc) +
           list_bytes(d->version, d->n * sizeof *d->version) +
           list_bytes(d->staleness, d->n * sizeof *d->staleness) +
           list_bytes(d->record, d->n_records * sizeof *d->record) +
           list_bytes(d->text, strlen(d->text) + 1);
}

static void keep_lists(wire_data *d, char *at)
{
    d->chunk     = keep_list(&at, d->chunk, d->n * sizeof *d->chunk);
    d->seq       = keep_list(&at, d->seq, d->n * sizeof *d->seq);
    d->crc       = keep_list(&at, d->crc, d->n * sizeof *d->crc);
    d->version   = keep_list(&at, d->version, d->n * sizeof *d->version);
    d->staleness = keep_list(&at, d->staleness, d->n * sizeof *d->staleness);
    d->record    = keep_list(&at, d->record, d->n_records * sizeof *d->record);
    d->text      = keep_list(&at, d->text, strlen(d->text) + 1);
}

static void park(shard *s, uint32_t peer, const wire_data *d, buf *payload)
{
    shard_parked *m = malloc(sizeof *m + lists_of(d));
    if (m == NULL) return; /* it asks again */
    *m = (shard_parked){
        .stamp = stamp_of(s, d), .peer = peer, .payload = buf_acquire(payload), .d = *d};
    keep_lists(&m->d, (char *)(m + 1));
    LIST_APPEND(s->parked, m);
}

static void drop(shard *s, shard_parked *m)
{
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
