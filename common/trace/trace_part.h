/* trace_part.h - the file of one process: a head, then rings.  Written by trace.c, read by cli/trace/.
 *
 * Native byte order: a part is read on the machine that wrote it, or one like it.  A reader trusts nothing in it:
 * the process may have died while writing a record.
 */
#ifndef COMMON_TRACE_PART_H
#define COMMON_TRACE_PART_H

#include "common/trace/trace.h"
#include "common/trace/trace_clock.h"

enum {
    TRACE_PART_VERSION = 1,
    TRACE_PAGE         = 4096,
    TRACE_RINGS_MAX    = 64,
    TRACE_LABELS_MAX   = 1024, /* a power of two */
    TRACE_EVENTS_MIN   = 64,
    TRACE_EVENTS_MAX   = 1 << 24
};
#define TRACE_PART_MAGIC   "penTRACE"
#define TRACE_PART_SUFFIX  ".part"
#define TRACE_PARTS_SUFFIX ".parts"

typedef struct {
    uint64_t begun_ns, ended_ns; /* ended 0: a moment */
    int64_t step;
    uint64_t bytes;
    int32_t shard, rank;
    uint16_t kind, label; /* label: place in the table + 1; 0: none */
    uint32_t spare;
} trace_event;

typedef struct {
    atomic_uint hash; /* 0: free; set last */
    char text[TRACE_NAME_BYTES];
} trace_label;

typedef struct {           /* padded to a page; trace_event[ring_events] follows */
    atomic_ullong written; /* in total; the newest is at (written - 1) % ring_events */
    int32_t role, rank;    /* role 0: the process's */
    int32_t thread;        /* the system's thread id */
    char name[TRACE_NAME_BYTES];
} trace_ring;

typedef struct {
    char magic[8];
    uint32_t version, head_bytes; /* head_bytes: where the first ring is */
    uint64_t ring_bytes, ring_events;
    atomic_uint n_rings;
    atomic_int role, rank;
    int32_t pid;
    int64_t own_offset_ns;            /* to the wall clock, without answers of the scheduler */
    atomic_ullong unwritten, unnamed; /* records without a ring; labels without room */
    char host[TRACE_NAME_BYTES], job[TRACE_NAME_BYTES];
    trace_clock clock;
    trace_label label[TRACE_LABELS_MAX];
} trace_head;

static inline uint64_t trace_pages(uint64_t bytes)
{
    return (bytes + TRACE_PAGE - 1) / TRACE_PAGE * TRACE_PAGE;
}

#endif
