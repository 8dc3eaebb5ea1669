/* sharded_buckets.c - stage 0: a lazy step that is updated bucket by bucket, in "pen-step".
 *
 * A lazy step that needs no decision (commit=eager) ends for the program once all agree on its inputs.  The tensors of each
 * bucket are updated when its sum is there, and the sums that are not under way by the end of the backward pass run in
 * reverse (reducer_set_first), so that the next forward pass starts behind them.
 */
#include "worker/train/sharded/sharded_internal.h"

bool sharded_may_come_by_bucket(const sharded *s, const request *r)
{
    return s->stage == 0 && s->reducer != NULL && r->kind == REQUEST_STEP &&
           r->u.step.decided != NULL && s->is_arranged && !s->goes_on &&
           !space_is_device(&s->space) && s->ctx->memory.device_copies == NULL &&
           !model_is_decided(&s->ctx->model);
}

static pen_status update_bucket(sharded *s, uint32_t bucket, pen_error *why)
{
    const model *m = &s->ctx->model;
    const uint32_t *piece;
    uint32_t n;
    if (reducer_wait_bucket(s->reducer, bucket, &piece, &n, why) != PEN_OK) return why->status;
    for (uint32_t i = 0; i < n; i++) {
        s->list[i] = s->piece[piece[i]].tensor;
        if (sharded_give_sum(s, m->tensor[s->list[i]], why) != PEN_OK) return why->status;
    }
    pen_status status = update_state_carry_out(s->update_state, s->list, n, s->inputs,
                                               s->weight_sum, s->inputs->rate, why);
    for (uint32_t i = 0; i < n && status == PEN_OK; i++)
        request_values_come(&s->ctx->requests, m->tensor[s->list[i]]);
    return status;
}

void sharded_update_buckets(void *user, request *r)
{
    sharded *s = user;
    pen_error why, later;
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < reducer_buckets(s->reducer) && status == PEN_OK; i++)
        status = update_bucket(s, i, &why);
    (void)reducer_wait(s->reducer, &later); /* until no call uses the buckets */
    sharded_count_pulls(s);
    r->result.version = (uint64_t)update_state_applied(s->update_state);
    strategy_end(r, status, &why);
}

pen_status sharded_begin_buckets(sharded *s, request *r, pen_error *why)
{
    /* With those under way. */
    s->own_first      = reducer_summed(s->reducer) + (s->everyone.second != NULL ? 2 : 1);
    pen_status status = group_calls_wait(&s->everyone, why);
    if (status == PEN_OK && agreement_wants_snapshot(&s->agreement)) return PEN_AGAIN;
    if (status == PEN_OK) status = sharded_agree(s, &s->weight_sum, why);
    if (status != PEN_OK) {
        pen_error later;
        (void)reducer_wait(s->reducer, &later); /* until no call uses the buckets */
        return status;
    }
    update_state_count_step(s->update_state);
    s->ctx->step.outcome.applied = update_state_applied(s->update_state);
    for (uint32_t i = 0; i < s->n_trained; i++)
        request_values_begin(&s->ctx->requests, s->ctx->model.tensor[s->trained[i]]);
    step_thread_decided(r);
    step_thread_run(&s->lazy, r);
    return PEN_OK;
}
