/* hosted.h - the scheduler that rank 0 is the home of, where nobody else is. */
#ifndef WORKER_HOSTED_H
#define WORKER_HOSTED_H

#include "scheduler/core/scheduler_settings.h"
#include "worker/worker_env.h"

/* As its worker's settings and place say. */
void hosted_settings(const worker_settings *s, const worker_env *env, scheduler_settings *hosted);

/* pen_init() of this process has failed with *why.  Where it is rank 0 of several and would have hosted the scheduler, the
 * others wait for that: it listens for HOSTED_DECLINE_MS and tells them.  Else nothing, and nothing where somebody
 * listens there already.
 * strings: what pen_init() was given.  What of the settings is no good is left at its default. */
enum { HOSTED_DECLINE_MS = 3000 };
void hosted_decline(const char *const *strings, const pen_error *why);

#endif
