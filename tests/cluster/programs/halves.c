/* halves.c - trains three tensors of 16 bits (or 32) on made-up gradients, with the SDK's loss
 * scale.
 *
 *   halves DTYPE [RANK:]NAME=VALUE ...     DTYPE is f16, bf16 or f32; RANK: limits a word to that rank
 *     peak=STEP,X     largest gradient in that step, before it is scaled
 *     nan=STEP        a NaN in the last element of 'b' in that step, at any scale
 *     data=N          takes two of N samples in every step, and prints which, with the epoch
 *     exit=STEP       exits in that step without pen_finalize(), with its samples taken
 *   Everything else is a setting of the SDK: steps=10 precision=fp16
 * Gradients are multiplied by step.loss_scale in float32 and rounded to DTYPE, as in a program's
 * own arithmetic, so they overflow when the scale is too large. Every rank prints the outcome of
 * each step.
 */
#include "penstock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TENSORS = 3, WORDS_MAX = 32, PEAKS_MAX = 8 };

typedef struct {
    const char *settings[WORDS_MAX + 1];
    int n_settings, rank, n_peaks;
    long peak_step[PEAKS_MAX], nan_step, samples, exit_step;
    float peak[PEAKS_MAX];
    pen_dtype dtype;
} choices;

typedef struct {
    const char *name;
    int64_t n;
    void *param, *grad;
    pen_tensor *handle;
} tensor;

static int fail(void)
{
    fprintf(stderr, "halves: %s\n", pen_last_error(NULL));
    return 1;
}
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fail();                                                       \
    } while (0)

/* Rounded to nearest, ties to even, with infinities: by the processor's conversion. */
static void store(void *to, int64_t i, float x, pen_dtype t)
{
    if (t == PEN_F32) {
        ((float *)to)[i] = x;
    } else if (t == PEN_F16) {
        const _Float16 h = (_Float16)x;
        memcpy((uint16_t *)to + i, &h, sizeof h);
    } else {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        if (x == x) bits += 0x7fff + (bits >> 16 & 1);
        ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
    }
}

static int read_words(choices *c, int argc, char **argv)
{
    const char *rank = getenv("RANK");
    *c = (choices){.nan_step = -1, .exit_step = -1, .rank = rank != NULL ? atoi(rank) : 0};
    if (argc < 2) return 1;
    c->settings[c->n_settings++] = "applies_loss_scale=yes";
    c->dtype                     = strcmp(argv[1], "f32") == 0   ? PEN_F32
                                   : strcmp(argv[1], "f16") == 0 ? PEN_F16
                                                                 : PEN_BF16;
    for (int i = 2; i < argc && c->n_settings < WORDS_MAX; i++) {
        const char *word = argv[i], *colon = strchr(word, ':'), *equals = strchr(word, '=');
        const int p = c->n_peaks;
        if (colon != NULL && equals != NULL && colon < equals) {
            if (atoi(word) != c->rank) continue;
            word = colon + 1;
        }
        if (sscanf(word, "nan=%ld", &c->nan_step) == 1) continue;
        if (sscanf(word, "data=%ld", &c->samples) == 1) continue;
        if (sscanf(word, "exit=%ld", &c->exit_step) == 1) continue;
        if (p < PEAKS_MAX && sscanf(word, "peak=%ld,%f", &c->peak_step[p], &c->peak[p]) == 2)
            c->n_peaks++;
        else
            c->settings[c->n_settings++] = word;
    }
    return 0;
}

static int make_tensors(pen_ctx *ctx, const choices *c, tensor *all)
{
    static const tensor made[TENSORS] = {
        {.name = "a", .n = 5000}, {.name = "b", .n = 4096}, {.name = "c", .n = 7}};
    const size_t width = c->dtype == PEN_F32 ? 4 : 2;
    for (int t = 0; t < TENSORS; t++) {
        all[t]       = made[t];
        all[t].param = pen_alloc(ctx, (size_t)all[t].n * width, PEN_HOST);
        all[t].grad  = pen_alloc(ctx, (size_t)all[t].n * width, PEN_HOST);
        if (all[t].param == NULL || all[t].grad == NULL) return fail();
        for (int64_t i = 0; i < all[t].n; i++)
            store(all[t].param, i, (float)(i % 17 - 8) / 16, c->dtype);
        TRY(pen_register(ctx,
                         &(pen_tensor_desc){.name  = all[t].name,
                                            .dtype = c->dtype,
                                            .ndim  = 1,
                                            .shape = {all[t].n},
                                            .param = all[t].param,
                                            .grad  = all[t].grad},
                         &all[t].handle));
    }
    return 0;
}

static float peak_of(const choices *c, int64_t step)
{
    for (int p = 0; p < c->n_peaks; p++)
        if (c->peak_step[p] == step) return c->peak[p];
    return 0.01f;
}

static void fill(const choices *c, const pen_step *step, tensor *all)
{
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < all[t].n; i++) {
            const float g = (float)((i * 37 + step->index * 11 + c->rank * 5 + t) % 101 - 50) / 50;
            store(all[t].grad, i, g * peak_of(c, step->index) * (float)step->loss_scale, c->dtype);
        }
    if (step->index == c->nan_step)
        store(all[1].grad, all[1].n - 1, 0.0f / (float)(step->index - step->index), c->dtype);
}

static int take_samples(const choices *c, pen_sampler *s)
{
    int64_t index[2], epoch, consumed;
    size_t got;
    if (s == NULL) return 0;
    TRY(pen_sampler_tell(s, &epoch, &consumed));
    pen_status status = pen_sampler_next(s, index, 2, &got);
    if (status == PEN_END) {
        TRY(pen_sampler_seek(s, ++epoch, 0));
        status = pen_sampler_next(s, index, 2, &got);
    }
    TRY(status);
    printf("rank %d epoch %d samples %d %d\n", c->rank, (int)epoch, (int)index[0],
           got > 1 ? (int)index[1] : -1);
    fflush(stdout);
    return 0;
}

static int train_step(pen_ctx *ctx, const choices *c, tensor *all, pen_step *step)
{
    static const char *const outcomes[] = {"APPLIED", "NONFINITE", "NORM", "EMPTY"};
    const char *bad                     = "-";
    uint32_t crc;
    fill(c, step, all);
    for (int t = TENSORS - 1; t >= 0; t--) pen_ready(ctx, all[t].handle, PEN_ALL);
    TRY(pen_step_end(ctx, step));
    for (int t = 0; t < TENSORS; t++)
        if (step->bad_tensor != NULL && step->bad_tensor == all[t].handle) bad = all[t].name;
    TRY(pen_digest(ctx, &crc));
    printf("rank %d step %lld scale %g lr %.9g %s applied %lld norm %.17g bad %d %s crc %08x\n",
           c->rank, (long long)step->index, step->loss_scale, step->lr, outcomes[step->outcome],
           (long long)step->applied, step->grad_norm, (int)step->bad_rank, bad, crc);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    choices c;
    static tensor all[TENSORS]; /* lives until exit: not a leak to a sanitizer */
    pen_ctx *ctx;
    pen_step step;
    pen_status s;
    pen_sampler *data = NULL;
    if (read_words(&c, argc, argv) != 0) return 2;
    TRY(pen_init(c.settings, &ctx));
    if (make_tensors(ctx, &c, all) != 0) return 1;
    if (c.samples > 0) TRY(pen_sampler_new(ctx, &(pen_sampler_desc){.n = c.samples}, &data));
    TRY(pen_commit(ctx));
    while ((s = pen_step_begin(ctx, &step)) == PEN_OK) {
        if (take_samples(&c, data) != 0) return 1;
        if (step.index == c.exit_step) _exit(7);
        if (train_step(ctx, &c, all, &step) != 0) return 1;
    }
    if (s != PEN_END) return fail();
    pen_sampler_free(data);
    TRY(pen_finalize(ctx));
    return 0;
}
