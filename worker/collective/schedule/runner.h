/* runner.h - runs one member's schedule on any link: sends, receives, folds and copies.
 *
 * DESIGN
 * Segments.  A large call of independent elements is split into segments that go through the schedule one after
 *            another, a few at a time, so that sending, receiving and folding overlap.  Large parts travel in chunks.
 * Parts.     Bytes are named by segment, slot (index of the send to that peer in the schedule) and offset, so they may
 *            arrive in any order and on several connections.  Bytes whose place is not free yet are offered again.
 * Keeping.   Data that is folded once is not copied to its place: the runner keeps the message body until the fold.
 * Lending.   Sends are by reference.  A debt counts lent messages: no later step overwrites memory that the link has.
 * In place.  If IN and OUT overlap, or a type is widened, results go to scratch memory and are copied at the end.
 *            They are numbered through the passes of the schedule.
 * Widening.  In schedules with partial folds, 16-bit floats are sent and summed as float32: rounded once, as always.
 * Thread     none of its own; its owner's lock.
 */
#ifndef WORKER_COLL_RUNNER_H
#define WORKER_COLL_RUNNER_H

#include "common/compute/simd/reduce.h"
#include "common/containers/buf.h"
#include "worker/collective/coll.h"
#include "worker/collective/schedule/schedule.h"

enum { RUNNER_TRACKS = 4, RUNNER_CHUNK_BYTES = 512 << 10 };

typedef struct {
    int peer; /* position of the receiver or the sender */
    uint32_t segment, slot;
    size_t offset, total; /* bytes */
} runner_part;

typedef struct {
    uint32_t n;        /* messages whose bytes are still lent */
    const void *owner; /* of the debt */
    bool is_cancelled; /* a connection closed before they were sent */
    int cut_by;        /* RANK at its other end */
} runner_debt;

typedef struct {
    bool (*may_send)(void *user, int peer, size_t bytes);
    /* Lends data and counts it in debt, or copies it. */
    pen_status (*send)(void *user, const runner_part *part, const void *data, size_t bytes,
                       runner_debt *debt, pen_error *why);
    /* The scale of that position's input; false: unknown yet. */
    bool (*scale)(void *user, int position, double *scale);
    void (*step)(void *user, uint32_t step); /* before each step of the first segment */
} runner_link;

/* A schedule and its derived tables. */
typedef struct {
    schedule *s;
    void *arrays;             /* all below that have a size */
    uint32_t *step_of, *slot; /* [n_moves] slot: of SEND and RECV */
    uint32_t *first, *recv;   /* RECVs from position p: recv[first[p] ... first[p + 1]) in order */
    bool *is_free;            /* [n_moves] RECV: its place is not used by earlier steps */
    bool *may_stay;           /* [n_moves] RECV: only folds of its own step read it */
    uint32_t *source;         /* [n_operands] the RECV of its step that fills it; else n_moves */
    bool *waits;              /* [n_steps] the step writes what earlier steps send */
    uint32_t operands_max;
} runner_plan;

/* OWNS s in any case. */
pen_status runner_plan_init(runner_plan *p, schedule *s, int size, pen_error *why);
void runner_plan_fini(runner_plan *p);

typedef struct {
    bool is_active, is_in_step;
    uint32_t segment, step, recvs_left, sends_left;
    size_t begin, elements;
    size_t *done;        /* [n_moves] bytes sent or received */
    schedule_span *span; /* [n_moves] of SEND and RECV, in elements */
    buf **kept;          /* [n_moves] of RECV: holds its bytes instead of their place */
    uint8_t *temp;
    runner_debt debt;
} runner_track;

typedef struct {
    void *data;
    size_t bytes;
} runner_room; /* grows; kept for the next call */

typedef struct {
    const runner_plan *plan;
    const runner_link *link;
    void *user;
    coll_call call; /* with in and out as the runner uses them */
    void *result;   /* the caller's output; NULL: call.out is that */
    int size, rank;
    /* Of folds of all inputs; NULL: rank order.  BORROWED, set after runner_start() and before the first advance. */
    const reduce_order *order;
    bool is_wide, cuts_parts;
    bool is_blocked; /* waits for lent memory */
    size_t element, result_bytes;
    uint32_t pieces; /* of the elements; each is a segment of every pass */
    uint32_t segments, next_segment, active;
    size_t segment_elements;
    uint64_t turn; /* counts up when places become free */
    runner_track track[RUNNER_TRACKS];
    runner_room states, temps, scratch, wide_in, folds;
} runner;

/* call: checked.  call, p, link and user are BORROWED until the call ends. */
pen_status runner_start(runner *r, const runner_plan *p, const coll_call *call, int size, int rank,
                        const runner_link *link, void *user, pen_error *why);

/* Does what is possible now.  *did: it made progress. */
pen_status runner_advance(runner *r, bool *did, pen_error *why);
bool runner_is_done(const runner *r); /* and all lent memory is back */
uint32_t runner_lent(const runner *r);
void runner_finish(runner *r); /* success: writes the result to its place */
void runner_fini(runner *r);   /* frees its rooms */

/* Whether bytes from that position, or to it, are outstanding. */
bool runner_expects(const runner *r, int peer);
bool runner_owes(const runner *r, int peer);
/* Bytes were lent to a connection that ended.  *rank: at its other end. */
bool runner_is_cancelled(const runner *r, int *rank);
/* Bytes from that position that have not arrived. */
size_t runner_missing(const runner *r, int peer);

typedef enum { RUNNER_PLACED, RUNNER_LATER, RUNNER_WRONG } runner_answer;
/* Whether these bytes have a free place now.  PLACED sets *place; runner_filled() follows. */
runner_answer runner_place(runner *r, const runner_part *part, size_t bytes, void **place);
/* Takes a reference to body instead of filling the place, if possible; runner_filled() follows, too. */
bool runner_keep(runner *r, const runner_part *part, buf *body);
/* Whether it would keep a body of that size, which is aligned as of buf_new(). */
bool runner_may_keep(runner *r, const runner_part *part, size_t bytes);
void runner_drop(runner *r); /* releases kept bodies; the call has ended */
void runner_filled(runner *r, const runner_part *part, size_t bytes);

#endif
