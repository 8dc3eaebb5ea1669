/* batch_plan.c - divides a batch among micro-batches and workers. */
#include "worker/train/schedule/batch_plan.h"

#include "common/base/why.h"

#include <stdbool.h>
#include <stdio.h>

typedef unsigned long long ull;

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* "491520 or 540672": the multiples of `unit` on both sides of `n`. */
static const char *neighbours(uint64_t n, uint64_t unit, char *text, size_t size)
{
    const uint64_t below = n / unit * unit;
    if (below == 0)
        snprintf(text, size, "%llu", (ull)unit);
    else
        snprintf(text, size, "%llu or %llu", (ull)below, (ull)below + (ull)unit);
    return text;
}

static pen_status check_accum(const batch_plan *b, uint64_t world, pen_error *why)
{
    if (b->accum <= BATCH_ACCUM_MAX) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "train_batch=%llu in micro-batches of %llu on %llu worker%s is %llu "
                   "micro-batches a step; at most %d are allowed: make micro_batch larger",
                   (ull)b->train, (ull)b->micro, (ull)world, plural(world), (ull)b->accum,
                   BATCH_ACCUM_MAX);
}

/* One of micro_batch and accum is given: computes the other. */
static pen_status divide(const batch_plan *b, uint64_t world, const char *given, uint64_t unit,
                         uint64_t *rest, pen_error *why)
{
    char legal[64];
    if (b->train % unit != 0)
        return why_set(
            why, PEN_BAD_SETTING,
            "train_batch=%llu cannot be divided by %s x %llu worker%s = %llu: set train_batch=%s",
            (ull)b->train, given, (ull)world, plural(world), (ull)unit,
            neighbours(b->train, unit, legal, sizeof legal));
    *rest = b->train / unit;
    return PEN_OK;
}

static pen_status fill_in(batch_plan *b, uint64_t world, pen_error *why)
{
    const bool has_micro = b->micro > 0, has_accum = b->accum > 0;
    const uint64_t micro = has_micro ? b->micro : 1, accum = has_accum ? b->accum : 1;
    char given[64];
    uint64_t unit, product;
    if (__builtin_mul_overflow(micro, world, &unit) ||
        __builtin_mul_overflow(unit, accum, &product))
        return why_set(why, PEN_BAD_SETTING,
                       "micro_batch x accum x workers does not fit in 64 bits: make micro_batch "
                       "smaller");
    if (b->train == 0) {
        b->accum = accum;
        if (has_micro) b->train = product;
        return PEN_OK;
    }
    if (has_micro && has_accum) {
        /* All three are given: they fit, or one of them is wrong. */
        if (product == b->train) return PEN_OK;
        return why_set(
            why, PEN_BAD_SETTING,
            "train_batch=%llu contradicts micro_batch=%llu x accum=%llu x %llu worker%s = "
            "%llu: set two of the three, or set train_batch=%llu",
            (ull)b->train, (ull)b->micro, (ull)b->accum, (ull)world, plural(world), (ull)product,
            (ull)product);
    }
    snprintf(given, sizeof given, has_micro ? "micro_batch=%llu" : "accum=%llu",
             has_micro ? (ull)micro : (ull)accum);
    if (has_micro) return divide(b, world, given, unit, &b->accum, why);
    b->accum = accum;
    return divide(b, world, given, product, &b->micro, why);
}

pen_status batch_plan_resolve(batch_plan *b, uint64_t world, pen_error *why)
{
    batch_plan filled = *b;
    pen_status status = fill_in(&filled, world, why);
    if (status == PEN_OK) status = check_accum(&filled, world, why);
    if (status == PEN_OK) *b = filled;
    return status;
}
