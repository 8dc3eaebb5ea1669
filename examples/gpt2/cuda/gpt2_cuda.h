/* gpt2_cuda.h - GPT-2 on one GPU: the network of model.h, with values, gradients and rows in device memory.
 *
 * Calls are enqueued on one stream and return at once, except those documented to wait.  Types: GPT2_F32 and GPT2_BF16.
 * Sizes: channels a multiple of 8.  cuBLASLt computes products; rows.cu and attention.cu do the rest.
 * Thread: one, whose device was set by gpt2_cuda_device().
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

/* The constants of one AdamW step; correct1 = 1 - beta1^t, correct2 = 1 - beta2^t. */
typedef struct {
    float rate, beta1, beta2, eps, decay, correct1, correct2, grad_scale;
} gpt2_cuda_adamw;

/* Sets this thread's GPU.  Returns NULL, or a sentence if it does not exist. */
const char *gpt2_cuda_device(int device);

/* Ignores options->threads.  beside: a network whose stream is shared, and which is freed later; NULL: own stream.
 * Returns NULL with a sentence in *why. */
gpt2_cuda *gpt2_cuda_new(const gpt2_config *config, const gpt2_options *options, gpt2_cuda *beside,
                         const char **why);
void gpt2_cuda_free(gpt2_cuda *m); /* waits */
void *gpt2_cuda_stream(gpt2_cuda *m);

/* Device memory, zeroed; NULL: no memory. */
void *gpt2_cuda_memory(size_t bytes);
void gpt2_cuda_memory_free(void *memory);

/* All three wait for everything enqueued. */
void gpt2_cuda_wait(gpt2_cuda *m);
void gpt2_cuda_upload(gpt2_cuda *m, void *to, const void *from, size_t bytes);
void gpt2_cuda_download(gpt2_cuda *m, void *to, const void *from, size_t bytes);

/* Sets a tensor's location: a multiple of 16. */
void gpt2_cuda_place(gpt2_cuda *m, int index, const void *value, void *grad);
void gpt2_cuda_add_gradients(gpt2_cuda *m, bool add);

/* As in model.h.  tokens and targets are host memory, copied by the call.  Embedding waits until the GPU has computed
 * the last head, or has read the tokens if no head followed; never for a backward pass. */
void gpt2_cuda_embed(gpt2_cuda *m, const int32_t *tokens, int batch, int length);
void gpt2_cuda_block(gpt2_cuda *m, int layer);
void gpt2_cuda_head(gpt2_cuda *m, const int32_t *targets, float scale); /* scale 0: loss only */
void gpt2_cuda_block_backward(gpt2_cuda *m, int layer);
void gpt2_cuda_embed_backward(gpt2_cuda *m);

/* Waits for the last gpt2_cuda_head(), but not for later work: its loss. */
double gpt2_cuda_loss(gpt2_cuda *m);

/* Waits: logits[vocab] of the token after one row; after the last block. */
void gpt2_cuda_logits(gpt2_cuda *m, int row, float *logits);

/* The first failure since the last call, as a sentence; NULL: none. */
const char *gpt2_cuda_wrong(gpt2_cuda *m);

/* One tensor of n values: master, m and v are float32; value gets the rounded master. */
void gpt2_cuda_update(gpt2_cuda *m, void *value, float *master, float *m1, float *m2,
                      const void *grad, size_t n, const gpt2_cuda_adamw *rule);

/* Waits: flops a second of products of two n x n matrices of zeros: an upper bound for any network here. */
double gpt2_cuda_ceiling(gpt2_cuda *m, int n, int rounds);

/* The same for the largest n, at most 8192, whose product is quick. */
double gpt2_cuda_peak(gpt2_cuda *m);

#ifdef __cplusplus
}
#endif
#endif
