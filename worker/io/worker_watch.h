/* worker_watch.h - what a worker shows over HTTP, by the setting http: its counters and the program's metrics. */
#ifndef WORKER_WORKER_WATCH_H
#define WORKER_WORKER_WATCH_H

#include "worker/context.h"

/* After the link was opened, on its loop.  Does nothing when the setting is empty.
 * Errors  as watch_open(). */
pen_status worker_watch_open(pen_ctx *ctx, pen_error *why);

#endif
