/* exchange_step.c - the bsp step: records in, one decision for the whole model out. */
#include "worker/ps/exchange_internal.h"

#include <math.h>
#include <string.h>

exchange_request *exchange_step_open(exchange *self, uint64_t index, const wire_inputs *in,
                                     uint64_t now_ms)
{
    step_state *step    = &self->step;
    exchange_request *r = exchange_open(self, now_ms);
    if (r == NULL) return NULL;
    exchange_inputs_release(step->in);
    step->in        = exchange_inputs_new(in);
    step->request   = r;
    step->index     = index;
    step->n_records = step->asks = 0;
    step->ask_ms                 = NEVER;
    step->n_free                 = 0;
    step->scalars =
        self->scalars_chunk < self->setup.plan->n_chunks ? (wire_scalars){0} : in->scalars;
    step->closing = step->decided = step->told = step->is_final = false;
    memset(step->has, 0, self->setup.plan->n_partitions * sizeof *step->has);
    r->is_step = true;
    if (step->in == NULL) {
        const pen_error why = {PEN_NO_MEMORY, .rank = -1, .step = (int64_t)index,
                               .text = "no memory for a step"};
        exchange_end(self, r, &why);
    } else if (in->snapshot && r->status == PEN_OK) {
        exchange_idle_open(self);
    }
    return r;
}

void exchange_step_weigh(exchange *self, double weight, bool snapshot, const wire_scalars *scalars)
{
    if (self->step.request == NULL || self->step.in == NULL) return;
    self->step.in->wire.weight   = weight;
    self->step.in->wire.snapshot = snapshot;
    self->step.in->wire.scalars  = *scalars;
}

/* ---- records --------------------------------------------------------------------------------- */
static bool is_decided(const exchange *self, const op *o)
{
    return o != NULL && exchange_is_decided(self, o);
}

static void mark_prepared(exchange *self, uint32_t partition)
{
    const plan_partition *p = &self->setup.plan->partition[partition];
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        op *o = self->chunk[p->chunk[i]].head;
        if (!is_decided(self, o) || o->pulling) continue;
        exchange_unqueue(self, o);
        o->state  = OP_PREPARED;
        o->due_ms = NEVER;
        exchange_away_let_go(self, o);
        self->act.count(self->user, STAT_PUSH_OPS, 1);
    }
}

/* True when every decided chunk of the partition has been pushed by us, or by others of our node: a
 * record cannot exist before. */
static bool is_pushed(const exchange *self, uint32_t partition)
{
    const plan_partition *p = &self->setup.plan->partition[partition];
    uint32_t pushed = 0, left = 0;
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        const op *o = self->chunk[p->chunk[i]].head;
        if (!is_decided(self, o)) continue;
        if (o->tries > 0)
            pushed++;
        else
            left++;
    }
    return self->step.in->wire.is_node_sum ? left == 0 : pushed == p->n_decided;
}

static bool take_record(exchange *self, uint32_t shard, const wire_record *record,
                        const double *sums, size_t n_sums)
{
    const plan *p    = self->setup.plan;
    step_state *step = &self->step;
    uint32_t at      = record->partition;
    if (self->setup.shard[at] != shard || step->has[at] || !is_pushed(self, at))
        return true; /* a repeat, or nonsense */
    if (decision_record_hash(step->index, record, &step->in->wire, sums, (uint32_t)n_sums) !=
        record->hash)
        return false;

    step->record[at] = *record;
    memcpy(step->sums[at], sums, p->partition[at].blocks * sizeof *sums);
    step->has[at] = true;
    step->n_records++;
    mark_prepared(self, at);
    return true;
}

/* ---- the decision ---------------------------------------------------------------------------- */
static void ask_for_values(exchange *self)
{
    exchange_request *r = self->step.request;
    r->ending           = true; /* it may have none to wait for, and is gone only after this */
    for (op *o = r->ops; o != NULL; o = o->request_next) {
        if (o->state == OP_DONE || !is_decided(self, o)) continue;
        o->pulling = true;
        o->tries   = 0;
        if (o->to != NULL)
            exchange_send_later(self, o);
        else
            exchange_finish(self, o);
    }
    r->ending = false;
}

static void decide(exchange *self)
{
    step_state *step   = &self->step;
    uint32_t bad_chunk = 0;
    int32_t bad_rank   = -1;
    decision_make(self->setup.plan, step->record, (const double *const *)step->sums,
                  &step->in->wire, self->applied, &step->decision, &bad_chunk, &bad_rank);
    step->decided = true;
    if (step->decision.outcome == PEN_APPLIED) self->applied++;

    const bool has_bad = bad_rank >= 0 && bad_chunk < self->setup.plan->n_chunks;
    step->outcome      = (exchange_outcome){.outcome  = step->decision.outcome,
                                            .norm     = step->decision.norm,
                                            .clip     = step->decision.clip,
                                            .applied  = self->applied,
                                            .has_bad  = has_bad,
                                            .bad_rank = bad_rank};
    if (has_bad) step->outcome.bad_tensor = exchange_chunk(self, bad_chunk)->tensor;
    step->scalars  = step->record[exchange_chunk(self, self->scalars_chunk)->partition].scalars;
    step->is_final = !self->setup.may_lose_members;
    exchange_away_decided(self);
    exchange_step_tell(self);
    ask_for_values(self);
    exchange_complete_if_over(self, step->request); /* when none of the chunks is ours */
}

void exchange_step_record(exchange *self, uint32_t shard, const wire_data *d, const buf *body)
{
    const plan *p    = self->setup.plan;
    step_state *step = &self->step;
    if (self->n_decided == 0 || step->request == NULL || step->decided || d->step != step->index)
        return;

    size_t left = body != NULL ? body->size / sizeof(double) : 0, at = 0;
    for (uint32_t i = 0; i < d->n_records; i++) {
        const wire_record *record = &d->record[i];
        size_t n_sums =
            record->partition < p->n_partitions ? p->partition[record->partition].blocks : 0;
        if (n_sums == 0 || n_sums > left)
            return; /* the scheduler's plan and the shard's message disagree */
        const double *from = (const double *)body->data + at;
        /* The hash covers the sums: a damaged record is as good as lost and is asked for again. */
        if (!take_record(self, shard, record, from, n_sums))
            self->act.count(self->user, STAT_CORRUPT, 1);
        at += n_sums;
        left -= n_sums;
    }
    if (step->closing && step->n_records == self->n_decided && step->request->status == PEN_OK)
        decide(self);
}

/* ---- close ----------------------------------------------------------------------------------- */
/* Values that came early: parameters are written only after the program said that it is done with
 * them. */
static void take_held(exchange *self, exchange_request *r, uint64_t now_ms)
{
    for (op *o = r->ops; o != NULL; o = o->request_next)
        if (o->state == OP_HELD)
            exchange_take_values(self, o, (const char *)o->body->data + o->body_at, now_ms);
}

static void close_undecided(exchange *self)
{
    self->step.outcome = (exchange_outcome){
        .outcome = PEN_APPLIED, .clip = 1, .applied = ++self->applied, .bad_rank = -1};
    self->step.decided = self->step.is_final = true;
    exchange_step_tell(self);
}

void exchange_step_close(exchange *self, void *token, uint64_t deadline_ms, uint64_t now_ms)
{
    step_state *step    = &self->step;
    exchange_request *r = step->request;
    step->closing       = true;
    step->token         = token;
    r->token            = token;
    if (r->status == PEN_OK) {
        if (self->n_decided == 0)
            close_undecided(self);
        else if (step->n_records == self->n_decided)
            decide(self);
        take_held(self, r, now_ms);
    }
    exchange_ask_for_records(
        self, now_ms + retry_wait_ms(&self->setup.retry, RETRY_RECEIPT, 1, &self->draws));
    exchange_close(self, r, token, deadline_ms, now_ms); /* only now may it complete */
}

/* ---- anew ------------------------------------------------------------------------------------ */
static bool has_values(const exchange *self)
{
    for (const op *o = self->step.request->ops; o != NULL; o = o->request_next)
        if (o->state == OP_DONE && exchange_is_decided(self, o)) return true;
    return false;
}

/* The shard has forgotten this push, if it had it.  One that waits in its outbox as a push, or behind
 * another operation on its chunk, will be sent as it is. */
static void push_anew(exchange *self, op *o)
{
    if (o->state == OP_QUEUED || (o->state == OP_READY && !o->pulling)) return;
    exchange_unqueue(self, o);
    o->pulling = false;
    o->tries   = 1;
    o->state   = OP_SENT;
    exchange_send_later(self, o);
}

bool exchange_step_reopen(exchange *self, uint64_t now_ms)
{
    step_state *step = &self->step;
    if (has_values(self)) return false;
    if (step->decided && step->decision.outcome == PEN_APPLIED) self->applied--;
    step->decided = step->is_final = false;
    step->n_records = step->asks = 0;
    memset(step->has, 0, self->setup.plan->n_partitions * sizeof *step->has);
    for (op *o = step->request->ops; o != NULL; o = o->request_next)
        if (exchange_is_decided(self, o)) push_anew(self, o);
    if (step->closing) exchange_ask_for_records(self, now_ms);
    return true;
}
