/* options.h - the flags of fashion_mnist; `fashion_mnist --help` lists them. */
#ifndef FASHION_MNIST_OPTIONS_H
#define FASHION_MNIST_OPTIONS_H

#include "model.h"
#include <stdbool.h>
#include <stdint.h>

enum { OPTIONS_TEXT_BYTES = 256 };

typedef double (*options_schedule_fn)(int64_t step, int64_t steps);

typedef struct {
    const char *mode; /* NULL: PENSTOCK_MODE or the SDK decides             */
    const model_ops *model;
    const char *optim;         /* passed to the SDK unchanged */
    const char *clip;          /* NULL: the SDK's setting                            */
    const char *accum;         /* NULL: the SDK's setting; micro-batches per step    */
    options_schedule_fn decay; /* factor on the rate at step of steps; never 0 */
    int64_t epochs, steps;     /* steps 0: the length of the epochs */
    int64_t batch;             /* samples of one step over all ranks                 */
    bool batch_global;         /* constant when workers come or go */
    uint64_t seed;
    const char *data_dir;
    const char *loss_log, *curve, *out; /* files rank 0 writes, or NULL              */
    int64_t slow_ms, slow_rank;         /* this rank sleeps in every step            */
    bool json;
} options;

/* Exits with a sentence and code 2 on a wrong flag, with 0 after --help. */
void options_parse(options *o, int argc, char **argv);

#endif
