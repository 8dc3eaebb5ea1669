/* slots.c - trains, reads the state of the rule, trains on, sets the state back and trains the same again: the bits must
 * be those of the first time, in every mode.
 *
 *   slots [NAME=VALUE ...]     settings of the SDK; mode, optim, schedule ...
 *   WAIT_FOR=FILE              in the environment: rank 0 prints "set" after it, and waits for the file
 *   STEPS=N           instead: sets the first values, as a program that loads a checkpoint, and makes N slow steps; a worker
 *                     that joins in the middle has the job's state already
 * Only rank 0 keeps the state; the others take part.
 */
#include "penstock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    WIDE      = 90001,
    HALVES    = 777,
    LAYERS    = 3,
    LAYER     = 1024,
    ARRAYS    = 12,
    BEFORE    = 4,
    AFTER     = 3,
    WORDS_MAX = 24
};

static float wide[WIDE], layers[LAYERS * LAYER], wide_grad[WIDE], layers_grad[LAYERS * LAYER],
    halves_grad[HALVES];
static uint16_t halves[HALVES];
static int n_grads; /* of this rank: gradients depend on it, so a second time has the same */

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) {                                                                    \
            fprintf(stderr, "%s: %s\n", #call, pen_last_error(NULL));                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void fill(float *grad, int n, int rank)
{
    for (int i = 0; i < n; i++) grad[i] = (float)((i * 7 + n_grads * 13 + rank * 5) % 31 - 15) / 31;
}

static void make_step(pen_ctx *ctx, pen_step *step)
{
    const int rank = pen_rank(pen_world(ctx));
    fill(wide_grad, WIDE, rank);
    fill(layers_grad, LAYERS * LAYER, rank);
    fill(halves_grad, HALVES, rank);
    pen_ready(ctx, NULL, PEN_ALL);
    TRY(pen_step_end(ctx, step));
}

static uint32_t train(pen_ctx *ctx, int steps, int from)
{
    pen_step step;
    uint32_t crc;
    n_grads = from;
    for (int i = 0; i < steps; i++, n_grads++) {
        TRY(pen_step_begin(ctx, &step));
        make_step(ctx, &step);
    }
    TRY(pen_digest(ctx, &crc));
    return crc;
}

/* All arrays of all tensors; data only on rank 0. */
static size_t list(pen_ctx *ctx, pen_tensor *const tensor[3], pen_slot slots[ARRAYS])
{
    static const char *const names[] = {"param", "exp_avg", "exp_avg_sq"};
    static const size_t elements[]   = {WIDE, LAYERS * LAYER, HALVES};
    size_t n                         = 0;
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 3; i++) {
            float *data = pen_rank(pen_world(ctx)) == 0 ? malloc(elements[t] * sizeof *data) : NULL;
            slots[n++]  = (pen_slot){.tensor = tensor[t], .slot = names[i], .data = data};
        }
    return n;
}

static void check_equal(const char *what, uint32_t a, uint32_t b)
{
    if (a == b) return;
    fprintf(stderr, "%s: %08x and %08x\n", what, a, b);
    exit(1);
}

/* On all ranks, at once. */
static void check_refused(pen_status status, const char *why)
{
    if (status == PEN_INVALID_ARGUMENT && strstr(pen_last_error(NULL), why) != NULL) return;
    fprintf(stderr, "not refused by '%s': %s\n", why, pen_last_error(NULL));
    exit(1);
}

static void wait_for_file(pen_ctx *ctx)
{
    const char *file = getenv("WAIT_FOR");
    if (file == NULL) return;
    if (pen_rank(pen_world(ctx)) == 0) {
        printf("set\n");
        fflush(stdout);
        for (int i = 0; i < 3000 && access(file, F_OK) != 0; i++) usleep(10000);
    }
    TRY(pen_barrier(pen_world(ctx), NULL, NULL));
}

static int load_and_train(pen_ctx *ctx, pen_slot *slots, size_t n, int64_t steps)
{
    pen_step step;
    uint32_t crc;
    int64_t applied;
    pen_info info;
    TRY(pen_info_get(ctx, &info));
    const pen_status status = pen_slots_get(ctx, slots, n, &applied, NULL);
    if (info.step == 0) TRY(status);
    if (info.step > 0 && status != PEN_WRONG_STATE)
        return fprintf(stderr, "late, and not told\n"), 1;
    TRY(pen_slots_set(ctx, slots, n, 0, NULL));
    do {
        TRY(pen_step_begin(ctx, &step));
        n_grads = (int)step.index;
        usleep(20000);
        make_step(ctx, &step);
    } while (step.index + 1 < steps);
    TRY(pen_digest(ctx, &crc));
    if (pen_rank(pen_world(ctx)) == 0) printf("same %08x\n", crc);
    TRY(pen_finalize(ctx));
    return 0;
}

int main(int argc, char **argv)
{
    const char *words[WORDS_MAX + 2] = {"optim=adamw lr=0.01"};
    pen_tensor *tensor[3];
    pen_slot slots[ARRAYS];
    pen_ctx *ctx;
    int64_t applied = -1;
    for (int i = 1; i < argc && i <= WORDS_MAX; i++) words[i] = argv[i];
    TRY(pen_init(words, &ctx));
    pen_register(ctx,
                 &(pen_tensor_desc){
                     .name = "wide", .ndim = 1, .shape = {WIDE}, .param = wide, .grad = wide_grad},
                 &tensor[0]);
    pen_register(ctx,
                 &(pen_tensor_desc){.name  = "h.{}.w",
                                    .ndim  = 3,
                                    .shape = {LAYERS, LAYER / 32, 32},
                                    .flags = PEN_STACKED,
                                    .param = layers,
                                    .grad  = layers_grad,
                                    .init  = "normal mean=0 std=1"},
                 &tensor[1]);
    pen_register(ctx,
                 &(pen_tensor_desc){.name       = "halves",
                                    .dtype      = PEN_BF16,
                                    .grad_dtype = PEN_F32,
                                    .ndim       = 1,
                                    .shape      = {HALVES},
                                    .param      = halves,
                                    .grad       = halves_grad},
                 &tensor[2]);
    TRY(pen_commit(ctx));

    const size_t n = list(ctx, tensor, slots);
    if (getenv("STEPS") != NULL) return load_and_train(ctx, slots, n, atoi(getenv("STEPS")));
    const uint32_t before = train(ctx, BEFORE, 0);
    TRY(pen_slots_get(ctx, slots, n, &applied, NULL));
    check_equal("updates", (uint32_t)applied, BEFORE);
    const uint32_t after = train(ctx, AFTER, BEFORE);

    check_refused(
        pen_slots_set(ctx, &(pen_slot){.tensor = tensor[0], .slot = "param"}, 1, applied, NULL),
        "data of 'wide' is NULL on rank 0");
    check_refused(pen_slots_set(ctx, slots, n, -1, NULL), "applied is below 0 on rank 0");
    TRY(pen_slots_set(ctx, slots, n, applied, NULL));
    uint32_t crc;
    TRY(pen_digest(ctx, &crc));
    check_equal("values that were set", crc, before);
    wait_for_file(ctx);
    check_equal("values of the second training", train(ctx, AFTER, BEFORE), after);
    TRY(pen_slots_get(ctx, slots, n, &applied, NULL));
    check_equal("updates", (uint32_t)applied, BEFORE + AFTER);
    if (pen_rank(pen_world(ctx)) == 0) printf("same %08x\n", after);
    for (size_t i = 0; i < n; i++) free(slots[i].data);
    TRY(pen_finalize(ctx));
    return 0;
}
