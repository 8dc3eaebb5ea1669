/* waits.h - which member waits for which, from the beats of a job: per worker, and per server with its shards. */
#ifndef CLI_WAITS_H
#define CLI_WAITS_H

#include "proto/wire/wire.h"
#include <stdio.h>

/* Prints, from a STATUS, a line for each worker that has waited for a second or more and for each server whose step is
 * delayed; then the scheduler's sentences.  Prints nothing if no member waits. */
void waits_print(const wire_control *status, FILE *out);

#endif
