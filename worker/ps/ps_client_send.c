/* ps_client_send.c - turns what a program adds into messages: operations, outboxes, packing. */
#include "worker/ps/ps_client_internal.h"

#include "common/base/why.h"

#include <stdlib.h>
#include <string.h>

/* ---- operations ------------------------------------------------------------------------------ */
void *ps_client_new(ps_client *self, struct slab **free_items, size_t size)
{
    struct slab *slab =
        *free_items == NULL ? malloc(sizeof(max_align_t) + size * PS_CLIENT_SLAB) : NULL;
    if (slab != NULL) {
        slab->next  = self->slabs;
        self->slabs = slab;
        for (int i = 0; i < PS_CLIENT_SLAB; i++)
            ps_client_free(free_items, (char *)slab + sizeof(max_align_t) + (size_t)i * size);
    }
    struct slab *item = *free_items;
    if (item == NULL) return NULL;
    *free_items = item->next;
    return memset(item, 0, size);
}

static bool is_node_sum(const op *o)
{
    return o->verb == PS_STEP && o->in != NULL && o->in->wire.is_node_sum;
}

static pen_dtype push_dtype(const ps_client *self, const op *o)
{
    if (is_node_sum(o) && self->sums_are_wide) return PEN_F32;
    return (pen_dtype)self->push_dtype[ps_client_chunk(self, o->chunk)->tensor];
}

/* Bytes that it sends. */
static size_t push_size(const ps_client *self, const op *o)
{
    if (o->rows_bytes > 0) return o->rows_bytes;
    if (!ps_client_is_pushing(o)) return 0;
    if (o->verb == PS_INIT) return ps_client_value_size(self, o->chunk);
    return ps_client_chunk(self, o->chunk)->count * plan_dtype_bytes(push_dtype(self, o));
}

/* ---- outbox ---------------------------------------------------------------------------------- */
/* Its answer brings values that no other chunk of the step has to wait for. */
static bool brings_values(const ps_client *self, const op *o)
{
    return o->verb == PS_STEP && (o->pulling || !ps_client_is_decided(self, o));
}

/* The next forward pass needs the first tensors first, but the backward pass pushes them last. */
static bool precedes(const ps_client *self, const op *a, const op *b)
{
    if (a->priority != b->priority) return a->priority > b->priority;
    return brings_values(self, a) && brings_values(self, b) &&
           ps_client_chunk(self, a->chunk)->tensor < ps_client_chunk(self, b->chunk)->tensor;
}

static void put_in_order(const ps_client *self, lane_state *lane, op *o)
{
    op **at = &lane->head;
    if (lane->tail != NULL && !precedes(self, o, lane->tail)) at = &lane->tail->out_next;
    while (*at != NULL && !precedes(self, o, *at)) at = &(*at)->out_next;
    o->out_next = *at;
    *at         = o;
    if (o->out_next == NULL) lane->tail = o;
}

/* Before the first send o gets its number, which it keeps; rows get it in fill(). */
void ps_client_send_later(ps_client *self, op *o)
{
    if (o->state == OP_READY) return;
    if (o->is_returned && ps_client_is_pushing(o))
        return; /* its bytes are gone: ps_client_tick() */
    if (o->tries == 0 && ps_client_is_decided(self, o))
        o->seq = self->step.index;
    else if (o->tries == 0 && o->rows_bytes == 0 && ps_client_is_pushing(o) && o->verb != PS_INIT)
        o->seq = self->chunk[o->chunk].next_seq;
    lane_state *lane = ps_client_lane(self, o->chunk);
    lane->spent -= o->credit;
    o->credit = 0;
    o->state  = OP_READY;
    o->due_ms = NEVER;
    put_in_order(self, lane, o);
}

void ps_client_unqueue(ps_client *self, op *o)
{
    lane_state *lane = ps_client_lane(self, o->chunk);
    lane->spent -= o->credit;
    o->credit = 0;
    if (o->state != OP_READY) return;
    op *before = NULL;
    for (op *at = lane->head; at != o; at = at->out_next) before = at;
    if (before == NULL)
        lane->head = o->out_next;
    else
        before->out_next = o->out_next;
    if (lane->tail == o) lane->tail = before;
    o->out_next = NULL;
}

/* ---- adding to a request --------------------------------------------------------------------- */
void ps_client_refuse(ps_client_request *r, const pen_error *why)
{
    if (r->status != PEN_OK) return;
    r->status = why->status;
    r->why    = malloc(sizeof *r->why);
    if (r->why != NULL) *r->why = *why;
}

void ps_client_refuse_unknown(const ps_client *self, ps_client_request *r, uint32_t tensor)
{
    pen_error why;
    const char *name = self->setup.model->tensor[tensor].name;
    why_set(&why, PEN_WRONG_STATE,
            "a push of '%s' ended without an answer, so it is not known whether it counts; it "
            "cannot be pushed again",
            name);
    why_culprit(&why, PEN_WORKER, self->setup.rank, -1, name);
    ps_client_refuse(r, &why);
}

/* Chunks may be at different rounds when a rank joins.  It starts at the lowest and skips chunks that
 * are past its step. */
static bool is_beyond_step(const ps_client *self, uint32_t chunk)
{
    const bool is_decided =
        ps_client_chunk(self, chunk)->blocks > 0 && self->setup.rule == STEP_TWO_PHASE;
    return self->setup.is_late && !is_decided && self->chunk[chunk].head == NULL &&
           self->chunk[chunk].next_seq > self->step.index;
}

/* Unless the window of its chunk is full.  Those that wait come before it. */
static void start(ps_client *self, op *o)
{
    chunk_queue *queue = &self->chunk[o->chunk];
    if (!ps_client_has_room(self, queue, o)) return;
    o->place = queue->started++;
    ps_client_send_later(self, o);
}

/* An operation beyond the window of its chunk waits for an earlier one.  NULL: r was refused. */
static op *add(ps_client *self, ps_client_request *r, ps_client_verb verb, uint32_t chunk,
               const void *from, void *to, uint32_t rows_bytes)
{
    if (r->status != PEN_OK) return NULL;
    const plan_chunk *planned = ps_client_chunk(self, chunk);
    if (verb == PS_STEP && is_beyond_step(self, chunk)) return NULL;
    if (self->chunk[chunk].unknown && verb != PS_PULL) {
        ps_client_refuse_unknown(self, r, planned->tensor);
        return NULL;
    }
    op *o = ps_client_new(self, &self->free_ops, sizeof *o);
    if (o == NULL) {
        static const pen_error why = {PEN_NO_MEMORY, .rank = -1, .step = -1,
                                      .text = "no memory for another request"};
        ps_client_refuse(r, &why);
        return NULL;
    }
    const int32_t usual = ps_client_tensor(self, chunk)->priority;
    *o                  = (op){.request      = r,
                               .verb         = (uint8_t)verb,
                               .chunk        = chunk,
                               .from         = from,
                               .to           = to,
                               .rows_bytes   = rows_bytes,
                               .due_ms       = NEVER,
                               .priority     = r->priority != 0 ? r->priority : usual,
                               .request_next = r->ops};
    o->in               = verb == PS_STEP ? self->step.in : self->plain;
    o->in->refs++;
    r->ops = o;
    r->left++;
    if (verb == PS_STEP && from != NULL) self->away.reads[planned->tensor]++;
    if (verb == PS_STEP && to != NULL) self->step.awaited[planned->tensor]++;
    if (verb == PS_STEP && !ps_client_is_decided(self, o)) self->step.n_free++;
    o->live_prev            = self->live.live_prev;
    o->live_next            = &self->live;
    o->live_prev->live_next = self->live.live_prev = o;
    chunk_queue *queue                             = &self->chunk[chunk];
    if (queue->head != NULL)
        queue->tail->chunk_next = o;
    else
        queue->head = o;
    queue->tail = o;
    return o;
}

void ps_client_add_chunk(ps_client *self, ps_client_request *r, ps_client_verb verb, uint32_t chunk,
                         const void *from, void *to)
{
    op *o = add(self, r, verb, chunk, from, to, 0);
    if (o != NULL) start(self, o);
}

void ps_client_add_rows(ps_client *self, ps_client_request *r, ps_client_verb verb, uint32_t chunk,
                        const void *bytes, uint32_t size, ps_client_sink *to)
{
    op *o = add(self, r, verb, chunk, bytes, to, size);
    if (o == NULL) return;
    o->priority = 0; /* one order for all of a part */
    start(self, o);
}

void ps_client_add(ps_client *self, ps_client_request *r, ps_client_verb verb, uint32_t tensor,
                   const void *from, void *to)
{
    const uint32_t *first   = self->setup.plan->first_chunk;
    const wire_tensor *t    = &self->setup.model->tensor[tensor];
    const size_t to_width   = plan_dtype_bytes(t->dtype);
    const size_t from_width = verb == PS_INIT ? to_width : plan_dtype_bytes(t->grad_dtype);
    for (uint32_t c = first[tensor]; c < first[tensor + 1]; c++) {
        const uint64_t start = ps_client_chunk(self, c)->start;
        ps_client_add_chunk(self, r, verb, c,
                            from != NULL ? (const char *)from + start * from_width : NULL,
                            to != NULL ? (char *)to + start * to_width : NULL);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */
static wire_kind kind_of(const op *o)
{
    if (o->verb == PS_INIT) return WIRE_INIT;
    return ps_client_is_pushing(o) ? WIRE_PUSH : WIRE_PULL;
}

static uint32_t flags_of(const ps_client *self, const op *o)
{
    uint32_t flags = 0;
    bool fused     = o->verb == PS_PUSH_PULL ||
                 (o->verb == PS_STEP && ps_client_rule_of(self, o) != STEP_TWO_PHASE);
    if (o->verb == PS_LOAD) flags |= WIRE_INITIAL;
    if (fused) flags |= WIRE_WANT_VALUES;
    if (o->tries > 0 && kind_of(o) == WIRE_PUSH) flags |= WIRE_REPEATED;
    if (self->setup.gives_back && kind_of(o) == WIRE_PUSH && o->rows_bytes == 0)
        flags |= WIRE_RETURN;
    return flags;
}

/* Chunks without a decision count their own pushes: a column holds their numbers.  For all others the
 * message's step is the number. */
static bool has_seq(const ps_client *self, const op *o)
{
    return o->rows_bytes > 0 ||
           (kind_of(o) == WIRE_PUSH && ps_client_rule_of(self, o) != STEP_TWO_PHASE);
}

static bool joins(const ps_client *self, const op *a, const op *b)
{
    if (kind_of(a) != kind_of(b) || flags_of(self, a) != flags_of(self, b)) return false;
    if ((a->verb == PS_FETCH) != (b->verb == PS_FETCH)) return false;
    if ((a->rows_bytes > 0) != (b->rows_bytes > 0)) return false;
    if (kind_of(a) == WIRE_PUSH && (a->in != b->in || has_seq(self, a) != has_seq(self, b)))
        return false;
    if (a->verb == PS_STEP && b->verb == PS_STEP) return true;
    return a->verb == PS_STEP || b->verb == PS_STEP ? kind_of(a) != WIRE_PULL : true;
}

/* Number of operations at the head of the outbox that go into one message. */
static uint32_t gather(const ps_client *self, const lane_state *lane)
{
    size_t bytes = push_size(self, lane->head);
    uint32_t n   = 1;
    if (bytes >= ALONE_BYTES) return 1;
    for (const op *o = lane->head->out_next; o != NULL && n < PACK_CHUNKS_MAX;
         o           = o->out_next, n++) {
        size_t more = push_size(self, o);
        if (more >= ALONE_BYTES || bytes + more > PACK_BYTES || !joins(self, lane->head, o)) break;
        bytes += more;
    }
    return n;
}

/* Adds the decision, with hashes of the votes it was made from. */
static void add_decision(ps_client *self, wire_data *d)
{
    uint32_t n_partitions = 0;
    self->stamp_now++;
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t p = ps_client_chunk(self, d->chunk[i])->partition;
        if (self->stamp[p] == self->stamp_now) continue;
        self->stamp[p]                = self->stamp_now;
        self->partition[n_partitions] = p;
        self->vote_hash[n_partitions] = self->step.vote[p].hash;
        n_partitions++;
    }
    d->has_decision = true;
    d->decision     = self->step.decision;
    d->n_partitions = n_partitions;
    d->partition    = self->partition;
    d->vote_hash    = self->vote_hash;
}

/* Gradients may be sent in a smaller type; first values never are, and sums of nodes come in the type of the wire. */
static pen_dtype encoding_of(const ps_client *self, const op *o)
{
    const uint32_t tensor = ps_client_chunk(self, o->chunk)->tensor;
    const pen_dtype as    = push_dtype(self, o);
    const bool is_as_is   = o->verb == PS_INIT || o->rows_bytes > 0 || is_node_sum(o) ||
                          as == PEN_F32 || as == self->setup.model->tensor[tensor].grad_dtype;
    return is_as_is ? PEN_DTYPE_DEFAULT : as;
}

static void number(ps_client *self, op *o)
{
    if (o->rows_bytes == 0 || o->is_numbered) return;
    o->is_numbered = true;
    o->seq =
        ps_client_is_pushing(o) ? self->chunk[o->chunk].next_seq++ : ROWS_PULL | ++self->row_pulls;
}

/* None of the first n was sent: a push that ends now leaves no gap. */
static void unnumber(ps_client *self, const lane_state *lane, uint32_t n)
{
    for (op *o = lane->head; n > 0; o = o->out_next, n--) {
        if (o->rows_bytes == 0 || o->tries > 0) continue;
        o->is_numbered = false;
        if (ps_client_is_pushing(o)) self->chunk[o->chunk].next_seq--;
    }
}

static uint32_t fill(ps_client *self, const lane_state *lane, uint32_t n, wire_data *d)
{
    op *const first = lane->head, *o = first;
    uint32_t shard = ps_client_shard(self, first->chunk), n_pieces = 0;

    *d       = ps_client_message(self, kind_of(first), shard);
    d->flags = flags_of(self, first);
    d->n     = n;
    d->chunk = self->column_chunk;
    for (uint32_t i = 0; i < n; i++, o = o->out_next) {
        number(self, o);
        size_t size           = push_size(self, o);
        self->column_chunk[i] = o->chunk;
        self->column_seq[i]   = o->seq;
        self->column_size[i]  = (uint32_t)size;
        if (size > 0)
            self->piece[n_pieces++] =
                (ps_client_piece){o->from, size, (void *)(uintptr_t)o, encoding_of(self, o)};
    }
    if (first->rows_bytes > 0) d->size = self->column_size;
    if (has_seq(self, first))
        d->seq = self->column_seq;
    else if (first->verb == PS_FETCH && ps_client_away_ask(self, d))
        d->step = self->away.step;
    else if (first->verb == PS_PULL || first->verb == PS_FETCH)
        d->step = self->pulls; /* so that a late answer is not taken for a newer one */
    else
        d->step = first->seq;
    if (d->kind == WIRE_PUSH) {
        d->has_inputs = true;
        d->inputs     = first->in->wire;
        if (self->scalars_chunk < self->setup.plan->n_chunks &&
            ps_client_shard(self, self->scalars_chunk) != shard)
            d->inputs.scalars.n = 0;
    }
    if (first->verb == PS_STEP && first->pulling) add_decision(self, d);
    return n_pieces;
}

/* Credit keeps pushes from running far ahead of the shard.  Early ones take memory, leave the caches
 * before they are summed, and delay a later push of higher priority. */
static void spend(const ps_client *self, lane_state *lane, op *o)
{
    const size_t bytes = push_size(self, o);
    if (bytes < ALONE_BYTES) return;
    o->credit = bytes;
    lane->spent += bytes;
}

static bool has_credit(const ps_client *self, const lane_state *lane)
{
    return lane->spent < CREDIT_BYTES || push_size(self, lane->head) < ALONE_BYTES;
}

static void mark_sent(ps_client *self, lane_state *lane, uint32_t n, uint64_t now_ms)
{
    for (uint32_t i = 0; i < n; i++) {
        op *o      = lane->head;
        lane->head = o->out_next;
        if (lane->head == NULL) lane->tail = NULL;
        o->out_next = NULL;
        o->state    = OP_SENT;
        spend(self, lane, o);
        if (o->verb == PS_PULL && o->rows_bytes == 0) o->seq = self->pulls;
        if (o->verb == PS_FETCH) o->seq = self->away.has ? self->away.step : self->pulls;
        if (o->tries++ > 0) self->act.count(self->user, STAT_RETRIES, 1);
        if (ps_client_is_pushing(o) && o->verb != PS_INIT)
            self->act.count(self->user, STAT_PUSH_BYTES, push_size(self, o));
        ps_client_due_at(
            self, o,
            now_ms + retry_wait_ms(&self->setup.retry, RETRY_SILENCE, o->tries, &self->draws));
    }
}

void ps_client_flush(ps_client *self, uint64_t now_ms)
{
    wire_data d;
    self->pulls++;
    ps_client_away_flush(self);
    for (uint32_t i = 0; i < self->n_lanes; i++) {
        lane_state *lane = &self->lane[i];
        if (lane->blocked_until_ms > now_ms) continue;
        while (lane->up && lane->head != NULL && has_credit(self, lane)) {
            const uint32_t n = gather(self, lane), n_pieces = fill(self, lane, n, &d);
            if (self->act.send(self->user, i / self->setup.lanes, i % self->setup.lanes, &d,
                               self->piece, n_pieces) != PEN_OK) {
                unnumber(self, lane, n);
                lane->blocked_until_ms =
                    now_ms + retry_wait_ms(&self->setup.retry, RETRY_FULL, 1, &self->draws);
                if (lane->blocked_until_ms < self->tick_ms) self->tick_ms = lane->blocked_until_ms;
                break;
            }
            lane->blocked_until_ms = 0;
            mark_sent(self, lane, n, now_ms);
        }
    }
    ps_client_idle_flush(self, now_ms);
}
