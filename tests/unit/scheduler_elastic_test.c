/* scheduler_elastic_test.c - workers die, leave and join; a launcher asks for more members or fewer. */
#include "tests/support/scheduler_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* ---- workers --------------------------------------------------------------------------------- */
static void with_continue_the_next_epoch_is_without_the_dead(void **state)
{
    (void)state;
    scene *r = scene_train(3, 1, "on_worker_loss=continue", NULL);
    scene_forget(r);
    scene_worker_dies(r, 1);
    assert_int_equal(scene_count(r, WIRE_LOST), 2);
    scene_seals_all(r, 9);
    const wire_control *e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.n_workers, 2);
    assert_int_equal(e->u.epoch.worker[1].rank, 2);
    assert_true(e->u.epoch.members_changed);
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_drop(r);
}

static void says_where_values_are(scene *r, bool lacks_values)
{
    wire_control c = {
        .kind      = WIRE_MISSING,
        .u.missing = {.rank = 0, .step = -1, .tensor = "", .lacks_values = lacks_values}};
    scene_say(r, SCENE_SERVER(0), &c);
}

static void with_continue_rank_0_may_die_once_servers_have_its_initial_values(void **state)
{
    (void)state;
    scene *r = scene_train(3, 1, "on_worker_loss=continue", NULL);
    scene_forget(r);
    scene_worker_dies(r, 0);
    assert_int_equal(scene_must(r, SCENE_SERVER(0), WIRE_ENQUIRE)->u.enquire.rank, 0);
    says_where_values_are(r, false);
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_drop(r);
}

static void with_continue_a_job_whose_initial_values_died_with_rank_0_fails(void **state)
{
    (void)state;
    scene *r = scene_train(3, 1, "on_worker_loss=continue", NULL);
    says_where_values_are(r, true); /* no member has died */
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_worker_dies(r, 0);
    says_where_values_are(r, true);
    const pen_error *why = &scene_must(r, SCENE_WORKER(2), WIRE_VERDICT)->u.verdict;
    assert_int_equal(why->status, PEN_PEER_LOST);
    assert_non_null(strstr(why->text, "worker 0 ("));
    assert_non_null(strstr(why->text, "; the first values were not on all servers, and no other "
                                      "rank has them: start the job again"));
    scene_drop(r);
}

static void with_fewer_workers_than_it_must_have_a_job_fails(void **state)
{
    (void)state;
    scene *r = scene_train(3, 1, "on_worker_loss=continue", "workers_min=2", NULL);
    scene_worker_dies(r, 1);
    scene_seals_all(r, 9);
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_worker_dies(r, 0);
    assert_non_null(strstr(scene_must(r, SCENE_WORKER(2), WIRE_VERDICT)->u.verdict.text,
                           "1 worker is left and the job needs 2; the first one lost: worker 1"));
    scene_drop(r);
}

static void with_wait_nothing_changes_until_the_worker_is_back(void **state)
{
    (void)state;
    scene *r = scene_train(2, 2, "on_worker_loss=wait", NULL);
    scene_forget(r);
    const uint64_t then = r->incarnation[SCENE_WORKER(1)];
    scene_worker_dies(r, 1);
    scene_pass(r, 5000);
    assert_int_equal(scene_count(r, WIRE_SEAL) + scene_count(r, WIRE_VERDICT), 0);
    /* A collective would wait for ever: the one that comes is another process. */
    const wire_control *lost = scene_must(r, SCENE_WORKER(0), WIRE_LOST);
    assert_int_equal(lost->u.lost.rank, 1);
    assert_int_equal(lost->u.lost.incarnation, then);
    assert_non_null(strstr(lost->u.lost.why.text, "pen_step_scalar()"));

    scene_forget(r);
    scene_worker_comes(r, 1, 888);
    assert_int_not_equal(r->incarnation[SCENE_WORKER(1)], then);
    assert_int_equal(scene_must(r, SCENE_WORKER(1), WIRE_EPOCH)->u.epoch.epoch, 1);
    assert_null(scene_last(r, SCENE_WORKER(1), WIRE_PLAN)); /* it has not registered its model */
    scene_registers(r, 1, false);
    scene_must(r, SCENE_WORKER(1), WIRE_PLAN);
    assert_null(scene_last(r, SCENE_WORKER(1), WIRE_COMMITTED));
    assert_int_equal(scene_count(r, WIRE_SEAL), 2);
    scene_seals_all(r, 17);
    const wire_control *e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.n_workers, 2);
    assert_true(e->u.epoch.members_changed);
    assert_int_equal(e->u.epoch.worker[1].incarnation, r->incarnation[SCENE_WORKER(1)]);
    const wire_control *done = scene_must(r, SCENE_WORKER(1), WIRE_COMMITTED);
    assert_int_equal(done->u.committed.step, 17);
    assert_int_equal(done->u.committed.applied, 17);
    assert_null(scene_last(r, SCENE_WORKER(0), WIRE_COMMITTED));
    scene_pass(r, 400000);
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_drop(r);
}

static void an_awaited_worker_stays_a_member_when_a_server_dies_with_it(void **state)
{
    (void)state;
    scene *r            = scene_train(2, 3, "replicas=1", "on_worker_loss=wait", NULL);
    const uint64_t then = r->incarnation[SCENE_WORKER(1)];
    scene_worker_dies(r, 1);
    scene_server_dies(r, 1);
    scene_seals_all(r, 5);
    const wire_control *e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.n_workers, 2);
    assert_true(e->u.epoch.worker[1].incarnation == then);
    assert_false(e->u.epoch.members_changed);

    scene_worker_comes(r, 1, 888); /* and while it has come but is not ready */
    scene_forget(r);
    scene_server_comes(r, 1, 777);
    scene_ready(r, 1);
    scene_seals_all(r, 5);
    e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_true(e->u.epoch.worker[1].incarnation == then);
    assert_false(e->u.epoch.members_changed);

    scene_registers(r, 1, false);
    scene_seals_all(r, 5);
    e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_true(e->u.epoch.worker[1].incarnation == r->incarnation[SCENE_WORKER(1)]);
    assert_true(e->u.epoch.members_changed);
    scene_drop(r);
}

static void a_newcomer_that_dies_before_it_is_ready_leaves_its_place_to_the_next(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "on_worker_loss=wait", NULL);
    scene_worker_dies(r, 1);
    scene_worker_comes(r, 1, 888);
    scheduler_core_peer_down(r->core, SCENE_WORKER(1), r->now);
    scene_forget(r);
    scene_worker_comes(r, 1, 889);
    assert_null(scene_last(r, SCENE_WORKER(1), WIRE_VERDICT));
    scene_must(r, SCENE_WORKER(1), WIRE_WELCOME);
    scene_registers(r, 1, false);
    scene_seals_all(r, 17);
    const wire_control *e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_true(e->u.epoch.worker[1].incarnation == r->incarnation[SCENE_WORKER(1)]);
    scene_pass(r, 400000);
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_drop(r);
}

static void a_job_of_one_worker_waits_on_when_the_newcomer_dies_before_it_is_ready(void **state)
{
    (void)state;
    scene *r = scene_train(1, 1, "on_worker_loss=wait", NULL);
    scene_guest_comes(r, WIRE_OBSERVER, SCENE_OBSERVER);
    scene_worker_dies(r, 0);
    scene_forget(r);
    scene_worker_comes(r, 0, 888);
    scheduler_core_peer_down(r->core, SCENE_OBSERVER, r->now); /* does not affect the job */
    scheduler_core_peer_down(r->core, SCENE_WORKER(0), r->now);
    assert_int_equal(scene_count(r, WIRE_STOP), 0);
    scene_worker_comes(r, 0, 889);
    scene_registers(r, 0, false);
    scene_seals_all(r, 17);
    scene_must(r, SCENE_WORKER(0), WIRE_COMMITTED);
    scene_drop(r);
}

static void with_wait_the_job_fails_after_wait_ms(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "on_worker_loss=wait", "wait_ms=60000", NULL);
    scene_worker_dies(r, 1);
    scene_forget(r);
    scene_pass(r, 59000);
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_pass(r, 1000);
    const char *text = scene_must(r, SCENE_WORKER(0), WIRE_VERDICT)->u.verdict.text;
    assert_non_null(strstr(text, "worker 1 (devbox) is gone"));
    assert_non_null(strstr(text, "; it has not come back within 60 s"));
    scene_drop(r);

    r = scene_train(2, 1, "on_worker_loss=wait", NULL);
    scene_exits(r, PEN_WORKER, 1, 9, "no restarts left");
    assert_non_null(strstr(scene_must(r, SCENE_WORKER(0), WIRE_VERDICT)->u.verdict.text,
                           "it is not started again"));
    scene_drop(r);
}

static void a_worker_with_another_model_cannot_join(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "on_worker_loss=wait", NULL);
    scene_worker_dies(r, 1);
    scene_forget(r);
    scene_worker_comes(r, 1, 888);
    scene_registers(r, 1, true);
    assert_int_equal(scene_must(r, SCENE_WORKER(1), WIRE_VERDICT)->u.verdict.status, PEN_MISMATCH);
    assert_null(scene_last(r, SCENE_WORKER(0), WIRE_VERDICT));
    assert_int_equal(scene_count(r, WIRE_SEAL), 0);
    scene_drop(r);
}

static void a_live_worker_that_was_declared_dead_is_sent_away(void **state)
{
    (void)state;
    scene *r            = scene_train(2, 1, "on_worker_loss=wait", NULL);
    const uint64_t then = r->incarnation[SCENE_WORKER(1)];
    scene_worker_dies(r, 1);
    scene_forget(r);
    wire_control c =
        scene_hello(PEN_WORKER, 1, 2, 1, 444); /* it sends another nonce and its former rank */
    scene_give(r, SCENE_WORKER(1), &c, then);
    assert_int_equal(scene_must(r, SCENE_WORKER(1), WIRE_VERDICT)->u.verdict.status,
                     PEN_NOT_A_MEMBER);
    scene_drop(r);
}

static void workers_may_join_and_leave_if_the_job_allows_it(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "workers_max=3", NULL);
    assert_int_equal(scene_must(r, SCENE_SERVER(0), WIRE_PLAN)->u.plan.ranks_max, 3);
    scene_forget(r);
    scene_worker_comes(r, 2, 21);
    scene_registers(r, 2, false);
    scene_seals_all(r, 4);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_EPOCH)->u.epoch.n_workers, 3);
    assert_int_equal(scene_must(r, SCENE_WORKER(2), WIRE_COMMITTED)->u.committed.step, 4);

    scene_forget(r);
    scene_worker_comes(r, 3, 22); /* one too many */
    scene_must(r, SCENE_WORKER(3), WIRE_VERDICT);

    scene_forget(r);
    scene_leaves(r, SCENE_WORKER(0));
    scene_pass(r, 200);
    scene_seals_all(r, 6);
    const wire_control *e = scene_must(r, SCENE_WORKER(1), WIRE_EPOCH);
    assert_int_equal(e->u.epoch.n_workers, 2);
    assert_int_equal(e->u.epoch.worker[0].rank, 1);
    assert_true(e->u.epoch.members_changed);
    scene_leaves(r, SCENE_WORKER(1));
    scene_leaves(r, SCENE_WORKER(2));
    scene_must(r, SCENE_SERVER(0), WIRE_STOP);
    scene_drop(r);
}

static void where_workers_are_fixed_one_that_leaves_changes_nothing(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, NULL, NULL);
    scene_forget(r);
    scene_leaves(r, SCENE_WORKER(0));
    scene_pass(r, 5000);
    assert_int_equal(scene_count(r, WIRE_SEAL), 0);
    scene_drop(r);
}

static void a_worker_that_leaves_before_its_admission_is_not_missed(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "workers_max=3", NULL);
    scene_worker_comes(r, 2, 21);
    scene_forget(r);
    scheduler_core_peer_down(r->core, SCENE_WORKER(2), r->now);
    scene_exits(r, PEN_WORKER, 2, 1, "");
    scene_pass(r, 5000);
    assert_int_equal(scene_count(r, WIRE_VERDICT) + scene_count(r, WIRE_SEAL), 0);
    scene_worker_comes(r, 2, 22);
    scene_must(r, SCENE_WORKER(2), WIRE_WELCOME);
    scene_drop(r);
}

static void a_worker_that_joins_while_the_last_one_leaves_is_refused(void **state)
{
    (void)state;
    scene *r = scene_train(1, 1, "workers_max=2", NULL);
    scene_worker_comes(r, 1, 21);
    scene_forget(r);
    scene_leaves(r, SCENE_WORKER(0));
    scene_must(r, SCENE_SERVER(0), WIRE_STOP);
    const wire_control *c = scene_must(r, SCENE_WORKER(1), WIRE_VERDICT);
    assert_int_equal(c->u.verdict.status, PEN_NOT_A_MEMBER);
    assert_non_null(strstr(c->u.verdict.text, "comes too late: all workers have left the job"));
    assert_null(scene_last(r, SCENE_SERVER(0), WIRE_VERDICT));
    scene_drop(r);
}

/* ---- more and fewer -------------------------------------------------------------------------- */
static const wire_control *resized(scene *r, wire_control *ask)
{
    scene_guest_comes(r, WIRE_OBSERVER, SCENE_OBSERVER);
    scene_forget(r);
    scene_say(r, SCENE_OBSERVER, ask);
    return scene_last(r, SCENE_OBSERVER, WIRE_RESIZED);
}

static wire_control scale_to(int32_t workers, int32_t servers)
{
    wire_control c    = {.kind = WIRE_SCALE};
    c.u.scale.workers = workers;
    c.u.scale.servers = servers;
    return c;
}

static void launchers_are_told_the_target_number_of_members(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "workers_max=4", "servers_max=2", NULL);
    scene_guest_comes(r, WIRE_LAUNCHER, SCENE_LAUNCHER);
    wire_control c = scale_to(4, -1);
    assert_int_equal(resized(r, &c)->u.resized.status, PEN_OK);
    const wire_control *relayed = scene_must(r, SCENE_LAUNCHER, WIRE_SCALE);
    assert_int_equal(relayed->u.scale.workers, 4);
    assert_int_equal(relayed->u.scale.servers, 1);
    assert_int_equal(scene_count(r, WIRE_STOP), 0);
    c = scale_to(1, -1);
    assert_int_equal(resized(r, &c)->u.resized.status, PEN_OK);
    scene_must(r, SCENE_WORKER(1), WIRE_STOP);
    assert_int_equal(scene_count(r, WIRE_STOP), 1);
    scene_drop(r);
}

static void impossible_sizes_are_answered_with_a_sentence(void **state)
{
    (void)state;
    const struct {
        int32_t workers, servers;
        const char *text;
    } cases[] = {
        {5, -1, "--workers must be between 1 and 4, got 5"},
        {0, -1, "--workers must be between 1 and 4, got 0"},
        {-1, 3,
         "--servers must be between 1 and 2, got 3; start the job with --servers MIN:MAX for more"},
    };
    scene *r = scene_train(2, 1, "workers_max=4", "servers_max=2", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wire_control c = scale_to(cases[i].workers, cases[i].servers);
        assert_string_equal(resized(r, &c)->u.resized.text, cases[i].text);
    }
    scene_drop(r);
    r              = scene_train(2, 1, NULL, NULL);
    wire_control c = scale_to(1, -1);
    assert_string_equal(
        resized(r, &c)->u.resized.text,
        "the job has a fixed number of workers; start it with --nproc-per-node MIN:MAX");
    c = (wire_control){.kind = WIRE_DRAIN, .u.drain.server = 0};
    assert_string_equal(
        resized(r, &c)->u.resized.text,
        "server 0 is the only one; start another first (penstock scale --servers 2)");
    c.u.drain.server = 7;
    assert_string_equal(resized(r, &c)->u.resized.text, "the job has no server 7");
    scene_drop(r);
}

static void a_drained_server_may_leave_once_it_holds_no_copy(void **state)
{
    (void)state;
    scene *r       = scene_train(1, 3, NULL, NULL);
    wire_control c = {.kind = WIRE_DRAIN, .u.drain.server = 1};
    assert_null(resized(r, &c));
    assert_int_equal(scene_count(r, WIRE_SEAL), 3);
    scene_seals_all(r, 2);
    const wire_control *e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_int_equal(scene_count_role(e, 1, WIRE_PRIMARY), 2);
    assert_int_equal(scene_count(r, WIRE_STOP), 0);
    scene_caught_up(r, e, 0);
    scene_caught_up(r, e, 2);
    scene_pass(r, 50);
    scene_seals_all(r, 3);
    e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_int_equal(scene_count_role(e, 1, 0), 0);
    assert_int_equal(scene_count_role(e, 0, WIRE_PRIMARY), 3);
    scene_must(r, SCENE_SERVER(1), WIRE_STOP);
    assert_int_equal(scene_must(r, SCENE_OBSERVER, WIRE_RESIZED)->u.resized.status, PEN_OK);
    scene_forget(r);
    scene_leaves(r, SCENE_SERVER(1));
    scene_exits(r, PEN_SERVER, 1, 0, "");
    scene_pass(r, 500);
    scene_seals_all(r, 4);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_EPOCH)->u.epoch.n_servers, 2);
    assert_int_equal(scene_count(r, WIRE_VERDICT), 0);
    scene_drop(r);
}

static void an_empty_server_that_leaves_instead_of_sealing_does_not_hold_up_the_others(void **state)
{
    (void)state;
    scene *r       = scene_train(2, 3, "on_worker_loss=continue", NULL);
    wire_control c = {.kind = WIRE_DRAIN, .u.drain.server = 1};
    assert_null(resized(r, &c));
    scene_seals_all(r, 2);
    const wire_control *e = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    scene_caught_up(r, e, 0);
    scene_caught_up(r, e, 2);
    scene_pass(r, 50);
    scene_seals_all(r, 3);
    scene_must(r, SCENE_SERVER(1), WIRE_STOP);
    scene_forget(r);
    scene_worker_dies(r, 1);
    scene_must(r, SCENE_SERVER(1), WIRE_SEAL);
    scene_seals(r, 0, 4);
    scene_seals(r, 2, 4);
    assert_int_equal(scene_count(r, WIRE_EPOCH), 0);
    scene_leaves(r, SCENE_SERVER(1));
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_EPOCH)->u.epoch.n_servers, 2);
    scene_drop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_continue_the_next_epoch_is_without_the_dead),
        cmocka_unit_test(with_continue_rank_0_may_die_once_servers_have_its_initial_values),
        cmocka_unit_test(with_continue_a_job_whose_initial_values_died_with_rank_0_fails),
        cmocka_unit_test(with_fewer_workers_than_it_must_have_a_job_fails),
        cmocka_unit_test(with_wait_nothing_changes_until_the_worker_is_back),
        cmocka_unit_test(an_awaited_worker_stays_a_member_when_a_server_dies_with_it),
        cmocka_unit_test(a_newcomer_that_dies_before_it_is_ready_leaves_its_place_to_the_next),
        cmocka_unit_test(a_job_of_one_worker_waits_on_when_the_newcomer_dies_before_it_is_ready),
        cmocka_unit_test(with_wait_the_job_fails_after_wait_ms),
        cmocka_unit_test(a_worker_with_another_model_cannot_join),
        cmocka_unit_test(a_live_worker_that_was_declared_dead_is_sent_away),
        cmocka_unit_test(workers_may_join_and_leave_if_the_job_allows_it),
        cmocka_unit_test(where_workers_are_fixed_one_that_leaves_changes_nothing),
        cmocka_unit_test(a_worker_that_leaves_before_its_admission_is_not_missed),
        cmocka_unit_test(a_worker_that_joins_while_the_last_one_leaves_is_refused),
        cmocka_unit_test(launchers_are_told_the_target_number_of_members),
        cmocka_unit_test(impossible_sizes_are_answered_with_a_sentence),
        cmocka_unit_test(a_drained_server_may_leave_once_it_holds_no_copy),
        cmocka_unit_test(
            an_empty_server_that_leaves_instead_of_sealing_does_not_hold_up_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
