/* loss_scale.c - doubles and halves the scale. */
#include "worker/train/schedule/loss_scale.h"

#include "common/base/why.h"

#include <math.h>
#include <string.h>

static const double factor = 2;

void loss_scale_static(loss_scale *l, double scale)
{
    *l = (loss_scale){.scale = scale, .min = scale, .last_overflow = -1};
}

void loss_scale_dynamic(loss_scale *l, double first, double min, uint64_t window,
                        uint32_t hysteresis, bool is_consecutive)
{
    *l = (loss_scale){.scale           = first,
                      .is_dynamic      = true,
                      .is_consecutive  = is_consecutive,
                      .min             = min,
                      .window          = window,
                      .hysteresis      = hysteresis,
                      .hysteresis_left = hysteresis,
                      .last_overflow   = -1};
}

/* An overflow first uses up the hysteresis; at 1 every further overflow halves the scale. */
static bool shrink(loss_scale *l)
{
    const bool is_stuck = l->scale <= l->min;
    if (l->hysteresis_left > 1) {
        l->hysteresis_left--;
        return true;
    }
    if (!is_stuck) l->scale = fmax(l->scale / factor, l->min);
    return !is_stuck;
}

static void grow(loss_scale *l)
{
    const int64_t stable = l->iteration - l->last_overflow - 1;
    if (l->is_consecutive) l->hysteresis_left = l->hysteresis;
    if (stable <= 0 || (uint64_t)stable % l->window != 0) return;
    l->hysteresis_left = l->hysteresis;
    if (l->scale < ldexp(1, 1000)) l->scale *= factor; /* never infinite */
}

bool loss_scale_update(loss_scale *l, bool has_overflown)
{
    if (!l->is_dynamic) return true;
    bool is_fine = true;
    if (has_overflown) {
        is_fine          = shrink(l);
        l->last_overflow = l->iteration;
    } else {
        grow(l);
    }
    l->iteration++;
    return is_fine;
}

/* ---- bytes ----------------------------------------------------------------------------------- */
static void put(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *at)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

void loss_scale_save(const loss_scale *l, void *bytes)
{
    uint8_t *at = bytes;
    uint64_t scale;
    memcpy(&scale, &l->scale, sizeof scale);
    put(at, scale);
    put(at + 8, l->hysteresis_left);
    put(at + 16, (uint64_t)l->iteration);
    put(at + 24, (uint64_t)l->last_overflow);
}

pen_status loss_scale_load(loss_scale *l, const void *bytes, size_t size, pen_error *why)
{
    const uint8_t *at = bytes;
    double scale;
    if (size != LOSS_SCALE_BYTES)
        return why_set(why, PEN_CORRUPT, "expected %d bytes of a saved loss scale, got %zu",
                       LOSS_SCALE_BYTES, size);
    const uint64_t bits = get(at), left = get(at + 8);
    const int64_t iteration = (int64_t)get(at + 16), last = (int64_t)get(at + 24);
    memcpy(&scale, &bits, sizeof scale);
    if (!(scale > 0) || !isfinite(scale) || left < 1 || left > UINT32_MAX || iteration < 0 ||
        last < -1 || last >= iteration)
        return why_set(
            why, PEN_CORRUPT,
            "invalid saved loss scale: %g, hysteresis %llu, last overflow %lld of %lld steps",
            scale, (unsigned long long)left, (long long)last, (long long)iteration);
    if (!l->is_dynamic) return PEN_OK; /* the settings fix it */
    l->scale           = fmax(scale, l->min);
    l->hysteresis_left = left < l->hysteresis ? (uint32_t)left : l->hysteresis;
    l->iteration       = iteration;
    l->last_overflow   = last;
    return PEN_OK;
}
