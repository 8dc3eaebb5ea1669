/* runs.c - many seeds of one kind of plan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>

#include <cmocka.h>

#include "tests/sim/draw.h"
#include "tests/sim/runs.h"

static uint64_t environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

uint64_t runs_seeds_of(uint64_t usual)
{
    return environment("SIM_SEEDS", usual);
}

uint64_t runs_seed(void)
{
    return environment("SIM_SEED", environment("SIM_FIRST", 1));
}

bool runs_is_replay(void)
{
    return getenv("SIM_SEED") != NULL;
}

static void report(const char *test, const sim_plan *p, const sim_result *r)
{
    char text[1400];
    sim_plan_describe(p, text, sizeof text);
    fprintf(stderr, "replay:  SIM_SEED=%llu build/tests/sim_%s %s\n",
            (unsigned long long)p->task.seed, program_invocation_short_name + strlen("sim_"), test);
    fprintf(stderr, "  %s\n  after %llu ms and %llu messages, digest %016llx\n", text,
            (unsigned long long)r->ms, (unsigned long long)r->messages,
            (unsigned long long)r->digest);
    fprintf(stderr, "  wrong: %s\n  verdict: %s\n", r->wrong, r->sentence);
}

static void add(runs_totals *t, const sim_result *r)
{
    t->runs++;
    t->applied += r->applied;
    t->repeats += r->repeats;
    t->retries += r->retries;
    t->corrupt += r->corrupt;
    t->breaks += r->breaks;
    t->skipped += r->skipped;
    t->held += r->held;
    t->snapshots += r->snapshots;
    t->shared += r->shared;
    t->failed += r->failed;
    t->epochs += r->epochs;
    t->promotions += r->promotions;
    t->fills += r->fills;
    t->keeps += r->keeps;
    t->crashes += r->crashes;
    t->joins += r->joins;
    t->excused += r->excused;
    t->in_order += r->in_order;
    t->messages += r->messages;
    if (r->gap_max > t->gap_max) t->gap_max = r->gap_max;
}

void runs_print(const char *test, const runs_totals *t)
{
    fprintf(stderr,
            "%s: %llu runs, %llu messages; %llu crashes, %llu epochs, %llu promotions, %llu copies "
            "filled, "
            "%llu came, %llu writes of the scheduler; %llu ended in good order, %llu could not\n",
            test, (unsigned long long)t->runs, (unsigned long long)t->messages,
            (unsigned long long)t->crashes, (unsigned long long)t->epochs,
            (unsigned long long)t->promotions, (unsigned long long)t->fills,
            (unsigned long long)t->joins, (unsigned long long)t->keeps,
            (unsigned long long)t->in_order, (unsigned long long)t->excused);
}

sim_result runs_one(const char *test, const sim_plan *asked, runs_ending how)
{
    sim_plan p         = *asked;
    p.trace            = runs_is_replay();
    const sim_result r = sim_run(&p);
    const bool is_well = r.wrong[0] == '\0' && r.is_over &&
                         (how == RUNS_EITHER || r.excused || r.in_order == (how == RUNS_IN_ORDER));
    if (p.trace) fprintf(stderr, "digest of the trace: %016llx\n", (unsigned long long)r.digest);
    if (!is_well) report(test, &p, &r);
    if (!is_well)
        fail_msg("seed %llu: %s", (unsigned long long)p.task.seed,
                 r.wrong[0] != '\0' ? r.wrong : r.sentence);
    return r;
}

runs_totals runs_check(const char *test, uint64_t n, runs_ending how, runs_plan_fn change)
{
    runs_totals t        = {0};
    const uint64_t only  = environment("SIM_SEED", 0);
    const uint64_t first = runs_seed();
    for (uint64_t seed = first; seed < first + (only > 0 ? 1 : n); seed++) {
        sim_plan p      = sim_plan_calm(seed, (model_mode)(seed % (MODEL_ASYNC + 1)));
        uint64_t chance = draw_mix(seed);
        change(&p, &chance);
        const sim_result r = runs_one(test, &p, how);
        add(&t, &r);
    }
    if (how == RUNS_IN_ORDER) assert_true(5 * t.excused <= t.runs || only > 0);
    return t;
}
