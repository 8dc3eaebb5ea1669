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
                   (unsigned long long)p->task.steps, (unsigned long long)r->ms,
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
static uint64_t last_ms(void)
{
    return are_many() ? 1500 : 3000;
}

static void kill(sim_plan *p, sim_role role, uint32_t rank, uint64_t from_ms, uint64_t until_ms)
{
    sim_plan_add(p, (sim_event){.what     = SIM_CRASH,
                                .role     = role,
                                .rank     = rank,
                                .from_ms  = from_ms,
                                .until_ms = until_ms});
}

static sim_plan lasting(uint64_t seed, uint32_t n_servers)
{
    sim_plan p       = plain(seed, workers(), n_servers);
    p.think_ms       = are_many() ? 60 : 400;
    p.slow_ms        = 0;
    p.has_state      = true;
    p.restarts       = true;
    p.must_go_on     = true;
    p.deadline_ms    = 120000;
    p.on_worker_loss = LOSS_CONTINUE;
    p.workers_min    = 1;
    return p;
}

static void kill_workers(sim_plan *p, uint64_t *chance)
{
    for (uint32_t i = 0; i < 3; i++)
        kill(p, SIM_WORKER, (uint32_t)draw_between(chance, 1, p->task.workers - 1),
             draw_between(chance, 300, last_ms()), 0);
}

static void come(sim_plan *p, uint64_t *chance)
{
    p->workers_max = p->task.workers + 1;
    sim_plan_add(p, (sim_event){.what    = SIM_JOIN,
                                .role    = SIM_WORKER,
                                .rank    = p->task.workers,
                                .from_ms = draw_between(chance, 300, last_ms())});
}

static void check(const char *test, const sim_plan *p)
{
    const sim_result r = runs_one(test, p, RUNS_IN_ORDER);
    fprintf(stderr,
            "seed %llu: %llu ms, %llu messages; %llu crashes, %llu epochs, %llu promotions, %llu "
            "came\n",
            (unsigned long long)p->task.seed, (unsigned long long)r.ms,
            (unsigned long long)r.messages, (unsigned long long)r.crashes,
            (unsigned long long)r.epochs, (unsigned long long)r.promotions,
            (unsigned long long)r.joins);
    assert_true(r.crashes > 0 && (r.joins > 0 || r.excused || p->workers_max == 0));
}

static void each_seed(const char *test, sim_plan (*plan_of)(uint64_t seed))
{
    const uint64_t first = runs_is_replay() ? runs_seed() : 1;
    const uint64_t n     = runs_is_replay() ? 1 : runs_seeds_of(2);
    for (uint64_t seed = first; seed < first + n; seed++) {
        sim_plan p = plan_of(seed);
        p.trace    = runs_is_replay();
        check(test, &p);
    }
}

static sim_plan with_servers(uint64_t seed)
{
    uint64_t chance   = draw_mix(seed + 31337);
    sim_plan p        = lasting(seed, servers());
    const uint64_t at = draw_between(&chance, 300, last_ms());
    p.replicas        = 1;
    kill_workers(&p, &chance);
    come(&p, &chance);
    kill(&p, SIM_SERVER, (uint32_t)draw_below(&chance, p.servers), at, at + 1000);
    return p;
}

static void sim_many_workers_and_servers_outlive_deaths_and_take_comers(void **state)
{
    (void)state;
    each_seed(__func__, with_servers);
}

/* ddp and the sharded modes are one to the scheduler: workers hold the state, and none can come. */
static sim_plan without_servers(uint64_t seed)
{
    uint64_t chance = draw_mix(seed + 4711);
    sim_plan p      = lasting(seed, 0);
    p.task.steps    = STEPS_WITHOUT_SERVERS;
    kill_workers(&p, &chance);
    return p;
}

static void sim_many_workers_without_servers_outlive_deaths(void **state)
{
    (void)state;
    each_seed(__func__, without_servers);
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
