/* mesh_internal.h - what the files of the mesh share: links, lent memory, teams.
 *
 * DESIGN
 * Lending.   A mesh_tx_ref is one buffer that the transport holds.  Any thread may return it, on a stack that the mesh
 *            empties under the engine's lock; all counting happens there.
 * Reopening. If lent memory must come back now, and does not, the mesh closes the connection that holds it.  Other
 *            owners of data on that connection learn it from is_cancelled of their debt.
 * Leaving.   A worker that destroys its mesh sends a goodbye (WITHDRAWN of group 0) after all else; it first dials
 *            peers that have sent to it and that it never dialled.  A peer whose connection ends is only suspected.  It
 *            is judged after everything that had arrived was read, and is lost if data from it is still missing, or
 *            data to it is under way and no goodbye came.  A peer that closed a connection on purpose, to get its
 *            memory back, opens another of the same lane with a higher number (dial): then nothing was lost.
 * Credit.    Bytes of a call that a peer has not used up yet are bounded: by `eager` before its header has arrived, by
 *            `window` later.  P2p messages (messages of p2p.c) have a budget of their own.  A p2p message that is large or beyond
 *            the budget is only announced, and is sent when the receiver has a place for it.
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
    MESH_GRACE_MS  = 20,       /* lent memory usually comes back sooner */
    MESH_CANCEL_MS = 5000,     /* limit after its connection was closed */
    MESH_LANE_FROM = 64 << 10, /* smaller messages all take the first lane */
    MESH_BATCH     = 1024
};

typedef struct mesh_tx_ref mesh_tx_ref;
typedef struct mesh_post mesh_post;

typedef struct mesh_link mesh_link;
struct mesh_link {   /* zeros until it is dialled */
    mesh_link *next; /* of mesh.dialled */
    mesh *m;
    transport *t;
    int rank;
    uint32_t lane, dials; /* dials: how often it was opened */
    bool is_up, is_stuck; /* stuck: it holds memory that must come back, and will be reopened */
    reach reach;
    mesh_post *posts; /* messages that wait for the connection */
};

typedef struct {
    uint64_t incarnation;
    const char *address, *host;
    bool is_lost, has_left; /* by the job's verdict; by its goodbye */
    uint64_t missed;        /* lanes, as bits, whose connection ended while data was expected */
    bool is_cut_off;        /* a connection to it ended, too */
    uint64_t suspect_ms;    /* suspected since; 0: it is not */
    mesh_link *link;        /* [lanes], as in caller and dial: a part of mesh.arrays */
    uint64_t *caller;       /* number of its connection at the listener, plus one */
    uint32_t *dial;         /* how often it has opened that one */
    uint32_t next_lane;
    uint64_t p2p_out, p2p_back;  /* bytes sent unasked; used up by the peer */
    uint64_t p2p_used, p2p_told; /* of its bytes: used up here; reported to it */
} mesh_peer;

typedef enum {
    MESH_BROKE,     /* it neither sends nor receives any more */
    MESH_BROKE_OUT, /* data on the way to it is lost; it may still send */
    MESH_LEFT       /* by its goodbye: it neither sends nor needs anything more */
} mesh_loss;

/* A message that arrived early. */
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
    bool copies;     /* the transport passes references to the receiver: data is copied, not lent */
    bool is_starved; /* a message was lost for want of memory: end_without_memory() */
    bool tears_next; /* it may have been of a group that is not made yet, whose first call fails */
    int epoll_fd, wake_fd;
    atomic_uint news;  /* counts the turns that have read something */
    atomic_uint moves; /* and those that have moved a part of a message */
    int self, n_peers;
    uint64_t n_lanes; /* in use: the first of o.lanes */
    uint64_t job;
    mesh_peer *peer; /* [n_peers] by RANK; its memory is in arrays and texts */
    void *arrays, *texts;
    mesh_link *dialled; /* the links that were ever opened, of all peers */
    const buf *placed;  /* the body that is being delivered, if it is in its place; NULL: another */
    wire_arena *arena;
    wire_out out;
    wire_team *teams;
    mesh_early_queue early; /* for groups that do not exist yet */
    uint64_t *gone;         /* ids of destroyed groups */
    size_t n_gone, parked_bytes;
    uint64_t next_message;        /* ids of p2p messages that are only announced */
    uint32_t n_dialling, n_posts; /* connections that are not up; messages that wait for one */
    uint32_t n_suspects, n_left;  /* peers; those that said goodbye */
    uint64_t looked_ms;           /* last check for missing connections */

    mesh_tx_ref *lent, *spare;       /* spare: a stack, as is */
    _Atomic(mesh_tx_ref *) returned; /* pushed by the transport's threads */
    atomic_uint returning;           /* threads that are pushing */
    atomic_bool wants_returns;       /* the next return wakes the mesh */
};

/* ---- mesh_team.c ------------------------------------------------------------------------------------------------- */
wire_team *mesh_find_team(const mesh *m, uint64_t id); /* NULL: none */
void mesh_deliver(mesh *m, const wire_peer *head, buf *body);
void mesh_notify_teams(mesh *m, int rank, mesh_loss loss, const char *how);
bool mesh_minds(const mesh *m, int rank); /* a call in progress waits for data from it */

/* ---- mesh_peer.c ------------------------------------------------------------------------------------------------- */
bool mesh_has_callers(const mesh *m, const mesh_peer *p); /* it has a connection to this worker */
bool mesh_is_away(const mesh *m, int rank);               /* it left, and all it sent was read */
void mesh_suspect(mesh *m, int rank);                     /* a connection with it ended */
void mesh_trust(mesh *m, mesh_peer *p);                   /* ends the suspicion */

/* ---- mesh_link.c ------------------------------------------------------------------------------------------------- */
pen_status mesh_watch(mesh *m, int fd, void *tag, pen_error *why);
transport_options mesh_transport_options(const mesh *m);
void mesh_close_link(mesh_link *l, uint32_t linger_ms);
bool mesh_drain_link(mesh_link *l);
pen_status mesh_dial(mesh *m, int rank, pen_error *why); /* unless it is dialled or gone */
/* Sends one message, on head->lane unless it is large; fills in job, incarnations, rank, dial and payload_bytes.  data is
 * lent, counted in debt, or copied (mesh.copies).  A message that cannot be sent yet waits for the connection. */
pen_status mesh_send_frame(mesh *m, int rank, wire_peer *head, const void *data, size_t bytes,
                           runner_debt *debt, pen_error *why);
bool mesh_has_posts(const mesh *m, int rank);
/* Waits until nothing of `owner` is lent; reopens connections that still hold something after grace_ms. */
void mesh_settle(mesh *m, const void *owner, uint32_t grace_ms);

/* ---- mesh_lend.c ------------------------------------------------------------------------------------------------- */
/* NULL: no memory. */
buf *mesh_lend(mesh *m, mesh_link *l, const void *data, size_t bytes, runner_debt *debt);
bool mesh_is_owing(const mesh *m, const void *owner); /* some of its memory is lent */
void mesh_cancel_lent(mesh *m, const mesh_link *l);   /* data lent to this link did not arrive */
void mesh_cancel_lent_of(mesh *m, const void *owner); /* on all links with its data: marked stuck */
void mesh_doubt(mesh *m, const mesh_link *l);         /* unknown yet: mesh_decide() follows */
void mesh_decide(mesh *m, int rank, bool is_cancelled);
/* Its call was given up: doubtful data counts as cancelled. */
void mesh_decide_of(mesh *m, const void *owner);
bool mesh_has_all_back(mesh *m); /* waits; false: the transport still holds memory */
void mesh_free_tx_refs(mesh *m);
void mesh_collect(mesh *m);       /* takes back what the transport returned */
void mesh_await_returns(mesh *m); /* from now on a return makes mesh_poll_fd() readable */

/* ---- mesh_receive.c ---------------------------------------------------------------------------------------------- */
/* For transport_options.place. */
void *mesh_place(void *user, uint32_t peer, const void *head, size_t head_size, uint64_t bytes,
                 const void **owner);

/* ---- mesh_park.c ------------------------------------------------------------------------------------------------- */
void mesh_refuse(mesh *m, const char *what, const wire_peer *head);

/* Takes a reference to body.  False: no room. */
bool mesh_park(mesh *m, mesh_early_queue *early_queue, const wire_peer *head, buf *body);
/* Removes it; it and its body are the caller's: mesh_drop(). */
void mesh_unpark(mesh *m, mesh_early_queue *early_queue, mesh_parked *p);
mesh_parked *mesh_unpark_first(mesh *m, mesh_early_queue *early_queue); /* NULL: none */
void mesh_drop(mesh_parked *p);
void mesh_clear(mesh *m, mesh_early_queue *early_queue);
size_t mesh_eager_bytes(const mesh *m, int size); /* may be sent to a peer before it asks */

/* ---- teams ------------------------------------------------------------------------------------------------------- */
typedef struct {
    bool has;
    uint64_t seq;
    coll_header header;
    double scale;
    bool agrees, refuses; /* large teams: so do all below it, or all; somebody does not accept */
} wire_shown;

typedef struct {
    wire_shown now, next; /* its headers of this call and of the next */
    bool is_told;         /* this member's header was sent to it */
    size_t sent, back;    /* bytes sent to it; used up there */
    size_t used, told;    /* bytes from it used up here; of those, reported to it */
    bool is_touched;      /* it is in the team's list */
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
    bool proves_itself; /* it ends only if all headers are alike, also those that were not seen */
    bool is_scaled;     /* a header that was not seen may have a scale */
    bool has_shown;     /* to all */
    bool has_raised;    /* large teams: the parent knows that all below are alike */
    int suspect;        /* position of the first header that differs */
    bool next_is_torn;  /* a part of the next call found no room */
    const runner_plan *plan;
    /* leave_by_ms: a mismatch ends the call only after this member's header was sent, or then */
    uint64_t seq, ended, leave_by_ms, show_at_ms;
    coll_call call;
    coll_header own;
    int n_shown;
    size_t eager, window;
    mesh_early_queue parked, next; /* parts of this call, and of the next */
    runner runner;
    pen_error why;
    const void *crc_data; /* the newest CRC: its data, the runner's turn */
    uint64_t crc_turn;
    size_t crc_bytes;
    uint32_t crc;
} wire_run;

struct wire_team {
    wire_team *next, *prev;
    mesh *m;
    uint64_t id;
    int size, rank;
    bool is_on_one_host;       /* by the names of its members' hosts */
    bool is_large;             /* more than MESH_DIAL_ALL */
    const reduce_order *order; /* of all folds; NULL: rank order */
    void *arrays;              /* all below that have a size */
    int *ranks;
    int *position;   /* [n_peers] of a RANK; -1: not a member */
    wire_mate *mate; /* [size] */
    int *touched;    /* [size] positions of those that are not all zero */
    int n_touched;
    wire_plan plan[WIRE_PLANS];
    wire_run run;
    mesh_message *receiving, *sending; /* in the order of the calls */
    mesh_early_queue p2p_messages;     /* that no receive has matched yet */
    uint64_t *p2p_to, *p2p_from;       /* [size] newest numbers, given and seen */
};

/* ---- wire.c ------------------------------------------------------------------------------------------------------ */
void wire_take(wire_team *team, int from, const wire_peer *head, buf *body);
void *wire_place(wire_team *team, int from, const wire_peer *head); /* NULL: nowhere yet */
void wire_lost(wire_team *team, int position, mesh_loss loss, const char *how);
bool wire_minds(const wire_team *team, int position); /* data from it is still expected */
void wire_starve(wire_team *team); /* a message of this call, or of the next, had no memory here */
void wire_free(wire_team *team);

/* ---- p2p.c ------------------------------------------------------------------------------------------------------- */
void p2p_take(wire_team *team, int from, const wire_peer *head, buf *body);
void p2p_credit(mesh *m, int rank, uint64_t credit);
void p2p_used_up(mesh *m, int rank, const wire_peer *head); /* this p2p message is no longer kept */
void p2p_lost(wire_team *team, int position, mesh_loss loss, const char *how);
void p2p_free(wire_team *team);

#endif
