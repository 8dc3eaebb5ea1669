/* backend.h - the interface of passes.c to a network: on the CPU (model.h) or on a GPU (cuda/gpt2_cuda.h).
 *
 * The order of calls is that of model.h.  With a stream, calls only enqueue work, except those documented to wait.  The
 * GPU network is a separate library, so that the program runs without CUDA.
 */
#ifndef GPT2_BACKEND_H
#define GPT2_BACKEND_H

#include "model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t size; /* of this struct: rejects a library of another build */

    /* beside: a network of the same backend, whose stream is shared; it is closed later.  NULL: none. device: the
     * number of the GPU.  NULL: *why is a sentence. */
    void *(*open)(const gpt2_config *config, const gpt2_options *options, int device, void *beside,
                  const char **why);
    void (*close)(void *m); /* waits; NULL is fine */

    void *(*stream)(void *m);             /* a cudaStream_t; NULL: none */
    double (*peak)(void *m, int threads); /* flops a second of matrix products; waits */
    const char *(*fill)(void *m, void *to, const void *from, size_t bytes); /* values; waits */

    /* As in model.h; both heads store their loss. */
    void (*place)(void *m, int index, const void *value, void *grad);
    void (*embed)(void *m, const int32_t *tokens, int batch, int length, int from);
    void (*block)(void *m, int layer);
    void (*head)(void *m, const int32_t *targets, float scale);
    void (*head_loss)(void *m, const int32_t *targets);
    void (*block_backward)(void *m, int layer);
    void (*embed_backward)(void *m);

    /* Waits for the last head, but not for later work; and for all.  Return the first failure since: a sentence. */
    const char *(*loss)(void *m, double *loss);
    const char *(*logits)(void *m, int position, float *logits); /* of the only sequence */
} backend;

extern const backend backend_cpu;

/* The one of a library; path NULL: libgpt2_cuda.so beside this program.  NULL: *why is a sentence. */
const backend *backend_cuda(const char *path, const char **why);

#endif
