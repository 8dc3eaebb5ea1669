/* lanes.h - assigns spans to lanes of a timeline: pure.
 *
 * Viewers need the spans of a lane to nest: two spans are disjoint, or one contains the other.  Spans of a thread mostly
 * do, but pen_mark() may cross them, and operations in flight (a push, a collective call) overlap freely.  So each span
 * goes to the first lane where it fits.
 */
#ifndef CLI_TRACE_LANES_H
#define CLI_TRACE_LANES_H

#include <stdbool.h>
#include <stdint.h>

enum { LANES_MAX = 256, LANES_DEPTH_MAX = 64 };

typedef struct {
    uint32_t n;
    struct {
        uint32_t depth;
        uint64_t end[LANES_DEPTH_MAX]; /* of open spans, innermost last */
    } lane[LANES_MAX];
} lanes;

/* The lane of the next span; spans of a line are added in order of their start, the longer one first.  `may_nest`: it may
 * lie inside another span.  -1: no lane is free. */
int lanes_place(lanes *l, uint64_t begun_ns, uint64_t ended_ns, bool may_nest);

#endif
