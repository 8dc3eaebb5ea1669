/* tied.h - one tensor under several names: its gradient is the sum of what each of them was given.
 *
 * DESIGN.  The first name is the tensor; the others (pen_tensor_desc.tied_to) are in model.alias[] and are
 * this rank's own affair: nothing of them travels.  Each has a gradient of its own, which is made ready by
 * itself.  When the last of them is ready the sum is made, in float32 and in registration order, rounded
 * once to the type of the gradient: it is then the tensor's gradient, and the same bits in every mode,
 * because no engine sees the parts.
 * Under the step's lock.
 */
#ifndef WORKER_TIED_H
#define WORKER_TIED_H

#include "worker/model.h"

pen_tensor *tied_base(pen_tensor *t); /* the tensor itself, whichever of its names t is */

/* All its names with a gradient have said pen_ready(). */
bool tied_is_complete(const pen_tensor *base);

/* The sum of what was offered, in grad_dtype; NULL: nobody offered anything, zeros.  What is left in
 * *sum is base's own gradient where there is only that, or memory of base until the step has ended. */
pen_status tied_take(pen_tensor *base, const void **sum, pen_error *why);

#endif
