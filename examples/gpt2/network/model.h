/* model.h - GPT-2 on the CPU: forward and backward, layer by layer, over one batch of tokens.
 *
 * The network of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), with the names, shapes
 * and order of elements of Hugging Face's GPT-2, so that files can be exchanged.  The head shares wte.weight.  It does
 * not know Penstock: the caller owns values and gradients, and may move them with gpt2_place() before every use.
 *
 *     gpt2_embed(m, tokens, batch, length, 0);
 *     for (l = 0; l < layers; l++) gpt2_block(m, l);
 *     loss = gpt2_head(m, targets, scale);           the head's forward and backward in one
 *     for (l = layers - 1; l >= 0; l--) gpt2_block_backward(m, l);
 *     gpt2_embed_backward(m);
 *
 * What a call reads and writes: gpt2_embed wte, wpe; gpt2_block the tensors of that layer; gpt2_head wte and ln_f;
 * gpt2_embed_backward the gradients of wte and wpe.  The gradients of ln_f are final after gpt2_head(), those of a
 * layer after its gpt2_block_backward(), those of wte and wpe at the end.
 *
 * Bits: the same inputs give the same bits for the same processor, number of threads, OpenBLAS and shape of the batch.
 * Each of the four changes the order of sums, and so may change the bits.
 */
#ifndef GPT2_MODEL_H
#define GPT2_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int vocab;        /* number of tokens */
    int vocab_padded; /* rows of wte; 0: vocab.  Rows beyond vocab are never used */
    int block;        /* positions: the longest sequence */
    int layers, heads, channels;
} gpt2_config;

typedef enum {
    GPT2_F32,
    GPT2_BF16,
    GPT2_F16
} gpt2_type; /* of values and gradients; sums are f32 */

/* Tensors: 0 wte, 1 wpe, then 12 of each layer in the order below, then ln_f.weight, ln_f.bias. */
enum {
    GPT2_LN_1_W,
    GPT2_LN_1_B,
    GPT2_ATTN_W,
    GPT2_ATTN_B,
    GPT2_ATTN_PROJ_W,
    GPT2_ATTN_PROJ_B,
    GPT2_LN_2_W,
    GPT2_LN_2_B,
    GPT2_FC_W,
    GPT2_FC_B,
    GPT2_PROJ_W,
    GPT2_PROJ_B,
    GPT2_PER_LAYER
};

typedef struct {
    char name[40]; /* "h.0.attn.c_attn.weight" */
    int ndim;
    int64_t shape[2];
    int layer;     /* -1: outside the layers (wte, wpe, ln_f) */
    bool decay;    /* weight decay is usual: matrices yes, biases and layer norms no */
    char init[32]; /* "normal std=0.02", "const v=1", "zero": as pen_register() takes it */
    float mean, std;
} gpt2_tensor;

typedef struct gpt2 gpt2;

typedef struct {
    int batch, length; /* the maximum for gpt2_embed() */
    gpt2_type type;
    int threads;       /* in total; 0: 1 */
    bool forward_only; /* for validation and sampling: far less memory */
    bool recompute;    /* keep only the input of each layer and compute the rest twice */
} gpt2_options;

/* "tiny" "small" "10m" "124m" (also "gpt2") "350m" "774m" "1558m", with their vocabulary: 256 bytes for the first
 * three, else 50257.  False: unknown preset. */
bool gpt2_preset(const char *name, gpt2_config *config);

/* All names, one space between them. */
const char *gpt2_presets(void);

/* NULL if the configuration is valid; else a sentence with the reason. */
const char *gpt2_config_wrong(const gpt2_config *config);

int gpt2_tensors(const gpt2_config *config);
void gpt2_tensor_get(const gpt2_config *config, int index, gpt2_tensor *tensor);
size_t gpt2_tensor_values(const gpt2_tensor *tensor);
size_t gpt2_values(const gpt2_config *config); /* of all tensors */

/* Initial values of one tensor, a pure function of (config, index, seed). */
void gpt2_start(const gpt2_config *config, int index, uint64_t seed, float *values);

/* 6 N + 6 L C T, N with the padded vocabulary: model flops per trained token as llm.c counts them. */
double gpt2_flops_per_token(const gpt2_config *config, int length);

/* NULL: *why is a sentence (no memory, a wrong configuration). */
gpt2 *gpt2_new(const gpt2_config *config, const gpt2_options *options, const char **why);
void gpt2_free(gpt2 *m);
size_t gpt2_bytes(const gpt2 *m); /* of activations and scratch */

/* Sets the location of a tensor's values and gradient, of options.type.  BORROWED by the calls that use them.  grad
 * NULL: the gradient is not wanted (frozen) and not computed. */
void gpt2_place(gpt2 *m, int index, const void *value, void *grad);

/* Whether gradients are added to the existing ones, or overwrite them (false, the default). */
void gpt2_add_gradients(gpt2 *m, bool add);

/* Begins a pass over tokens[batch][length], copied, each in 0..vocab-1.  from > 0, with forward_only: earlier calls
 * computed the positions before it, which are kept (sampling); computes only [from, length). */
void gpt2_embed(gpt2 *m, const int32_t *tokens, int batch, int length, int from);
void gpt2_block(gpt2 *m, int layer);

/* The mean cross entropy (nats per token) of targets[batch][length]; negative targets are ignored.  Gradients are those
 * of scale times this mean. */
double gpt2_head(gpt2 *m, const int32_t *targets, float scale);

/* The same without gradients. */
double gpt2_head_loss(gpt2 *m, const int32_t *targets);

/* logits[vocab] of the token after one position of one sequence. */
void gpt2_logits(gpt2 *m, int sequence, int position, float *logits);

void gpt2_block_backward(gpt2 *m, int layer);
void gpt2_embed_backward(gpt2 *m);

#endif
