/* first_values.h - what strategies without servers do at pen_commit(): rank 0's values are everybody's. */
#ifndef WORKER_TRAIN_FIRST_VALUES_H
#define WORKER_TRAIN_FIRST_VALUES_H

#include "worker/train/talk.h"

/* UNSUPPORTED for a group that needs servers: one that does not average. */
pen_status first_values_check(const model *m, pen_error *why);

/* Tensors but those that are apart[n_tensors] (NULL: none), and those that all ranks drew alike, get position 0's
 * values in t->param; a rank whose own were others says so in one line. */
pen_status first_values_spread(talk *t, const bool *apart, pen_error *why);

#endif
