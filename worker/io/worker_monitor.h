/* worker_monitor.h - a worker's HTTP server (setting http): its counters and the program's metrics. */
#ifndef WORKER_WORKER_MONITOR_H
#define WORKER_WORKER_MONITOR_H

#include "worker/context.h"

/* After the link was opened, on its loop.  Does nothing when the setting is empty.
 * Errors  as monitor_open(). */
pen_status worker_monitor_open(pen_ctx *ctx, pen_error *why);

#endif
