/* optim.h - what an update rule is.
 *
 * An update rule is a pure function of (parameters, gradient, its own slots, step).  It does not know the network, LMDB
 * or which worker sent the gradient.  The server's shard and workers without servers call the same code and get the
 * same bits.
 * Slots are declared here as a count, so snapshots save and restore the state of any rule.
 *
 * A rule turns its settings and the step into a formula and its scalars; simd.h has the formulas.
 *
 * To add a rule: write optim_<name>.c and one line in the table of optim.c; for a new formula, also a kernel in
 * common/compute/simd/. tests/conformance/optim_test.c then checks it without being edited.
 */
#ifndef COMMON_OPTIM_H
#define COMMON_OPTIM_H

#include "common/base/config.h"
#include "common/compute/simd/simd.h"
#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { OPTIM_SLOTS_MAX = 3 };

/* The union of all rules' parameters.  Each rule's table (hyper_rows) lists those it reads, with its own defaults
 * (PyTorch's where PyTorch has the rule).  Fields it does not read are 0. */
typedef struct {
    double lr; /* given or the rule's default; never NaN after optim_parse() */
    double momentum, dampening;
    bool nesterov;
    double beta1, beta2, eps, weight_decay;
    double alpha; /* rmsprop: smoothing */
    double rho;   /* adadelta */
    double lr_decay, initial_accumulator;
    double l1, l2, lr_power; /* ftrl */
    bool centered;           /* rmsprop */
} optim_hyper;

typedef struct {
    float *param;                 /* [n] float32, updated in place */
    const float *grad;            /* [n] float32, the sum over ranks; may be unaligned */
    float *slot[OPTIM_SLOTS_MAX]; /* [n] float32 each, as slot_init left them before step 1 */
    size_t n;      /* elements; a span starts on a 4,096-element boundary of its tensor */
    uint64_t step; /* 1 for the first update of this tensor; counts applied updates only */
    double lr;     /* rate of this step: the group's rate times its schedule */
    double gscale; /* gradient multiplier: clip coefficient / (weights x loss scale) */
    bool no_decay; /* this tensor takes no weight decay (ftrl: no l1 and l2) */
    double param_norm, update_norm; /* whole_tensor rules only; set by optim_apply() */
} optim_span;

typedef struct {
    const char *name;   /* the word a user writes: optim="adamw lr=3e-4" */
    const char *doc;    /* one sentence for docs/optim.md */
    const char *source; /* paper and equation, or the reference implementation */
    int slot_count; /* vectors per parameter: 0..OPTIM_SLOTS_MAX; unused ones are never touched */
    const char *slot_names[OPTIM_SLOTS_MAX]; /* "exp_avg", ...: keys of snapshots */
    const config_row *hyper_rows;            /* into optim_hyper */
    bool whole_tensor; /* needs norms over the whole tensor: its chunks stay on one shard */

    /* Optional: refuses values that are valid alone but not together. */
    pen_status (*check)(const optim_hyper *hyper, pen_error *why);

    /* Sets slots before the first step (adagrad, ftrl: initial_accumulator).  NULL: zeros. */
    void (*slot_init)(const optim_hyper *hyper, const optim_span *span);

    /* The formula of one update of one span, and its floats, computed in double and rounded once.
     * Thread   any; pure; step is 1 or more. */
    simd_update (*scalars)(const optim_hyper *hyper, const optim_span *span);

    /* A rule of rows of tables only, in place of scalars: each slot is one number, and this updates the row. */
    void (*update_row)(const optim_hyper *hyper, const optim_span *span);
} optim_ops;

/* NULL-terminated; tests and docs walk them.  optim_of_rows: those with update_row, of which no tensor may be. */
extern const optim_ops *const optim_all[];
extern const optim_ops *const optim_of_rows[];

const optim_ops *optim_find(const char *name); /* in both; NULL when unknown */

/* "adamw lr=3e-4 beta2=0.95" -> rule and hyper-parameters.  BAD_SETTING, with *ops and *hyper unchanged, for an unknown
 * rule ("optim is 'adamv'; choose one of sum, sgd, ..."), for an unknown or refused setting ("adamw: unknown setting
 * 'bta2'; did you mean 'beta2'?"), and for a rule without its required rate ("sgd needs a rate: say optim=\"sgd
 * lr=0.1\""). */
pen_status optim_parse(const char *text, const optim_ops **ops, optim_hyper *hyper, pen_error *why);

/* Like optim_parse(), but BAD_SETTING also for a rule of rows, which no tensor may have. */
pen_status optim_parse_of_tensor(const char *text, const optim_ops **ops, optim_hyper *hyper,
                                 pen_error *why);

/* Like optim_parse(), but the rate may come from elsewhere: "adamw" and "adamw beta2=0.95" are valid. */
pen_status optim_check(const char *text, pen_error *why);

/* Overrides `usual` with `given`.  Settings that `given` does not name stay as in `usual`; another rule starts from its
 * own defaults.  usual "adamw lr=1e-3 weight_decay=0.1", given "adamw lr=0.1": "adamw weight_decay=0.1 lr=0.1".  If one
 * is empty, the result is the other.  Only the size is checked: BAD_SETTING. */
pen_status optim_override(const char *usual, const char *given, char *text, size_t size,
                          pen_error *why);

/* Applies one update to one span, a whole_tensor rule with the norms in it.
 * Thread   any; spans handed to different threads do not overlap.
 * Memory   borrows every pointer for the length of the call; allocates nothing.
 * Numbers  float32 in, float32 out; a NaN gradient gives a NaN parameter (never hidden);
 *          the same bits on every simd level and for every partition on block boundaries.
 * Cost     one pass: reads grad once, reads and writes param and each slot in use once.
 * Rate     0 leaves param unchanged, unless something is not finite (sum has no rate). */
void optim_apply_span(const optim_ops *ops, const optim_hyper *hyper, const optim_span *span);

/* The pass before it, of whole_tensor rules only: advances the slots of one span and writes the sums of squares of its
 * parameters and of its raw update, one double per 4,096-element block. */
void optim_norms(const optim_ops *ops, const optim_hyper *hyper, const optim_span *span,
                 double *param_sums, double *update_sums);

/* Applies one step to a whole tensor given as consecutive spans (all but the last a multiple of
 * 4,096 elements): optim_apply_span() per span.  For whole_tensor rules optim_norms() comes first; the sums of all spans
 * are added in order, and their roots written into the spans.  scratch: room for one double per block of
 * all spans, twice; NULL is fine for rules that are not whole_tensor. */
void optim_apply(const optim_ops *ops, const optim_hyper *hyper, optim_span *spans, size_t n_spans,
                 double *scratch);

/* The numbers of all slots of a row with n values. */
static inline size_t optim_row_slots(const optim_ops *ops, size_t n)
{
    return (size_t)ops->slot_count * (ops->update_row != NULL ? 1 : n);
}

/* One update of one row of a table, as of a tensor of its own.  scratch as for optim_apply(). */
void optim_apply_row(const optim_ops *ops, const optim_hyper *hyper, optim_span *row,
                     double *scratch);

/* Formula and scalars of update number `step` (1 is the first) at rate `lr`, for a device that has the pointers and the
 * gradient's multiplier: all of these are 0.  The rate of a whole_tensor rule is that of a trust ratio of 1. */
simd_update optim_scalars(const optim_ops *ops, const optim_hyper *hyper, double lr, uint64_t step,
                          bool no_decay);

/* docs/optim.md: every rule with its slots, hyper-parameters, defaults and source. */
void optim_write_markdown(FILE *out);

#endif
