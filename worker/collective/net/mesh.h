/* mesh.h - connections between workers: collectives by schedule, point to point.
 *
 * DESIGN
 * Carrier.   "tcp://" addresses are those of plain sockets (transport_socket.h) in clear text, of ZeroMQ with keys.
 * Links.     Each worker listens at one address.  It dials a peer when it makes a group whose calls need that peer, at
 *            the latest with its first message to it.  i sends to j over the connection that i dialled (several lanes
 *            for large parts): one direction never waits for the other.  A message is a head (proto/peer.proto: group,
 *            call, member, incarnation, CRC32C of the payload) and at most one payload, sent from the caller's memory.
 * Runner.    One runner for every schedule (schedule.h): large moves are cut into chunks so that sending, receiving
 *            and folding overlap.  Early messages (a faster peer is one call ahead) are kept, bounded.
 * Entry.     A call ends only when the headers of all members agree: because all have arrived, because its data proves
 *            it, or, among many, because the members of a tree have passed it on (wire.c).  The first data message to a
 *            peer carries the header.
 * Trust.     A frame is refused and counted if it is malformed, too large, of another job, of an old incarnation or
 *            fails its checksum.  A corrupt payload fails the call (CORRUPT, naming sender, call and label).
 * Threads.   All functions but mesh_wake() under the engine's lock.
 */
#ifndef WORKER_COLL_MESH_H
#define WORKER_COLL_MESH_H

#include "common/base/stat.h"
#include "common/compute/simd/reduce.h"
#include "common/net/transport/transport.h"
#include "worker/collective/coll.h"
#include "worker/collective/schedule/schedule.h"

typedef struct mesh mesh;
typedef struct wire_team wire_team;

typedef struct {
    const char *listen; /* "tcp://127.0.0.1:0" */
    uint64_t lanes;     /* connections per direction for large parts */
    uint64_t heartbeat_ms;
    /* limit of the early messages that a member keeps; beyond it the sender is not read */
    uint64_t park_bytes_max;
    bool deterministic;
    const schedule_table *table; /* may be NULL; BORROWED */
    const struct auth *auth;     /* likewise */
    stat_set *stats;
    /* time limits for a broken connection, for a name that does not resolve */
    uint64_t lease_ms, name_ms;
    uint64_t show_ms; /* a call that takes longer sends its header to all; 0: 10 */
    /* Connecting to this rank fails, for the reason `words`; repeated while that lasts.  Called under the engine's
     * lock; must not wait or call the mesh.  May be NULL. */
    void (*unreached)(void *user, int rank, const char *address, const char *words);
    void *user;
} mesh_options;

pen_status mesh_create(const mesh_options *o, mesh **m, pen_error *why);
void mesh_destroy(mesh *m, uint32_t linger_ms);
const char *mesh_address(const mesh *m);
void mesh_use_lanes(mesh *m, uint64_t n); /* of options.lanes */

/* Sets all peers, once: the own RANK; RANK, incarnation, address and host of each.  Strings are copied. */
pen_status mesh_set_peers(mesh *m, int self, int n, const uint64_t *incarnation,
                          const char *const *address, const char *const *host, uint64_t job,
                          pen_error *why);

pen_status wire_team_create(mesh *m, uint64_t id, const int *ranks, int size, int rank,
                            wire_team **team, pen_error *why);
/* The order of its folds; BORROWED, before its first call.  NULL, the default: rank order. */
void wire_team_set_order(wire_team *team, const reduce_order *order);
/* After its calls and messages have ended.  Later arrivals for it are dropped. */
void wire_team_destroy(wire_team *team);

/* Dials the members of the team: all, if there are at most MESH_DIAL_ALL, else those whose positions are a power of two
 * away.  `unreached` reports members that do not answer. */
enum { MESH_DIAL_ALL = 64 };
pen_status wire_team_dial(wire_team *team, pen_error *why);
bool mesh_is_linked(const mesh *m); /* every dialled connection is up */

/* Call it periodically: checks connections that are missing or doubtful. */
void mesh_look(mesh *m);

/* Receives what has arrived and sends what can be sent.  True if it did anything.  Call it before each advance() of the
 * wire path, which does neither.  It may receive what another thread sleeps for: if several sleep, take short naps. */
bool mesh_advance(mesh *m);
uint32_t mesh_news(const mesh *m);  /* differs after mesh_advance() did anything; any thread */
uint32_t mesh_moves(const mesh *m); /* differs after it has moved a part of a message */
int mesh_poll_fd(mesh *m);          /* an epoll descriptor: readable when mesh_advance() has work */
void mesh_wake(mesh *m);            /* makes it readable once; any thread */

/* ---- point to point: matched by group, sender, tag, in the order sent -------------------------------------------- */
typedef struct mesh_message mesh_message; /* a send or a receive in progress */
typedef struct {
    pen_status status; /* AGAIN while it runs */
    int source, tag;
    uint64_t count; /* elements received; with TOO_SMALL: needed */
    pen_error why;
} mesh_result;

/* data is BORROWED until mesh_test() returns true.  to, from: position in the team, own included.  A receive's from and
 * tag may be PEN_ANY. */
pen_status mesh_send(wire_team *team, int to, int tag, const void *data, size_t n, pen_dtype dtype,
                     const char *label, mesh_message **message, pen_error *why);
pen_status mesh_recv(wire_team *team, int from, int tag, void *data, size_t n, pen_dtype dtype,
                     const char *label, mesh_message **message, pen_error *why);
bool mesh_test(mesh_message *message, mesh_result *result); /* true: ended, and freed */
void mesh_cancel(mesh_message *message); /* ends and frees it; data is not used afterwards */

/* The verdict says that this peer is gone: nothing is sent to it or received from it; all that waits for it fails. */
void mesh_lost(mesh *m, int rank);

#endif
