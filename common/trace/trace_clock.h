/* trace_clock.h - the offset of this process's clock from the scheduler's: pure arithmetic.
 *
 * DESIGN.  A beat leaves at `sent` and its answer arrives at `heard`, by this clock; the answer has the scheduler's
 * clock in between.  So theirs - (sent + heard) / 2 is the offset, wrong by at most half the round trip, however
 * asymmetric the paths are.  Each window of time keeps its shortest round trip, as queues only lengthen it; when the
 * table is full, windows are joined in pairs.  Clocks of two hosts drift by up to TRACE_CLOCK_DRIFT, so a sample also
 * bounds other moments: a sample that a neighbour bounds better is dropped.  Between the rest the offset is
 * interpolated: spans of a thread stay in order and nested.
 */
#ifndef COMMON_TRACE_CLOCK_H
#define COMMON_TRACE_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    TRACE_CLOCK_SAMPLES   = 1024,
    TRACE_CLOCK_WINDOW_MS = 250,
    TRACE_CLOCK_DRIFT     = 10000 /* two clocks drift by one nanosecond in this many: 100 ppm */
};

typedef struct {
    uint64_t at_ns;    /* this clock */
    int64_t offset_ns; /* to be added to it */
    uint64_t error_ns; /* maximum error */
} trace_clock_sample;

typedef struct { /* lies in a file that another process may read; one thread writes */
    atomic_uint n;
    uint64_t window_ns, window_began_ns;
    trace_clock_sample sample[TRACE_CLOCK_SAMPLES];
} trace_clock;

void trace_clock_init(trace_clock *c);

/* Adds a round trip; ignores impossible ones (heard < sent). */
void trace_clock_note(trace_clock *c, uint64_t sent_ns, uint64_t theirs_ns, uint64_t heard_ns);

/* This is the scheduler's own clock: never wrong. */
void trace_clock_is(trace_clock *c, uint64_t at_ns, int64_t offset_ns);

/* Keeps those of n samples, ascending in time, that no other one makes redundant; in place.  Returns their number. */
uint32_t trace_clock_prune(trace_clock_sample *sample, uint32_t n);

/* Of pruned samples, n > 0. */
int64_t trace_clock_offset(const trace_clock_sample *sample, uint32_t n, uint64_t at_ns);

/* Maximum error of trace_clock_offset() from begun_ns to ended_ns. */
uint64_t trace_clock_error(const trace_clock_sample *sample, uint32_t n, uint64_t begun_ns,
                           uint64_t ended_ns);

#endif
