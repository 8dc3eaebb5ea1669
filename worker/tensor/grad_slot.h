/* grad_slot.h - who owns the gradient of a tensor now: one state, and one table of what may happen to it.
 *
 * DESIGN.  Every name of a tensor has a slot.  Whatever happens to its gradient is an event, and grad_slot_move() is the
 * only place that changes the state.  What the program asks for may be refused, with the sentence that it gets; what the
 * SDK does itself fits the state, or is INTERNAL.
 *
 *     PROGRAM ---- offer ----> OFFERED ---- lend ----> LENT ---- return ----> RETURNED
 *        |                     ^     |
 *        +-- copy --> DEVICE_COPYING +---- add ----> ACCUMULATED       next: all of them --> PROGRAM
 *
 * OFFERED is there for tensors of several names (grad_sum.h): the first gradients wait for the last one, when neither the
 * program has them nor a strategy.  A tensor of one name passes it within pen_ready().
 * Threads: events come under the step's lock, but RETURN, which any thread may tell.
 */
#ifndef WORKER_GRAD_SLOT_H
#define WORKER_GRAD_SLOT_H

#include "penstock.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum {
    GRAD_PROGRAM, /* the program writes to it, and has not said pen_ready() in this micro-batch */
    GRAD_DEVICE_COPYING, /* it has; the bytes are on their way from a device to the host */
    GRAD_OFFERED,        /* the bytes are here, for whoever comes next */
    GRAD_ACCUMULATED,    /* they are in the sum of the step's micro-batches; nobody reads them */
    GRAD_LENT,           /* a strategy reads them */
    GRAD_RETURNED,       /* it reads them no more, and the step has not ended */
    GRAD_STATES
} grad_state;

typedef enum {
    /* Of the program. */
    GRAD_VIEW,  /* pen_view() gives it the memory */
    GRAD_BIND,  /* pen_bind() gives it other memory */
    GRAD_READY, /* pen_ready() is said; what follows is COPY, OFFER or ADD */
    GRAD_USE,   /* pen_use() wants values that are away since their gradient was sent */
    GRAD_CLOSE, /* pen_step_end() needs it */
    /* Of the SDK. */
    GRAD_COPY,   /* a copy from a device begins */
    GRAD_FAIL,   /* it does not come */
    GRAD_OFFER,  /* the bytes are here, or it counts as zeros */
    GRAD_ADD,    /* they were added to the sum of micro-batches, on the host or on the device */
    GRAD_LEND,   /* a strategy gets them */
    GRAD_RETURN, /* nobody reads them any more */
    GRAD_NEXT,   /* a micro-batch or a step begins, or the step has ended */
    GRAD_EVENTS
} grad_event;

enum { GRAD_SUM_ON_HOST = 1, GRAD_SUM_ON_DEVICE = 2 };

typedef struct {
    _Atomic uint8_t state; /* grad_state */
    uint8_t sums;          /* GRAD_SUM_*: where earlier micro-batches of this step are */
    const void *bytes;     /* from OFFERED on: where they are on the host; NULL: zeros */
} grad_slot;

/* A step begins: no sums. */
void grad_slot_begin(grad_slot *g);

/* Refused: g stays as it is, and *why says what the program got wrong with `name` in `step`. */
pen_status grad_slot_move(grad_slot *g, grad_event event, const char *name, int64_t step,
                          pen_error *why);

static inline grad_state grad_slot_state(const grad_slot *g)
{
    return (grad_state)atomic_load_explicit(&g->state, memory_order_relaxed);
}

#endif
