/* solo.h - gradients of a group of one: weighted, without a sum. */
#ifndef WORKER_TRAIN_SOLO_H
#define WORKER_TRAIN_SOLO_H

#include "worker/tensor/model.h"

typedef struct solo solo;

solo *solo_create(const model *m); /* m is BORROWED; NULL: no memory */
void solo_destroy(solo *s);        /* NULL is fine */

/* A gradient, rounded as on the wire and times weight, in float32; grad NULL: zeros.  Returns grad itself if no bit
 * changes.  Valid until the next call with t.  NULL: no memory. */
const float *solo_weigh(solo *s, const pen_tensor *t, const void *grad, double weight,
                        pen_error *why);

#endif
