/* job_host.h - the scheduler inside the process of rank 0, as a worker sees it; scheduler/shell/job_host.c is the scheduler's
 * side.  Workers and the scheduler do not know each other's headers. */
#ifndef PROTO_JOB_HOST_H
#define PROTO_JOB_HOST_H

#include "penstock.h"

typedef struct job_host job_host;

typedef struct { /* as in scheduler_settings; the others have their defaults */
    const char *host, *secret_file;
    uint64_t world_size, servers, port, lease_ms, init_timeout_ms;
    int on_worker_loss, encryption;
} job_host_settings;

/* Serves one job in a thread of its own.  *h is OWNED, for job_host_close(); NULL after a failure.  Thread: any, one at a
 * time.
 * Errors  UNREACHABLE  the port is taken.   UNSUPPORTED   NO_MEMORY */
pen_status job_host_start(const job_host_settings *settings, job_host **h, pen_error *why);

/* Serves until all members have left, or for at most patience_ms (-1: for ever), then ends it.  NULL is fine. */
void job_host_close(job_host *h, int64_t patience_ms);

/* For a job that cannot begin: answers every HELLO with this sentence for `ms`.  Does nothing if it cannot listen. */
void job_host_decline(const job_host_settings *settings, const pen_error *why, uint64_t ms);

#endif
