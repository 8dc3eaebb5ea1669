/* trainer.h - what a run of gpt2 consists of; main.c opens and ends it, trainer.c trains, look.c validates and samples. */
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
    tokenizer *tokenizer; /* NULL: tokens of a file, and nobody knows what they mean */
    reader_data data;
    reader_order order, held_order;
    pen_ctx *ctx;
    pen_info info;
    passes passes;
    int micro_batch; /* sequences of this rank in one micro-batch */
    int32_t *tokens, *targets;
    bool is_elastic;      /* ranks may be lost, or come: no collectives between them */
    int position, shares; /* this rank's among those that live */
    trainer_row row;
    float *step_s; /* [step_count] how long each step of this run took here */
    int64_t step_count, step_room;
    double peak;      /* flops of all ranks */
    double held_loss; /* NaN: nobody looked yet */
    int64_t held_at;  /* after how many steps somebody looked */
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

/* All return false after a sentence on stderr. */
bool trainer_begin(trainer *t);
bool trainer_run(trainer *t); /* to the last step */
void trainer_end(trainer *t);

/* Tokens of sequence number s are read where row `row` of the batch is. */
bool trainer_read(trainer *t, const reader_tokens *from, size_t at, int row);

double trainer_bits(const trainer *t,
                    double nats); /* per byte where bytes are known, else per token */

bool look_validate(
    trainer *t); /* sets held_loss; all ranks together, unless they may come and go */
bool look_sample(trainer *t);

#endif
