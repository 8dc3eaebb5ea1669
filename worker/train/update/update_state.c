/* update_state.c - memory of masters, slots, sums and verdicts; the state for snapshots. */
#include "worker/train/update/update_state_internal.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------- */
static stat_set *stats_of(const update_state *r)
{
    return &r->model->tensor[0]->ctx->stats;
}

/* Masters of 16-bit tensors count as optimizer state. */
static stat_id counted_as(const pen_tensor *t)
{
    return t->desc.dtype == PEN_F32 ? STAT_PARAM_BYTES : STAT_SLOT_BYTES;
}

static bool is_offloaded(const update_state *r, stat_id as)
{
    const worker_settings *s = &r->model->tensor[0]->ctx->settings;
    return (as == STAT_SLOT_BYTES ? s->offload_optimizer : s->offload_param) == OFFLOAD_CPU;
}

static float *hold(const update_state *r, const pen_tensor *t, uint64_t elements, stat_id as,
                   pen_error *why)
{
    const memory_space p = update_state_space_of(r, t);
    const size_t bytes   = elements * sizeof(float);
    float *data =
        is_offloaded(r, as) ? space_alloc_host(&p, bytes, why) : space_alloc(&p, bytes, false, why);
    if (data != NULL) stat_hold(stats_of(r), as, (int64_t)bytes);
    if (data == NULL && space_is_device(&p) && !is_offloaded(r, as))
        why_set(why, PEN_NO_MEMORY,
                "device %d has no %zu bytes left for optimizer state of '%s'; use %s=cpu, or more "
                "workers with mode=zero1",
                p.device, bytes, t->name,
                as == STAT_SLOT_BYTES ? "offload_optimizer" : "offload_param");
    return data;
}

static void let_go(const update_state *r, const pen_tensor *t, float *data, uint64_t elements,
                   stat_id as)
{
    const memory_space p = update_state_space_of(r, t);
    if (data == NULL) return;
    stat_hold(stats_of(r), as, -(int64_t)(elements * sizeof *data));
    if (is_offloaded(r, as))
        space_free_host(&p, data);
    else
        space_free(&p, data, false);
}

static void free_tensor(const update_state *r, update_state_tensor *own, const pen_tensor *t)
{
    let_go(r, t, own->master, own->own.count, counted_as(t));
    for (int s = 0; s < OPTIM_SLOTS_MAX; s++)
        let_go(r, t, own->slot[s], own->own.count, STAT_SLOT_BYTES);
    free(own->staged);
}

void update_state_destroy(update_state *r)
{
    if (r == NULL) return;
    for (uint32_t i = 0; r->tensor != NULL && i < r->model->n_tensors; i++)
        free_tensor(r, &r->tensor[i], r->model->tensor[i]);
    for (int i = 0; i < UPDATE_STATE_VERDICTS; i++) space_event_free(&r->space, r->arrived[i]);
    space_free_host(&r->space, r->copied);
    space_free(&r->space, r->sums, false);
    space_free(&r->space, r->whole, true);
    space_free(&r->space, r->norms, false);
    space_free(&r->space, r->bad, false);
    space_free(&r->space, r->none, false);
    space_free(&r->space, r->verdict, false);
    free(r->arrays);
    free(r->held);
    plan_destroy(r->plan);
    free(r);
}

float *update_state_param_of(const update_state *r, const pen_tensor *t)
{
    const update_state_tensor *own = &r->tensor[t->index];
    const memory_space p           = update_state_space_of(r, t);
    return own->master != NULL ? own->master : (float *)space_values(&p, t) + own->own.start;
}

pen_status update_state_load(update_state *r, const pen_tensor *t, const void *values,
                             pen_error *why)
{
    const update_state_tensor *own = &r->tensor[t->index];
    const memory_space p           = update_state_space_of(r, t);
    const size_t bytes             = own->own.count * sizeof(float);
    if (own->master == NULL) return PEN_OK;
    float *wide = space_stage(&p, own->master, bytes, why);
    if (wide == NULL) return why->status;
    simd()->decode(wide, values, t->desc.dtype, own->own.count);
    return space_put(&p, own->master, wide, bytes, PEN_OK, why);
}

/* Rules begin with zeros, or compute their slots on the host. */
static pen_status begin_slots(update_state *r, const pen_tensor *t, pen_error *why)
{
    update_state_tensor *own = &r->tensor[t->index];
    const pen_params *p      = r->model->group[t->desc.group];
    const size_t bytes       = own->own.count * sizeof(float);
    optim_span whole         = {.n = own->own.count, .param = NULL};
    pen_status status        = PEN_OK;
    if (p->ops->slot_init == NULL) return PEN_OK;
    for (int s = 0; s < p->ops->slot_count && status == PEN_OK; s++) {
        whole.slot[s] = space_stage(&r->space, own->slot[s], bytes, why);
        if (whole.slot[s] == NULL) status = why->status;
    }
    if (status == PEN_OK) p->ops->slot_init(&p->hyper, &whole);
    for (int s = 0; s < p->ops->slot_count; s++)
        status = space_put(&r->space, own->slot[s], whole.slot[s], bytes, status, why);
    return status;
}

static pen_status make_tensor(update_state *r, const pen_tensor *t, pen_error *why)
{
    update_state_tensor *own = &r->tensor[t->index];
    const pen_params *p      = r->model->group[t->desc.group];
    const size_t width       = plan_dtype_bytes(t->desc.dtype);
    if (t->desc.dtype != PEN_F32 || own->is_sharded_out) {
        own->master = hold(r, t, own->own.count, counted_as(t), why);
        if (own->master == NULL) return why->status;
        if (!own->is_sharded_out &&
            update_state_load(r, t, (const char *)t->param + own->own.start * width, why) != PEN_OK)
            return why->status;
    }
    if (!t->trained) return PEN_OK;
    for (int s = 0; s < p->ops->slot_count; s++) {
        own->slot[s] = hold(r, t, own->own.count, STAT_SLOT_BYTES, why);
        if (own->slot[s] == NULL) return why->status;
    }
    return begin_slots(r, t, why);
}

/* Two sums of squares of each block: of the parameters, and of the update. */
static pen_status make_whole(update_state *r, pen_error *why)
{
    const memory_space *p = &r->space;
    size_t n              = 0;
    for (uint32_t i = 0; i < r->model->n_tensors; i++) {
        const pen_tensor *t = r->model->tensor[i];
        if (update_state_needs_whole(r, t)) n += 2 * update_state_blocks_of(t->elements);
    }
    if (n == 0) return PEN_OK;
    const size_t norms = 2 * r->model->n_tensors * sizeof *r->norms;
    r->whole           = space_alloc(p, n * sizeof *r->whole, true, why);
    if (r->whole != NULL) r->norms = space_alloc(p, norms, false, why);
    return r->norms != NULL ? PEN_OK : why->status;
}

static pen_status make_sums(update_state *r, pen_error *why)
{
    const memory_space *p                 = &r->space;
    static const uint32_t none[BAD_WORDS] = {DEVICE_ALL_FINITE, DEVICE_ALL_FINITE};
    for (uint32_t c = 0; c < r->plan->n_chunks; c++) {
        r->first_sum[c] = (uint32_t)r->n_sums;
        r->n_sums += r->plan->chunk[c].blocks;
    }
    r->sums = space_alloc(p, (r->n_sums + 1) * sizeof *r->sums, false, why);
    if (r->sums != NULL) r->bad = space_alloc(p, sizeof none, false, why);
    if (r->bad != NULL) r->none = space_alloc(p, sizeof none, false, why);
    if (r->none != NULL)
        r->verdict = space_alloc(p, UPDATE_STATE_VERDICTS * sizeof *r->verdict, false, why);
    if (r->verdict == NULL || make_whole(r, why) != PEN_OK) return why->status;
    if (space_write(p, r->bad, none, sizeof none, why) != PEN_OK) return why->status;
    return space_write(p, r->none, none, sizeof none, why);
}

static size_t copied_bytes(const update_state *r)
{
    return (sizeof(copied_verdict) + (size_t)r->members * sizeof(uint32_t) + 63) / 64 * 64;
}

copied_verdict *update_state_copied(const update_state *r, uint64_t number)
{
    return (copied_verdict *)(void *)(r->copied + number % UPDATE_STATE_VERDICTS * copied_bytes(r));
}

static pen_status make_arrivals(update_state *r, pen_error *why)
{
    const memory_space *p = &r->space;
    r->copied             = space_alloc_host(p, UPDATE_STATE_VERDICTS * copied_bytes(r), why);
    if (r->copied == NULL) return why->status;
    for (int i = 0; i < UPDATE_STATE_VERDICTS; i++)
        if (space_event(p, &r->arrived[i], why) != PEN_OK) return why->status;
    return PEN_OK;
}

static pen_status make_arrays(update_state *r, pen_error *why)
{
    const size_t n = r->model->n_tensors, chunks = (size_t)r->plan->n_chunks + 1;
    r->arrays = ARRAYS_NEW(ARRAY(r->tensor, n), ARRAY(r->first_sum, chunks), ARRAY(r->span, n),
                           ARRAY(r->measure, chunks), ARRAY(r->alike, n), ARRAY(r->is_done, n));
    return r->arrays != NULL
               ? PEN_OK
               : why_set(why, PEN_NO_MEMORY, "no memory for the optimizer state of %zu tensors", n);
}

static pen_status make_parts(update_state *r, const update_state_setup *s, pen_error *why)
{
    const model *m = r->model;
    if (plan_create(&m->wire, &r->plan, why) != PEN_OK || make_arrays(r, why) != PEN_OK)
        return why->status;
    pen_status status = make_sums(r, why);
    if (status == PEN_OK) status = make_arrivals(r, why);
    for (uint32_t i = 0; status == PEN_OK && i < m->n_tensors; i++) {
        r->tensor[i].own =
            s->own != NULL ? s->own[i] : (sharded_range){.count = m->tensor[i]->elements};
        r->tensor[i].is_sharded_out = s->sharded_out != NULL && s->sharded_out[i];
        status                      = make_tensor(r, m->tensor[i], why);
    }
    return status;
}

pen_status update_state_create(const update_state_setup *setup, update_state **out, pen_error *why)
{
    update_state *r = calloc(1, sizeof *r);
    if (r == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the optimizer state");
    r->model   = setup->model;
    r->space   = setup->space != NULL ? *setup->space : space_host();
    r->members = setup->members;
    r->stop    = setup->stop;
    r->add_up  = setup->add_up;
    r->user    = setup->user;
    if (make_parts(r, setup, why) == PEN_OK) {
        *out = r;
        return PEN_OK;
    }
    update_state_destroy(r);
    return why->status;
}

/* ---- queries --------------------------------------------------------------------------------- */
const plan *update_state_plan(const update_state *r)
{
    return r->plan;
}

int64_t update_state_applied(const update_state *r)
{
    return r->applied;
}

uint64_t update_state_version(const update_state *r, const pen_tensor *t)
{
    return r->tensor[t->index].version;
}

update_state_sums update_state_sums_of(const update_state *r)
{
    return (update_state_sums){r->sums, r->n_sums, &r->bad[BAD_SUMS]};
}

uint32_t *update_state_own_bad(const update_state *r)
{
    return &r->bad[BAD_OWN];
}

uint32_t update_state_pending(const update_state *r)
{
    return (uint32_t)(r->n_decided - r->n_settled);
}

pen_status update_state_copy_out(const update_state *r, const pen_tensor *t, void *to,
                                 device_stream stream, pen_error *why)
{
    const update_state_tensor *own = &r->tensor[t->index];
    memory_space p                 = r->space;
    p.stream                       = stream;
    if (own->own.count == 0) return PEN_OK;
    if (t->desc.dtype == PEN_F32)
        return space_copy(&p, TRAFFIC_VALUE, to, own->master, own->own.count * sizeof(float), why);
    return p.ops->narrow(to, own->master, t->desc.dtype, own->own.count, stream, why);
}

pen_status update_state_values(const update_state *r, const pen_tensor *t, void *to, pen_error *why)
{
    const update_state_tensor *own = &r->tensor[t->index];
    const memory_space p           = update_state_space_of(r, t);
    const size_t width             = plan_dtype_bytes(t->desc.dtype);
    if (space_is_device(&p)) {
        const char *from = space_values(&p, t);
        return space_read(&p, to, from + own->own.start * width, own->own.count * width, why);
    }
    const float *values = update_state_param_of(r, t);
    if (to != values) simd()->encode(to, values, t->desc.dtype, own->own.count);
    return PEN_OK;
}

bool update_state_needs_whole(const update_state *r, const pen_tensor *t)
{
    return t->trained && r->model->group[t->desc.group]->ops->whole_tensor;
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static int slots_of(const update_state *r, const pen_tensor *t)
{
    return t->trained ? r->model->group[t->desc.group]->ops->slot_count : 0;
}

/* Host memory for the master, then the slots; with their contents. */
static pen_status stage(update_state *r, const pen_tensor *t, state_range *range, pen_error *why)
{
    update_state_tensor *own = &r->tensor[t->index];
    const int slots          = slots_of(r, t);
    const size_t n = own->own.count, bytes = n * sizeof(float);
    if (own->staged == NULL) own->staged = malloc((size_t)(1 + slots) * bytes + 1);
    if (own->staged == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory to bring the state of '%s' to the host",
                       t->name);
    pen_status status = space_read(&r->space, own->staged, range->param, bytes, why);
    range->param      = own->staged;
    for (int s = 0; s < slots && status == PEN_OK; s++) {
        float *to      = own->staged + (size_t)(1 + s) * n;
        status         = space_read(&r->space, to, range->slot[s], bytes, why);
        range->slot[s] = to;
    }
    return status;
}

pen_status update_state_state_ranges(update_state *r, state_ranges *h, pen_error *why)
{
    const model *m    = r->model;
    pen_status status = PEN_OK;
    if (r->held == NULL) r->held = calloc(m->n_tensors + 1, sizeof *r->held);
    if (r->held == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory to list %u tensors", m->n_tensors);
    for (uint32_t i = 0; i < m->n_tensors && status == PEN_OK; i++) {
        const pen_tensor *t  = m->tensor[i];
        const memory_space p = update_state_space_of(r, t);
        r->held[i]           = (state_range){.tensor  = i,
                                             .start   = r->tensor[i].own.start,
                                             .count   = r->tensor[i].own.count,
                                             .param   = update_state_param_of(r, t),
                                             .version = r->tensor[i].version};
        memcpy(r->held[i].slot, r->tensor[i].slot, sizeof r->held[i].slot);
        if (space_is_device(&p)) status = stage(r, t, &r->held[i], why);
    }
    h->n       = m->n_tensors;
    h->span    = r->held;
    h->applied = r->applied;
    return status;
}

/* From the host memory of stage() back to the device, and to the host side of the program's values. */
static pen_status unstage(update_state *r, const pen_tensor *t, pen_error *why)
{
    const update_state_tensor *own = &r->tensor[t->index];
    const int slots                = slots_of(r, t);
    const size_t n = own->own.count, bytes = n * sizeof(float);
    pen_status status =
        own->master != NULL ? space_write(&r->space, own->master, own->staged, bytes, why) : PEN_OK;
    for (int s = 0; s < slots && status == PEN_OK; s++)
        status =
            space_write(&r->space, own->slot[s], own->staged + (size_t)(1 + s) * n, bytes, why);
    return status;
}

/* The own range of the program's values on the device. */
static pen_status write_values(const update_state *r, const pen_tensor *t, const void *values,
                               pen_error *why)
{
    const size_t width = plan_dtype_bytes(t->desc.dtype);
    char *to           = (char *)space_values(&r->space, t) + r->tensor[t->index].own.start * width;
    return space_write(&r->space, to, values, r->tensor[t->index].own.count * width, why);
}

pen_status update_state_restored(update_state *r, int64_t applied, pen_error *why)
{
    const model *m            = r->model;
    const device_verdict last = {.applied = applied};
    r->applied                = applied;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const pen_tensor *t  = m->tensor[i];
        const memory_space p = update_state_space_of(r, t);
        r->tensor[i].version = r->held[i].version;
        if (space_is_device(&p) && unstage(r, t, why) != PEN_OK) return why->status;
        char *to = (char *)t->param + r->held[i].start * plan_dtype_bytes(t->desc.dtype);
        if (!r->tensor[i].is_sharded_out && (void *)to != (void *)r->held[i].param)
            simd()->encode(to, r->held[i].param, t->desc.dtype, r->held[i].count);
        if (space_is_device(&p) && !r->tensor[i].is_sharded_out &&
            write_values(r, t, to, why) != PEN_OK)
            return why->status;
    }
    return space_write(&r->space, update_state_verdict_at(r, r->n_decided - 1), &last, sizeof last,
                       why);
}
