/* culprit.h - finds the rank whose gradient is not finite, if only the sum is known. */
#ifndef WORKER_TRAIN_CULPRIT_H
#define WORKER_TRAIN_CULPRIT_H

#include "worker/train/group_calls.h"

/* Collective in t's group, for elements [start, start + count) of x, whose gradient of this step is x->pushed.
 * *rank: the lowest position whose weighted gradient is not finite; unchanged if all terms are finite and only their sum
 * is not. */
pen_status culprit_find(group_calls *t, const pen_tensor *x, uint64_t start, uint64_t count,
                        double weight, int32_t *rank, pen_error *why);

#endif
