/* position.h - where a worker is: its step and its newest call, in a page that its launcher can still read after it died.
 *
 * The launcher creates the page and passes its descriptor in PENSTOCK_POSITION_FD; the worker writes, without system calls.
 * A worker that dies between two heartbeats, also by SIGKILL, is reported where it was.
 */
#ifndef COMMON_LAUNCH_POSITION_H
#define COMMON_LAUNCH_POSITION_H

#include "penstock.h"

#include <stdbool.h>
#include <stdint.h>

enum { POSITION_CALL_BYTES = 96 };
#define POSITION_VARIABLE "PENSTOCK_POSITION_FD"

typedef struct launch_position launch_position;

/* ---- launcher */
/* *fd, the caller's, is open across exec only after position_pass(fd).  NULL: none, which is no failure; *fd is -1. */
launch_position *position_create(int *fd);
bool position_pass(int fd); /* in the child */

/* The step (-1: none) and the call as heartbeats give it: "pen_barrier", "after pen_step_end", "".  The child wrote it, so
 * nothing about it is trusted.  False: nothing was written. */
bool position_read(launch_position *p, int64_t *step, char call[POSITION_CALL_BYTES]);

/* ---- worker; NULL is fine everywhere */
/* The page of this process's launcher; NULL: there is none, or that descriptor is something else. */
launch_position *position_open(const char *fd);
void position_close(launch_position *p); /* the launcher too */
void position_set_step(launch_position *p, int64_t step);
/* `call` is a literal.  Any thread. */
void position_set_call(launch_position *p, const char *call, bool is_inside);

#endif
