/* lr_schedule.h - schedules of the learning rate: pure functions of the updates applied so far.
 *
 * DESIGN.  A schedule has no state.  All ranks count updates by the step's verdicts, which are equal,
 * so all get the same rate.  A skipped step is not counted, and a resumed run continues at its rate.
 * DeepSpeed's schedules count from -1 (last_batch_iteration), which is applied - 1 here: their first
 * two steps both run at the lowest rate.
 * Some schedules name their rates; the others scale the rate of the group's update rule ("base").
 *
 * To add one: a function and a row of the table in lr_schedule.c.
 * Source   DeepSpeed, deepspeed/runtime/lr_schedules.py; llm.c, llmc/schedulers.h.
 */
#ifndef WORKER_TRAIN_LR_SCHEDULE_H
#define WORKER_TRAIN_LR_SCHEDULE_H

#include "common/base/config.h"

#include <stdio.h>

typedef struct { /* the parameters of all schedules; NaN: not given */
    double lr;   /* instead of the group's */
    double warmup_min_lr, warmup_max_lr, warmup_min_ratio, cos_min_ratio;
    double final_lr_frac;
    uint64_t warmup_num_steps, total_num_steps;
    int warmup_type;
    double cycle_min_lr, cycle_max_lr, decay_lr_rate;
    double cycle_first_step_size, cycle_second_step_size, decay_step_size;
    uint64_t cycle_first_stair_count;
    int64_t cycle_second_stair_count; /* -1: as the first */
    bool cycle_momentum;
    double lr_range_test_min_lr, lr_range_test_step_size, lr_range_test_step_rate;
    bool lr_range_test_staircase;
} lr_numbers;

typedef struct {
    const char *name;       /* the user's word: "WarmupLR warmup_num_steps=100" */
    const char *doc;        /* one sentence */
    const config_row *rows; /* into lr_numbers */

    /* Optional: refuses values that are valid alone but not together. */
    pen_status (*check)(const lr_numbers *n, pen_error *why);

    double (*rate)(const lr_numbers *n, double base, int64_t applied);
} lr_rule;

extern const lr_rule *const lr_rules[]; /* NULL-terminated; tests walk it */

typedef struct {
    const lr_rule *rule;
    lr_numbers numbers;
} lr_schedule;

/* "WarmupDecayLR warmup_num_steps=10 total_num_steps=100"; NULL and "" are constant.  BAD_SETTING: a
 * schedule or setting is unknown (the sentence names the most similar one), or a setting is missing.
 * UNSUPPORTED: the schedule would change more than the rate. */
pen_status lr_schedule_parse(const char *text, lr_schedule *s, pen_error *why);

/* The rate of the step after `applied` updates, which is at least 0. */
double lr_schedule_rate(const lr_schedule *s, double base, int64_t applied);

void lr_schedule_write_markdown(FILE *out); /* for docs/schedules.md */

#endif
