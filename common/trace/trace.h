/* trace.h - a timeline of this process: spans in rings of fixed size, in a file.
 *
 * DESIGN.  Each recording thread gets its own ring in a file that the process maps (layout: trace_part.h).  A span
 * costs two clock readings and one record: no lock, no system call; and records survive any death of the process.
 * A full ring loses its oldest records, which are counted.  `penstock trace merge` makes a timeline of the files of
 * all processes.
 *   When off, each place costs one load and a branch never taken.
 */
#ifndef COMMON_TRACE_H
#define COMMON_TRACE_H

#include "common/base/clock.h"
#include "penstock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A SPAN is work of a thread: spans of a thread nest.  A FLIGHT is an operation in progress: several may overlap.
 * A MOMENT has no length. */
typedef enum { TRACE_IS_SPAN, TRACE_IS_FLIGHT, TRACE_IS_MOMENT } trace_shape;

/* Further fields of its record. */
enum { OF_STEP = 1, OF_SHARD = 2, OF_RANK = 4, OF_BYTES = 8 };

/* clang-format off */
/*    id        name            shape   record                                   meaning */
#define TRACE_LIST(X)                                                                                  \
    X(STEP,     "step",         SPAN,   OF_STEP,                                                       \
      "From pen_step_begin to the end of pen_step_end.")                                               \
    X(MARK,     "mark",         SPAN,   0,                                                             \
      "What the program named with pen_mark, under that name.")                                        \
    X(END,      "step end",     SPAN,   OF_STEP,                                                       \
      "In pen_step_end: what of the exchange was not hidden.")                                         \
    X(READY,    "ready",        MOMENT, OF_STEP,                                                       \
      "The gradient of a tensor was handed over.")                                                     \
    X(BUCKET,   "bucket ready", MOMENT, OF_BYTES,                                                      \
      "The last gradient of a bucket came: its reduction is due.")                                     \
    X(REDUCE,   "reduce",       FLIGHT, OF_BYTES,                                                      \
      "A collective call, from its beginning to its end.")                                             \
    X(SEND,     "send",         SPAN,   OF_STEP | OF_SHARD | OF_BYTES,                                 \
      "A message of gradients: gathered, checksummed, handed to the transport.")                       \
    X(PUSH,     "push",         FLIGHT, OF_STEP | OF_SHARD | OF_BYTES,                                 \
      "A step's gradients on their way to a shard, until it says that it has them.")                   \
    X(SUM,      "server sum",   SPAN,   OF_STEP | OF_SHARD | OF_RANK | OF_BYTES,                       \
      "A shard checks gradients of a worker and adds them up.")                                        \
    X(COMMIT,   "commit",       SPAN,   OF_STEP | OF_SHARD | OF_RANK,                                  \
      "A shard makes a step final: of all ranks, or of one where each push counts alone.")              \
    X(APPLY,    "apply",        SPAN,   OF_STEP | OF_SHARD | OF_RANK,                                  \
      "The update rule runs over parameters and optimizer state.")                                     \
    X(UPDATE,   "update",       SPAN,   0,                                                             \
      "The same in a worker, where there are no servers.")                                             \
    X(REPLY,    "reply",        SPAN,   OF_SHARD,                                                      \
      "A shard's answers are packed and handed to the transport.")                                     \
    X(PULL,     "pull",         FLIGHT, OF_STEP | OF_SHARD | OF_BYTES,                                 \
      "A step's values on their way from a shard, from the request until the last is in place.")       \
    X(RECEIVE,  "receive",      SPAN,   OF_STEP | OF_SHARD | OF_BYTES,                                 \
      "A message of values is checked and put into place.")                                            \
    X(COPY_DOWN, "copy down",   FLIGHT, OF_STEP | OF_BYTES,                                            \
      "A gradient, or the input of a collective, from a device to the host.")                                                         \
    X(COPY_UP,  "copy up",      FLIGHT, OF_STEP | OF_BYTES,                                            \
      "Values, or the result of a collective, from the host to a device; from when the copy was asked for.")                           \
    X(FAILOVER, "fail-over",    FLIGHT, 0,                                                             \
      "Members, or who holds which shard, change: from the seal of an epoch to the next one.")         \
    X(INSTALL,  "new epoch",    SPAN,   0,                                                             \
      "A server's thread takes a new epoch in.")                                                       \
    X(SNAPSHOT, "snapshot",     SPAN,   OF_STEP | OF_BYTES,                                            \
      "A part of a snapshot is written.")

typedef enum {
#define X(id, name, shape, record, doc) TRACE_##id,
    TRACE_LIST(X)
#undef X
    TRACE_KINDS
} trace_kind;
/* clang-format on */

typedef struct {
    const char *name;
    trace_shape shape;
    unsigned record; /* OF_STEP | ... */
    const char *doc;
} trace_row;
extern const trace_row trace_rows[TRACE_KINDS];

typedef struct { /* fields unused by the kind are ignored */
    int64_t step;
    uint64_t bytes;
    int32_t shard, rank;
    const char *label; /* NULL: none; copied, the first 63 letters */
} trace_note;

/* While traced, members beat at least this often: the answers compare clocks. */
enum { TRACE_BEAT_MS = 100, TRACE_NAME_BYTES = 64 };

extern atomic_bool trace_flag;

static inline bool trace_on(void)
{
    return __builtin_expect(atomic_load_explicit(&trace_flag, memory_order_acquire), false);
}

/* Now, for trace_span(); 0 when off. */
static inline uint64_t trace_begin(void)
{
    return trace_on() ? clock_ns(&clock_real) : 0;
}

void trace_write(trace_kind kind, uint64_t begun_ns, uint64_t ended_ns, const trace_note *note);

/* Records from begun_ns until now; begun_ns 0: no effect. */
static inline void trace_span(trace_kind kind, uint64_t begun_ns, const trace_note *note)
{
    if (begun_ns != 0) trace_write(kind, begun_ns, clock_ns(&clock_real), note);
}

static inline void trace_moment(trace_kind kind, const trace_note *note)
{
    if (trace_on()) trace_write(kind, clock_ns(&clock_real), 0, note);
}

/* The program's own spans, in the calling thread.  INVALID_ARGUMENT: no such open span, or an invalid name;
 * WRONG_STATE: too many open spans. */
pen_status trace_mark(const char *name, bool begins, pen_error *why);

/* Starts tracing: this process writes FILE.parts/<who>-<rank>-<host>-<pid>.part until its end.  The first call
 * decides; later ones have no effect.  `events` is the capacity of each ring, rounded up to a power of two.  STORE:
 * the file cannot be made. */
pen_status trace_open(const char *file, uint64_t events, const char *who, pen_role role,
                      int32_t rank, pen_error *why);

/* Sets the role, rank and job of this process. */
void trace_who(pen_role role, int32_t rank, const char *job);

/* Names the calling thread, and its role if not the process's (role 0). */
void trace_thread(const char *name, pen_role role, int32_t rank);

/* Adds a reading of the scheduler's clock, taken between two moments of this clock; from one thread of the process.
 * No effect when off. */
void trace_clock_heard(uint64_t sent_ns, uint64_t theirs_ns, uint64_t heard_ns);
void trace_clock_own(void); /* the scheduler itself */

/* The scheduler's clock: nanoseconds since 1970 by the system clock at the first call, monotonic from then on. */
uint64_t trace_wall_ns(void);

#endif
