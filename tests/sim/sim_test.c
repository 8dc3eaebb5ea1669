/* Whole clusters on a simulated clock and network, one seed per run.
 *   SIM_SEEDS=n                      seeds per test (60)
 *   SIM_SEED=n sim_sim_test [NAME]   this seed alone, with a trace, of all tests or of one
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cluster.h"
#include "tests/sim/draw.h"

enum { USUAL_SEEDS = 60, SWARM_FACTOR = 6 };

typedef void (*plan_fn)(sim_plan *p, uint64_t *chance);

typedef struct { /* over all runs of a test */
    uint64_t runs, applied, repeats, retries, corrupt, breaks, skipped, held, gap_max, snapshots,
        failed;
} totals;

static uint64_t environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void report(const char *test, const sim_plan *p, const sim_result *r)
{
    char text[700];
    sim_plan_describe(p, text, sizeof text);
    fprintf(stderr, "replay:  SIM_SEED=%llu build/tests/sim_sim_test %s\n",
            (unsigned long long)p->task.seed, test);
    fprintf(stderr, "  %s\n  after %llu ms and %llu messages\n", text, (unsigned long long)r->ms,
            (unsigned long long)r->messages);
    fprintf(stderr, "  wrong: %s\n  verdict: %s\n", r->wrong, r->sentence);
}

static void add(totals *t, const sim_result *r)
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
    t->failed += r->failed;
    if (r->gap_max > t->gap_max) t->gap_max = r->gap_max;
}

typedef enum { IN_ORDER, IN_DISORDER, EITHER } ending; /* whether everybody leaves with a goodbye */

static sim_result run(const char *test, const sim_plan *asked, ending how)
{
    sim_plan p         = *asked;
    p.trace            = getenv("SIM_SEED") != NULL;
    const sim_result r = sim_run(&p);
    const bool is_well =
        r.wrong[0] == '\0' && r.is_over && (how == EITHER || r.in_order == (how == IN_ORDER));
    if (!is_well) report(test, &p, &r);
    if (!is_well)
        fail_msg("seed %llu: %s", (unsigned long long)p.task.seed,
                 r.wrong[0] != '\0' ? r.wrong : r.sentence);
    return r;
}

/* Runs this plan with many seeds; all modes in turn, unless the plan says another. */
static totals check_seeds(const char *test, uint64_t n, ending how, plan_fn change)
{
    totals t            = {0};
    const uint64_t only = environment("SIM_SEED", 0);
    for (uint64_t seed = only > 0 ? only : 1; seed <= (only > 0 ? only : n); seed++) {
        sim_plan p      = sim_plan_calm(seed, (model_mode)(seed % (MODEL_ASYNC + 1)));
        uint64_t chance = draw_mix(seed);
        change(&p, &chance);
        const sim_result r = run(test, &p, how);
        add(&t, &r);
    }
    return t;
}

static uint64_t seeds(void)
{
    return environment("SIM_SEEDS", USUAL_SEEDS);
}

static bool is_replay(void)
{
    return getenv("SIM_SEED") != NULL;
}

/* ---- faults, one at a time ------------------------------------------------------------------- */
static void drop(sim_plan *p, uint64_t *chance)
{
    p->data.drop = (uint32_t)draw_between(chance, 5, 40);
    p->heal_ms   = 30000;
}

static void sim_no_push_is_lost_under_drop(void **state)
{
    (void)state;
    const totals t = check_seeds(__func__, seeds(), IN_ORDER, drop);
    assert_true(t.retries > 0 || is_replay());
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
    const totals t = check_seeds(__func__, seeds(), IN_ORDER, repeat);
    assert_true(t.repeats > 0 || is_replay());
}

static void corrupt(sim_plan *p, uint64_t *chance)
{
    p->data.corrupt = (uint32_t)draw_between(chance, 5, 30);
    p->heal_ms      = 30000;
}

static void sim_a_corrupt_payload_is_never_taken(void **state)
{
    (void)state;
    const totals t = check_seeds(__func__, seeds(), IN_ORDER, corrupt);
    assert_true(t.corrupt > 0 || is_replay());
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
    const totals t = check_seeds(__func__, seeds(), IN_ORDER, break_often);
    assert_true(t.breaks > 0 || is_replay());
}

static sim_event draw_victim(sim_plan *p, uint64_t *chance, sim_role role)
{
    const uint32_t n = role == SIM_WORKER ? p->task.workers : role == SIM_SERVER ? p->servers : 1;
    return (sim_event){.role    = role,
                       .rank    = (uint32_t)draw_below(chance, n),
                       .from_ms = draw_between(chance, 1, 300)};
}

static void cut_off(sim_plan *p, uint64_t *chance)
{
    p->partition =
        draw_victim(p, chance, (sim_role)draw_between(chance, SIM_SCHEDULER, SIM_WORKER));
    p->partition.until_ms = p->partition.from_ms + draw_between(chance, 10, 1900);
}

static void sim_partition_heals_and_training_ends(void **state)
{
    (void)state;
    const totals t = check_seeds(__func__, seeds(), IN_ORDER, cut_off);
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
    const totals t = check_seeds(__func__, SWARM_FACTOR * seeds(), IN_ORDER, swarm);
    assert_true(t.applied > 0);
}

static void swarm_bsp(sim_plan *p, uint64_t *chance)
{
    (void)chance;
    *p = sim_plan_swarm_of(p->task.seed, p->task.seed % 2 ? MODEL_DECIDE : MODEL_EAGER);
}

static void sim_bsp_equals_the_reference_under_all_faults(void **state)
{
    (void)state;
    const totals t = check_seeds(__func__, 2 * seeds(), IN_ORDER, swarm_bsp);
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
    const totals t = check_seeds(__func__, 2 * seeds(), IN_ORDER, swarm_async);
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
    if (p->partition.role == SIM_WORKER) p->partition.rank %= 3;
}

static void sim_ssp_bound_holds_and_is_used(void **state)
{
    (void)state;
    for (ssp_bound = 0; ssp_bound < 4; ssp_bound++) {
        const totals t = check_seeds(__func__, seeds() / 2, IN_ORDER, ssp_with_a_straggler);
        assert_true(t.gap_max == ssp_bound || is_replay());
        assert_true(t.held > 0 || is_replay());
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
    const totals t = check_seeds(__func__, seeds(), IN_ORDER, spoil_steps);
    assert_true(t.skipped > 0 || is_replay());
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
    const totals t = check_seeds(__func__, seeds(), IN_ORDER, snapshot_often);
    if (!is_replay()) assert_int_equal(t.snapshots, 2 * t.runs);
}

/* ---- deaths ---------------------------------------------------------------------------------- */
static void long_job(sim_plan *p)
{
    p->task.steps = 200;
    p->think_ms   = 40;
}

static void kill_worker(sim_plan *p, uint64_t *chance)
{
    long_job(p);
    p->crash  = draw_victim(p, chance, SIM_WORKER);
    p->end_ms = p->crash.from_ms +
                6000; /* all is over by then: grace 1 s, inquest 250 ms, last words 1 s */
}

static void sim_worker_death_ends_every_call_with_the_same_sentence(void **state)
{
    (void)state;
    const totals t = check_seeds(__func__, seeds(), IN_DISORDER, kill_worker);
    assert_int_equal(t.failed, 2 * t.runs);
}

static void kill_server(sim_plan *p, uint64_t *chance)
{
    long_job(p);
    p->crash  = draw_victim(p, chance, SIM_SERVER);
    p->end_ms = p->crash.from_ms + 6000;
}

static void sim_server_death_ends_every_call_with_the_same_sentence(void **state)
{
    (void)state;
    const totals t = check_seeds(__func__, seeds(), IN_DISORDER, kill_server);
    assert_int_equal(t.failed, 3 * t.runs);
}

static void kill_scheduler(sim_plan *p, uint64_t *chance)
{
    long_job(p);
    p->crash         = draw_victim(p, chance, SIM_SCHEDULER);
    p->crash.from_ms = draw_between(chance, 20, 300);
    p->end_ms        = p->crash.from_ms + 3000;
}

static void sim_scheduler_death_ends_every_call(void **state)
{
    (void)state;
    const totals t = check_seeds(__func__, seeds(), IN_DISORDER, kill_scheduler);
    assert_int_equal(t.failed, 3 * t.runs);
}

static void lose_worker(sim_plan *p, uint64_t *chance)
{
    long_job(p);
    p->partition          = draw_victim(p, chance, SIM_WORKER);
    p->partition.until_ms = UINT32_MAX;
    p->end_ms             = p->partition.from_ms + 30000;
}

static void sim_cut_off_worker_ends_the_job_on_both_sides(void **state)
{
    (void)state;
    const totals t = check_seeds(__func__, seeds(), IN_DISORDER, lose_worker);
    assert_int_equal(t.failed, 3 * t.runs);
}

static void kill_somebody(sim_plan *p, uint64_t *chance)
{
    *p       = sim_plan_swarm(p->task.seed);
    p->crash = draw_victim(p, chance, (sim_role)draw_between(chance, SIM_SCHEDULER, SIM_WORKER));
    p->crash.from_ms *= draw_between(chance, 1, 5);
}

static void sim_death_amid_all_faults_ends_everybody(void **state)
{
    (void)state;
    const totals t = check_seeds(__func__, 3 * seeds(), EITHER, kill_somebody);
    assert_true(t.failed > 0 || is_replay());
}

static void sim_verdict_names_the_dead_worker(void **state)
{
    (void)state;
    sim_plan p = sim_plan_calm(5, MODEL_DECIDE);
    long_job(&p);
    p.crash            = (sim_event){.role = SIM_WORKER, .rank = 1, .from_ms = 200};
    const sim_result r = run(__func__, &p, IN_DISORDER);
    assert_int_equal(r.verdict, PEN_PEER_LOST);
    assert_non_null(strstr(r.sentence, "worker 1"));
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
        const sim_result r = run(__func__, &p, IN_DISORDER);
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
    const totals t = check_seeds(__func__, 2 * seeds(), EITHER, hurry);
    assert_true(t.failed > 0 || is_replay());
}

/* ---- the simulator itself -------------------------------------------------------------------- */
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

/* Each planted bug is found within a few seeds, by the check that is for it. */
static void check_plant(sim_plant plant, model_mode mode, bool verbs, const char *sentence)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        sim_plan p         = sim_plan_calm(seed, mode);
        p.plant            = plant;
        p.verbs            = verbs;
        p.data             = (sim_trouble){.drop = 10, .repeat = 30, .delay_ms = 30};
        p.heal_ms          = 5000;
        p.slow_ms          = 300;
        p.snapshot_every   = 2;
        p.lanes            = 2;
        p.task.weighted    = plant == SIM_LOSE_CONTRIBUTION;
        const sim_result r = sim_run(&p);
        if (strstr(r.wrong, sentence) != NULL) return;
        if (r.wrong[0] != '\0')
            fail_msg("seed %llu: another check failed: %s", (unsigned long long)seed, r.wrong);
    }
    fail_msg("the planted bug was not found");
}

static void sim_catches_a_planted_dedup_that_is_off_by_one(void **state)
{
    (void)state;
    check_plant(SIM_DEDUP_OFF_BY_ONE, MODEL_ASYNC, false, "a push was applied twice");
    check_plant(SIM_DEDUP_OFF_BY_ONE, MODEL_SSP, true, "a push was applied twice");
}

static void sim_catches_a_planted_acknowledgement_before_the_work(void **state)
{
    (void)state;
    check_plant(SIM_ACKNOWLEDGE_EARLY, MODEL_ASYNC, true, "was told that push");
}

static void sim_catches_a_planted_ssp_bound_that_is_off_by_one(void **state)
{
    (void)state;
    check_plant(SIM_SSP_OFF_BY_ONE, MODEL_SSP, false, "the bound is");
}

static void sim_catches_a_planted_decision_from_local_numbers(void **state)
{
    (void)state;
    check_plant(SIM_LOCAL_DECISION, MODEL_DECIDE, false, "differs from the reference");
}

static void sim_catches_a_planted_commit_on_some_shards_only(void **state)
{
    (void)state;
    check_plant(SIM_COMMIT_ON_SOME, MODEL_DECIDE, false, "was told that push");
}

static void sim_catches_a_planted_loss_of_a_contribution(void **state)
{
    (void)state;
    check_plant(SIM_LOSE_CONTRIBUTION, MODEL_EAGER, false, "differs from the reference");
}

static void sim_catches_a_planted_snapshot_of_another_step(void **state)
{
    (void)state;
    check_plant(SIM_SNAPSHOT_OF_NEXT, MODEL_DECIDE, false, "the snapshot of step");
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
        cmocka_unit_test(sim_call_ends_by_its_deadline_and_names_who_is_missing),
        cmocka_unit_test(sim_deadlines_hold_under_all_faults),
        cmocka_unit_test(sim_same_seed_same_run),
        cmocka_unit_test(sim_catches_a_planted_dedup_that_is_off_by_one),
        cmocka_unit_test(sim_catches_a_planted_acknowledgement_before_the_work),
        cmocka_unit_test(sim_catches_a_planted_ssp_bound_that_is_off_by_one),
        cmocka_unit_test(sim_catches_a_planted_decision_from_local_numbers),
        cmocka_unit_test(sim_catches_a_planted_commit_on_some_shards_only),
        cmocka_unit_test(sim_catches_a_planted_loss_of_a_contribution),
        cmocka_unit_test(sim_catches_a_planted_snapshot_of_another_step),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
