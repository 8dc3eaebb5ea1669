/* scheduler_epoch_test.c - copies of shards while servers die and come back, epoch by epoch. */
#include "tests/support/scheduler_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* ---- copies ---------------------------------------------------------------------------------- */
static void a_plan_lists_the_place_of_every_copy(void **state)
{
    (void)state;
    scene *r                 = scene_train(2, 3, "replicas=1", NULL);
    const wire_control *plan = scene_must(r, SCENE_SERVER(0), WIRE_PLAN);
    assert_int_equal(plan->u.plan.n_shards, 6);
    assert_int_equal(plan->u.plan.n_replicas, 12);
    assert_int_equal(plan->u.plan.ranks_max, 2);
    assert_int_equal(plan->u.plan.epoch, 1);
    for (uint32_t i = 0; i < 12; i += 2) {
        const wire_replica *lead = &plan->u.plan.replica[i], *copy = lead + 1;
        assert_int_equal(lead->role, WIRE_PRIMARY);
        assert_int_equal(copy->role, WIRE_BACKUP);
        assert_int_equal(copy->shard, lead->shard);
        assert_int_not_equal(copy->server, lead->server);
    }
    scene_drop(r);
}

static void a_server_may_die_if_its_shards_have_copies_elsewhere(void **state)
{
    (void)state;
    scene *r = scene_train(2, 3, "replicas=1", NULL);
    scene_forget(r);
    scene_server_dies(r, 1);
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    assert_int_equal(scene_count(r, WIRE_SEAL), 2);
    assert_int_equal(scene_must(r, SCENE_SERVER(0), WIRE_SEAL)->u.seal.epoch, 2);

    scene_seals(r, 0, 5);
    assert_int_equal(scene_count(r, WIRE_EPOCH), 0); /* the other has not confirmed it */
    scene_seals(r, 2, 5);
    const wire_control *e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    scene_must(r, SCENE_WORKER(1), WIRE_EPOCH);
    scene_must(r, SCENE_SERVER(2), WIRE_EPOCH);
    assert_null(scene_last(r, SCENE_SERVER(1), WIRE_EPOCH));
    assert_int_equal(e->u.epoch.epoch, 2);
    assert_int_equal(e->u.epoch.step, 5);
    assert_true(e->u.epoch.has_decision);
    assert_false(e->u.epoch.members_changed);
    assert_int_equal(e->u.epoch.n_servers, 2);
    for (uint32_t shard = 0; shard < 6; shard++) assert_int_not_equal(scene_primary(e, shard), 1);
    assert_non_null(
        strstr(r->logged, "server 1 (devbox) is gone; other servers took over 2 shards"));
    scene_drop(r);
}

static void the_death_of_a_server_with_the_only_copy_ends_the_job(void **state)
{
    (void)state;
    scene *r = scene_train(2, 2, NULL, NULL);
    scene_forget(r);
    scene_server_dies(r, 1);
    assert_int_equal(scene_count(r, WIRE_SEAL), 0);
    assert_non_null(strstr(scene_must(r, SCENE_WORKER(0), WIRE_VERDICT)->u.verdict.text,
                           "server 1 (devbox) is gone: it held '"));
    scene_drop(r);
}

static void a_server_that_dies_while_others_seal_is_left_out(void **state)
{
    (void)state;
    scene *r = scene_train(1, 4, "replicas=2", NULL);
    scene_server_dies(r, 1);
    scene_seals(r, 0, 3);
    scene_seals(r, 2, 3);
    scene_forget(r);
    scene_server_dies(r, 3); /* the last one that was missing */
    const wire_control *e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.n_servers, 2);
    for (uint32_t shard = 0; shard < 8; shard++)
        assert_true(scene_primary(e, shard) == 0 || scene_primary(e, shard) == 2);
    scene_drop(r);
}

static void the_last_copy_dies_with_its_server(void **state)
{
    (void)state;
    scene *r = scene_train(1, 3, "replicas=1", NULL);
    scene_server_dies(r, 1);
    scene_forget(r);
    scene_server_dies(r, 2);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_VERDICT)->u.verdict.rank, 2);
    scene_drop(r);
}

static void a_server_that_does_not_seal_is_declared_dead(void **state)
{
    (void)state;
    scene *r = scene_train(1, 4, "replicas=2", "lease_ms=2000", NULL);
    scene_server_dies(r, 1);
    scene_seals(r, 0, 3);
    scene_seals(r, 2, 3);
    scene_forget(r);
    for (int i = 0; i < 11; i++) { /* it beats and does nothing else */
        scene_beat_all(r, 1);
        scene_pass(r, 1000);
    }
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_EPOCH)->u.epoch.n_servers, 2);
    assert_int_equal(scene_must(r, SCENE_SERVER(3), WIRE_VERDICT)->u.verdict.status,
                     PEN_NOT_A_MEMBER);
    assert_null(scene_last(r, SCENE_WORKER(0), WIRE_VERDICT));
    scene_drop(r);
}

static void
an_epoch_does_not_begin_with_a_server_whose_connection_broke_after_it_sealed(void **state)
{
    (void)state;
    scene *r = scene_train(1, 3, "replicas=2", NULL);
    scene_server_dies(r, 2);
    scene_forget(r);
    scene_seals(r, 0, 5);
    scheduler_core_peer_down(r->core, SCENE_SERVER(0), r->now);
    scene_seals(r, 1, 5);
    assert_null(scene_last(r, SCENE_SERVER(1), WIRE_EPOCH));
    scene_pass(r, 5000); /* it is declared dead */
    const wire_control *e = scene_must(r, SCENE_SERVER(1), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.n_servers, 1);
    for (uint32_t shard = 0; shard < 3; shard++) assert_int_equal(scene_primary(e, shard), 1);
    scene_drop(r);

    r = scene_train(1, 3, "replicas=2", NULL);
    scene_server_dies(r, 2);
    scene_seals(r, 0, 5);
    scheduler_core_peer_down(r->core, SCENE_SERVER(0), r->now);
    scene_seals(r, 1, 5);
    scene_forget(r);
    scene_comes_back(r, SCENE_SERVER(0));
    scene_must(r, SCENE_SERVER(0), WIRE_SEAL); /* it is asked again */
    scene_seals(r, 0, 5);
    assert_int_equal(scene_must(r, SCENE_SERVER(0), WIRE_EPOCH)->u.epoch.n_servers, 2);
    scene_drop(r);
}

static void reports_that_contradict_each_other_end_the_job(void **state)
{
    (void)state;
    scene *r = scene_train(1, 3, "replicas=1", NULL);
    scene_server_dies(r, 1);
    scene_seals(r, 0, 5);
    r->all_prepared = false;
    scene_seals(r, 2, 4);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_VERDICT)->u.verdict.status, PEN_INTERNAL);
    scene_drop(r);
}

static void a_server_that_comes_back_is_filled_and_then_serves_its_share(void **state)
{
    (void)state;
    scene *r = scene_train(1, 3, "replicas=1", NULL);
    scene_server_dies(r, 1);
    scene_seals_all(r, 5);
    scene_forget(r);

    scene_server_comes(r, 1, 777); /* a new process on a new connection */
    const wire_control *e = scene_must(r, SCENE_SERVER(1), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.epoch, 2);
    const wire_control *plan = scene_must(r, SCENE_SERVER(1), WIRE_PLAN);
    assert_int_equal(plan->u.plan.restore, -1);
    assert_int_equal(plan->u.plan.model.n_tensors, 3);
    for (uint32_t i = 0; i < plan->u.plan.n_replicas; i++)
        assert_int_not_equal(plan->u.plan.replica[i].server, 1);
    assert_int_equal(scene_count(r, WIRE_SEAL), 0); /* nothing waits for it yet */

    scene_ready(r, 1);
    assert_int_equal(scene_count(r, WIRE_SEAL), 2);
    scene_seals_all(r, 6);
    e = scene_must(r, SCENE_SERVER(1), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.epoch, 3);
    assert_int_equal(e->u.epoch.n_servers, 3);
    const uint32_t learners = scene_count_role(e, 1, WIRE_LEARNER);
    assert_int_equal(learners, 4); /* 12 copies on 3 servers */
    assert_int_equal(scene_count_role(e, 1, 0), learners);

    for (int32_t s = 0; s < 3; s++) scene_caught_up(r, e, s);
    scene_forget(r);
    scene_pass(r, 50);
    assert_int_equal(scene_count(r, WIRE_SEAL), 3);
    scene_seals_all(r, 7);
    e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.epoch, 4);
    for (int32_t s = 0; s < 3; s++) {
        assert_int_equal(scene_count_role(e, s, WIRE_PRIMARY), 2);
        assert_int_equal(scene_count_role(e, s, WIRE_BACKUP), 2);
    }
    scene_pass(r, 1000);
    assert_int_equal(scene_count(r, WIRE_SEAL), 3); /* no further epoch follows */
    scene_drop(r);
}

static void a_process_that_replaces_an_absent_one_confirms_its_death(void **state)
{
    (void)state;
    scene *r = scene_train(2, 3, "replicas=1", "on_worker_loss=wait", NULL);
    scheduler_core_peer_down(r->core, SCENE_SERVER(1), r->now);
    scheduler_core_peer_down(r->core, SCENE_WORKER(1), r->now);
    scene_forget(r);
    scene_server_comes(r, 1, 777);
    scene_must(r, SCENE_SERVER(1), WIRE_WELCOME);
    assert_int_equal(scene_count(r, WIRE_SEAL), 2);
    scene_worker_comes(r, 1, 778);
    scene_must(r, SCENE_WORKER(1), WIRE_WELCOME);
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_drop(r);

    r = scene_train(2, 2, NULL,
                    NULL); /* where a death ends the job, a second process is just an error */
    scheduler_core_peer_down(r->core, SCENE_WORKER(1), r->now);
    scene_forget(r);
    scene_worker_comes(r, 1, 778);
    assert_non_null(strstr(scene_must(r, SCENE_WORKER(1), WIRE_VERDICT)->u.verdict.text,
                           "rank 1 of the workers is taken by process"));
    assert_int_equal(scene_count(r, WIRE_VERDICT), 1);
    scene_drop(r);
}

/* The newcomer uses another connection: that of the dead process may still look alive. */
static void a_process_that_joins_before_the_report_of_a_death_is_admitted_after_it(void **state)
{
    (void)state;
    const uint32_t newcomer = SCENE_SERVER(9);
    scene *r                = scene_train(2, 2, "replicas=1", NULL);
    wire_control c          = scene_hello(PEN_SERVER, 1, 0, 0, 777);
    scene_forget(r);
    scene_say(r, newcomer, &c);
    assert_null(scene_last(r, newcomer, WIRE_VERDICT));
    assert_null(scene_last(r, newcomer, WIRE_WELCOME));
    scheduler_core_peer_down(r->core, SCENE_SERVER(1), r->now);
    scene_say(r, newcomer, &c);
    assert_non_null(scene_last(r, newcomer, WIRE_WELCOME));
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_drop(r);

    r = scene_train(2, 2, "replicas=1", NULL);
    scene_forget(r);
    scene_say(r, newcomer, &c);
    scene_pass(r, 1000); /* all live members beat */
    scene_say(r, newcomer, &c);
    assert_non_null(strstr(scene_must(r, newcomer, WIRE_VERDICT)->u.verdict.text,
                           "rank 1 of the servers is taken by process"));
    scene_drop(r);
}

static void only_a_primary_may_report_on_its_copies(void **state)
{
    (void)state;
    scene *r                 = scene_train(1, 3, "replicas=1", NULL);
    const wire_control *plan = scene_must(r, SCENE_SERVER(0), WIRE_PLAN);
    const int32_t lead = scene_primary(plan, 0), copy = scene_backup(plan, 0),
                  other = 3 - lead - copy;
    scene_forget(r);
    wire_control c        = {.kind = WIRE_SUSPECT};
    c.u.suspect.shard     = 0;
    c.u.suspect.server    = copy;
    c.u.suspect.waited_ms = 10000;
    scene_say(r, SCENE_SERVER(other), &c);
    scene_say(r, SCENE_SERVER(copy), &c);
    assert_int_equal(scene_count(r, WIRE_SEAL), 0);
    scene_say(r, SCENE_SERVER(lead), &c);
    assert_int_equal(scene_count(r, WIRE_SEAL), 3);
    scene_seals_all(r, 3);
    const wire_control *e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_int_equal(scene_role(e, 0, copy), WIRE_LEARNER);
    assert_int_equal(scene_role(e, 0, lead), WIRE_PRIMARY);
    scene_drop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_lists_the_place_of_every_copy),
        cmocka_unit_test(a_server_may_die_if_its_shards_have_copies_elsewhere),
        cmocka_unit_test(the_death_of_a_server_with_the_only_copy_ends_the_job),
        cmocka_unit_test(a_server_that_dies_while_others_seal_is_left_out),
        cmocka_unit_test(the_last_copy_dies_with_its_server),
        cmocka_unit_test(a_server_that_does_not_seal_is_declared_dead),
        cmocka_unit_test(
            an_epoch_does_not_begin_with_a_server_whose_connection_broke_after_it_sealed),
        cmocka_unit_test(reports_that_contradict_each_other_end_the_job),
        cmocka_unit_test(a_server_that_comes_back_is_filled_and_then_serves_its_share),
        cmocka_unit_test(a_process_that_replaces_an_absent_one_confirms_its_death),
        cmocka_unit_test(a_process_that_joins_before_the_report_of_a_death_is_admitted_after_it),
        cmocka_unit_test(only_a_primary_may_report_on_its_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
