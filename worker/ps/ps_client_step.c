/* ps_client_step.c - the bsp step: votes in, one decision for the whole model out. */
#include "worker/ps/ps_client_internal.h"

#include <math.h>
#include <string.h>

ps_client_request *ps_client_step_open(ps_client *self, uint64_t index, const wire_inputs *in,
                                       uint64_t now_ms)
{
    step_state *step     = &self->step;
    ps_client_request *r = ps_client_open(self, now_ms);
    if (r == NULL) return NULL;
    ps_client_inputs_release(step->in);
    step->in      = ps_client_inputs_new(in);
    step->request = r;
    step->index   = index;
    step->n_votes = step->asks = 0;
    step->ask_ms               = NEVER;
    step->n_free               = 0;
    step->scalars =
        self->scalars_chunk < self->setup.plan->n_chunks ? (wire_scalars){0} : in->scalars;
    step->closing = step->decided = step->told = step->is_final = false;
    memset(step->has, 0, self->setup.plan->n_partitions * sizeof *step->has);
    memset(step->awaited, 0, self->setup.plan->n_tensors * sizeof *step->awaited);
    r->is_step = true;
    if (step->in == NULL) {
        const pen_error why = {PEN_NO_MEMORY, .rank = -1, .step = (int64_t)index,
                               .text = "no memory for a step"};
        ps_client_end(self, r, &why);
    } else if (in->snapshot && r->status == PEN_OK) {
        ps_client_idle_open(self);
    }
    return r;
}

void ps_client_step_weigh(ps_client *self, double weight, bool snapshot,
                          const wire_scalars *scalars)
{
    if (self->step.request == NULL || self->step.in == NULL) return;
    self->step.in->wire.weight   = weight;
    self->step.in->wire.snapshot = snapshot;
    self->step.in->wire.scalars  = *scalars;
}

/* ---- votes --------------------------------------------------------------------------------- */
static bool is_decided(const ps_client *self, const op *o)
{
    return o != NULL && ps_client_is_decided(self, o);
}

static void mark_prepared(ps_client *self, uint32_t partition)
{
    const plan_partition *p = &self->setup.plan->partition[partition];
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        op *o = self->chunk[p->chunk[i]].head;
        if (!is_decided(self, o) || o->pulling) continue;
        ps_client_unqueue(self, o);
        o->state  = OP_PREPARED;
        o->due_ms = NEVER;
        ps_client_away_let_go(self, o);
        self->act.count(self->user, STAT_PUSH_OPS, 1);
    }
}

/* Our node has pushed every decided chunk of the partition.  Before that no vote can exist. */
static bool is_pushed(const ps_client *self, uint32_t partition)
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

static bool on_record(ps_client *self, uint32_t shard, const wire_vote *vote, const double *sums,
                      size_t n_sums)
{
    const plan *p    = self->setup.plan;
    step_state *step = &self->step;
    uint32_t at      = vote->partition;
    if (self->setup.shard[at] != shard || step->has[at] || !is_pushed(self, at))
        return true; /* a repeat, or invalid */
    if (decision_vote_hash(step->index, vote, &step->in->wire, sums, (uint32_t)n_sums) !=
        vote->hash)
        return false;

    step->vote[at] = *vote;
    memcpy(step->sums[at], sums, p->partition[at].blocks * sizeof *sums);
    step->has[at] = true;
    step->n_votes++;
    mark_prepared(self, at);
    return true;
}

/* ---- the decision ---------------------------------------------------------------------------- */
static void ask_for_values(ps_client *self)
{
    ps_client_request *r = self->step.request;
    r->ending = true; /* keeps r alive in this loop, even with nothing left to wait for */
    for (op *o = r->ops; o != NULL; o = o->request_next) {
        if (o->state == OP_DONE || !is_decided(self, o)) continue;
        o->pulling = true;
        o->tries   = 0;
        if (o->to != NULL)
            ps_client_send_later(self, o);
        else
            ps_client_finish(self, o);
    }
    r->ending = false;
}

static void decide(ps_client *self)
{
    step_state *step   = &self->step;
    uint32_t bad_chunk = 0;
    int32_t bad_rank   = -1;
    decision_make(self->setup.plan, step->vote, (const double *const *)step->sums, &step->in->wire,
                  self->applied, &step->decision, &bad_chunk, &bad_rank);
    step->decided = true;
    if (step->decision.outcome == PEN_APPLIED) self->applied++;

    const bool has_bad = bad_rank >= 0 && bad_chunk < self->setup.plan->n_chunks;
    step->outcome      = (ps_client_outcome){.outcome  = step->decision.outcome,
                                             .norm     = step->decision.norm,
                                             .clip     = step->decision.clip,
                                             .applied  = self->applied,
                                             .has_bad  = has_bad,
                                             .bad_rank = bad_rank};
    if (has_bad) step->outcome.bad_tensor = ps_client_chunk(self, bad_chunk)->tensor;
    step->scalars  = step->vote[ps_client_chunk(self, self->scalars_chunk)->partition].scalars;
    step->is_final = !self->setup.may_lose_members;
    ps_client_away_decided(self);
    ps_client_step_notify(self);
    ask_for_values(self);
    ps_client_complete_if_over(self, step->request); /* when none of the chunks is ours */
}

void ps_client_step_vote(ps_client *self, uint32_t shard, const wire_data *d, const buf *body)
{
    const plan *p    = self->setup.plan;
    step_state *step = &self->step;
    if (self->n_decided == 0 || step->request == NULL || step->in == NULL || step->decided ||
        d->step != step->index)
        return;

    size_t left = body != NULL ? body->size / sizeof(double) : 0, at = 0;
    for (uint32_t i = 0; i < d->n_votes; i++) {
        const wire_vote *vote = &d->vote[i];
        size_t n_sums =
            vote->partition < p->n_partitions ? p->partition[vote->partition].blocks : 0;
        if (n_sums == 0 || n_sums > left)
            return; /* the scheduler's plan and the shard's message disagree */
        const double *from = (const double *)body->data + at;
        /* The hash covers the sums: a damaged vote counts as lost and is asked for again. */
        if (!on_record(self, shard, vote, from, n_sums))
            self->act.count(self->user, STAT_CORRUPT, 1);
        at += n_sums;
        left -= n_sums;
    }
    if (step->closing && step->n_votes == self->n_decided && step->request->status == PEN_OK)
        decide(self);
}

/* ---- close ----------------------------------------------------------------------------------- */
static void close_undecided(ps_client *self)
{
    self->step.outcome = (ps_client_outcome){
        .outcome = PEN_APPLIED, .clip = 1, .applied = ++self->applied, .bad_rank = -1};
    self->step.decided = self->step.is_final = true;
    ps_client_step_notify(self);
}

void ps_client_step_close(ps_client *self, void *token, uint64_t deadline_ms, uint64_t now_ms)
{
    step_state *step     = &self->step;
    ps_client_request *r = step->request;
    step->closing        = true;
    step->token          = token;
    r->token             = token;
    if (r->status == PEN_OK) {
        if (self->n_decided == 0)
            close_undecided(self);
        else if (step->n_votes == self->n_decided)
            decide(self);
        /* Values that came early: parameters are written only after the program has closed the step. */
        for (op *o = r->ops; o != NULL; o = o->request_next)
            if (o->state == OP_BUFFERED)
                ps_client_take_values(self, o, (const char *)o->body->data + o->body_at,
                                      ps_client_value_size(self, o->chunk), now_ms);
    }
    ps_client_ask_for_votes(
        self, self->is_new_to_shards
                  ? now_ms
                  : now_ms + retry_wait_ms(&self->setup.retry, RETRY_RECEIPT, 1, &self->draws));
    self->is_new_to_shards = false;
    ps_client_close(self, r, token, deadline_ms, now_ms); /* only now may it complete */
}

/* ---- restart --------------------------------------------------------------------------------- */
static bool has_values(const ps_client *self)
{
    for (const op *o = self->step.request->ops; o != NULL; o = o->request_next)
        if (o->state == OP_DONE && ps_client_is_decided(self, o)) return true;
    return false;
}

/* The shard has forgotten this push, if it had it.  A push that is still queued goes out unchanged. */
static void push_anew(ps_client *self, op *o)
{
    if (o->state == OP_QUEUED || (o->state == OP_READY && !o->pulling)) return;
    ps_client_unqueue(self, o);
    o->pulling = false;
    o->tries   = 1;
    o->state   = OP_SENT;
    ps_client_send_later(self, o);
}

bool ps_client_step_reopen(ps_client *self, uint64_t now_ms)
{
    step_state *step = &self->step;
    if (has_values(self)) return false;
    if (step->decided && step->decision.outcome == PEN_APPLIED) self->applied--;
    step->decided = step->is_final = false;
    step->n_votes = step->asks = 0;
    memset(step->has, 0, self->setup.plan->n_partitions * sizeof *step->has);
    for (op *o = step->request->ops; o != NULL; o = o->request_next)
        if (ps_client_is_decided(self, o)) push_anew(self, o);
    if (step->closing) ps_client_ask_for_votes(self, now_ms);
    return true;
}
