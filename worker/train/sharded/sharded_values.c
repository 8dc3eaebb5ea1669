/* sharded_values.c - updates own ranges, and gathers the values that are always local. */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/why.h"
#include "common/compute/simd/simd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Larger tensors are gathered in place; smaller ones are packed, many into one call. */
enum { IN_PLACE_BYTES = 64 << 10, PACKED_BYTES = 1 << 20 };

/* ---- runs ------------------------------------------------------------------------------------ */
static const sharded_range *range_of(const sharded *s, uint32_t tensor, int member)
{
    return &s->range[(size_t)tensor * (size_t)s->size + (size_t)member];
}

static pen_tensor *tensor_at(const sharded *s, uint32_t i)
{
    return s->ctx->model.tensor[s->gathered[i]];
}

static size_t width_of(const pen_tensor *x)
{
    return plan_dtype_bytes(x->desc.dtype);
}

static bool is_in_place(const sharded *s, const sharded_run *r)
{
    return r->n == 1 && tensor_at(s, r->first)->bytes >= IN_PLACE_BYTES;
}

static size_t bytes_of(const sharded *s, const sharded_run *r)
{
    size_t all = 0;
    for (int m = 0; m < s->size; m++) all += r->counts[m];
    return all;
}

static pen_status make_run(sharded *s, sharded_run *r, pen_error *why)
{
    r->counts = calloc((size_t)s->size, sizeof *r->counts);
    if (r->counts == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to gather values");
    for (uint32_t i = r->first; i < r->first + r->n; i++)
        for (int m = 0; m < s->size; m++)
            r->counts[m] += range_of(s, s->gathered[i], m)->count * width_of(tensor_at(s, i));
    if (is_in_place(s, r)) return PEN_OK;
    r->own = sharded_hold(s, r->counts[s->rank], STAT_PARAM_BYTES, why);
    if (r->own != NULL) r->all = sharded_hold(s, bytes_of(s, r), STAT_PARAM_BYTES, why);
    return r->all != NULL ? PEN_OK : why->status;
}

pen_status sharded_make_runs(sharded *s, pen_error *why)
{
    const model *m = &s->ctx->model;
    s->gathered    = calloc((size_t)m->n_tensors + 1, sizeof *s->gathered);
    s->run         = calloc((size_t)m->n_tensors + 1, sizeof *s->run);
    if (s->gathered == NULL || s->run == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory to gather %u tensors", m->n_tensors);
    size_t packed = PACKED_BYTES; /* of the run that is open */
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const size_t bytes = m->tensor[i]->bytes;
        if (!m->tensor[i]->trained || s->sharded_out[i]) continue;
        s->gathered[s->n_gathered] = i;
        const bool is_large        = bytes >= IN_PLACE_BYTES;
        if (is_large || packed + bytes > PACKED_BYTES) {
            s->run[s->n_runs++] = (sharded_run){.first = s->n_gathered};
            packed              = is_large ? PACKED_BYTES : 0;
        }
        s->run[s->n_runs - 1].n++;
        s->n_gathered++;
        if (!is_large) packed += bytes;
    }
    for (uint32_t i = 0; i < s->n_runs; i++)
        if (make_run(s, &s->run[i], why) != PEN_OK) return why->status;
    return PEN_OK;
}

void sharded_free_runs(sharded *s)
{
    for (uint32_t i = 0; s->run != NULL && i < s->n_runs; i++) {
        sharded_run *r = &s->run[i];
        if (r->counts != NULL) {
            sharded_let_go(s, r->own, r->counts[s->rank], STAT_PARAM_BYTES);
            sharded_let_go(s, r->all, bytes_of(s, r), STAT_PARAM_BYTES);
        }
        free(r->counts);
    }
    free(s->run);
    free(s->gathered);
}

/* ---- gathering ------------------------------------------------------------------------------- */
static void begin_gather(sharded *s, const sharded_run *r)
{
    pen_tensor *x = tensor_at(s, r->first);
    char *all     = is_in_place(s, r) ? x->param : r->all;
    char *own     = r->own;
    size_t at     = 0;
    if (is_in_place(s, r)) {
        own = all + s->own[x->index].start * width_of(x);
        update_state_values(s->update_state, x, own);
    }
    for (uint32_t i = r->first; own == r->own && i < r->first + r->n; i++) {
        const pen_tensor *y = tensor_at(s, i);
        update_state_values(s->update_state, y, own + at);
        at += s->own[y->index].count * width_of(y);
    }
    group_calls_gather(&s->values, PEN_U8, r->counts[s->rank], r->counts, own, all, x->name);
}

static void unpack(const sharded *s, const sharded_run *r)
{
    const char *from = r->all;
    for (int m = 0; m < s->size && !is_in_place(s, r); m++)
        for (uint32_t i = r->first; i < r->first + r->n; i++) {
            const pen_tensor *x    = tensor_at(s, i);
            const sharded_range *k = range_of(s, x->index, m);
            memcpy((char *)x->param + k->start * width_of(x), from, k->count * width_of(x));
            from += k->count * width_of(x);
        }
}

static pen_status end_gather(sharded *s, pen_error *why)
{
    if (group_calls_wait(&s->values, why) != PEN_OK) return why->status;
    for (uint32_t i = 0; i < s->n_runs; i++) unpack(s, &s->run[i]);
    return PEN_OK;
}

pen_status sharded_gather_all(sharded *s, pen_error *why)
{
    for (uint32_t i = 0; i < s->n_runs; i++) begin_gather(s, &s->run[i]);
    return end_gather(s, why);
}

/* ---- rules that need norms of the whole tensor ----------------------------------------------- */
static size_t blocks_of(uint64_t elements)
{
    return (elements + SIMD_BLOCK - 1) / SIMD_BLOCK;
}

/* Ranges are in member order, so the gathered sums are in the order of the tensor's blocks. */
static pen_status update_whole(sharded *s, const pen_tensor *x, double lr, double gscale,
                               pen_error *why)
{
    const size_t all = blocks_of(x->elements);
    size_t at        = 0;
    size_t *counts   = calloc((size_t)s->size, sizeof *counts);
    double *sums = calloc(4 * all + 2, sizeof *sums), *own = sums + 2 * all;
    pen_status status = PEN_OK;
    if (counts == NULL || sums == NULL)
        status = why_set(why, PEN_NO_MEMORY, "no memory for the norms of '%s'", x->name);
    for (int part = 0; part < 2 && status == PEN_OK; part++) { /* of parameters, of the update */
        for (int m = 0; m < s->size; m++) counts[m] = blocks_of(range_of(s, x->index, m)->count);
        if (part == 0)
            at = update_state_begin_whole(s->update_state, x, lr, gscale, own, own + all + 1);
        group_calls_gather(&s->sums, PEN_F64, at, counts, own + (size_t)part * (all + 1),
                           sums + (size_t)part * all, x->name);
        status = group_calls_wait(&s->sums, why);
    }
    double norm[2] = {0};
    for (size_t i = 0; i < 2 * all && status == PEN_OK; i++) norm[i / all] += sums[i];
    if (status == PEN_OK)
        update_state_end_whole(s->update_state, x, lr, gscale, sqrt(norm[0]), sqrt(norm[1]));
    free(counts);
    free(sums);
    return status;
}

/* ---- the update ------------------------------------------------------------------------------ */
static pen_status update_one(sharded *s, const pen_tensor *x, double weight_sum,
                             const wire_decision *decision, bool *is_changed, pen_error *why)
{
    const plan *p   = update_state_plan(s->update_state);
    const double lr = s->inputs->rate[x->desc.group];
    double gscale;
    if (!x->trained ||
        !update_state_gscale(s->update_state, x, s->inputs, weight_sum, decision, &gscale))
        return PEN_OK;
    *is_changed = true;
    stat_add(&s->ctx->stats, STAT_PULL_OPS,
             p->first_chunk[x->index + 1] - p->first_chunk[x->index]);
    stat_add(&s->ctx->stats, STAT_PULL_BYTES, x->bytes);
    if (update_state_needs_whole(s->update_state, x)) return update_whole(s, x, lr, gscale, why);
    update_state_update(s->update_state, x, lr, gscale);
    return PEN_OK;
}

/* Updated values are gathered while the next tensor is updated. */
pen_status sharded_update(sharded *s, double weight_sum, const wire_decision *decision,
                          pen_error *why)
{
    const model *m    = &s->ctx->model;
    pen_status status = PEN_OK;
    pen_error later;
    bool is_changed = false;
    for (uint32_t i = 0; i < m->n_tensors && status == PEN_OK; i++)
        if (s->sharded_out[i])
            status = update_one(s, m->tensor[i], weight_sum, decision, &is_changed, why);
    for (uint32_t i = 0; i < s->n_runs && status == PEN_OK; i++) {
        const sharded_run *r = &s->run[i];
        is_changed           = false;
        for (uint32_t k = r->first; k < r->first + r->n && status == PEN_OK; k++)
            status = update_one(s, tensor_at(s, k), weight_sum, decision, &is_changed, why);
        if (status == PEN_OK && is_changed) begin_gather(s, r);
    }
    if (status == PEN_OK) return end_gather(s, why);
    (void)group_calls_wait(&s->values, &later);
    return status;
}
