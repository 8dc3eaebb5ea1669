/* solo.h - gradients of a group of one: weighted, without a sum. */
#ifndef WORKER_TRAIN_SOLO_H
#define WORKER_TRAIN_SOLO_H

#include "worker/tensor/model.h"
#include "worker/tensor/device_copy/space.h"

typedef struct solo solo;

/* m is BORROWED, *p copied.  bad: of device_weigh.  NULL: no memory. */
solo *solo_create(const model *m, const memory_space *p, uint32_t *bad);
void solo_destroy(solo *s); /* NULL is fine */

/* A gradient, rounded as on the wire and times weight, in float32; grad NULL: zeros.  Returns grad itself if no bit
 * changes.  grad and the result are memory of the space, for work on its stream.  Valid until the next call with t.  NULL: no memory. */
const float *solo_weigh(solo *s, const pen_tensor *t, const void *grad, double weight,
                        pen_error *why);

#endif
