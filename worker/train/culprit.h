/* culprit.h - whose gradient is not finite, where only a sum of several is known. */
#ifndef WORKER_TRAIN_CULPRIT_H
#define WORKER_TRAIN_CULPRIT_H

#include "worker/train/talk.h"

/* Every member of t's group asks about elements [start, start + count) of x, whose gradient of this
 * step is x->pushed.  *rank is the lowest position of one that added something not finite, alone and
 * times its weight; as it was when there is none: finite terms whose sum is not. */
pen_status culprit_find(talk *t, const pen_tensor *x, uint64_t start, uint64_t count, double weight,
                        int32_t *rank, pen_error *why);

#endif
