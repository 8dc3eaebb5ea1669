/* model.h - the tensors and parameter groups a program registered. */
#ifndef WORKER_MODEL_H
#define WORKER_MODEL_H

#include "common/loop.h"
#include "common/optim/optim.h"
#include "proto/wire.h"
#include "worker/exchange.h"
#include "worker/worker_settings.h"

#include <stdbool.h>

enum { MODEL_TENSORS_MAX = WIRE_ITEMS_MAX, MODEL_GROUPS_MAX = 4096, MODEL_PAIRS_MAX = 24 };

struct pen_params {
    pen_ctx *ctx;
    uint32_t index;
    char *name, *optim, *sync, *wire;
    const optim_ops *ops;
    optim_hyper hyper;
    exchange_rule rule;
};

struct pen_tensor {
    pen_ctx *ctx;
    uint32_t index;
    char *name;
    wire_tensor desc;
    uint64_t elements;
    size_t bytes, grad_bytes;
    void *param, *grad;
    bool trained;       /* neither frozen nor a buffer */
    bool is_ready;      /* in this step; under the step's lock */
    loop_task ready;    /* how pen_ready() reaches the SDK's thread */
    const void *pushed; /* what it pushes: grad, or NULL for zeros */
};

typedef struct {
    uint32_t n_tensors, n_groups, capacity, n_trained;
    uint32_t n_free; /* trained tensors of groups that do not average; of model_freeze() */
    pen_tensor **tensor;
    pen_params *group[MODEL_GROUPS_MAX]; /* 0 is the default one, made from the settings */
    /* What REGISTER carries; made by model_freeze(). */
    wire_tensor *wire_tensors;
    wire_group *wire_groups;
    wire_pair pair[MODEL_PAIRS_MAX];
    char pair_text[MODEL_PAIRS_MAX][CONFIG_TEXT_BYTES];
    wire_model wire;
    bool is_frozen;
} model;

/* How a tensor is trained, and how its gradient travels. */
exchange_rule model_rule_of(const model *m, const pen_tensor *t);
pen_dtype model_push_dtype(const model *m, const pen_tensor *t);

/* Whether steps are decided over the whole model, that is over its tensors of EXCHANGE_DECIDE. */
bool model_is_decided(const model *m);

pen_status model_init(model *m, pen_ctx *ctx, pen_error *why);
void model_fini(model *m);

pen_status model_add_group(model *m, pen_ctx *ctx, const pen_params_desc *d, pen_params **p,
                           pen_error *why);
pen_status model_add_tensor(model *m, pen_ctx *ctx, const pen_tensor_desc *d, pen_tensor **t,
                            pen_error *why);

/* Parses the rules of all groups and makes m->wire; from here on nothing is added. */
pen_status model_freeze(model *m, const worker_settings *s, const char *mode, const char *sync,
                        pen_error *why);

/* reserved[] of a struct of the program: "pen_opts has garbage in reserved[2]; initialise it with
 * {0}". */
pen_status model_check_reserved(const uint64_t *reserved, int n, const char *type, pen_error *why);

#endif
