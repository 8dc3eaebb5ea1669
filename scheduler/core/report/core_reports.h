/* core_reports.h - reports about the job: its curve, its last will, and the last calls of its workers. */
#ifndef SCHEDULER_CORE_REPORTS_H
#define SCHEDULER_CORE_REPORTS_H

#include "scheduler/core/core_out.h"

typedef struct {
    uint64_t due_ms, every_ms; /* 0: not begun */
    uint32_t n, n_metrics;
    scheduler_point point[SCHEDULER_POINTS_MAX];
    char metric[SCHEDULER_METRICS_MAX][MEMBER_STAT_BYTES];
    struct {
        uint64_t at_ms; /* 0: none */
        int64_t step;
    } mark[2]; /* for the rate: the older one, and the newer that will replace it */
} core_history;

typedef struct {
    pen_error last_will; /* as last sent to all */
    uint64_t last_will_ms;
    core_history history;
    stuck *calls;     /* answers to this process; NULL: it never asked */
    uint64_t n_asked; /* number of the newest question */
} core_reports;

/* core_history.c: at a worker's BEAT while the job trains */
void core_history_beat(core_history *self, const core_out *out, int64_t step);
double core_history_rate(const core_history *self, uint64_t now_ms, int64_t step); /* steps/s */

/* core_recorder.c: the last calls of workers.  asker 0: this process. */
void core_recorder_ask(core_reports *self, const core_out *out, uint64_t asker, uint64_t id);
void core_recorder(core_reports *self, const core_out *out, const member_slot *s,
                   const wire_control *message);

#endif
