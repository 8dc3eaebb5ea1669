/* backend.h - what passes.c asks of a network: the one for the CPU (model.h) and the one for a GPU (cuda/gpt2_cuda.h).
 *
 * The order of calls is that of model.h.  Where work is enqueued on a stream, calls return before it is done; those that
 * wait say so.  The second network is a library of its own, so that the program runs where there is no CUDA.
 */
#ifndef GPT2_BACKEND_H
#define GPT2_BACKEND_H

#include "model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t size; /* of this struct: a library of another build is refused */

    /* beside: a network of the same backend, whose stream this one uses too; it is closed later.  NULL: none.
     * device: the number of the GPU.  NULL: *why is a sentence. */
    void *(*open)(const gpt2_config *config, const gpt2_options *options, int device, void *beside,
                  const char **why);
    void (*close)(void *m); /* waits; NULL is fine */

    void *(*stream)(void *m);             /* a cudaStream_t; NULL: none */
    double (*peak)(void *m, int threads); /* flops a second of matrix products; waits */
    const char *(*fill)(void *m, void *to, const void *from, size_t bytes); /* values; waits */

    /* As in model.h; both heads keep their loss. */
    void (*place)(void *m, int index, const void *value, void *grad);
    void (*embed)(void *m, const int32_t *tokens, int batch, int length, int from);
    void (*block)(void *m, int layer);
    void (*head)(void *m, const int32_t *targets, float scale);
    void (*head_loss)(void *m, const int32_t *targets);
    void (*block_backward)(void *m, int layer);
    void (*embed_backward)(void *m);

    /* Wait for the last head, but for nothing behind it; and for all.  Else the first failure since: a sentence. */
    const char *(*loss)(void *m, double *loss);
    const char *(*logits)(void *m, int position, float *logits); /* of the only sequence */
} backend;

extern const backend backend_cpu;

/* The one of a library; path NULL: libgpt2_cuda.so beside this program.  NULL: *why is a sentence. */
const backend *backend_cuda(const char *path, const char **why);

#endif
