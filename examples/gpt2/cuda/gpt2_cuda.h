/* gpt2_cuda.h - GPT-2 on one GPU: the network of model.h, with values, gradients and rows in device memory.
 *
 * Calls are enqueued on one stream and return at once; those that wait say so.  Types: GPT2_F32 and GPT2_BF16.  Sizes:
 * channels a multiple of 8.  Products are cuBLASLt's; all else is rows.cu and attention.cu.
 * Thread: one, whose device was chosen by gpt2_cuda_device().
 */
#ifndef GPT2_CUDA_H
#define GPT2_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "../network/model.h"

typedef struct gpt2_cuda gpt2_cuda;

/* The numbers of one step of AdamW; correct1 = 1 - beta1^t, correct2 = 1 - beta2^t. */
typedef struct {
    float rate, beta1, beta2, eps, decay, correct1, correct2, grad_scale;
} gpt2_cuda_adamw;

/* The GPU of this thread from now on.  NULL, or a sentence: there is none. */
const char *gpt2_cuda_device(int device);

/* options->threads is not looked at.  beside: a network whose stream this one uses too, and that is freed after it; NULL:
 * it has its own.  NULL: *why is a sentence. */
gpt2_cuda *gpt2_cuda_new(const gpt2_config *config, const gpt2_options *options, gpt2_cuda *beside,
                         const char **why);
void gpt2_cuda_free(gpt2_cuda *m); /* waits */
void *gpt2_cuda_stream(gpt2_cuda *m);

/* Device memory, zeroed; NULL: there is none. */
void *gpt2_cuda_memory(size_t bytes);
void gpt2_cuda_memory_free(void *memory);

/* All three wait, for all that was enqueued. */
void gpt2_cuda_wait(gpt2_cuda *m);
void gpt2_cuda_upload(gpt2_cuda *m, void *to, const void *from, size_t bytes);
void gpt2_cuda_download(gpt2_cuda *m, void *to, const void *from, size_t bytes);

/* Where a tensor is: a multiple of 16. */
void gpt2_cuda_place(gpt2_cuda *m, int index, const void *value, void *grad);
void gpt2_cuda_add_gradients(gpt2_cuda *m, bool add);

/* As in model.h.  tokens and targets are host memory, copied by the call.  Embedding waits until the GPU has computed the
 * last head, or has read the tokens where none followed: never for a backward pass. */
void gpt2_cuda_embed(gpt2_cuda *m, const int32_t *tokens, int batch, int length);
void gpt2_cuda_block(gpt2_cuda *m, int layer);
void gpt2_cuda_head(gpt2_cuda *m, const int32_t *targets, float scale); /* scale 0: loss only */
void gpt2_cuda_block_backward(gpt2_cuda *m, int layer);
void gpt2_cuda_embed_backward(gpt2_cuda *m);

/* Waits for the last gpt2_cuda_head(), and for nothing behind it: its loss. */
double gpt2_cuda_loss(gpt2_cuda *m);

/* Waits: logits[vocab] of what follows one row; after the last block. */
void gpt2_cuda_logits(gpt2_cuda *m, int row, float *logits);

/* The first failure since this was asked last, as a sentence; NULL: none was seen. */
const char *gpt2_cuda_wrong(gpt2_cuda *m);

/* One tensor of n values: master, m and v are float32; value gets the rounded master. */
void gpt2_cuda_update(gpt2_cuda *m, void *value, float *master, float *m1, float *m2,
                      const void *grad, size_t n, const gpt2_cuda_adamw *rule);

/* Waits: flops a second of products of two n x n matrices of zeros: what no network can exceed here. */
double gpt2_cuda_ceiling(gpt2_cuda *m, int n, int rounds);

/* The same for the largest n whose product takes little time, at most 8192. */
double gpt2_cuda_peak(gpt2_cuda *m);

#ifdef __cplusplus
}
#endif
#endif
