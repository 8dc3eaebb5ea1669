/* hosted.h - the scheduler in the process of rank 0, if no other process runs it. */
#ifndef WORKER_HOSTED_H
#define WORKER_HOSTED_H

#include "proto/job_host.h"
#include "worker/worker_env.h"

/* From the settings and the place of the worker, which are BORROWED. */
job_host_settings hosted_settings(const worker_settings *s, const worker_env *env);

/* pen_init() of this process has failed with *why.  If it is rank 0 of several and would have
 * hosted the scheduler, it listens for HOSTED_DECLINE_MS and sends *why to the other ranks, unless
 * another process listens there.  strings: the argument of pen_init().  Invalid settings are left
 * at their defaults. */
enum { HOSTED_DECLINE_MS = 3000 };
void hosted_decline(const char *const *strings, const pen_error *why);

#endif
