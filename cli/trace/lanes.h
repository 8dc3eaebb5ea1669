/* lanes.h - which spans may share a line of a timeline: pure.
 *
 * Viewers want the spans of a line to nest: two of them are apart, or one holds the other.  Spans of a
 * thread mostly do, but pen_mark() may cross them, and what is under way (a push, a collective call)
 * overlaps as it likes.  So each goes to the first of some lanes where it fits.
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
        uint64_t end[LANES_DEPTH_MAX]; /* of the spans that are open, the innermost last */
    } lane[LANES_MAX];
} lanes;

/* The lane of the next span; those of one line come in the order of their beginning, the longer one first.
 * `may_nest`: inside of another one is a place.  -1: no lane has one. */
int lanes_place(lanes *l, uint64_t begun_ns, uint64_t ended_ns, bool may_nest);

#endif
