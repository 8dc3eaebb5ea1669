/* scheduler.h - the scheduler core on a socket, a loop and the real clock.
 *
 * Two ways to run it: scheduler_open() and scheduler_run() in this thread (the `penstock scheduler` process), or
 * scheduler_start() in its own thread (rank 0, if no scheduler was started).  A job has one scheduler, which ends with
 * it.
 */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include "common/launch/launch.h"
#include "scheduler/core/scheduler_settings.h"

typedef struct scheduler scheduler;

/* Passes the settings to launch_resolve(), as workers and servers do. */
void scheduler_tell(const scheduler_settings *s, launch_told *told);

/* Fills in world size, address and so on from the launcher's variables, where no setting is given.  BAD_SETTING names the
 * variable. */
pen_status scheduler_find_place(scheduler_settings *s, pen_error *why);

/* Listens; scheduler_run() answers.  settings->host may be a whole address ("ipc:///run/job"); then the port is not
 * used.
 * Errors  UNREACHABLE  the port is taken.   UNSUPPORTED   NO_MEMORY */
pen_status scheduler_open(const scheduler_settings *settings, scheduler **s, pen_error *why);
void scheduler_close(scheduler *s); /* NULL is fine; not while it runs */

/* Its address with the real port: "tcp://127.0.0.1:43117".  BORROWED until close or join. */
const char *scheduler_address(const scheduler *s);

/* The address of its pages: "127.0.0.1:43118"; "" if the setting http is empty.  BORROWED likewise. */
const char *scheduler_http_at(const scheduler *s);

/* Serves one job to its end.  PEN_OK: it ended in good order; else the verdict's status and *why.  ABORTED:
 * scheduler_stop() came first, and all members were notified. */
pen_status scheduler_run(scheduler *s, pen_error *why);

/* Thread  any, and from a signal handler. */
void scheduler_stop(scheduler *s);

/* For a job that cannot begin: answers every HELLO with this sentence for `ms`.  Does nothing if it cannot listen. */
void scheduler_decline(const scheduler_settings *settings, const pen_error *why, uint64_t ms);

pen_status scheduler_start(const scheduler_settings *settings, scheduler **s, pen_error *why);
pen_status scheduler_join(scheduler *s, pen_error *why); /* as scheduler_run(), then closes */

#endif
