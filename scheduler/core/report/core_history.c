/* core_history.c - the curve of a job, from its beginning.
 *
 * DESIGN.  At most SCHEDULER_POINTS_MAX points.  When they are full, every second one is dropped, and points are then
 * taken half as often: memory is bounded, and the resolution fits the length.  A metric is the mean over the lowest
 * ranks, so a point costs the same for any fleet, except for three sums.  A restarted scheduler begins without a curve.
 */
#include "common/base/stat.h"
#include "scheduler/core/core_state.h"
#include "scheduler/core/membership/core_members.h"

#include <math.h>
#include <string.h>

enum { FIRST_EVERY_MS = 1000, RATE_MS = 3000, METRIC_RANKS = 16 };

static double stat_of(const member_slot *s, stat_id id)
{
    for (uint32_t i = 0; i < s->n_stats; i++)
        if (strcmp(s->stat[i].name, stat_rows[id].name) == 0) return s->stat[i].value;
    return 0;
}

/* Its index among the names seen so far; -1: no room. */
static int metric_of(core_history *h, const char *name)
{
    uint32_t i = 0;
    while (i < h->n_metrics && strcmp(h->metric[i], name) != 0) i++;
    if (i == SCHEDULER_METRICS_MAX) return -1;
    if (i == h->n_metrics) {
        snprintf(h->metric[i], sizeof h->metric[i], "%s", name);
        h->n_metrics++;
    }
    return (int)i;
}

static void take_metrics(core_history *h, const member_slots *workers, scheduler_point *p)
{
    uint32_t n[SCHEDULER_METRICS_MAX] = {0};
    for (uint32_t w = 0; w < workers->n && w < METRIC_RANKS; w++) {
        const member_slot *s = workers->at[w];
        for (uint32_t i = 0; member_slot_is_counted(s) && i < s->n_stats; i++) {
            const int k = stat_find(s->stat[i].name) < 0 ? metric_of(h, s->stat[i].name) : -1;
            if (k < 0) continue;
            p->metric[k] += s->stat[i].value;
            n[k]++;
        }
    }
    for (uint32_t k = 0; k < SCHEDULER_METRICS_MAX; k++)
        p->metric[k] = n[k] ? p->metric[k] / n[k] : (double)NAN;
}

static void mark(core_history *h, uint64_t now_ms, int64_t step)
{
    if (h->mark[1].at_ms && now_ms < h->mark[1].at_ms + RATE_MS) return;
    h->mark[0]       = h->mark[1];
    h->mark[1].at_ms = now_ms;
    h->mark[1].step  = step;
}

double core_history_rate(const core_history *self, uint64_t now_ms, int64_t step)
{
    const int i = self->mark[0].at_ms ? 0 : 1;
    if (!self->mark[i].at_ms || now_ms <= self->mark[i].at_ms || step <= self->mark[i].step)
        return 0;
    return (double)(step - self->mark[i].step) * 1e3 / (double)(now_ms - self->mark[i].at_ms);
}

void core_history_beat(core_history *self, const core_out *out, int64_t step)
{
    mark(self, out->now_ms, step);
    if (out->now_ms < self->due_ms) return;
    if (!self->every_ms) self->every_ms = FIRST_EVERY_MS;
    if (self->n == SCHEDULER_POINTS_MAX) {
        for (uint32_t i = 0; i < SCHEDULER_POINTS_MAX / 2; i++) self->point[i] = self->point[2 * i];
        self->n = SCHEDULER_POINTS_MAX / 2;
        self->every_ms *= 2;
    }
    self->due_ms       = out->now_ms + self->every_ms;
    scheduler_point *p = &self->point[self->n++];
    *p = (scheduler_point){.at_s = (double)(out->now_ms - out->start_ms) / 1e3, .step = step};
    MEMBER_SLOT_EACH(each, &out->all->workers) {
        p->push_bytes += stat_of(each, STAT_PUSH_BYTES);
        p->pull_bytes += stat_of(each, STAT_PULL_BYTES);
        p->coll_bytes += stat_of(each, STAT_COLL_BYTES);
    }
    take_metrics(self, &out->all->workers, p);
}

void scheduler_core_history(const scheduler_core *core, scheduler_history *out)
{
    const core_history *h = &core->reports.history;
    out->n                = h->n;
    out->point            = h->point;
    out->n_metrics        = h->n_metrics;
    for (uint32_t i = 0; i < h->n_metrics; i++) out->metric[i] = h->metric[i];
}

/* ---- which worker the others wait for, and how long ------------------------------------------ */
static bool is_in_own_code(const member_slot *s)
{
    return !s->call[0] || strncmp(s->call, "after ", 6) == 0;
}

static bool is_behind(const member_slot *s, const member_slot *waiting)
{
    if (s == waiting || !member_slot_is_counted(s) || s->step < 0) return false;
    return s->step < waiting->step || (s->step == waiting->step && is_in_own_code(s));
}

static bool is_further(const member_slot *a, const member_slot *b)
{
    return a->step != b->step ? a->step < b->step : a->call_ms > b->call_ms;
}

void core_slow_beat(const member_slots *workers, const member_slot *waiting, uint64_t since_ms,
                    uint64_t now_ms)
{
    member_slot *slowest = NULL;
    uint64_t waited      = since_ms && now_ms > since_ms ? now_ms - since_ms : 0;
    if (waited > waiting->call_ms) waited = waiting->call_ms;
    if (!waited || waiting->step < 0 || is_in_own_code(waiting)) return;
    MEMBER_SLOT_EACH(s, workers) {
        if (is_behind(s, waiting) && (!slowest || is_further(s, slowest))) slowest = s;
    }
    if (slowest) slowest->made_wait_ms += waited;
}
