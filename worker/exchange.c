/* exchange.c - requests and their operations: from open to completed. */
#include "worker/exchange_internal.h"

#include "common/why.h"
#include "proto/scalars.h"

#include <stdlib.h>
#include <string.h>

enum { SLAB_ITEMS = 256 };

struct slab {
    struct slab *next;
};

/* ---- what a chunk is ------------------------------------------------------------------------- */
const plan_chunk *exchange_chunk(const exchange *self, uint32_t chunk)
{
    return &self->setup.plan->chunk[chunk];
}

const wire_tensor *exchange_tensor(const exchange *self, uint32_t chunk)
{
    return &self->setup.model->tensor[exchange_chunk(self, chunk)->tensor];
}

uint32_t exchange_shard(const exchange *self, uint32_t chunk)
{
    return self->setup.shard[exchange_chunk(self, chunk)->partition];
}

lane_state *exchange_lane(exchange *self, uint32_t chunk)
{
    return &self->lane[exchange_shard(self, chunk) * self->setup.lanes + chunk % self->setup.lanes];
}

size_t exchange_value_size(const exchange *self, uint32_t chunk)
{
    return exchange_chunk(self, chunk)->count *
           plan_dtype_bytes(exchange_tensor(self, chunk)->dtype);
}

exchange_rule exchange_rule_of(const exchange *self, const op *o)
{
    return exchange_chunk(self, o->chunk)->blocks > 0 ? self->setup.rule : EXCHANGE_FREE;
}

bool exchange_is_decided(const exchange *self, const op *o)
{
    return o->verb == EXCHANGE_STEP && exchange_rule_of(self, o) == EXCHANGE_DECIDE;
}

bool exchange_is_pushing(const op *o)
{
    switch ((exchange_verb)o->verb) {
    case EXCHANGE_INIT:
    case EXCHANGE_PUSH:
    case EXCHANGE_PUSH_PULL: return true;
    case EXCHANGE_STEP: return !o->pulling;
    case EXCHANGE_LOAD:
    case EXCHANGE_FETCH:
    case EXCHANGE_PULL: break;
    }
    return false;
}

size_t exchange_push_size(const exchange *self, const op *o)
{
    if (!exchange_is_pushing(o)) return 0;
    if (o->verb == EXCHANGE_INIT) return exchange_value_size(self, o->chunk);
    const plan_chunk *cut = exchange_chunk(self, o->chunk);
    return cut->count * plan_dtype_bytes((pen_dtype)self->push_dtype[cut->tensor]);
}

/* ---- memory ---------------------------------------------------------------------------------- */
/* Operations and requests come from slabs, so that a steady state allocates nothing. */
static void *slab_new(exchange *self, size_t item)
{
    struct slab *slab = calloc(1, sizeof(max_align_t) + item * SLAB_ITEMS);
    if (slab == NULL) return NULL;
    slab->next  = self->slabs;
    self->slabs = slab;
    return (char *)slab + sizeof(max_align_t);
}

static op *op_new(exchange *self)
{
    if (self->free_ops == NULL) {
        op *items = slab_new(self, sizeof *items);
        if (items == NULL) return NULL;
        for (int i = 0; i < SLAB_ITEMS; i++) {
            items[i].request_next = self->free_ops;
            self->free_ops        = &items[i];
        }
    }
    op *o          = self->free_ops;
    self->free_ops = o->request_next;
    *o             = (op){.due_ms = NEVER};
    return o;
}

static exchange_request *request_new(exchange *self)
{
    if (self->free_requests == NULL) {
        exchange_request *items = slab_new(self, sizeof *items);
        if (items == NULL) return NULL;
        for (int i = 0; i < SLAB_ITEMS; i++) {
            items[i].next       = self->free_requests;
            self->free_requests = &items[i];
        }
    }
    exchange_request *r = self->free_requests;
    self->free_requests = r->next;
    memset(r, 0, sizeof *r);
    return r;
}

inputs *exchange_inputs_new(const wire_inputs *in)
{
    inputs *copy = malloc(sizeof *copy + in->n_rates * sizeof(double) + in->states_bytes);
    if (copy == NULL) return NULL;
    copy->refs      = 1;
    copy->wire      = *in;
    copy->wire.rate = copy->rate;
    if (in->n_rates > 0) memcpy(copy->rate, in->rate, in->n_rates * sizeof(double));
    copy->wire.states = copy->rate + in->n_rates;
    if (in->states_bytes > 0) memcpy(copy->rate + in->n_rates, in->states, in->states_bytes);
    return copy;
}

void exchange_inputs_release(inputs *in)
{
    if (in != NULL && --in->refs == 0) free(in);
}

/* ---- birth and death ------------------------------------------------------------------------- */
static bool allocate(exchange *self)
{
    const plan *p      = self->setup.plan;
    self->chunk        = calloc(p->n_chunks, sizeof *self->chunk);
    self->lane         = calloc(self->n_lanes, sizeof *self->lane);
    self->stamp        = calloc(p->n_partitions, sizeof *self->stamp);
    self->partition    = calloc(p->n_partitions, sizeof *self->partition);
    self->record_hash  = calloc(p->n_partitions, sizeof *self->record_hash);
    self->column_chunk = calloc(PACK_CHUNKS_MAX, sizeof *self->column_chunk);
    self->column_seq   = calloc(PACK_CHUNKS_MAX, sizeof *self->column_seq);
    self->piece        = calloc(PACK_CHUNKS_MAX, sizeof *self->piece);
    self->push_dtype   = calloc(p->n_tensors, sizeof *self->push_dtype);
    step_state *step   = &self->step;
    step->record       = calloc(p->n_partitions, sizeof *step->record);
    step->sums         = calloc(p->n_partitions, sizeof *step->sums);
    step->has          = calloc(p->n_partitions, sizeof *step->has);
    if (!self->chunk || !self->lane || !self->stamp || !self->partition || !self->record_hash ||
        !self->column_chunk || !self->column_seq || !self->piece || !self->push_dtype ||
        !step->record || !step->sums || !step->has)
        return false;
    for (uint32_t i = 0; i < p->n_partitions; i++) {
        if (p->partition[i].n_decided == 0) continue;
        step->sums[i] = calloc(p->partition[i].blocks, sizeof(double));
        if (step->sums[i] == NULL) return false;
    }
    return exchange_away_init(self) && exchange_idle_find(self);
}

static void look_at_model(exchange *self)
{
    const wire_model *m = self->setup.model;
    const plan *p       = self->setup.plan;
    for (uint32_t t = 0; t < m->n_tensors; t++)
        self->push_dtype[t] =
            (uint8_t)plan_push_dtype(&m->group[m->tensor[t].group], &m->tensor[t]);
    for (uint32_t i = 0; i < p->n_partitions && self->setup.rule == EXCHANGE_DECIDE; i++)
        self->n_decided += p->partition[i].n_decided > 0;
    for (uint32_t c = 0; c < p->n_chunks; c++) self->chunk[c].next_seq = (uint64_t)self->setup.step;
    if (!scalars_chunk(p, &self->scalars_chunk)) self->scalars_chunk = p->n_chunks;
}

exchange *exchange_create(const exchange_setup *setup, const exchange_actions *actions, void *user,
                          pen_error *why)
{
    static const wire_inputs none = {.loss_scale = 1, .weight = 1};
    exchange *self                = calloc(1, sizeof *self);
    if (self != NULL) {
        self->setup          = *setup;
        self->act            = *actions;
        self->user           = user;
        self->n_lanes        = setup->n_shards * setup->lanes;
        self->applied        = setup->applied;
        self->tick_ms        = NEVER;
        self->draws          = setup->retry.seed;
        self->plain          = exchange_inputs_new(&none);
        self->live.live_next = self->live.live_prev = &self->live;
        self->requests.next = self->requests.prev = &self->requests;
    }
    if (self == NULL || self->plain == NULL || !allocate(self)) {
        exchange_destroy(self);
        why_set(why, PEN_NO_MEMORY, "no memory for the requests of %u chunks",
                setup->plan->n_chunks);
        return NULL;
    }
    look_at_model(self);
    (void)exchange_know_workers(self, setup->worker, setup->n_workers);
    return self;
}

static void drop_ops(exchange_request *r)
{
    for (op *o = r->ops; o != NULL; o = o->request_next) {
        buf_release(o->body);
        exchange_inputs_release(o->in);
    }
    free(r->why);
}

void exchange_destroy(exchange *self)
{
    if (self == NULL) return;
    for (exchange_request *r = self->requests.next; r != NULL && r != &self->requests; r = r->next)
        drop_ops(r);
    exchange_inputs_release(self->step.in);
    exchange_inputs_release(self->plain);
    for (uint32_t i = 0; self->step.sums != NULL && i < self->setup.plan->n_partitions; i++)
        free(self->step.sums[i]);
    exchange_away_fini(self);
    free(self->step.sums);
    free(self->step.record);
    free(self->step.has);
    while (self->slabs != NULL) {
        struct slab *next = self->slabs->next;
        free(self->slabs);
        self->slabs = next;
    }
    free(self->worker);
    free(self->is_trained);
    free(self->idle);
    free(self->push_dtype);
    free(self->piece);
    free(self->column_seq);
    free(self->column_chunk);
    free(self->record_hash);
    free(self->partition);
    free(self->stamp);
    free(self->lane);
    free(self->chunk);
    free(self);
}

pen_status exchange_set_inputs(exchange *self, const wire_inputs *in)
{
    inputs *copy = exchange_inputs_new(in);
    if (copy == NULL) return PEN_NO_MEMORY;
    exchange_inputs_release(self->plain);
    self->plain = copy;
    return PEN_OK;
}

uint64_t exchange_pending(const exchange *self)
{
    return self->n_requests;
}

/* ---- outbox ---------------------------------------------------------------------------------- */
void exchange_due_at(exchange *self, op *o, uint64_t due_ms)
{
    o->due_ms = due_ms;
    if (due_ms < self->tick_ms) self->tick_ms = due_ms;
}

void exchange_send_later(exchange *self, op *o)
{
    if (o->state == OP_READY) return;
    if (o->is_returned && exchange_is_pushing(o)) return; /* when it is due it is asked about */
    lane_state *lane = exchange_lane(self, o->chunk);
    exchange_repay(self, o);
    o->state    = OP_READY;
    o->due_ms   = NEVER;
    o->out_next = NULL;
    if (lane->tail == NULL)
        lane->head = o;
    else
        lane->tail->out_next = o;
    lane->tail = o;
}

void exchange_unqueue(exchange *self, op *o)
{
    if (o->state != OP_READY) return;
    lane_state *lane = exchange_lane(self, o->chunk);
    op *before       = NULL;
    for (op *at = lane->head; at != o; at = at->out_next) before = at;
    if (before == NULL)
        lane->head = o->out_next;
    else
        before->out_next = o->out_next;
    if (lane->tail == o) lane->tail = before;
    o->out_next = NULL;
}

void exchange_repay(exchange *self, op *o)
{
    exchange_lane(self, o->chunk)->spent -= o->credit;
    o->credit = 0;
}

/* ---- operations ------------------------------------------------------------------------------ */
static void end_as_unknown(exchange *self, exchange_request *r, uint32_t tensor);

static void start(exchange *self, op *o)
{
    chunk_queue *queue = &self->chunk[o->chunk];
    if (queue->unknown && exchange_is_pushing(o) && !self->failed) {
        end_as_unknown(self, o->request, exchange_chunk(self, o->chunk)->tensor);
        return;
    }
    if (exchange_is_decided(self, o))
        o->seq = self->step.index;
    else if (exchange_is_pushing(o) && o->verb != EXCHANGE_INIT)
        o->seq = queue->next_seq;
    exchange_send_later(self, o);
}

static void enqueue(exchange *self, op *o)
{
    chunk_queue *queue = &self->chunk[o->chunk];
    bool is_first      = queue->head == NULL;
    if (is_first)
        queue->head = o;
    else
        queue->tail->chunk_next = o;
    queue->tail             = o;
    o->live_prev            = self->live.live_prev;
    o->live_next            = &self->live;
    o->live_prev->live_next = self->live.live_prev = o;
    if (is_first) start(self, o);
}

/* Takes an operation out of its queue; whoever waited behind it starts. */
static void retire(exchange *self, op *o)
{
    chunk_queue *queue = &self->chunk[o->chunk];
    op *before         = NULL;
    for (op *at = queue->head; at != o; at = at->chunk_next) before = at;
    if (before == NULL)
        queue->head = o->chunk_next;
    else
        before->chunk_next = o->chunk_next;
    if (queue->tail == o) queue->tail = before;
    o->live_prev->live_next = o->live_next;
    o->live_next->live_prev = o->live_prev;
    exchange_repay(self, o);
    o->state = OP_DONE;
    buf_release(o->body);
    o->body = NULL;
    o->request->left--;
    exchange_away_let_go(self, o);
    if (o->verb == EXCHANGE_STEP && !exchange_is_decided(self, o)) self->step.n_free--;
    if (before == NULL && queue->head != NULL) start(self, queue->head);
}

void exchange_finish(exchange *self, op *o)
{
    exchange_unqueue(self, o);
    if (o->verb == EXCHANGE_PUSH || o->verb == EXCHANGE_PUSH_PULL ||
        (o->verb == EXCHANGE_STEP && !exchange_is_decided(self, o)))
        self->chunk[o->chunk].next_seq = o->seq + 1;
    retire(self, o);
    if (o->verb == EXCHANGE_STEP) exchange_step_tell(self);
    exchange_complete_if_over(self, o->request);
}

/* ---- requests -------------------------------------------------------------------------------- */
static exchange_request *open_request(exchange *self, uint64_t now_ms)
{
    exchange_request *r = request_new(self);
    if (r == NULL) return NULL;
    r->opened_ms      = now_ms;
    r->ask_ms         = NEVER;
    r->result.version = UINT64_MAX;
    r->prev           = self->requests.prev;
    r->next           = &self->requests;
    r->prev->next = self->requests.prev = r;
    self->n_requests++;
    if (self->failed) exchange_end(self, r, &self->why);
    return r;
}

exchange_request *exchange_open(exchange *self, uint64_t now_ms)
{
    return open_request(self, now_ms);
}

static void end_for_want_of_memory(exchange *self, exchange_request *r)
{
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "no memory for another request");
    exchange_end(self, r, &why);
}

static void end_as_unknown(exchange *self, exchange_request *r, uint32_t tensor)
{
    pen_error why;
    const char *name = self->setup.model->tensor[tensor].name;
    why_set(&why, PEN_WRONG_STATE,
            "a push of '%s' ended without an answer, so it is not known whether it counts; it "
            "cannot be pushed again",
            name);
    why_culprit(&why, PEN_WORKER, self->setup.rank, -1, name);
    exchange_end(self, r, &why);
}

/* Chunks of one step may be at different rounds when a rank joins: it begins with the lowest, and has
 * no part in what is over. */
static bool is_beyond_step(const exchange *self, uint32_t chunk)
{
    const bool is_decided =
        exchange_chunk(self, chunk)->blocks > 0 && self->setup.rule == EXCHANGE_DECIDE;
    return self->setup.is_late && !is_decided && self->chunk[chunk].head == NULL &&
           self->chunk[chunk].next_seq > self->step.index;
}

static void add_chunk(exchange *self, exchange_request *r, exchange_verb verb, uint32_t chunk,
                      const void *from, void *to)
{
    const plan_chunk *cut = exchange_chunk(self, chunk);
    if (verb == EXCHANGE_STEP && is_beyond_step(self, chunk)) return;
    if (self->chunk[chunk].unknown && verb != EXCHANGE_PULL) {
        end_as_unknown(self, r, cut->tensor);
        return;
    }
    op *o = op_new(self);
    if (o == NULL) {
        end_for_want_of_memory(self, r);
        return;
    }
    *o    = (op){.request      = r,
                 .verb         = (uint8_t)verb,
                 .chunk        = chunk,
                 .from         = from,
                 .to           = to,
                 .due_ms       = NEVER,
                 .request_next = r->ops};
    o->in = verb == EXCHANGE_STEP ? self->step.in : self->plain;
    o->in->refs++;
    r->ops = o;
    r->left++;
    if (verb == EXCHANGE_STEP && from != NULL) self->away.reads[cut->tensor]++;
    if (verb == EXCHANGE_STEP && !exchange_is_decided(self, o)) self->step.n_free++;
    enqueue(self, o);
}

void exchange_add(exchange *self, exchange_request *r, exchange_verb verb, uint32_t tensor,
                  const void *from, void *to)
{
    const uint32_t *first   = self->setup.plan->first_chunk;
    const wire_tensor *t    = &self->setup.model->tensor[tensor];
    const size_t to_width   = plan_dtype_bytes(t->dtype);
    const size_t from_width = verb == EXCHANGE_INIT ? to_width : plan_dtype_bytes(t->grad_dtype);
    for (uint32_t c = first[tensor]; c < first[tensor + 1] && r->status == PEN_OK; c++) {
        const uint64_t start = exchange_chunk(self, c)->start;
        add_chunk(self, r, verb, c, from != NULL ? (const char *)from + start * from_width : NULL,
                  to != NULL ? (char *)to + start * to_width : NULL);
    }
}

void exchange_step_add(exchange *self, exchange_request *r, uint32_t chunk, const void *from,
                       void *to)
{
    if (r->status == PEN_OK) add_chunk(self, r, EXCHANGE_STEP, chunk, from, to);
}

void exchange_init_add(exchange *self, exchange_request *r, uint32_t chunk, const void *from)
{
    if (r->status == PEN_OK) add_chunk(self, r, EXCHANGE_INIT, chunk, from, NULL);
}

void exchange_close(exchange *self, exchange_request *r, void *token, uint64_t deadline_ms,
                    uint64_t now_ms)
{
    r->token       = token;
    r->closed      = true;
    r->opened_ms   = now_ms;
    r->deadline_ms = deadline_ms;
    r->ask_ms      = now_ms + self->setup.warn_ms;
    /* Once more shortly before the end, so that the sentence names who is missing then. */
    if (deadline_ms != 0 && r->ask_ms >= deadline_ms)
        r->ask_ms = deadline_ms - (deadline_ms - now_ms) / 4;
    if (r->ask_ms < self->tick_ms) self->tick_ms = r->ask_ms;
    if (deadline_ms != 0 && deadline_ms < self->tick_ms) self->tick_ms = deadline_ms;
    exchange_complete_if_over(self, r);
}

static void free_request(exchange *self, exchange_request *r)
{
    r->prev->next = r->next;
    r->next->prev = r->prev;
    self->n_requests--;
    while (r->ops != NULL) {
        op *o  = r->ops;
        r->ops = o->request_next;
        exchange_inputs_release(o->in);
        o->request_next = self->free_ops;
        self->free_ops  = o;
    }
    free(r->why);
    r->next             = self->free_requests;
    self->free_requests = r;
}

void exchange_complete_if_over(exchange *self, exchange_request *r)
{
    if (!r->closed || r->ending || r->left > 0 || r->holds > 0) return;
    if (r->is_step && r->status == PEN_OK && self->n_decided > 0 && !self->step.decided)
        return; /* others bring all of its chunks, but the decision is everybody's */
    if (r->is_step && r->status == PEN_OK) {
        self->step.is_final = true;
        exchange_step_tell(self);
    }
    if (r->is_step) exchange_step_forget(self);
    if (r->result.version == UINT64_MAX) r->result.version = 0;
    static const pen_error lost = {
        .status = PEN_NO_MEMORY, .rank = -1, .step = -1, .text = "no memory for a sentence"};
    self->act.completed(self->user, r->token, r->status, &r->result,
                        r->status == PEN_OK ? NULL
                        : r->why != NULL    ? r->why
                                            : &lost);
    free_request(self, r);
}

static bool may_have_arrived(const op *o)
{
    return exchange_is_pushing(o) && o->verb != EXCHANGE_INIT && o->tries > 0 &&
           o->state != OP_QUEUED;
}

/* Buffers that the transport still reads are taken from it: a request that has ended lets go of
 * all. */
void exchange_end(exchange *self, exchange_request *r, const pen_error *why)
{
    if (r->status == PEN_OK) {
        r->status = why->status;
        r->why    = malloc(sizeof *r->why);
        if (r->why != NULL) *r->why = *why;
    }
    r->ending = true;
    for (op *o = r->ops; o != NULL; o = o->request_next) {
        if (o->state == OP_DONE) continue;
        if (may_have_arrived(o)) self->chunk[o->chunk].unknown = true;
        exchange_unqueue(self, o);
        retire(self, o);
    }
    if (r->is_step) exchange_idle_forget(self);
    for (op *o = r->ops; o != NULL; o = o->request_next)
        if (o->holds > 0)
            self->act.cut(self->user, exchange_shard(self, o->chunk), o->chunk % self->setup.lanes);
    r->ending = false;
    exchange_complete_if_over(self, r);
}

void exchange_fail(exchange *self, const pen_error *why, uint64_t now_ms)
{
    (void)now_ms;
    if (self->failed) return;
    self->failed = true;
    self->why    = *why;
    for (exchange_request *r = self->requests.next, *next; r != &self->requests; r = next) {
        next = r->next;
        if (r->status == PEN_OK) exchange_end(self, r, why);
    }
}

void exchange_hold(exchange *self, void *held)
{
    (void)self;
    op *o = held;
    o->holds++;
    o->request->holds++;
}

void exchange_release(exchange *self, void *held)
{
    op *o = held;
    o->holds--;
    o->request->holds--;
    exchange_away_let_go(self, o);
    exchange_complete_if_over(self, o->request);
}
