/* device_cpu_step.c - the arithmetic of a step on the host: the functions of simd.h, at once. */
#include "common/compute/device/device_cpu.h"

#include "common/base/why.h"
#include "common/compute/arithmetic.h"
#include "common/compute/device/device.h"
#include <string.h>

static void mark(uint32_t *bad, uint64_t chunk)
{
    if (chunk < *bad) *bad = (uint32_t)chunk;
}

pen_status cpu_weigh(const device_weigh *w, device_stream stream, pen_error *why)
{
    (void)stream;
    const pen_status status = device_check_weigh(w, why);
    if (status != PEN_OK) return status;
    const size_t width = w->grad_dtype == PEN_F32 ? 4 : 2;
    const size_t chunk = w->chunk_elements > 0 ? w->chunk_elements : SIZE_MAX;
    for (size_t i = 0, number = w->chunk; i < w->n; number++) {
        const size_t n   = w->n - i < chunk ? w->n - i : chunk;
        const char *grad = w->grad == NULL ? NULL : (const char *)w->grad + i * width;
        if (!simd_weigh(w->to + i, grad, w->grad_dtype, w->as, w->weight, n)) mark(w->bad, number);
        i += n;
    }
    return PEN_OK;
}

pen_status cpu_norm(const device_norm_span *spans, size_t n, uint32_t *bad, device_stream stream,
                    pen_error *why)
{
    (void)stream, (void)why;
    for (size_t i = 0; i < n; i++)
        if (!simd()->norm(spans[i].x, spans[i].n, spans[i].sums)) mark(bad, spans[i].chunk);
    return PEN_OK;
}

pen_status cpu_decide(const device_decide *d, device_stream stream, pen_error *why)
{
    (void)stream, (void)why;
    device_verdict v = {.outcome   = DEVICE_ABANDONED,
                        .bad_chunk = *d->bad,
                        .own_bad   = *d->own_bad,
                        .clip      = 1,
                        .applied   = d->last != NULL ? d->last->applied : 0};
    if (d->stop == NULL || *(volatile const uint32_t *)d->stop == 0) {
        const step_decision made =
            step_decide(sum_in_tree(d->sums, d->n_sums), v.bad_chunk != DEVICE_ALL_FINITE,
                        d->weight_sum, d->loss_scale, d->clip, d->skip);
        v.outcome = made.outcome;
        v.norm    = made.norm;
        v.clip    = made.clip;
        v.gscale  = made.gscale;
        v.applied += made.outcome == PEN_APPLIED;
    }
    *d->verdict = v;
    return PEN_OK;
}

static void update_span(const device_update *u, simd_update k, double lr,
                        const device_update_span *s)
{
    k.param = s->param;
    k.grad  = s->grad;
    k.n     = s->n;
    memcpy(k.slot, s->slot, sizeof k.slot);
    if (u->pass == DEVICE_UPDATE_NORMS) {
        simd()->lamb_norms(&k, s->param_sums, s->update_sums);
        return;
    }
    if (u->formula == SIMD_LAMB) k.rate = (float)(lr * step_trust_ratio(s->norms[0], s->norms[1]));
    simd()->update[u->formula](&k);
    if (s->values != NULL) simd()->encode(s->values, s->param, s->values_dtype, s->n);
}

pen_status cpu_update(const device_update *u, device_stream stream, pen_error *why)
{
    (void)stream;
    const pen_status status = device_check_update(u, why);
    if (status != PEN_OK) return status;
    if (u->verdict->outcome != PEN_APPLIED) return PEN_OK;
    const int64_t row = u->verdict->applied - u->base - 1;
    if (row < 0 || row >= u->n_rows)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "update %lld has no scalars: there are those of %lld on",
                       (long long)u->verdict->applied, (long long)u->base + 1);
    simd_update k = u->row[row];
    k.gscale      = (float)u->verdict->gscale;
    for (size_t i = 0; i < u->n; i++)
        update_span(u, k, u->formula == SIMD_LAMB ? u->lr[row] : 0, &u->spans[i]);
    return PEN_OK;
}

pen_status cpu_roots(const double *param_sums, const double *update_sums, size_t n_blocks,
                     double *norms, device_stream stream, pen_error *why)
{
    (void)stream, (void)why;
    norms[0] = sqrt(sum_in_tree(param_sums, n_blocks));
    norms[1] = sqrt(sum_in_tree(update_sums, n_blocks));
    return PEN_OK;
}

pen_status cpu_widen(float *to, const void *from, pen_dtype dtype, size_t n, device_stream stream,
                     pen_error *why)
{
    (void)stream;
    const pen_status status = device_check_float(dtype, why);
    if (status != PEN_OK) return status;
    simd()->decode(to, from, dtype, n);
    return PEN_OK;
}
