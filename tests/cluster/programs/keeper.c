/* keeper.c - trains small tensors on gradients that depend on the other contents of a snapshot: a
 * generator of each rank, a counter of all ranks, the position of a sampler. Prints the outcome of
 * every step.
 *
 *   keeper [WORD=VALUE ...]
 *     import=FILE                      reads the first values from FILE
 *     export=FILE  format=TEXT         writes the last values to FILE; format as in pen_export ("safetensors")
 *     ask=STEP                         rank 0 asks for a snapshot in that step
 *     own=NAME                         name of the counter ("counter")
 *     back=STEP,TO                     goes back to the snapshot of step TO after that step, once
 *     nan=STEP                         rank 0's gradient is not finite in that step
 *     dtype=bf16                       of the parameters (f32)
 *   Everything else is a setting of the SDK: steps=10 mode=zero2 store=DIR resume=yes
 * Gradients depend on the rank and on the saved state, not on the mode: all modes print the same
 * lines.
 */
#include "penstock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TENSORS = 4, WORDS_MAX = 32, SAMPLES = 1000, BATCH = 3 };

typedef struct {
    const char *settings[WORDS_MAX + 4];
    int n_settings;
    const char *import, *export, *format, *own;
    long ask_step, nan_step, back_step, back_to;
    int is_half;
} choices;

typedef struct {
    const char *name;
    int ndim, frozen;
    int64_t shape[8], n;
    void *param;
    float *grad;
    pen_tensor *handle;
} tensor;

typedef struct {        /* saved in a snapshot */
    uint64_t generator; /* one per rank */
    uint64_t counter;   /* the same on all ranks */
    pen_sampler *sampler;
} kept;

static int take_own(choices *c, const char *word)
{
    if (strncmp(word, "import=", 7) == 0) c->import = word + 7;
    if (strncmp(word, "export=", 7) == 0) c->export = word + 7;
    if (strncmp(word, "format=", 7) == 0) c->format = word + 7;
    if (strncmp(word, "own=", 4) == 0) c->own = word + 4;
    if (strcmp(word, "dtype=bf16") == 0) c->is_half = 1;
    return c->import == word + 7 || c->export == word + 7 || c->format == word + 7 ||
           c->own == word + 4 || strncmp(word, "dtype=", 6) == 0 ||
           sscanf(word, "ask=%ld", &c->ask_step) == 1 ||
           sscanf(word, "back=%ld,%ld", &c->back_step, &c->back_to) == 2 ||
           sscanf(word, "nan=%ld", &c->nan_step) == 1;
}

static void read_words(choices *c, int argc, char **argv)
{
    *c = (choices){.ask_step = -1, .nan_step = -1, .back_step = -1, .own = "counter"};
    c->settings[c->n_settings++] = "optim=adamw lr=0.01 weight_decay=0.1";
    c->settings[c->n_settings++] = "clip=0.5";
    c->settings[c->n_settings++] = "applies_loss_scale=yes";
    for (int i = 1; i < argc && i <= WORDS_MAX; i++) {
        if (take_own(c, argv[i])) continue;
        const int at    = strncmp(argv[i], "optim=", 6) == 0  ? 0
                          : strncmp(argv[i], "clip=", 5) == 0 ? 1
                                                              : c->n_settings++;
        c->settings[at] = argv[i];
    }
    c->settings[c->n_settings] = NULL;
}

static int fail(void)
{
    fprintf(stderr, "keeper: %s\n", pen_last_error(NULL));
    return 1;
}
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fail();                                                       \
    } while (0)

/* A value of few bits, so that bf16 holds it exactly. */
static void first_value(void *param, int is_half, int64_t i)
{
    const float x = (float)(i % 17 - 8) / 16;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (is_half)
        ((uint16_t *)param)[i] = (uint16_t)(bits >> 16);
    else
        ((float *)param)[i] = x;
}

static int make_tensors(pen_ctx *ctx, const choices *c, tensor *all)
{
    const tensor made[TENSORS] = {{.name = "embed", .ndim = 2, .shape = {300, 70}},
                                  {.name = "h.0.weight", .ndim = 2, .shape = {90, 100}},
                                  {.name = "table", .ndim = 1, .shape = {5000}, .frozen = 1},
                                  {.name = "h.0.bias", .ndim = 1, .shape = {90}}};
    for (int t = 0; t < TENSORS; t++) {
        all[t]   = made[t];
        all[t].n = 1;
        for (int d = 0; d < all[t].ndim; d++) all[t].n *= all[t].shape[d];
        all[t].param = pen_alloc(ctx, (size_t)all[t].n * sizeof(float), PEN_HOST);
        all[t].grad  = pen_alloc(ctx, (size_t)all[t].n * sizeof(float), PEN_HOST);
        if (all[t].param == NULL || all[t].grad == NULL) return fail();
        for (int64_t i = 0; i < all[t].n; i++) first_value(all[t].param, c->is_half, i);
        pen_tensor_desc desc = {.name       = all[t].name,
                                .dtype      = c->is_half ? PEN_BF16 : PEN_F32,
                                .grad_dtype = PEN_F32,
                                .ndim       = all[t].ndim,
                                .flags      = all[t].frozen ? PEN_FROZEN : 0,
                                .param      = all[t].param,
                                .grad       = all[t].frozen ? NULL : all[t].grad};
        memcpy(desc.shape, all[t].shape, sizeof desc.shape);
        TRY(pen_register(ctx, &desc, &all[t].handle));
    }
    return 0;
}

static double draw(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x          = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x          = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)(x >> 11) / (double)(1ull << 52) - 1;
}

static int fill_gradients(tensor *all, kept *k, const choices *c, const pen_step *step, int rank)
{
    int64_t index[BATCH];
    size_t got;
    double noise = draw(&k->generator), sum = 0;
    pen_status s = pen_sampler_next(k->sampler, index, BATCH, &got);
    if (s != PEN_OK) return fail();
    for (size_t i = 0; i < got; i++) sum += (double)index[i];
    k->counter += 3;
    for (int t = 0; t < TENSORS; t++)
        for (int64_t i = 0; i < all[t].n && !all[t].frozen; i++)
            all[t].grad[i] =
                (float)step->loss_scale *
                (float)(noise * (double)(i % 29) + sum * (double)(i % 7) + (double)k->counter) /
                1024;
    if (step->index == c->nan_step && rank == 0) all[0].grad[0] = 0.0f / (float)got - 1e38f * 1e38f;
    return 0;
}

static int train_step(pen_ctx *ctx, const choices *c, tensor *all, kept *k, pen_step *step)
{
    uint32_t crc;
    pen_req saving = {0};
    pen_result result;
    const int rank = pen_rank(pen_world(ctx));
    const int asks = rank == 0 && step->index == c->ask_step;
    if (asks) TRY(pen_snapshot(ctx, NULL, &saving));
    if (asks) usleep(200000); /* so that the request returns from the scheduler before the step */
    if (fill_gradients(all, k, c, step, rank) != 0) return 1;
    for (int t = TENSORS - 1; t >= 0; t--)
        if (!all[t].frozen) TRY(pen_ready(ctx, all[t].handle, PEN_ALL));
    TRY(pen_step_end(ctx, step));
    TRY(pen_digest(ctx, &crc));
    printf("rank %d step %lld outcome %d applied %lld norm %.17g scale %g generator %016llx "
           "counter %llu "
           "crc %08x\n",
           rank, (long long)step->index, (int)step->outcome, (long long)step->applied,
           step->grad_norm, step->loss_scale, (unsigned long long)k->generator,
           (unsigned long long)k->counter, crc);
    fflush(stdout);
    if (asks) TRY(pen_wait(&saving, &result));
    return 0;
}

static int set_up(pen_ctx *ctx, const choices *c, tensor *all, kept *k)
{
    pen_info info;
    TRY(pen_info_get(ctx, &info));
    k->generator = (uint64_t)info.rank + 1;
    if (make_tensors(ctx, c, all) != 0) return 1;
    TRY(pen_state_add(ctx, "generator", &k->generator, sizeof k->generator, 1));
    TRY(pen_state_add(ctx, c->own, &k->counter, sizeof k->counter, 0));
    TRY(pen_sampler_new(ctx, &(pen_sampler_desc){.n = SAMPLES, .seed = 5}, &k->sampler));
    if (c->import != NULL) TRY(pen_import(ctx, c->import, NULL));
    TRY(pen_commit(ctx));
    return 0;
}

int main(int argc, char **argv)
{
    choices c;
    static tensor all[TENSORS]; /* lives until exit: not a leak to a sanitizer */
    static kept k;
    pen_ctx *ctx;
    pen_step step;
    pen_status s;
    read_words(&c, argc, argv);
    TRY(pen_init(c.settings, &ctx));
    if (set_up(ctx, &c, all, &k) != 0) return 1;
    while ((s = pen_step_begin(ctx, &step)) == PEN_OK) {
        if (train_step(ctx, &c, all, &k, &step) != 0) return 1;
        if (step.index != c.back_step) continue;
        TRY(pen_restore(ctx, c.back_to, NULL));
        c.back_step = -1;
    }
    if (s != PEN_END) return fail();
    if (c.export != NULL) TRY(pen_export(ctx, c.export, c.format, NULL));
    pen_sampler_free(k.sampler);
    TRY(pen_finalize(ctx));
    return 0;
}
