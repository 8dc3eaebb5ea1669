/* resident.c - compares the memory a worker holds, by its own count and by the kernel's, between
 * two steps.
 *
 *   resident [NAME=VALUE ...]
 *     layers=N  elements=N    N units of N float32 elements, all in SDK memory (4, 2000000)
 *   Everything else is a setting of the SDK.
 * After the third step, each rank prints one line: bytes counted (parameters, gradients, optimizer
 * state), and the growth of the process's proportional set since pen_init(). Shared memory counts
 * once in its sum over ranks.
 */
#include "penstock.h"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 64, LAYERS_MAX = 64, STEPS = 3 };

typedef struct {
    const char *settings[WORDS_MAX + 3];
    int n_settings;
    long layers, elements;
} choices;

static void read_words(choices *c, int argc, char **argv)
{
    *c                           = (choices){.layers = 4, .elements = 2000000};
    c->settings[c->n_settings++] = "optim=adamw lr=0.01";
    c->settings[c->n_settings++] = "steps=3";
    for (int i = 1; i < argc && i <= WORDS_MAX; i++)
        if (sscanf(argv[i], "layers=%ld", &c->layers) != 1 &&
            sscanf(argv[i], "elements=%ld", &c->elements) != 1)
            c->settings[c->n_settings++] = argv[i];
    if (c->layers > LAYERS_MAX) c->layers = LAYERS_MAX;
    c->settings[c->n_settings] = NULL;
}

static int fail(void)
{
    fprintf(stderr, "resident: %s\n", pen_last_error(NULL));
    return 1;
}
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fail();                                                       \
    } while (0)

/* The proportional set in bytes, without memory that the allocator has cached. */
static double resident_bytes(void)
{
    char line[128];
    double kib = -1;
    malloc_trim(0);
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    if (f == NULL) return -1;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "Pss: %lf", &kib) == 1) break;
    fclose(f);
    return kib * 1024;
}

static int make(pen_ctx *ctx, const choices *c, pen_tensor *weight[])
{
    for (long l = 0; l < c->layers; l++) {
        char unit[32], name[40];
        snprintf(unit, sizeof unit, "h.%ld", l);
        snprintf(name, sizeof name, "h.%ld.weight", l);
        TRY(pen_register(ctx,
                         &(pen_tensor_desc){.name  = name,
                                            .ndim  = 1,
                                            .shape = {c->elements},
                                            .unit  = unit,
                                            .init  = "normal std=0.02"},
                         &weight[l]));
    }
    return 0;
}

static int differentiate(pen_ctx *ctx, const choices *c, pen_tensor *weight)
{
    const float *w = pen_view(ctx, weight, PEN_ALL, PEN_PARAM);
    float *g       = pen_view(ctx, weight, PEN_ALL, PEN_GRAD);
    if (w == NULL || g == NULL) return fail();
    for (long i = 0; i < c->elements; i++) g[i] += 0.5f * w[i];
    return 0;
}

static int train_step(pen_ctx *ctx, const choices *c, pen_tensor *weight[], pen_step *step)
{
    for (long l = 0; l < c->layers; l++) {
        pen_unit *u = pen_unit_get(ctx, "h", (int)l);
        TRY(pen_use(ctx, u, PEN_FORWARD, NULL));
        TRY(pen_release(ctx, u, PEN_FORWARD, NULL));
    }
    for (long l = c->layers; l-- > 0;) {
        pen_unit *u = pen_unit_get(ctx, "h", (int)l);
        TRY(pen_use(ctx, u, PEN_BACKWARD, NULL));
        if (differentiate(ctx, c, weight[l]) != 0) return 1;
        TRY(pen_release(ctx, u, PEN_BACKWARD, NULL));
    }
    TRY(pen_step_end(ctx, step));
    return 0;
}

static double counted_bytes(pen_ctx *ctx)
{
    static const char *const names[] = {"mem.param.bytes", "mem.grad.bytes", "mem.slot.bytes"};
    double sum                       = 0, value;
    for (int i = 0; i < 3; i++)
        if (pen_stat(ctx, names[i], &value) == PEN_OK) sum += value;
    return sum;
}

int main(int argc, char **argv)
{
    choices c;
    pen_tensor *weight[LAYERS_MAX];
    pen_ctx *ctx;
    pen_step step;
    pen_status s;
    read_words(&c, argc, argv);
    TRY(pen_init(c.settings, &ctx));
    const double before = resident_bytes();
    if (make(ctx, &c, weight) != 0) return 1;
    TRY(pen_commit(ctx));
    while ((s = pen_step_begin(ctx, &step)) == PEN_OK) {
        if (train_step(ctx, &c, weight, &step) != 0) return 1;
        if (step.index != STEPS - 1) continue;
        TRY(pen_barrier(pen_world(ctx), NULL, NULL)); /* data in flight is not held */
        const double after = resident_bytes();
        printf("rank %s counted %.0f resident %.0f\n", getenv("RANK"), counted_bytes(ctx),
               after - before);
        fflush(stdout);
        TRY(pen_barrier(pen_world(ctx), NULL, NULL)); /* no rank leaves while another measures */
    }
    if (s != PEN_END) return fail();
    TRY(pen_finalize(ctx));
    return 0;
}
