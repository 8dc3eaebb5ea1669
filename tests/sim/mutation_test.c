/* mutation_test.c - bugs that the product does not have are inserted one at a time, and each is found.  Those of
 * cluster.h sit between its layers; those of common/base/mutation.h are switches inside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mutation.h"
#include "scheduler/core/scheduler_settings.h"
#include "tests/sim/draw.h"
#include "tests/sim/runs.h"

enum { SEEDS_MAX = 2000 };

/* ---- between the layers ---------------------------------------------------------------------- */
/* Each planted bug is found within a few seeds, by the check designed for it. */
static void check_mutation(sim_mutation mutation, model_mode mode, bool verbs, const char *sentence)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        sim_plan p         = sim_plan_calm(seed, mode);
        p.mutation         = mutation;
        p.verbs            = verbs;
        p.data             = (sim_trouble){.drop = 10, .repeat = 30, .delay_ms = 30};
        p.heal_ms          = 5000;
        p.slow_ms          = 300;
        p.snapshot_every   = 2;
        p.lanes            = 2;
        p.task.weighted    = mutation == SIM_LOSE_CONTRIBUTION;
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
    check_mutation(SIM_DEDUP_OFF_BY_ONE, MODEL_ASYNC, false, "a push was applied twice");
    check_mutation(SIM_DEDUP_OFF_BY_ONE, MODEL_SSP, true, "a push was applied twice");
}

static void sim_catches_a_planted_acknowledgement_before_the_work(void **state)
{
    (void)state;
    check_mutation(SIM_ACKNOWLEDGE_EARLY, MODEL_ASYNC, true, "was told that push");
}

static void sim_catches_a_planted_ssp_bound_that_is_off_by_one(void **state)
{
    (void)state;
    check_mutation(SIM_SSP_OFF_BY_ONE, MODEL_SSP, false, "the bound is");
}

static void sim_catches_a_planted_decision_from_local_numbers(void **state)
{
    (void)state;
    check_mutation(SIM_LOCAL_DECISION, MODEL_DECIDE, false, "differs from the reference");
}

static void sim_catches_a_planted_commit_on_some_shards_only(void **state)
{
    (void)state;
    check_mutation(SIM_COMMIT_ON_SOME, MODEL_DECIDE, false, "was told that push");
}

static void sim_catches_a_planted_loss_of_a_contribution(void **state)
{
    (void)state;
    check_mutation(SIM_LOSE_CONTRIBUTION, MODEL_EAGER, false, "differs from the reference");
}

static void sim_catches_a_planted_snapshot_of_another_step(void **state)
{
    (void)state;
    check_mutation(SIM_SNAPSHOT_OF_NEXT, MODEL_DECIDE, false, "the snapshot of step");
}

/* ---- inside them ----------------------------------------------------------------------------- */
static const char *const mutation_text[] = {"",
#define MUTATION_TEXT(name, text) text,
                                            MUTATION_ROWS(MUTATION_TEXT)
                                                MUTATION_BACKED_ROWS(MUTATION_TEXT)
#undef MUTATION_TEXT
};

static const char *const mutation_name[] = {"NONE",
#define MUTATION_NAME(name, text) #name,
                                            MUTATION_ROWS(MUTATION_NAME)
                                                MUTATION_BACKED_ROWS(MUTATION_NAME)
#undef MUTATION_NAME
};

static void begin_anew(sim_plan *p)
{
    p->n_events      = 0;
    p->crash_at_keep = 0;
    p->data = p->control = p->replica = (sim_trouble){0};
    p->heal_ms                        = 60000;
    p->task.steps                     = 60;
    p->think_ms                       = 50;
    p->slow_ms                        = 0;
}

static void kill(sim_plan *p, uint32_t server, uint64_t at)
{
    sim_plan_add(p, (sim_event){.what     = SIM_CRASH,
                                .role     = SIM_SERVER,
                                .rank     = server,
                                .from_ms  = at,
                                .until_ms = at + 3000});
}

/* One shard, and a copy that receives everything late: its primary dies in between. */
static void narrow_window(sim_plan *p, uint64_t *chance)
{
    begin_anew(p);
    p->task.mode        = MODEL_DECIDE;
    p->verbs            = false;
    p->tensors          = 1;
    p->servers          = 2;
    p->servers_max      = 0;
    p->shards           = 1;
    p->replicas         = 1;
    p->task.workers     = 1;
    p->workers_max      = 0;
    p->slow_rank        = 0;
    p->replica.delay_ms = 100;
    kill(p, 0, draw_between(chance, 500, 3000));
}

/* The second dies while a third is being filled. */
static void lose_both(sim_plan *p, uint64_t *chance)
{
    begin_anew(p);
    p->servers          = 3;
    p->servers_max      = 0;
    p->replicas         = 1;
    p->replica.delay_ms = 100;
    const uint64_t at   = draw_between(chance, 500, 2000);
    kill(p, 0, at);
    kill(p, 1, at + draw_between(chance, 900, 1300));
}

/* A primary that is given up, and returns to others that have gone on. */
static void isolate(sim_plan *p, uint64_t *chance)
{
    begin_anew(p);
    p->servers     = 4;
    p->servers_max = 0;
    p->replicas    = 2;
    p->lease_ms    = 2000;
    sim_event e    = {.what = (sim_what)draw_between(chance, SIM_CUT_OFF, SIM_STALL),
                      .role = SIM_SERVER,
                      .rank = (uint32_t)draw_below(chance, 4)};
    e.from_ms      = draw_between(chance, 500, 2000);
    e.until_ms     = e.from_ms + draw_between(chance, 1000, 4000);
    sim_plan_add(p, e);
    p->data.delay_ms = 100;
}

/* A connection to the scheduler goes silent, and every worker is needed. */
static void swallow(sim_plan *p, uint64_t *chance)
{
    begin_anew(p);
    p->lease_ms       = 2000;
    p->on_worker_loss = LOSS_FAIL;
    sim_plan_add(p, (sim_event){.what    = SIM_SWALLOW,
                                .role    = SIM_WORKER,
                                .rank    = (uint32_t)draw_below(chance, p->task.workers),
                                .from_ms = draw_between(chance, 500, 2500)});
}

/* The scheduler is away for longer than a connection may be; what: whether it still knows the job after its restart. */
static void lose_scheduler(sim_plan *p, uint64_t *chance, sim_what what)
{
    begin_anew(p);
    const uint64_t at = draw_between(chance, 500, 2500);
    sim_plan_add(p, (sim_event){.what     = what,
                                .role     = SIM_SCHEDULER,
                                .from_ms  = at,
                                .until_ms = at + draw_between(chance, 1500, 5000)});
}

/* Workers without servers, sealed in the middle of short steps by a scheduler that returns while all of them live. */
static sim_plan quick_peers(uint64_t seed, uint64_t *chance)
{
    sim_plan p = sim_plan_peers(seed);
    lose_scheduler(&p, chance, SIM_CRASH);
    p.control    = (sim_trouble){.delay_ms = 150};
    p.task.steps = 80;
    p.think_ms   = 20;
    return p;
}

/* Connections to the scheduler break again and again while servers die. */
static void lose_control(sim_plan *p, uint64_t *chance)
{
    begin_anew(p);
    p->servers     = 3;
    p->servers_max = 0;
    p->replicas    = 1;
    p->lease_ms    = 10000;
    p->control     = (sim_trouble){.delay_ms = 100, .break_ms = 30};
    kill(p, 0, draw_between(chance, 500, 3000));
}

/* Lively clusters that draw the conditions of this bug more often. */
static sim_plan plan_for(int mutation, uint64_t seed)
{
    uint64_t chance = draw_mix(seed * 31 + (uint64_t)mutation);
    if (mutation == MUTATION_SEAL_NOT_AWAITED) return sim_plan_peers(seed);
    if (mutation == MUTATION_LEAST_STEP_SETTLED) return quick_peers(seed, &chance);
    if (mutation == MUTATION_READY_NOT_AWAITED) return sim_plan_apart(seed);
    sim_plan p = sim_plan_lively(seed);
    if (p.replicas == 0) p.replicas = 1;
    if (draw_chance(&chance, 50)) p.task.steps = 40;
    sim_plan_add(&p, (sim_event){.what     = SIM_CRASH,
                                 .role     = SIM_SERVER,
                                 .rank     = (uint32_t)draw_below(&chance, p.servers),
                                 .from_ms  = draw_between(&chance, 300, 3000),
                                 .until_ms = 4000});
    p.rows = mutation == MUTATION_ROWS_NOT_COUNTED || mutation == MUTATION_ROWS_LEFT_BEHIND;
    switch (mutation) {
    case MUTATION_ROWS_LEFT_BEHIND: /* who was filled becomes primary */
        p.servers     = 2;
        p.servers_max = 0;
        p.replicas    = 1;
        p.task.steps  = 60;
        p.event[0]    = (sim_event){SIM_CRASH, SIM_SERVER, 0, 500, 1000, 0, SIM_NOBODY};
        p.n_events    = 1;
        sim_plan_add(&p, (sim_event){SIM_CRASH, SIM_SERVER, 1, 5000, 6000, 0, SIM_NOBODY});
        break;
    case MUTATION_EPOCH_BEFORE_KEEP:
        lose_both(&p, &chance);
        p.replica.delay_ms = 0;
        p.event[1].from_ms += draw_between(&chance, 0, 6000);
        p.event[1].until_ms += 6000;
        p.crash_at_keep = (uint32_t)draw_between(&chance, 3, 7);
        p.keep_is_lost  = true;
        break;
    case MUTATION_DECISION_IGNORED_AT_INSTALL:
        narrow_window(&p, &chance);
        p.tensors        = 6;
        p.servers        = 3;
        p.task.workers   = 3;
        p.on_worker_loss = LOSS_CONTINUE;
        p.workers_min    = 1;
        sim_plan_add(&p, p.event[0]); /* and a worker with it: uncommitted state is dropped */
        p.event[1].role = SIM_WORKER;
        p.event[1].rank = 2;
        break;
    case MUTATION_MEMBERS_KEEP_STAGING:
    case MUTATION_DECISION_OF_OTHER_STEP:
        p.task.mode = MODEL_DECIDE;
        p.verbs     = false;
        break;
    case MUTATION_LOG_OUT_OF_ORDER:
    case MUTATION_RESEND_FROM_NEXT:
        p.replica = (sim_trouble){.drop = 10, .reorder = 30, .delay_ms = 30, .break_ms = 300};
        p.heal_ms = 20000;
        /* Else a copy that waits for the gap to close is suspected, and filled again. */
        if (mutation == MUTATION_RESEND_FROM_NEXT) p.lease_ms = 3600000;
        break;
    case MUTATION_RENEWAL_LOST: swallow(&p, &chance); break;
    case MUTATION_STALE_INCARNATION:
        lose_scheduler(&p, &chance, SIM_FORGET);
        p.has_state         = false; /* so that it does not ask them for their number */
        p.event[0].until_ms = p.event[0].from_ms + draw_between(&chance, 100, 800);
        break;
    case MUTATION_GRACE_NOT_GRANTED: lose_scheduler(&p, &chance, SIM_CRASH); break;
    case MUTATION_SEAL_FORGOTTEN: lose_control(&p, &chance); break;
    case MUTATION_COMMIT_NOT_GATED: narrow_window(&p, &chance); break;
    case MUTATION_LEARNER_PROMOTED: lose_both(&p, &chance); break;
    case MUTATION_NO_FENCE: isolate(&p, &chance); break;
    case MUTATION_NO_RESERVED_CREDIT:
        p.task.mode      = MODEL_DECIDE;
        p.verbs          = false;
        p.park_bytes_max = 1;
        break;
    case MUTATION_NUMBER_NOT_COMPARED: sim_plan_share(&p, &chance); break;
    case MUTATION_SNAPSHOT_DROPPED_BY_PART:
        p.snapshot_every = 1;
        p.tensors        = 6;
        break;
    default: break;
    }
    if (mutation == MUTATION_MEMBERS_KEEP_STAGING) {
        p.on_worker_loss = LOSS_CONTINUE;
        p.workers_min    = 1;
        if (p.task.workers == 1) p.task.workers = 2;
        sim_plan_add(&p, (sim_event){.what    = SIM_CRASH,
                                     .role    = SIM_WORKER,
                                     .rank    = (uint32_t)draw_below(&chance, p.task.workers),
                                     .from_ms = draw_between(&chance, 300, 3000)});
    }
    return p;
}

/* Whether a run of this plan fails, with the bug or without it. */
static bool is_wrong(int mutation, uint64_t seed, bool is_mutated, char *how, size_t size)
{
    sim_plan p         = plan_for(mutation, seed);
    p.planted          = is_mutated ? mutation : MUTATION_NONE;
    p.trace            = runs_is_replay();
    const sim_result r = sim_run(&p);
    snprintf(how, size, "%.110s", r.wrong);
    return r.wrong[0] != '\0';
}

static void show(int mutation, uint64_t seed)
{
    char text[1400];
    const sim_plan p = plan_for(mutation, seed);
    sim_plan_describe(&p, text, sizeof text);
    fprintf(stderr, "replay:  SIM_SEED=%llu SIM_MUTATION=%s build/tests/sim_mutation_test\n  %s\n",
            (unsigned long long)seed, mutation_name[mutation], text);
}

/* The number of the first seed that finds it; 0: none does. */
static uint64_t hunt(int mutation, uint64_t most, char *how, size_t size)
{
    for (uint64_t seed = 1; seed <= most; seed++) {
        char sound[128];
        if (!is_wrong(mutation, seed, true, how, size)) continue;
        if (!is_wrong(mutation, seed, false, sound, sizeof sound)) return seed;
        show(mutation, seed);
        fail_msg("seed %llu of %s is wrong without the bug: %s", (unsigned long long)seed,
                 mutation_name[mutation], sound);
    }
    return 0;
}

static void sim_catches_every_bug_that_is_planted_inside_the_layers(void **state)
{
    (void)state;
    char how[128];
    uint32_t missed     = 0;
    const uint64_t most = runs_seeds_of(SEEDS_MAX);
    for (int mutation = MUTATION_NONE + 1; mutation < MUTATION_NO_INCARNATION_CHECK; mutation++) {
        const uint64_t seed = hunt(mutation, most, how, sizeof how);
        fprintf(stderr, "%-28s %5llu  %s\n", mutation_name[mutation], (unsigned long long)seed,
                seed > 0 ? how : mutation_text[mutation]);
        missed += seed == 0;
    }
    assert_int_equal(missed, 0);
}

static void sim_rules_that_another_stands_behind_can_be_missed(void **state)
{
    (void)state;
    char how[128];
    for (int mutation = MUTATION_NO_INCARNATION_CHECK; mutation < MUTATION_IDS; mutation++)
        for (uint64_t seed = 1; seed <= 30; seed++)
            if (is_wrong(mutation, seed, true, how, sizeof how)) {
                show(mutation, seed);
                fail_msg("%s does harm: %s", mutation_name[mutation], how);
            }
    assert_int_equal(MUTATION_IDS - MUTATION_NO_INCARNATION_CHECK, 3);
}

/* SIM_SEED and SIM_MUTATION in the environment: only this run, with a trace.  SIM_SOUND: without the bug. */
static int replay(const char *name)
{
    char how[128];
    for (int mutation = MUTATION_NONE + 1; mutation < MUTATION_IDS; mutation++)
        if (strcmp(name, mutation_name[mutation]) == 0) {
            show(mutation, runs_seed());
            return is_wrong(mutation, runs_seed(), getenv("SIM_SOUND") == NULL, how, sizeof how);
        }
    fprintf(stderr, "there is no bug named %s in common/base/mutation.h\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sim_catches_a_planted_dedup_that_is_off_by_one),
        cmocka_unit_test(sim_catches_a_planted_acknowledgement_before_the_work),
        cmocka_unit_test(sim_catches_a_planted_ssp_bound_that_is_off_by_one),
        cmocka_unit_test(sim_catches_a_planted_decision_from_local_numbers),
        cmocka_unit_test(sim_catches_a_planted_commit_on_some_shards_only),
        cmocka_unit_test(sim_catches_a_planted_loss_of_a_contribution),
        cmocka_unit_test(sim_catches_a_planted_snapshot_of_another_step),
        cmocka_unit_test(sim_rules_that_another_stands_behind_can_be_missed),
        cmocka_unit_test(sim_catches_every_bug_that_is_planted_inside_the_layers),
    };
    if (getenv("SIM_MUTATION") != NULL) return replay(getenv("SIM_MUTATION"));
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("plant", tests, NULL, NULL);
}
