/* guard.h - what the endpoints of one process are protected with: nothing, a proof that both ends belong to the job, or
 * encryption, which proves it too.
 *
 * Every process of a job opens a guard before its first endpoint, from two settings:
 *   encryption   auto, on or clear.  Auto is on when a secret was given, and off loopback.
 *   secret_file  where the job's secret is.
 * They come to
 *   CURVE    encrypted, with keys of the secret
 *   PROOF    not encrypted; each connection begins with a proof (transport/proof.h), with keys of the secret where one
 *            was given, and else, on loopback, of the token that the scheduler's process left (token.h)
 *   nothing  encryption=clear off loopback without a secret, which is said; transports within one process
 * The last is a NULL guard; every function takes it.  A scheduler's leaves a token that says so, so that processes of
 * its user that reach it by loopback do not wait for another.
 *
 * Keys.  A role listens with one key, the same for all its ranks; each member dials with a key of its own
 * role and rank.  A scheduler lets everybody in who has a key of the job, a server workers and servers, a
 * worker workers.  All keys come from the one secret, so this tells a stranger from a member and a slip from
 * an attempt; it does not protect members from each other (docs/design/security.md).
 */
#ifndef COMMON_GUARD_H
#define COMMON_GUARD_H

#include "common/net/transport/transport.h"
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
    const char *
        scheduler; /* "tcp://HOST:PORT", whose token is looked for; NULL: its own role is SCHEDULER */
} guard_options;

typedef struct guard guard;

/* Everything is copied, a secret is read once; a token is read for each proof, for the scheduler's process may not have
 * left it yet, or another one may come.
 * Errors  BAD_SETTING  the secret cannot be read, or none was given and traffic would leave this host. */
pen_status guard_open(const guard_options *o, guard **g, pen_error *why);

/* A scheduler listens there now: the token that it made, if it is a token that it proves with, is left for the others
 * until the guard is closed.  Errors  STORE: in words. */
pen_status guard_publish(guard *g, const char *address, pen_error *why);

/* Whether it encrypts; if not, it proves.  NULL: false. */
bool guard_encrypts(const guard *g);

/* What it comes to, in a word or two, for people. */
const char *guard_describe(const guard *g);

/* Why nothing can be proven now, for people; NULL: it can. */
const char *guard_lack(guard *g);

/* After the last endpoint was closed.  Overwrites the keys; NULL is fine. */
void guard_close(guard *g);

/* Fills in the keys of an endpoint.  The guard must outlive it. */
void guard_listen(const guard *g, transport_options *o);
void guard_dial(const guard *g, guard_role listener, transport_options *o);

/* Whether who proved to be that may say that it is of this role and rank.  A rank of -1 is not known yet, and a key
 * without a rank is good for any. */
bool guard_is(const transport_identity *is, guard_role role, int32_t rank);

/* Connections between a worker and a shard when the setting says 0: one in clear text; encrypted as many as
 * there are cores, at most 4, for one connection is encrypted by one core. */
uint32_t guard_lanes(const guard *g);

/* Whether what is sent there stays on this host: "127.0.0.1", "localhost", "tcp://[::1]:7", "ipc://x",
 * "ipc:///x", and "" (nothing is sent).  Other names are not looked up: they are said so that others find
 * this host. */
bool guard_is_loopback(const char *address);

#endif
