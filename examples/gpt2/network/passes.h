/* passes.h - forward and backward through the network, unit by unit, as every mode of the SDK wants it.
 *
 * A unit is a block ("h.3"), or all that is in none (the outermost: embeddings and the last norm).  Values are used between
 * pen_use() and pen_release() only, and looked up after every pen_use(): the SDK may have gathered them, and may drop them.
 */
#ifndef GPT2_PASSES_H
#define GPT2_PASSES_H

#include "backend.h"
#include "penstock.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    gpt2_config config;
    int batch, length; /* of a micro-batch of training */
    int look_batch;    /* of a batch of validation */
    int threads;
    const backend *network;
    int device;   /* -1: the host's memory */
    bool is_held; /* the SDK holds values and gradients */
    bool recompute;
    /* first values: gpt2_start(); else drawn by the SDK, the same in every mode */
    bool starts_here;
    uint64_t seed;
    const char *import;    /* a safetensors file, or NULL */
    const char *precision; /* "fp32", "bf16", "fp16" */
} passes_plan;

typedef struct {
    pen_ctx *ctx;
    passes_plan plan;
    void *trained, *looked; /* of plan.network, the second without backward */
    const char *wrong;      /* what the network said, or NULL */
    double peak;            /* flops a second of matrix products where the network is */
    int tensors;
    pen_tensor **tensor; /* [tensors] */
    int *layer;          /* [tensors] -1: of the outermost unit */
    pen_unit **unit;     /* [layers] NULL: its tensors are the outermost's */
    char *value, *grad;  /* this program's, or NULL */
    size_t *at;          /* [tensors] where each is in them */
} passes;

/* Makes the network, registers its tensors and agrees with all other ranks.  False: *why is a sentence. */
bool passes_open(passes *p, pen_ctx *ctx, const passes_plan *plan, const char **why);

/* After a call below that failed: why, as a sentence. */
const char *passes_why(const passes *p);

/* Values live until here.  After a failure (is_safe false) the SDK may still read them, and they stay. */
void passes_close(passes *p, bool is_safe);

/* One micro-batch of a step: afterwards its gradients are ready, as soon as they are computed.  Its loss, the mean in nats
 * per token, is added to *loss as its part of the step's; that travels with the gradients, as the scalar "loss". */
pen_status passes_train(passes *p, const pen_step *step, int micro, const int32_t *tokens,
                        const int32_t *targets, double *loss);

/* Forward only.  Where values are sharded, all ranks call these together. */
pen_status passes_loss(passes *p, const int32_t *tokens, const int32_t *targets, int batch,
                       double *loss);

/* What follows tokens[count]; those before `from` were given to the call before and are remembered. */
pen_status passes_logits(passes *p, const int32_t *tokens, int count, int from, float *logits);

#endif
