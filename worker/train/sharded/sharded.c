/* sharded.c - training whose state is sharded over the workers: no servers, and the same bits as with them.
 *
 * DESIGN.  As in train/allreduce.c, every rank sends its weight and rates to all, sums are in rank order, and all make
 * the same decision.  The state is divided (docs/design/zero.md):
 *   zero1   each member has masters and slots of its own ranges only (sharded_ranges.h), gets the sums of these
 *           (reduce_scatter), updates them, and all gather the new values (all_gather)
 *   zero2   also gradients: they exist from the first pen_view() until they are in their bucket, buckets until they
 *           are summed; only the sum of the own ranges stays
 *   zero3   also parameters: pen_use() gathers values in memory of the SDK, pen_release() drops them
 *   hybrid  the ranks of a node share one copy of the state; sums are added across nodes
 * A decision needs the sums of squares of all blocks.  Owners compute theirs, all gather them, and each member adds them
 * in the order that servers and single processes use.  So the bits are those of every other mode, clipped or not.  Two
 * exceptions: hybrid with several nodes adds in another order, and accum_reduce=each adds the micro-batches of all ranks
 * one after another.
 * Threads: the program's; "pen-coll" ends sums.
 */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/why.h"
#include "common/trace/trace.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/train/snapshot/snapshot_writer.h"

#include <stdlib.h>
#include <string.h>

/* ---- the step -------------------------------------------------------------------------------- */
static void sharded_step_open(strategy *base, uint64_t index, const wire_inputs *inputs)
{
    sharded *s = (sharded *)base;
    (void)index;
    s->inputs         = inputs;
    s->round          = 0;
    s->n_ready        = 0;
    s->failure.status = PEN_OK;
    memset(s->is_bad, 0, update_state_plan(s->update_state)->n_chunks * sizeof *s->is_bad);
    reducer_begin(s->reducer);
    if (!s->ctx->reduces_each) agreement_show(&s->agreement, &s->everyone, inputs, 0);
}

static void sharded_ready(strategy *base, pen_tensor *x, const void *grad)
{
    sharded *s      = (sharded *)base;
    const plan *p   = update_state_plan(s->update_state);
    stat_set *stats = &s->ctx->stats;
    stat_add(stats, STAT_PUSH_OPS, p->first_chunk[x->index + 1] - p->first_chunk[x->index]);
    stat_add(stats, STAT_PUSH_BYTES, x->elements * sizeof(float)); /* the type of the sums */
    x->pushed = NULL; /* grad may be freed before the step ends */
    sharded_add(s, x, grad);
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
    if (sharded_complete_sums(s, why) != PEN_OK ||
        agreement_complete(&s->agreement, &s->everyone, why) != PEN_OK)
        return why->status;
    if (agreement_check(&s->agreement, &weight_sum, why) != PEN_OK) {
        context_fail(ctx, why); /* all other ranks fail alike */
        return why->status;
    }
    ctx->step.outcome = (ps_client_outcome){.outcome = PEN_APPLIED, .clip = 1, .bad_rank = -1};
    agreement_scalars(&s->agreement, &ctx->step.outcome.scalars);
    if (!is_decided)
        update_state_count_step(s->update_state);
    else if (sharded_decide(s, weight_sum, why) != PEN_OK)
        return why->status;
    const uint64_t begun = trace_begin();
    if (sharded_update(s, weight_sum, why) != PEN_OK) return why->status;
    if (is_decided && verdicts_end_step(&s->verdicts, is_lazy, why) != PEN_OK) return why->status;
    trace_span(TRACE_UPDATE, begun, &(trace_note){0});
    if (sharded_units_step_end(s, why) != PEN_OK) return why->status;
    if (!is_decided) ctx->step.outcome.applied = update_state_applied(s->update_state);
    if (group_calls_arrange(&s->everyone, s->reducer, s->n_pieces, &s->is_arranged, why) != PEN_OK)
        return why->status;
    return snapshot_writer_step(ctx, ctx->step.next_index + 1,
                                agreement_wants_snapshot(&s->agreement), why);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
/* Members of other nodes with the same position hold the same ranges. */
static pen_status sharded_state_ranges(strategy *base, state_ranges *h, pen_error *why)
{
    sharded *s = (sharded *)base;
    if (verdicts_settle(&s->verdicts, 0, why) != PEN_OK) return why->status;
    h->copies = s->is_hybrid ? s->across.group->size : 1;
    h->copy   = s->is_hybrid ? s->across.group->rank : 0;
    return update_state_state_ranges(s->update_state, h, why);
}

static pen_status sharded_restored(strategy *base, int64_t applied, pen_error *why)
{
    sharded *s        = (sharded *)base;
    pen_status status = update_state_restored(s->update_state, applied, why);
    if (status == PEN_OK) status = sharded_gather_all(s, why);
    return status == PEN_OK ? device_copies_fetch_all(s->ctx, why) : status;
}

static pen_status sharded_settle(strategy *base, uint32_t most, pen_error *why)
{
    return verdicts_settle(&((sharded *)base)->verdicts, most, why);
}

/* ---- explicit verbs -------------------------------------------------------------------------- */
static pen_status do_verb(sharded *s, request *r, pen_error *why)
{
    const pen_tensor *x = r->u.verb.tensor;
    if (r->u.verb.verb != PS_PULL) return strategy_refuse_push(x, why);
    if (s->sharded_out[x->index])
        return why_set(why, PEN_UNSUPPORTED,
                       "cannot pull '%s': its values are sharded over the workers; use pen_use() "
                       "and pen_view()",
                       x->name);
    if (device_copies_fetch_values(r->u.verb.tensor, why) != PEN_OK) return why->status;
    if (r->u.verb.to != x->param) memcpy(r->u.verb.to, x->param, x->bytes);
    r->result.count   = x->bytes;
    r->result.version = update_state_version(s->update_state, x);
    return PEN_OK;
}

static pen_status run(sharded *s, request *r, pen_error *why)
{
    if (r->kind == REQUEST_VERB) return do_verb(s, r, why);
    if (r->kind != REQUEST_STEP) return PEN_OK; /* PULL_FREE: local values are the newest */
    const pen_status status = finish_step(s, r->u.step.decided != NULL, why);
    r->result.version       = (uint64_t)update_state_applied(s->update_state);
    return status;
}

/* ---- the strategy ---------------------------------------------------------------------------- */
static void sharded_start(strategy *base, request *r)
{
    pen_error why;
    const pen_status status = run((sharded *)base, r, &why);
    strategy_end(r, status, &why);
}

static void sharded_close(strategy *base)
{
    sharded *s = (sharded *)base;
    sharded_tear_down(s);
    group_calls_fini(&s->everyone);
    group_calls_fini(&s->sums);
    group_calls_fini(&s->values);
    group_calls_fini(&s->across);
    free(s);
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
    s->ctx       = ctx;
    s->place     = place_host();
    s->stage     = ctx->stage;
    s->is_hybrid = worker_mode_is_hybrid((int)ctx->mode);
    group_calls_init(&s->everyone, ctx);
    group_calls_init(&s->sums, ctx);
    group_calls_init(&s->values, ctx);
    group_calls_init(&s->across, ctx);
    ctx->reduces_each =
        set->accum > 1 && (set->accum_reduce == ACCUM_REDUCE_EACH ||
                           (set->accum_reduce == ACCUM_REDUCE_AUTO && s->stage > 1));
    const pen_status status = sharded_set_up(s, why);
    return status == PEN_OK ? snapshot_writer_commit(ctx, &s->everyone, why) : status;
}
