/* grad_slot_test.h - functions of grad_slot that only tests call. */
#ifndef WORKER_GRAD_SLOT_TEST_H
#define WORKER_GRAD_SLOT_TEST_H

#include "worker/tensor/grad_slot.h"

/* The table itself: the state after `event`; -1: refused. */
int grad_slot_next(grad_state state, grad_event event);

#endif
