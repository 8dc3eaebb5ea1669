/* gpt2.c - the network of gpt2 on one GPU:  gpt2 check  |  gpt2 time [PRESET [BATCH [LENGTH [fp32|bf16 [STEPS]]]]]
 *
 * check    loss and all gradients of the preset tiny against the CPU network, in both types.
 * time     steps of training with AdamW, all on the device: one line of JSON. A step's time is from
 *          its first call until all of it is done; the median after three. MFU is 6 N + 6 L C T
 *          flops a token (llm.c's count) over the rate of 8192 x 8192 matrix products in the same
 *          run, with zeros, in the same type.
 * Exit codes: 0 right, 77 no device, else wrong.
 */
#include "gpt2_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SKIP = 77, LIMIT_S = 280, WARM = 3, SQUARE = 8192, TENSORS_MAX = 1024 };

typedef struct {
    gpt2_config config;
    gpt2_options options;
    gpt2_cuda *m;
    int tensors;
    size_t wide, n[TENSORS_MAX];
    void *value[TENSORS_MAX], *grad[TENSORS_MAX];
    float *master[TENSORS_MAX], *m1[TENSORS_MAX], *m2[TENSORS_MAX], *first[TENSORS_MAX];
    bool decays[TENSORS_MAX];
    int32_t *tokens, *targets;
} run;

static int fail(const char *why)
{
    fprintf(stderr, "gpt2: %s\n", why);
    return strstr(why, "no CUDA device") ? SKIP : 1;
}

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float wide_of(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Values are rounded to bf16 in both types, so that both compute the same. */
static bool send_values(run *r, int i)
{
    uint16_t *half = malloc(r->n[i] * sizeof *half);
    if (!half) return false;
    for (size_t j = 0; j < r->n[i]; j++) {
        half[j]        = bf16_of(r->first[i][j]);
        r->first[i][j] = wide_of(half[j]);
    }
    const void *from = r->options.type == GPT2_F32 ? (const void *)r->first[i] : half;
    gpt2_cuda_upload(r->m, r->value[i], from, r->n[i] * r->wide);
    gpt2_cuda_upload(r->m, r->master[i], r->first[i], r->n[i] * sizeof(float));
    free(half);
    return true;
}

static bool open_tensor(run *r, int i)
{
    gpt2_tensor t;
    gpt2_tensor_get(&r->config, i, &t);
    const size_t n = r->n[i] = gpt2_tensor_values(&t);
    r->decays[i]             = t.decay;
    r->value[i]              = gpt2_cuda_memory(n * r->wide);
    r->grad[i]               = gpt2_cuda_memory(n * r->wide);
    r->master[i]             = gpt2_cuda_memory(n * sizeof(float));
    r->m1[i]                 = gpt2_cuda_memory(n * sizeof(float));
    r->m2[i]                 = gpt2_cuda_memory(n * sizeof(float));
    r->first[i]              = malloc(n * sizeof(float));
    if (!r->value[i] || !r->grad[i] || !r->master[i] || !r->m1[i] || !r->m2[i] || !r->first[i])
        return false;
    gpt2_start(&r->config, i, 1, r->first[i]);
    gpt2_cuda_place(r->m, i, r->value[i], r->grad[i]);
    return send_values(r, i);
}

static const char *open_run(run *r)
{
    const char *why;
    const int rows = r->options.batch * r->options.length;
    r->tensors     = gpt2_tensors(&r->config);
    r->wide        = r->options.type == GPT2_F32 ? 4 : 2;
    r->m           = gpt2_cuda_new(&r->config, &r->options, NULL, &why);
    if (!r->m) return why;
    r->tokens  = malloc((size_t)rows * sizeof *r->tokens);
    r->targets = malloc((size_t)rows * sizeof *r->targets);
    if (r->tensors > TENSORS_MAX || !r->tokens || !r->targets) return "no memory";
    for (int i = 0; i < rows; i++) {
        r->tokens[i]  = (int32_t)((uint32_t)i * 2654435761u >> 8) % r->config.vocab;
        r->targets[i] = (int32_t)((uint32_t)(i + 1) * 2654435761u >> 8) % r->config.vocab;
    }
    for (int i = 0; i < r->tensors; i++)
        if (!open_tensor(r, i)) return "the GPU has not enough memory for the parameters";
    return NULL;
}

static void close_run(run *r)
{
    for (int i = 0; i < r->tensors; i++) {
        void *all[] = {r->value[i], r->grad[i], r->master[i], r->m1[i], r->m2[i]};
        for (int j = 0; j < 5; j++) gpt2_cuda_memory_free(all[j]);
        free(r->first[i]);
    }
    gpt2_cuda_free(r->m);
    free(r->tokens);
    free(r->targets);
}

static void pass(run *r)
{
    gpt2_cuda_embed(r->m, r->tokens, r->options.batch, r->options.length);
    for (int l = 0; l < r->config.layers; l++) gpt2_cuda_block(r->m, l);
    gpt2_cuda_head(r->m, r->targets, 1.0f);
    for (int l = r->config.layers - 1; l >= 0; l--) gpt2_cuda_block_backward(r->m, l);
    gpt2_cuda_embed_backward(r->m);
}

/* ---- check ------------------------------------------------------------------------------------- */
static double loss_on_cpu(run *r, float **grad)
{
    const char *why;
    const gpt2_options o = {.batch = r->options.batch, .length = r->options.length};
    gpt2 *m              = gpt2_new(&r->config, &o, &why);
    if (!m) return NAN;
    for (int i = 0; i < r->tensors; i++) {
        grad[i] = calloc(r->n[i], sizeof **grad);
        gpt2_place(m, i, r->first[i], grad[i]);
    }
    gpt2_embed(m, r->tokens, o.batch, o.length, 0);
    for (int l = 0; l < r->config.layers; l++) gpt2_block(m, l);
    const double loss = gpt2_head(m, r->targets, 1.0f);
    for (int l = r->config.layers - 1; l >= 0; l--) gpt2_block_backward(m, l);
    gpt2_embed_backward(m);
    gpt2_free(m);
    return loss;
}

/* ||device - host|| / ||host|| of one tensor. */
static double distance(run *r, int i, const float *want)
{
    void *raw    = malloc(r->n[i] * r->wide);
    double apart = 0.0, square = 0.0;
    if (!raw) return NAN;
    gpt2_cuda_download(r->m, raw, r->grad[i], r->n[i] * r->wide);
    for (size_t j = 0; j < r->n[i]; j++) {
        const float got = r->wide == 4 ? ((float *)raw)[j] : wide_of(((uint16_t *)raw)[j]);
        apart += (got - want[j]) * (got - want[j]);
        square += (double)want[j] * want[j];
    }
    free(raw);
    return sqrt(apart / square);
}

static int check(gpt2_type type, double tolerance)
{
    run r = {.options = {.batch = 3, .length = 100, .type = type}};
    float *want[TENSORS_MAX];
    gpt2_preset("tiny", &r.config);
    const char *why = open_run(&r);
    if (why) return fail(why);
    pass(&r);
    const double loss = gpt2_cuda_loss(r.m), right = loss_on_cpu(&r, want);
    why = gpt2_cuda_wrong(r.m);
    if (why) return fail(why);
    double most = fabs(loss - right) / right;
    for (int i = 0; i < r.tensors; i++) {
        const double apart = distance(&r, i, want[i]);
        if (!(apart <= most)) most = apart;
        free(want[i]);
    }
    close_run(&r);
    printf("%s: loss %.6f, on the CPU %.6f; %.0f %% of the tolerance\n",
           type == GPT2_F32 ? "fp32" : "bf16", loss, right, most / tolerance * 100);
    return most < tolerance ? 0 : fail("the GPU and the CPU differ");
}

/* ---- time -------------------------------------------------------------------------------------- */
static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void update(run *r, int step)
{
    gpt2_cuda_adamw rule = {.rate = 3e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
    rule.correct1        = 1.0f - powf(rule.beta1, (float)step + 1);
    rule.correct2        = 1.0f - powf(rule.beta2, (float)step + 1);
    rule.grad_scale      = 1.0f;
    for (int i = 0; i < r->tensors; i++) {
        rule.decay = r->decays[i] ? 0.1f : 0.0f;
        gpt2_cuda_update(r->m, r->value[i], r->master[i], r->m1[i], r->m2[i], r->grad[i], r->n[i],
                         &rule);
    }
}

static int measure(run *r, const char *preset, int steps)
{
    const char *why = open_run(r);
    if (why) return fail(why);
    double *seconds = calloc((size_t)steps, sizeof *seconds), first = 0.0, last = 0.0;
    if (!seconds) return fail("no memory");
    for (int i = -WARM; i < steps; i++) {
        const double begun = now_s();
        pass(r);
        update(r, i + WARM);
        gpt2_cuda_wait(r->m);
        last = gpt2_cuda_loss(r->m);
        why  = gpt2_cuda_wrong(r->m);
        if (why) return fail(why);
        if (i == -WARM) first = last;
        if (i >= 0) seconds[i] = now_s() - begun;
    }
    const double ceiling = gpt2_cuda_ceiling(r->m, SQUARE, 20);
    qsort(seconds, (size_t)steps, sizeof *seconds, by_size);
    const double step = seconds[steps / 2], tokens = r->options.batch * r->options.length;
    const double flops = gpt2_flops_per_token(&r->config, r->options.length) * tokens / step;
    printf(
        "{\"preset\": \"%s\", \"parameters\": %zu, \"batch\": %d, \"length\": %d, \"precision\": "
        "\"%s\", \"steps\": %d, \"step_p50_s\": %.6f, \"tokens_per_s\": %.0f, \"tflops\": %.1f, "
        "\"ceiling_tflops\": %.1f, \"mfu\": %.4f, \"first_loss\": %.6f, \"last_loss\": %.6f}\n",
        preset, gpt2_values(&r->config), r->options.batch, r->options.length,
        r->wide == 4 ? "fp32" : "bf16", steps, step, tokens / step, flops / 1e12, ceiling / 1e12,
        ceiling > 0 ? flops / ceiling : 0.0, first, last);
    free(seconds);
    close_run(r);
    return last < first ? 0 : fail("the loss did not fall");
}

int main(int argc, char **argv)
{
    alarm(LIMIT_S);
    if (argc > 1 && strcmp(argv[1], "time") == 0) {
        run r              = {.options = {.batch = 32, .length = 1024, .type = GPT2_BF16}};
        const char *preset = argc > 2 ? argv[2] : "124m";
        const int steps    = argc > 6 ? atoi(argv[6]) : 20;
        if (!gpt2_preset(preset, &r.config)) return fail("there is no such preset");
        if (r.config.vocab > 1024) r.config.vocab_padded = (r.config.vocab + 127) / 128 * 128;
        if (argc > 3) r.options.batch = atoi(argv[3]);
        if (argc > 4) r.options.length = atoi(argv[4]);
        if (argc > 5 && strcmp(argv[5], "fp32") == 0) r.options.type = GPT2_F32;
        return steps < 1 ? fail("steps must be at least 1") : measure(&r, preset, steps);
    }
    const int code = check(GPT2_F32, 1e-3);
    return code ? code : check(GPT2_BF16, 8e-2);
}
