/* options.h - the flags of gpt2; `gpt2 --help` lists them. */
#ifndef GPT2_OPTIONS_H
#define GPT2_OPTIONS_H

#include "network/model.h"
#include "sample.h"

#include <stdbool.h>
#include <stdint.h>

enum { OPTIONS_TEXT_BYTES = 256, OPTIONS_ROW_MAX = 1000000 };

typedef enum { OPTIONS_AUTO, OPTIONS_YES, OPTIONS_NO } options_choice;

typedef struct {
    const char *preset;
    gpt2_config config; /* of the preset, changed by flags; vocab follows from the tokens */
    int length;         /* T of a sequence; at most config.block */
    int64_t batch;      /* sequences of one step over all ranks */
    const char *accum;  /* NULL: the SDK's setting */
    int64_t steps;      /* 0: evaluates only */
    const char *optim, *clip, *mode, *precision,
        *schedule; /* passed to the SDK; NULL: its own setting */
    uint64_t seed;
    const char *device,
        *plugin; /* "host", "cuda"; the library with the network for a GPU; NULL: not given */
    options_choice held; /* the SDK holds parameters and gradients */
    bool is_stacked;     /* the layers' tensors are registered with PEN_STACKED */
    bool starts_here;    /* this program generates initial values, not the SDK */
    bool recompute;
    /* data */
    const char *data, *tokens, *held_tokens, *vocab, *merges; /* files, or NULL */
    const char *import, *export;                              /* safetensors, or NULL */
    options_choice shuffle;
    /* what is evaluated */
    int64_t log_every, eval_every,
        eval_sequences; /* log_every 0: twenty rows; eval_every 0: at the end only */
    int64_t sample;     /* tokens */
    sample_rule rule;
    uint64_t sample_seed;
    const char *prompt;
    const char *loss_log, *curve, *out, *sample_out; /* files rank 0 writes, or NULL */
    bool json;
    int64_t slow_ms; /* every rank sleeps in every step */
} options;

/* Exits with a sentence and code 2 on a wrong flag, with 0 after --help. */
void options_parse(options *o, int argc, char **argv);

#endif
