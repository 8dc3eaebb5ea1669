/* scheduler_loss_test.c - jobs without servers: who is lost and who is left; manual clock, no network. */
#include "tests/unit/scheduler_alone.h"

/* ---- jobs without servers -------------------------------------------------------------------- */
static void a_job_without_servers_begins_when_all_workers_registered_the_same_model(void **state)
{
    (void)state;
    job *j = joined("on_worker_loss=fail");
    assert_int_equal(must(j, 3, WIRE_EPOCH)->n, WORKERS);
    assert_string_equal(must(j, 3, WIRE_EPOCH)->text, "tcp://devbox:2");
    for (int32_t w = 0; w < WORKERS - 1; w++) registers(j, w);
    assert_null(last(j, 0, WIRE_COMMITTED));
    registers(j, WORKERS - 1);
    for (uint32_t w = 0; w < WORKERS; w++) {
        assert_int_equal(must(j, w, WIRE_PLAN)->n, 0);
        must(j, w, WIRE_COMMITTED);
    }
    for (int32_t w = 0; w < WORKERS; w++) leaves(j, w);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static void a_worker_that_wants_servers_in_a_job_without_them_is_refused(void **state)
{
    (void)state;
    job *j = make_job((const char *const[]){NULL});
    come(j, 0);
    give(j, 1, 0, hello_of(PEN_WORKER, 1, 2));
    assert_string_equal(must(j, 1, WIRE_VERDICT)->text,
                        "worker 1 (devbox) asks for 2 servers and the job has none");
    wire_control server  = hello_of(PEN_WORKER, 0, 0);
    server.u.hello.role  = PEN_SERVER;
    server.u.hello.nonce = 99;
    give(j, 50, 0, server);
    assert_string_equal(must(j, 50, WIRE_VERDICT)->text,
                        "a server on devbox is not needed: the job has 0");
    drop_job(j);

    j = make_job((const char *const[]){"servers=2", NULL});
    give(j, 1, 0, hello_of(PEN_WORKER, 1, 0));
    assert_string_equal(must(j, 1, WIRE_VERDICT)->text,
                        "worker 1 (devbox) expects no servers, and the job has 2; set "
                        "PENSTOCK_SERVERS=2 there too");
    drop_job(j);
}

static void a_job_with_servers_may_go_on_without_a_worker(void **state)
{
    (void)state;
    job *j = make_job((const char *const[]){"on_worker_loss=continue", NULL});
    give(j, 0, 0, hello_of(PEN_WORKER, 0, 1));
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    assert_int_equal(count(j, WIRE_WELCOME), 1);
    drop_job(j);
}

/* ---- training goes on ------------------------------------------------------------------------ */
static void a_death_ends_the_job_unless_the_setting_says_continue(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=fail");
    dies(j, 1);
    assert_int_equal(must(j, 0, WIRE_VERDICT)->status, PEN_PEER_LOST);
    assert_int_equal(count(j, WIRE_LOST), 0);
    drop_job(j);
}

static void a_death_is_reported_to_all_survivors_and_the_job_goes_on(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    beat(j, 1, "pen_all_reduce", 0);
    dies(j, 1);
    const uint32_t told[] = {0, 2, 3, LAUNCHER_PEER};
    for (int i = 0; i < 4; i++) {
        const letter *l = must(j, told[i], WIRE_LOST);
        assert_int_equal(l->rank, 1);
        assert_int_equal(l->incarnation, j->worker[1]);
        assert_int_equal(l->status, PEN_PEER_LOST);
        assert_string_equal(
            l->text,
            "worker 1 (devbox) is gone in step 418, in pen_all_reduce; last seen 0.0 s ago");
    }
    assert_null(last(j, 0, WIRE_VERDICT));
    assert_int_equal(must(j, 1, WIRE_VERDICT)->status, PEN_NOT_A_MEMBER);
    assert_false(j->has_ended);

    forget(j);
    dies(j, 1); /* sent twice, handled once */
    assert_int_equal(count(j, WIRE_LOST), 0);
    leaves(j, 0);
    leaves(j, 2);
    assert_false(j->has_ended);
    leaves(j, 3);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static void the_death_of_the_last_worker_ends_the_job_and_the_first_is_the_cause(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    dies(j, 2);
    for (int32_t w = 0; w < WORKERS; w++) dies(j, w);
    assert_int_equal(must(j, LAUNCHER_PEER, WIRE_VERDICT)->rank, 2);
    assert_string_equal(
        must(j, LAUNCHER_PEER, WIRE_VERDICT)->text,
        "all workers are gone; the first one lost: worker 2 (devbox) is gone before its "
        "first step; last seen 0.0 s ago");
    drop_job(j);
}

static void a_silent_worker_is_lost_after_its_lease(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    live(j, 2, 9000);
    assert_int_equal(count(j, WIRE_LOST), 0);
    live(j, 2, 3000);
    assert_int_equal(must(j, 0, WIRE_LOST)->rank, 2);
    drop_job(j);
}

static void a_death_does_not_delay_others_that_register(void **state)
{
    (void)state;
    job *j = joined("on_worker_loss=continue");
    for (int32_t w = 1; w < WORKERS; w++) registers(j, w);
    assert_null(last(j, 1, WIRE_COMMITTED));
    dies(j, 0);
    must(j, 1, WIRE_COMMITTED);
    drop_job(j);
}

static void a_returning_worker_is_told_the_jobs_losses(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    scheduler_core_peer_down(j->core, 0, j->now);
    dies(j, 1);
    assert_null(last(j, 0, WIRE_LOST));
    give(j, 70, 0, hello_of(PEN_WORKER, 0, 0));
    assert_int_equal(must(j, 70, WIRE_LOST)->rank, 1);
    drop_job(j);
}

/* ---- who is left ----------------------------------------------------------------------------- */
static void shrinks(job *j, int32_t rank, uint64_t group, const int32_t *ranks, uint32_t n)
{
    say(j, rank, (wire_control){.kind = WIRE_SHRINK, .u.shrink = {group, n, ranks}});
}

static void survivors_agree_when_all_live_ranks_have_asked(void **state)
{
    (void)state;
    job *j                = training("on_worker_loss=continue");
    const int32_t world[] = {3, 0, 1, 2}, live_ones[] = {3, 0, 2};
    shrinks(j, 0, 1, world, 4);
    shrinks(j, 3, 1, world, 4);
    dies(j, 1);
    assert_int_equal(count(j, WIRE_SHRUNK), 0);
    shrinks(j, 2, 1, live_ones, 3); /* it already knows the loss */
    const uint64_t group = must(j, 0, WIRE_SHRUNK)->new_group;
    assert_int_not_equal(group, 0);
    for (uint32_t w = 0; w < WORKERS; w += w == 0 ? 2 : 1) {
        const letter *l = must(j, w, WIRE_SHRUNK);
        assert_int_equal(l->status, PEN_OK);
        assert_int_equal(l->new_group, group);
        assert_int_equal(l->n, 3);
        assert_int_equal(l->ranks[0], 3);
        assert_int_equal(l->ranks[1], 0);
        assert_int_equal(l->ranks[2], 2);
    }
    forget(j);
    shrinks(j, 2, 1, live_ones, 3); /* its answer was lost */
    assert_int_equal(must(j, 2, WIRE_SHRUNK)->new_group, group);
    assert_int_equal(count(j, WIRE_SHRUNK), 1);
    shrinks(j, 2, group, live_ones, 3); /* the new group can shrink too */
    shrinks(j, 3, group, live_ones, 3);
    forget(j);
    dies(j, 0);
    assert_int_equal(must(j, 3, WIRE_SHRUNK)->n, 2);
    assert_int_not_equal(must(j, 3, WIRE_SHRUNK)->new_group, group);
    drop_job(j);
}

static void a_rank_that_has_left_is_not_waited_for_either(void **state)
{
    (void)state;
    job *j                = training("on_worker_loss=continue");
    const int32_t ranks[] = {0, 1};
    shrinks(j, 0, 9, ranks, 2);
    leaves(j, 1);
    assert_int_equal(must(j, 0, WIRE_SHRUNK)->n, 1);
    drop_job(j);
}

static void invalid_lists_are_refused(void **state)
{
    (void)state;
    job *j                   = training("on_worker_loss=continue");
    const int32_t lists[][3] = {{0, 0, 1}, {0, 1, 4}, {0, -1, 1}, {1, 2, 3}};
    for (int i = 0; i < 4; i++) {
        forget(j);
        shrinks(j, 0, 9, lists[i], 3);
        assert_int_equal(must(j, 0, WIRE_SHRUNK)->status, PEN_INVALID_ARGUMENT);
    }
    shrinks(j, 0, 9, NULL, 0);
    drop_job(j);
}

static void many_agreements_make_room_for_each_other(void **state)
{
    (void)state;
    job *j              = training("on_worker_loss=continue");
    const int32_t own[] = {0}, both[] = {0, 1};
    for (uint64_t group = 1; group <= 200; group++) {
        shrinks(j, 0, group, own, 1);
        assert_int_equal(must(j, 0, WIRE_SHRUNK)->group, group);
    }
    for (uint64_t group = 1000; group < 1064; group++) shrinks(j, 0, group, both, 2);
    shrinks(j, 0, 2000, both, 2);
    assert_int_equal(must(j, 0, WIRE_SHRUNK)->status, PEN_NO_MEMORY);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_without_servers_begins_when_all_workers_registered_the_same_model),
        cmocka_unit_test(a_worker_that_wants_servers_in_a_job_without_them_is_refused),
        cmocka_unit_test(a_job_with_servers_may_go_on_without_a_worker),
        cmocka_unit_test(a_death_ends_the_job_unless_the_setting_says_continue),
        cmocka_unit_test(a_death_is_reported_to_all_survivors_and_the_job_goes_on),
        cmocka_unit_test(the_death_of_the_last_worker_ends_the_job_and_the_first_is_the_cause),
        cmocka_unit_test(a_silent_worker_is_lost_after_its_lease),
        cmocka_unit_test(a_death_does_not_delay_others_that_register),
        cmocka_unit_test(a_returning_worker_is_told_the_jobs_losses),
        cmocka_unit_test(survivors_agree_when_all_live_ranks_have_asked),
        cmocka_unit_test(a_rank_that_has_left_is_not_waited_for_either),
        cmocka_unit_test(invalid_lists_are_refused),
        cmocka_unit_test(many_agreements_make_room_for_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
