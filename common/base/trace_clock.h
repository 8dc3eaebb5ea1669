/* trace_clock.h - how far this process's clock is from the scheduler's: pure arithmetic.
 *
 * DESIGN.  A beat leaves at `sent` and its answer comes at `heard`, by this clock; the answer says what
 * the scheduler's clock was in between.  So theirs - (sent + heard) / 2 is the distance, wrong by half
 * the round trip at most, however unequal the two ways were.  Of each window of time the shortest round
 * trip is kept, for queues only ever make it longer; when the table is full, windows are joined in
 * pairs.  Clocks of two hosts run apart by up to TRACE_CLOCK_DRIFT, so a sample says something of other
 * moments too: one that a neighbour knows better is thrown away.  Between those that are left the
 * distance is a straight line: spans of one thread stay in order and nest as they did.
 */
#ifndef COMMON_TRACE_CLOCK_H
#define COMMON_TRACE_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    TRACE_CLOCK_SAMPLES   = 1024,
    TRACE_CLOCK_WINDOW_MS = 250,
    TRACE_CLOCK_DRIFT     = 10000 /* two clocks part by one nanosecond in so many: 100 ppm */
};

typedef struct {
    uint64_t at_ns;    /* this clock */
    int64_t offset_ns; /* to be added to it */
    uint64_t error_ns; /* at most so wrong */
} trace_clock_sample;

typedef struct { /* lies in a file that another process may read; one thread writes */
    atomic_uint n;
    uint64_t window_ns, window_began_ns;
    trace_clock_sample sample[TRACE_CLOCK_SAMPLES];
} trace_clock;

void trace_clock_init(trace_clock *c);

/* A round trip; what cannot be (heard < sent) is not taken. */
void trace_clock_note(trace_clock *c, uint64_t sent_ns, uint64_t theirs_ns, uint64_t heard_ns);

/* This clock is the one that others are told: it is never wrong. */
void trace_clock_is(trace_clock *c, uint64_t at_ns, int64_t offset_ns);

/* Those of n samples, ascending in time, that no other one makes needless; in place.  Returns how many. */
uint32_t trace_clock_prune(trace_clock_sample *sample, uint32_t n);

/* Of pruned samples, n > 0. */
int64_t trace_clock_offset(const trace_clock_sample *sample, uint32_t n, uint64_t at_ns);

/* How wrong trace_clock_offset() may be anywhere from begun_ns to ended_ns. */
uint64_t trace_clock_error(const trace_clock_sample *sample, uint32_t n, uint64_t begun_ns,
                           uint64_t ended_ns);

#endif
