/* trainer.h - the state of a run of gpt2; main.c opens and closes it, trainer.c trains, look.c validates and
 * samples. */
#ifndef GPT2_TRAINER_H
#define GPT2_TRAINER_H

#include "options.h"
#include "network/passes.h"
#include "penstock.h"
#include "text/reader.h"
#include "report.h"
#include "text/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { TRAINER_LOOK_BATCH = 8 };

typedef struct {
    int64_t first, end; /* steps first .. end-1 are in this row */
    double *loss;       /* [log_every] the mean over the ranks */
    double seconds, tokens;
    double grad_norm, rate; /* of its last step */
} trainer_row;

typedef struct {
    options o;
    tokenizer *tokenizer; /* NULL: tokens of a file, without known meaning */
    reader_data data;
    reader_order order, held_order;
    pen_ctx *ctx;
    pen_info info;
    passes passes;
    int micro_batch; /* sequences of this rank in one micro-batch */
    int32_t *tokens, *targets;
    bool is_elastic;      /* ranks may come and go: no collectives between them */
    int position, shares; /* this rank's position among the live ranks */
    trainer_row row;
    int64_t undecided; /* the first step whose outcome is not counted */
    float *step_s;     /* [step_count] duration of each step on this rank */
    int64_t step_count, step_room;
    double
        peak; /* flops of a rank, the mean over all at the start; larger if a later look found more */
    double held_loss; /* NaN: not evaluated yet */
    int64_t held_at;  /* number of steps before the last evaluation */
    double trained;   /* tokens, all ranks */
    report report;
    report_result result;
    FILE *loss_log, *curve, *out, *sample_out; /* rank 0 */
} trainer;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != PEN_OK) return report_fail("%s", pen_last_error(NULL));                      \
    } while (0)

#define TRY_PASSES(t, call)                                                                        \
    do {                                                                                           \
        if ((call) != PEN_OK) return report_fail("%s", passes_why(&(t)->passes));                  \
    } while (0)

/* All print a sentence on stderr before returning false. */
bool trainer_begin(trainer *t);
bool trainer_run(trainer *t); /* to the last step */
void trainer_end(trainer *t);

/* Reads the tokens of sequence number s into row `row` of the batch. */
bool trainer_read(trainer *t, const reader_tokens *from, size_t at, int row);

/* The fraction of the peak that this speed of all ranks uses; NaN: unknown. */
double trainer_mfu(trainer *t, double tokens_per_s);

double trainer_bits(const trainer *t,
                    double nats); /* per byte if bytes are known, else per token */

bool look_validate(trainer *t); /* sets held_loss; all ranks together, unless elastic */
bool look_sample(trainer *t);

#endif
