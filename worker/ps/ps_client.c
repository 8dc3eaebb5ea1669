/* ps_client.c - requests and their operations: from open to completed. */
#include "worker/ps/ps_client_internal.h"
#include "worker/ps/ps_client_test.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/containers/list.h"
#include "proto/scalars.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------- */
inputs *ps_client_inputs_new(const wire_inputs *in)
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

void ps_client_inputs_release(inputs *in)
{
    if (in != NULL && --in->refs == 0) free(in);
}

/* ---- create and destroy ---------------------------------------------------------------------- */
static bool allocate(ps_client *self)
{
    const plan *p    = self->setup.plan;
    step_state *step = &self->step;
    self->arrays     = ARRAYS_NEW(
            ARRAY(self->chunk, p->n_chunks), ARRAY(self->lane, self->n_lanes),
            ARRAY(self->stamp, p->n_partitions), ARRAY(self->partition, p->n_partitions),
            ARRAY(self->vote_hash, p->n_partitions), ARRAY(self->column_chunk, PACK_CHUNKS_MAX),
            ARRAY(self->column_size, PACK_CHUNKS_MAX), ARRAY(self->window, p->n_tensors),
            ARRAY(self->column_seq, PACK_CHUNKS_MAX), ARRAY(self->piece, PACK_CHUNKS_MAX),
            ARRAY(self->push_dtype, p->n_tensors), ARRAY(step->awaited, p->n_tensors),
            ARRAY(step->vote, p->n_partitions), ARRAY(step->sums, p->n_partitions),
            ARRAY(step->has, p->n_partitions));
    if (self->arrays == NULL) return false;
    for (uint32_t i = 0; i < p->n_partitions; i++) {
        if (p->partition[i].n_decided == 0) continue;
        step->sums[i] = calloc(p->partition[i].blocks, sizeof(double));
        if (step->sums[i] == NULL) return false;
    }
    return ps_client_away_init(self) && ps_client_idle_find(self);
}

static void look_at_model(ps_client *self)
{
    const wire_model *m = self->setup.model;
    const plan *p       = self->setup.plan;
    self->sums_are_wide = plan_sums_are_wide(m);
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const wire_group *group = &m->group[m->tensor[t].group];
        const bool is_serial    = !plan_is_table(&m->tensor[t]) ||
                               (plan_group_averages(group) && !plan_has_handler(&m->tensor[t]));
        self->push_dtype[t] = (uint8_t)plan_push_dtype(group, &m->tensor[t]);
        self->window[t]     = is_serial ? 1 : ROWS_WINDOW;
    }
    for (uint32_t i = 0; i < p->n_partitions && self->setup.rule == STEP_TWO_PHASE; i++)
        self->n_decided += p->partition[i].n_decided > 0;
    for (uint32_t c = 0; c < p->n_chunks; c++) self->chunk[c].next_seq = (uint64_t)self->setup.step;
    if (!scalars_chunk(p, &self->scalars_chunk)) self->scalars_chunk = p->n_chunks;
}

/* Without memory the workers count as changed; that only costs another push of the step. */
bool ps_client_know_workers(ps_client *self, const uint64_t *worker, uint32_t n)
{
    if (worker == NULL) return false;
    bool changed   = n != self->n_worker;
    uint64_t *copy = changed ? malloc((n + 1) * sizeof *copy) : self->worker;
    changed        = changed || memcmp(copy, worker, n * sizeof *copy) != 0;
    if (!changed || copy == NULL) return changed;
    memcpy(copy, worker, n * sizeof *copy);
    if (copy != self->worker) free(self->worker);
    self->worker   = copy;
    self->n_worker = n;
    return true;
}

ps_client *ps_client_create(const ps_client_setup *setup, const ps_client_actions *actions,
                            void *user, pen_error *why)
{
    static const wire_inputs none = {.loss_scale = 1, .weight = 1};
    ps_client *self               = calloc(1, sizeof *self);
    if (self != NULL) {
        self->setup          = *setup;
        self->act            = *actions;
        self->user           = user;
        self->n_lanes        = setup->n_shards * setup->lanes;
        self->applied        = setup->applied;
        self->tick_ms        = NEVER;
        self->draws          = setup->retry.seed;
        self->plain          = ps_client_inputs_new(&none);
        self->live.live_next = self->live.live_prev = &self->live;
    }
    if (self == NULL || self->plain == NULL || !allocate(self)) {
        ps_client_destroy(self);
        why_set(why, PEN_NO_MEMORY, "no memory for the requests of %u chunks",
                setup->plan->n_chunks);
        return NULL;
    }
    look_at_model(self);
    (void)ps_client_know_workers(self, setup->worker, setup->n_workers);
    return self;
}

static void drop_ops(ps_client_request *r)
{
    for (op *o = r->ops; o != NULL; o = o->request_next) {
        buf_release(o->body);
        ps_client_inputs_release(o->in);
    }
    free(r->why);
}

void ps_client_destroy(ps_client *self)
{
    if (self == NULL) return;
    LIST_EACH(r, self->requests) drop_ops(r);
    ps_client_inputs_release(self->step.in);
    ps_client_inputs_release(self->plain);
    for (uint32_t i = 0; self->step.sums != NULL && i < self->setup.plan->n_partitions; i++)
        free(self->step.sums[i]);
    ps_client_away_fini(self);
    while (self->slabs != NULL) {
        struct slab *next = self->slabs->next;
        free(self->slabs);
        self->slabs = next;
    }
    free(self->worker);
    free(self->is_trained);
    free(self->idle);
    free(self->arrays);
    free(self);
}

pen_status ps_client_set_inputs(ps_client *self, const wire_inputs *in)
{
    inputs *copy = ps_client_inputs_new(in);
    if (copy == NULL) return PEN_NO_MEMORY;
    ps_client_inputs_release(self->plain);
    self->plain = copy;
    return PEN_OK;
}

uint64_t ps_client_pending(const ps_client *self)
{
    return self->n_requests;
}

/* ---- operations ------------------------------------------------------------------------------ */
/* Starts operations that are queued on a chunk, as many as may be in progress. */
static void start_next(ps_client *self, uint32_t chunk)
{
    chunk_queue *queue    = &self->chunk[chunk];
    const uint32_t tensor = ps_client_chunk(self, chunk)->tensor;
    op *next              = queue->head;
    while (next != NULL && next->state != OP_QUEUED) next = next->chunk_next;
    for (; next != NULL && ps_client_has_room(self, queue, next); next = next->chunk_next) {
        if (queue->unknown && ps_client_is_pushing(next) && !self->failed) {
            ps_client_refuse_unknown(self, next->request, tensor);
            ps_client_end(self, next->request, NULL); /* starts the next one */
            return;
        }
        next->place = queue->started++;
        ps_client_send_later(self, next);
    }
}

/* Removes an operation from its queue and starts the next one. */
static void retire(ps_client *self, op *o)
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
    o->state                = OP_DONE;
    buf_release(o->body);
    o->body = NULL;
    o->request->left--;
    ps_client_away_let_go(self, o);
    if (o->verb == PS_STEP && !ps_client_is_decided(self, o)) self->step.n_free--;
    start_next(self, o->chunk);
}

/* After the verdict the program may write to its gradients again (a lazy step).  So the verdict waits
 * until no gradient can be needed: chunks that no decision closes are answered, and nothing can undo
 * the decision.  If members may change, it can be undone until a shard has carried it out: values of
 * one shard prove that all will. */
void ps_client_step_notify(ps_client *self)
{
    step_state *step = &self->step;
    if (step->told || !step->closing || !step->is_final || step->n_free > 0) return;
    step->told            = true;
    step->outcome.scalars = step->scalars;
    self->act.decided(self->user, step->token, &step->outcome);
}

void ps_client_finish(ps_client *self, op *o)
{
    ps_client_unqueue(self, o);
    const bool counts = o->verb == PS_PUSH || o->verb == PS_PUSH_PULL ||
                        (o->verb == PS_STEP && !ps_client_is_decided(self, o));
    if (counts && o->rows_bytes == 0) self->chunk[o->chunk].next_seq = o->seq + 1;
    retire(self, o);
    if (o->verb == PS_STEP) ps_client_step_notify(self);
    ps_client_complete_if_over(self, o->request);
}

void ps_client_note_result(op *o)
{
    ps_client_result *result = &o->request->result;
    if (o->version < result->version) result->version = o->version;
    if (o->staleness > result->staleness) result->staleness = o->staleness;
}

void ps_client_take_values(ps_client *self, op *o, const void *data, size_t size, uint64_t now_ms)
{
    const bool is_stored = o->rows_bytes > 0
                               ? self->act.store_rows(self->user, o->to, data, size, o->crc)
                               : self->act.store(self->user, o->to, data, size, o->crc);
    if (!is_stored) {
        self->act.count(self->user, STAT_CORRUPT, 1);
        buf_release(o->body);
        ps_client_unqueue(self, o); /* a repeat may have been about to leave */
        o->body  = NULL;
        o->state = OP_SENT; /* as if no answer had come */
        ps_client_due_at(
            self, o,
            now_ms + retry_wait_ms(&self->setup.retry, RETRY_REFUSED, o->tries, &self->draws));
        return;
    }
    if (o->verb == PS_STEP && o->pulling) self->step.is_final = true;
    ps_client_note_result(o);
    o->request->result.bytes += size;
    if (o->verb != PS_LOAD) {
        self->act.count(self->user, STAT_PULL_BYTES, size);
        self->act.count(self->user, STAT_PULL_OPS, 1);
    }
    if (ps_client_is_pushing(o)) self->act.count(self->user, STAT_PUSH_OPS, 1);
    const uint32_t tensor = ps_client_chunk(self, o->chunk)->tensor;
    if (o->verb == PS_STEP && --self->step.awaited[tensor] == 0 && self->act.arrived != NULL)
        self->act.arrived(self->user, tensor);
    ps_client_finish(self, o);
}

uint64_t ps_client_next_push(const ps_client *self, uint32_t chunk)
{
    return self->chunk[chunk].next_seq;
}

void ps_client_applied_is(ps_client *self, int64_t applied)
{
    self->applied = applied;
}

/* ---- requests -------------------------------------------------------------------------------- */
ps_client_request *ps_client_open(ps_client *self, uint64_t now_ms)
{
    ps_client_request *r = ps_client_new(self, &self->free_requests, sizeof *r);
    if (r == NULL) return NULL;
    r->opened_ms      = now_ms;
    r->ask_ms         = NEVER;
    r->result.version = UINT64_MAX;
    LIST_APPEND(self->requests, r);
    self->n_requests++;
    if (self->failed) ps_client_end(self, r, &self->why);
    return r;
}

void ps_client_prefer(ps_client_request *r, int32_t priority)
{
    r->priority = priority;
}

void ps_client_close(ps_client *self, ps_client_request *r, void *token, uint64_t deadline_ms,
                     uint64_t now_ms)
{
    r->token       = token;
    r->closed      = true;
    r->opened_ms   = now_ms;
    r->deadline_ms = deadline_ms;
    r->ask_ms      = now_ms + self->setup.warn_ms;
    /* Asks once more shortly before the deadline, so that the error names the ranks missing then. */
    if (deadline_ms != 0 && r->ask_ms >= deadline_ms)
        r->ask_ms = deadline_ms - (deadline_ms - now_ms) / 4;
    if (r->ask_ms < self->tick_ms) self->tick_ms = r->ask_ms;
    if (deadline_ms != 0 && deadline_ms < self->tick_ms) self->tick_ms = deadline_ms;
    if (r->status != PEN_OK && r->left > 0)
        ps_client_end(self, r, NULL); /* it was refused */
    else
        ps_client_complete_if_over(self, r);
}

static void free_request(ps_client *self, ps_client_request *r)
{
    LIST_REMOVE(self->requests, r);
    self->n_requests--;
    while (r->ops != NULL) {
        op *o  = r->ops;
        r->ops = o->request_next;
        ps_client_inputs_release(o->in);
        ps_client_free(&self->free_ops, o);
    }
    free(r->why);
    ps_client_free(&self->free_requests, r);
}

void ps_client_complete_if_over(ps_client *self, ps_client_request *r)
{
    if (!r->closed || r->ending || r->left > 0 || r->holds > 0) return;
    if (r->is_step && r->status == PEN_OK && self->n_decided > 0 && !self->step.decided)
        return; /* other ranks push all of its chunks, but this rank needs the decision too */
    if (r->is_step && r->status == PEN_OK) {
        self->step.is_final = true;
        ps_client_step_notify(self);
    }
    if (r->is_step) self->step.request = NULL;
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
    return ps_client_is_pushing(o) && o->verb != PS_INIT && o->tries > 0 && o->state != OP_QUEUED;
}

/* A request that has ended gives back all buffers, so the transport must stop reading them. */
void ps_client_end(ps_client *self, ps_client_request *r, const pen_error *why)
{
    if (why != NULL) ps_client_refuse(r, why);
    r->ending = true;
    for (op *o = r->ops; o != NULL; o = o->request_next) {
        if (o->state == OP_DONE) continue;
        if (may_have_arrived(o)) self->chunk[o->chunk].unknown = true;
        ps_client_unqueue(self, o);
        retire(self, o);
    }
    if (r->is_step) ps_client_idle_forget(self);
    for (op *o = r->ops; o != NULL; o = o->request_next)
        if (o->holds > 0)
            self->act.disconnect(self->user, ps_client_shard(self, o->chunk),
                                 o->chunk % self->setup.lanes);
    r->ending = false;
    ps_client_complete_if_over(self, r);
}

void ps_client_fail(ps_client *self, const pen_error *why, uint64_t now_ms)
{
    (void)now_ms;
    if (self->failed) return;
    self->failed = true;
    self->why    = *why;
    LIST_EACH(r, self->requests) {
        if (r->status == PEN_OK) ps_client_end(self, r, why);
    }
}

void ps_client_tx_ref(ps_client *self, void *held)
{
    (void)self;
    op *o = held;
    o->holds++;
    o->request->holds++;
}

void ps_client_release(ps_client *self, void *held)
{
    op *o = held;
    o->holds--;
    o->request->holds--;
    ps_client_away_let_go(self, o);
    ps_client_complete_if_over(self, o->request);
}
