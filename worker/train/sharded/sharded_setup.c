/* sharded_setup.c - which ranks share a copy of the state, which part each owns, and its memory. */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/param_memory.h"

#include <stdlib.h>
#include <string.h>

/* Buckets in use at a time: one is filled while two are summed. */
enum { BUFFERS = 3 };

/* ---- groups ---------------------------------------------------------------------------------- */
static pen_status make_group(pen_ctx *ctx, const pen_group *like, pen_group **out, pen_error *why)
{
    return group_new(ctx->world, like->ranks, like->size, context_patience(ctx, NULL), out, why);
}

/* Each part of the state has one owner per node, so all nodes need the same number of workers. */
static pen_status check_nodes(sharded *s, const pen_group *node, pen_error *why)
{
    int32_t own = node->size, *all = calloc((size_t)s->n, sizeof *all);
    if (all == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %d ranks", s->n);
    group_calls_gather(&s->everyone, PEN_I32, 1, NULL, &own, all, "workers of each node");
    pen_status status = group_calls_wait(&s->everyone, why);
    for (int i = 1; i < s->n && status == PEN_OK; i++)
        if (all[i] != all[0])
            status = why_set(why, PEN_UNSUPPORTED,
                             "mode=%s needs the same number of workers on all nodes: the node of "
                             "rank %d has %d, that of rank %d has %d; use mode=zero%d",
                             context_mode_name(s->ctx), s->ranks[0], all[0], s->ranks[i], all[i],
                             s->stage);
    free(all);
    return status;
}

static pen_status make_groups_of_all(sharded *s, pen_group *world, pen_error *why)
{
    group_calls *g = &s->everyone;
    s->at          = calloc((size_t)s->n, sizeof *s->at);
    if (s->at == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %d ranks", s->n);
    g->group = world;
    s->size  = s->n;
    s->rank  = world->rank;
    if (s->n == 1) return PEN_OK;
    if (make_group(s->ctx, world, &g->group, why) != PEN_OK) return why->status;
    return g->group->carrier == GROUP_NODE || s->goes_on
               ? PEN_OK
               : make_group(s->ctx, world, &g->second, why);
}

static pen_status make_groups(sharded *s, pen_error *why)
{
    pen_ctx *ctx     = s->ctx;
    pen_group *world = ctx->world;
    s->n             = world->size;
    s->ranks         = calloc((size_t)(s->n > 0 ? s->n : 1), sizeof *s->ranks);
    if (s->ranks == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %d ranks", s->n);
    memcpy(s->ranks, world->ranks, (size_t)s->n * sizeof *s->ranks);
    if (s->stage == 0) return make_groups_of_all(s, world, why);
    pen_group *copy = context_group(ctx, s->is_hybrid ? PEN_GROUP_NODE : PEN_GROUP_WORLD, why);
    if (copy == NULL) return why->status;
    pen_status status = make_group(ctx, world, &s->everyone.group, why);
    if (status == PEN_OK && s->is_hybrid) status = check_nodes(s, copy, why);
    if (status == PEN_OK) status = make_group(ctx, copy, &s->sums.group, why);
    if (status == PEN_OK) status = make_group(ctx, copy, &s->values.group, why);
    /* Members with the same position on each node own the same ranges; nodes in the order of their lowest ranks. */
    if (status == PEN_OK && s->is_hybrid)
        status = group_split(world, copy->rank, copy->ranks[0], context_patience(ctx, NULL),
                             &s->across.group, why);
    if (status != PEN_OK) return status;
    s->size = s->sums.group->size;
    s->rank = s->sums.group->rank;
    return PEN_OK;
}

/* ---- ownership ------------------------------------------------------------------------------- */
static pen_status make_arrays(sharded *s, pen_error *why)
{
    const model *m        = &s->ctx->model;
    const size_t n        = m->n_tensors;
    const size_t n_ranges = s->stage > 0 ? n * (size_t)s->size : 0;
    s->arrays = ARRAYS_NEW(ARRAY(s->range, n_ranges), ARRAY(s->own, n), ARRAY(s->sharded_out, n),
                           ARRAY(s->first, n + 1), ARRAY(s->sum, n), ARRAY(s->dest, n),
                           ARRAY(s->trained, n), ARRAY(s->list, n));
    if (s->arrays == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the parts of %zu tensors", n);
    for (size_t i = 0; i < n; i++) s->sharded_out[i] = s->stage > 0 && !m->tensor[i]->stays;
    return PEN_OK;
}

static pen_status make_ranges(sharded *s, pen_error *why)
{
    const model *m = &s->ctx->model;
    const size_t n = m->n_tensors;
    uint64_t *elements;
    bool *trained;
    void *wanted = ARRAYS_NEW(ARRAY(elements, n), ARRAY(trained, n));
    if (wanted == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the parts of %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        elements[i] = m->tensor[i]->elements;
        trained[i]  = m->tensor[i]->trained;
    }
    const pen_status status =
        sharded_ranges(m->n_tensors, elements, trained, s->size, s->range, why);
    for (size_t i = 0; i < n; i++) s->own[i] = s->range[i * (size_t)s->size + (size_t)s->rank];
    free(wanted);
    return status;
}

/* ---- pieces of gradients --------------------------------------------------------------------- */
/* A bucket has a part of each owner, so that all owners sum. */
static uint64_t slice_elements(const sharded *s)
{
    const worker_settings *o = &s->ctx->settings;
    const uint64_t bucket =
        o->reduce_bucket > 0 ? o->reduce_bucket : o->bucket_bytes / sizeof(float);
    const uint64_t slice = bucket / (uint64_t)s->size / PLAN_BLOCK * PLAN_BLOCK;
    return slice > 0 ? slice : PLAN_BLOCK;
}

/* Returns the number of pieces; to NULL: only counts. */
static uint64_t cut_tensor(const sharded *s, const pen_tensor *x, sharded_piece *to)
{
    const uint64_t slice       = slice_elements(s);
    const sharded_range *range = &s->range[(size_t)x->index * (size_t)s->size];
    uint64_t n                 = 0;
    bool is_more               = x->trained;
    if (s->stage == 0) {
        if (to != NULL && x->trained)
            *to = (sharded_piece){.tensor = x->index, .count = x->elements};
        return x->trained;
    }
    for (uint64_t at = 0; is_more; at += slice) {
        is_more = false;
        for (int m = 0; m < s->size; m++) {
            if (range[m].count <= at) continue;
            const uint64_t left = range[m].count - at;
            if (to != NULL)
                to[n] = (sharded_piece){.tensor = x->index,
                                        .owner  = m,
                                        .start  = range[m].start + at,
                                        .count  = left < slice ? left : slice};
            n++;
            is_more |= left > slice;
        }
    }
    return n;
}

static pen_status make_pieces(sharded *s, pen_error *why)
{
    const model *m = &s->ctx->model;
    s->is_marked   = s->stage == 0 && s->n > 1 && space_is_device(&s->space);
    uint64_t n     = s->is_marked;
    for (uint32_t i = 0; i < m->n_tensors; i++) n += cut_tensor(s, m->tensor[i], NULL);
    if (n > UINT32_MAX / 2)
        return why_set(why, PEN_BAD_SETTING,
                       "reduce_bucket=%llu cuts the model into too many pieces; make it larger",
                       (unsigned long long)s->ctx->settings.reduce_bucket);
    s->pieces = ARRAYS_NEW(ARRAY(s->piece, n + 1), ARRAY(s->piece_name, n + 1),
                           ARRAY(s->piece_owner, n + 1));
    if (s->pieces == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %llu pieces of gradients",
                       (unsigned long long)n);
    if (s->is_marked) s->piece[s->n_pieces++].count = (uint64_t)s->n; /* laid out last */
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        s->first[i] = s->n_pieces;
        s->n_pieces += (uint32_t)cut_tensor(s, m->tensor[i], s->piece + s->n_pieces);
        if (m->tensor[i]->trained) s->trained[s->n_trained++] = i;
    }
    s->first[m->n_tensors] = s->n_pieces;
    return PEN_OK;
}

static pen_status make_reducer(sharded *s, pen_error *why)
{
    const worker_settings *o = &s->ctx->settings;
    if (s->stage == 0 && s->n == 1) {
        s->solo = solo_create(&s->ctx->model, &s->space, update_state_own_bad(s->update_state));
        return s->solo != NULL ? PEN_OK
                               : why_set(why, PEN_NO_MEMORY,
                                         "no memory for the gradients of %u tensors", s->n_trained);
    }
    uint64_t *elements = calloc((size_t)s->n_pieces + 1, sizeof *elements);
    if (elements == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %u pieces of gradients", s->n_pieces);
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        elements[i]       = s->piece[i].count;
        s->piece_owner[i] = s->piece[i].owner;
        s->piece_name[i]  = s->ctx->model.tensor[s->piece[i].tensor]->name;
    }
    if (s->is_marked) s->piece_name[0] = "values that are not finite";
    const uint64_t bound = s->stage > 0 ? o->reduce_bucket * sizeof(float) : 0;
    reducer_setup setup  = {.n            = s->n_pieces,
                            .elements     = elements,
                            .name         = s->piece_name,
                            .first_bytes  = bound > 0 ? bound : o->bucket_first_bytes,
                            .bucket_bytes = bound > 0 ? bound : o->bucket_bytes,
                            .owner        = s->piece_owner,
                            .size         = s->size,
                            .rank         = s->rank,
                            .space        = &s->space,
                            .submit       = group_calls_submit,
                            .await        = group_calls_await,
                            .n_buffers    = BUFFERS,
                            .stats        = &s->ctx->stats,
                            .summed       = sharded_take_sum,
                            .user         = &s->sums};
    if (s->stage == 0) { /* all members get all sums, and keep them until the next step */
        setup.owner     = NULL;
        setup.n_buffers = 0;
        setup.summed    = NULL;
        setup.submit    = group_calls_sum;
        setup.user      = &s->everyone;
    }
    const pen_status status = reducer_create(&setup, &s->reducer, why);
    free(elements);
    return status;
}

/* ---- first values ---------------------------------------------------------------------------- */
/* A group that does not average needs servers. */
static pen_status check_groups(const model *m, pen_error *why)
{
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->trained && model_rule_of(m, m->tensor[i]) == STEP_ASYNC)
            return why_set(why, PEN_UNSUPPORTED,
                           "'%s' is in group '%s' with sync=%s, which needs servers; use sync=bsp, "
                           "or a mode with servers",
                           m->tensor[i]->name, m->group[m->tensor[i]->desc.group]->name,
                           m->group[m->tensor[i]->desc.group]->sync);
    return PEN_OK;
}

/* All ranks get rank 0's values, except of tensors with init values and of those that are sharded out. */
static pen_status spread(sharded *s, pen_error *why)
{
    const model *m = &s->ctx->model;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *x = m->tensor[i];
        if (s->sharded_out[i] || x->has_init) continue;
        if (group_calls_broadcast(&s->everyone, x->param, x->bytes, x->name, why) != PEN_OK)
            return why->status;
    }
    return PEN_OK;
}

/* For a tensor that is sharded out: the owner computes its init values, or gets rank 0's by a broadcast. */
static pen_status load_sharded_out(sharded *s, pen_tensor *x, pen_error *why)
{
    const sharded_range *own = &s->own[x->index];
    const size_t width       = plan_dtype_bytes(x->desc.dtype);
    const size_t bytes       = x->has_init ? own->count * width : x->bytes;
    char *values             = sharded_hold(s, bytes, STAT_PARAM_BYTES, why);
    if (values == NULL) return why->status;
    pen_status status = PEN_OK;
    if (x->has_init) {
        (void)param_memory_init_as_is(x, own->start, own->count, values);
        status = update_state_load(s->update_state, x, values, why);
    } else {
        if (s->ranks[0] == s->ctx->env.rank && x->param != NULL) memcpy(values, x->param, x->bytes);
        status = group_calls_broadcast(&s->everyone, values, x->bytes, x->name, why);
        if (status == PEN_OK)
            status = update_state_load(s->update_state, x, values + own->start * width, why);
    }
    sharded_let_go(s, values, bytes, STAT_PARAM_BYTES);
    param_memory_drop(x);
    return status;
}

static pen_status load_all_sharded_out(sharded *s, pen_error *why)
{
    const model *m    = &s->ctx->model;
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < m->n_tensors && status == PEN_OK; i++)
        if (s->sharded_out[i]) status = load_sharded_out(s, m->tensor[i], why);
    return status;
}

/* Values that come and go in host memory need the host. */
static bool may_be_on_device(const sharded *s)
{
    bool may = strategy_may_be_on_device(s->ctx);
    for (uint32_t i = 0; i < s->ctx->model.n_tensors && may; i++)
        may = !s->sharded_out[i] || device_copies_holds(s->ctx);
    return may;
}

/* All members choose alike. */
static pen_status choose_space(sharded *s, pen_error *why)
{
    int32_t own = may_be_on_device(s), all = own;
    if ((s->n > 1 &&
         group_calls_lowest(&s->everyone, own, &all, "where to train", why) != PEN_OK) ||
        space_open(s->ctx, all != 0, &s->space, why) != PEN_OK)
        return why->status;
    return s->stage == 0 ? space_beside(&s->space, &s->beside, why) : PEN_OK;
}

static pen_status make_state(sharded *s, pen_error *why)
{
    update_state_setup setup = {.model       = &s->ctx->model,
                                .space       = &s->space,
                                .own         = s->stage > 0 ? s->own : NULL,
                                .sharded_out = s->sharded_out,
                                .members     = s->n,
                                .add_up      = s->stage > 0 ? sharded_add_norms : NULL,
                                .user        = s};
    if (space_is_device(&s->space) && (s->stage > 0 || s->n > 1)) {
        group_calls *g = s->stage > 0 ? &s->sums : &s->everyone;
        if (group_calls_take_space(g, &s->space, why) != PEN_OK) return why->status;
        setup.stop = g->stop;
    }
    if (space_is_device(&s->space) && s->stage > 0) {
        s->bad_of = space_alloc(&s->space, (size_t)s->n * sizeof *s->bad_of, true, why);
        if (s->bad_of == NULL) return why->status;
    }
    const pen_status status = update_state_create(&setup, &s->update_state, why);
    return status == PEN_OK
               ? verdicts_init(&s->verdicts, s->ctx, s->update_state, sharded_find_culprit, s, why)
               : status;
}

/* ---- create and destroy ---------------------------------------------------------------------- */
pen_status sharded_set_up(sharded *s, pen_error *why)
{
    const model *m    = &s->ctx->model;
    pen_status status = s->ctx->mode == MODE_LOCAL ? PEN_OK : check_groups(m, why);
    if (status == PEN_OK) status = make_groups(s, why);
    if (status == PEN_OK) status = make_arrays(s, why);
    if (status == PEN_OK && s->stage > 0) status = make_ranges(s, why);
    if (status == PEN_OK) status = choose_space(s, why);
    if (status == PEN_OK && (s->stage > 0 || s->n > 1)) status = spread(s, why);
    if (status == PEN_OK) status = make_state(s, why);
    if (status == PEN_OK) status = load_all_sharded_out(s, why);
    if (status == PEN_OK) status = make_pieces(s, why);
    if (status == PEN_OK) status = make_reducer(s, why);
    if (status == PEN_OK) status = sharded_make_runs(s, why);
    if (status == PEN_OK) status = sharded_units_create(s, why);
    if (status == PEN_OK) status = agreement_init(&s->agreement, m->n_groups, s->n, why);
    if (status == PEN_OK && s->stage > 0)
        log_info("the state of %u tensor%s is sharded over %d worker%s%s", m->n_tensors,
                 m->n_tensors == 1 ? "" : "s", s->size, s->size == 1 ? "" : "s",
                 s->is_hybrid ? " of each node" : "");
    return status;
}

void sharded_close(strategy *base)
{
    sharded *s = (sharded *)base;
    pen_error why;
    step_thread_fini(&s->lazy);
    (void)space_wait(&s->space, &why);
    reducer_destroy(s->reducer);
    solo_destroy(s->solo);
    const model *m = &s->ctx->model;
    for (uint32_t i = 0; s->sum != NULL && i < m->n_tensors; i++)
        sharded_let_go_there(s, s->sum[i], s->own[i].count * sizeof(float), STAT_GRAD_BYTES);
    sharded_free_runs(s);
    sharded_units_destroy(s);
    verdicts_fini(&s->verdicts);
    update_state_destroy(s->update_state);
    space_free(&s->space, s->bad_of, true);
    agreement_fini(&s->agreement);
    free(s->pieces);
    free(s->arrays);
    free(s->ranks);
    free(s->at);
    group_calls_fini(&s->everyone);
    group_calls_fini(&s->sums);
    group_calls_fini(&s->values);
    group_calls_fini(&s->across);
    space_close(&s->beside);
    space_close(&s->space);
    free(s);
}
