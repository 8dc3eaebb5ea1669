/* options.c - flags, their defaults and their ranges. */
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MODE = 256, MODEL, OPTIM, EPOCHS, BATCH, STEPS, SEED, DATA, SCHEDULE, CLIP, ACCUM, GLOBAL };
enum { DEVICE = 512, LOSS_LOG, CURVE, OUT, JSON, SLOW_MS, SLOW_RANK };

/* clang-format off */
static const struct argp_option rows[] = {
    {"mode",        MODE,      "MODE",  0, "local, ddp (or allreduce), zero1, zero2, zero3, ps-bsp, ps-ssp, ps-async or ps-hier (default: PENSTOCK_MODE, else the SDK decides)", 1},
    {"model",       MODEL,     "NAME",  0, "mlp or cnn (default mlp)", 1},
    {"data",        DATA,      "DIR",   0, "directory of the idx files (default " DATA_DIR ")", 1},
    {"device",      DEVICE,    "NAME",  0, "cpu", 1},
    {"optim",       OPTIM,     "TEXT",  0, "update rule (default \"adam lr=0.002\")", 2},
    {"lr-schedule", SCHEDULE,  "NAME",  0, "learning rate decay: constant, linear or cosine (default cosine)", 2},
    {"clip",        CLIP,      "X",     0, "maximum global gradient norm", 2},
    {"grad-accum",  ACCUM,     "N",     0, "micro-batches per step and rank; only their sum is sent", 2},
    {"epochs",      EPOCHS,    "N",     0, "passes over the training images (default 8)", 2},
    {"steps",       STEPS,     "N",     0, "stop after N steps; overrides --epochs", 2},
    {"batch",       BATCH,     "N",     0, "global batch size (default 256)", 2},
    {"batch-global", GLOBAL,   NULL,    0, "keep --batch when workers join or leave; else it scales with their number", 2},
    {"seed",        SEED,      "N",     0, "seed of initial values and data order (default 1)", 2},
    {"json",        JSON,      NULL,    0, "print only the result, as JSON, to stdout; the rest to stderr", 3},
    {"out",         OUT,       "FILE",  0, "write the same JSON to FILE", 3},
    {"curve",       CURVE,     "FILE",  0, "write rows \"step loss\" for scripts/plot_loss.gp", 3},
    {"loss-log",    LOSS_LOG,  "FILE",  0, "write rows \"step loss\" with every digit", 3},
    {"slow-ms",     SLOW_MS,   "N",     0, "sleep N ms in every step of --slow-rank, to see ps-ssp at work", 4},
    {"slow-rank",   SLOW_RANK, "RANK",  0, "(default 0)", 4},
    {0},
};
/* clang-format on */

static double decay_constant(int64_t step, int64_t steps)
{
    (void)step;
    (void)steps;
    return 1.0;
}

/* The remaining part: 1 at step 0, 1 / steps at the last. */
static double decay_linear(int64_t step, int64_t steps)
{
    return step < steps ? (double)(steps - step) / (double)steps : 1.0 / (double)steps;
}

static double decay_cosine(int64_t step, int64_t steps)
{
    return 0.5 - 0.5 * cos(acos(-1.0) * decay_linear(step, steps));
}

static options_schedule_fn find_schedule(const struct argp_state *state, const char *name)
{
    if (strcmp(name, "constant") == 0) return decay_constant;
    if (strcmp(name, "linear") == 0) return decay_linear;
    if (strcmp(name, "cosine") == 0) return decay_cosine;
    argp_error(state, "--lr-schedule is constant, linear or cosine, not '%s'", name);
    return NULL;
}

static const model_ops *find_model(const struct argp_state *state, const char *name)
{
    const model_ops *ops = model_find(name);
    if (!ops) argp_error(state, "--model is mlp or cnn, not '%s'", name);
    return ops;
}

static const char *find_mode(const struct argp_state *state, const char *name)
{
    const char *const modes[] = {"local",  "ddp",    "allreduce", "zero1",   "zero2", "zero3",
                                 "ps-bsp", "ps-ssp", "ps-async",  "ps-hier", NULL};
    for (int i = 0; modes[i]; i++)
        if (strcmp(modes[i], name) == 0) return modes[i];
    argp_error(state,
               "--mode is local, ddp, allreduce, zero1, zero2, zero3, ps-bsp, ps-ssp, ps-async or "
               "ps-hier, not '%s'",
               name);
    return NULL;
}

static int64_t whole(const struct argp_state *state, const char *flag, const char *text,
                     int64_t min, int64_t max)
{
    char *end;
    errno             = 0;
    const long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < min || n > max)
        argp_error(state, "--%s is a whole number from %lld to %lld, not '%s'", flag,
                   (long long)min, (long long)max, text);
    return n;
}

/* The SDK checks the range; we check that it is one word, because it becomes "clip=TEXT". */
static const char *number(const struct argp_state *state, const char *flag, const char *text)
{
    char *end;
    const double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x) || x < 0 || strlen(text) >= OPTIONS_TEXT_BYTES)
        argp_error(state, "--%s is a number from 0, not '%s'", flag, text);
    return text;
}

/* The SDK checks its words too. */
static const char *one_line(const struct argp_state *state, const char *flag, const char *text)
{
    if (strlen(text) >= OPTIONS_TEXT_BYTES)
        argp_error(state, "--%s is longer than %d bytes", flag, OPTIONS_TEXT_BYTES - 1);
    return text;
}

static void check_device(const struct argp_state *state, const char *name)
{
    if (strcmp(name, "cuda") == 0)
        argp_failure(state, 1, 0,
                     "--device cuda: this example has no GPU path yet; leave --device out");
    if (strcmp(name, "cpu") != 0) argp_error(state, "--device is cpu, not '%s'", name);
}

static error_t take(int key, char *arg, struct argp_state *state)
{
    options *o = state->input;
    switch (key) {
    case MODE: o->mode = find_mode(state, arg); return 0;
    case MODEL: o->model = find_model(state, arg); return 0;
    case DATA: o->data_dir = arg; return 0;
    case DEVICE: check_device(state, arg); return 0;
    case OPTIM: o->optim = one_line(state, "optim", arg); return 0;
    case SCHEDULE: o->decay = find_schedule(state, arg); return 0;
    case CLIP: o->clip = number(state, "clip", arg); return 0;
    case ACCUM:
        whole(state, "grad-accum", arg, 1, 65536);
        o->accum = arg;
        return 0;
    case EPOCHS: o->epochs = whole(state, "epochs", arg, 1, 100000); return 0;
    case STEPS: o->steps = whole(state, "steps", arg, 1, INT64_C(1000000000)); return 0;
    case BATCH: o->batch = whole(state, "batch", arg, 1, DATA_SAMPLES_MAX); return 0;
    case GLOBAL: o->batch_global = true; return 0;
    case SEED: o->seed = (uint64_t)whole(state, "seed", arg, 0, INT64_C(1) << 53); return 0;
    case JSON: o->json = true; return 0;
    case OUT: o->out = arg; return 0;
    case CURVE: o->curve = arg; return 0;
    case LOSS_LOG: o->loss_log = arg; return 0;
    case SLOW_MS: o->slow_ms = whole(state, "slow-ms", arg, 0, 60000); return 0;
    case SLOW_RANK: o->slow_rank = whole(state, "slow-rank", arg, 0, 1000000); return 0;
    case ARGP_KEY_ARG: argp_error(state, "unknown flag '%s'", arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

void options_parse(options *o, int argc, char **argv)
{
    const struct argp argp = {
        .options = rows,
        .parser  = take,
        .doc =
            "Trains a small network on Fashion-MNIST with Penstock, alone or under `penstock run`.",
    };
    *o = (options){
        .model    = &model_mlp,
        .optim    = "adam lr=0.002",
        .decay    = decay_cosine,
        .epochs   = 8,
        .batch    = 256,
        .seed     = 1,
        .data_dir = DATA_DIR,
    };
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, o);
}
