/* sim_test.c - whole clusters on a simulated clock and network, one seed per run: faults, deaths, deadlines.  runs.h
 * explains how to replay one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/draw.h"
#include "tests/sim/runs.h"

/* ---- faults, one at a time ------------------------------------------------------------------- */
static void drop(sim_plan *p, uint64_t *chance)
{
    p->data.drop = (uint32_t)draw_between(chance, 5, 40);
    p->heal_ms   = 30000;
}

static void sim_no_push_is_lost_under_drop(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_ORDER, drop);
    assert_true(t.retries > 0 || runs_is_replay());
}

static void repeat(sim_plan *p, uint64_t *chance)
{
    p->data = (sim_trouble){
        .repeat = 60, .reorder = 40, .delay_ms = (uint32_t)draw_between(chance, 1, 200)};
    p->control = (sim_trouble){.repeat = 60, .delay_ms = 30};
    p->heal_ms = 30000;
}

static void sim_no_push_is_applied_twice_under_repeat(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_ORDER, repeat);
    assert_true(t.repeats > 0 || runs_is_replay());
}

static void corrupt(sim_plan *p, uint64_t *chance)
{
    p->data.corrupt = (uint32_t)draw_between(chance, 5, 30);
    p->heal_ms      = 30000;
}

static void sim_a_corrupt_payload_is_never_taken(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_ORDER, corrupt);
    assert_true(t.corrupt > 0 || runs_is_replay());
}

static void break_often(sim_plan *p, uint64_t *chance)
{
    p->data.break_ms    = (uint32_t)draw_between(chance, 10, 200);
    p->control.break_ms = (uint32_t)draw_between(chance, 100, 1000);
    p->lanes            = 2;
    p->heal_ms          = 10000;
}

static void sim_broken_connections_come_back_and_training_ends(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_ORDER, break_often);
    assert_true(t.breaks > 0 || runs_is_replay());
}

static sim_event *draw_victim(sim_plan *p, uint64_t *chance, sim_what what, sim_role role)
{
    const uint32_t n = role == SIM_WORKER ? p->task.workers : role == SIM_SERVER ? p->servers : 1;
    sim_plan_add(p, (sim_event){.what    = what,
                                .role    = role,
                                .rank    = (uint32_t)draw_below(chance, n),
                                .from_ms = draw_between(chance, 1, 300)});
    return &p->event[p->n_events - 1];
}

static void cut_off(sim_plan *p, uint64_t *chance)
{
    sim_event *e = draw_victim(p, chance, SIM_CUT_OFF,
                               (sim_role)draw_between(chance, SIM_SCHEDULER, SIM_WORKER));
    e->until_ms  = e->from_ms + draw_between(chance, 10, 1900);
}

static void sim_partition_heals_and_training_ends(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_ORDER, cut_off);
    assert_true(t.applied > 0);
}

/* ---- all faults at once ---------------------------------------------------------------------- */
static void swarm(sim_plan *p, uint64_t *chance)
{
    (void)chance;
    *p = sim_plan_swarm(p->task.seed);
}

static void sim_every_swarm_ends_in_good_order(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(360), RUNS_IN_ORDER, swarm);
    assert_true(t.applied > 0);
}

/* 14192: values arrived, damaged and then whole, while the repeat of their push was queued; it was sent from a buffer
 * that was already returned. */
static void sim_seeds_that_failed_once_end_in_good_order(void **state)
{
    (void)state;
    static const uint64_t seeds[] = {14192};
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        const sim_plan p = sim_plan_swarm(seeds[i]);
        runs_one("sim_every_swarm_ends_in_good_order", &p, RUNS_IN_ORDER);
    }
}

static void swarm_bsp(sim_plan *p, uint64_t *chance)
{
    (void)chance;
    *p = sim_plan_swarm_of(p->task.seed, p->task.seed % 2 ? MODEL_DECIDE : MODEL_EAGER);
}

static void sim_bsp_equals_the_reference_under_all_faults(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(120), RUNS_IN_ORDER, swarm_bsp);
    assert_true(t.applied > 0);
}

static void swarm_async(sim_plan *p, uint64_t *chance)
{
    (void)chance;
    *p = sim_plan_swarm_of(p->task.seed, MODEL_ASYNC);
}

static void sim_async_applies_each_push_once(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(120), RUNS_IN_ORDER, swarm_async);
    assert_true(t.applied > 0);
}

/* ---- ssp ------------------------------------------------------------------------------------- */
static uint64_t ssp_bound;

static void ssp_with_a_straggler(sim_plan *p, uint64_t *chance)
{
    if (draw_chance(chance, 50)) *p = sim_plan_swarm_of(p->task.seed, MODEL_SSP);
    p->task.mode    = MODEL_SSP;
    p->task.workers = 3;
    p->bound        = ssp_bound;
    p->think_ms     = 10;
    p->slow_rank    = (uint32_t)draw_below(chance, 3);
    p->slow_ms      = 800;
    p->task.steps   = 8;
    for (uint32_t i = 0; i < p->n_events; i++)
        if (p->event[i].role == SIM_WORKER) p->event[i].rank %= 3;
}

static void sim_ssp_bound_holds_and_is_used(void **state)
{
    (void)state;
    for (ssp_bound = 0; ssp_bound < 4; ssp_bound++) {
        const runs_totals t =
            runs_check(__func__, runs_seeds_of(30), RUNS_IN_ORDER, ssp_with_a_straggler);
        assert_true(t.gap_max == ssp_bound || runs_is_replay());
        assert_true(t.held > 0 || runs_is_replay());
    }
}

/* ---- decisions ------------------------------------------------------------------------------- */
static void spoil_steps(sim_plan *p, uint64_t *chance)
{
    *p                        = sim_plan_swarm_of(p->task.seed, MODEL_DECIDE);
    p->task.nonfinite_percent = (uint32_t)draw_between(chance, 20, 60);
}

static void sim_decision_skips_nonfinite_on_all_shards(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_ORDER, spoil_steps);
    assert_true(t.skipped > 0 || runs_is_replay());
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static void snapshot_often(sim_plan *p, uint64_t *chance)
{
    p->data           = (sim_trouble){.drop = 10, .repeat = 20, .reorder = 20, .delay_ms = 50};
    p->heal_ms        = 5000;
    p->snapshot_every = draw_between(chance, 1, 3);
    p->task.steps     = 3 * p->snapshot_every - 1;
}

static void sim_snapshot_cut_is_one_step_on_all_shards(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_ORDER, snapshot_often);
    if (!runs_is_replay()) assert_int_equal(t.snapshots, 2 * t.runs);
}

/* ---- deaths ---------------------------------------------------------------------------------- */
enum { JOINED_MS = 20 };

static void long_job(sim_plan *p)
{
    p->task.steps = 200;
    p->think_ms   = 40;
}

/* A process that dies before it has joined is missed at init_timeout_ms only. */
static sim_event *draw_member(sim_plan *p, uint64_t *chance, sim_what what, sim_role role)
{
    sim_event *e = draw_victim(p, chance, what, role);
    if (e->from_ms < JOINED_MS) e->from_ms += JOINED_MS;
    return e;
}

static void kill_worker(sim_plan *p, uint64_t *chance)
{
    long_job(p);
    p->end_ms = draw_member(p, chance, SIM_CRASH, SIM_WORKER)->from_ms +
                6000; /* all is over by then: grace 1 s, death query 250 ms, last messages 1 s */
}

static void sim_worker_death_ends_every_call_with_the_same_sentence(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_DISORDER, kill_worker);
    assert_int_equal(t.failed, 2 * t.runs);
}

static void kill_server(sim_plan *p, uint64_t *chance)
{
    long_job(p);
    p->end_ms = draw_member(p, chance, SIM_CRASH, SIM_SERVER)->from_ms + 6000;
}

static void sim_server_death_ends_every_call_with_the_same_sentence(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_DISORDER, kill_server);
    assert_int_equal(t.failed, 3 * t.runs);
}

static void kill_scheduler(sim_plan *p, uint64_t *chance)
{
    long_job(p);
    sim_event *e = draw_victim(p, chance, SIM_CRASH, SIM_SCHEDULER);
    e->from_ms   = draw_between(chance, 20, 300);
    p->end_ms    = e->from_ms + 3000;
}

static void sim_scheduler_death_ends_every_call(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_DISORDER, kill_scheduler);
    assert_int_equal(t.failed, 3 * t.runs);
}

static void lose_worker(sim_plan *p, uint64_t *chance)
{
    long_job(p);
    sim_event *e = draw_member(p, chance, SIM_CUT_OFF, SIM_WORKER);
    e->until_ms  = UINT32_MAX;
    p->end_ms    = e->from_ms + 30000;
}

static void sim_cut_off_worker_ends_the_job_on_both_sides(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(60), RUNS_IN_DISORDER, lose_worker);
    assert_int_equal(t.failed, 3 * t.runs);
}

static void kill_somebody(sim_plan *p, uint64_t *chance)
{
    *p           = sim_plan_swarm(p->task.seed);
    sim_event *e = draw_victim(p, chance, SIM_CRASH,
                               (sim_role)draw_between(chance, SIM_SCHEDULER, SIM_WORKER));
    e->from_ms *= draw_between(chance, 1, 5);
}

static void sim_death_amid_all_faults_ends_everybody(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(180), RUNS_EITHER, kill_somebody);
    assert_true(t.failed > 0 || runs_is_replay());
}

static void sim_verdict_names_the_dead_worker(void **state)
{
    (void)state;
    sim_plan p = sim_plan_calm(5, MODEL_DECIDE);
    long_job(&p);
    sim_plan_add(&p, (sim_event){.what = SIM_CRASH, .role = SIM_WORKER, .rank = 1, .from_ms = 200});
    const sim_result r = runs_one(__func__, &p, RUNS_IN_DISORDER);
    assert_int_equal(r.verdict, PEN_PEER_LOST);
    assert_non_null(strstr(r.sentence, "worker 1"));
}

/* ---- unreachable pairs ----------------------------------------------------------------------- */
/* Under all network faults: only the two ends are named, by all, before the lease is over. */
static sim_plan apart(uint64_t seed, bool from_the_beginning, uint32_t *worker, uint32_t *server)
{
    uint64_t chance = draw_mix(seed + 411);
    sim_plan p      = sim_plan_swarm(seed);
    long_job(&p);
    p.n_events = 0;
    p.tensors  = 6; /* each server has a part */
    *worker    = (uint32_t)draw_below(&chance, p.task.workers);
    *server    = (uint32_t)draw_below(&chance, p.servers);
    sim_plan_add(&p,
                 (sim_event){.what    = SIM_NO_WAY,
                             .role    = SIM_WORKER,
                             .rank    = *worker,
                             .from_ms = from_the_beginning ? 0 : draw_between(&chance, 1500, 3000),
                             .to      = *server});
    p.end_ms = p.event[0].from_ms + p.lease_ms;
    return p;
}

static void check_apart(const char *test, bool from_the_beginning)
{
    const uint64_t first = runs_is_replay() ? runs_seed() : 1, n = runs_seeds_of(60);
    uint64_t applied = 0;
    for (uint64_t seed = first; seed < first + (runs_is_replay() ? 1 : n); seed++) {
        uint32_t worker, server;
        char from[24], to[48];
        const sim_plan p   = apart(seed, from_the_beginning, &worker, &server);
        const sim_result r = runs_one(test, &p, RUNS_EITHER);
        snprintf(from, sizeof from, "worker %u (", worker);
        snprintf(to, sizeof to, ") cannot reach server %u (", server);
        if (r.verdict != PEN_UNREACHABLE || strncmp(r.sentence, from, strlen(from)) != 0 ||
            strstr(r.sentence, to) == NULL)
            fail_msg("seed %llu: %s%s is not in '%s'", (unsigned long long)seed, from, to,
                     r.sentence);
        /* Without one rule for all steps, a worker may have finished all of its own before. */
        assert_true(r.failed == p.task.workers || (!from_the_beginning && r.failed > 0));
        if (from_the_beginning) assert_true(r.applied == 0);
        applied += r.applied;
    }
    assert_true(from_the_beginning || applied > 0);
}

static void sim_a_pair_without_a_way_is_named_before_the_first_step(void **state)
{
    (void)state;
    check_apart(__func__, true);
}

static void sim_a_pair_that_loses_its_way_is_named_within_the_lease(void **state)
{
    (void)state;
    check_apart(__func__, false);
}

static const char *name_of(char name[24], sim_role role, uint32_t rank)
{
    snprintf(name, 24, "%s %u (", role == SIM_WORKER ? "worker" : "server", rank);
    return name;
}

/* "A (host) cannot reach B (host) at ...", or the other way round, and no third member. */
static bool names_both(const char *sentence, const sim_event *e)
{
    char a[24], b[24], other[24];
    name_of(a, e->role, e->rank);
    name_of(b, e->to_role, e->to);
    for (uint32_t i = 0; i < 16; i++) {
        const sim_role role = i < 8 ? SIM_WORKER : SIM_SERVER;
        const bool is_end =
            (role == e->role && i % 8 == e->rank) || (role == e->to_role && i % 8 == e->to);
        if (!is_end && strstr(sentence, name_of(other, role, i % 8)) != NULL) return false;
    }
    const bool begins =
        strncmp(sentence, a, strlen(a)) == 0 || strncmp(sentence, b, strlen(b)) == 0;
    return begins && strstr(sentence, a) != NULL && strstr(sentence, b) != NULL &&
           strstr(sentence, ") cannot reach ") != NULL;
}

static void sim_any_pair_without_a_way_is_named_to_all_and_nobody_else_is(void **state)
{
    (void)state;
    const uint64_t first = runs_is_replay() ? runs_seed() : 1, n = runs_seeds_of(90);
    for (uint64_t seed = first; seed < first + (runs_is_replay() ? 1 : n); seed++) {
        const sim_plan p    = sim_plan_apart(seed);
        const sim_event *e  = &p.event[0];
        const sim_result r  = runs_one(__func__, &p, RUNS_EITHER);
        const bool is_first = e->from_ms == 0;
        if (r.verdict != PEN_UNREACHABLE || !names_both(r.sentence, e))
            fail_msg("seed %llu: not both ends, or another, in '%s'", (unsigned long long)seed,
                     r.sentence);
        assert_true(r.failed == p.task.workers || (!is_first && r.failed > 0));
        if (is_first) assert_true(r.applied == 0);
    }
}

/* ---- deadlines ------------------------------------------------------------------------------- */
static void sim_call_ends_by_its_deadline_and_names_who_is_missing(void **state)
{
    (void)state;
    for (model_mode mode = MODEL_DECIDE; mode <= MODEL_SSP; mode++) {
        sim_plan p         = sim_plan_calm(1 + (uint64_t)mode, mode);
        p.deadline_ms      = 3000;
        p.bound            = 0;
        p.slow_rank        = 2;
        p.slow_ms          = 1000000;
        p.end_ms           = 20000;
        const sim_result r = runs_one(__func__, &p, RUNS_IN_DISORDER);
        assert_non_null(strstr(r.late, "rank 2"));
        assert_true(r.ms < 10000);
    }
}

static void hurry(sim_plan *p, uint64_t *chance)
{
    *p             = sim_plan_swarm(p->task.seed);
    p->deadline_ms = draw_between(chance, 20, 1500);
    p->end_ms      = 120000;
}

static void sim_deadlines_hold_under_all_faults(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(120), RUNS_EITHER, hurry);
    assert_true(t.failed > 0 || runs_is_replay());
}

/* ---- the simulator itself -------------------------------------------------------------------- */
/* ---- shared memory --------------------------------------------------------------------------- */
static void share(sim_plan *p, uint64_t *chance)
{
    sim_plan_share(p, chance);
    p->task.workers     = (uint32_t)draw_between(chance, 2, 8);
    p->task.steps       = 1;
    p->tensors          = 1;
    p->servers          = 1;
    p->control.repeat   = draw_chance(chance, 50) ? 40 : 0;
    p->control.delay_ms = draw_chance(chance, 50) ? 60 : 0;
}

static void sim_the_record_says_of_all_whose_memory_they_can_map(void **state)
{
    (void)state;
    const runs_totals t = runs_check(__func__, runs_seeds_of(300), RUNS_IN_ORDER, share);
    assert_true(t.shared > t.runs / 2 || runs_is_replay());
}

static void sim_same_seed_same_run(void **state)
{
    (void)state;
    uint64_t before = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        const sim_plan p   = sim_plan_swarm(seed);
        const sim_result a = sim_run(&p), b = sim_run(&p);
        assert_true(a.digest == b.digest && a.messages == b.messages && a.ms == b.ms);
        assert_true(a.digest != before);
        before = a.digest;
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_no_push_is_lost_under_drop),
        cmocka_unit_test(sim_no_push_is_applied_twice_under_repeat),
        cmocka_unit_test(sim_a_corrupt_payload_is_never_taken),
        cmocka_unit_test(sim_broken_connections_come_back_and_training_ends),
        cmocka_unit_test(sim_partition_heals_and_training_ends),
        cmocka_unit_test(sim_every_swarm_ends_in_good_order),
        cmocka_unit_test(sim_seeds_that_failed_once_end_in_good_order),
        cmocka_unit_test(sim_bsp_equals_the_reference_under_all_faults),
        cmocka_unit_test(sim_async_applies_each_push_once),
        cmocka_unit_test(sim_ssp_bound_holds_and_is_used),
        cmocka_unit_test(sim_decision_skips_nonfinite_on_all_shards),
        cmocka_unit_test(sim_snapshot_cut_is_one_step_on_all_shards),
        cmocka_unit_test(sim_worker_death_ends_every_call_with_the_same_sentence),
        cmocka_unit_test(sim_server_death_ends_every_call_with_the_same_sentence),
        cmocka_unit_test(sim_scheduler_death_ends_every_call),
        cmocka_unit_test(sim_cut_off_worker_ends_the_job_on_both_sides),
        cmocka_unit_test(sim_death_amid_all_faults_ends_everybody),
        cmocka_unit_test(sim_verdict_names_the_dead_worker),
        cmocka_unit_test(sim_a_pair_without_a_way_is_named_before_the_first_step),
        cmocka_unit_test(sim_a_pair_that_loses_its_way_is_named_within_the_lease),
        cmocka_unit_test(sim_any_pair_without_a_way_is_named_to_all_and_nobody_else_is),
        cmocka_unit_test(sim_call_ends_by_its_deadline_and_names_who_is_missing),
        cmocka_unit_test(sim_deadlines_hold_under_all_faults),
        cmocka_unit_test(sim_the_record_says_of_all_whose_memory_they_can_map),
        cmocka_unit_test(sim_same_seed_same_run),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
