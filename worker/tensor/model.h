/* model.h - the tensors and parameter groups that a program registered. */
#ifndef WORKER_MODEL_H
#define WORKER_MODEL_H

#include "common/base/loop.h"
#include "common/compute/optim/optim.h"
#include "proto/wire/wire.h"
#include "worker/ps/ps_client.h"
#include "worker/tensor/grad_slot.h"
#include "worker/tensor/table.h"
#include "common/compute/init.h"
#include "worker/tensor/unit.h"
#include "worker/train/schedule/lr_schedule.h"
#include "worker/worker_settings.h"

#include <stdbool.h>

enum { MODEL_TENSORS_MAX = WIRE_ITEMS_MAX, MODEL_GROUPS_MAX = 4096, MODEL_PAIRS_MAX = 64 };

struct pen_params {
    pen_ctx *ctx;
    uint32_t index;
    char *name, *optim, *sync, *wire, *schedule;
    lr_schedule rates; /* `schedule`, parsed */
    const optim_ops *ops;
    optim_hyper hyper;
    ps_client_rule rule;
};

struct pen_tensor {
    pen_ctx *ctx;
    uint32_t index;
    char *name;
    wire_tensor desc;
    uint64_t elements;
    size_t bytes, grad_bytes;
    void *param, *grad; /* NULL while not in memory; param_memory.h */
    bool trained;       /* neither frozen nor a buffer */
    char *unit;         /* label of registration; "": none */
    bool stays;         /* its values are in param from pen_commit() on */
    grad_slot slot;     /* owner of its gradient; under the step's lock */

    /* Memory of the SDK; under the context's grad_lock. */
    bool holds_param, is_grad_seen;
    void *param_grad;
    struct grads_lent *lent;
    struct device_copies_tensor *device_copies; /* device_copies.h; NULL: no device memory */
    char *init;                                 /* as registered; "": rank 0's values */
    bool has_init;
    init_rule draw;

    /* PEN_STACKED; see stack.h.  A stack is in model.stack[] only, and has nothing but its name and slices. */
    pen_tensor **slice;
    uint32_t n_slices;
    pen_tensor *stack; /* of a slice */

    /* A second name for the values of another tensor is in model.alias[] only; see grad_sum.h. */
    pen_tensor *tied_to, *next_alias; /* next_alias: of the same tensor, in registration order */
    void *tied_sum;                   /* [elements] float32 */
    void *tied_rounded;               /* the same in grad_dtype, of 16 bits */
    loop_task ready;                  /* carries pen_ready() to the io thread */
    const void *pushed;               /* the gradient to push; NULL: zeros */
    bool is_coming; /* the step's new values have not come; under the lock of the requests */

    /* Sum of earlier micro-batches of this step; see grad_sum.h.  Both are made when first needed. */
    void *accumulated; /* [elements] float32 */
    void *rounded;     /* the same in grad_dtype, of 16 bits */
};

typedef struct model {
    uint32_t n_tensors, n_groups, n_trained;
    uint32_t n_free; /* trained tensors of groups that do not average; of model_freeze() */
    pen_tensor **tensor;
    pen_tensor **registered; /* in the order of registration, if that is another; else NULL */
    uint32_t n_stacks;
    pen_tensor **stack; /* [n_stacks] */
    uint32_t n_buffers;
    pen_tensor **buffer; /* [n_buffers] train/buffers.h */
    uint32_t n_tables;
    pen_table **table; /* [n_tables] table t is tensor n_tensors + t of the wire */
    uint32_t n_aliases;
    pen_tensor **alias;                  /* [n_aliases] second names, local to this rank */
    pen_params *group[MODEL_GROUPS_MAX]; /* 0: the default one, from the settings */
    /* Contents of REGISTER; made by model_freeze(). */
    wire_tensor *wire_tensors;
    wire_group *wire_groups;
    wire_pair pair[MODEL_PAIRS_MAX];
    char pair_text[MODEL_PAIRS_MAX][CONFIG_TEXT_BYTES];
    wire_model wire;
    bool is_frozen;
    unit_set units; /* made by model_make_units() */
} model;

/* All names: those of the tensors, then the second ones. */
static inline uint32_t model_names(const model *m)
{
    return m->n_tensors + m->n_aliases;
}
static inline pen_tensor *model_name(const model *m, uint32_t i)
{
    return i < m->n_tensors ? m->tensor[i] : m->alias[i - m->n_tensors];
}

/* The rule of a tensor, and the type of its gradient on the wire. */
ps_client_rule model_rule_of(const model *m, const pen_tensor *t);
pen_dtype model_push_dtype(const model *m, const pen_tensor *t);

/* A tensor has the rule STEP_TWO_PHASE: steps are decided for the whole model. */
bool model_is_decided(const model *m);

/* *m is zeroed. */
pen_status model_init(model *m, pen_ctx *ctx, pen_error *why);
void model_fini(model *m);

pen_status model_add_group(model *m, pen_ctx *ctx, const pen_params_desc *d, pen_params **p,
                           pen_error *why);
pen_status model_add_tensor(model *m, pen_ctx *ctx, const pen_tensor_desc *d, pen_tensor **t,
                            pen_error *why);

/* Parses the rules of all groups and makes m->wire; nothing is added afterwards.  model_freeze.c */
pen_status model_freeze(model *m, const worker_settings *s, const char *mode, const char *sync,
                        pen_error *why);

/* For a frozen model: decides which values stay, and makes m->units. */
pen_status model_make_units(model *m, const worker_settings *s, pen_error *why);

/* Ignores init strings, on all ranks: initial values come from elsewhere. */
void model_forget_init(model *m);

/* For a frozen model: allocates values that stay, and computes those with an init string. */
pen_status model_first_values(model *m, pen_error *why);

/* A new name of a `what`: not empty, clean, short and not registered yet. */
pen_status model_check_name(const model *m, const char *name, const char *what, pen_error *why);

/* Checks reserved[] of a program's struct: "pen_opts has garbage in reserved[2]; initialise it with {0}". */
pen_status model_check_reserved(const uint64_t *reserved, int n, const char *type, pen_error *why);

#endif
