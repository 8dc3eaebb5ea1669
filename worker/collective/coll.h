/* coll.h - collectives: what one call is, what carries it out, and who drives it.
 *
 * DESIGN
 * Call.      A coll_call says what a public function was asked for.  It is checked once (call.c) and
 *            never changes.  Calls on one group are numbered from 1; the number is part of the header
 *            that every member shows to every other before anybody's call ends, so members that do
 *            different things get one sentence, the same on all of them, and nobody hangs.
 * Path.      A coll_path carries calls out on one kind of link: node.c (shared memory), wire.c
 *            (ZeroMQ), device.c (memory of a CUDA device), hier.c (node, then wire).  A path is a
 *            state machine: start() begins, advance() does what can be done now and never waits.
 * Engine.    engine.h knows groups and calls in progress.  Whoever waits drives: a blocked caller
 *            advances its own call; calls nobody waits for are driven by the thread "pen-coll".
 * Numbers.   Every reduction is a fold in rank order, ((x0 + x1) + x2) + ..., of each member's scaled
 *            input; 16-bit floats are folded in float32 and rounded once.  Same bits on every member,
 *            for every size, path and algorithm.  Settings deterministic=no allows other orders.
 * Failure.   Inputs are never changed by a call that fails, also when in == out.  Outputs of a failed
 *            call are undefined.  A failed call fails its group for good: later calls say the same
 *            sentence until pen_group_shrink().
 */
#ifndef WORKER_COLL_COLL_H
#define WORKER_COLL_COLL_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COLL_RANKS_MAX = 1024, COLL_LABEL_BYTES = 64, COLL_OP_BYTES = 2048 };

/* In coll_header.n: the buffers are memory of a device; there are none, so either kind of the others' will do. */
#define COLL_ON_DEVICE  ((uint64_t)1 << 63)
#define COLL_ANY_MEMORY ((uint64_t)1 << 62)
/* Another call is carried out before the one that is shown: all members do so, or none. */
#define COLL_IN_PLACE_OF ((uint64_t)1 << 61)

typedef enum {
    COLL_BARRIER,
    COLL_BROADCAST,
    COLL_REDUCE,
    COLL_ALL_REDUCE,
    COLL_GATHER,
    COLL_ALL_GATHER,
    COLL_SCATTER,
    COLL_REDUCE_SCATTER,
    COLL_ALL_TO_ALL,
    COLL_KINDS
} coll_kind;

/* Where things lie is as in penstock.h: parts are packed in group order without gaps. */
typedef struct coll_call {
    coll_kind kind;
    pen_op op;       /* of kinds that reduce */
    pen_dtype dtype; /* barrier: PEN_U8 */
    int root;        /* position in the group; 0 where there is none */
    size_t n;        /* elements, as the public function counts them */
    const void *in;  /* broadcast: in == out on every member */
    void *out;
    const size_t *counts;     /* [size] or NULL; all_to_all: what it sends to each.  BORROWED */
    const size_t *out_counts; /* all_to_all only: what it gets from each */
    double scale;             /* this member's input is multiplied by it; 1: as it is */
    const char *label;        /* "" when none */
    void *stream;             /* of the device, when in and out are its memory */
    bool on_device;           /* in and out are memory of a device: of all members or of none */
    bool any_memory;          /* no buffer says which */
    const struct coll_call *shown; /* NULL, or whose header stands for this call's */
} coll_call;

/* What every member shows to every other.  Plain bytes: it lies in shared memory. */
typedef struct {
    uint64_t seq;    /* of the call in its group, from 1 */
    uint64_t n;      /* 0 when counts are given; with COLL_ON_DEVICE */
    uint64_t counts; /* hash of counts; 0 when they are NULL, and for all_to_all: they differ */
    int32_t kind, op, dtype, root;
    char label[COLL_LABEL_BYTES];
} coll_header;

/* ---- call.c ---------------------------------------------------------------------------------- */
const char *coll_kind_name(coll_kind kind); /* "all_reduce" */
const char *coll_op_name(pen_op op);        /* "SUM" */
bool coll_reduces(coll_kind kind);

/* Elements of this member's input and output; of member `who`'s part where parts differ. */
size_t coll_in_elements(const coll_call *call, int size, int rank);
size_t coll_out_elements(const coll_call *call, int size, int rank);
size_t coll_part(const size_t *counts, size_t n, int who);        /* counts NULL: n */
size_t coll_part_offset(const size_t *counts, size_t n, int who); /* sum of the parts before */
bool coll_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes);

/* What goes from one member to another in a call that copies, in elements of the sender's input; of all_to_all what this
 * member sends.  And where it comes to lie in the output of who gets it. */
typedef struct {
    size_t offset, n;
} coll_piece;
coll_piece coll_between(const coll_call *call, int from, int to);
size_t coll_put_offset(const coll_call *call, int from);

/* What the public functions check.  `function` begins the sentence. */
pen_status coll_call_check(const coll_call *call, int size, int rank, const char *function,
                           pen_error *why);

void coll_header_of(const coll_call *call, int size, uint64_t seq, coll_header *header);

/* PEN_OK when all agree; else MISMATCH, in words every member finds alike:
 *   all_reduce (call 418) differs: rank 2 has 1,000 f32 SUM 'loss', rank 0 has 1,001 f32 SUM 'loss'
 * The culprit is the lowest position that differs from the most frequent header (ties: from position 0's).
 * headers[size], ranks[size] (RANK of each position). */
pen_status coll_headers_compare(const coll_header *const *headers, const int *ranks, int size,
                                pen_error *why);

/* ---- paths ----------------------------------------------------------------------------------- */
typedef enum { COLL_RUNNING, COLL_DONE, COLL_FAILED } coll_state;

/* An op is COLL_OP_BYTES of zeroed memory of the engine's; larger state is the team's. */
typedef struct {
    const char *name; /* "node", "wire", "device", "hier" */

    /* Begins a checked call; call and what it points to stay valid until the op has ended.  At most one op of a
     * team is in progress, the engine sees to that; seq counts up by one. */
    pen_status (*start)(void *team, void *op, const coll_call *call, uint64_t seq, pen_error *why);

    /* Does what can be done now, without waiting.  DONE and FAILED are said once; the op then holds nothing, and
     * peers no longer read or write this member's buffers. */
    coll_state (*advance)(void *op, pen_error *why);

    /* Ends a RUNNING op because of a failure elsewhere (a member died, a deadline passed).  Afterwards nobody reads or
     * writes this member's buffers, however late a peer is; inputs are as they were. */
    void (*abort)(void *op);

    /* Positions whose arrival this op still waits for, at most cap; returns how many. */
    int (*missing)(void *op, int *positions, int cap);
} coll_path;

extern const coll_path coll_path_node, coll_path_wire, coll_path_device, coll_path_hier;

/* For tests: called, when not NULL, before step `step` of call `seq` on every path, by the thread that advances. */
extern void (*coll_fault_point)(const char *path, uint64_t seq, int step);

/* ---- engine_call.c: what the rest of the SDK uses --------------------------------------------- */
/* Begins a call on g for the SDK itself (reducer, two-level path): calls are matched by their order with those of
 * the program.  done runs once, on whichever thread ended it, and may not wait.  Not PEN_OK: done is not called. */
typedef void (*coll_done_fn)(void *user, pen_status status, const pen_error *why);
pen_status coll_submit(pen_group *g, const coll_call *call, uint64_t deadline_ms, coll_done_fn done,
                       void *user, pen_error *why);

#endif
