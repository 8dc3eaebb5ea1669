/* mesh_internal.h - what the files of the mesh share: links, lent memory, teams.
 *
 * DESIGN
 * Lending.   A hold is one buffer that the transport has.  It comes back in any thread, by a stack that the mesh
 *            empties under the engine's lock, where all counting is done.
 * Cutting.   Memory that must be given back now, and is not, comes back by closing the connection that has it.  Who
 *            else had something on that connection is told by is_cancelled of its debt.
 * Leaving.   Who destroys its mesh says goodbye (WITHDRAWN of group 0) behind all that it sent; it dials those who have
 *            spoken to it and whom it never had anything for.  A connection that ends makes its peer only suspected:
 *            it is judged when what had arrived was read, and counts as a loss if something is still missing from that
 *            peer, or goes to it without its goodbye.  A connection that its peer closed on purpose, to have its memory
 *            back, is followed by another of the same lane with a higher number (dial): then nothing was lost.
 * Credit.    Bytes of a call that a peer has not used up yet are bounded: before it has shown that it is in the call
 *            by wire_eager, later by wire_window.  Letters have a budget of their own; what is beyond it, and what is
 *            large, is only announced, and comes when the receiver has a place for it.
 */
#ifndef WORKER_COLL_MESH_INTERNAL_H
#define WORKER_COLL_MESH_INTERNAL_H

#include "common/net/auth/auth.h"
#include "common/net/reach.h"
#include "proto/wire/wire_peer.h"
#include "worker/collective/net/mesh.h"
#include "worker/collective/schedule/runner.h"

#include <stdatomic.h>

enum {
    MESH_GRACE_MS  = 20,       /* lent memory usually comes back sooner than that */
    MESH_CANCEL_MS = 5000,     /* after closing its connection it does */
    MESH_LANE_FROM = 64 << 10, /* smaller messages all take the first lane */
    MESH_BATCH     = 1024
};

typedef struct mesh_tx_ref mesh_tx_ref;
typedef struct mesh_post mesh_post;

typedef struct {
    mesh *m;
    transport *t;
    int rank;
    uint32_t lane, dials; /* dials: how often it was opened */
    bool is_up, is_stuck; /* stuck: it has memory that must be back, and is to be opened anew */
    reach reach;
    mesh_post *posts; /* what waits for the connection */
} mesh_link;

typedef struct {
    uint64_t incarnation;
    char *address, *host;
    bool is_lost, has_left; /* the job says so; it said goodbye */
    uint64_t missed;        /* lanes, as bits, whose connection ended while something was to come */
    bool is_cut_off;        /* a connection to it ended, too */
    uint64_t suspect_ms;    /* since then; 0: it is not */
    mesh_link *link;        /* [lanes] */
    uint64_t *caller;       /* [lanes] number of its connection at the listener, plus one */
    uint32_t *dial;         /* [lanes] how often it has opened that one */
    uint32_t next_lane;
    uint64_t letters_out,
        letters_back; /* bytes sent without being asked, and used up by the peer */
    uint64_t letters_used,
        letters_told; /* the same from it: used up here, and what it knows of that */
} mesh_peer;

typedef enum {
    MESH_BROKE,     /* nothing more goes to it or comes from it */
    MESH_BROKE_OUT, /* what was on the way to it is lost; it may still send */
    MESH_LEFT       /* in good order: it wants nothing more, and sends nothing more */
} mesh_loss;

/* A message that came before its time. */
typedef struct mesh_parked mesh_parked;
struct mesh_parked {
    mesh_parked *next, *prev;
    wire_peer head; /* its strings are label and show_label */
    buf *body;
    char label[WIRE_LABEL_MAX], show_label[WIRE_LABEL_MAX];
};

typedef mesh_parked *mesh_early_queue; /* a list in the order of arrival */

struct mesh {
    mesh_options o;
    transport *listener;
    bool copies; /* the transport hands references to the receiver: what is sent must not be lent */
    int epoll_fd, wake_fd;
    int self, n_peers;
    uint64_t job;
    mesh_peer *peer; /* [n_peers] by RANK */
    wire_arena *arena;
    wire_out out;
    wire_team *teams;
    mesh_early_queue early; /* for groups that are not there yet */
    uint64_t *gone;         /* groups that are there no more */
    size_t n_gone, parked_bytes;
    uint64_t next_message;        /* ids of letters that are only announced */
    uint32_t n_dialling, n_posts; /* connections that are not up; messages that wait for one */
    uint32_t n_suspects;          /* peers */
    uint64_t looked_ms;           /* for connections that are missing */

    mesh_tx_ref *lent, *spare;       /* spare: a stack, as is */
    _Atomic(mesh_tx_ref *) returned; /* pushed by the transport's threads */
    atomic_uint returning;           /* threads that are pushing */
    atomic_bool wants_returns;       /* somebody waits for nothing else */
};

/* ---- mesh_team.c ------------------------------------------------------------------------------------------------- */
void mesh_deliver(mesh *m, const wire_peer *head, buf *body);
void mesh_notify_teams(mesh *m, int rank, mesh_loss loss, const char *how);
bool mesh_minds(const mesh *m, int rank); /* a call in progress waits for something of it */

/* ---- mesh_peer.c ------------------------------------------------------------------------------------------------- */
bool mesh_peer_init(mesh *m, int rank, uint64_t incarnation, const char *address,
                    const char *host); /* false: no memory */
void mesh_peer_fini(mesh_peer *p);
bool mesh_has_callers(const mesh *m, const mesh_peer *p); /* some connection of it is there */
bool mesh_is_away(const mesh *m, int rank);               /* it left, and all it sent was heard */
void mesh_suspect(mesh *m, int rank);                     /* a connection of it ended */
void mesh_trust(mesh *m, mesh_peer *p);                   /* it is suspected no more */

/* ---- mesh_link.c ------------------------------------------------------------------------------------------------- */
pen_status mesh_watch(mesh *m, int fd, void *tag, pen_error *why);
transport_options mesh_transport_options(const mesh *m);
void mesh_close_link(mesh_link *l, uint32_t linger_ms);
bool mesh_drain_link(mesh_link *l);
pen_status mesh_dial(mesh *m, int rank, pen_error *why); /* unless it is, or has gone */
/* Sends one message; job, incarnations, rank, lane and payload_bytes are filled in.  data is lent, counted in debt;
 * small data is copied.  What cannot be sent yet waits for the connection. */
pen_status mesh_send_frame(mesh *m, int rank, wire_peer *head, const void *data, size_t bytes,
                           runner_debt *debt, pen_error *why);
bool mesh_has_posts(const mesh *m, int rank);
/* Waits, shortly, until nothing of `owner` is lent, and cuts what still has something after grace_ms. */
void mesh_settle(mesh *m, const void *owner, uint32_t grace_ms);

/* ---- mesh_lend.c ------------------------------------------------------------------------------------------------- */
/* NULL: no memory. */
buf *mesh_lend(mesh *m, mesh_link *l, const void *data, size_t bytes, runner_debt *debt);
bool mesh_is_owing(const mesh *m, const void *owner); /* something of it is lent */
void mesh_cancel_lent(mesh *m, const mesh_link *l);   /* what is lent to it did not arrive */
void mesh_cancel_lent_of(mesh *m, const void *owner); /* likewise, of what has its; marked stuck */
void mesh_doubt(mesh *m, const mesh_link *l);         /* that is not known: for mesh_decide() */
void mesh_decide(mesh *m, int rank, bool is_cancelled);
/* Who gives a call up does not ask any more what became of its bytes. */
void mesh_decide_of(mesh *m, const void *owner);
bool mesh_has_all_back(mesh *m); /* waits; false: somebody keeps memory */
void mesh_free_tx_refs(mesh *m);
void mesh_collect(mesh *m);       /* what the transport gave back */
void mesh_await_returns(mesh *m); /* the descriptor shall tell when something comes back */

/* ---- mesh_park.c ------------------------------------------------------------------------------------------------- */
void mesh_refuse(mesh *m, const char *what, const wire_peer *head);

bool mesh_park(mesh *m, mesh_early_queue *early_queue, const wire_peer *head,
               buf *body); /* takes a reference to body */
/* Takes it out; it and its body are the caller's: mesh_drop(). */
void mesh_unpark(mesh *m, mesh_early_queue *early_queue, mesh_parked *p);
mesh_parked *mesh_unpark_first(mesh *m, mesh_early_queue *early_queue); /* NULL: there is none */
void mesh_drop(mesh_parked *p);
void mesh_clear(mesh *m, mesh_early_queue *early_queue);
size_t mesh_eager_bytes(const mesh *m, int size); /* what a peer may be sent before it wants it */

/* ---- teams ------------------------------------------------------------------------------------------------------- */
typedef struct {
    bool has;
    uint64_t seq;
    coll_header header;
    double scale;
} wire_shown;

typedef struct {
    wire_shown now, next; /* what it showed for this call and for the one after */
    bool is_told;         /* it has seen this member's */
    size_t sent, back;    /* bytes sent to it, and used up there */
    size_t used, told;    /* the same from it */
} wire_mate;

typedef struct {
    coll_kind kind;
    int root;
    const schedule_algorithm *algorithm;
    runner_plan plan;
    uint64_t used_at;
} wire_plan;

enum { WIRE_PLANS = 8 };

typedef struct {
    bool is_running, has_begun, is_suspect, has_failed, has_agreed;
    bool next_is_torn; /* there was no room for a part of the next call */
    const runner_plan *plan;
    uint64_t seq, ended,
        leave_by_ms; /* a disagreement is told when this member's header has left */
    coll_call call;
    coll_header own;
    int n_shown;
    size_t eager, window;
    mesh_early_queue parked, next; /* parts of this call, and of the one after */
    runner runner;
    pen_error why;
    const void *crc_data; /* the last bytes that were summed up, in which turn of the runner */
    uint64_t crc_turn;
    size_t crc_bytes;
    uint32_t crc;
} wire_run;

struct wire_team {
    wire_team *next, *prev;
    mesh *m;
    uint64_t id;
    int size, rank;
    void *arrays; /* all below that have a size */
    int *ranks;
    int *position;   /* [n_peers] of a RANK; -1: not in it */
    wire_mate *mate; /* [size] */
    wire_plan plan[WIRE_PLANS];
    wire_run run;
    mesh_message *receiving, *sending;   /* in the order they were asked for */
    mesh_early_queue letters;            /* nobody has asked for them yet */
    uint64_t *letters_to, *letters_from; /* [size] numbers given and seen */
};

/* ---- wire.c ------------------------------------------------------------------------------------------------------ */
void wire_take(wire_team *team, int from, const wire_peer *head, buf *body);
void wire_lost(wire_team *team, int position, mesh_loss loss, const char *how);
bool wire_minds(const wire_team *team, int position); /* something is still to come from it */
void wire_free(wire_team *team);

/* ---- p2p.c ------------------------------------------------------------------------------------------------------- */
void p2p_take(wire_team *team, int from, const wire_peer *head, buf *body);
void p2p_credit(mesh *m, int rank, uint64_t credit);
void p2p_used_up(mesh *m, int rank, const wire_peer *head); /* a letter that is kept no longer */
void p2p_lost(wire_team *team, int position, mesh_loss loss, const char *how);
void p2p_free(wire_team *team);

#endif
