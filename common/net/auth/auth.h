/* auth.h - who may reach a process's endpoints.
 *
 * Every process of a job opens an auth before its first endpoint, from four settings:
 *   encryption     auto, on or clear
 *   transport      tcp (plain sockets) or zmq
 *   secret_file    path of the job's secret
 *   local_sockets  whether processes of this user on this host meet on Unix-domain sockets (local_socket.h)
 * The result is one of
 *   local only  on loopback without a secret: nobody else can connect
 *   keys        beyond this host, or with a secret: encrypted, by TLS 1.3 or CURVE; local sockets beside it
 *   clear       encryption=clear beyond this host: a log line, and everybody may connect; local sockets beside it
 * Transports within one process have a NULL auth, which every function accepts.
 *
 * Keys.  A role listens with one key, the same for all its ranks; each member dials with a key of its own role and
 * rank.  A scheduler admits every key of the job, a server workers and servers, a worker workers.  All keys derive from
 * one secret, so this keeps out strangers and catches mistakes; it does not protect members from each other
 * (docs/design/security.md).
 */
#ifndef COMMON_AUTH_H
#define COMMON_AUTH_H

#include "common/net/transport/transport.h"
#include <stdbool.h>

typedef enum { AUTH_AUTO, AUTH_ON, AUTH_CLEAR } auth_encryption;
extern const char *const auth_choices[]; /* names of the above, for tables of settings */

typedef enum {
    AUTH_TRANSPORT_TCP,
    AUTH_TRANSPORT_ZMQ
} auth_transport; /* the setting `transport` */
extern const char *const auth_transports[];

typedef enum { AUTH_SCHEDULER, AUTH_SERVER, AUTH_WORKER, AUTH_TOOL, AUTH_ROLES } auth_role;

enum { AUTH_ADDRESSES = 3 };

typedef struct {
    int encryption;          /* auth_encryption */
    int transport;           /* auth_transport */
    const char *secret_file; /* "" or NULL: none */
    bool local_sockets;
    auth_role role;
    int32_t rank;                        /* -1: not known yet, or none */
    const char *address[AUTH_ADDRESSES]; /* all dialled or listening addresses; NULL: fewer */
    const char *scheduler;               /* its address; NULL: own role is SCHEDULER */
} auth_options;

typedef struct auth auth;

/* Copies everything and reads a secret once.
 * Errors  BAD_SETTING  unreadable secret, or none and traffic would leave this host. */
pen_status auth_open(const auth_options *o, auth **g, pen_error *why);

bool auth_encrypts(const auth *g); /* what is not local */

/* The result in a word or two, for people. */
const char *auth_describe(const auth *g);

/* Why nobody answers at this numeric address of this host, for people; NULL: nothing to say. */
const char *auth_hint(const auth *g, const char *address);

/* After the last endpoint was closed.  Overwrites the keys; NULL is fine. */
void auth_close(auth *g);

/* Fills in the keys, sockets and carrier of an endpoint.  The auth must outlive it. */
void auth_listen(const auth *g, transport_options *o);
void auth_dial(const auth *g, auth_role listener, transport_options *o);

/* Whether the owner of that key may claim this role and rank.  Rank -1 is not known yet; a key without a rank is
 * good for any. */
bool auth_is(const transport_identity *is, auth_role role, int32_t rank);

/* Connections between a worker and a shard if the setting is 0: one; by ZeroMQ and encrypted one per core, at most 4,
 * as one of its threads encrypts a connection. */
uint32_t auth_lanes(const auth *g);

/* Whether messages to this address stay on this host: "127.0.0.1", "localhost", "tcp://[::1]:7", "ipc://x",
 * "ipc:///x", and "" (nothing is sent).  Other names are not resolved: they serve other hosts. */
bool auth_is_loopback(const char *address);

#endif
