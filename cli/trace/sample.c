/* sample.c - a large job: which members are shown, and a summary of the other workers.
 *
 * DESIGN.  A viewer holds some million spans; a thousand members write more.  So of many workers WORKERS_SHOWN are shown:
 * some at equal distances, and those with the longest steps of their own (without the time in pen_step_end, in which they
 * wait for others).  The other workers become one line with a span for each step, from the first begin to the last end,
 * which names the slowest.  Memory is bounded by what is shown and by STEPS_SUMMED.
 */
#include "cli/trace/timeline.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <stdlib.h>

enum { WORKERS_SHOWN = 32, SLOWEST_SHOWN = 4, SERVERS_SHOWN = 16, STEPS_SUMMED = 65536 };

typedef struct {
    int64_t step;
    uint64_t begun_ns, ended_ns; /* common clock; of all */
    uint64_t sum_ns, longest_ns;
    int32_t rank; /* of the longest */
    uint32_t n;   /* 0: none */
} summed_step;

/* ---- who is shown ---------------------------------------------------------------------------- */
typedef struct {
    uint64_t own_ns, waited_ns, steps;
} effort;

static bool add_effort(void *user, const trace_event *e)
{
    effort *sum = user;
    if (e->kind == TRACE_STEP) sum->own_ns += e->ended_ns - e->begun_ns;
    if (e->kind == TRACE_STEP) sum->steps++;
    if (e->kind == TRACE_END) sum->waited_ns += e->ended_ns - e->begun_ns;
    return true;
}

static double effort_of(const timeline_part *p)
{
    effort sum = {0};
    for (uint32_t k = 0; k < p->n_rings; k++)
        (void)timeline_events(p, k, add_effort, &sum, &(uint64_t){0});
    return sum.steps > 0 ? ((double)sum.own_ns - (double)sum.waited_ns) / (double)sum.steps : 0;
}

static uint32_t count(const timeline *t, int32_t role)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_parts; i++) n += t->part[i].role == role;
    return n;
}

/* Leaves `shown` of n parts of a role, at equal distances, the first among them. */
static void thin_out(timeline *t, int32_t role, uint32_t n, uint32_t shown)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < t->n_parts; i++) {
        if (t->part[i].role != role) continue;
        const uint64_t before = (uint64_t)at * shown / n, now = (uint64_t)(at + 1) * shown / n;
        t->part[i].is_summed = at > 0 && (before == now || before == 0);
        at++;
    }
}

static pen_status show_slowest(timeline *t, pen_error *why)
{
    double *own = calloc(t->n_parts, sizeof *own);
    if (own == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory to compare %u parts", t->n_parts);
    for (uint32_t i = 0; i < t->n_parts; i++)
        if (t->part[i].role == PEN_WORKER && t->part[i].is_summed) own[i] = effort_of(&t->part[i]);
    for (int k = 0; k < SLOWEST_SHOWN; k++) {
        uint32_t slowest = t->n_parts;
        for (uint32_t i = 0; i < t->n_parts; i++)
            if (t->part[i].role == PEN_WORKER && t->part[i].is_summed &&
                (slowest == t->n_parts || own[i] > own[slowest]))
                slowest = i;
        if (slowest < t->n_parts) t->part[slowest].is_summed = false;
    }
    free(own);
    return PEN_OK;
}

pen_status timeline_sample(timeline *t, pen_error *why)
{
    const uint32_t workers = count(t, PEN_WORKER), servers = count(t, PEN_SERVER);
    if (servers > SERVERS_SHOWN) thin_out(t, PEN_SERVER, servers, SERVERS_SHOWN);
    if (workers <= WORKERS_SHOWN) return PEN_OK;
    thin_out(t, PEN_WORKER, workers, WORKERS_SHOWN - SLOWEST_SHOWN);
    return show_slowest(t, why);
}

/* ---- the others ------------------------------------------------------------------------------ */
typedef struct {
    const timeline_part *part;
    summed_step *step; /* [STEPS_SUMMED] by step % STEPS_SUMMED, the newest of each */
} summary;

static bool add_step(void *user, const trace_event *e)
{
    const summary *s = user;
    if (e->kind != TRACE_STEP || e->step < 0) return true;
    const uint64_t begun = timeline_shifted(s->part, e->begun_ns), ns = e->ended_ns - e->begun_ns;
    summed_step *row = &s->step[e->step % STEPS_SUMMED];
    if (begun > 2 * TIMELINE_NS_MAX || (row->n > 0 && row->step > e->step)) return true;
    if (row->n == 0 || row->step != e->step)
        *row = (summed_step){.step = e->step, .begun_ns = begun};
    if (begun < row->begun_ns) row->begun_ns = begun;
    if (begun + ns > row->ended_ns) row->ended_ns = begun + ns;
    if (row->n == 0 || ns > row->longest_ns) row->rank = s->part->rank;
    if (ns > row->longest_ns) row->longest_ns = ns;
    row->sum_ns += ns;
    row->n++;
    return true;
}

static bool add_line(timeline *t, const summed_step *row)
{
    if (!VEC_MORE(t->span, t->n_spans) || !VEC_MORE(t->text, t->n_texts)) return false;
    snprintf(t->text[t->n_texts].words, sizeof t->text->words,
             "%u workers, mean %.3f ms, longest %.3f ms (rank %d)", row->n,
             (double)row->sum_ns / row->n / 1e6, (double)row->longest_ns / 1e6, row->rank);
    t->span[t->n_spans++] = (timeline_span){.begun_ns = row->begun_ns,
                                            .ended_ns = row->ended_ns,
                                            .step     = row->step,
                                            .text     = ++t->n_texts,
                                            .label    = "",
                                            .line     = t->n_lines - 1,
                                            .kind     = TRACE_STEP};
    return true;
}

pen_status timeline_summarize(timeline *t, pen_error *why)
{
    summary s   = {.step = calloc(STEPS_SUMMED, sizeof *s.step)};
    bool is_all = s.step != NULL, is_any = false;
    for (uint32_t i = 0; i < t->n_parts && is_all; i++) {
        s.part = &t->part[i];
        if (!s.part->is_summed || s.part->role != PEN_WORKER) continue;
        is_any = true;
        for (uint32_t k = 0; k < s.part->n_rings; k++)
            (void)timeline_events(s.part, k, add_step, &s, &(uint64_t){0});
    }
    if (is_any) is_all = is_all && VEC_MORE(t->line, t->n_lines);
    if (is_any && is_all)
        t->line[t->n_lines++] = (timeline_line){
            .name = "step", .role = PEN_WORKER, .rank = TIMELINE_OTHERS, .is_flights = true};
    for (uint32_t i = 0; i < STEPS_SUMMED && is_any && is_all; i++)
        if (s.step[i].n > 0) is_all = add_line(t, &s.step[i]);
    free(s.step);
    return is_all ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for a summary of the workers");
}
