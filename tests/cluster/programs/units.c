/* units.c - trains a small model by units, with the loop that runs in every mode, and prints the
 * outcome of every step.
 *
 *   units [RANK:]NAME=VALUE ...        RANK: limits a word to that rank
 *     own=1                            all tensors in the program's memory instead of the SDK's
 *     diverge=1                        in every step each rank leaves out another layer, and uses the others in
 *                                      its own order
 *     rows=N                           elements of a layer's weight, in thousands (150)
 *     embed=N                          elements of the embedding, in thousands (120)
 *     even=1                           all layers have weights of one size
 *     look=1                           reads all values once more between steps, unit by unit
 *     lazy=1                           continues with the decision of a step, before its values arrive
 *     ahead=1                          lazy, and begins the next step before it asks what was decided about this one
 *     bad=N                            in step N an element of the gradient of "head" on rank 1 is infinite
 *     pause_ms=N                       sleeps N ms in every step
 *     late=1                           uses a unit again whose gradients were sent
 *     device=cuda                      the SDK's device; all work then runs in the order of a device stream, which the
 *                                      program waits for only before it prints
 *     count=1                          with the fake driver: prints the bytes that it and the SDK counted over the
 *                                      host's boundary; the driver counts each step N also as "step.N"
 *   Everything else is a setting of the SDK: steps=4 clip=0.1
 * A gradient is a pure function of (rank, step, element) and of its value, so the lines are the
 * same for every mode and number of servers, but only if every rank reads the right values.
 */
#include "penstock.h"
#include "cuda_lite.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 4, WORDS_MAX = 64, BIAS = 64, STEPS_MAX = 64 };

typedef struct {
    const char *settings[WORDS_MAX + 2];
    int n_settings, rank;
    long steps; /* begun */
    long own, diverge, rows, embed, look, lazy, ahead, bad, pause_ms, late, count, even;
    double sums[STEPS_MAX]; /* of the values that a step read, by the step */
    int on_device;
    void *stream; /* of the device; NULL: work runs at once, on the host */
} choices;

typedef struct {
    char name[32];
    int64_t n;
    pen_tensor *handle;
    void *param, *grad; /* own=1 */
} tensor;

typedef struct {
    tensor embed, head, table, weight[LAYERS], bias[LAYERS];
} network;

static int take_own(choices *c, const char *word)
{
    return sscanf(word, "own=%ld", &c->own) == 1 || sscanf(word, "diverge=%ld", &c->diverge) == 1 ||
           sscanf(word, "rows=%ld", &c->rows) == 1 || sscanf(word, "embed=%ld", &c->embed) == 1 ||
           sscanf(word, "look=%ld", &c->look) == 1 || sscanf(word, "lazy=%ld", &c->lazy) == 1 ||
           sscanf(word, "bad=%ld", &c->bad) == 1 || sscanf(word, "ahead=%ld", &c->ahead) == 1 ||
           sscanf(word, "pause_ms=%ld", &c->pause_ms) == 1 ||
           sscanf(word, "late=%ld", &c->late) == 1 || sscanf(word, "count=%ld", &c->count) == 1 ||
           sscanf(word, "even=%ld", &c->even) == 1;
}

static void read_words(choices *c, int argc, char **argv)
{
    const char *rank             = getenv("RANK");
    *c                           = (choices){.rows = 150, .embed = 120, .bad = -1};
    c->rank                      = rank != NULL ? atoi(rank) : 0;
    c->settings[c->n_settings++] = "optim=adamw lr=0.01";
    c->settings[c->n_settings++] = "steps=4";
    for (int i = 1; i < argc && i <= WORDS_MAX; i++) {
        const char *word = argv[i], *colon = strchr(word, ':'), *equals = strchr(word, '=');
        if (colon != NULL && equals != NULL && colon < equals) {
            if (atoi(word) != c->rank) continue;
            word = colon + 1;
        }
        if (take_own(c, word)) continue;
        c->on_device |= strcmp(word, "device=cuda") == 0;
        const int is_steps = strncmp(word, "steps=", 6) == 0,
                  is_optim = strncmp(word, "optim=", 6) == 0;
        c->settings[is_steps ? 1 : is_optim ? 0 : c->n_settings++] = word;
    }
    c->settings[c->n_settings] = NULL;
}

static int fail(void)
{
    fprintf(stderr, "units: %s\n", pen_last_error(NULL));
    return 1;
}
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fail();                                                       \
    } while (0)

static int add(pen_ctx *ctx, const choices *c, tensor *t, const char *name, int64_t n,
               const char *unit, const char *init, uint32_t flags, pen_tensor *tied_to)
{
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n                  = n;
    const pen_space where = c->on_device ? PEN_CUDA : PEN_HOST;
    if (c->own && tied_to == NULL) t->param = pen_alloc(ctx, (size_t)n * sizeof(float), where);
    if (c->own && !(flags & PEN_FROZEN)) t->grad = pen_alloc(ctx, (size_t)n * sizeof(float), where);
    TRY(pen_register(ctx,
                     &(pen_tensor_desc){.name    = t->name,
                                        .ndim    = 1,
                                        .shape   = {n},
                                        .flags   = flags,
                                        .param   = t->param,
                                        .grad    = t->grad,
                                        .unit    = unit,
                                        .init    = init,
                                        .tied_to = tied_to},
                     &t->handle));
    return 0;
}

static int make(pen_ctx *ctx, const choices *c, network *net)
{
    char name[32], unit[16];
    const int64_t embed = c->embed * 1000;
    if (add(ctx, c, &net->embed, "embed", embed, NULL, "normal std=0.02", 0, NULL)) return 1;
    if (add(ctx, c, &net->table, "table", embed - 10000, NULL, "uniform a=-1 b=1", PEN_FROZEN,
            NULL))
        return 1;
    for (int l = 0; l < LAYERS; l++) {
        snprintf(unit, sizeof unit, "h.%d", l);
        snprintf(name, sizeof name, "h.%d.weight", l);
        if (add(ctx, c, &net->weight[l], name, c->rows * 1000 + (c->even ? 0 : l), unit,
                "normal std=0.02", PEN_ZERO_IF_UNUSED, NULL))
            return 1;
        snprintf(name, sizeof name, "h.%d.bias", l);
        if (add(ctx, c, &net->bias[l], name, BIAS, unit, "const v=0.5", PEN_ZERO_IF_UNUSED, NULL))
            return 1;
    }
    return add(ctx, c, &net->head, "head", embed, NULL, NULL, 0, net->embed.handle);
}

/* Adds half of w, and noise in [-1, 1) that is smaller every step, so that a clip bound is exceeded in some steps and
 * not in others.  Reads no other memory for each value: a sanitizer watches every access. */
static void add_gradient(int rank, int64_t step, const char *name, int64_t n, const float *w,
                         float *g)
{
    const uint64_t from = ((uint64_t)rank << 48) ^ ((uint64_t)step << 40);
    const float divisor = (float)(1 + step * step);
    uint64_t factor = 1, term = 0; /* of a polynomial over the name's characters */
    for (; *name != '\0'; name++, factor *= 31) term = term * 31 + (unsigned char)*name;
    for (int64_t i = 0; i < n; i++) {
        uint64_t x = (from ^ (uint64_t)i) * factor + term;
        x          = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
        x          = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
        g[i] += 0.5f * w[i] + (float)((double)(x >> 40) / (1 << 23) - 1) / divisor;
    }
}

/* Work on one tensor: a gradient (g), or a sum of values (sum). */
typedef struct {
    const choices *c;
    const tensor *t;
    int64_t step;
    const float *w;
    float *g;
    double *sum;
} work;

static void compute(const work *k)
{
    const int64_t n = k->t->n;
    const float *w  = k->w;
    if (k->sum != NULL) {
        double sum = *k->sum;
        for (int64_t i = 0; i < n; i++) sum += w[i];
        *k->sum = sum;
    }
    if (k->g == NULL) return;
    if (k->c->own) memset(k->g, 0, (size_t)n * sizeof *k->g);
    add_gradient(k->c->rank, k->step, k->t->name, n, w, k->g);
    if (k->c->bad == k->step && k->c->rank == 1 && strcmp(k->t->name, "head") == 0)
        k->g[7] = INFINITY;
}

static void compute_in_stream(void *user)
{
    compute(user);
}

/* Waits for nothing: the stream reads the values and writes the gradient when it gets there. */
static int enqueue(const choices *c, const work *k)
{
    const size_t bytes = (size_t)k->t->n * sizeof(float);
    work *later        = cuda_lite_pinned(sizeof *later);
    float *w           = cuda_lite_pinned(bytes);
    float *g           = k->g != NULL ? cuda_lite_pinned(bytes) : NULL;
    *later             = *k;
    later->w           = w;
    later->g           = g;
    cuda_lite_copy(w, k->w, bytes, c->stream);
    if (g != NULL) cuda_lite_copy(g, k->g, bytes, c->stream);
    cuda_lite_must(cuda_lite.call(c->stream, compute_in_stream, later), "cuLaunchHostFunc");
    if (g != NULL) cuda_lite_copy(k->g, g, bytes, c->stream);
    return 0;
}

static int run(const choices *c, const work *k)
{
    if (c->stream != NULL) return enqueue(c, k);
    compute(k);
    return 0;
}

/* Reads the values and adds the gradient; the SDK's gradient memory starts as zeros. */
static int differentiate(pen_ctx *ctx, const choices *c, const pen_step *step, tensor *t)
{
    const float *w = pen_view(ctx, t->handle, PEN_ALL, PEN_PARAM);
    float *g       = pen_view(ctx, t->handle, PEN_ALL, PEN_GRAD);
    if (w == NULL || g == NULL) return fail();
    return run(c, &(work){.c = c, .t = t, .step = step->index, .w = w, .g = g});
}

/* The forward pass: a sum, so that the values are read. */
static int read_values(pen_ctx *ctx, const choices *c, tensor *t, double *sum)
{
    const float *w = pen_view(ctx, t->handle, PEN_ALL, PEN_PARAM);
    if (w == NULL) return fail();
    return run(c, &(work){.c = c, .t = t, .w = w, .sum = sum});
}

/* The layers that this rank uses, in order. */
static int plan_layers(const choices *c, int64_t step, int order[LAYERS])
{
    int n = 0;
    for (int l = 0; l < LAYERS; l++) {
        const int layer =
            c->diverge ? (int)((l * (c->rank % 2 ? 3 : 1) + c->rank + step) % LAYERS) : l;
        if (c->diverge && layer == (c->rank + step) % LAYERS) continue;
        order[n++] = layer;
    }
    return n;
}

static int pass(pen_ctx *ctx, const choices *c, network *net, pen_step *step, double *sum)
{
    int order[LAYERS], n = plan_layers(c, step->index, order);
    TRY(pen_use(ctx, NULL, PEN_FORWARD, c->stream));
    if (read_values(ctx, c, &net->embed, sum) || read_values(ctx, c, &net->table, sum)) return 1;
    for (int i = 0; i < n; i++) {
        pen_unit *u = pen_unit_get(ctx, "h", order[i]);
        if (u == NULL || pen_use(ctx, u, PEN_FORWARD, c->stream) != PEN_OK) return fail();
        if (read_values(ctx, c, &net->weight[order[i]], sum)) return 1;
        TRY(pen_release(ctx, u, PEN_FORWARD, c->stream));
    }
    if (differentiate(ctx, c, step, &net->head)) return 1;
    TRY(pen_ready(ctx, net->head.handle, PEN_ALL));
    for (int i = n; i-- > 0;) {
        pen_unit *u = pen_unit_get(ctx, "h", order[i]);
        TRY(pen_use(ctx, u, PEN_BACKWARD, c->stream));
        if (differentiate(ctx, c, step, &net->weight[order[i]])) return 1;
        if (differentiate(ctx, c, step, &net->bias[order[i]])) return 1;
        TRY(pen_release(ctx, u, PEN_BACKWARD, c->stream));
    }
    if (c->late) TRY(pen_use(ctx, pen_unit_get(ctx, "h", 0), PEN_FORWARD, c->stream));
    if (differentiate(ctx, c, step, &net->embed)) return 1;
    /* The outermost unit's gradients: layers that a divergent rank left out are not ready, and
     * count as zeros. */
    TRY(pen_ready(ctx, net->embed.handle, PEN_ALL));
    return 0;
}

static int look(pen_ctx *ctx, const choices *c, network *net, double *sum)
{
    for (int l = LAYERS - 1; l >= 0; l--) {
        pen_unit *u = pen_unit_get(ctx, "h", l);
        TRY(pen_use(ctx, u, PEN_FORWARD, c->stream));
        if (read_values(ctx, c, &net->weight[l], sum)) return 1;
        TRY(pen_release(ctx, u, PEN_FORWARD, c->stream));
    }
    return 0;
}

static void print_step(const choices *c, const pen_step *step)
{
    printf("rank %d step %lld outcome %d norm %.17g clip %.17g applied %lld bad %d sum %.17g",
           c->rank, (long long)step->index, step->outcome, step->grad_norm, step->clip,
           (long long)step->applied, step->bad_rank, c->sums[step->index % STEPS_MAX]);
}

/* What was decided about the step before, while this one is in progress. */
static int print_earlier(pen_ctx *ctx, const choices *c, int64_t index)
{
    pen_step step = {.index = index};
    if (index < 0) return 0;
    TRY(pen_step_decided(ctx, &step));
    print_step(c, &step);
    printf("\n");
    fflush(stdout);
    return 0;
}

static int train_step(pen_ctx *ctx, choices *c, network *net, pen_step *step)
{
    double *sum = &c->sums[step->index % STEPS_MAX], seen = 0;
    uint32_t crc;
    *sum                        = 0;
    const struct timespec pause = {c->pause_ms / 1000, c->pause_ms % 1000 * 1000000};
    step->lazy                  = c->lazy != 0 || c->ahead != 0;
    if (c->pause_ms > 0) nanosleep(&pause, NULL);
    for (int m = 0; m < step->accum; m++) {
        TRY(pen_step_micro(ctx, m));
        if (pass(ctx, c, net, step, sum)) return 1;
        TRY(pen_release(ctx, NULL, PEN_FORWARD, c->stream));
    }
    TRY(pen_step_end(ctx, step));
    if (c->count) cuda_lite_interval(NULL);
    if (c->ahead) return print_earlier(ctx, c, step->index - 1);
    if (c->look && look(ctx, c, net, &seen)) return 1;
    if (c->stream != NULL) {
        cuda_lite_must(cuda_lite.wait(c->stream), "cuStreamSynchronize");
        cuda_lite_reuse();
    }
    TRY(pen_digest(ctx, &crc));
    if (step->outcome == PEN_PENDING) TRY(pen_step_decided(ctx, step));
    print_step(c, step);
    printf(" crc %08x\n", crc);
    fflush(stdout);
    return 0;
}

static int print_last(pen_ctx *ctx, const choices *c)
{
    uint32_t crc;
    if (!c->ahead) return 0;
    if (print_earlier(ctx, c, c->steps - 2)) return 1; /* one more was begun than ended */
    TRY(pen_digest(ctx, &crc));
    printf("rank %d crc %08x\n", c->rank, crc);
    return 0;
}

static pen_status begin_step(pen_ctx *ctx, choices *c, pen_step *step)
{
    char name[32];
    snprintf(name, sizeof name, "step.%ld", c->steps++);
    if (c->count) cuda_lite_interval(name);
    const pen_status status = pen_step_begin(ctx, step);
    if (c->count && status != PEN_OK) cuda_lite_interval(NULL);
    return status;
}

static void print_memory(pen_ctx *ctx, const choices *c)
{
    static const char *const names[] = {"mem.param.peak.bytes", "mem.grad.peak.bytes",
                                        "mem.param.bytes",      "mem.grad.bytes",
                                        "pull.bytes",           "push.bytes"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        double value = 0;
        if (pen_stat(ctx, names[i], &value) == PEN_OK)
            fprintf(stderr, "memory rank %d %s %.0f\n", c->rank, names[i], value);
    }
}

/* "traffic rank 0 down driver 4096 sdk 4096 grad 4096 value 0 other 0" */
static void print_traffic(pen_ctx *ctx, const choices *c)
{
    static const char *const directions[] = {"down", "up"}, *const what[] = {"grad", "value",
                                                                             "other"};
    for (int d = 0; d < 2; d++) {
        char name[64];
        double bytes[3] = {0};
        snprintf(name, sizeof name, "sdk.copy.%s.bytes", directions[d]);
        const unsigned long long driver = cuda_lite.count(name);
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "device.%s.%s.bytes", directions[d], what[i]);
            (void)pen_stat(ctx, name, &bytes[i]);
        }
        fprintf(stderr, "traffic rank %d %s driver %llu sdk %.0f grad %.0f value %.0f other %.0f\n",
                c->rank, directions[d], driver, bytes[0] + bytes[1] + bytes[2], bytes[0], bytes[1],
                bytes[2]);
    }
}

int main(int argc, char **argv)
{
    choices c;
    static network net; /* lives until exit: not a leak to a sanitizer */
    pen_ctx *ctx;
    pen_info info;
    pen_step step;
    pen_status s;
    read_words(&c, argc, argv);
    TRY(pen_init(c.settings, &ctx));
    TRY(pen_info_get(ctx, &info));
    if (c.on_device) c.stream = cuda_lite_open(info.device);
    if (make(ctx, &c, &net) != 0) return 1;
    TRY(pen_commit(ctx));
    while ((s = begin_step(ctx, &c, &step)) == PEN_OK)
        if (train_step(ctx, &c, &net, &step) != 0) return 1;
    if (s != PEN_END || print_last(ctx, &c) != 0) return fail();
    print_memory(ctx, &c);
    if (c.count && cuda_lite.count != NULL) print_traffic(ctx, &c);
    TRY(pen_finalize(ctx));
    return 0;
}
