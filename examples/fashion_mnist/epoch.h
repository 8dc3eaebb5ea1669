/* epoch.h - figures of the current epoch: losses, step times, bytes moved. */
#ifndef FASHION_MNIST_EPOCH_H
#define FASHION_MNIST_EPOCH_H

#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    int64_t steps;                 /* of a whole epoch                                           */
    int64_t number;                /* this one, from 0                                           */
    int64_t first, end;            /* positions first .. end-1 are done                          */
    double *loss;                  /* [steps] the mean over the samples of all ranks              */
    double *step_s;                /* [steps] duration of each step on this rank */
    double begun_s;                /* epoch_clock() when it started                              */
    double push_bytes, pull_bytes; /* the SDK's counters at that time */
} epoch;

double epoch_clock(void); /* seconds; only differences are meaningful */

bool epoch_init(epoch *e, int64_t steps); /* false: no memory */
void epoch_fini(epoch *e);

/* Resets all figures; step `index` is next. */
void epoch_start(epoch *e, int64_t index);

/* Records step `index` of this epoch.  After a rewind it may repeat; the last one counts. */
void epoch_add(epoch *e, int64_t index, double loss, double seconds);

bool epoch_is_whole(const epoch *e);
bool epoch_is_empty(const epoch *e);

double epoch_mean_loss(const epoch *e);                       /* NaN when empty */
double epoch_step_quantile(const epoch *e, double part);      /* part 0.5: the median */
bool epoch_write_loss(const epoch *e, FILE *out, int digits); /* rows "step loss" */

#endif
