/* allreduce.c - training without servers: the same bits as with them.
 *
 * DESIGN.  The job's business (joining, agreeing on the model, heartbeats, verdicts, commands) is
 * that of engine_servers, with no servers in it.  What differs is the step:
 *   open    every rank shows its weight, rates and bounds to all (one small all_gather), as
 *           servers would be told with each push;
 *   ready   the gradient, rounded as it would travel and times this rank's weight, goes into a
 *           bucket (reducer.h), which is summed over the ranks in rank order;
 *   end     all ranks hold equal sums and equal inputs, so each comes to the same decision and the
 *           same values by itself (replica.h).  Nothing more is said, unless an element is not
 *           finite: then one more all_reduce finds out whose it was.
 * The bits are those of ps-bsp with deterministic sums: the fold, the norm, the decision and the
 * update are the same functions on the same operands in the same order.
 */
#include "worker/train/allreduce.h"

#include "common/log.h"
#include "common/why.h"
#include "worker/train/agreement.h"
#include "worker/train/culprit.h"
#include "worker/train/first_values.h"
#include "worker/train/keeper.h"
#include "worker/train/reducer.h"
#include "worker/train/replica.h"
#include "worker/train/talk.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    talk talk;
    replica *replica;
    reducer *reducer;
    uint32_t *gradient; /* [n_tensors] number of a trained tensor's gradient */
    uint64_t *elements; /* [n_trained] */
    const char **name;  /* [n_trained] */
    uint32_t n_trained;

    agreement agreement;
    const wire_inputs *inputs;
    bool is_arranged;

    /* on_worker_loss=continue */
    int n, *ranks;      /* who is left; [world_size] */
    int64_t *at;        /* [world_size] the step that each is in */
    bool goes_on;       /* the loss of a worker does not end the job */
    bool has_sums;      /* of the step, from everybody who was there */
    bool is_behind;     /* others have ended this step: no calls, they are in the next */
    bool is_to_lay_out; /* the buckets anew, before the next step */
} trainer;

/* ---- first values ---------------------------------------------------------------------------- */
static pen_status make_group(pen_ctx *ctx, trainer *t, pen_error *why)
{
    pen_group *world = pen_group_get(ctx, PEN_GROUP_WORLD);
    const int n      = pen_size(world);
    int *ranks       = calloc((size_t)(n > 0 ? n : 1), sizeof *ranks);
    if (ranks == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a group of %d ranks", n);
    for (int i = 0; i < n; i++) ranks[i] = i;
    const pen_status status = pen_group_new(world, ranks, n, &t->talk.group);
    t->ranks                = ranks;
    t->n                    = n;
    t->goes_on              = ctx->settings.on_worker_loss == LOSS_CONTINUE;
    if (status != PEN_OK) pen_last_error(why);
    return status;
}

static pen_status make_reducer(pen_ctx *ctx, trainer *t, pen_error *why)
{
    const model *m = &ctx->model;
    t->gradient    = calloc(m->n_tensors + 1, sizeof *t->gradient);
    t->elements    = calloc(m->n_tensors + 1, sizeof *t->elements);
    t->name        = calloc(m->n_tensors + 1, sizeof *t->name);
    if (t->gradient == NULL || t->elements == NULL || t->name == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %u gradients", m->n_tensors);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        if (!m->tensor[i]->trained) continue;
        t->gradient[i]            = t->n_trained;
        t->elements[t->n_trained] = m->tensor[i]->elements;
        t->name[t->n_trained++]   = m->tensor[i]->name;
    }
    const reducer_setup setup = {.n            = t->n_trained,
                                 .elements     = t->elements,
                                 .name         = t->name,
                                 .first_bytes  = ctx->settings.bucket_first_bytes,
                                 .bucket_bytes = ctx->settings.bucket_bytes,
                                 .stats        = &ctx->stats,
                                 .submit       = talk_submit,
                                 .user         = &t->talk};
    return reducer_create(&setup, &t->reducer, why);
}

static pen_status make_shown(pen_ctx *ctx, trainer *t, pen_error *why)
{
    if (agreement_init(&t->agreement, ctx->model.n_groups, ctx->env.world_size, why) != PEN_OK)
        return why->status;
    t->at = calloc((size_t)t->n, sizeof *t->at);
    return t->at != NULL ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for %d ranks", t->n);
}

static pen_status allreduce_committed(pen_ctx *ctx, pen_error *why)
{
    trainer *t        = ctx->trainer;
    pen_status status = first_values_check(&ctx->model, why);
    if (status == PEN_OK) status = make_group(ctx, t, why);
    if (status == PEN_OK) status = first_values_spread(&t->talk, NULL, why);
    if (status == PEN_OK) status = replica_create(&ctx->model, &t->replica, why);
    if (status == PEN_OK) status = make_reducer(ctx, t, why);
    if (status == PEN_OK) status = make_shown(ctx, t, why);
    return status == PEN_OK ? keeper_commit(ctx, why) : status;
}

/* ---- the step, while gradients come ---------------------------------------------------------- */
/* As before the first step. */
static pen_status lay_out_anew(trainer *t, pen_error *why)
{
    t->is_arranged = t->is_to_lay_out = false;
    return reducer_arrange(t->reducer, NULL, why);
}

static void allreduce_step_open(pen_ctx *ctx, uint64_t index, const wire_inputs *inputs)
{
    trainer *t = ctx->trainer;
    pen_error why;
    (void)index;
    t->inputs    = inputs;
    t->is_behind = t->has_sums = false;
    if (t->is_to_lay_out) (void)lay_out_anew(t, &why); /* a NULL order cannot fail */
    reducer_begin(t->reducer);
    agreement_show(&t->agreement, &t->talk, inputs);
}

static void add_gradient(pen_ctx *ctx, const pen_tensor *x)
{
    trainer *t       = ctx->trainer;
    const uint32_t i = t->gradient[x->index];
    replica_weigh(reducer_room(t->reducer, i), x->pushed, x->desc.grad_dtype,
                  model_push_dtype(&ctx->model, x), t->inputs->weight, x->elements);
    reducer_ready(t->reducer, i);
}

static void allreduce_ready(pen_ctx *ctx, pen_tensor *x, const void *grad)
{
    const plan *p = replica_plan(((trainer *)ctx->trainer)->replica);
    x->pushed     = grad;
    stat_add(&ctx->stats, STAT_PUSH_OPS, p->first_chunk[x->index + 1] - p->first_chunk[x->index]);
    stat_add(&ctx->stats, STAT_PUSH_BYTES, x->elements * sizeof(float)); /* as it is added up */
    add_gradient(ctx, x);
}

/* ---- the step, at its end -------------------------------------------------------------------- */
static pen_status agree(pen_ctx *ctx, double *weight_sum, pen_error *why)
{
    const trainer *t = ctx->trainer;
    if (agreement_check(&t->agreement, weight_sum, why) == PEN_OK) return PEN_OK;
    context_fail(ctx, why); /* as all other ranks find */
    return why->status;
}

/* *at: its position.  The step is already everybody's: who is lost now is left behind in the next. */
static pen_status find_culprit(pen_ctx *ctx, const plan_chunk *c, int32_t *at, pen_error *why)
{
    trainer *t = ctx->trainer;
    if (t->is_behind) return PEN_OK;
    const pen_status status = culprit_find(&t->talk, ctx->model.tensor[c->tensor], c->start,
                                           c->count, t->inputs->weight, at, why);
    return status == PEN_PEER_LOST && t->goes_on ? PEN_OK : status;
}

static pen_status decide(pen_ctx *ctx, double weight_sum, wire_decision *decision, pen_error *why)
{
    trainer *t                = ctx->trainer;
    exchange_outcome *outcome = &ctx->step.outcome;
    uint32_t bad_chunk;
    int32_t bad_rank  = -1;
    const bool is_bad = replica_decide(t->replica, t->inputs, weight_sum, decision, &bad_chunk);
    if (is_bad) {
        const plan_chunk *c = &replica_plan(t->replica)->chunk[bad_chunk];
        bad_rank            = agreement_last_with_weight(&t->agreement);
        if (find_culprit(ctx, c, &bad_rank, why) != PEN_OK) return why->status;
        bad_rank            = t->is_behind ? t->agreement.ranks[bad_rank] : t->ranks[bad_rank];
        outcome->bad_tensor = c->tensor;
    }
    outcome->outcome  = decision->outcome;
    outcome->norm     = decision->norm;
    outcome->clip     = decision->clip;
    outcome->has_bad  = is_bad;
    outcome->bad_rank = bad_rank;
    return PEN_OK;
}

/* Rank 0's order of the first step is everybody's from the second on. */
static pen_status arrange(pen_ctx *ctx, pen_error *why)
{
    trainer *t = ctx->trainer;
    if (t->is_arranged || t->is_to_lay_out || t->n_trained == 0) return PEN_OK;
    const size_t bytes = t->n_trained * sizeof(uint32_t);
    uint32_t *order    = malloc(bytes);
    if (order == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to order the gradients");
    memcpy(order, reducer_order(t->reducer), bytes);
    pen_status status = talk_broadcast(&t->talk, order, bytes, "order of gradients", why);
    if (status == PEN_OK) status = reducer_arrange(t->reducer, order, why);
    free(order);
    t->is_arranged = status == PEN_OK;
    if (status == PEN_PEER_LOST && t->goes_on) return PEN_OK; /* the next step finds that, too */
    if (status == PEN_OK)
        log_info("%u gradients travel in %u buckets, in the order of rank 0's first step",
                 t->n_trained, reducer_buckets(t->reducer));
    return status;
}

static pen_status wait_for_sums(trainer *t, pen_error *why)
{
    pen_error later;
    const pen_status status = talk_wait(&t->talk, why);
    if (status == PEN_OK) return reducer_wait(t->reducer, why);
    (void)reducer_wait(t->reducer, &later); /* nobody uses the buckets any more */
    return status;
}

/* ---- the loss of a worker -------------------------------------------------------------------- */
/* Who knows that all others have the sums may end the step: should one be lost from here on, those
 * that do not know it yet can end the step alike. */
static pen_status complete_sums(trainer *t, pen_error *why)
{
    const coll_call call = {
        .kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = "sums of a step are complete"};
    if (wait_for_sums(t, why) != PEN_OK) return why->status;
    t->has_sums = true;
    if (!t->goes_on) return PEN_OK;
    talk_begin(&t->talk, &call);
    return talk_wait(&t->talk, why);
}

static pen_status leave_the_lost(trainer *t, pen_error *why)
{
    pen_group *left;
    if (pen_group_shrink(t->talk.group, &left) != PEN_OK) {
        pen_last_error(why);
        return why->status;
    }
    pen_group_free(t->talk.group);
    t->talk.group = left;
    t->n          = pen_group_ranks(left, t->ranks, t->n);
    return PEN_OK;
}

/* The program's world is a group of its own, as it was. */
static pen_status renew_world(pen_ctx *ctx, pen_error *why)
{
    const trainer *t = ctx->trainer;
    pen_group *world;
    if (pen_group_new(t->talk.group, t->ranks, t->n, &world) != PEN_OK) {
        pen_last_error(why);
        return why->status;
    }
    world->is_world = true;
    ctx->world      = world;
    ctx->step.flags |= PEN_STEP_MEMBERS;
    return PEN_OK;
}

static pen_status compare_steps(pen_ctx *ctx, pen_error *why)
{
    trainer *t           = ctx->trainer;
    int64_t own          = ctx->step.next_index;
    const coll_call call = {.kind  = COLL_ALL_GATHER,
                            .dtype = PEN_I64,
                            .n     = 1,
                            .in    = &own,
                            .out   = t->at,
                            .scale = 1,
                            .label = "steps of those who are left"};
    talk_begin(&t->talk, &call);
    if (talk_wait(&t->talk, why) != PEN_OK) return why->status;
    t->is_behind = false;
    for (int i = 0; i < t->n; i++) t->is_behind |= t->at[i] > own;
    if (t->is_behind && !t->has_sums)
        return why_set(why, PEN_INTERNAL, "others have ended step %lld, whose sums never came here",
                       (long long)own);
    return PEN_OK;
}

/* Another may be lost meanwhile. */
static pen_status regroup(pen_ctx *ctx, pen_error *why)
{
    trainer *t = ctx->trainer;
    pen_status status;
    do {
        if (leave_the_lost(t, why) != PEN_OK) return why->status;
        status = compare_steps(ctx, why);
        if (status == PEN_OK) status = renew_world(ctx, why);
    } while (status == PEN_PEER_LOST);
    if (status == PEN_OK)
        log_notice("%d worker%s left; step %lld %s", t->n, t->n == 1 ? " is" : "s are",
                   (long long)ctx->step.next_index,
                   t->is_behind ? "counts as it was" : "is done again among them");
    return status;
}

static pen_status sum_again(pen_ctx *ctx, pen_error *why)
{
    trainer *t     = ctx->trainer;
    const model *m = &ctx->model;
    if (lay_out_anew(t, why) != PEN_OK) return why->status;
    t->has_sums = false;
    reducer_begin(t->reducer);
    agreement_show_again(&t->agreement, &t->talk);
    for (uint32_t i = m->n_tensors; i-- > 0;)
        if (m->tensor[i]->trained) add_gradient(ctx, m->tensor[i]);
    return complete_sums(t, why);
}

/* The gradients are intact, so those who are left add up theirs: weights are of those as well. */
static pen_status sum_up(pen_ctx *ctx, pen_error *why)
{
    trainer *t        = ctx->trainer;
    pen_status status = complete_sums(t, why);
    while (status == PEN_PEER_LOST && t->goes_on) {
        if (regroup(ctx, why) != PEN_OK) return why->status;
        t->is_to_lay_out = true;
        if (t->is_behind) return PEN_OK;
        status = sum_again(ctx, why);
    }
    return status;
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static pen_status allreduce_holding(pen_ctx *ctx, holding *h, pen_error *why)
{
    const trainer *t = ctx->trainer;
    h->copies        = t->n;
    h->copy          = pen_rank(t->talk.group);
    return replica_holding(t->replica, h, why);
}

static pen_status allreduce_restored(pen_ctx *ctx, int64_t applied, pen_error *why)
{
    const trainer *t = ctx->trainer;
    (void)why;
    replica_restored(t->replica, applied);
    return PEN_OK;
}

static pen_status keep(pen_ctx *ctx, pen_error *why)
{
    const trainer *t        = ctx->trainer;
    const bool is_wanted    = !t->is_behind && agreement_wants_snapshot(&t->agreement);
    const pen_status status = keeper_step(ctx, ctx->step.next_index + 1, is_wanted, why);
    return status == PEN_PEER_LOST && t->goes_on ? PEN_OK
                                                 : status; /* the next step finds that, too */
}

/* ---- and all together ------------------------------------------------------------------------ */
static pen_status finish_step(pen_ctx *ctx, pen_error *why)
{
    trainer *t             = ctx->trainer;
    const model *m         = &ctx->model;
    wire_decision decision = {.outcome = PEN_APPLIED, .clip = 1};
    double weight_sum;
    if (sum_up(ctx, why) != PEN_OK || agree(ctx, &weight_sum, why) != PEN_OK) return why->status;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained)
            replica_give(t->replica, m->tensor[i], reducer_sum(t->reducer, t->gradient[i]));

    ctx->step.outcome = (exchange_outcome){.outcome = PEN_APPLIED, .clip = 1, .bad_rank = -1};
    agreement_scalars(&t->agreement, &ctx->step.outcome.scalars);
    if (!model_is_decided(m))
        replica_count_step(t->replica);
    else if (decide(ctx, weight_sum, &decision, why) != PEN_OK)
        return why->status;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        if (!m->tensor[i]->trained) continue;
        replica_carry_out(t->replica, m->tensor[i], t->inputs, weight_sum, &decision);
        const plan *p = replica_plan(t->replica);
        stat_add(&ctx->stats, STAT_PULL_OPS, p->first_chunk[i + 1] - p->first_chunk[i]);
        stat_add(&ctx->stats, STAT_PULL_BYTES, m->tensor[i]->bytes);
    }
    ctx->step.outcome.applied = replica_applied(t->replica);
    return arrange(ctx, why) == PEN_OK ? keep(ctx, why) : why->status;
}

static void end_step(pen_ctx *ctx, request *r)
{
    const trainer *t = ctx->trainer;
    pen_error why;
    const pen_status status = finish_step(ctx, &why);
    r->result.version       = (uint64_t)replica_applied(t->replica);
    if (r->u.step.decided != NULL)
        request_end(r->u.step.decided, status, status != PEN_OK ? &why : NULL);
    request_end(r, status, status != PEN_OK ? &why : NULL);
    request_tell(&ctx->requests);
}

/* ---- explicit verbs -------------------------------------------------------------------------- */
static pen_status do_verb(pen_ctx *ctx, request *r, pen_error *why)
{
    const trainer *t    = ctx->trainer;
    const pen_tensor *x = r->u.verb.tensor;
    if (r->u.verb.verb != EXCHANGE_PULL)
        return why_set(why, PEN_UNSUPPORTED,
                       "a push of '%s': mode=%s has no servers to push to; use pen_ready() and "
                       "pen_step_end(), or a mode with servers",
                       x->name, worker_mode_name(ctx->mode));
    replica_values(t->replica, x, r->u.verb.to);
    r->result.count   = x->bytes;
    r->result.version = replica_version(t->replica, x);
    return PEN_OK;
}

static pen_status do_here(pen_ctx *ctx, request *r, pen_error *why)
{
    if (r->kind == REQUEST_VERB) return do_verb(ctx, r, why);
    return PEN_OK; /* REQUEST_PULL_FREE */
}

/* ---- the engine ------------------------------------------------------------------------------ */
static void allreduce_start(pen_ctx *ctx, request *r)
{
    pen_error why;
    switch (r->kind) {
    case REQUEST_STEP: end_step(ctx, r); break;
    case REQUEST_SNAPSHOT:
        if (!keeper_ask(ctx, r)) request_tell(&ctx->requests);
        break;
    case REQUEST_VERB:
    case REQUEST_PULL_FREE: {
        const pen_status status = do_here(ctx, r, &why);
        request_end(r, status, status != PEN_OK ? &why : NULL);
        request_tell(&ctx->requests);
        break;
    }
    default: engine_servers.start(ctx, r); break;
    }
}

static pen_status allreduce_open(pen_ctx *ctx, pen_error *why)
{
    trainer *t = calloc(1, sizeof *t);
    if (t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for training without servers");
    talk_init(&t->talk, ctx);
    ctx->trainer = t;
    if (keeper_create(ctx, &t->talk, why) != PEN_OK) return why->status;
    return engine_servers.open(ctx, why);
}

static void allreduce_answer(pen_ctx *ctx, pen_call *call)
{
    engine_servers.answer(ctx, call);
}

static void allreduce_abort(pen_ctx *ctx)
{
    engine_servers.abort(ctx);
}

/* First the job: then every call has ended, and nobody uses the buckets. */
static void allreduce_close(pen_ctx *ctx)
{
    trainer *t = ctx->trainer;
    engine_servers.close(ctx);
    keeper_destroy(ctx);
    if (t == NULL) return;
    reducer_destroy(t->reducer);
    replica_destroy(t->replica);
    agreement_fini(&t->agreement);
    free(t->gradient);
    free(t->ranks);
    free(t->at);
    free(t->elements);
    free(t->name);
    talk_fini(&t->talk);
    free(t);
    ctx->trainer = NULL;
}

const engine_ops engine_allreduce = {.name      = "allreduce",
                                     .open      = allreduce_open,
                                     .start     = allreduce_start,
                                     .committed = allreduce_committed,
                                     .holding   = allreduce_holding,
                                     .restored  = allreduce_restored,
                                     .step_open = allreduce_step_open,
                                     .ready     = allreduce_ready,
                                     .answer    = allreduce_answer,
                                     .abort     = allreduce_abort,
                                     .close     = allreduce_close};
