/* fault_point.h - places inside a collective call where a test strikes: it kills a member, stops it, or looks.
 *
 * Not in the product: without PENSTOCK_FAULT_POINTS there are none.  Tests of faults link worker/collective compiled again
 * with it (tests/CMakeLists.txt).  The planted bugs of the pure cores: common/base/mutation.h.
 */
#ifndef WORKER_COLLECTIVE_FAULT_POINT_H
#define WORKER_COLLECTIVE_FAULT_POINT_H

/* Host memory of a rank stands for device memory, which its peers can reach or cannot. */
typedef enum { PRETEND_NOTHING, PRETEND_REACHABLE, PRETEND_UNREACHABLE } engine_pretence;

#ifdef PENSTOCK_FAULT_POINTS
#include <stdint.h>
#include <stdlib.h>

enum { HAS_FAULT_POINTS = 1, PRETENCE_RANKS_MAX = 64 };
extern engine_pretence engine_pretences[PRETENCE_RANKS_MAX]; /* by RANK */
#define ENGINE_PRETENCE(rank) engine_pretences[(rank) % PRETENCE_RANKS_MAX]

/* May be NULL.  Called before step `step` of call `seq` on every path, by the thread that advances. */
extern void (*coll_fault_point)(const char *path, uint64_t seq, int step);
#define FAULT_POINT(path, seq, step)                                                               \
    do {                                                                                           \
        if (coll_fault_point != NULL) coll_fault_point(path, seq, (int)(step));                    \
    } while (0)
#else
enum { HAS_FAULT_POINTS = 0 };
#define ENGINE_PRETENCE(rank)        PRETEND_NOTHING
#define FAULT_POINT(path, seq, step) ((void)0)
#endif

#endif
