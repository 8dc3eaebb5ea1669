/* api_state.h - files that a step writes. */
#ifndef WORKER_API_STATE_H
#define WORKER_API_STATE_H

#include "worker/context.h"

/* After a step, without its lock: writes the 16-bit parameters if the step took a snapshot. */
pen_status api_state_stepped(pen_ctx *ctx);

#endif
