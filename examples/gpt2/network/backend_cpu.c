/* backend_cpu.c - the network of model.h: every call is synchronous. */
#include "backend.h"
#include "peak.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    gpt2 *network;
    double loss;
} cpu;

static void cpu_close(void *m)
{
    if (m) gpt2_free(((cpu *)m)->network);
    free(m);
}

static void *cpu_open(const gpt2_config *config, const gpt2_options *options, int device,
                      void *beside, const char **why)
{
    (void)device, (void)beside;
    cpu *m = calloc(1, sizeof *m);
    *why   = "there is not enough memory for the network";
    if (m) m->network = gpt2_new(config, options, why);
    if (m && m->network) return m;
    cpu_close(m);
    return NULL;
}

static void *cpu_stream(void *m)
{
    (void)m;
    return NULL;
}

static double cpu_peak(void *m, int threads)
{
    (void)m;
    return peak_flops(threads);
}

static const char *cpu_fill(void *m, void *to, const void *from, size_t bytes)
{
    (void)m;
    memcpy(to, from, bytes);
    return NULL;
}

static void cpu_place(void *m, int index, const void *value, void *grad)
{
    gpt2_place(((cpu *)m)->network, index, value, grad);
}

static void cpu_embed(void *m, const int32_t *tokens, int batch, int length, int from)
{
    gpt2_embed(((cpu *)m)->network, tokens, batch, length, from);
}

static void cpu_block(void *m, int layer)
{
    gpt2_block(((cpu *)m)->network, layer);
}

static void cpu_head(void *m, const int32_t *targets, float scale)
{
    ((cpu *)m)->loss = gpt2_head(((cpu *)m)->network, targets, scale);
}

static void cpu_head_loss(void *m, const int32_t *targets)
{
    ((cpu *)m)->loss = gpt2_head_loss(((cpu *)m)->network, targets);
}

static void cpu_block_backward(void *m, int layer)
{
    gpt2_block_backward(((cpu *)m)->network, layer);
}

static void cpu_embed_backward(void *m)
{
    gpt2_embed_backward(((cpu *)m)->network);
}

static const char *cpu_loss(void *m, double *loss)
{
    *loss = ((cpu *)m)->loss;
    return NULL;
}

static const char *cpu_logits(void *m, int position, float *logits)
{
    gpt2_logits(((cpu *)m)->network, 0, position, logits);
    return NULL;
}

const backend backend_cpu = {
    .size           = sizeof(backend),
    .open           = cpu_open,
    .close          = cpu_close,
    .stream         = cpu_stream,
    .peak           = cpu_peak,
    .fill           = cpu_fill,
    .place          = cpu_place,
    .embed          = cpu_embed,
    .block          = cpu_block,
    .head           = cpu_head,
    .head_loss      = cpu_head_loss,
    .block_backward = cpu_block_backward,
    .embed_backward = cpu_embed_backward,
    .loss           = cpu_loss,
    .logits         = cpu_logits,
};
