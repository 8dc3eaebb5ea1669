/* api_state.h - what a step means for the files of a job. */
#ifndef WORKER_API_STATE_H
#define WORKER_API_STATE_H

#include "worker/context.h"

/* After a step, without its lock: writes what belongs beside a snapshot, if one was taken with it. */
pen_status api_state_stepped(pen_ctx *ctx);

#endif
