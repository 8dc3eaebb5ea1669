/* coll.h - collectives: one call, the path that runs it, and the thread that drives it.
 *
 * DESIGN
 * Call.      A coll_call holds the arguments of a public function.  It is checked once (call.c) and
 *            never changes.  Calls on one group are numbered from 1.  Each member sends its header,
 *            which has the number, to all others before any call ends.  Members that make different
 *            calls therefore all get the same sentence, and none hangs.
 * Path.      A coll_path runs calls on one kind of link: node.c (shared memory), wire.c (ZeroMQ),
 *            device.c (memory of a CUDA device), hier.c (node, then wire).  A path is a state machine:
 *            start() begins, advance() does what is possible now and never waits.
 * Engine.    engine.h knows groups and calls in progress.  A waiting thread drives: a blocked caller
 *            advances its own call; the thread "pen-coll" drives calls that no thread waits for.
 * Numbers.   Every reduction is a fold in rank order, ((x0 + x1) + x2) + ..., of each member's scaled
 *            input; 16-bit floats are folded in float32 and rounded once.  All members get the same
 *            bits, for every size, path and algorithm.  deterministic=node, no: see fold_order.h.
 * Stream order.  A call on device memory with in_stream_order has ended when its work is enqueued: work enqueued later on
 *            its stream sees the result, and may reuse its buffers.  The host learns nothing of the end on the device.  The
 *            next call of the group may name another stream, which then waits for this one.  Other members' calls that
 *            match may be without the flag.  Calls on host memory ignore it.  A failure after the end stops the group
 *            (coll_stop_word()) and is returned by its next call.
 * Failure.   A failed call leaves its inputs unchanged, also when in == out, unless `overwrites` gives that up; its outputs
 *            are undefined.  It fails its group for good: later calls return the same sentence until
 *            pen_group_shrink().
 */
#ifndef WORKER_COLL_COLL_H
#define WORKER_COLL_COLL_H

#include "common/base/stat.h"
#include "common/compute/device/device.h"
#include "penstock.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COLL_LABEL_BYTES = 64, COLL_OP_BYTES = 2048 };

/* In coll_header.n: the buffers are device memory; the call has no buffers, so either kind matches. */
#define COLL_ON_DEVICE  ((uint64_t)1 << 63)
#define COLL_ANY_MEMORY ((uint64_t)1 << 62)
/* In coll_header.n: another call runs before the one in the header, on all members or on none. */
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

/* Buffers as in penstock.h: parts are packed in group order without gaps. */
typedef struct coll_call {
    coll_kind kind;
    pen_op op;       /* of kinds that reduce */
    pen_dtype dtype; /* barrier: PEN_U8 */
    int root;        /* position in the group; 0: no root */
    size_t n;        /* elements, as the public function counts them */
    const void *in;  /* broadcast: in == out on every member */
    void *out;
    const size_t *counts;     /* [size] or NULL; all_to_all: elements sent to each.  BORROWED */
    const size_t *out_counts; /* all_to_all only: elements received from each */
    double scale;             /* multiplies this member's input */
    const char *label;        /* "" when none */
    void *stream;             /* of the device, when in and out are its memory */
    /* [n_after] it waits for these when it begins, not before; BORROWED until the call has ended */
    device_event *const *after;
    uint32_t n_after;
    bool on_device; /* in and out are device memory, on all members or on none */
    bool is_staged; /* in and out are now copies of that in host memory; the same on all members */
    bool in_stream_order; /* ends when its work is enqueued; see above */
    /* In place: after a failure the buffer is undefined; may differ between members. */
    bool overwrites;
    bool any_memory;      /* the call has no buffer, so either kind matches */
    stat_traffic traffic; /* for the counters of copies; TRAFFIC_OTHER: the program's data */
    const struct coll_call *shown; /* NULL: this call; else the call whose header is sent */
    bool *
        accepts; /* barrier over the mesh, of more than MESH_DIAL_ALL: whether this member does; in the end, all */
} coll_call;

/* What each member sends to all others.  Plain bytes in shared memory. */
typedef struct {
    uint64_t seq;    /* of the call in its group, from 1 */
    uint64_t n;      /* 0 when counts are given; plus the COLL_ bits above */
    uint64_t counts; /* hash of counts; 0: NULL, or all_to_all, where they differ */
    int32_t kind, op, dtype, root;
    char label[COLL_LABEL_BYTES];
} coll_header;

/* ---- call.c ---------------------------------------------------------------------------------- */
const char *coll_kind_name(coll_kind kind); /* "all_reduce" */
const char *coll_op_name(pen_op op);        /* "SUM" */
bool coll_reduces(coll_kind kind);

/* Elements of this member's input and output; of the part of member `who` where parts differ. */
size_t coll_in_elements(const coll_call *call, int size, int rank);
size_t coll_out_elements(const coll_call *call, int size, int rank);
size_t coll_part(const size_t *counts, size_t n, int who);        /* counts NULL: n */
size_t coll_part_offset(const size_t *counts, size_t n, int who); /* sum of the parts before */
bool coll_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes);

/* The piece that one member sends to another in a call that copies, in elements of the sender's input (all_to_all: by
 * this member's counts).  coll_put_offset(): its offset in the receiver's output. */
typedef struct {
    size_t offset, n;
} coll_piece;
coll_piece coll_between(const coll_call *call, int from, int to);
size_t coll_put_offset(const coll_call *call, int from);

/* The checks of the public functions.  `function` begins the sentence. */
pen_status coll_call_check(const coll_call *call, int size, int rank, const char *function,
                           pen_error *why);

void coll_header_of(const coll_call *call, int size, uint64_t seq, coll_header *header);

/* PEN_OK when all agree; else MISMATCH, with the same sentence on every member:
 *   all_reduce (call 418) differs: rank 2 has 1,000 f32 SUM 'loss', rank 0 has 1,001 f32 SUM 'loss'
 * The culprit is the lowest position whose header differs from the most frequent one (ties: from position 0's).
 * headers[size], ranks[size] (RANK of each position). */
pen_status coll_headers_compare(const coll_header *const *headers, const int *ranks, int size,
                                pen_error *why);

/* ---- paths ----------------------------------------------------------------------------------- */
typedef enum { COLL_RUNNING, COLL_DONE, COLL_FAILED } coll_state;

/* An op is COLL_OP_BYTES of the engine, not cleared before start(); the team holds larger state. */
typedef struct {
    const char *name; /* "node", "wire", "device", "hier" */

    /* Begins a checked call; call and what it points to stay valid until the op has ended.  The engine runs at most
     * one op of a team at a time; seq counts up by one. */
    pen_status (*start)(void *team, void *op, const coll_call *call, uint64_t seq, pen_error *why);

    /* Does what is possible now, without waiting.  Returns DONE or FAILED once; the op then holds nothing, and peers no
     * longer read or write this member's buffers. */
    coll_state (*advance)(void *op, pen_error *why);

    /* Ends a RUNNING op because of a failure elsewhere (a member died, a deadline passed).  Afterwards no peer, however
     * late, reads or writes this member's buffers; inputs are unchanged. */
    void (*abort)(void *op);

    /* Positions that this op still waits for, at most cap; returns their number. */
    int (*missing)(void *op, int *positions, int cap);

    /* Of paths on devices, else NULL: the stream waits for the end of a RUNNING op.  AGAIN: not all of the op is enqueued
     * yet, or it has nothing on a device. */
    pen_status (*follow)(void *op, void *stream, pen_error *why);
} coll_path;

extern const coll_path coll_path_node, coll_path_wire, coll_path_device, coll_path_hier;

/* ---- engine_call.c: for the rest of the SDK ---------------------------------------------------- */
/* Begins a call on g for the SDK itself (reducer, two-level strategy), in order with the program's calls.  done runs
 * once, on the thread that ended the call, and must not wait.  If this returns an error, done is not called.
 * patience_ms: the time until its deadline; 0: it has none. */
typedef void (*coll_done_fn)(void *user, pen_status status, const pen_error *why);
pen_status coll_submit(pen_group *g, const coll_call *call, uint64_t patience_ms, coll_done_fn done,
                       void *user, pen_error *why);

/* A thread that waits for calls of n groups of one engine drives them: until *news, which their callbacks change, differs
 * from `seen`, or until until_ms (0: no limit).  False: no call is left to drive; a callback may be about to run on another
 * thread. */
bool coll_attend(pen_group *const *group, int n, const atomic_ullong *news, unsigned long long seen,
                 uint64_t until_ms);

/* A word in host memory that kernels of the device can read: 0 until a call of the group has failed or the group can make
 * no more calls, then nonzero for good.  It is valid as long as the group: enqueued kernels that read it must have ended
 * before.  Any thread; ops and device as for the group's calls. */
pen_status coll_stop_word(pen_group *g, const device_ops *ops, int device, const uint32_t **word,
                          pen_error *why);

/* PEN_OK, or the failure that every call of the group returns.  Any thread. */
pen_status coll_failure(pen_group *g, pen_error *why);

#endif
