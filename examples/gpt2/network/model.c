/* model.c - sizes of GPT-2, its tensors, and their initial values. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BYTES = 256, GPT2_VOCAB = 50257 };

static const struct {
    const char *name;
    gpt2_config config;
} presets[] = {
    {"tiny", {.vocab = BYTES, .block = 128, .layers = 4, .heads = 4, .channels = 128}},
    {"small", {.vocab = BYTES, .block = 256, .layers = 6, .heads = 6, .channels = 192}},
    {"10m", {.vocab = BYTES, .block = 256, .layers = 6, .heads = 6, .channels = 384}},
    {"124m", {.vocab = GPT2_VOCAB, .block = 1024, .layers = 12, .heads = 12, .channels = 768}},
    {"gpt2", {.vocab = GPT2_VOCAB, .block = 1024, .layers = 12, .heads = 12, .channels = 768}},
    {"350m", {.vocab = GPT2_VOCAB, .block = 1024, .layers = 24, .heads = 16, .channels = 1024}},
    {"774m", {.vocab = GPT2_VOCAB, .block = 1024, .layers = 36, .heads = 20, .channels = 1280}},
    {"1558m", {.vocab = GPT2_VOCAB, .block = 1024, .layers = 48, .heads = 25, .channels = 1600}},
};

bool gpt2_preset(const char *name, gpt2_config *config)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, name) == 0) {
            *config = presets[i].config;
            return true;
        }
    return false;
}

const char *gpt2_presets(void)
{
    return "tiny small 10m 124m gpt2 350m 774m 1558m";
}

const char *gpt2_config_wrong(const gpt2_config *c)
{
    if (c->vocab < 1 || c->vocab > 1 << 20) return "the vocabulary must have 1 to 1048576 tokens";
    if (c->vocab_padded != 0 && (c->vocab_padded < c->vocab || c->vocab_padded > 1 << 20))
        return "the padded vocabulary must be at least the vocabulary, and at most 1048576";
    if (c->block < 1 || c->block > 65536) return "the block must have 1 to 65536 positions";
    if (c->layers < 1 || c->layers > 1000) return "there must be 1 to 1000 layers";
    if (c->channels < 1 || c->channels > 65536) return "there must be 1 to 65536 channels";
    if (c->heads < 1 || c->heads > c->channels || c->channels % c->heads != 0)
        return "channels must be a multiple of heads";
    return NULL;
}

static int rows_of_wte(const gpt2_config *c)
{
    return c->vocab_padded ? c->vocab_padded : c->vocab;
}

int gpt2_tensors(const gpt2_config *c)
{
    return 2 + c->layers * GPT2_PER_LAYER + 2;
}

/* The shapes of a layer's 12 tensors, in channels. */
static const struct {
    const char *name;
    int rows, columns; /* columns 0: a vector */
    float constant,
        deviates; /* initial values; deviates < 0: divided by sqrt(2 layers), as in GPT-2 */
} layer_tensors[GPT2_PER_LAYER] = {
    [GPT2_LN_1_W]      = {"ln_1.weight", 1, 0, 1.0f, 0.0f},
    [GPT2_LN_1_B]      = {"ln_1.bias", 1, 0, 0.0f, 0.0f},
    [GPT2_ATTN_W]      = {"attn.c_attn.weight", 1, 3, 0.0f, 0.02f},
    [GPT2_ATTN_B]      = {"attn.c_attn.bias", 3, 0, 0.0f, 0.0f},
    [GPT2_ATTN_PROJ_W] = {"attn.c_proj.weight", 1, 1, 0.0f, -0.02f},
    [GPT2_ATTN_PROJ_B] = {"attn.c_proj.bias", 1, 0, 0.0f, 0.0f},
    [GPT2_LN_2_W]      = {"ln_2.weight", 1, 0, 1.0f, 0.0f},
    [GPT2_LN_2_B]      = {"ln_2.bias", 1, 0, 0.0f, 0.0f},
    [GPT2_FC_W]        = {"mlp.c_fc.weight", 1, 4, 0.0f, 0.02f},
    [GPT2_FC_B]        = {"mlp.c_fc.bias", 4, 0, 0.0f, 0.0f},
    [GPT2_PROJ_W]      = {"mlp.c_proj.weight", 4, 1, 0.0f, -0.02f},
    [GPT2_PROJ_B]      = {"mlp.c_proj.bias", 1, 0, 0.0f, 0.0f},
};

static void set_shape(gpt2_tensor *t, int64_t rows, int64_t columns)
{
    t->ndim     = columns ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = columns;
    t->decay    = columns != 0;
}

static void set_start(gpt2_tensor *t, float constant, float deviates)
{
    t->mean = constant;
    t->std  = deviates;
    if (deviates > 0.0f)
        snprintf(t->init, sizeof t->init, "normal std=%.9g", (double)deviates);
    else if (constant != 0.0f)
        snprintf(t->init, sizeof t->init, "const v=%.9g", (double)constant);
    else
        snprintf(t->init, sizeof t->init, "zero");
}

static void layer_tensor_get(const gpt2_config *c, int layer, int which, gpt2_tensor *t)
{
    const int64_t C  = c->channels;
    const float std  = layer_tensors[which].deviates;
    const float less = 1.0f / sqrtf(2.0f * (float)c->layers);
    snprintf(t->name, sizeof t->name, "h.%d.%s", layer, layer_tensors[which].name);
    set_shape(t, layer_tensors[which].rows * C, layer_tensors[which].columns * C);
    set_start(t, layer_tensors[which].constant, std < 0.0f ? -std * less : std);
    t->layer = layer;
}

void gpt2_tensor_get(const gpt2_config *c, int index, gpt2_tensor *t)
{
    const int last = 2 + c->layers * GPT2_PER_LAYER;
    *t             = (gpt2_tensor){.layer = -1};
    if (index >= 2 && index < last) {
        layer_tensor_get(c, (index - 2) / GPT2_PER_LAYER, (index - 2) % GPT2_PER_LAYER, t);
        return;
    }
    static const char *const names[] = {"wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"};
    const int which                  = index < 2 ? index : index - last + 2;
    snprintf(t->name, sizeof t->name, "%s", names[which]);
    if (which < 2)
        set_shape(t, which == 0 ? rows_of_wte(c) : c->block, c->channels);
    else
        set_shape(t, c->channels, 0);
    set_start(t, which == 2 ? 1.0f : 0.0f, which < 2 ? 0.02f : 0.0f);
}

size_t gpt2_tensor_values(const gpt2_tensor *t)
{
    return (size_t)t->shape[0] * (t->ndim == 2 ? (size_t)t->shape[1] : 1);
}

size_t gpt2_values(const gpt2_config *c)
{
    size_t n = 0;
    for (int i = 0; i < gpt2_tensors(c); i++) {
        gpt2_tensor t;
        gpt2_tensor_get(c, i, &t);
        n += gpt2_tensor_values(&t);
    }
    return n;
}

/* Two steps of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) of a position: a stream without state. */
static uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Box and Muller, Annals of Mathematical Statistics 29 (1958). */
static float normal_at(uint64_t stream, uint64_t i)
{
    const uint64_t bits = mixed(stream ^ mixed(i));
    const double u      = ((double)(bits >> 32) + 0.5) / 4294967296.0;
    const double v      = (double)(bits & 0xffffffffu) / 4294967296.0;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

void gpt2_start(const gpt2_config *c, int index, uint64_t seed, float *values)
{
    gpt2_tensor t;
    gpt2_tensor_get(c, index, &t);
    const uint64_t stream = mixed(mixed(seed) + (uint64_t)index);
    for (size_t i = 0; i < gpt2_tensor_values(&t); i++)
        values[i] = t.std > 0.0f ? t.mean + t.std * normal_at(stream, i) : t.mean;
}

double gpt2_flops_per_token(const gpt2_config *c, int length)
{
    return 6.0 * (double)gpt2_values(c) + 6.0 * c->layers * (double)c->channels * length;
}
