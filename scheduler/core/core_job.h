/* core_job.h - the whole job: its settings, phase and verdict. */
#ifndef SCHEDULER_CORE_JOB_H
#define SCHEDULER_CORE_JOB_H

#include "scheduler/core/scheduler_settings.h"

typedef enum {
    PHASE_JOINING,
    PHASE_REGISTERING,
    PHASE_LOADING,
    PHASE_TRAINING,
    PHASE_STOPPING,
    PHASE_FAILED,
    PHASE_ENDED
} core_phase;

typedef struct {
    scheduler_settings settings;
    char master[256], address[256], host[256], name[64];
    uint64_t term, promised_ms, refused;
    uint32_t incarnations;
    bool servers_known;
    uint32_t n_servers; /* 0: none, or not known yet */

    core_phase phase;
    int64_t step;        /* of the furthest worker */
    uint64_t amnesty_ms; /* no death is declared before */

    bool has_verdict;
    bool is_empty; /* declined: it will not begin and waits for no member */
    pen_error verdict;
    uint64_t end_ms;
} core_job;

const char *core_phase_name(core_phase phase);

#endif
