/* stepper.c - trains five small tensors on made-up gradients and prints the outcome of every step.
 *
 *   stepper [RANK:]NAME=VALUE ...      RANK: limits a word to that rank
 *     nan=STEP,TENSOR,ELEMENT          puts a NaN into that element
 *     lr_scale=X  loss_scale=X         of every step
 *     rows=N                           of the tensor 'fc1.weight' (256)
 *     pause_ms=N                       sleeps N ms in every step
 *     exit_at=STEP,CODE                exits in that step without pen_finalize()
 *     crash_at=STEP                    dies of a signal in that step
 *     wait_at=STEP,FILE                continues when the file exists; STEP -1: before pen_commit
 *     greets=1                         prints a line when pen_commit has returned
 *     lazy=1                           continues with the decision of a step, before its values arrive
 *     count=N                          values of a reduction after the last step (1)
 *   Everything else is a setting of the SDK: steps=10 clip=0.1
 * The gradient is a pure function of (rank, step, element), so the lines are the same for every number of servers.
 */
#include "penstock.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TENSORS = 5, WORDS_MAX = 64, COUNT_MAX = 64 };

typedef struct {
    const char *settings[WORDS_MAX + 3];
    int n_settings, rank;
    long nan_step, nan_tensor, nan_element, exit_step, exit_code, crash_step, rows, pause_ms, count,
        lazy, greets;
    double lr_scale, loss_scale;
    long wait_step;
    char wait_file[256];
} choices;

typedef struct {
    const char *name;
    int ndim;
    int64_t shape[8], n;
    float *param, *grad;
    pen_tensor *handle;
} tensor;

static int take_own(choices *c, const char *word)
{
    return sscanf(word, "nan=%ld,%ld,%ld", &c->nan_step, &c->nan_tensor, &c->nan_element) == 3 ||
           sscanf(word, "exit_at=%ld,%ld", &c->exit_step, &c->exit_code) == 2 ||
           sscanf(word, "crash_at=%ld", &c->crash_step) == 1 ||
           sscanf(word, "wait_at=%ld,%255s", &c->wait_step, c->wait_file) == 2 ||
           sscanf(word, "rows=%ld", &c->rows) == 1 ||
           sscanf(word, "pause_ms=%ld", &c->pause_ms) == 1 ||
           sscanf(word, "greets=%ld", &c->greets) == 1 ||
           sscanf(word, "count=%ld", &c->count) == 1 || sscanf(word, "lazy=%ld", &c->lazy) == 1 ||
           sscanf(word, "lr_scale=%lf", &c->lr_scale) == 1 ||
           sscanf(word, "loss_scale=%lf", &c->loss_scale) == 1;
}

static void read_words(choices *c, int argc, char **argv)
{
    const char *rank = getenv("RANK");
    if (rank == NULL) rank = getenv("SLURM_PROCID");
    if (rank == NULL) rank = getenv("OMPI_COMM_WORLD_RANK");
    *c                           = (choices){.nan_step   = -1,
                                             .exit_step  = -1,
                                             .crash_step = -1,
                                             .wait_step  = -2,
                                             .rows       = 256,
                                             .count      = 1,
                                             .lr_scale   = 1};
    c->rank                      = rank != NULL ? atoi(rank) : 0;
    c->settings[c->n_settings++] = "optim=adamw lr=0.01";
    c->settings[c->n_settings++] = "steps=5";
    c->settings[c->n_settings++] = "applies_loss_scale=yes";
    for (int i = 1; i < argc && i <= WORDS_MAX; i++) {
        const char *word = argv[i], *colon = strchr(word, ':'), *equals = strchr(word, '=');
        if (colon != NULL && equals != NULL && colon < equals) {
            if (atoi(word) != c->rank) continue;
            word = colon + 1;
        }
        if (take_own(c, word)) continue;
        int is_steps = strncmp(word, "steps=", 6) == 0, is_optim = strncmp(word, "optim=", 6) == 0;
        c->settings[is_steps ? 1 : is_optim ? 0 : c->n_settings++] = word;
    }
    c->settings[c->n_settings] = NULL;
}

static int fail(const char *call)
{
    fprintf(stderr, "stepper: %s\n", pen_last_error(NULL));
    (void)call;
    return 1;
}
#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return fail(#call);                                                  \
    } while (0)

static int make_tensors(pen_ctx *ctx, const choices *c, tensor *all)
{
    const tensor made[TENSORS] = {{.name = "embed", .ndim = 1, .shape = {40000}},
                                  {.name = "fc1.weight", .ndim = 2, .shape = {c->rows, 784}},
                                  {.name = "fc1.bias", .ndim = 1, .shape = {c->rows}},
                                  {.name = "scale", .ndim = 0},
                                  {.name = "fc2.weight", .ndim = 2, .shape = {100, 101}}};
    for (int t = 0; t < TENSORS; t++) {
        all[t]   = made[t];
        all[t].n = 1;
        for (int d = 0; d < all[t].ndim; d++) all[t].n *= all[t].shape[d];
        all[t].param = pen_alloc(ctx, (size_t)all[t].n * sizeof(float), PEN_HOST);
        all[t].grad  = pen_alloc(ctx, (size_t)all[t].n * sizeof(float), PEN_HOST);
        if (all[t].param == NULL || all[t].grad == NULL) return fail("pen_alloc");
        for (int64_t i = 0; i < all[t].n; i++) all[t].param[i] = (float)(i % 17 - 8) / 16;
        pen_tensor_desc desc = {
            .name = all[t].name, .ndim = all[t].ndim, .param = all[t].param, .grad = all[t].grad};
        memcpy(desc.shape, all[t].shape, sizeof desc.shape);
        TRY(pen_register(ctx, &desc, &all[t].handle));
    }
    return 0;
}

/* In [-1, 1), and smaller every step, so that a clip bound is exceeded in some steps and not in
 * others. */
static float gradient(int rank, int64_t step, int t, int64_t i)
{
    uint64_t x =
        ((uint64_t)rank << 48) ^ ((uint64_t)step << 40) ^ ((uint64_t)t << 36) ^ (uint64_t)i;
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    return (float)((double)(x >> 40) / (1 << 23) - 1) / (float)(1 + step * step);
}

static void nap(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (ms > 0 && nanosleep(&left, &left) != 0) {}
}

static void wait_for_file(const choices *c, int64_t step)
{
    while (step == c->wait_step && access(c->wait_file, F_OK) != 0) nap(10);
}

static void misbehave(const choices *c, int64_t step)
{
    nap(c->pause_ms);
    wait_for_file(c, step);
    if (step == c->exit_step) _exit((int)c->exit_code);
    if (step == c->crash_step) raise(SIGSEGV);
}

static int train_step(pen_ctx *ctx, const choices *c, tensor *all, pen_step *step)
{
    static const char *const outcomes[] = {"APPLIED", "SKIPPED_NONFINITE", "SKIPPED_NORM",
                                           "SKIPPED_EMPTY"};
    uint32_t crc;
    step->lr_scale = c->lr_scale;
    step->lazy     = c->lazy != 0;
    if (c->loss_scale > 0) step->loss_scale = c->loss_scale;
    TRY(pen_mark(ctx, "backward", 1));
    for (int t = TENSORS - 1; t >= 0; t--) {
        for (int64_t i = 0; i < all[t].n; i++)
            all[t].grad[i] = (float)step->loss_scale * gradient(c->rank, step->index, t, i);
        if (step->index == c->nan_step && t == c->nan_tensor)
            all[t].grad[c->nan_element] = 0.0f / (float)(t - t);
        pen_ready(ctx, all[t].handle, PEN_ALL);
    }
    TRY(pen_mark(ctx, "backward", 0));
    misbehave(c, step->index);
    TRY(pen_step_end(ctx, step));
    const char *bad = "-";
    for (int t = 0; t < TENSORS; t++)
        if (step->bad_tensor != NULL && step->bad_tensor == all[t].handle) bad = all[t].name;
    TRY(pen_digest(ctx, &crc));
    printf("rank %d step %lld %s applied %lld norm %.17g clip %.17g bad %d %s crc %08x\n", c->rank,
           (long long)step->index, outcomes[step->outcome], (long long)step->applied,
           step->grad_norm, step->clip, (int)step->bad_rank, bad, crc);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    choices c;
    static tensor all[TENSORS]; /* lives until exit: not a leak to a sanitizer */
    pen_ctx *ctx;
    pen_info info;
    pen_step step;
    pen_status s;
    double sums[COUNT_MAX] = {0};
    read_words(&c, argc, argv);
    TRY(pen_init(c.settings, &ctx));
    TRY(pen_info_get(ctx, &info));
    c.rank = info.rank; /* also without a variable RANK */
    if (make_tensors(ctx, &c, all) != 0) return 1;
    wait_for_file(&c, -1);
    TRY(pen_commit(ctx));
    if (c.greets != 0) printf("rank %d has committed\n", c.rank);
    fflush(stdout);
    while ((s = pen_step_begin(ctx, &step)) == PEN_OK)
        if (train_step(ctx, &c, all, &step) != 0) return 1;
    if (s != PEN_END) return fail("pen_step_begin");
    TRY(pen_all_reduce(pen_world(ctx), sums, sums, (size_t)c.count, PEN_F64, PEN_SUM,
                       &(pen_opts){.label = "loss"}, NULL));
    TRY(pen_finalize(ctx));
    return 0;
}
