/* backend.cu - the GPU network behind backend.h: everything libgpt2_cuda.so exports. */
#include "gpt2_cuda.h"

extern "C" {
#include "../network/backend.h"
}

static gpt2_cuda *of(void *m)
{
    return (gpt2_cuda *)m;
}

static void *gpu_open(const gpt2_config *config, const gpt2_options *options, int device,
                      void *beside, const char **why)
{
    *why = gpt2_cuda_device(device);
    return *why ? NULL : gpt2_cuda_new(config, options, of(beside), why);
}

static void gpu_close(void *m)
{
    gpt2_cuda_free(of(m));
}

static void *gpu_stream(void *m)
{
    return gpt2_cuda_stream(of(m));
}

static double gpu_peak(void *m, int)
{
    return gpt2_cuda_peak(of(m));
}

static const char *gpu_fill(void *m, void *to, const void *from, size_t bytes)
{
    gpt2_cuda_upload(of(m), to, from, bytes);
    return gpt2_cuda_wrong(of(m));
}

static void gpu_place(void *m, int index, const void *value, void *grad)
{
    gpt2_cuda_place(of(m), index, value, grad);
}

/* Computes all positions again: nothing is kept between calls. */
static void gpu_embed(void *m, const int32_t *tokens, int batch, int length, int)
{
    gpt2_cuda_embed(of(m), tokens, batch, length);
}

static void gpu_block(void *m, int layer)
{
    gpt2_cuda_block(of(m), layer);
}

static void gpu_head(void *m, const int32_t *targets, float scale)
{
    gpt2_cuda_head(of(m), targets, scale);
}

static void gpu_head_loss(void *m, const int32_t *targets)
{
    gpt2_cuda_head(of(m), targets, 0.0f);
}

static void gpu_block_backward(void *m, int layer)
{
    gpt2_cuda_block_backward(of(m), layer);
}

static void gpu_embed_backward(void *m)
{
    gpt2_cuda_embed_backward(of(m));
}

static const char *gpu_loss(void *m, double *loss)
{
    *loss = gpt2_cuda_loss(of(m));
    return gpt2_cuda_wrong(of(m));
}

static const char *gpu_logits(void *m, int position, float *logits)
{
    gpt2_cuda_logits(of(m), position, logits);
    return gpt2_cuda_wrong(of(m));
}

extern "C" {
__attribute__((visibility("default"))) extern const backend gpt2_backend_cuda;
const backend gpt2_backend_cuda = {
    .size           = sizeof(backend),
    .open           = gpu_open,
    .close          = gpu_close,
    .stream         = gpu_stream,
    .peak           = gpu_peak,
    .fill           = gpu_fill,
    .place          = gpu_place,
    .embed          = gpu_embed,
    .block          = gpu_block,
    .head           = gpu_head,
    .head_loss      = gpu_head_loss,
    .block_backward = gpu_block_backward,
    .embed_backward = gpu_embed_backward,
    .loss           = gpu_loss,
    .logits         = gpu_logits,
};
}
