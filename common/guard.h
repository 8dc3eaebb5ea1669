/* guard.h - what the endpoints of one process are protected with: nothing, or keys of the job's secret.
 *
 * Every process of a job opens a guard before its first endpoint, from two settings:
 *   encryption   auto, on or clear.  Auto is on when a secret was given, and off loopback.
 *   secret_file  where the job's secret is.
 * A NULL guard is clear text; every function takes it.
 *
 * Keys.  A role listens with one key, the same for all its ranks; each member dials with a key of its own
 * role and rank.  A scheduler lets everybody in who has a key of the job, a server workers and servers, a
 * worker workers.  All keys come from the one secret, so this tells a stranger from a member and a slip from
 * an attempt; it does not protect members from each other (docs/design/security.md).
 */
#ifndef COMMON_GUARD_H
#define COMMON_GUARD_H

#include "common/transport/transport.h"
#include <stdbool.h>

typedef enum { GUARD_AUTO, GUARD_ON, GUARD_CLEAR } guard_encryption;
extern const char *const guard_choices[]; /* names of the above, for tables of settings */

typedef enum { GUARD_SCHEDULER, GUARD_SERVER, GUARD_WORKER, GUARD_TOOL, GUARD_ROLES } guard_role;

enum { GUARD_ADDRESSES = 3 };

typedef struct {
    int encryption;          /* guard_encryption */
    const char *secret_file; /* "" or NULL: none */
    guard_role role;
    int32_t rank;                         /* -1: not known yet, or none */
    const char *address[GUARD_ADDRESSES]; /* all that are dialled or listened at; NULL: fewer */
} guard_options;

typedef struct guard guard;

/* Everything is copied, the secret is read once.  *g is NULL for clear text.
 * Errors  BAD_SETTING  the secret cannot be read, or none was given and traffic would leave this host. */
pen_status guard_open(const guard_options *o, guard **g, pen_error *why);

/* After the last endpoint was closed.  Overwrites the keys; NULL is fine. */
void guard_close(guard *g);

/* Fills in the keys of an endpoint.  The guard must outlive it. */
void guard_listen(const guard *g, transport_options *o);
void guard_dial(const guard *g, guard_role listener, transport_options *o);

/* Connections between a worker and a shard when the setting says 0: one in clear text; encrypted as many as
 * there are cores, at most 4, for one connection is encrypted by one core. */
uint32_t guard_lanes(const guard *g);

/* Whether what is sent there stays on this host: "127.0.0.1", "localhost", "tcp://[::1]:7", "ipc://x",
 * "inproc://x", and "" (nothing is sent).  Other names are not looked up: they are said so that others find
 * this host. */
bool guard_is_loopback(const char *address);

#endif
