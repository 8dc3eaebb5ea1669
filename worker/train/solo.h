/* solo.h - gradients of a group of one: nobody adds anything to them. */
#ifndef WORKER_TRAIN_SOLO_H
#define WORKER_TRAIN_SOLO_H

#include "worker/tensor/model.h"

typedef struct solo solo;

solo *solo_create(const model *m); /* m is BORROWED; NULL: no memory */
void solo_destroy(solo *s);        /* NULL is fine */

/* A gradient, rounded as it would travel and times weight, in float32; NULL: zeros.  It is used where it is when that is
 * the same: 1 x g has the same bits.  Until the next call with t.  NULL: no memory. */
const float *solo_weigh(solo *s, const pen_tensor *t, const void *grad, double weight,
                        pen_error *why);

#endif
