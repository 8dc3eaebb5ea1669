/* simd.c - which level of the inner loops runs on this processor, and its reductions. */
#include "common/compute/simd/simd.h"

#include "common/base/why.h"
#include "common/compute/simd/reduce.h"
#include "common/compute/simd/reduce_level.h"

#include <stdatomic.h>
#include <string.h>

extern const simd_level simd_scalar;
#if defined(__x86_64__)
extern const simd_level simd_avx2, simd_avx512;
const simd_level *const simd_all[] = {&simd_avx512, &simd_avx2, &simd_scalar, NULL};
#else
const simd_level *const simd_all[]        = {&simd_scalar, NULL};
#endif

static _Atomic(const simd_level *) chosen;

static const simd_level *best(void)
{
    int i = 0;
    while (!simd_all[i]->usable()) i++; /* terminates: scalar is always usable */
    return simd_all[i];
}

const simd_level *simd(void)
{
    const simd_level *level = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (level != NULL) return level;
    /* Concurrent threads find the same answer; only a level named meanwhile must win. */
    const simd_level *none = NULL;
    atomic_compare_exchange_strong(&chosen, &none, best());
    return atomic_load(&chosen);
}

static const simd_level *find_level(const char *name)
{
    for (int i = 0; simd_all[i] != NULL; i++)
        if (strcmp(simd_all[i]->name, name) == 0) return simd_all[i];
    return NULL;
}

unsigned simd_slots(const simd_update *u)
{
    static const uint8_t slots[SIMD_FORMULAS] = {
        [SIMD_SGD_MOMENTUM] = 1, [SIMD_ADAM] = 3,     [SIMD_ADAGRAD] = 1,
        [SIMD_RMSPROP] = 1,      [SIMD_ADADELTA] = 3, [SIMD_ADAMAX] = 3,
        [SIMD_FTRL] = 3,         [SIMD_LION] = 1,     [SIMD_LAMB] = 3,
    };
    if (u->formula != SIMD_RMSPROP) return slots[u->formula];
    return 1u | (u->momentum != 0.0f ? 2u : 0u) | (u->centered ? 4u : 0u);
}

static bool weigh_rounded(float *to, const float *grad, pen_dtype as, float weight, size_t n)
{
    enum { TILE = 1024 };
    uint16_t rounded[TILE];
    bool is_finite = true;
    for (size_t i = 0; i < n; i += TILE) {
        const size_t count = n - i < TILE ? n - i : TILE;
        simd()->encode(rounded, grad + i, as, count);
        is_finite &= simd()->fold_set(to + i, rounded, as, weight, count);
    }
    return is_finite;
}

bool simd_weigh(float *to, const void *grad, pen_dtype grad_dtype, pen_dtype as, double weight,
                size_t n)
{
    if (weight == 0) {
        const float none = -0.0f;
        for (size_t i = 0; i < n; i++) memcpy(to + i, &none, sizeof none); /* of any alignment */
        return true;
    }
    if (grad == NULL) {
        memset(to, 0, n * sizeof *to);
        return true;
    }
    if (as != grad_dtype) return weigh_rounded(to, grad, as, (float)weight, n);
    return simd()->fold_set(to, grad, as, (float)weight, n);
}

pen_status simd_choose(const char *name, pen_error *why)
{
    const bool is_auto      = strcmp(name, "auto") == 0;
    const simd_level *level = is_auto ? best() : find_level(name);
    if (level == NULL)
        return why_set(why, PEN_BAD_SETTING, "simd: '%s' is not auto, scalar, avx2 or avx512",
                       name);
    if (!level->usable())
        return why_set(why, PEN_UNSUPPORTED,
                       "simd=%s: this processor lacks these instructions; say simd=auto, which "
                       "takes %s here",
                       name, best()->name);
    atomic_store(&chosen, level);
    return PEN_OK;
}

/* ---- operations by type, at the chosen level ------------------------------------------------- */
/* In the order of simd_all: a level of simd.h and its reductions belong together. */
#if defined(__x86_64__)
static const reduce_level *const levels[] = {&reduce_avx512, &reduce_avx2, &reduce_scalar};
#else
static const reduce_level *const levels[] = {&reduce_scalar};
#endif

static const reduce_level *level(void)
{
    const simd_level *now = simd();
    int i                 = 0;
    while (simd_all[i] != now) i++; /* terminates: simd() is in the list */
    return levels[i];
}

static bool is_float(pen_dtype dtype)
{
    return dtype == PEN_F16 || dtype == PEN_BF16 || dtype == PEN_F32 || dtype == PEN_F64;
}

static bool is_integer(pen_dtype dtype)
{
    return dtype >= PEN_I8 && dtype <= PEN_U64;
}

bool reduce_is_legal(pen_op op, pen_dtype dtype)
{
    if (op >= PEN_SUM && op <= PEN_MAX) return is_float(dtype) || is_integer(dtype);
    return op >= PEN_LAND && op <= PEN_BXOR && is_integer(dtype);
}

void reduce(const reduce_args *args, size_t begin, size_t count)
{
    if (count > 0) level()->run(args, begin, count);
}

/* Smaller copies are likely still in a cache, or needed there soon. */
enum { STREAM_FROM_BYTES = 2 << 20 };

void copy_past(void *out, const void *in, size_t bytes)
{
    if (bytes > 0) level()->copy_past(out, in, bytes);
}

/* What memcpy() is slow at, see reduce.h. */
enum { SLOW_FROM_BYTES = 4096, SLOW_AHEAD_BYTES = 32, PAGE_BYTES = 4096 };

void copy_near(void *out, const void *in, size_t bytes)
{
    const size_t ahead = ((uintptr_t)out - (uintptr_t)in) % PAGE_BYTES;
    if (bytes >= SLOW_FROM_BYTES && ahead > 0 && ahead < SLOW_AHEAD_BYTES)
        level()->copy_near(out, in, bytes);
    else if (bytes > 0)
        memcpy(out, in, bytes);
}

void copy_stream(void *out, const void *in, size_t bytes)
{
    if (bytes >= STREAM_FROM_BYTES)
        level()->copy_past(out, in, bytes);
    else
        copy_near(out, in, bytes);
}
