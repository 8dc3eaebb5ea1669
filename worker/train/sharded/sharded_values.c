/* sharded_values.c - updates own ranges, and gathers the values that are always local. */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/why.h"
#include "worker/tensor/device_copy/device_copies.h"

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
    r->own = sharded_hold_there(s, r->counts[s->rank], STAT_PARAM_BYTES, why);
    if (r->own != NULL) r->all = sharded_hold_there(s, bytes_of(s, r), STAT_PARAM_BYTES, why);
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
        if (s->stage == 0 || !m->tensor[i]->trained || s->sharded_out[i]) continue;
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
            sharded_let_go_there(s, r->own, r->counts[s->rank], STAT_PARAM_BYTES);
            sharded_let_go_there(s, r->all, bytes_of(s, r), STAT_PARAM_BYTES);
        }
        free(r->counts);
    }
    free(s->run);
    free(s->gathered);
}

/* ---- gathering ------------------------------------------------------------------------------- */
/* The values of a member's range. */
static char *values_of(const sharded *s, const pen_tensor *x, int member)
{
    return (char *)space_values(&s->space, x) + range_of(s, x->index, member)->start * width_of(x);
}

static pen_status begin_gather(sharded *s, const sharded_run *r, pen_error *why)
{
    const pen_tensor *x = tensor_at(s, r->first);
    const bool in_place = is_in_place(s, r);
    pen_status status   = PEN_OK;
    size_t at           = 0;
    for (uint32_t i = r->first; !in_place && i < r->first + r->n && status == PEN_OK; i++) {
        const pen_tensor *y = tensor_at(s, i);
        const size_t bytes  = s->own[y->index].count * width_of(y);
        status =
            space_copy(&s->space, TRAFFIC_VALUE, r->own + at, values_of(s, y, s->rank), bytes, why);
        at += bytes;
    }
    const coll_call call = {.kind            = COLL_ALL_GATHER,
                            .dtype           = PEN_U8,
                            .n               = r->counts[s->rank],
                            .in              = in_place ? values_of(s, x, s->rank) : r->own,
                            .out             = in_place ? space_values(&s->space, x) : r->all,
                            .counts          = r->counts,
                            .scale           = 1,
                            .stream          = s->space.stream,
                            .in_stream_order = space_is_device(&s->space),
                            .traffic         = TRAFFIC_VALUE,
                            .label           = x->name};
    if (status == PEN_OK) group_calls_begin(&s->values, &call);
    return status;
}

static pen_status unpack(const sharded *s, const sharded_run *r, pen_error *why)
{
    const char *from  = r->all;
    pen_status status = PEN_OK;
    for (int m = 0; m < s->size && !is_in_place(s, r); m++)
        for (uint32_t i = r->first; i < r->first + r->n && status == PEN_OK; i++) {
            const pen_tensor *x = tensor_at(s, i);
            const size_t bytes  = range_of(s, x->index, m)->count * width_of(x);
            status = space_copy(&s->space, TRAFFIC_VALUE, values_of(s, x, m), from, bytes, why);
            from += bytes;
        }
    return status;
}

static pen_status end_gather(sharded *s, pen_error *why)
{
    pen_status status = group_calls_wait(&s->values, why);
    for (uint32_t i = 0; i < s->n_runs && status == PEN_OK; i++)
        status = unpack(s, &s->run[i], why);
    return status;
}

pen_status sharded_gather_all(sharded *s, pen_error *why)
{
    pen_status status = PEN_OK;
    pen_error later;
    for (uint32_t i = 0; i < s->n_runs && status == PEN_OK; i++)
        status = begin_gather(s, &s->run[i], why);
    if (status == PEN_OK) return end_gather(s, why);
    (void)group_calls_wait(&s->values, &later);
    return status;
}

/* ---- the update ------------------------------------------------------------------------------ */
static void count_pull(const sharded *s, const pen_tensor *x)
{
    const plan *p = update_state_plan(s->update_state);
    stat_add(&s->ctx->stats, STAT_PULL_OPS,
             p->first_chunk[x->index + 1] - p->first_chunk[x->index]);
    stat_add(&s->ctx->stats, STAT_PULL_BYTES, x->bytes);
}

void sharded_count_pulls(const sharded *s)
{
    for (uint32_t i = 0; s->solo == NULL && i < s->n_trained; i++)
        count_pull(s, s->ctx->model.tensor[s->trained[i]]);
}

static pen_status update_one(sharded *s, const pen_tensor *x, double weight_sum, bool *is_changed,
                             pen_error *why)
{
    double gscale;
    if (!x->trained || !update_state_gscale(s->update_state, x, s->inputs, weight_sum, &gscale))
        return PEN_OK;
    *is_changed = true;
    count_pull(s, x);
    return update_state_carry_out(s->update_state, &x->index, 1, s->inputs, weight_sum,
                                  s->inputs->rate, why);
}

/* Updated values are gathered while the next tensor is updated. */
pen_status sharded_update(sharded *s, double weight_sum, pen_error *why)
{
    const model *m    = &s->ctx->model;
    pen_status status = PEN_OK;
    pen_error later;
    bool is_changed = false;
    if (s->stage == 0 || space_is_device(&s->space)) {
        /* On a device, which may skip the step: what is gathered then has not changed.  Or all at once, in stage 0. */
        const double *rates = verdicts_rates(&s->verdicts, s->inputs);
        if (device_copies_begin_update(s->ctx, why) != PEN_OK ||
            update_state_carry_out(s->update_state, s->trained, s->n_trained, s->inputs, weight_sum,
                                   rates, why) != PEN_OK ||
            sharded_gather_all(s, why) != PEN_OK)
            return why->status;
        sharded_count_pulls(s);
        return device_copies_updated(s->ctx, why);
    }
    for (uint32_t i = 0; i < m->n_tensors && status == PEN_OK; i++)
        if (s->sharded_out[i]) status = update_one(s, m->tensor[i], weight_sum, &is_changed, why);
    for (uint32_t i = 0; i < s->n_runs && status == PEN_OK; i++) {
        const sharded_run *r = &s->run[i];
        is_changed           = false;
        for (uint32_t k = r->first; k < r->first + r->n && status == PEN_OK; k++)
            status = update_one(s, tensor_at(s, k), weight_sum, &is_changed, why);
        if (status == PEN_OK && is_changed) status = begin_gather(s, r, why);
    }
    if (status == PEN_OK) return end_gather(s, why);
    (void)group_calls_wait(&s->values, &later);
    return status;
}
