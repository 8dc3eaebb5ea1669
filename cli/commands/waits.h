/* waits.h - who waits for whom, as far as the beats of a job say: per worker, and per server with its shards. */
#ifndef CLI_WAITS_H
#define CLI_WAITS_H

#include "proto/wire.h"
#include <stdio.h>

/* Of a STATUS.  A line for each worker that has waited for a second or more, and for each server whose step is held
 * up by it; then the sentences of the scheduler.  Nothing when nobody waits. */
void waits_print(const wire_control *status, FILE *out);

#endif
