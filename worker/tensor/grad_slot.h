/* grad_slot.h - the owner of a tensor's gradient: one state, and one table of transitions.
 *
 * DESIGN.  Every name of a tensor has a slot.  All that happens to its gradient is an event, and
 * only grad_slot_move() changes the state.  An event of the program may be refused with a sentence;
 * one of the SDK fits the state, or is INTERNAL.
 *
 *     PROGRAM ---- offer ----> OFFERED ---- lend ----> LENT ---- return ----> RETURNED
 *        |                     ^     |
 *        +-- copy --> DEVICE_COPYING +---- add ----> ACCUMULATED       next: all of them --> PROGRAM
 *
 * OFFERED is for tensors with several names (grad_sum.h): there the first gradients wait for the
 * last one, without an owner.  A tensor with one name passes through it within pen_ready().
 * Threads: events come under the step's lock, except RETURN, which comes from any thread.
 */
#ifndef WORKER_GRAD_SLOT_H
#define WORKER_GRAD_SLOT_H

#include "penstock.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum {
    GRAD_PROGRAM,        /* the program writes to it; no pen_ready() in this micro-batch yet */
    GRAD_DEVICE_COPYING, /* after pen_ready(): the bytes are being copied from a device to the host */
    GRAD_OFFERED,        /* the bytes are on the host, without an owner */
    GRAD_ACCUMULATED,    /* added to the sum of the step's micro-batches */
    GRAD_LENT,           /* a strategy reads them */
    GRAD_RETURNED,       /* the strategy has read them; the step has not ended */
    GRAD_STATES
} grad_state;

typedef enum {
    /* Of the program. */
    GRAD_VIEW,  /* pen_view() hands out the memory */
    GRAD_BIND,  /* pen_bind() replaces the memory */
    GRAD_READY, /* pen_ready(); COPY, OFFER or ADD follows */
    GRAD_USE,   /* pen_use() needs values that were dropped with their gradient */
    GRAD_CLOSE, /* pen_step_end() needs it */
    /* Of the SDK. */
    GRAD_COPY,   /* a copy from a device begins */
    GRAD_FAIL,   /* the copy failed */
    GRAD_OFFER,  /* the bytes are on the host, or count as zeros */
    GRAD_ADD,    /* added to the sum of micro-batches, on the host or on the device */
    GRAD_LEND,   /* a strategy gets them */
    GRAD_RETURN, /* the strategy has read them */
    GRAD_NEXT,   /* a micro-batch or a step begins, or the step has ended */
    GRAD_EVENTS
} grad_event;

enum { GRAD_SUM_KEPT = 1, GRAD_SUM_ON_DEVICE = 2 };

typedef struct {
    _Atomic uint8_t state; /* grad_state */
    uint8_t
        sums; /* GRAD_SUM_*: where earlier micro-batches of this step are: grad_sum.h, device_copies.h */
    const void *bytes; /* from OFFERED on: where they are, for the strategy; NULL: zeros */
} grad_slot;

/* A step begins: no sums. */
void grad_slot_begin(grad_slot *g);

/* Refused: g is unchanged, and *why names `name`, `step` and the mistake. */
pen_status grad_slot_move(grad_slot *g, grad_event event, const char *name, int64_t step,
                          pen_error *why);

static inline grad_state grad_slot_state(const grad_slot *g)
{
    return (grad_state)atomic_load_explicit(&g->state, memory_order_relaxed);
}

#endif
