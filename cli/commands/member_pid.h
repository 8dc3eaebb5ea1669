/* member_pid.h - the process of a member on this host, for `kill $(penstock status --pid server 0)`. */
#ifndef CLI_MEMBER_PID_H
#define CLI_MEMBER_PID_H

#include "proto/wire.h"
#include <sys/types.h>

/* Finds the process that is `role` ("worker" or "server") `rank` of the job whose STATUS this is, and makes sure that
 * this very process runs here: the host has the member's name, and the process is connected to the scheduler's port,
 * for two hosts may have one name, and numbers of processes are used again.
 * Errors  INVALID_ARGUMENT  not a role, or not a rank.   NOT_FOUND  the job has no such member, it has no process now,
 *         or that runs elsewhere. */
pen_status member_pid(const wire_control *status, const char *role, const char *rank, uint16_t port,
                      pid_t *pid, pen_error *why);

/* Whether a process of this host has a TCP connection to that port; false also where that cannot be read. */
bool process_is_connected(pid_t pid, uint16_t port);

#endif
