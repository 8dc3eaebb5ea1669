/* device_cuda_step.c - the arithmetic of a step on CUDA devices.
 *
 * Lists of spans travel inside of the kernels' arguments: nothing on the device must be kept for them, and a long list is
 * several launches.
 */
#include "common/compute/device/device_cuda.h"

#ifdef PENSTOCK_CUDA

#include "common/base/why.h"
#include "common/compute/arithmetic.h"
#include "common/compute/device/device.h"
#include "common/compute/device/kernels/kernels_step.h"
#include <string.h>

_Static_assert(sizeof(kernel_update) <= 4096 && sizeof(kernel_norm) <= 4096,
               "a kernel takes at most 4 KiB of arguments");

static uint64_t blocks_of(uint64_t n)
{
    return (n + SIMD_BLOCK - 1) / SIMD_BLOCK;
}

static pen_status launch(int which, void *arguments, uint64_t blocks, unsigned threads,
                         const void *at, device_stream stream, pen_error *why)
{
    pen_status status = cuda_enter_for(stream, at, why);
    if (status != PEN_OK) return status;
    status = cuda_launch(which, arguments, blocks, threads, stream, why);
    cuda_leave();
    return status;
}

/* ---- alignment ------------------------------------------------------------------------------------ */

/* Elements of `width` bytes before the first whole 16 bytes. */
static uint64_t head_of(const void *at, size_t width, uint64_t n)
{
    const uint64_t head = (16 - (uintptr_t)at % 16) % 16 / width;
    return head < n ? head : n;
}

static bool is_whole(const void *at, size_t width)
{
    return (uintptr_t)at % width == 0;
}

/* ---- a rank's share of a sum ---------------------------------------------------------------------- */

pen_status cuda_weigh(const device_weigh *w, device_stream stream, pen_error *why)
{
    kernel_weigh k          = {.w = *w};
    const pen_status status = device_check_weigh(w, why);
    if (status != PEN_OK || w->n == 0) return status;
    if (w->weight == 0 || w->grad == NULL) {
        k.lie = is_whole(k.w.to, sizeof(float)) ? KERNEL_ELEMENTS : KERNEL_BYTES;
        return launch(WEIGH_NONE, &k, (k.w.n + KERNEL_THREADS - 1) / KERNEL_THREADS, KERNEL_THREADS,
                      k.w.to, stream, why);
    }
    const size_t width  = w->grad_dtype == PEN_F32 ? 4 : 2;
    k.head              = head_of(w->grad, width, w->n);
    const bool is_wide  = is_whole(w->to + k.head, 16);
    const bool is_plain = is_whole(w->to, sizeof(float)) && is_whole(w->grad, width);
    k.lie               = !is_plain ? KERNEL_BYTES : is_wide ? KERNEL_WIDE : KERNEL_ELEMENTS;
    const uint64_t work = k.lie == KERNEL_WIDE ? (w->n * width + 15) / 16 : w->n;
    const int which     = (w->as == w->grad_dtype ? WEIGH : WEIGH_F32) + (int)w->as;
    return launch(which, &k, (work + KERNEL_THREADS - 1) / KERNEL_THREADS, KERNEL_THREADS, w->to,
                  stream, why);
}

/* ---- sums of squares ------------------------------------------------------------------------------ */

static pen_status launch_norm(const kernel_norm *k, device_stream stream, pen_error *why)
{
    if (k->n == 0) return PEN_OK;
    return launch(NORM_BLOCKS, (void *)k,
                  (k->blocks + KERNEL_NORM_THREADS - 1) / KERNEL_NORM_THREADS, KERNEL_NORM_THREADS,
                  k->bad, stream, why);
}

pen_status cuda_norm(const device_norm_span *spans, size_t n, uint32_t *bad, device_stream stream,
                     pen_error *why)
{
    kernel_norm k     = {.bad = bad};
    pen_status status = PEN_OK;
    for (size_t i = 0; i < n && status == PEN_OK; i++) {
        if (spans[i].n == 0) continue;
        k.span[k.n]    = spans[i];
        k.first[k.n++] = k.blocks;
        k.blocks += blocks_of(spans[i].n);
        if (k.n < KERNEL_NORMS) continue;
        status = launch_norm(&k, stream, why);
        k.n = 0, k.blocks = 0;
    }
    return status == PEN_OK ? launch_norm(&k, stream, why) : status;
}

/* ---- the decision --------------------------------------------------------------------------------- */

pen_status cuda_decide(const device_decide *d, device_stream stream, pen_error *why)
{
    return launch(DECIDE, (void *)d, 1, SUM_LANES, d->verdict, stream, why);
}

pen_status cuda_roots(const double *param_sums, const double *update_sums, size_t n_blocks,
                      double *norms, device_stream stream, pen_error *why)
{
    kernel_roots k = {.sums = {param_sums, update_sums}, .n = n_blocks, .norms = norms};
    return launch(ROOTS, &k, 2, SUM_LANES, norms, stream, why);
}

/* ---- the update ----------------------------------------------------------------------------------- */

static void set_lie(kernel_update_span *s)
{
    const void *const arrays[] = {s->s.param, s->s.grad, s->s.slot[0], s->s.slot[1], s->s.slot[2]};
    bool is_alike = true, is_float = true;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        if (arrays[i] == NULL) continue;
        is_alike = is_alike && ((uintptr_t)arrays[i] - (uintptr_t)s->s.param) % 16 == 0;
        is_float = is_float && is_whole(arrays[i], sizeof(float));
    }
    s->lie  = !is_float ? KERNEL_BYTES : is_alike ? KERNEL_WIDE : KERNEL_ELEMENTS;
    s->head = s->lie == KERNEL_WIDE ? (uint8_t)head_of(s->s.param, sizeof(float), s->s.n) : 0;

    const size_t width  = s->s.values_dtype == PEN_F32 ? 4 : 2;
    const char *values  = (const char *)s->s.values + s->head * width;
    const bool is_plain = is_whole(s->s.values, width);
    s->values_lie       = !is_plain                     ? KERNEL_BYTES
                          : is_whole(values, 4 * width) ? KERNEL_WIDE
                                                        : KERNEL_ELEMENTS;
}

static uint64_t tiles_of(const kernel_update_span *s)
{
    const uint64_t whole = s->lie == KERNEL_WIDE ? (s->s.n - s->head) / 4 * 4 : s->s.n;
    return whole < KERNEL_TILE ? 1 : blocks_of(whole);
}

static pen_status launch_update(const device_update *u, kernel_update *k, device_stream stream,
                                pen_error *why)
{
    if (k->n == 0) return PEN_OK;
    if (u->pass == DEVICE_UPDATE_NORMS)
        return launch(UPDATE_NORMS, k, (k->tiles + KERNEL_NORM_THREADS - 1) / KERNEL_NORM_THREADS,
                      KERNEL_NORM_THREADS, u->verdict, stream, why);
    return launch(UPDATE + u->formula, k, k->tiles, KERNEL_UPDATE_THREADS, u->verdict, stream, why);
}

static void add_span(kernel_update *k, const device_update *u, const device_update_span *span)
{
    kernel_update_span *s = &k->span[k->n++];
    const bool is_first   = u->pass == DEVICE_UPDATE_NORMS;
    *s                    = (kernel_update_span){.s = *span, .first = k->tiles};
    if (is_first || u->formula != SIMD_LAMB) s->s.norms = NULL;
    if (is_first) s->s.values = NULL;
    /* Slots that the formula leaves alone are left out, so that they cost no traffic. */
    const unsigned used = simd_slots(&u->row[0]);
    for (unsigned i = 0; i < 3; i++)
        if ((used >> i & 1) == 0) s->s.slot[i] = NULL;
    set_lie(s);
    k->tiles += (uint32_t)(is_first ? blocks_of(span->n) : tiles_of(s));
}

pen_status cuda_update(const device_update *u, device_stream stream, pen_error *why)
{
    kernel_update k   = {.verdict = u->verdict, .base = u->base, .n_rows = u->n_rows};
    pen_status status = device_check_update(u, why);
    for (int i = 0; status == PEN_OK && i < u->n_rows; i++) {
        k.row[i] = u->row[i];
        if (u->lr != NULL) k.lr[i] = u->lr[i];
    }
    for (size_t i = 0; i < u->n && status == PEN_OK; i++) {
        if (u->spans[i].n == 0) continue;
        add_span(&k, u, &u->spans[i]);
        if (k.n < KERNEL_UPDATES) continue;
        status = launch_update(u, &k, stream, why);
        k.n = 0, k.tiles = 0;
    }
    return status == PEN_OK ? launch_update(u, &k, stream, why) : status;
}

/* The start of a sum is the number itself. */
pen_status cuda_widen(float *to, const void *from, pen_dtype dtype, size_t n, device_stream stream,
                      pen_error *why)
{
    return cuda_accumulate(to, from, dtype, n, true, stream, why);
}

#endif
