/* first_values.h - pen_commit() without servers: all ranks get rank 0's values. */
#ifndef WORKER_TRAIN_FIRST_VALUES_H
#define WORKER_TRAIN_FIRST_VALUES_H

#include "worker/train/group_calls.h"

/* UNSUPPORTED for a group that needs servers because it does not average. */
pen_status first_values_check(const model *m, pen_error *why);

/* Copies position 0's values to t->param of all tensors, except sharded_out[n_tensors] (NULL: none) and those with init
 * values. */
pen_status first_values_spread(group_calls *t, const bool *sharded_out, pen_error *why);

#endif
