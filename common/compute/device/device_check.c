/* device_check.c - the arguments of a step's arithmetic. */
#include "common/compute/device/device_check.h"

#include "common/base/why.h"

static bool is_float(pen_dtype dtype)
{
    return dtype == PEN_F32 || dtype == PEN_F16 || dtype == PEN_BF16;
}

pen_status device_check_float(pen_dtype dtype, pen_error *why)
{
    if (is_float(dtype)) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT, "type %d is not f32, f16 or bf16", (int)dtype);
}

pen_status device_check_weigh(const device_weigh *w, pen_error *why)
{
    if (is_float(w->as) && (w->as == w->grad_dtype || w->grad_dtype == PEN_F32)) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT, "a gradient of type %d is not rounded to type %d",
                   (int)w->grad_dtype, (int)w->as);
}

pen_status device_check_update(const device_update *u, pen_error *why)
{
    if (u->formula < 0 || u->formula >= SIMD_FORMULAS)
        return why_set(why, PEN_INVALID_ARGUMENT, "there is no formula %d", u->formula);
    if (u->pass != DEVICE_UPDATE_APPLY &&
        (u->pass != DEVICE_UPDATE_NORMS || u->formula != SIMD_LAMB))
        return why_set(why, PEN_INVALID_ARGUMENT, "formula %d has no pass %d", u->formula, u->pass);
    if (u->n_rows < 1 || u->n_rows > DEVICE_ROWS_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT, "an update has 1 to %d rows of scalars, not %d",
                       DEVICE_ROWS_MAX, u->n_rows);
    for (size_t i = 0; i < u->n; i++)
        if (u->spans[i].values != NULL && !is_float(u->spans[i].values_dtype))
            return device_check_float(u->spans[i].values_dtype, why);
    return PEN_OK;
}
