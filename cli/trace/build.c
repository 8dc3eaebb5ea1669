/* build.c - from parts to spans in lanes. */
#include "cli/trace/lanes.h"
#include "cli/trace/timeline.h"
#include "common/base/why.h"

#include <stdlib.h>

/* ---- the first lane where a span fits -------------------------------------------------------- */
int lanes_place(lanes *l, uint64_t begun_ns, uint64_t ended_ns, bool may_nest)
{
    for (uint32_t i = 0; i < LANES_MAX; i++) {
        if (i == l->n) l->lane[l->n++].depth = 0;
        uint32_t *depth = &l->lane[i].depth;
        uint64_t *end   = l->lane[i].end;
        while (*depth > 0 && end[*depth - 1] <= begun_ns) --*depth;
        const bool is_inside =
            may_nest && *depth > 0 && *depth < LANES_DEPTH_MAX && ended_ns <= end[*depth - 1];
        if (*depth > 0 && !is_inside) continue;
        end[(*depth)++] = ended_ns;
        return (int)i;
    }
    return -1;
}

static int compare(const void *left, const void *right)
{
    const timeline_span *a = left, *b = right;
    if (a->line != b->line) return a->line < b->line ? -1 : 1;
    if (a->begun_ns != b->begun_ns) return a->begun_ns < b->begun_ns ? -1 : 1;
    return a->ended_ns == b->ended_ns ? 0 : a->ended_ns > b->ended_ns ? -1 : 1;
}

/* Numbers the lanes of a line after all its spans are placed. */
static pen_status place_spans(timeline *t, pen_error *why)
{
    lanes *l     = malloc(sizeof *l);
    uint32_t tid = 1;
    if (l == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to lay out a timeline");
    for (uint64_t i = 0; i < t->n_spans;) {
        timeline_line *line = &t->line[t->span[i].line];
        const uint32_t here = t->span[i].line;
        l->n                = 0;
        line->first_tid     = tid;
        for (; i < t->n_spans && t->span[i].line == here; i++) {
            timeline_span *s     = &t->span[i];
            const bool is_moment = trace_rows[s->kind].shape == TRACE_IS_MOMENT;
            const int lane =
                is_moment ? 0 : lanes_place(l, s->begun_ns, s->ended_ns, !line->is_flights);
            t->crowded += lane < 0;
            s->tid = lane < 0 ? 0 : tid + (uint32_t)lane;
        }
        line->n_lanes = l->n > 0 ? l->n : 1;
        tid += line->n_lanes;
    }
    free(l);
    return PEN_OK;
}

pen_status timeline_build(timeline *t, pen_error *why)
{
    if (timeline_sample(t, why) != PEN_OK) return why->status;
    for (uint32_t i = 0; i < t->n_parts; i++) {
        if (t->part[i].is_summed) continue;
        if (!timeline_take(t, i))
            return why_set(why, PEN_NO_MEMORY, "no memory for a timeline of %llu spans",
                           (unsigned long long)t->n_spans);
        timeline_part *p = &t->part[i];
        if (p->kept > 0)
            p->error_ns = trace_clock_error(p->clock, p->n_samples, p->begun_ns, p->ended_ns);
        p->lost += atomic_load(&p->head->unwritten) % TIMELINE_NS_MAX;
        p->unnamed = atomic_load(&p->head->unnamed) % TIMELINE_NS_MAX;
    }
    if (timeline_summarize(t, why) != PEN_OK) return why->status;
    for (uint64_t i = 0; i < t->n_spans; i++)
        if (i == 0 || t->span[i].begun_ns < t->begun_ns) t->begun_ns = t->span[i].begun_ns;
    if (t->n_spans > 0) qsort(t->span, t->n_spans, sizeof *t->span, compare);
    return place_spans(t, why);
}
