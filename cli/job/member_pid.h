/* member_pid.h - the process of a member on this host, for `kill $(penstock status --pid server 0)`. */
#ifndef CLI_MEMBER_PID_H
#define CLI_MEMBER_PID_H

#include "proto/wire/wire.h"
#include <sys/types.h>

/* Finds the process of `role` ("worker" or "server") `rank` in a STATUS, and verifies that it runs here: the host has
 * the member's name, and the process is connected to the scheduler's port, because host names and process ids are not
 * unique.
 * Errors  INVALID_ARGUMENT  invalid role or rank.   NOT_FOUND  no such member, or no process of it here. */
pen_status member_pid(const wire_control *status, const char *role, const char *rank, uint16_t port,
                      pid_t *pid, pen_error *why);

/* Whether a process of this host is connected to that port, over TCP or its local socket; false also if that cannot be
 * read. */
bool process_is_connected(pid_t pid, uint16_t port);

#endif
