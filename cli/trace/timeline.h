/* timeline.h - merges the trace files of all processes into one timeline.
 *
 * DESIGN.  parts (mapped, checked: part.c; of many members some: sample.c) -> spans on the scheduler's clock -> sorted by line -> lanes
 * (lanes.h) -> JSON, Trace Event Format, streamed (write.c), because there may be millions of spans.  A
 * line is a thread, or one kind of operations in flight of one process.
 */
#ifndef CLI_TRACE_TIMELINE_H
#define CLI_TRACE_TIMELINE_H

#include "common/trace/trace_part.h"

#include <stdio.h>

typedef struct { /* one process; a rank may have had several */
    char path[600];
    trace_head *head; /* a private copy-on-write mapping of the whole file */
    uint64_t size;
    uint32_t n_rings;
    int32_t role, rank;
    trace_clock_sample *clock; /* [n_samples], pruned; 0: no time from the scheduler */
    uint32_t n_samples;
    uint64_t begun_ns, ended_ns; /* of its records, its own clock */
    uint64_t error_ns;           /* of the clock, over that time */
    uint64_t kept, lost;         /* records */
    uint64_t unnamed;            /* events whose label was dropped */
    bool is_summed;              /* sample.c: one of many, of which no line is shown */
} timeline_part;

typedef struct {
    uint64_t begun_ns, ended_ns; /* common clock; a moment: equal */
    int64_t step;
    uint64_t bytes;
    const char *label; /* in a part; "": none */
    uint32_t text;     /* instead: 1 + an index of timeline.text; 0: none */
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
    struct {
        char words[96];
    } * text; /* of spans that stand for many */
    uint32_t n_parts, n_lines, n_texts;
    uint64_t n_spans;
    uint64_t begun_ns; /* of the first span: time 0 of the file */
    uint64_t crowded;  /* spans without a free lane */
} timeline;

#define TIMELINE_NS_MAX (UINT64_C(1) << 61) /* limit of nanoseconds and bytes in a part */

enum { TIMELINE_OTHERS = INT32_MAX }; /* the rank of all that are not shown */

/* Adds a file.  CORRUPT: not a trace file, or of another version; STORE: it cannot be read; MISMATCH: another job. */
pen_status timeline_add(timeline *t, const char *path, pen_error *why);

/* Adds all trace files of a folder; NOT_FOUND: none. */
pen_status timeline_add_folder(timeline *t, const char *path, pen_error *why);

/* Builds spans, lines and lanes from the parts. */
pen_status timeline_build(timeline *t, pen_error *why);

/* Events of a ring that make sense, oldest first, until fn returns false; adds the others to *lost. */
typedef bool (*timeline_event_fn)(void *user, const trace_event *e);
bool timeline_events(const timeline_part *p, uint32_t ring, timeline_event_fn fn, void *user,
                     uint64_t *lost);
bool timeline_take(timeline *t, uint32_t part); /* its lines and spans; false: no memory */
uint64_t timeline_shifted(const timeline_part *p, uint64_t at_ns); /* to the common clock */

/* Of many members, marks those that are not shown; and adds a line with a summary of these workers. */
pen_status timeline_sample(timeline *t, pen_error *why);
pen_status timeline_summarize(timeline *t, pen_error *why);

/* "worker 3" */
void timeline_name(int32_t role, int32_t rank, char *text, size_t size);
uint32_t timeline_pid(const timeline *t, int32_t role, int32_t rank); /* from 1, in sort order */

pen_status timeline_write(const timeline *t, const char *path, pen_error *why);

/* "412 spans of 5 processes; each clock is within 0.041 ms of the scheduler's", and what is missing. */
void timeline_describe(const timeline *t, char *text, size_t size);

void timeline_free(timeline *t);

/* All steps, for `penstock trace merge` and the end of `penstock run --trace`.  `from`: files, folders. */
pen_status timeline_merge(const char *out, char *const *from, int n, char *text, size_t size,
                          pen_error *why);

#endif
