/* options.c - flags, their defaults and ranges, and the presets' defaults. */
#include "options.h"
#include "text/tokenizer.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PRESET = 256,
    LAYERS,
    HEADS,
    CHANNELS,
    BLOCK,
    RECOMPUTE,
    HELD,
    STACKED,
    STARTS_HERE,
    IMPORT,
    DEVICE,
    PLUGIN
};
enum { DATA = 300, TOKENS, HELD_TOKENS, VOCAB, MERGES, SHUFFLE };
enum { STEPS = 400, BATCH, LENGTH, ACCUM, OPTIM, SCHEDULE, CLIP, MODE, PRECISION, SEED };
enum {
    LOG_EVERY = 500,
    EVAL_EVERY,
    EVAL_SEQUENCES,
    SAMPLE,
    TEMPERATURE,
    TOP_K,
    SAMPLE_SEED,
    PROMPT
};
enum { JSON = 600, OUT, LOSS_LOG, CURVE, SAMPLE_OUT, SLOW_MS, EXPORT };

/* clang-format off */
static const struct argp_option rows[] = {
    {0, 0, 0, 0, "The network:", 1},
    {"preset",      PRESET,     "NAME", 0, "tiny, small, 10m, 124m (also gpt2), 350m, 774m or 1558m; what follows changes it (default tiny)", 1},
    {"layers",      LAYERS,     "N",    0, "blocks", 1},
    {"heads",       HEADS,      "N",    0, "attention heads per layer", 1},
    {"channels",    CHANNELS,   "N",    0, "channels, a multiple of the heads", 1},
    {"block",       BLOCK,      "N",    0, "positions: the maximum sequence length", 1},
    {"recompute",   RECOMPUTE,  NULL,   0, "activation checkpointing: recompute each block in the backward pass, to save memory", 1},
    {"held",        HELD,       "WHO",  0, "yes: the SDK holds parameters and gradients; no: this program does; auto: yes where they are sharded (default auto)", 1},
    {"stacked",     STACKED,    NULL,   0, "register each kind of tensor of the layers as one, whose first dimension counts layers", 1},
    {"starts-here", STARTS_HERE, NULL,  0, "draw the first values in this program, as tests/bench/peers/gpt2_torch.py does, and not in the SDK; not with --held", 1},
    {"device",      DEVICE,     "NAME", 0, "host, cuda (a GPU computes, and has values and gradients in its memory; fp32 or bf16) or auto: cuda where there is one (default: PENSTOCK_DEVICE, else host)", 1},
    {"plugin",      PLUGIN,     "FILE", 0, "the library with the network for a GPU (default: libgpt2_cuda.so beside this program)", 1},
    {"import",      IMPORT,     "FILE", 0, "begin with the values of a safetensors file, as Hugging Face's gpt2 has", 1},
    {0, 0, 0, 0, "The text:", 2},
    {"data",        DATA,       "FILE", 0, "any text, plain, .gz or .Z (default: the King James Bible of the Debian package bible-kjv-text)", 2},
    {"tokens",      TOKENS,     "FILE", 0, "a token file as llm.c's, instead of a text", 2},
    {"held-tokens", HELD_TOKENS,"FILE", 0, "a token file to validate on (default: the last tenth)", 2},
    {"vocab",       VOCAB,      "FILE", 0, "GPT-2's vocab.json (default: one token per byte)", 2},
    {"merges",      MERGES,     "FILE", 0, "GPT-2's merges.txt", 2},
    {"shuffle",     SHUFFLE,    "WHICH",0, "yes: sequences in a random order, anew in each pass; no: one after the other; auto: yes for texts (default auto)", 2},
    {0, 0, 0, 0, "Training:", 3},
    {"steps",       STEPS,      "N",    0, "steps; 0 only validates and samples (default: of the preset)", 3},
    {"batch",       BATCH,      "N",    0, "global batch size in sequences (default: of the preset)", 3},
    {"length",      LENGTH,     "N",    0, "tokens per sequence (default: --block)", 3},
    {"grad-accum",  ACCUM,      "N",    0, "micro-batches per step and rank; only their sum is sent", 3},
    {"optim",       OPTIM,      "TEXT", 0, "update rule (default: adamw, with the numbers of the preset)", 3},
    {"schedule",    SCHEDULE,   "TEXT", 0, "learning rate schedule (default: cosine to a tenth, with a warm-up of a fortieth of the steps)", 3},
    {"clip",        CLIP,       "X",    0, "maximum global gradient norm (default 1)", 3},
    {"mode",        MODE,       "NAME", 0, "ddp, ps, zero1, zero2, zero3, ...: any mode of `penstock run --settings` (default: PENSTOCK_MODE, else the SDK decides)", 3},
    {"precision",   PRECISION,  "NAME", 0, "fp32, bf16 or fp16: of parameters and gradients; masters and sums are float32", 3},
    {"seed",        SEED,       "N",    0, "seed of initial values and data order (default 1)", 3},
    {0, 0, 0, 0, "Output:", 4},
    {"log-every",   LOG_EVERY,  "N",    0, "steps between rows (default: twenty rows)", 4},
    {"eval-every",  EVAL_EVERY, "N",    0, "validate every N steps (default: at the end)", 4},
    {"eval-sequences", EVAL_SEQUENCES, "N", 0, "number of validation sequences, spread over the validation set; 0: all (default: of the preset)", 4},
    {"sample",      SAMPLE,     "N",    0, "write N tokens at the end (default: of the preset)", 4},
    {"temperature", TEMPERATURE,"X",    0, "sampling temperature; 0 always takes the most likely token (default 0.8)", 4},
    {"top-k",       TOP_K,      "K",    0, "sample only from the K most likely tokens; 0: all (default 0)", 4},
    {"sample-seed", SAMPLE_SEED,"N",    0, "seed of the sample (default 1)", 4},
    {"prompt",      PROMPT,     "TEXT", 0, "prompt of the sample (default: a line break)", 4},
    {0, 0, 0, 0, "Files:", 5},
    {"json",        JSON,       NULL,   0, "print only the result, as JSON, to stdout; the rest to stderr", 5},
    {"out",         OUT,        "FILE", 0, "write the same JSON to FILE", 5},
    {"export",      EXPORT,     "FILE", 0, "write the parameters as safetensors, with Hugging Face's names", 5},
    {"sample-out",  SAMPLE_OUT, "FILE", 0, "write the sample to FILE, and nothing else", 5},
    {"curve",       CURVE,      "FILE", 0, "write rows \"step loss\" for scripts/plot_loss.gp", 5},
    {"loss-log",    LOSS_LOG,   "FILE", 0, "write rows \"step loss\" with every digit", 5},
    {"slow-ms",     SLOW_MS,    "N",    0, "sleep N ms in every step, to see what happens meanwhile", 5},
    {0},
};

/* A preset's defaults for training.  The rate falls with the width as in the table of Brown et al., "Language Models
 * are Few-Shot Learners" (2020), for the sizes it has; those for bytes were found by trial (docs/design/gpt2.md). */
typedef struct {
    const char *name;
    int length;
    int64_t batch, steps, eval_sequences, sample;
    const char *optim;
} plan;
static const plan plans[] = {
    {"tiny",   0,   8,    3400, 1024, 1000, "adamw lr=3e-3 beta2=0.95 weight_decay=0.1"},
    {"small",  0,  16,    4000, 1024, 1000, "adamw lr=2e-3 beta2=0.95 weight_decay=0.1"},
    {"10m",    0,  16,    2000,  256, 500,  "adamw lr=1e-3 beta2=0.95 weight_decay=0.1"},
    {"124m",   0, 512,   19560, 1024, 256,  "adamw lr=6e-4 beta2=0.95 weight_decay=0.1"},
    {"350m",   0, 512,   19560, 1024, 256,  "adamw lr=3e-4 beta2=0.95 weight_decay=0.1"},
    {"774m",   0, 512,   19560, 1024, 256,  "adamw lr=2.5e-4 beta2=0.95 weight_decay=0.1"},
    {"1558m",  0, 1024,  32000, 1024, 256,  "adamw lr=2e-4 beta2=0.95 weight_decay=0.1"},
};
/* clang-format on */

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

static double number(const struct argp_state *state, const char *flag, const char *text)
{
    char *end;
    const double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x) || x < 0 || strlen(text) >= OPTIONS_TEXT_BYTES)
        argp_error(state, "--%s is a number from 0, not '%s'", flag, text);
    return x;
}

/* The SDK checks its words; we check that it fits into a setting. */
static const char *one_line(const struct argp_state *state, const char *flag, const char *text)
{
    if (strlen(text) >= OPTIONS_TEXT_BYTES)
        argp_error(state, "--%s is longer than %d bytes", flag, OPTIONS_TEXT_BYTES - 1);
    return text;
}

static options_choice choice(const struct argp_state *state, const char *flag, const char *text)
{
    static const char *const words[] = {
        [OPTIONS_AUTO] = "auto", [OPTIONS_YES] = "yes", [OPTIONS_NO] = "no"};
    for (int i = OPTIONS_AUTO; i <= OPTIONS_NO; i++)
        if (strcmp(text, words[i]) == 0) return (options_choice)i;
    argp_error(state, "--%s is yes, no or auto, not '%s'", flag, text);
    return OPTIONS_AUTO;
}

static const plan *plan_of(const char *preset)
{
    if (strcmp(preset, "gpt2") == 0) preset = "124m";
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        if (strcmp(plans[i].name, preset) == 0) return &plans[i];
    return &plans[0];
}

/* Flags override the preset in any order: fills in those that were not given. */
static void fill_in(options *o, const struct argp_state *state)
{
    gpt2_config preset;
    if (!gpt2_preset(o->preset, &preset))
        argp_error(state, "--preset is one of %s, not '%s'", gpt2_presets(), o->preset);
    const plan *p          = plan_of(o->preset);
    gpt2_config *c         = &o->config;
    c->vocab               = preset.vocab;
    c->vocab_padded        = preset.vocab_padded;
    c->layers              = c->layers ? c->layers : preset.layers;
    c->heads               = c->heads ? c->heads : preset.heads;
    c->channels            = c->channels ? c->channels : preset.channels;
    c->block               = c->block ? c->block : preset.block;
    o->length              = o->length ? o->length : c->block;
    o->batch               = o->batch ? o->batch : p->batch;
    o->steps               = o->steps >= 0 ? o->steps : p->steps;
    o->optim               = o->optim ? o->optim : p->optim;
    o->eval_sequences      = o->eval_sequences >= 0 ? o->eval_sequences : p->eval_sequences;
    o->sample              = o->sample >= 0 ? o->sample : p->sample;
    const char *impossible = gpt2_config_wrong(c);
    if (impossible) argp_error(state, "%s", impossible);
    if (o->length > c->block)
        argp_error(state, "--length %d is more than the %d positions of --block", o->length,
                   c->block);
    if (o->tokens && o->data)
        argp_error(state, "--tokens and --data are two sources: give one of them");
    if (o->starts_here && o->held == OPTIONS_YES)
        argp_error(state, "--starts-here needs parameters of this program: not --held yes");
    if (o->held_tokens && !o->tokens)
        argp_error(state, "--held-tokens belongs to --tokens, which is not given");
    if (!o->vocab != !o->merges)
        argp_error(state, "--vocab and --merges belong together: --%s is missing",
                   o->vocab ? "merges" : "vocab");
}

static error_t take_data(int key, char *arg, const struct argp_state *state, options *o)
{
    switch (key) {
    case DATA: o->data = arg; return 0;
    case TOKENS: o->tokens = arg; return 0;
    case HELD_TOKENS: o->held_tokens = arg; return 0;
    case VOCAB: o->vocab = arg; return 0;
    case MERGES: o->merges = arg; return 0;
    case IMPORT: o->import = arg; return 0;
    case EXPORT: o->export = arg; return 0;
    case SHUFFLE: o->shuffle = choice(state, "shuffle", arg); return 0;
    case JSON: o->json = true; return 0;
    case OUT: o->out = arg; return 0;
    case LOSS_LOG: o->loss_log = arg; return 0;
    case CURVE: o->curve = arg; return 0;
    case SAMPLE_OUT: o->sample_out = arg; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t take_look(int key, const char *arg, const struct argp_state *state, options *o)
{
    switch (key) {
    case LOG_EVERY: o->log_every = whole(state, "log-every", arg, 1, OPTIONS_ROW_MAX); return 0;
    case EVAL_EVERY:
        o->eval_every = whole(state, "eval-every", arg, 1, INT64_C(1000000000));
        return 0;
    case EVAL_SEQUENCES:
        o->eval_sequences = whole(state, "eval-sequences", arg, 0, INT64_C(1000000000));
        return 0;
    case SAMPLE: o->sample = whole(state, "sample", arg, 0, 10000000); return 0;
    case TEMPERATURE: o->rule.temperature = number(state, "temperature", arg); return 0;
    case TOP_K: o->rule.top_k = (int)whole(state, "top-k", arg, 0, TOKENIZER_SIZE_MAX); return 0;
    case SAMPLE_SEED:
        o->sample_seed = (uint64_t)whole(state, "sample-seed", arg, 0, INT64_C(1) << 53);
        return 0;
    case PROMPT: o->prompt = arg; return 0;
    case SLOW_MS: o->slow_ms = whole(state, "slow-ms", arg, 0, 60000); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t take_training(int key, char *arg, const struct argp_state *state, options *o)
{
    switch (key) {
    case STEPS: o->steps = whole(state, "steps", arg, 0, INT64_C(1000000000)); return 0;
    case BATCH: o->batch = whole(state, "batch", arg, 1, INT64_C(1000000)); return 0;
    case LENGTH: o->length = (int)whole(state, "length", arg, 1, 65536); return 0;
    case ACCUM:
        whole(state, "grad-accum", arg, 1, 65536);
        o->accum = arg;
        return 0;
    case OPTIM: o->optim = one_line(state, "optim", arg); return 0;
    case SCHEDULE: o->schedule = one_line(state, "schedule", arg); return 0;
    case CLIP:
        number(state, "clip", arg);
        o->clip = arg;
        return 0;
    case MODE: o->mode = one_line(state, "mode", arg); return 0;
    case PRECISION: o->precision = one_line(state, "precision", arg); return 0;
    case SEED: o->seed = (uint64_t)whole(state, "seed", arg, 0, INT64_C(1) << 53); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t take(int key, char *arg, struct argp_state *state)
{
    options *o = state->input;
    switch (key) {
    case PRESET: o->preset = arg; return 0;
    case LAYERS: o->config.layers = (int)whole(state, "layers", arg, 1, 1024); return 0;
    case HEADS: o->config.heads = (int)whole(state, "heads", arg, 1, 1024); return 0;
    case CHANNELS: o->config.channels = (int)whole(state, "channels", arg, 1, 65536); return 0;
    case BLOCK: o->config.block = (int)whole(state, "block", arg, 1, 65536); return 0;
    case RECOMPUTE: o->recompute = true; return 0;
    case HELD: o->held = choice(state, "held", arg); return 0;
    case DEVICE: o->device = one_line(state, "device", arg); return 0;
    case PLUGIN: o->plugin = arg; return 0;
    case STACKED: o->is_stacked = true; return 0;
    case STARTS_HERE: o->starts_here = true; return 0;
    case ARGP_KEY_ARG: argp_error(state, "unknown flag '%s'", arg); return 0;
    case ARGP_KEY_SUCCESS: fill_in(o, state); return 0;
    default: break;
    }
    if (take_data(key, arg, state, o) == 0 || take_look(key, arg, state, o) == 0) return 0;
    return take_training(key, arg, state, o);
}

void options_parse(options *o, int argc, char **argv)
{
    const struct argp argp = {
        .options = rows,
        .parser  = take,
        .doc = "Trains GPT-2 on a text with Penstock, alone or under `penstock run`, and lets it "
               "write.",
    };
    *o = (options){
        .preset         = "tiny",
        .steps          = -1,
        .clip           = "1",
        .seed           = 1,
        .sample_seed    = 1,
        .eval_sequences = -1,
        .sample         = -1,
        .rule           = {.temperature = 0.8},
        .prompt         = "\n",
    };
    argp_err_exit_status = 2;
    argp_parse(&argp, argc, argv, 0, NULL, o);
}
