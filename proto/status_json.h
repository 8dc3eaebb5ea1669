/* status_json.h - STATUS as JSON, for `penstock status --json` and for GET /status. */
#ifndef PROTO_STATUS_JSON_H
#define PROTO_STATUS_JSON_H

#include "proto/wire/wire.h"

/* One line without its end; OWNED by the caller (free).  NULL: no memory, or invalid UTF-8. */
char *status_json(const wire_control *status);

const char *status_role_name(int32_t role); /* "worker", "launcher", ... */

/* A member's number of this name is the program's: neither a counter nor made by the scheduler. */
bool status_is_metric(const char *name);

#endif
