/* step_suite.c - the arithmetic of a step on a device, against the host's. */
#include "tests/support/step_suite.h"

#include "common/compute/optim/optim.h"
#include "tests/support/golden_optim.h"
#include "tests/support/sum_reference.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one memory on both sides ---------------------------------------------------------------------- */

enum { ARENA = 1 << 20 };

/* Everything lies at the same place of two memories: the host's, where the reference works, and the device's. */
typedef struct {
    const step_device *d;
    unsigned char *host, *there, *back;
    size_t used;
} arena;

static bool arena_open(arena *a, const step_device *d)
{
    *a = (arena){.d     = d,
                 .host  = aligned_alloc(256, ARENA),
                 .there = d->ops->alloc(ARENA, 0, NULL),
                 .back  = aligned_alloc(256, ARENA)};
    return a->host != NULL && a->there != NULL && a->back != NULL;
}

static void arena_close(arena *a)
{
    free(a->host);
    free(a->back);
    a->d->ops->free(a->there);
}

/* The place of an array, `lie` bytes behind a whole 64. */
static size_t place(arena *a, size_t bytes, size_t lie)
{
    const size_t at = a->used + lie;
    a->used         = (at + bytes + 63) / 64 * 64;
    if (a->used > ARENA) abort();
    return at;
}

static void *here(const arena *a, size_t at)
{
    return a->host + at;
}

static void *there(const arena *a, size_t at)
{
    return a->there + at;
}

static bool send(const arena *a)
{
    return a->d->copy(a->there, a->host, ARENA);
}

static bool fetch(const arena *a)
{
    return a->d->copy(a->back, a->there, ARENA);
}

static bool is_nan(pen_dtype dtype, const void *at)
{
    float f;
    uint16_t h;
    memcpy(&h, at, sizeof h);
    if (dtype == PEN_F16) return (h & 0x7fff) > 0x7c00;
    if (dtype == PEN_BF16) return (h & 0x7fff) > 0x7f80;
    memcpy(&f, at, sizeof f);
    return isnan(f);
}

/* Where both are a NaN, they count as equal from now on. */
static void forgive(const arena *a, size_t at, pen_dtype dtype, size_t n)
{
    const size_t width = dtype == PEN_F32 ? 4 : 2;
    for (size_t i = at; i < at + n * width; i += width)
        if (is_nan(dtype, a->host + i) && is_nan(dtype, a->back + i))
            memcpy(a->back + i, a->host + i, width);
}

/* The whole memory: what lies around the results is unchanged. */
static bool is_alike(const arena *a, const char *what)
{
    if (memcmp(a->host, a->back, ARENA) == 0) return true;
    size_t i = 0;
    while (a->host[i] == a->back[i]) i++;
    printf("%s: byte %zu of the memory differs\n", what, i);
    return false;
}

static bool ok(pen_status status, const pen_error *why)
{
    if (status != PEN_OK) printf("%s\n", why->text);
    return status == PEN_OK;
}

/* ---- numbers --------------------------------------------------------------------------------------- */

static uint64_t seed = 2713;

static uint32_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static size_t random_below(size_t n)
{
    return random_bits() % n;
}

static float random_float(void)
{
    return (float)(int32_t)random_bits() * 0x1p-31f;
}

/* Tame numbers, with now and then any bits: tiny, huge, infinite, NaN. */
static void fill(void *at, pen_dtype dtype, size_t n, size_t wild)
{
    for (size_t i = 0; i < n; i++) {
        const float x       = random_float();
        const uint32_t bits = random_bits();
        uint16_t half;
        simd()->encode(&half, &x, dtype == PEN_F32 ? PEN_F16 : dtype, 1);
        const bool is_wild = wild > 0 && random_below(wild) == 0;
        if (dtype == PEN_F32)
            memcpy((char *)at + 4 * i, is_wild ? (const void *)&bits : &x, 4);
        else
            memcpy((char *)at + 2 * i, is_wild ? (const void *)&bits : &half, 2);
    }
}

static size_t random_lie(size_t width)
{
    const size_t kind = random_below(4);
    return kind == 0   ? 0
           : kind == 1 ? 16 - width
           : kind == 2 ? random_below(9) * width
                       : random_below(33);
}

/* ---- a rank's share of a sum ----------------------------------------------------------------------- */

static const pen_dtype weighed[][2] = {{PEN_F32, PEN_F32},
                                       {PEN_F32, PEN_F16},
                                       {PEN_F32, PEN_BF16},
                                       {PEN_F16, PEN_F16},
                                       {PEN_BF16, PEN_BF16}};

static uint32_t lowest_bad(const void *x, size_t n, uint32_t chunk, uint64_t chunk_elements)
{
    for (size_t i = 0; i < n; i++) {
        float f;
        memcpy(&f, (const char *)x + 4 * i, sizeof f);
        if (!isfinite(f)) return chunk + (uint32_t)(chunk_elements > 0 ? i / chunk_elements : 0);
    }
    return DEVICE_ALL_FINITE;
}

static bool weigh_trial(arena *a)
{
    static const double weights[] = {1, 0, 0.37, -2.5, 1e30, 1e-30};
    pen_error why                 = {0};
    const pen_dtype *type         = weighed[random_below(5)];
    const size_t width            = type[0] == PEN_F32 ? 4 : 2,
                 n                = random_below(random_below(8) == 0 ? 20000 : 300);
    a->used                       = 0;
    const size_t grad = place(a, n * width, random_lie(width)), to = place(a, n * 4, random_lie(4));
    const size_t bad   = place(a, sizeof(uint32_t), 0);
    uint32_t was       = random_below(2) ? DEVICE_ALL_FINITE : (uint32_t)random_below(20);
    device_weigh w     = {.grad_dtype     = type[0],
                          .as             = type[1],
                          .weight         = weights[random_below(6)],
                          .n              = n,
                          .chunk          = (uint32_t)random_below(9),
                          .chunk_elements = random_below(3) * 64};
    const bool is_none = random_below(10) == 0;
    fill(here(a, grad), type[0], n, random_below(2) * 150);
    memcpy(here(a, bad), &was, sizeof was);
    if (!send(a)) return false;
    w.to   = there(a, to);
    w.grad = is_none ? NULL : there(a, grad);
    w.bad  = there(a, bad);
    if (!ok(a->d->ops->weigh(&w, NULL, &why), &why) || !fetch(a)) return false;

    simd_weigh(here(a, to), is_none ? NULL : here(a, grad), type[0], type[1], w.weight, n);
    const uint32_t now = lowest_bad(here(a, to), n, w.chunk, w.chunk_elements);
    if (now < was) memcpy(here(a, bad), &now, sizeof now);
    forgive(a, to, PEN_F32, n);
    return is_alike(a, "a weighed gradient");
}

static bool run_trials(const step_device *d, bool (*trial)(arena *a), int times, const char *what)
{
    arena a;
    bool is_right = arena_open(&a, d);
    if (is_right) memset(a.host, 0, ARENA);
    for (int i = 0; is_right && i < times; i++) is_right = trial(&a);
    if (is_right) printf("%d %s are the host's, bit for bit\n", times, what);
    arena_close(&a);
    return is_right;
}

bool step_suite_weigh(const step_device *d)
{
    pen_error why              = {0};
    const device_weigh wrong[] = {{.grad_dtype = PEN_F16, .as = PEN_F32},
                                  {.grad_dtype = PEN_F64, .as = PEN_F64}};
    for (size_t i = 0; i < 2; i++)
        if (d->ops->weigh(&wrong[i], NULL, &why) != PEN_INVALID_ARGUMENT) return false;
    return run_trials(d, weigh_trial, 300, "weighed gradients");
}

/* ---- sums of squares ------------------------------------------------------------------------------- */

enum { NORM_SPANS = 230 };

static size_t blocks_of(size_t n)
{
    return (n + SIMD_BLOCK - 1) / SIMD_BLOCK;
}

static bool norm_trial(arena *a)
{
    static device_norm_span spans[NORM_SPANS];
    size_t at[NORM_SPANS], sums[NORM_SPANS];
    pen_error why       = {0};
    const size_t n      = random_below(4) == 0 ? NORM_SPANS : random_below(5);
    uint32_t bad        = DEVICE_ALL_FINITE;
    a->used             = 0;
    const size_t bad_at = place(a, sizeof bad, 0);
    memcpy(here(a, bad_at), &bad, sizeof bad);
    for (size_t i = 0; i < n; i++) {
        const size_t elements = random_below(n > 9 ? 40 : 3 * SIMD_BLOCK);
        spans[i]              = (device_norm_span){.n = elements, .chunk = (uint32_t)(n - i)};
        at[i]                 = place(a, elements * 4, random_lie(4));
        sums[i]               = place(a, blocks_of(elements) * sizeof(double), 0);
        fill(here(a, at[i]), PEN_F32, elements, random_below(3) == 0 ? 3000 : 0);
        spans[i].x    = there(a, at[i]);
        spans[i].sums = there(a, sums[i]);
    }
    if (!send(a) || !ok(a->d->ops->norm(spans, n, there(a, bad_at), NULL, &why), &why) || !fetch(a))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!simd()->norm(here(a, at[i]), spans[i].n, here(a, sums[i])) && spans[i].chunk < bad)
            bad = spans[i].chunk;
        for (size_t b = 0; b < blocks_of(spans[i].n); b++) {
            double want, got;
            memcpy(&want, a->host + sums[i] + 8 * b, sizeof want);
            memcpy(&got, a->back + sums[i] + 8 * b, sizeof got);
            if (isnan(want) && isnan(got)) memcpy(a->back + sums[i] + 8 * b, &want, sizeof want);
        }
    }
    memcpy(here(a, bad_at), &bad, sizeof bad);
    return is_alike(a, "a sum of squares");
}

static bool widen_trial(arena *a)
{
    pen_error why         = {0};
    const pen_dtype dtype = (pen_dtype)(PEN_F32 + random_below(3));
    const size_t width = dtype == PEN_F32 ? 4 : 2, n = random_below(3000);
    a->used           = 0;
    const size_t from = place(a, n * width, random_lie(width)), to = place(a, n * 4, random_lie(4));
    fill(here(a, from), dtype, n, 50);
    if (!send(a) ||
        !ok(a->d->ops->widen(there(a, to), there(a, from), dtype, n, NULL, &why), &why) ||
        !fetch(a))
        return false;
    simd()->decode(here(a, to), here(a, from), dtype, n);
    forgive(a, to, PEN_F32, n);
    return is_alike(a, "a widened array");
}

bool step_suite_norm(const step_device *d)
{
    return run_trials(d, norm_trial, 60, "lists of sums of squares") &&
           run_trials(d, widen_trial, 60, "widened arrays");
}

/* ---- the decision ---------------------------------------------------------------------------------- */

typedef struct {
    double weight_sum, loss_scale, clip;
    bool skip, is_bad, is_stopped, is_huge;
    int32_t outcome;
} decide_case;

static const decide_case decide_cases[] = {
    {3, 1, 0, true, false, false, false, PEN_APPLIED},
    {3, 1024, 0.5, true, false, false, false, PEN_APPLIED},
    {3, 1, 1e9, true, false, false, false, PEN_APPLIED},
    {0, 1, 0.5, true, false, false, false, PEN_SKIPPED_EMPTY},
    {2, 1, 0.5, true, true, false, false, PEN_SKIPPED_NONFINITE},
    {2, 1, 0.5, false, true, false, false, PEN_APPLIED},
    {2, 1, 0.5, true, false, false, true, PEN_SKIPPED_NORM},
    {2, 1, 0.5, true, false, true, false, DEVICE_ABANDONED},
};

/* The formulas of proto/decision.h, once more. */
static void expect(const decide_case *c, double total, device_verdict *v)
{
    const double divisor = c->weight_sum * c->loss_scale;
    v->outcome           = c->outcome;
    v->clip              = 1;
    if (!c->is_stopped && c->weight_sum != 0) v->norm = sqrt(total) / divisor;
    if (c->outcome != PEN_APPLIED) return;
    if (c->clip > 0 && v->norm + 1e-6 > c->clip) v->clip = c->clip / (v->norm + 1e-6);
    v->gscale = v->clip / divisor;
    v->applied++;
}

static bool decide_one(arena *a, const decide_case *c, uint32_t *stop, bool is_first)
{
    enum { SUMS = 3000 };
    pen_error why = {0};
    double sums[SUMS];
    a->used        = 0;
    const size_t n = random_below(SUMS) + 1, sums_at = place(a, sizeof sums, 0);
    const size_t bad_at = place(a, sizeof(uint32_t), 0), own_at = place(a, sizeof(uint32_t), 0);
    const size_t last_at = place(a, sizeof(device_verdict), 0),
                 at      = place(a, sizeof(device_verdict), 0);
    const uint32_t bad = c->is_bad ? 7 : DEVICE_ALL_FINITE, own = (uint32_t)random_below(5);
    const device_verdict last = {.outcome = PEN_APPLIED, .applied = 41};
    for (size_t i = 0; i < n; i++) {
        sums[i] = (double)fabsf(random_float()) * (c->is_huge ? 1e308 : 1e3);
        if (c->is_huge) sums[i] += 1e308;
    }
    if (c->is_huge && n < 2) sums[0] = (double)INFINITY;
    memcpy(here(a, sums_at), sums, sizeof sums);
    memcpy(here(a, bad_at), &bad, sizeof bad);
    memcpy(here(a, own_at), &own, sizeof own);
    memcpy(here(a, last_at), &last, sizeof last);
    memset(here(a, at), 0xee, sizeof last);
    *stop                 = c->is_stopped;
    const device_decide d = {.sums       = there(a, sums_at),
                             .n_sums     = n,
                             .bad        = there(a, bad_at),
                             .own_bad    = there(a, own_at),
                             .stop       = random_below(2) || c->is_stopped ? stop : NULL,
                             .weight_sum = c->weight_sum,
                             .loss_scale = c->loss_scale,
                             .clip       = c->clip,
                             .skip       = c->skip,
                             .last       = is_first ? NULL : there(a, last_at),
                             .verdict    = there(a, at)};
    if (!send(a) || !ok(a->d->ops->decide(&d, NULL, &why), &why) || !fetch(a)) return false;
    device_verdict want = {.bad_chunk = bad, .own_bad = own, .applied = is_first ? 0 : 41};
    expect(c, sum_reference(sums, n), &want);
    memcpy(here(a, at), &want, sizeof want);
    return is_alike(a, "a verdict");
}

static bool decide_trial(arena *a)
{
    uint32_t *stop = a->d->ops->host_alloc(64, NULL);
    bool is_right  = stop != NULL;
    for (size_t i = 0; is_right && i < 2 * sizeof decide_cases / sizeof *decide_cases; i++)
        is_right = decide_one(a, &decide_cases[i / 2], stop, i % 2 == 0);
    if (stop != NULL) a->d->ops->host_free(stop);
    return is_right;
}

bool step_suite_decide(const step_device *d)
{
    return run_trials(d, decide_trial, 10, "times all decisions");
}

/* ---- updates --------------------------------------------------------------------------------------- */

enum { TENSORS = 37, STEPS = 6, ROWS = 3, SPANS = TENSORS + 1, SUMS_MAX = TENSORS + 4 };

typedef struct {
    size_t n, param, grad, slot[OPTIM_SLOTS_MAX], values, norms;
    size_t first_sum;       /* its first block among those of all tensors */
    pen_dtype values_dtype; /* PEN_DTYPE_DEFAULT: none */
} tensor;

typedef struct {
    arena a;
    const optim_ops *ops;
    const optim_hyper *hyper;
    tensor tensor[TENSORS];
    size_t blocks, sums, param_sums, update_sums, bad, own_bad, verdict;
    int64_t applied;
    bool no_decay;
} trainer;

static size_t size_of(int i)
{
    return i == 0 ? 2 * SIMD_BLOCK + 77 : i == 1 ? SIMD_BLOCK + 3 : 1 + random_below(60);
}

static void place_tensor(trainer *t, tensor *x, size_t n)
{
    arena *a         = &t->a;
    const size_t lie = random_below(3) * 4; /* of all arrays alike, except at times */
    *x               = (tensor){.n = n, .first_sum = t->blocks};
    x->param         = place(a, 4 * n, random_below(5) == 0 ? 2 : lie);
    x->grad          = place(a, 4 * n, random_below(5) == 0 ? 1 : lie);
    for (int s = 0; s < OPTIM_SLOTS_MAX; s++)
        x->slot[s] = place(a, 4 * n, random_below(9) == 0 ? 8 : lie);
    x->values       = place(a, 4 * n, random_below(4) * 2);
    x->norms        = place(a, 2 * sizeof(double), 0);
    x->values_dtype = (pen_dtype)random_below(4);
    t->blocks += blocks_of(n);
}

static optim_span span_of(const trainer *t, const tensor *x, double lr, double gscale)
{
    optim_span span = {.param    = here(&t->a, x->param),
                       .grad     = here(&t->a, x->grad),
                       .n        = x->n,
                       .step     = (uint64_t)t->applied,
                       .lr       = lr,
                       .gscale   = gscale,
                       .no_decay = t->no_decay};
    for (int s = 0; s < t->ops->slot_count; s++) span.slot[s] = here(&t->a, x->slot[s]);
    return span;
}

static void place_tensors(trainer *t)
{
    arena *a       = &t->a;
    a->used        = 0;
    t->blocks      = 0;
    t->applied     = 0;
    t->sums        = place(a, SUMS_MAX * sizeof(double), 0);
    t->param_sums  = place(a, SUMS_MAX * sizeof(double), 0);
    t->update_sums = place(a, SUMS_MAX * sizeof(double), 0);
    t->bad         = place(a, sizeof(uint32_t), 0);
    t->own_bad     = place(a, sizeof(uint32_t), 0);
    t->verdict     = place(a, sizeof(device_verdict), 0);
    memset(a->host, 0, ARENA);
    for (int i = 0; i < TENSORS; i++) {
        tensor *x = &t->tensor[i];
        place_tensor(t, x, size_of(i));
        fill(here(a, x->param), PEN_F32, x->n, 0);
        const optim_span span = span_of(t, x, 0, 0);
        if (t->ops->slot_init != NULL) t->ops->slot_init(t->hyper, &span);
    }
}

/* ---- a step on the device ---- */

typedef struct {
    bool is_bad, is_stopped; /* an infinite gradient; the host's stop word */
    bool skip;
} step_kind;

static const step_kind kinds[STEPS] = {{.skip = true}, {.skip = true, .is_bad = true},
                                       {.skip = true}, {.skip = true, .is_stopped = true},
                                       {.skip = true}, {.skip = false, .is_bad = true}};

static double rate_of(const trainer *t, int64_t applied)
{
    static const double factors[] = {0.5, 0, 1, 0.25};
    return t->hyper->lr * factors[applied % 4];
}

static pen_status measure(trainer *t, pen_error *why)
{
    device_norm_span spans[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        spans[i] =
            (device_norm_span){.x     = there(&t->a, t->tensor[i].grad),
                               .n     = t->tensor[i].n,
                               .sums  = (double *)there(&t->a, t->sums) + t->tensor[i].first_sum,
                               .chunk = (uint32_t)i};
    return t->a.d->ops->norm(spans, TENSORS, there(&t->a, t->bad), NULL, why);
}

static pen_status decide(trainer *t, const step_kind *kind, const uint32_t *stop, pen_error *why)
{
    const device_decide d = {.sums       = there(&t->a, t->sums),
                             .n_sums     = t->blocks,
                             .bad        = there(&t->a, t->bad),
                             .own_bad    = there(&t->a, t->own_bad),
                             .stop       = stop,
                             .weight_sum = 3,
                             .loss_scale = 2,
                             .clip       = 1.5,
                             .skip       = kind->skip,
                             .last       = there(&t->a, t->verdict),
                             .verdict    = there(&t->a, t->verdict)};
    return t->a.d->ops->decide(&d, NULL, why);
}

static device_update_span part_of(const trainer *t, const tensor *x, size_t from, size_t n)
{
    const arena *a       = &t->a;
    const size_t sum     = x->first_sum + from / SIMD_BLOCK;
    device_update_span s = {.param        = there(a, x->param + 4 * from),
                            .values_dtype = x->values_dtype,
                            .grad         = there(a, x->grad + 4 * from),
                            .n            = n,
                            .param_sums   = (double *)there(a, t->param_sums) + sum,
                            .update_sums  = (double *)there(a, t->update_sums) + sum,
                            .norms        = there(a, x->norms)};
    const size_t width   = x->values_dtype == PEN_F32 ? 4 : 2;
    if (x->values_dtype != PEN_DTYPE_DEFAULT) s.values = there(a, x->values + from * width);
    for (int i = 0; i < t->ops->slot_count; i++) s.slot[i] = there(a, x->slot[i] + 4 * from);
    return s;
}

/* The first tensor is in two spans. */
static size_t list_spans(const trainer *t, device_update_span *spans)
{
    size_t n   = 0;
    spans[n++] = part_of(t, &t->tensor[0], 0, SIMD_BLOCK);
    spans[n++] = part_of(t, &t->tensor[0], SIMD_BLOCK, t->tensor[0].n - SIMD_BLOCK);
    for (int i = 1; i < TENSORS; i++) spans[n++] = part_of(t, &t->tensor[i], 0, t->tensor[i].n);
    return n;
}

static pen_status roots(trainer *t, pen_error *why)
{
    pen_status status = PEN_OK;
    for (int i = 0; status == PEN_OK && i < TENSORS; i++) {
        const tensor *x = &t->tensor[i];
        status          = t->a.d->ops->roots((double *)there(&t->a, t->param_sums) + x->first_sum,
                                             (double *)there(&t->a, t->update_sums) + x->first_sum,
                                             blocks_of(x->n), there(&t->a, x->norms), NULL, why);
    }
    return status;
}

/* The host does not know how many updates the last steps were: the device finds its row. */
static pen_status update(trainer *t, pen_error *why)
{
    device_update_span spans[SPANS];
    simd_update row[ROWS];
    double lr[ROWS];
    device_update u = {.row     = row,
                       .lr      = lr,
                       .n_rows  = ROWS,
                       .base    = t->applied - (int64_t)random_below(ROWS),
                       .verdict = there(&t->a, t->verdict),
                       .spans   = spans,
                       .n       = list_spans(t, spans)};
    if (u.base < 0) u.base = 0;
    for (int i = 0; i < ROWS; i++) {
        lr[i]  = rate_of(t, u.base + 1 + i);
        row[i] = optim_scalars(t->ops, t->hyper, lr[i], (uint64_t)(u.base + 1 + i), t->no_decay);
    }
    u.formula = (int)row[0].formula;
    if (t->ops->whole_tensor) {
        u.pass            = DEVICE_UPDATE_NORMS;
        pen_status status = t->a.d->ops->update(&u, NULL, why);
        if (status == PEN_OK) status = roots(t, why);
        if (status != PEN_OK) return status;
        u.pass = DEVICE_UPDATE_APPLY;
    }
    return t->a.d->ops->update(&u, NULL, why);
}

/* ---- the same on the host ---- */

static void host_step(trainer *t, const step_kind *kind)
{
    const arena *a      = &t->a;
    double *sums        = here(a, t->sums);
    uint32_t bad        = DEVICE_ALL_FINITE;
    device_verdict want = {.own_bad = DEVICE_ALL_FINITE, .applied = t->applied};
    for (int i = 0; i < TENSORS; i++)
        if (!simd()->norm(here(a, t->tensor[i].grad), t->tensor[i].n,
                          sums + t->tensor[i].first_sum) &&
            bad == DEVICE_ALL_FINITE)
            bad = (uint32_t)i;
    const decide_case c = {.weight_sum = 3,
                           .loss_scale = 2,
                           .clip       = 1.5,
                           .is_stopped = kind->is_stopped,
                           .outcome    = kind->is_stopped             ? DEVICE_ABANDONED
                                         : kind->is_bad && kind->skip ? (int32_t)PEN_SKIPPED_NONFINITE
                                                                      : (int32_t)PEN_APPLIED};
    expect(&c, sum_reference(sums, t->blocks), &want);
    want.bad_chunk = bad;
    memcpy(here(a, t->bad), &bad, sizeof bad);
    memcpy(here(a, t->verdict), &want, sizeof want);
    t->applied = want.applied;
    if (want.outcome != PEN_APPLIED) return;
    for (int i = 0; i < TENSORS; i++) {
        const tensor *x = &t->tensor[i];
        double scratch[8];
        optim_span span = span_of(t, x, rate_of(t, t->applied), want.gscale);
        optim_apply(t->ops, t->hyper, &span, 1, scratch);
        if (x->values_dtype != PEN_DTYPE_DEFAULT)
            simd()->encode(here(a, x->values), span.param, x->values_dtype, x->n);
    }
}

/* What only the device has: LAMB's sums and norms are seen in its parameters. */
static void forgive_all(trainer *t)
{
    const arena *a = &t->a;
    for (int i = 0; i < TENSORS; i++) {
        const tensor *x = &t->tensor[i];
        forgive(a, x->param, PEN_F32, x->n);
        for (int s = 0; s < OPTIM_SLOTS_MAX; s++) forgive(a, x->slot[s], PEN_F32, x->n);
        if (x->values_dtype != PEN_DTYPE_DEFAULT) forgive(a, x->values, x->values_dtype, x->n);
        memcpy(here(a, x->norms), a->back + x->norms, 2 * sizeof(double));
    }
    memcpy(here(a, t->param_sums), a->back + t->param_sums, SUMS_MAX * sizeof(double));
    memcpy(here(a, t->update_sums), a->back + t->update_sums, SUMS_MAX * sizeof(double));
    forgive(a, t->sums, PEN_F32, 0);
    double *norm = (double *)(void *)(a->host + t->verdict + offsetof(device_verdict, norm));
    if (isnan(*norm)) memcpy(a->host + t->verdict, a->back + t->verdict, sizeof(device_verdict));
    for (size_t i = 0; i < t->blocks; i++)
        if (isnan(((double *)here(a, t->sums))[i]))
            memcpy(a->back + t->sums + 8 * i, a->host + t->sums + 8 * i, sizeof(double));
}

static bool one_step(trainer *t, int number, uint32_t *stop)
{
    static const uint32_t none = DEVICE_ALL_FINITE;
    const step_kind *kind      = &kinds[number];
    arena *a                   = &t->a;
    pen_error why              = {0};
    for (int i = 0; i < TENSORS; i++) fill(here(a, t->tensor[i].grad), PEN_F32, t->tensor[i].n, 0);
    if (kind->is_bad) {
        const float bad = number % 2 ? INFINITY : NAN;
        memcpy(here(a, t->tensor[1].grad + 4), &bad, sizeof bad);
    }
    memcpy(here(a, t->bad), &none, sizeof none);
    memcpy(here(a, t->own_bad), &none, sizeof none);
    *stop = kind->is_stopped;
    if (!send(a) || !ok(measure(t, &why), &why) || !ok(decide(t, kind, stop, &why), &why) ||
        !ok(update(t, &why), &why) || !fetch(a))
        return false;
    host_step(t, kind);
    forgive_all(t);
    return is_alike(a, t->ops->name);
}

static bool train(trainer *t, const optim_ops *ops, const optim_hyper *hyper, uint32_t *stop)
{
    bool is_right = true;
    t->ops        = ops;
    t->hyper      = hyper;
    t->no_decay   = random_below(4) == 0;
    place_tensors(t);
    for (int i = 0; is_right && i < STEPS; i++) is_right = one_step(t, i, stop);
    return is_right;
}

static void set_another_value(const config_row *row, optim_hyper *hyper)
{
    char *field = (char *)hyper + row->offset;
    if (row->type == CONFIG_BOOL) *(bool *)field = true;
    if (row->type == CONFIG_F64) *(double *)field = fmin(fmax(0.3, row->min), row->max - 0.3);
}

static bool train_variant(trainer *t, const optim_ops *ops, const config_row *a,
                          const config_row *b, uint32_t *stop, int *count)
{
    optim_hyper hyper = {0};
    config_defaults(ops->hyper_rows, &hyper);
    if (isnan(hyper.lr)) hyper.lr = 0.1;
    if (a != NULL) set_another_value(a, &hyper);
    if (b != NULL) set_another_value(b, &hyper);
    if (ops->check != NULL && ops->check(&hyper, NULL) != PEN_OK) return true;
    ++*count;
    return train(t, ops, &hyper, stop);
}

static bool train_rule(trainer *t, const optim_ops *ops, uint32_t *stop, int *count)
{
    bool is_right = train_variant(t, ops, NULL, NULL, stop, count);
    for (const config_row *a = ops->hyper_rows; is_right && a->name != NULL; a++)
        for (const config_row *b = a; is_right && b->name != NULL; b++)
            is_right = train_variant(t, ops, a, b, stop, count);
    return is_right;
}

bool step_suite_update(const step_device *d)
{
    static trainer t;
    uint32_t *stop = d->ops->host_alloc(64, NULL);
    int count      = 0;
    bool is_right  = arena_open(&t.a, d) && stop != NULL;
    for (int i = 0; is_right && optim_all[i] != NULL; i++)
        is_right = train_rule(&t, optim_all[i], stop, &count);
    if (is_right) printf("%d trainings are the host's, bit for bit\n", count);
    arena_close(&t.a);
    if (stop != NULL) d->ops->host_free(stop);
    return is_right;
}

/* ---- golden vectors -------------------------------------------------------------------------------- */

static bool is_near(const float *got, const double *want)
{
    for (int i = 0; i < GOLDEN_ELEMENTS; i++)
        if (!(fabs((double)got[i] - want[i]) <= 1e-6 + 1e-6 * fabs(want[i]))) return false;
    return true;
}

/* One tensor, and verdicts from the host. */
static bool golden_step(arena *a, const optim_ops *ops, const optim_hyper *hyper, int step)
{
    enum { PARAM, GRAD = 256, SLOT = 512, SUMS = 1536, NORMS = 1600, VERDICT = 1664 };
    pen_error why          = {0};
    const device_verdict v = {.outcome = PEN_APPLIED, .clip = 1, .gscale = 1, .applied = step + 1};
    const double lr        = hyper->lr * golden_factors[step];
    const simd_update row  = optim_scalars(ops, hyper, lr, (uint64_t)step + 1, false);
    device_update_span s   = {.param       = there(a, PARAM),
                              .grad        = there(a, GRAD),
                              .n           = GOLDEN_ELEMENTS,
                              .param_sums  = there(a, SUMS),
                              .update_sums = there(a, SUMS + 8),
                              .norms       = there(a, NORMS)};
    for (int i = 0; i < ops->slot_count; i++) s.slot[i] = there(a, SLOT + 256 * (size_t)i);
    device_update u = {.formula = (int)row.formula,
                       .row     = &row,
                       .lr      = &lr,
                       .n_rows  = 1,
                       .base    = step,
                       .verdict = there(a, VERDICT),
                       .spans   = &s,
                       .n       = 1};
    if (!a->d->copy(there(a, GRAD), golden_grads[step], sizeof golden_grads[step]) ||
        !a->d->copy(there(a, VERDICT), &v, sizeof v))
        return false;
    if (ops->whole_tensor) {
        u.pass = DEVICE_UPDATE_NORMS;
        if (!ok(a->d->ops->update(&u, NULL, &why), &why) ||
            !ok(a->d->ops->roots(s.param_sums, s.update_sums, 1, there(a, NORMS), NULL, &why),
                &why))
            return false;
        u.pass = DEVICE_UPDATE_APPLY;
    }
    return ok(a->d->ops->update(&u, NULL, &why), &why) && fetch(a);
}

static bool golden_case(arena *a, size_t number)
{
    pen_error why = {0};
    const optim_ops *ops;
    optim_hyper hyper;
    if (!ok(optim_parse(golden_cases[number].words, &ops, &hyper, &why), &why)) return false;
    memset(a->host, 0, ARENA);
    memcpy(a->host, golden_start, sizeof golden_start);
    optim_span span = {.param = here(a, 0), .n = GOLDEN_ELEMENTS};
    for (int i = 0; i < ops->slot_count; i++) span.slot[i] = here(a, 512 + 256 * (size_t)i);
    if (ops->slot_init != NULL) ops->slot_init(&hyper, &span);
    if (!send(a)) return false;
    for (int step = 0, shown = 0; step < GOLDEN_STEPS; step++) {
        if (!golden_step(a, ops, &hyper, step)) return false;
        if (step + 1 != golden_shown[shown]) continue;
        if (!is_near((const float *)(const void *)a->back, golden_cases[number].param[shown++])) {
            printf("%s is off after step %d\n", golden_cases[number].name, step + 1);
            return false;
        }
    }
    return true;
}

bool step_suite_golden(const step_device *d)
{
    const size_t cases = sizeof golden_cases / sizeof *golden_cases;
    arena a;
    bool is_right = arena_open(&a, d);
    for (size_t i = 0; is_right && i < cases; i++) is_right = golden_case(&a, i);
    if (is_right) printf("%zu golden vectors are reached\n", cases);
    arena_close(&a);
    return is_right;
}
