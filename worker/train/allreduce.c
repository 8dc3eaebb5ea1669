/* allreduce.c - training without servers: every worker holds the whole model, and gradients are summed over all.
 *
 * DESIGN.  A step:
 *   open    every rank sends its weight, rates and bounds to all (one small all_gather); with
 *           servers each push carries them
 *   ready   the gradient, rounded as on the wire and times this rank's weight, goes into a bucket
 *           (reducer.h), which is summed over the ranks in rank order
 *           Between hosts two buckets are summed at a time, on two groups: one call leaves gaps on the link
 *   end     all ranks have equal sums and equal inputs, so each computes the same decision and the
 *           same values (update_state.h).  No more messages, unless an element is not finite: then
 *           one more all_reduce finds the rank that added it
 *   lazily  A lazy step that needs no decision (commit=eager) ends once all agree on its inputs.  "pen-step" updates the
 *           tensors of each bucket when its sum is there, and the sums that are not under way by the end of the
 *           backward pass run in reverse (reducer_set_first), so that the next forward pass starts behind them
 * A group of one exchanges nothing: its weighted gradients are the sums (solo.h).  A worker that trains alone is such a
 * group; it also serves verbs and groups of every sync rule.
 *   device  gradients on a device are summed, decided and applied there (place.h), and nothing waits: the step is over
 *           for the host when all of it is enqueued.  Each rank adds to the last bucket which of its own chunks is not
 *           finite, so the culprit needs no further call.  The host reads the verdict at the end of the step, or, if the
 *           step is lazy, when a later step begins (settle)
 * The bits are those of ps-bsp with deterministic sums: the same functions compute sum, norm, decision
 * and update on the same operands in the same order.
 */
#include "worker/train/strategy.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/train/agreement.h"
#include "worker/train/culprit.h"
#include "worker/train/first_values.h"
#include "worker/train/group_calls.h"
#include "worker/train/reducer.h"
#include "worker/train/snapshot/snapshot_writer.h"
#include "worker/train/solo.h"
#include "worker/train/step_thread.h"
#include "worker/train/update/verdicts.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    strategy base;
    pen_ctx *ctx;
    group_calls group_calls;
    place place;
    /* Collects which gradients are not finite, behind all that write them, while place.stream sums; NULL on the host. */
    device_stream beside;
    update_state *update_state;
    solo *solo;         /* in a group of one; else NULL */
    reducer *reducer;   /* in a larger group; else NULL */
    void *arrays;       /* one block for these and `list` */
    uint32_t *trained;  /* [n_trained] numbers of the trained tensors */
    uint32_t *gradient; /* [n_tensors] number of a trained tensor's gradient in the reducer */
    uint64_t *elements; /* [n_gradients] */
    const char **name;  /* [n_gradients] */
    uint32_t n_trained, n_gradients;
    bool is_marked; /* gradient 0 has a word of each rank: its lowest chunk that is not finite */
    verdicts verdicts;

    agreement agreement;
    const wire_inputs *inputs;

    step_thread lazy;
    uint32_t *list;     /* [n_trained] tensors of the bucket that is updated */
    double weight_sum;  /* of the step that it ends */
    uint32_t own_first; /* for reducer_set_first(), by this rank's last step */
    bool is_arranged;

    /* on_worker_loss=continue */
    int n, *ranks;      /* the survivors; [world_size] */
    int64_t *at;        /* [world_size] current step of each */
    bool goes_on;       /* the loss of a worker does not end the job */
    bool has_sums;      /* of this step, from all members at its start */
    bool is_behind;     /* other ranks are in the next step already: no more calls in this one */
    bool is_to_lay_out; /* lay out the buckets again before the next step */
} trainer;

/* ---- first values ---------------------------------------------------------------------------- */
static pen_status make_group(trainer *t, pen_error *why)
{
    pen_ctx *ctx     = t->ctx;
    pen_group *world = ctx->world;
    t->n             = world->size;
    t->ranks         = calloc((size_t)(t->n > 0 ? t->n : 1), sizeof *t->ranks);
    if (t->ranks == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for a group of %d ranks", t->n);
    for (int i = 0; i < t->n; i++) t->ranks[i] = i;
    t->goes_on           = ctx->settings.on_worker_loss == LOSS_CONTINUE;
    t->group_calls.group = world;
    if (t->n == 1) return PEN_OK;
    const uint64_t deadline_ms = context_deadline(ctx);
    if (group_new(world, t->ranks, t->n, deadline_ms, &t->group_calls.group, why) != PEN_OK)
        return why->status;
    if (t->group_calls.group->carrier == GROUP_NODE || t->goes_on) return PEN_OK;
    return group_new(world, t->ranks, t->n, deadline_ms, &t->group_calls.second, why);
}

static pen_status name_culprit(void *user, uint32_t chunk, const uint32_t *words, int32_t last,
                               int32_t *rank, pen_error *why);

/* All members choose alike. */
static pen_status choose_place(trainer *t, pen_error *why)
{
    int32_t own = place_may_be_device(t->ctx), all = own;
    if (t->n > 1 && group_calls_lowest(&t->group_calls, own, &all, "where to train", why) != PEN_OK)
        return why->status;
    if (place_open(t->ctx, all != 0, &t->place, why) != PEN_OK) return why->status;
    if (place_is_device(&t->place) &&
        t->place.ops->stream_new(t->place.device, &t->beside, why) != PEN_OK)
        return why->status;
    t->ctx->is_on_device = place_is_device(&t->place);
    return PEN_OK;
}

static pen_status make_state(trainer *t, pen_error *why)
{
    update_state_setup setup = {.model = &t->ctx->model, .place = &t->place, .members = t->n};
    if (t->n > 1 && place_is_device(&t->place) &&
        group_calls_take_place(&t->group_calls, &t->place, why) != PEN_OK)
        return why->status;
    setup.stop              = t->group_calls.stop;
    const pen_status status = update_state_create(&setup, &t->update_state, why);
    return status == PEN_OK
               ? verdicts_init(&t->verdicts, t->ctx, t->update_state, name_culprit, t, why)
               : status;
}

/* Gradient 0 is laid out last. */
static void list_gradients(trainer *t)
{
    const model *m = &t->ctx->model;
    t->is_marked   = t->n > 1 && place_is_device(&t->place);
    if (t->is_marked) {
        t->elements[0] = (uint64_t)t->n;
        t->name[0]     = "values that are not finite";
        t->n_gradients = 1;
    }
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        if (!m->tensor[i]->trained) continue;
        t->trained[t->n_trained++]  = i;
        t->gradient[i]              = t->n_gradients;
        t->elements[t->n_gradients] = m->tensor[i]->elements;
        t->name[t->n_gradients++]   = m->tensor[i]->name;
    }
}

static pen_status make_lists(trainer *t, pen_error *why)
{
    const model *m = &t->ctx->model;
    const size_t n = (size_t)m->n_tensors + 1;
    t->arrays      = ARRAYS_NEW(ARRAY(t->trained, n), ARRAY(t->gradient, n), ARRAY(t->elements, n),
                                ARRAY(t->name, n), ARRAY(t->list, n));
    if (t->arrays == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %u gradients", m->n_tensors);
    list_gradients(t);
    return PEN_OK;
}

static pen_status make_sums(trainer *t, pen_error *why)
{
    const pen_ctx *ctx = t->ctx;
    if (make_lists(t, why) != PEN_OK) return why->status;
    if (t->n == 1) {
        t->solo = solo_create(&ctx->model, &t->place, update_state_own_bad(t->update_state));
        return t->solo != NULL
                   ? PEN_OK
                   : why_set(why, PEN_NO_MEMORY, "no memory for the gradients of %u tensors",
                             ctx->model.n_tensors);
    }
    const reducer_setup setup = {.n            = t->n_gradients,
                                 .elements     = t->elements,
                                 .name         = t->name,
                                 .first_bytes  = ctx->settings.bucket_first_bytes,
                                 .bucket_bytes = ctx->settings.bucket_bytes,
                                 .place        = &t->place,
                                 .stats        = &t->ctx->stats,
                                 .submit       = group_calls_sum,
                                 .user         = &t->group_calls};
    return reducer_create(&setup, &t->reducer, why);
}

static pen_status make_shown(trainer *t, pen_error *why)
{
    const pen_ctx *ctx = t->ctx;
    if (agreement_init(&t->agreement, ctx->model.n_groups, ctx->env.world_size, why) != PEN_OK)
        return why->status;
    t->at = calloc((size_t)t->n, sizeof *t->at);
    return t->at != NULL ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for %d ranks", t->n);
}

static pen_status set_up(trainer *t, pen_error *why)
{
    pen_ctx *ctx        = t->ctx;
    const bool is_alone = ctx->mode == MODE_LOCAL;
    pen_status status   = is_alone ? PEN_OK : first_values_check(&ctx->model, why);
    if (status == PEN_OK) status = make_group(t, why);
    if (status == PEN_OK && t->n > 1) status = first_values_spread(&t->group_calls, NULL, why);
    if (status == PEN_OK) status = choose_place(t, why);
    if (status == PEN_OK) status = make_state(t, why);
    if (status == PEN_OK) status = make_sums(t, why);
    if (status == PEN_OK) status = make_shown(t, why);
    return status == PEN_OK ? snapshot_writer_commit(ctx, is_alone ? NULL : &t->group_calls, why)
                            : status;
}

/* ---- the step, while gradients come ---------------------------------------------------------- */
/* Lays out the buckets as before the first step. */
static pen_status lay_out_anew(trainer *t, pen_error *why)
{
    t->is_arranged = t->is_to_lay_out = false;
    return reducer_arrange(t->reducer, NULL, why);
}

static void allreduce_step_open(strategy *s, uint64_t index, const wire_inputs *inputs)
{
    trainer *t = (trainer *)s;
    pen_error why;
    (void)index;
    t->inputs    = inputs;
    t->is_behind = t->has_sums = false;
    if (t->is_to_lay_out) (void)lay_out_anew(t, &why); /* a NULL order cannot fail */
    if (t->reducer != NULL) reducer_begin(t->reducer);
    agreement_show(&t->agreement, &t->group_calls, inputs, t->own_first);
    t->own_first = UINT32_MAX;
}

static void add_gradient(trainer *t, const pen_tensor *x)
{
    pen_error why;
    const plan *p              = update_state_plan(t->update_state);
    const uint32_t i           = t->gradient[x->index];
    const device_stream stream = device_copies_stream(x);
    const device_weigh w       = {.to             = reducer_room(t->reducer, i, stream),
                                  .grad           = x->pushed,
                                  .grad_dtype     = x->desc.grad_dtype,
                                  .as             = model_push_dtype(&t->ctx->model, x),
                                  .weight         = t->inputs->weight,
                                  .n              = x->elements,
                                  .bad            = update_state_own_bad(t->update_state),
                                  .chunk          = p->first_chunk[x->index],
                                  .chunk_elements = p->chunk_elements};
    if (w.to != NULL && t->place.ops->weigh(&w, stream, &why) != PEN_OK)
        reducer_fail(t->reducer, &why);
    reducer_ready(t->reducer, i, stream);
}

/* The update reads the gradient itself, on the place's stream. */
static void follow(trainer *t, const pen_tensor *x)
{
    pen_error why;
    if (place_is_device(&t->place) &&
        device_copies_precede(t->ctx, device_copies_stream(x), &why) != PEN_OK)
        context_remember(&t->ctx->step.remembered, &why);
}

static void allreduce_ready(strategy *s, pen_tensor *x, const void *grad)
{
    trainer *t = (trainer *)s;
    x->pushed  = grad;
    if (t->reducer == NULL) { /* nothing is sent */
        follow(t, x);
        return;
    }
    stat_set *stats = &t->ctx->stats;
    const plan *p   = update_state_plan(t->update_state);
    stat_add(stats, STAT_PUSH_OPS, p->first_chunk[x->index + 1] - p->first_chunk[x->index]);
    stat_add(stats, STAT_PUSH_BYTES, x->elements * sizeof(float)); /* the type of the sums */
    add_gradient(t, x);
}

/* The bits of a chunk's number are those of a float so small that adding zeros does not change it; no chunk is a NaN. */
static void mark_own_bad(trainer *t)
{
    pen_error why;
    place beside      = t->place;
    beside.stream     = t->beside;
    float *room       = reducer_room(t->reducer, 0, t->beside);
    pen_status status = PEN_OK;
    if (place_is_device(&beside)) status = reducer_join(t->reducer, t->beside, &why);
    if (status == PEN_OK && room != NULL)
        status = place_copy(&beside, TRAFFIC_OTHER, room + t->group_calls.group->rank,
                            update_state_own_bad(t->update_state), sizeof *room, &why);
    if (status != PEN_OK) reducer_fail(t->reducer, &why);
    reducer_ready(t->reducer, 0, t->beside);
}

/* ---- the step, at its end -------------------------------------------------------------------- */
static pen_status agree(trainer *t, double *weight_sum, pen_error *why)
{
    if (agreement_check(&t->agreement, weight_sum, why) == PEN_OK) {
        if (t->reducer != NULL) reducer_set_first(t->reducer, agreement_first(&t->agreement));
        return PEN_OK;
    }
    context_fail(t->ctx, why); /* all other ranks fail alike */
    return why->status;
}

/* *at: position of the culprit.  The step already counts on all ranks; the next one handles a loss from here on. */
static pen_status find_culprit(trainer *t, const plan_chunk *c, int32_t *at, pen_error *why)
{
    if (t->is_behind || t->reducer == NULL) return PEN_OK;
    const pen_tensor *x = t->ctx->model.tensor[c->tensor];
    const pen_status status =
        culprit_find(&t->group_calls, x, c->start, c->count, t->inputs->weight, at, why);
    return status == PEN_PEER_LOST && t->goes_on ? PEN_OK : status;
}

static pen_status name_culprit(void *user, uint32_t chunk, const uint32_t *words, int32_t last,
                               int32_t *rank, pen_error *why)
{
    trainer *t = user;
    int32_t at = last;
    if (t->is_marked)
        verdicts_find(words, t->n, chunk, &at);
    else if (find_culprit(t, &update_state_plan(t->update_state)->chunk[chunk], &at, why) != PEN_OK)
        return why->status;
    *rank = t->is_behind ? t->agreement.ranks[at] : t->ranks[at];
    return PEN_OK;
}

static pen_status allreduce_settle(strategy *s, uint32_t most, pen_error *why)
{
    trainer *t          = (trainer *)s;
    const bool is_alone = t->solo != NULL; /* a snapshot may be taken by another thread */
    if (is_alone) pthread_mutex_lock(&s->lock);
    const pen_status status = verdicts_settle(&t->verdicts, most, why);
    if (is_alone) pthread_mutex_unlock(&s->lock);
    return status;
}

static pen_status decide(trainer *t, double weight_sum, pen_error *why)
{
    const uint32_t *words =
        t->is_marked ? (const uint32_t *)(const void *)reducer_sum(t->reducer, 0) : NULL;
    const pen_status status = update_state_measure(t->update_state, why);
    return status == PEN_OK ? verdicts_add(&t->verdicts, t->inputs, weight_sum, words,
                                           agreement_last_with_weight(&t->agreement), why)
                            : status;
}

/* From the second step on all ranks use the order of rank 0's first. */
static pen_status arrange(trainer *t, pen_error *why)
{
    if (t->reducer == NULL || t->is_arranged || t->is_to_lay_out) return PEN_OK;
    const pen_status status =
        group_calls_arrange(&t->group_calls, t->reducer, t->n_gradients, &t->is_arranged, why);
    if (status == PEN_PEER_LOST && t->goes_on) return PEN_OK; /* the next step handles it */
    if (status == PEN_OK)
        log_info("%u gradients travel in %u buckets, in the order of rank 0's first step",
                 t->n_trained, reducer_buckets(t->reducer));
    return status;
}

/* ---- the loss of a worker -------------------------------------------------------------------- */
/* A rank ends the step only when all ranks have the sums.  After that, the survivors of a loss can still end the step
 * alike. */
static pen_status complete_sums(trainer *t, pen_error *why)
{
    const coll_call call = {
        .kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = "sums of a step are complete"};
    if (group_calls_wait_for_sums(&t->group_calls, t->reducer, why) != PEN_OK ||
        agreement_complete(&t->agreement, &t->group_calls, why) != PEN_OK)
        return why->status;
    t->has_sums = true;
    if (!t->goes_on) return PEN_OK;
    group_calls_begin(&t->group_calls, &call);
    return group_calls_wait(&t->group_calls, why);
}

static pen_status leave_the_lost(trainer *t, pen_error *why)
{
    pen_group *left;
    if (engine_shrink(t->group_calls.group, context_deadline(t->ctx), &left, why) != PEN_OK)
        return why->status;
    group_destroy(t->group_calls.group);
    t->group_calls.group = left;
    t->n                 = left->size;
    memcpy(t->ranks, left->ranks, (size_t)t->n * sizeof *t->ranks);
    return PEN_OK;
}

/* The program's world stays a separate group. */
static pen_status renew_world(const trainer *t, pen_error *why)
{
    pen_ctx *ctx = t->ctx;
    pen_group *world;
    if (group_new(t->group_calls.group, t->ranks, t->n, context_deadline(ctx), &world, why) !=
        PEN_OK)
        return why->status;
    world->is_world = true;
    ctx->world      = world;
    ctx->step.flags |= PEN_STEP_MEMBERS;
    return PEN_OK;
}

static pen_status compare_steps(trainer *t, pen_error *why)
{
    int64_t own = t->ctx->step.next_index;
    group_calls_gather(&t->group_calls, PEN_I64, 1, NULL, &own, t->at, "steps of the survivors");
    if (group_calls_wait(&t->group_calls, why) != PEN_OK) return why->status;
    t->is_behind = false;
    for (int i = 0; i < t->n; i++) t->is_behind |= t->at[i] > own;
    if (t->is_behind && !t->has_sums)
        return why_set(why, PEN_INTERNAL,
                       "other ranks ended step %lld, but its sums did not arrive here",
                       (long long)own);
    return PEN_OK;
}

/* Another worker may be lost meanwhile. */
static pen_status regroup(trainer *t, pen_error *why)
{
    pen_status status;
    do {
        if (leave_the_lost(t, why) != PEN_OK) return why->status;
        status = compare_steps(t, why);
        if (status == PEN_OK) status = renew_world(t, why);
    } while (status == PEN_PEER_LOST);
    if (status == PEN_OK)
        log_notice("%d worker%s left; step %lld %s", t->n, t->n == 1 ? " is" : "s are",
                   (long long)t->ctx->step.next_index,
                   t->is_behind ? "stays as it was" : "is repeated");
    return status;
}

static pen_status sum_again(trainer *t, pen_error *why)
{
    const model *m = &t->ctx->model;
    if (lay_out_anew(t, why) != PEN_OK) return why->status;
    t->has_sums = false;
    reducer_begin(t->reducer);
    agreement_show_again(&t->agreement, &t->group_calls);
    for (uint32_t i = m->n_tensors; i-- > 0;)
        if (m->tensor[i]->trained) add_gradient(t, m->tensor[i]);
    return complete_sums(t, why);
}

/* The gradients are intact, so the survivors sum theirs again, with their own weights. */
static pen_status sum_up(trainer *t, pen_error *why)
{
    if (t->is_marked) mark_own_bad(t);
    pen_status status = t->reducer != NULL ? complete_sums(t, why) : PEN_OK;
    while (status == PEN_PEER_LOST && t->goes_on) {
        if (regroup(t, why) != PEN_OK) return why->status;
        t->is_to_lay_out = true;
        if (t->is_behind) return PEN_OK;
        status = sum_again(t, why);
    }
    return status;
}

/* ---- snapshots ------------------------------------------------------------------------------- */
/* The values have all steps that have ended, so their counts must, too. */
static pen_status allreduce_state_ranges(strategy *s, state_ranges *h, pen_error *why)
{
    trainer *t = (trainer *)s;
    if (verdicts_settle(&t->verdicts, 0, why) != PEN_OK) return why->status;
    h->copies = t->n;
    h->copy   = t->group_calls.group->rank;
    return update_state_state_ranges(t->update_state, h, why);
}

static pen_status allreduce_restored(strategy *s, int64_t applied, pen_error *why)
{
    return update_state_restored(((trainer *)s)->update_state, applied, why);
}

static pen_status keep(trainer *t, pen_error *why)
{
    pen_ctx *ctx            = t->ctx;
    const bool is_wanted    = !t->is_behind && agreement_wants_snapshot(&t->agreement);
    const pen_status status = snapshot_writer_step(ctx, ctx->step.next_index + 1, is_wanted, why);
    return status == PEN_PEER_LOST && t->goes_on ? PEN_OK : status; /* the next step handles it */
}

/* ---- the whole step -------------------------------------------------------------------------- */
/* Sums have weighted gradients; a push that is applied alone is scaled when it is applied. */
static double weight_of(const trainer *t, const pen_tensor *x)
{
    return model_rule_of(&t->ctx->model, x) == STEP_ASYNC ? 1 : t->inputs->weight;
}

static pen_status give_sum(trainer *t, const pen_tensor *x, pen_error *why)
{
    const float *sum = t->reducer != NULL ? reducer_sum(t->reducer, t->gradient[x->index])
                                          : solo_weigh(t->solo, x, x->pushed, weight_of(t, x), why);
    if (sum == NULL) return why->status;
    update_state_give(t->update_state, x, sum);
    return PEN_OK;
}

static void count_pulls(const trainer *t)
{
    const model *m  = &t->ctx->model;
    stat_set *stats = &t->ctx->stats;
    const plan *p   = update_state_plan(t->update_state);
    for (uint32_t i = 0; t->reducer != NULL && i < t->n_trained; i++) {
        const pen_tensor *x = m->tensor[t->trained[i]];
        stat_add(stats, STAT_PULL_OPS, p->first_chunk[x->index + 1] - p->first_chunk[x->index]);
        stat_add(stats, STAT_PULL_BYTES, x->bytes);
    }
}

/* Everything of the step that works on gradients and values; on a device it is enqueued. */
static pen_status update(trainer *t, double weight_sum, pen_error *why)
{
    const model *m = &t->ctx->model;
    for (uint32_t i = 0; i < t->n_trained; i++)
        if (give_sum(t, m->tensor[t->trained[i]], why) != PEN_OK) return why->status;
    if (!model_is_decided(m))
        update_state_count_step(t->update_state);
    else if (decide(t, weight_sum, why) != PEN_OK)
        return why->status;
    pen_status status = device_copies_begin_update(t->ctx, why);
    if (status == PEN_OK)
        status = update_state_carry_out(t->update_state, t->trained, t->n_trained, t->inputs,
                                        weight_sum, verdicts_rates(&t->verdicts, t->inputs), why);
    if (status == PEN_OK) status = device_copies_updated(t->ctx, why);
    count_pulls(t);
    return status;
}

static pen_status finish_step(trainer *t, bool is_lazy, pen_error *why)
{
    context_step *step = &t->ctx->step;
    double weight_sum;
    if (sum_up(t, why) != PEN_OK || agree(t, &weight_sum, why) != PEN_OK) return why->status;
    step->outcome = (ps_client_outcome){.outcome = PEN_APPLIED, .clip = 1, .bad_rank = -1};
    agreement_scalars(&t->agreement, &step->outcome.scalars);
    if (update(t, weight_sum, why) != PEN_OK) return why->status;
    if (!model_is_decided(&t->ctx->model))
        step->outcome.applied = update_state_applied(t->update_state);
    else if (verdicts_end_step(&t->verdicts, is_lazy, why) != PEN_OK)
        return why->status;
    return arrange(t, why) == PEN_OK ? keep(t, why) : why->status;
}

/* ---- a lazy step, bucket by bucket ------------------------------------------------------------ */
static bool may_come_by_bucket(const trainer *t, const request *r)
{
    return r->kind == REQUEST_STEP && r->u.step.decided != NULL && t->is_arranged && !t->goes_on &&
           !place_is_device(&t->place) && t->ctx->device_copies == NULL &&
           !model_is_decided(&t->ctx->model);
}

static pen_status update_bucket(trainer *t, uint32_t bucket, pen_error *why)
{
    const model *m = &t->ctx->model;
    const uint32_t *gradient;
    uint32_t n;
    if (reducer_wait_bucket(t->reducer, bucket, &gradient, &n, why) != PEN_OK) return why->status;
    for (uint32_t i = 0; i < n; i++) {
        t->list[i] = t->trained[gradient[i]];
        if (give_sum(t, m->tensor[t->list[i]], why) != PEN_OK) return why->status;
    }
    pen_status status = update_state_carry_out(t->update_state, t->list, n, t->inputs,
                                               t->weight_sum, t->inputs->rate, why);
    for (uint32_t i = 0; i < n && status == PEN_OK; i++)
        request_values_come(&t->ctx->requests, m->tensor[t->list[i]]);
    return status;
}

/* In "pen-step". */
static void update_buckets(void *user, request *r)
{
    trainer *t = user;
    pen_error why, later;
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < reducer_buckets(t->reducer) && status == PEN_OK; i++)
        status = update_bucket(t, i, &why);
    (void)reducer_wait(t->reducer, &later); /* until no call uses the buckets */
    count_pulls(t);
    r->result.version = (uint64_t)update_state_applied(t->update_state);
    strategy_end(r, status, &why);
}

/* Once all have agreed on its inputs, nothing can change the step.  A step with a snapshot ends whole: AGAIN. */
static pen_status begin_buckets(trainer *t, request *r, pen_error *why)
{
    context_step *step = &t->ctx->step;
    const model *m     = &t->ctx->model;
    /* With those under way. */
    t->own_first      = reducer_summed(t->reducer) + (t->group_calls.second != NULL ? 2 : 1);
    pen_status status = group_calls_wait(&t->group_calls, why);
    if (status == PEN_OK && agreement_wants_snapshot(&t->agreement)) return PEN_AGAIN;
    if (status == PEN_OK) status = agree(t, &t->weight_sum, why);
    if (status != PEN_OK) {
        pen_error later;
        (void)reducer_wait(t->reducer, &later); /* until no call uses the buckets */
        return status;
    }
    update_state_count_step(t->update_state);
    step->outcome = (ps_client_outcome){.outcome  = PEN_APPLIED,
                                        .clip     = 1,
                                        .bad_rank = -1,
                                        .applied  = update_state_applied(t->update_state)};
    agreement_scalars(&t->agreement, &step->outcome.scalars);
    for (uint32_t i = 0; i < t->n_trained; i++)
        request_values_begin(&t->ctx->requests, m->tensor[t->trained[i]]);
    step_thread_decided(r);
    step_thread_run(&t->lazy, r);
    return PEN_OK;
}

/* ---- explicit verbs -------------------------------------------------------------------------- */
static pen_status push(trainer *t, const request *r, pen_error *why)
{
    const pen_tensor *x = r->u.verb.tensor;
    if (t->solo == NULL) return strategy_refuse_push(x, why);
    const float *sum = solo_weigh(t->solo, x, r->u.verb.from, 1, why);
    if (sum == NULL) return why->status;
    update_state_give(t->update_state, x, sum);
    return update_state_update(t->update_state, x, t->ctx->model.group[x->desc.group]->hyper.lr, 1,
                               why);
}

static pen_status do_verb(trainer *t, request *r, pen_error *why)
{
    const pen_tensor *x = r->u.verb.tensor;
    if (r->u.verb.verb != PS_PULL && push(t, r, why) != PEN_OK) return why->status;
    if (r->u.verb.verb != PS_PUSH) {
        if (update_state_values(t->update_state, x, r->u.verb.to, why) != PEN_OK)
            return why->status;
        r->result.count = x->bytes;
    }
    r->result.version = update_state_version(t->update_state, x);
    return PEN_OK;
}

/* ---- the strategy ---------------------------------------------------------------------------- */
static pen_status run(trainer *t, request *r, pen_error *why)
{
    if (r->kind == REQUEST_VERB) return do_verb(t, r, why);
    if (r->kind != REQUEST_STEP) return PEN_OK; /* PULL_FREE: local values are the newest */
    const pen_status status = finish_step(t, r->u.step.decided != NULL, why);
    r->result.version       = (uint64_t)update_state_applied(t->update_state);
    return status;
}

/* In a larger group a step takes no lock: it waits for calls whose callbacks may begin verbs. */
static void allreduce_start(strategy *s, request *r)
{
    pen_error why;
    trainer *t          = (trainer *)s;
    const bool is_alone = t->solo != NULL;
    pen_status status   = PEN_AGAIN;
    if (is_alone) pthread_mutex_lock(&s->lock);
    if (t->reducer != NULL && may_come_by_bucket(t, r)) {
        status = begin_buckets(t, r, &why);
        if (status == PEN_OK) return;
    }
    if (status == PEN_AGAIN) status = run(t, r, &why);
    if (is_alone) pthread_mutex_unlock(&s->lock);
    strategy_end(r, status, &why);
}

static void allreduce_close(strategy *s)
{
    trainer *t = (trainer *)s;
    pen_error why;
    step_thread_fini(&t->lazy);
    (void)place_wait(&t->place, &why);
    reducer_destroy(t->reducer);
    solo_destroy(t->solo);
    verdicts_fini(&t->verdicts);
    update_state_destroy(t->update_state);
    agreement_fini(&t->agreement);
    free(t->arrays);
    free(t->ranks);
    free(t->at);
    group_calls_fini(&t->group_calls);
    if (t->beside != NULL) t->place.ops->stream_free(t->beside);
    place_close(&t->place);
    free(t);
}

pen_status allreduce_open(pen_ctx *ctx, pen_error *why)
{
    static const strategy_ops ops = {.settle       = allreduce_settle,
                                     .state_ranges = allreduce_state_ranges,
                                     .restored     = allreduce_restored,
                                     .start        = allreduce_start,
                                     .tells_values = true,
                                     .step_open    = allreduce_step_open,
                                     .ready        = allreduce_ready,
                                     .close        = allreduce_close};
    trainer *t                    = calloc(1, sizeof *t);
    if (t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for training without servers");
    strategy_init(&t->base, &ops, ctx);
    t->ctx   = ctx;
    t->place = place_host();
    group_calls_init(&t->group_calls, ctx);
    step_thread_init(&t->lazy, update_buckets, t);
    t->own_first = UINT32_MAX;
    return set_up(t, why);
}
