/* sharded.c - training without servers, with the state sharded over the workers or whole on each: the same bits as with
 * servers.
 *
 * DESIGN.  A step:
 *   open    every rank sends its weight, rates and bounds to all (agreement.h); with servers each push carries them
 *   ready   the gradient, rounded as on the wire and times this rank's weight, goes into a bucket (reducer.h), which is
 *           summed in rank order
 *   end     all ranks make the same decision from the same sums, and the state is updated (update_state.h)
 * What each rank holds, by stage (docs/design/zero.md):
 *   0       everything: sums go to all (all_reduce), each computes the same decision and the same values, without another
 *           message unless an element is not finite: then one all_reduce finds the rank that added it.  A lazy step may
 *           end bucket by bucket (sharded_buckets.c), and survivors may go on (sharded_loss.c).  Between hosts two
 *           buckets are summed at a time, on two groups: one call leaves gaps on the link
 *   1       zero1: each member has masters and slots of its own ranges only (sharded_ranges.h), gets the sums of these
 *           (reduce_scatter), updates them, and all gather the new values (all_gather)
 *   2       zero2, also gradients: they exist from the first pen_view() until they are in their bucket, buckets until they
 *           are summed; only the sum of the own ranges stays
 *   3       zero3, also parameters: pen_use() gathers values in memory of the SDK, pen_release() drops them
 *   hybrid  the ranks of a node share one copy of the state; sums are added across nodes
 * A group of one of stage 0 exchanges nothing: its weighted gradients are the sums (solo.h).  A worker that trains alone is
 * such a group; it also serves verbs and groups of every sync rule.
 * A decision needs the sums of squares of all blocks.  Owners compute theirs, all gather them, and each member adds them
 * in the order that servers and single processes use.  So the bits are those of every other mode, clipped or not.  Two
 * exceptions: hybrid with several nodes adds in another order, and accum_reduce=each adds the micro-batches of all ranks
 * one after another.
 *   device  gradients on a device are summed, decided and applied there (space.h), and nothing waits: the step is over for
 *           the host when all of it is enqueued.  Each rank tells which of its own chunks is not finite, so the culprit
 *           needs no further call.  The host reads the verdict at the end of the step, or, if the step is lazy, when a
 *           later step begins (settle)
 * Threads: the program's; "pen-coll" ends sums; "pen-step" ends steps that come by bucket.
 */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/train/snapshot/snapshot_writer.h"

#include <stdlib.h>
#include <string.h>

/* ---- the step -------------------------------------------------------------------------------- */
static void sharded_step_open(strategy *base, uint64_t index, const wire_inputs *inputs)
{
    sharded *s = (sharded *)base;
    pen_error why;
    (void)index;
    s->inputs         = inputs;
    s->round          = 0;
    s->n_ready        = 0;
    s->failure.status = PEN_OK;
    s->is_behind = s->has_sums = false;
    if (s->is_to_lay_out) (void)sharded_lay_out_anew(s, &why); /* a NULL order cannot fail */
    if (s->reducer != NULL) reducer_begin(s->reducer);
    if (!s->ctx->reduces_each) agreement_show(&s->agreement, &s->everyone, inputs, s->own_first);
    s->own_first = UINT32_MAX;
}

static void sharded_ready(strategy *base, pen_tensor *x, const void *grad)
{
    sharded *s      = (sharded *)base;
    const plan *p   = update_state_plan(s->update_state);
    stat_set *stats = &s->ctx->stats;
    pen_error why;
    x->pushed = s->stage == 0 ? grad : NULL; /* NULL: it may be freed before the step ends */
    if (s->solo != NULL) {                   /* the update reads it, on the space's stream */
        if (device_copies_precede(s->ctx, device_copies_stream(x), &why) != PEN_OK)
            context_remember(&s->ctx->step.remembered, &why);
        return;
    }
    stat_add(stats, STAT_PUSH_OPS, p->first_chunk[x->index + 1] - p->first_chunk[x->index]);
    stat_add(stats, STAT_PUSH_BYTES, x->elements * sizeof(float)); /* the type of the sums */
    sharded_add(s, x, grad);
}

/* From the second step on all ranks use the order of rank 0's first. */
static pen_status arrange(sharded *s, pen_error *why)
{
    if (s->reducer == NULL || s->is_arranged || s->is_to_lay_out) return PEN_OK;
    if (group_calls_arrange(&s->everyone, s->reducer, s->n_pieces, &s->is_arranged, why) != PEN_OK)
        return why->status;
    log_info(
        "the gradients of %u tensors travel in %u buckets, in the order of rank 0's first step",
        s->n_trained, reducer_buckets(s->reducer));
    return PEN_OK;
}

static pen_status finish_step(sharded *s, bool is_lazy, pen_error *why)
{
    pen_ctx *ctx          = s->ctx;
    const bool is_decided = model_is_decided(&ctx->model);
    double weight_sum;
    if (ctx->reduces_each) { /* the step was opened before the last micro-batch set its scalars */
        ctx->step.inputs.scalars = ctx->step.scalars;
        agreement_show(&s->agreement, &s->everyone, s->inputs, 0);
    }
    if ((s->stage == 0 ? sharded_sum_up(s, why) : sharded_complete_sums(s, why)) != PEN_OK ||
        sharded_agree(s, &weight_sum, why) != PEN_OK)
        return why->status;
    for (uint32_t i = 0; i < s->n_trained; i++)
        if (sharded_give_sum(s, ctx->model.tensor[s->trained[i]], why) != PEN_OK)
            return why->status;
    if (!is_decided)
        update_state_count_step(s->update_state);
    else if (sharded_decide(s, weight_sum, why) != PEN_OK)
        return why->status;
    if (sharded_update(s, weight_sum, why) != PEN_OK) return why->status;
    if (!is_decided)
        ctx->step.outcome.applied = update_state_applied(s->update_state);
    else if (verdicts_end_step(&s->verdicts, is_lazy, why) != PEN_OK)
        return why->status;
    pen_status status = sharded_units_step_end(s, why);
    if (status == PEN_OK) status = arrange(s, why);
    if (status == PEN_OK)
        status =
            snapshot_writer_step(ctx, ctx->step.next_index + 1,
                                 !s->is_behind && agreement_wants_snapshot(&s->agreement), why);
    return status == PEN_PEER_LOST && s->goes_on ? PEN_OK : status; /* the next step handles it */
}

/* ---- snapshots ------------------------------------------------------------------------------- */
/* Alone, another thread may take a snapshot or begin a verb. */
static pen_status sharded_settle(strategy *base, uint32_t most, pen_error *why)
{
    sharded *s = (sharded *)base;
    if (s->solo != NULL) pthread_mutex_lock(&base->lock);
    const pen_status status = verdicts_settle(&s->verdicts, most, why);
    if (s->solo != NULL) pthread_mutex_unlock(&base->lock);
    return status;
}

/* The values have all steps that have ended, so their counts must, too.  In stage 0 all have the same; in hybrid modes
 * members of other nodes with the same position hold the same ranges. */
static pen_status sharded_state_ranges(strategy *base, state_ranges *h, pen_error *why)
{
    sharded *s = (sharded *)base;
    if (verdicts_settle(&s->verdicts, 0, why) != PEN_OK) return why->status;
    const pen_group *alike = s->is_hybrid    ? s->across.group
                             : s->stage == 0 ? s->everyone.group
                                             : NULL;
    h->copies              = alike != NULL ? alike->size : 1;
    h->copy                = alike != NULL ? alike->rank : 0;
    return update_state_state_ranges(s->update_state, h, why);
}

static pen_status sharded_restored(strategy *base, int64_t applied, pen_error *why)
{
    sharded *s = (sharded *)base;
    if (update_state_restored(s->update_state, applied, why) != PEN_OK) return why->status;
    if (s->stage == 0) return PEN_OK;
    return sharded_gather_all(s, why) == PEN_OK ? device_copies_fetch_all(s->ctx, why)
                                                : why->status;
}

/* ---- explicit verbs -------------------------------------------------------------------------- */
static pen_status push(sharded *s, const request *r, pen_error *why)
{
    const pen_tensor *x = r->u.verb.tensor;
    if (s->solo == NULL) return strategy_refuse_push(x, why);
    const float *sum = solo_weigh(s->solo, x, r->u.verb.from, 1, why);
    if (sum == NULL) return why->status;
    update_state_give(s->update_state, x, sum);
    return update_state_update(s->update_state, x, s->ctx->model.group[x->desc.group]->hyper.lr, 1,
                               why);
}

static pen_status pull(const sharded *s, pen_tensor *x, void *to, pen_error *why)
{
    if (s->stage == 0) return update_state_values(s->update_state, x, to, why);
    if (s->sharded_out[x->index])
        return why_set(why, PEN_UNSUPPORTED,
                       "cannot pull '%s': its values are sharded over the workers; use pen_use() "
                       "and pen_view()",
                       x->name);
    if (device_copies_fetch_values(x, why) != PEN_OK) return why->status;
    if (to != x->param) memcpy(to, x->param, x->bytes);
    return PEN_OK;
}

static pen_status do_verb(sharded *s, request *r, pen_error *why)
{
    pen_tensor *x = r->u.verb.tensor;
    if (r->u.verb.verb != PS_PULL && push(s, r, why) != PEN_OK) return why->status;
    if (r->u.verb.verb != PS_PUSH) {
        if (pull(s, x, r->u.verb.to, why) != PEN_OK) return why->status;
        r->result.count = x->bytes;
    }
    r->result.version = update_state_version(s->update_state, x);
    return PEN_OK;
}

/* ---- the strategy ---------------------------------------------------------------------------- */
static pen_status run_request(sharded *s, request *r, pen_error *why)
{
    if (r->kind == REQUEST_VERB) return do_verb(s, r, why);
    if (r->kind != REQUEST_STEP) return PEN_OK; /* PULL_FREE: local values are the newest */
    const pen_status status = finish_step(s, r->u.step.decided != NULL, why);
    r->result.version       = (uint64_t)update_state_applied(s->update_state);
    return status;
}

/* In a larger group a step takes no lock: it waits for calls whose callbacks may begin verbs. */
static void sharded_start(strategy *base, request *r)
{
    pen_error why;
    sharded *s        = (sharded *)base;
    pen_status status = PEN_AGAIN;
    if (sharded_may_come_by_bucket(s, r)) {
        status = sharded_begin_buckets(s, r, &why);
        if (status == PEN_OK) return;
    }
    if (s->solo != NULL) pthread_mutex_lock(&base->lock);
    if (status == PEN_AGAIN) status = run_request(s, r, &why);
    if (s->solo != NULL) pthread_mutex_unlock(&base->lock);
    strategy_end(r, status, &why);
}

pen_status sharded_open(pen_ctx *ctx, pen_error *why)
{
    static const strategy_ops ops = {.settle       = sharded_settle,
                                     .state_ranges = sharded_state_ranges,
                                     .restored     = sharded_restored,
                                     .start        = sharded_start,
                                     .step_open    = sharded_step_open,
                                     .ready        = sharded_ready,
                                     .use          = sharded_units_use,
                                     .release      = sharded_units_release,
                                     .close        = sharded_close};
    const worker_settings *set    = &ctx->settings;
    sharded *s                    = calloc(1, sizeof *s);
    if (s == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for training without servers");
    strategy_init(&s->base, &ops, ctx);
    s->base.tells_values = ctx->stage == 0;
    s->ctx               = ctx;
    s->space             = space_host();
    s->stage             = ctx->stage;
    s->is_hybrid         = worker_mode_is_hybrid((int)ctx->mode);
    s->goes_on           = s->stage == 0 && set->on_worker_loss == LOSS_CONTINUE;
    s->own_first         = UINT32_MAX;
    group_calls_init(&s->everyone, ctx);
    group_calls_init(&s->sums, ctx);
    group_calls_init(&s->values, ctx);
    group_calls_init(&s->across, ctx);
    step_thread_init(&s->lazy, sharded_update_buckets, s);
    ctx->reduces_each = s->stage > 0 && set->accum > 1 &&
                        (set->accum_reduce == ACCUM_REDUCE_EACH ||
                         (set->accum_reduce == ACCUM_REDUCE_AUTO && s->stage > 1));
    if (sharded_set_up(s, why) != PEN_OK) return why->status;
    return snapshot_writer_commit(ctx, ctx->mode == MODE_LOCAL ? NULL : &s->everyone, why);
}
