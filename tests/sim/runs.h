/* runs.h - many seeds of one kind of plan, and the line that replays a failure.
 *   SIM_SEEDS=n                      seeds per test
 *   SIM_FIRST=n                      the first of them (1)
 *   SIM_SEED=n sim_..._test [NAME]   this seed alone, with a trace, of all tests or of one
 */
#ifndef TESTS_SIM_RUNS_H
#define TESTS_SIM_RUNS_H

#include "tests/sim/cluster.h"

typedef struct { /* over all runs of a test */
    uint64_t runs, applied, repeats, retries, corrupt, breaks, skipped, held, gap_max, snapshots,
        shared, failed, epochs, promotions, fills, keeps, crashes, joins, excused, in_order,
        messages;
} runs_totals;

typedef enum {
    RUNS_IN_ORDER,    /* all members leave with a goodbye */
    RUNS_IN_DISORDER, /* some member does not            */
    RUNS_EITHER
} runs_ending;

typedef void (*runs_plan_fn)(sim_plan *p, uint64_t *chance);

uint64_t runs_seeds_of(uint64_t usual); /* this many, or as many as requested */
uint64_t runs_seed(void);               /* the first one: of a replay, or SIM_FIRST */
bool runs_is_replay(void);

/* One run; a failure fails the test and prints how to replay it. */
sim_result runs_one(const char *test, const sim_plan *asked, runs_ending how);

/* Runs this plan with n seeds; all modes in turn, unless the plan sets one. */
runs_totals runs_check(const char *test, uint64_t n, runs_ending how, runs_plan_fn change);

/* "300 runs: 5 deaths, ..." */
void runs_print(const char *test, const runs_totals *t);

#endif
