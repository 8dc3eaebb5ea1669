/* stuck.h - the records of all workers, merged: which rank is in which collective, and which has not entered it. */
#ifndef PROTO_STUCK_H
#define PROTO_STUCK_H

#include "proto/wire/wire.h"
#include <stdio.h>

typedef struct stuck stuck;

stuck *stuck_create(void);       /* NULL: no memory */
void stuck_destroy(stuck *self); /* NULL is fine */

/* First STATUS: the workers and their calls.  Then each RECORD: the last calls of one, or why there are none. */
void stuck_take_status(stuck *self, const wire_control *status);
void stuck_take_record(stuck *self, const wire_control *record);
bool stuck_is_whole(const stuck *self); /* it has a status, and a record of every worker */

void stuck_print(const stuck *self, FILE *out);
void stuck_print_json(const stuck *self, FILE *out);

#endif
