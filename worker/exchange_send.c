/* exchange_send.c - from outboxes to messages: what travels together. */
#include "worker/exchange_internal.h"

#include <string.h>

static wire_kind kind_of(const op *o)
{
    if (o->verb == EXCHANGE_INIT) return WIRE_INIT;
    return exchange_is_pushing(o) ? WIRE_PUSH : WIRE_PULL;
}

static uint32_t flags_of(const exchange *self, const op *o)
{
    uint32_t flags = 0;
    bool fused     = o->verb == EXCHANGE_PUSH_PULL ||
                 (o->verb == EXCHANGE_STEP && exchange_rule_of(self, o) != EXCHANGE_DECIDE);
    if (o->verb == EXCHANGE_LOAD) flags |= WIRE_INITIAL;
    if (fused) flags |= WIRE_WANT_VALUES;
    if (o->tries > 0 && kind_of(o) == WIRE_PUSH) flags |= WIRE_REPEATED;
    if (self->setup.gives_back && kind_of(o) == WIRE_PUSH) flags |= WIRE_RETURN;
    return flags;
}

/* Identities of operations that count on their own: then a column, else the message's step. */
static bool has_seq(const exchange *self, const op *o)
{
    return kind_of(o) == WIRE_PUSH && exchange_rule_of(self, o) != EXCHANGE_DECIDE;
}

static bool joins(const exchange *self, const op *a, const op *b)
{
    if (kind_of(a) != kind_of(b) || flags_of(self, a) != flags_of(self, b)) return false;
    if ((a->verb == EXCHANGE_FETCH) != (b->verb == EXCHANGE_FETCH)) return false;
    if (kind_of(a) == WIRE_PUSH && (a->in != b->in || has_seq(self, a) != has_seq(self, b)))
        return false;
    if (a->verb == EXCHANGE_STEP && b->verb == EXCHANGE_STEP) return true;
    return a->verb == EXCHANGE_STEP || b->verb == EXCHANGE_STEP ? kind_of(a) != WIRE_PULL : true;
}

/* How many from the front of the outbox go into one message. */
static uint32_t gather(const exchange *self, const lane_state *lane)
{
    size_t bytes = exchange_push_size(self, lane->head);
    uint32_t n   = 1;
    if (bytes >= ALONE_BYTES) return 1;
    for (const op *o = lane->head->out_next; o != NULL && n < PACK_CHUNKS_MAX;
         o           = o->out_next, n++) {
        size_t more = exchange_push_size(self, o);
        if (more >= ALONE_BYTES || bytes + more > PACK_BYTES || !joins(self, lane->head, o)) break;
        bytes += more;
    }
    return n;
}

/* The decision travels with the hashes of the records it was made from. */
static void add_decision(exchange *self, wire_data *d)
{
    uint32_t n_partitions = 0;
    self->stamp_now++;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t p = exchange_chunk(self, d->chunk[i])->partition;
        if (self->stamp[p] == self->stamp_now) continue;
        self->stamp[p]                  = self->stamp_now;
        self->partition[n_partitions]   = p;
        self->record_hash[n_partitions] = self->step.record[p].hash;
        n_partitions++;
    }
    d->has_decision = true;
    d->decision     = self->step.decision;
    d->n_partitions = n_partitions;
    d->partition    = self->partition;
    d->record_hash  = self->record_hash;
}

/* Gradients may travel in fewer bits than they have; first values never do. */
static pen_dtype encoding_of(const exchange *self, const op *o)
{
    const uint32_t tensor = exchange_chunk(self, o->chunk)->tensor;
    const pen_dtype as    = (pen_dtype)self->push_dtype[tensor];
    const bool is_as_is =
        o->verb == EXCHANGE_INIT || as == self->setup.model->tensor[tensor].grad_dtype;
    return is_as_is ? PEN_DTYPE_DEFAULT : as;
}

static uint32_t fill(exchange *self, const lane_state *lane, uint32_t n, wire_data *d)
{
    const op *first = lane->head, *o = first;
    uint32_t shard = exchange_shard(self, first->chunk), n_pieces = 0;

    *d = (wire_data){.kind  = kind_of(first),
                     .shard = shard,
                     .term  = self->setup.term,
                     .epoch = self->setup.epoch,
                     .from  = self->setup.from,
                     .to    = self->setup.to[shard],
                     .rank  = self->setup.rank,
                     .flags = flags_of(self, first),
                     .n     = n,
                     .chunk = self->column_chunk,
                     .text  = ""};
    for (uint32_t i = 0; i < n; i++, o = o->out_next) {
        self->column_chunk[i] = o->chunk;
        self->column_seq[i]   = o->seq;
        size_t size           = exchange_push_size(self, o);
        if (size > 0)
            self->piece[n_pieces++] =
                (exchange_piece){o->from, size, (void *)(uintptr_t)o, encoding_of(self, o)};
    }
    if (has_seq(self, first))
        d->seq = self->column_seq;
    else if (first->verb == EXCHANGE_FETCH && exchange_away_ask(self, d))
        d->step = self->away.step;
    else if (first->verb == EXCHANGE_PULL || first->verb == EXCHANGE_FETCH)
        d->step = self->pulls; /* so that a late answer is not taken for a newer one */
    else
        d->step = first->seq;
    if (d->kind == WIRE_PUSH) {
        d->has_inputs = true;
        d->inputs     = first->in->wire;
        if (self->scalars_chunk < self->setup.plan->n_chunks &&
            exchange_shard(self, self->scalars_chunk) != shard)
            d->inputs.scalars.n = 0;
    }
    if (first->verb == EXCHANGE_STEP && first->pulling) add_decision(self, d);
    return n_pieces;
}

/* A push that is far ahead of the shard only takes memory: what it sums is cold in every cache by
 * then, and a later push of a higher priority waits behind it. */
static void spend(const exchange *self, lane_state *lane, op *o)
{
    const size_t bytes = exchange_push_size(self, o);
    if (bytes < ALONE_BYTES) return;
    o->credit = bytes;
    lane->spent += bytes;
}

static bool has_credit(const exchange *self, const lane_state *lane)
{
    return lane->spent < CREDIT_BYTES || exchange_push_size(self, lane->head) < ALONE_BYTES;
}

static void mark_sent(exchange *self, lane_state *lane, uint32_t n, uint64_t now_ms)
{
    for (uint32_t i = 0; i < n; i++) {
        op *o      = lane->head;
        lane->head = o->out_next;
        if (lane->head == NULL) lane->tail = NULL;
        o->out_next = NULL;
        o->state    = OP_SENT;
        spend(self, lane, o);
        if (o->verb == EXCHANGE_PULL) o->seq = self->pulls;
        if (o->verb == EXCHANGE_FETCH) o->seq = self->away.has ? self->away.step : self->pulls;
        if (o->tries++ > 0) self->act.count(self->user, STAT_RETRIES, 1);
        if (exchange_is_pushing(o) && o->verb != EXCHANGE_INIT)
            self->act.count(self->user, STAT_PUSH_BYTES, exchange_push_size(self, o));
        exchange_due_at(
            self, o,
            now_ms + retry_wait_ms(&self->setup.retry, RETRY_SILENCE, o->tries, &self->draws));
    }
}

static bool send_front(exchange *self, uint32_t number, uint64_t now_ms)
{
    lane_state *lane = &self->lane[number];
    uint32_t n       = gather(self, lane);
    wire_data d;
    uint32_t n_pieces = fill(self, lane, n, &d);
    if (self->act.send(self->user, number / self->setup.lanes, number % self->setup.lanes, &d,
                       self->piece, n_pieces) != PEN_OK) {
        lane->blocked_until_ms =
            now_ms + retry_wait_ms(&self->setup.retry, RETRY_FULL, 1, &self->draws);
        if (lane->blocked_until_ms < self->tick_ms) self->tick_ms = lane->blocked_until_ms;
        return false;
    }
    lane->blocked_until_ms = 0;
    mark_sent(self, lane, n, now_ms);
    return true;
}

void exchange_flush(exchange *self, uint64_t now_ms)
{
    self->pulls++;
    exchange_away_flush(self);
    for (uint32_t i = 0; i < self->n_lanes; i++) {
        lane_state *lane = &self->lane[i];
        if (!lane->up || lane->blocked_until_ms > now_ms) continue;
        while (lane->head != NULL && has_credit(self, lane) && send_front(self, i, now_ms))
            continue;
    }
    exchange_idle_flush(self, now_ms);
}
