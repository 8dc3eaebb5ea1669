/* many_test.c - jobs of many members: what they send, compared with the model, and that they survive deaths.
 *   SIM_WORKERS=n SIM_SERVERS=n      members; 90 and 10 if not set
 *   SIM_SEEDS, SIM_FIRST, SIM_SEED   as in runs.h
 * `sim_many_test sim_what_a_job_sends_...` prints lines "counts WORKERS SERVERS STEPS MS KIND MESSAGES BYTES" for
 * scripts/scale.py --compare. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "proto/wire/wire.h"
#include "scheduler/core/scheduler_settings.h"
#include "tests/sim/draw.h"
#include "tests/sim/runs.h"

enum { TENSORS = 200, SLOW_MS = 2000, STEPS = 10, STEPS_OF_MANY = 50, STEPS_WITHOUT_SERVERS = 20 };

static uint32_t size_of(const char *name, uint32_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static uint32_t workers(void)
{
    return size_of("SIM_WORKERS", 90);
}

static uint32_t servers(void)
{
    return size_of("SIM_SERVERS", 10);
}

static bool are_many(void)
{
    return workers() >= 500;
}

/* Each worker pushes all tensors at once.  One is late: the others' pushes are receipted before the step is decided. */
static sim_plan plain(uint64_t seed, uint32_t n_workers, uint32_t n_servers)
{
    sim_plan p     = sim_plan_calm(seed, MODEL_DECIDE);
    p.task.workers = n_workers;
    p.task.steps   = are_many() ? STEPS_OF_MANY : STEPS;
    p.servers      = n_servers;
    p.tensors      = n_servers > 0 ? TENSORS : 5;
    p.many         = true;
    p.retry_ms     = 5000; /* the default */
    p.think_ms     = 0;
    p.slow_ms      = SLOW_MS;
    return p;
}

static void print(const sim_plan *p, const sim_result *r)
{
    for (int kind = 0; kind < SIM_KINDS_MAX; kind++)
        if (r->sent[kind].messages > 0)
            printf("counts %u %u %llu %llu %s %llu %llu\n", p->task.workers, p->servers,
                   (unsigned long long)p->task.steps, (unsigned long long)(r->ms - SIM_LINGER_MS),
                   wire_kind_name(kind), (unsigned long long)r->sent[kind].messages,
                   (unsigned long long)r->sent[kind].bytes);
}

static sim_result count(const char *test, uint32_t n_workers, uint32_t n_servers)
{
    const sim_plan p   = plain(runs_seed(), n_workers, n_servers);
    const sim_result r = runs_one(test, &p, RUNS_IN_ORDER);
    assert_int_equal(r.sent[WIRE_EPOCH].messages, n_workers + n_servers);
    print(&p, &r);
    return r;
}

static void sim_what_a_job_sends_is_what_the_model_says(void **state)
{
    (void)state;
    const sim_result all = count(__func__, workers(), servers());
    (void)count(__func__, workers() / 2, servers() / 2);
    (void)count(__func__, workers(), 0);
    assert_int_equal(all.skipped, 0);
}

static void sim_a_start_of_ten_times_as_many_takes_at_most_three_times_as_long(void **state)
{
    (void)state;
    for (int has_servers = 0; has_servers < (servers() > 0 ? 2 : 1); has_servers++) {
        sim_plan few   = plain(runs_seed(), workers() / 10, has_servers ? servers() / 10 : 0), many;
        few.task.steps = 2;
        many           = few;
        many.task.workers *= 10;
        many.servers *= 10;
        const sim_result a = runs_one(__func__, &few, RUNS_IN_ORDER),
                         b = runs_one(__func__, &many, RUNS_IN_ORDER);
        fprintf(stderr, "start of %u: %llu ms, of %u: %llu ms\n", few.task.workers,
                (unsigned long long)a.training_ms, many.task.workers,
                (unsigned long long)b.training_ms);
        assert_true(a.training_ms > 0 && b.training_ms <= 3 * a.training_ms);
    }
}

/* ---- deaths and comers ------------------------------------------------------------------------- */
static uint64_t draw_ms(uint64_t *chance)
{
    return draw_between(chance, 300, are_many() ? 1500 : 3000);
}

static void lose_workers(sim_plan *p, uint64_t *chance, uint32_t n_servers)
{
    *p                = plain(p->task.seed, workers(), n_servers);
    p->think_ms       = are_many() ? 60 : 400;
    p->slow_ms        = 0;
    p->on_worker_loss = LOSS_CONTINUE;
    p->workers_min    = 1;
    sim_plan_must_last(p);
    for (uint32_t i = 0; i < 3; i++)
        sim_plan_kill(p, SIM_WORKER, (uint32_t)draw_between(chance, 1, p->task.workers - 1),
                      draw_ms(chance), 0);
}

static void with_servers(sim_plan *p, uint64_t *chance)
{
    lose_workers(p, chance, servers());
    const uint64_t at = draw_ms(chance);
    p->replicas       = 1;
    p->workers_max    = p->task.workers + 1;
    sim_plan_add(p, (sim_event){.what    = SIM_JOIN,
                                .role    = SIM_WORKER,
                                .rank    = p->task.workers,
                                .from_ms = draw_ms(chance)});
    sim_plan_kill(p, SIM_SERVER, (uint32_t)draw_below(chance, p->servers), at, at + 1000);
}

static void sim_many_workers_and_servers_outlive_deaths_and_take_comers(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(2), RUNS_IN_ORDER, with_servers);
    runs_print(__func__, &t);
    assert_true(t.crashes >= 2 * t.runs && t.joins + t.excused >= t.runs);
}

/* ddp and the sharded modes are one to the scheduler: workers hold the state, and none can come. */
static void without_servers(sim_plan *p, uint64_t *chance)
{
    lose_workers(p, chance, 0);
    p->task.steps = STEPS_WITHOUT_SERVERS;
}

static void sim_many_workers_without_servers_outlive_deaths(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(2), RUNS_IN_ORDER, without_servers);
    runs_print(__func__, &t);
    assert_true(t.crashes >= 2 * t.runs);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_what_a_job_sends_is_what_the_model_says),
        cmocka_unit_test(sim_a_start_of_ten_times_as_many_takes_at_most_three_times_as_long),
        cmocka_unit_test(sim_many_workers_and_servers_outlive_deaths_and_take_comers),
        cmocka_unit_test(sim_many_workers_without_servers_outlive_deaths),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("many", tests, NULL, NULL);
}
