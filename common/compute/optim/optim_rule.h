/* optim_rule.h - shared by the rules: rows of hyper-parameters, and the step from an optim_span to the floats of a
 * simd_update.  For optim_<name>.c only.
 */
#ifndef COMMON_OPTIM_RULE_H
#define COMMON_OPTIM_RULE_H

#include "common/compute/optim/optim.h"

/* The largest averaging factor: its float is still below 1, so that 1 - beta^t is not 0. */
#define OPTIM_BELOW_ONE 0.9999999

#define OPTIM_F64(field, dfl, min, max, doc)                                                       \
    {                                                                                              \
#field, CONFIG_F64, offsetof(optim_hyper, field), dfl, min, max, NULL, doc                 \
    }
#define OPTIM_BOOL(field, dfl, doc)                                                                \
    {                                                                                              \
#field, CONFIG_BOOL, offsetof(optim_hyper, field), dfl, 0, 0, NULL, doc                    \
    }
#define OPTIM_END                                                                                  \
    {                                                                                              \
        0                                                                                          \
    }

/* "nan" for the default of lr: must be given. */
#define OPTIM_LR(dfl)                                                                              \
    OPTIM_F64(lr, dfl, 0, 1e6,                                                                     \
              "Rate: higher learns faster until the loss stops falling or diverges.")
#define OPTIM_BETA1(dfl)                                                                           \
    OPTIM_F64(beta1, dfl, 0, OPTIM_BELOW_ONE,                                                      \
              "Share of the mean gradient kept per step: higher is smoother and reacts later.")
#define OPTIM_BETA2(dfl)                                                                           \
    OPTIM_F64(beta2, dfl, 0, OPTIM_BELOW_ONE,                                                      \
              "Share of the second average kept per step: higher is steadier and forgets large "   \
              "gradients later.")
#define OPTIM_EPS(dfl)                                                                             \
    OPTIM_F64(eps, dfl, 0, 1,                                                                      \
              "Added to the divisor: higher damps the step where gradients are tiny.")
#define OPTIM_L2                                                                                   \
    OPTIM_F64(weight_decay, "0", 0, 1e6,                                                           \
              "Times the parameter, added to the gradient: higher holds weights smaller.")
#define OPTIM_DECAY(dfl)                                                                           \
    OPTIM_F64(weight_decay, dfl, 0, 1e6,                                                           \
              "Times the rate, taken from the parameter beside the gradient's step: higher holds " \
              "weights smaller.")
#define OPTIM_ACCUMULATOR(dfl)                                                                     \
    OPTIM_F64(initial_accumulator, dfl, 0, 1e6,                                                    \
              "Start value of the sum of squares: higher makes the first steps smaller.")

/* The start of every rule's update: formula, pointers, multiplier, rate. */
static inline simd_update optim_begin(const optim_span *span, simd_formula formula)
{
    simd_update u = {.param   = span->param,
                     .grad    = span->grad,
                     .n       = span->n,
                     .gscale  = (float)span->gscale,
                     .rate    = (float)span->lr,
                     .formula = formula};
    for (int i = 0; i < OPTIM_SLOTS_MAX; i++) u.slot[i] = span->slot[i];
    return u;
}

/* Moving average number `index`.  1 - beta in double: 1 - 0.999f is wrong by 1.7e-5 of itself. */
static inline void optim_average(simd_update *u, int index, double beta)
{
    u->keep[index] = (float)beta;
    u->take[index] = (float)(1.0 - beta);
}

static inline double optim_weight_decay(const optim_hyper *hyper, const optim_span *span)
{
    return span->no_decay ? 0.0 : hyper->weight_decay;
}

/* slot_init of rules whose slot 0 is a sum of squares. */
static inline void optim_fill_accumulator(const optim_hyper *hyper, const optim_span *span)
{
    for (size_t i = 0; i < span->n; i++) span->slot[0][i] = (float)hyper->initial_accumulator;
}

#endif
