/* io_slots.h - a question to servers about one array of one tensor: the rest of REQUEST_SLOTS. */
#ifndef WORKER_IO_SLOTS_H
#define WORKER_IO_SLOTS_H

#include "proto/rows.h"
#include "worker/context.h"

typedef struct io_slots {
    const pen_tensor *tensor; /* NULL: only this rank's own count is set, to call.applied */
    slots_call call;          /* its round: of tensors that a decision closes.  what 0: a pull */
    const float *in;          /* [elements] SET */
    void *out;                /* [elements] READ: float32; a pull: of the tensor's type */
    void *memory;             /* the questions; free() it after the request */
} io_slots;

/* This worker began with the job, or has a step behind it: the others make the same calls. */
bool io_has_begun(const pen_ctx *ctx);

#endif
