/* mesh.h - workers talk to workers over ZeroMQ: connections, collectives by schedule, point to point.
 *
 * DESIGN
 * Links.     Each worker listens at one address and dials a peer when a group is made whose calls will need it, and at
 *            the latest when it first has something for it: what i sends to j goes over the connection i dialled
 *            (several lanes for large parts), so one direction never waits for the other.  A message is a head (proto/peer.proto) and at most one payload, sent without a copy from the
 *            caller's memory; it carries group, call, member, incarnation and CRC32C of its payload.
 * Runner.    One runner for every schedule (schedule.h): large moves are cut into chunks so that sending, receiving
 *            and folding overlap.  What arrives early (a faster peer is one call ahead) is kept, bounded.
 * Entry.     Every member shows its header to every other; a call ends only when all headers have come and agree.
 *            The first data message to a peer carries it; peers without one get a message of their own.
 * Trust.     A frame that is malformed, of another job, of an old incarnation, too large or whose checksum is wrong is
 *            refused and counted; a corrupt payload fails the call (CORRUPT, naming sender, call and label).
 * Threads.   All functions but mesh_wake() under the engine's lock.
 */
#ifndef WORKER_COLL_MESH_H
#define WORKER_COLL_MESH_H

#include "common/base/stat.h"
#include "common/net/transport/transport.h"
#include "worker/collective/coll.h"
#include "worker/collective/schedule/schedule.h"

typedef struct mesh mesh;
typedef struct wire_team wire_team;

typedef struct {
    const char *listen; /* "tcp://127.0.0.1:0" */
    uint64_t lanes;     /* connections per direction for large parts */
    uint64_t heartbeat_ms;
    /* early messages a member keeps; beyond it the sender is not read from */
    uint64_t park_bytes_max;
    bool deterministic;
    const schedule_table *table; /* may be NULL; BORROWED */
    const struct auth *auth;     /* likewise */
    stat_set *stats;
    uint64_t lease_ms,
        name_ms; /* patience with a connection that broke; with a name that does not resolve */
    /* A connection to this rank cannot be made, and what stands in the way; said again while it lasts.  Under the
     * engine's lock; does not wait, calls nothing of the mesh.  May be NULL. */
    void (*unreached)(void *user, int rank, const char *address, const char *words);
    void *user;
} mesh_options;

pen_status mesh_create(const mesh_options *o, mesh **m, pen_error *why);
void mesh_destroy(mesh *m, uint32_t linger_ms);
const char *mesh_address(const mesh *m);

/* Who there is, once: own RANK and incarnation, and those and the addresses of all.  Strings are copied. */
pen_status mesh_set_peers(mesh *m, int self, int n, const uint64_t *incarnation,
                          const char *const *address, const char *const *host, uint64_t job,
                          pen_error *why);

pen_status wire_team_create(mesh *m, uint64_t id, const int *ranks, int size, int rank,
                            wire_team **team, pen_error *why);
/* After its calls and messages have ended.  What still arrives for it is dropped. */
void wire_team_destroy(wire_team *team);

/* Dials the members of the team: all of them where there are at most MESH_DIAL_ALL, else those whose positions lie a power of
 * two away.  Who does not answer is told by `unreached`. */
enum { MESH_DIAL_ALL = 64 };
pen_status wire_team_dial(wire_team *team, pen_error *why);
bool mesh_is_linked(const mesh *m); /* every connection that was dialled is there */

/* From time to time: looks at connections that are missing or doubtful. */
void mesh_look(mesh *m);

/* Takes in what has arrived and sends what can be sent.  True if it did anything.  Before each advance() of the wire
 * path, which does not.  One thread's advance may take in what another sleeps for: sleep in short naps where several
 * do. */
bool mesh_advance(mesh *m);
int mesh_poll_fd(
    mesh *m);            /* an epoll descriptor: readable when mesh_advance() has something to do */
void mesh_wake(mesh *m); /* makes it readable once; any thread */

/* ---- point to point: matched by group, sender, tag, in the order sent ---------------------------------------------- */
typedef struct mesh_message mesh_message; /* a send or a receive in progress */
typedef struct {
    pen_status status; /* AGAIN while it runs */
    int source, tag;
    uint64_t count; /* elements that came; with TOO_SMALL: needed */
    pen_error why;
} mesh_result;

/* data is BORROWED until mesh_test() says it has ended.  to: position in the team, own included. */
pen_status mesh_send(wire_team *team, int to, int tag, const void *data, size_t n, pen_dtype dtype,
                     const char *label, mesh_message **message, pen_error *why);
pen_status mesh_recv(wire_team *team, int from, int tag, void *data, size_t n, pen_dtype dtype,
                     const char *label, mesh_message **message,
                     pen_error *why);                       /* from, tag: PEN_ANY */
bool mesh_test(mesh_message *message, mesh_result *result); /* true: ended, and freed */
void mesh_cancel(mesh_message *message); /* ends it; afterwards nobody touches data; freed */

/* The verdict that a peer is gone: nothing more goes to or is taken from it, and what waits for it fails. */
void mesh_lost(mesh *m, int rank);

#endif
