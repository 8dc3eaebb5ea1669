/* scheduler_http.h - the scheduler's pages: the job's status, its metrics, and where members show theirs. */
#ifndef SCHEDULER_HTTP_H
#define SCHEDULER_HTTP_H

#include "common/net/monitor.h"
#include "scheduler/core/core.h"
#include "scheduler/core/scheduler_settings.h"

typedef struct scheduler_http scheduler_http;

/* *h is NULL if the setting http is empty.  The core is read in the loop's thread.
 * Errors  as monitor_open(). */
pen_status scheduler_http_open(const scheduler_settings *settings, scheduler_core *core, loop *l,
                               scheduler_http **h, pen_error *why);
void scheduler_http_stop(scheduler_http *h);  /* before the core is destroyed; NULL is fine */
void scheduler_http_close(scheduler_http *h); /* after the loop was destroyed; NULL is fine */
const char *scheduler_http_address(const scheduler_http *h); /* "" of NULL */

/* The scheduler's own metrics, for docs/stats.md; a row of zeros ends them. */
extern const stat_row scheduler_metric_rows[];
/* Writes the metrics of a STATUS. */
void scheduler_metrics_write(FILE *out, bool is_open, const wire_control *status);

#endif
