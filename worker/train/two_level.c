/* two_level.c - training with servers; gradients are summed inside each node first.
 *
 * DESIGN.  The ranks of a node share its traffic: chunk c of the model (plan.h) belongs to the rank at position
 * (c mod ranks of the node).
 *   open    the ps client opens the step; the ranks of the node add their weights
 *   ready   each chunk, rounded as on the wire and times this rank's weight, goes into a bucket
 *           (reducer.h).  Buckets are summed inside the node, and each rank gets the sums of its
 *           own chunks.  It pushes them at once, in the type of the wire, with the node's weight
 *   end     the servers add one contribution per node; votes and decision are as usual.  Each rank
 *           pulls only its own chunks; then the ranks of the node gather the rest
 * So a node sends each gradient once, for any number of ranks, and the ranks share the sockets.
 *   On a device (space.h) sums and gathering are enqueued, and only own chunks cross: a sum comes down into page-locked
 * memory as soon as it is there and is pushed from it when "pen-copy" has seen it arrive; own values go up as they
 * come, tensor by tensor, while others are pulled.
 * The sum of a node is rounded once more if gradients are sent in 16 bits, except with deterministic=node.
 *   The view of the epoch, which servers have too, defines the ranks of a node.
 *   mode=ps-hier and two_level=yes always do this.  two_level=auto in mode=ps-bsp does it only if it
 * pays and changes nothing but the time: the workers of a node share memory, and the model is not
 * tiny.  With deterministic=yes, all must also be on one node and gradients not rounded on the wire,
 * so that the bits are those of two_level=no.  All ranks decide alike, without a message.
 * Threads: the program's opens, feeds and ends the step; "pen-coll" ends sums; on a device "pen-copy" hands them over;
 * "pen-io" owns the ps client.  They exchange work as tasks.  A lazy step ends in "pen-step", one at a time: the program
 * continues with the verdict while values are pulled and gathered.
 */
#include "worker/train/ps.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "proto/scalars.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/train/group_calls.h"
#include "worker/train/reducer.h"
#include "worker/train/step_thread.h"
#include "worker/tensor/device_copy/space.h"

#include <stdlib.h>

typedef struct two_level two_level;

typedef struct { /* a trained chunk */
    loop_task task;
    two_level *level;
    uint32_t chunk;
    size_t at;          /* of its values, in `all` */
    const void *pushed; /* own: its sum in host memory, in the type of the wire */
    pinned_pair *down;  /* own, on a device: from there to `pushed` */
} piece;

typedef struct { /* sent by one rank to its node */
    double weight;
    uint64_t snapshot;
    wire_scalars scalars;
} shown;

struct two_level {
    ps ps;
    /* group_calls: of the node; everyone: all ranks, only to find the rank that pushed a NaN */
    group_calls group_calls, everyone;
    group_calls landings; /* on a device: own sums on their way down; no group */
    int size, rank;       /* ranks of the node, and position in it */
    memory_space space;   /* of sums, and of values while they are gathered */
    uint32_t *bad;        /* there: the lowest chunk of an own gradient that is not finite */
    reducer *reducer;
    void *arrays;       /* one block for the arrays below */
    uint32_t n;         /* pieces */
    piece *piece;       /* [n], in the order of the chunks */
    uint32_t *first;    /* [n_tensors + 1] first piece of each tensor */
    uint64_t *elements; /* [n] for the reducer, as name and owner */
    const char **name;
    int *owner;

    size_t *counts;      /* [size] bytes of values that each rank pulls */
    size_t own_at;       /* offset of this rank's values in `all` */
    char *all, *own;     /* values: of the whole node, there; of own chunks, in host memory */
    pinned_pair *up;     /* on a device: from `own` into `all` */
    size_t gone_up;      /* bytes of it, of this step; by "pen-io" until the values are pulled */
    pen_error up_why;    /* why one did not */
    shown mine, *theirs; /* [size] */
    wire_inputs inputs;  /* of this step */
    loop_task weigh;
    double weight;        /* of the node */
    wire_scalars scalars; /* likewise */
    bool snapshot, is_arranged;

    step_thread lazy;
};

/* ---- when all have agreed -------------------------------------------------------------------- */
static pen_status check_rules(const model *m, pen_error *why)
{
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained && model_rule_of(m, m->tensor[i]) != STEP_TWO_PHASE)
            return why_set(why, PEN_UNSUPPORTED,
                           "'%s' is in group '%s' with sync=%s, but sums of nodes need sync=bsp; "
                           "use that, or mode=ps-bsp with two_level=no",
                           m->tensor[i]->name, m->group[m->tensor[i]->desc.group]->name,
                           m->group[m->tensor[i]->desc.group]->sync);
    return PEN_OK;
}

static pen_status make_groups(pen_ctx *ctx, two_level *l, pen_error *why)
{
    const uint64_t patience = context_patience(ctx, NULL);
    const int rank          = ctx->env.rank;
    if (group_split(ctx->world, ctx->env.node, rank, patience, &l->group_calls.group, why) !=
            PEN_OK ||
        group_split(ctx->world, 0, rank, patience, &l->everyone.group, why) != PEN_OK)
        return why->status;
    l->size = l->group_calls.group->size;
    l->rank = l->group_calls.group->rank;
    return PEN_OK;
}

static bool make_tables(two_level *l, const plan *p, uint32_t n_tensors)
{
    const size_t n       = (size_t)p->n_chunks + 1;
    const size_t members = (size_t)l->size;
    l->arrays            = ARRAYS_NEW(ARRAY(l->piece, n), ARRAY(l->elements, n), ARRAY(l->name, n),
                                      ARRAY(l->owner, n), ARRAY(l->first, (size_t)n_tensors + 1),
                                      ARRAY(l->counts, members), ARRAY(l->theirs, members));
    return l->arrays != NULL;
}

static void list_pieces(two_level *l, const plan *p, const model *m)
{
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        l->first[t] = l->n;
        for (uint32_t c = p->first_chunk[t]; c < p->first_chunk[t + 1]; c++) {
            if (!p->chunk[c].trained) continue;
            l->piece[l->n]    = (piece){.level = l, .chunk = c};
            l->elements[l->n] = p->chunk[c].count;
            l->name[l->n]     = m->tensor[t]->name;
            l->owner[l->n]    = (int)(c % (uint32_t)l->size);
            l->n++;
        }
    }
    l->first[m->n_tensors] = l->n;
}

static const plan_chunk *chunk_of(const piece *x)
{
    return &x->level->ps.c->plan->chunk[x->chunk];
}

static pen_tensor *tensor_of(const piece *x)
{
    return x->level->ps.c->ctx->model.tensor[chunk_of(x)->tensor];
}

static size_t value_bytes(const piece *x)
{
    return chunk_of(x)->count * plan_dtype_bytes(tensor_of(x)->desc.dtype);
}

/* Sums of 16-bit gradients are sent in that type, unless they are wide. */
static pen_dtype sum_dtype(const piece *x)
{
    const model *m = &x->level->ps.c->ctx->model;
    return plan_sums_are_wide(&m->wire) ? PEN_F32 : model_push_dtype(m, tensor_of(x));
}

/* All ranks choose alike. */
static pen_status choose_space(pen_ctx *ctx, two_level *l, pen_error *why)
{
    int32_t own = strategy_may_be_on_device(ctx), all = 0;
    if (group_calls_lowest(&l->everyone, own, &all, "where to sum", why) != PEN_OK ||
        space_open(ctx, all != 0, &l->space, why) != PEN_OK)
        return why->status;
    return PEN_OK;
}

static pen_status make_values(pen_ctx *ctx, two_level *l, size_t bytes, pen_error *why)
{
    l->all = space_alloc(&l->space, bytes, true, why);
    if (l->all == NULL) return why->status;
    l->own = l->all + l->own_at;
    if (!space_is_device(&l->space) || l->counts[l->rank] == 0) return PEN_OK;
    l->up = device_copies_pair(ctx, l->own, l->counts[l->rank], why);
    if (l->up == NULL) return why->status;
    l->own = l->up->host;
    return PEN_OK;
}

static void push_piece(void *user, uint32_t i);

static pen_status make_reducer(pen_ctx *ctx, two_level *l, pen_error *why)
{
    const reducer_setup setup = {.n            = l->n,
                                 .elements     = l->elements,
                                 .name         = l->name,
                                 .first_bytes  = ctx->settings.bucket_first_bytes,
                                 .bucket_bytes = ctx->settings.bucket_bytes,
                                 .owner        = l->owner,
                                 .size         = l->size,
                                 .rank         = l->rank,
                                 .space        = &l->space,
                                 .submit       = group_calls_submit,
                                 .await        = group_calls_await,
                                 .summed       = push_piece,
                                 .user         = &l->group_calls};
    return reducer_create(&setup, &l->reducer, why);
}

/* On a device: how own sums come down. */
static pen_status make_landings(pen_ctx *ctx, two_level *l, pen_error *why)
{
    if (!space_is_device(&l->space)) return PEN_OK;
    for (uint32_t i = 0; i < l->n; i++) {
        piece *x = &l->piece[i];
        if (l->owner[i] != l->rank) continue;
        x->down = device_copies_pair(ctx, reducer_room(l->reducer, i, l->space.stream),
                                     chunk_of(x)->count * plan_dtype_bytes(sum_dtype(x)), why);
        if (x->down == NULL) return why->status;
    }
    return group_calls_take_space(&l->group_calls, &l->space, why);
}

static pen_status set_up(pen_ctx *ctx, two_level *l, pen_error *why)
{
    const plan *p = l->ps.c->plan;
    if (check_rules(&ctx->model, why) != PEN_OK || make_groups(ctx, l, why) != PEN_OK ||
        choose_space(ctx, l, why) != PEN_OK)
        return why->status;
    if (!make_tables(l, p, ctx->model.n_tensors))
        return why_set(why, PEN_NO_MEMORY, "no memory for the shares of %u chunks", p->n_chunks);
    list_pieces(l, p, &ctx->model);
    /* Lays out values by owner, so that one call gathers them. */
    size_t bytes = 0;
    for (int r = 0; r < l->size; r++) {
        const size_t begin = bytes;
        if (r == l->rank) l->own_at = bytes;
        for (uint32_t i = 0; i < l->n; i++) {
            if (l->owner[i] != r) continue;
            l->piece[i].at = bytes;
            bytes += value_bytes(&l->piece[i]);
        }
        l->counts[r] = bytes - begin;
    }
    pen_status status = make_values(ctx, l, bytes, why);
    if (status == PEN_OK) {
        const uint32_t none = DEVICE_ALL_FINITE;
        l->bad              = space_alloc(&l->space, sizeof none, false, why);
        status =
            l->bad != NULL ? space_write(&l->space, l->bad, &none, sizeof none, why) : why->status;
    }
    if (status == PEN_OK) status = make_reducer(ctx, l, why);
    if (status == PEN_OK) status = make_landings(ctx, l, why);
    if (status == PEN_OK)
        log_info("rank %d of %d in its node pushes and pulls %zu of %zu bytes of values", l->rank,
                 l->size, l->counts[l->rank], bytes);
    return status;
}

/* ---- in the loop's thread -------------------------------------------------------------------- */
static void open_ps_client(void *user)
{
    two_level *l = user;
    io_thread *c = l->ps.c;
    l->ps.step   = ps_client_step_open(c->ps_client, l->ps.index, &l->inputs, loop_now_ms(c->loop));
    group_calls_end(&l->group_calls, PEN_OK, NULL);
}

static void weigh_ps_client(void *user)
{
    two_level *l = user;
    ps_client_step_weigh(l->ps.c->ps_client, l->weight, l->snapshot, &l->scalars);
}

static void add_piece(void *user)
{
    const piece *x     = user;
    const two_level *l = x->level;
    io_thread *c       = l->ps.c;
    if (l->ps.step != NULL)
        ps_client_add_chunk(c->ps_client, l->ps.step, PS_STEP, x->chunk, x->pushed,
                            l->own + (x->at - l->own_at));
}

/* ---- in the thread that ends calls, and on a device in "pen-copy" ------------------------------ */
static void push_piece_from(piece *x, const void *sum)
{
    x->pushed = sum;
    x->task   = (loop_task){.fn = add_piece, .user = x};
    loop_post(x->level->ps.c->loop, &x->task);
}

static void land(void *user, const pen_error *failure)
{
    piece *x     = user;
    two_level *l = x->level;
    pen_error why;
    if (group_calls_failure(&l->group_calls, &why) != PEN_OK) failure = &why;
    if (failure == NULL) push_piece_from(x, x->down->host);
    group_calls_end(&l->landings, failure != NULL ? failure->status : PEN_OK, failure);
}

static void push_piece(void *user, uint32_t i)
{
    two_level *l         = (two_level *)((group_calls *)user)->ctx->strategy;
    piece *x             = &l->piece[i];
    const pen_dtype as   = sum_dtype(x);
    const float *sum     = reducer_sum(l->reducer, i);
    float *room          = reducer_room(l->reducer, i, l->space.stream); /* free after the call */
    pen_status status    = PEN_OK;
    const void *in_type  = as == PEN_F32 ? sum : room;
    const uint64_t count = chunk_of(x)->count;
    pen_error why;
    if (as != PEN_F32) status = l->space.ops->narrow(room, sum, as, count, l->space.stream, &why);
    if (!space_is_device(&l->space)) {
        push_piece_from(x, in_type); /* rounding on the host cannot fail */
        return;
    }
    group_calls_count(&l->landings);
    x->down->device = (void *)(uintptr_t)in_type;
    if (status == PEN_OK) status = device_copies_take_sum(tensor_of(x), x->down, land, x, &why);
    if (status != PEN_OK) group_calls_end(&l->landings, status, &why);
}

static void add_up_weights(void *user, pen_status status, const pen_error *why)
{
    two_level *l = user;
    pen_error lie;
    l->weight   = 0;
    l->snapshot = false;
    l->scalars  = (wire_scalars){0};
    for (int r = 0; status == PEN_OK && r < l->size; r++) {
        status = scalars_check(&l->theirs[r].scalars, l->group_calls.group->ranks[r], &lie);
        if (status != PEN_OK) {
            why = &lie;
            break;
        }
        l->weight += l->theirs[r].weight;
        l->snapshot |= l->theirs[r].snapshot != 0;
        scalars_add(&l->scalars, &l->theirs[r].scalars);
    }
    if (status == PEN_OK) {
        l->weigh = (loop_task){.fn = weigh_ps_client, .user = l};
        loop_post(l->ps.c->loop, &l->weigh);
    }
    group_calls_end(&l->group_calls, status, why);
}

/* ---- in the program's thread ----------------------------------------------------------------- */
/* The ps client opens the step before any rank of the node can push for it, so no vote comes early. */
static void open_and_wait(two_level *l)
{
    pen_error why;
    group_calls_count(&l->group_calls);
    l->ps.open = (loop_task){.fn = open_ps_client, .user = l};
    loop_post(l->ps.c->loop, &l->ps.open);
    (void)group_calls_wait(&l->group_calls, &why); /* it cannot fail */
}

static void two_level_step_open(strategy *s, uint64_t index, const wire_inputs *inputs)
{
    two_level *l = (two_level *)s;
    pen_error why;
    l->ps.index           = index;
    l->inputs             = *inputs;
    l->inputs.is_node_sum = true;
    l->mine               = (shown){inputs->weight, inputs->snapshot, inputs->scalars};
    open_and_wait(l);
    reducer_begin(l->reducer);
    const coll_call call = {.kind  = COLL_ALL_GATHER,
                            .dtype = PEN_U8,
                            .n     = sizeof l->mine,
                            .in    = &l->mine,
                            .out   = l->theirs,
                            .scale = 1,
                            .label = "weights of a node"};
    group_calls_count(&l->group_calls);
    const pen_status status = group_calls_submit(&l->group_calls, &call, add_up_weights, l, &why);
    if (status != PEN_OK) group_calls_end(&l->group_calls, status, &why);
}

static void weigh_piece(two_level *l, const pen_tensor *t, const void *grad, uint32_t i)
{
    pen_error why;
    const plan_chunk *planned  = chunk_of(&l->piece[i]);
    const size_t from          = planned->start * plan_dtype_bytes(t->desc.grad_dtype);
    const device_stream stream = device_copies_stream(t);
    const device_weigh w       = {.to         = reducer_room(l->reducer, i, stream),
                                  .grad       = grad != NULL ? (const char *)grad + from : NULL,
                                  .grad_dtype = t->desc.grad_dtype,
                                  .as         = model_push_dtype(&l->ps.c->ctx->model, t),
                                  .weight     = l->inputs.weight,
                                  .n          = planned->count,
                                  .bad        = l->bad,
                                  .chunk      = l->piece[i].chunk};
    if (w.to != NULL && l->space.ops->weigh(&w, stream, &why) != PEN_OK)
        reducer_fail(l->reducer, &why);
    reducer_ready(l->reducer, i, stream);
}

static void two_level_ready(strategy *s, pen_tensor *t, const void *grad)
{
    two_level *l = (two_level *)s;
    t->pushed    = grad;
    for (uint32_t i = l->first[t->index]; i < l->first[t->index + 1]; i++)
        weigh_piece(l, t, grad, i);
}

/* Own chunks are decided and pulled as in ps.c.  One request ends with the verdict, one with the values. */
static pen_status begin_ps_client_end(pen_ctx *ctx, pen_req *decided, pen_req *pulled,
                                      pen_error *why)
{
    const pen_opts no_wait = {.flags = PEN_NOWAIT};
    request *verdict, *values;
    pen_status status = request_begin(ctx, REQUEST_STEP, &no_wait, decided, &verdict);
    if (status == PEN_OK) {
        status = request_begin(ctx, REQUEST_STEP, &no_wait, pulled, &values);
        if (status != PEN_OK) request_abandon(verdict);
    }
    if (status != PEN_OK) {
        pen_last_error(why);
        return status;
    }
    values->u.step.decided = verdict;
    ps_start(ctx->strategy, values);
    return PEN_OK;
}

static pen_status wait_for_ps_client(pen_req *req, pen_result *result, pen_error *why)
{
    const pen_status status = request_wait(&req->ctx->requests, req, result);
    if (status != PEN_OK) pen_last_error(why);
    return status;
}

static void two_level_values_came(strategy *s, const pen_tensor *t)
{
    two_level *l = (two_level *)s;
    size_t from = 0, bytes = 0;
    if (l->up == NULL) return;
    for (uint32_t i = l->first[t->index]; i < l->first[t->index + 1]; i++) {
        if (l->owner[i] != l->rank) continue;
        if (bytes == 0) from = l->piece[i].at - l->own_at;
        bytes = l->piece[i].at - l->own_at - from +
                value_bytes(&l->piece[i]); /* own pieces follow each other */
    }
    if (bytes == 0 || l->up_why.status != PEN_OK) return;
    if (device_copies_give_part(l->group_calls.ctx, l->up, from, bytes, &l->up_why) == PEN_OK)
        l->gone_up += bytes;
}

/* Tensors whose values did not come, as in a step that is skipped, go up here. */
static pen_status take_values(pen_ctx *ctx, two_level *l, pen_error *why)
{
    pen_status status = PEN_OK;
    if (l->up == NULL) return PEN_OK;
    if (l->up_why.status != PEN_OK) {
        *why = l->up_why;
        return why->status;
    }
    if (l->gone_up < l->counts[l->rank])
        status = device_copies_give_part(ctx, l->up, 0, l->counts[l->rank], why);
    return status == PEN_OK ? device_copies_take_values(ctx, l->up, why) : status;
}

/* All members have the values of all, in `all`. */
static pen_status gather_values(pen_ctx *ctx, two_level *l, pen_error *why)
{
    const coll_call call = {.kind            = COLL_ALL_GATHER,
                            .dtype           = PEN_U8,
                            .n               = l->counts[l->rank],
                            .in              = l->all + l->own_at,
                            .out             = l->all,
                            .counts          = l->counts,
                            .scale           = 1,
                            .stream          = l->space.stream,
                            .in_stream_order = space_is_device(&l->space),
                            .traffic         = TRAFFIC_VALUE,
                            .label           = "new values of a node"};
    if (take_values(ctx, l, why) != PEN_OK) return why->status;
    group_calls_begin(&l->group_calls, &call);
    return group_calls_wait(&l->group_calls, why);
}

static pen_status hand_out_values(pen_ctx *ctx, const two_level *l, pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < l->n && status == PEN_OK; i++) {
        const piece *x      = &l->piece[i];
        const pen_tensor *t = tensor_of(x);
        char *to            = space_values(&l->space, t);
        status              = space_copy(&l->space, TRAFFIC_VALUE,
                                         to + chunk_of(x)->start * plan_dtype_bytes(t->desc.dtype),
                                         l->all + x->at, value_bytes(x), why);
    }
    return status == PEN_OK ? device_copies_updated(ctx, why) : status;
}

/* A vote names the rank that pushed its node's sum, not the rank that added the bad value.  Then no rank's lowest bad
 * chunk comes before the sum's. */
static pen_status name_culprit(pen_ctx *ctx, two_level *l, pen_error *why)
{
    ps_client_outcome *o = &ctx->step.outcome;
    uint32_t bad         = DEVICE_ALL_FINITE;
    if (!o->has_bad) return PEN_OK;
    if (space_read(&l->space, &bad, l->bad, sizeof bad, why) != PEN_OK) return why->status;
    const uint32_t *first = &l->ps.c->plan->first_chunk[o->bad_tensor];
    const bool is_ours    = bad >= first[0] && bad < first[1];
    const int32_t none    = l->everyone.group->size;
    int32_t lowest        = none;
    pen_status status = group_calls_lowest(&l->everyone, is_ours ? l->everyone.group->rank : none,
                                           &lowest, "whose gradient is not finite", why);
    if (lowest >= 0 && lowest < none) o->bad_rank = lowest;
    bad = DEVICE_ALL_FINITE;
    return status == PEN_OK ? space_write(&l->space, l->bad, &bad, sizeof bad, why) : status;
}

/* Until all own sums are pushed. */
static pen_status wait_for_sums(two_level *l, pen_error *why)
{
    pen_error later;
    const pen_status status = group_calls_wait_for_sums(&l->group_calls, l->reducer, why);
    if (status == PEN_OK) return group_calls_wait(&l->landings, why);
    (void)group_calls_wait(&l->landings, &later);
    return status;
}

static pen_status finish_step(pen_ctx *ctx, request *r, pen_result *result, pen_error *why)
{
    two_level *l = (two_level *)ctx->strategy;
    pen_req decided, pulled;
    pen_error later;
    pen_status status = wait_for_sums(l, why);
    if (status == PEN_OK) status = begin_ps_client_end(ctx, &decided, &pulled, why);
    if (status != PEN_OK) return status;
    status = wait_for_ps_client(&decided, NULL, why);
    if (status == PEN_OK) status = name_culprit(ctx, l, why);
    if (status == PEN_OK) status = device_copies_begin_update(ctx, why);
    if (status != PEN_OK) {
        (void)wait_for_ps_client(&pulled, NULL, &later); /* ends by its deadline */
        return status;
    }
    step_thread_decided(r);
    status = wait_for_ps_client(&pulled, result, why);
    if (status == PEN_OK) status = gather_values(ctx, l, why);
    if (status == PEN_OK) status = hand_out_values(ctx, l, why);
    if (status == PEN_OK) {
        /* Values of the next step may overwrite these once they have been handed out. */
        l->gone_up = 0;
        l->up_why  = (pen_error){.status = PEN_OK};
        status     = l->up != NULL ? device_copies_expect_values(ctx, l->up, why) : PEN_OK;
    }
    return status == PEN_OK
               ? group_calls_arrange(&l->group_calls, l->reducer, l->n, &l->is_arranged, why)
               : status;
}

static void end_step(void *user, request *r)
{
    pen_error why;
    pen_result result       = {0};
    const pen_status status = finish_step(user, r, &result, &why);
    r->result.version       = result.version;
    r->result.staleness     = result.staleness;
    strategy_end(r, status, &why);
}

/* ---- the strategy ---------------------------------------------------------------------------- */
/* No verbs: they need groups without a decision, and check_rules() refuses those. */
static void two_level_start(strategy *s, request *r)
{
    two_level *l = (two_level *)s;
    if (r->u.step.decided == NULL)
        end_step(l->group_calls.ctx, r);
    else
        step_thread_run(&l->lazy, r);
}

static void two_level_close(strategy *s)
{
    two_level *l = (two_level *)s;
    pen_error why;
    step_thread_fini(&l->lazy);
    (void)space_wait(&l->space, &why);
    for (uint32_t i = 0; i < l->n; i++)
        device_copies_drop_pair(l->group_calls.ctx, l->piece[i].down);
    device_copies_drop_pair(l->group_calls.ctx, l->up);
    reducer_destroy(l->reducer);
    space_free(&l->space, l->all, true);
    space_free(&l->space, l->bad, false);
    space_close(&l->space);
    free(l->arrays);
    group_calls_fini(&l->group_calls);
    group_calls_fini(&l->everyone);
    group_calls_fini(&l->landings);
    ps_fini(&l->ps);
    free(l);
}

pen_status two_level_open(pen_ctx *ctx, pen_error *why)
{
    static const strategy_ops ops = {.start       = two_level_start,
                                     .step_open   = two_level_step_open,
                                     .ready       = two_level_ready,
                                     .values_came = two_level_values_came,
                                     .close       = two_level_close};
    two_level *l                  = calloc(1, sizeof *l);
    if (l == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for training on two levels");
    ps_init(&l->ps, &ops, ctx);
    group_calls_init(&l->group_calls, ctx);
    group_calls_init(&l->everyone, ctx);
    group_calls_init(&l->landings, ctx);
    l->space = space_host();
    step_thread_init(&l->lazy, end_step, ctx);
    return set_up(ctx, l, why);
}
