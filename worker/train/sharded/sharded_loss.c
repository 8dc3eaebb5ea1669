/* sharded_loss.c - stage 0: the sums of a step, and with on_worker_loss=continue the same without a worker that is lost.
 *
 * A rank ends the step only when all ranks have the sums.  After that, the survivors of a loss can still end the step
 * alike: those that have no sums yet repeat it, and others are behind if one of them has ended it.
 */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/log.h"
#include "common/base/why.h"

#include <string.h>

static pen_status complete(sharded *s, pen_error *why)
{
    const coll_call call = {
        .kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = "sums of a step are complete"};
    if (sharded_complete_sums(s, why) != PEN_OK) return why->status;
    s->has_sums = true;
    if (!s->goes_on || s->solo != NULL) return PEN_OK;
    group_calls_begin(&s->everyone, &call);
    return group_calls_wait(&s->everyone, why);
}

/* The program's world stays a separate group. */
static pen_status renew_world(const sharded *s, pen_error *why)
{
    pen_ctx *ctx = s->ctx;
    pen_group *world;
    if (group_new(s->everyone.group, s->ranks, s->n, context_patience(ctx, NULL), &world, why) !=
        PEN_OK)
        return why->status;
    world->is_world = true;
    ctx->world      = world;
    ctx->step.flags |= PEN_STEP_MEMBERS;
    return PEN_OK;
}

static pen_status compare_steps(sharded *s, pen_error *why)
{
    int64_t own = s->ctx->step.next_index;
    group_calls_gather(&s->everyone, PEN_I64, 1, NULL, &own, s->at, "steps of the survivors");
    if (group_calls_wait(&s->everyone, why) != PEN_OK) return why->status;
    s->is_behind = false;
    for (int i = 0; i < s->n; i++) s->is_behind |= s->at[i] > own;
    if (s->is_behind && !s->has_sums)
        return why_set(why, PEN_INTERNAL,
                       "other ranks ended step %lld, but its sums did not arrive here",
                       (long long)own);
    return PEN_OK;
}

/* Another worker may be lost meanwhile. */
static pen_status regroup(sharded *s, pen_error *why)
{
    pen_status status;
    do {
        pen_group *left;
        if (engine_shrink(s->everyone.group, context_patience(s->ctx, NULL), &left, why) != PEN_OK)
            return why->status;
        group_destroy(s->everyone.group);
        s->everyone.group = left;
        atomic_store(&s->everyone.is_out_of_step, false);
        s->n = left->size;
        memcpy(s->ranks, left->ranks, (size_t)s->n * sizeof *s->ranks);
        status = compare_steps(s, why);
        if (status == PEN_OK) status = renew_world(s, why);
    } while (status == PEN_PEER_LOST);
    if (status == PEN_OK)
        log_notice("%d worker%s left; step %lld %s", s->n, s->n == 1 ? " is" : "s are",
                   (long long)s->ctx->step.next_index,
                   s->is_behind ? "stays as it was" : "is repeated");
    return status;
}

/* The gradients are intact, so the survivors sum theirs again, with their own weights. */
static pen_status sum_again(sharded *s, pen_error *why)
{
    if (sharded_lay_out_anew(s, why) != PEN_OK) return why->status;
    s->has_sums       = false;
    s->failure.status = PEN_OK;
    reducer_begin(s->reducer);
    agreement_show_again(&s->agreement, &s->everyone);
    for (uint32_t i = s->n_trained; i-- > 0;) {
        pen_tensor *x = s->ctx->model.tensor[s->trained[i]];
        sharded_add(s, x, x->pushed);
    }
    return complete(s, why);
}

pen_status sharded_sum_up(sharded *s, pen_error *why)
{
    pen_status status = complete(s, why);
    while (status == PEN_PEER_LOST && s->goes_on) {
        if (regroup(s, why) != PEN_OK) return why->status;
        s->is_to_lay_out = true;
        if (s->is_behind) return PEN_OK;
        status = sum_again(s, why);
    }
    return status;
}
