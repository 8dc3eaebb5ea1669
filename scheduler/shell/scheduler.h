/* scheduler.h - the scheduler core on a socket, a loop and the real clock.
 *
 * Two ways to have one: scheduler_open() and scheduler_run() in this thread (the `penstock
 * scheduler` process), or scheduler_start(), which does the same in a thread of its own (rank 0,
 * when nobody started one).  A job has one scheduler; when the job has ended, so has it.
 */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include "scheduler/core/scheduler_settings.h"

typedef struct scheduler scheduler;

/* Listens; nothing is answered before scheduler_run().  settings->host may be a whole address
 * ("ipc:///run/job") instead of a name; then the port is not used.
 * Errors  UNREACHABLE  the port is taken, in the transport's words.   UNSUPPORTED   NO_MEMORY */
pen_status scheduler_open(const scheduler_settings *settings, scheduler **s, pen_error *why);
void scheduler_close(scheduler *s); /* NULL is fine; not while it runs */

/* Where it listens, with the real port: "tcp://127.0.0.1:43117".  BORROWED until close or join. */
const char *scheduler_address(const scheduler *s);

/* Where it shows its status and metrics: "127.0.0.1:43118"; "" where the setting http is empty.  BORROWED
 * likewise. */
const char *scheduler_http_at(const scheduler *s);

/* Serves one job to its end.  PEN_OK: it ended in good order; else the verdict's status, and *why.
 * ABORTED when scheduler_stop() came first; then everybody is told so. */
pen_status scheduler_run(scheduler *s, pen_error *why);

/* Thread  any, and from a signal handler. */
void scheduler_stop(scheduler *s);

/* For a job that cannot begin: listens, and tells whoever comes within so many ms this sentence.  Nothing where it
 * cannot listen. */
void scheduler_decline(const scheduler_settings *settings, const pen_error *why, uint64_t ms);

pen_status scheduler_start(const scheduler_settings *settings, scheduler **s, pen_error *why);
pen_status scheduler_join(scheduler *s,
                          pen_error *why); /* waits as scheduler_run() does, then closes */

#endif
