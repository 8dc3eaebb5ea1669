/* timeline.h - the parts of all processes become one file that viewers read.
 *
 * DESIGN.  parts (mapped, checked: part.c) -> spans on the scheduler's clock -> sorted by line -> lanes
 * (lanes.h) -> JSON, Trace Event Format, as it goes (write.c), for there may be millions of them.  A
 * line is a thread, or what one process has under way of one kind.
 */
#ifndef CLI_TRACE_TIMELINE_H
#define CLI_TRACE_TIMELINE_H

#include "common/base/trace_part.h"

#include <stdio.h>

typedef struct { /* one process that lived; a rank may have had several */
    char path[600];
    trace_head *head; /* a private copy-on-write mapping of the whole file */
    uint64_t size;
    uint32_t n_rings;
    int32_t role, rank;
    trace_clock_sample *clock; /* [n_samples], pruned; 0: nobody was heard */
    uint32_t n_samples;
    uint64_t begun_ns, ended_ns; /* of its records, its own clock */
    uint64_t error_ns;           /* of the clock, over that time */
    uint64_t kept, lost;         /* records */
    uint64_t unnamed;            /* those whose label found no room */
} timeline_part;

typedef struct {
    uint64_t begun_ns, ended_ns; /* common clock; a moment: equal */
    int64_t step;
    uint64_t bytes;
    const char *label; /* in a part; "": none */
    int32_t shard, rank;
    uint32_t line, tid;
    uint16_t kind;
} timeline_span;

typedef struct {
    char name[TRACE_NAME_BYTES];
    uint32_t part;
    int32_t role, rank;
    bool is_flights;
    uint32_t first_tid, n_lanes;
} timeline_line;

typedef struct {
    timeline_part *part;
    timeline_line *line;
    timeline_span *span;
    uint32_t n_parts, n_lines;
    uint64_t n_spans;
    uint64_t begun_ns; /* of the first span: what the file counts from */
    uint64_t crowded;  /* spans that no lane had room for */
} timeline;

/* Takes one file in.  CORRUPT: it is no part, or of another version; STORE: it cannot be read;
 * MISMATCH: it is of another job than those before it. */
pen_status timeline_add(timeline *t, const char *path, pen_error *why);

/* All files of a folder that are named as parts are; NOT_FOUND: it has none. */
pen_status timeline_add_folder(timeline *t, const char *path, pen_error *why);

/* Spans, lines and lanes out of the parts that were taken in. */
pen_status timeline_build(timeline *t, pen_error *why);

/* "worker 3" */
void timeline_name(int32_t role, int32_t rank, char *text, size_t size);
uint32_t timeline_pid(const timeline *t, int32_t role, int32_t rank); /* from 1, in sort order */

pen_status timeline_write(const timeline *t, const char *path, pen_error *why);

/* "412 spans of 5 processes; their clocks agree within 41 us" and what is missing. */
void timeline_describe(const timeline *t, char *text, size_t size);

void timeline_free(timeline *t);

/* All of it: what `penstock trace merge` and the end of `penstock run --trace` do.  `from`: files, folders. */
pen_status timeline_merge(const char *out, char *const *from, int n, char *text, size_t size,
                          pen_error *why);

#endif
