/* scheduler_end_test.c - the scheduler's rules, one by one: how a job ends, and what its members are told. */
#include "scheduler_job.h"

/* ---- messages of members --------------------------------------------------------------------- */
static void server_leaves(job *j, int32_t rank)
{
    wire_control c = {.kind = WIRE_BYE};
    say_server(j, rank, &c);
}

/* ---- verdicts and goodbyes ------------------------------------------------------------------- */
static void test_core_reports_the_first_failure_to_all(void **state)
{
    (void)state;
    job *j         = training(2, 1);
    wire_control c = {.kind = WIRE_FAILURE};
    c.u.verdict =
        (pen_error){.status = PEN_DEVICE, .rank = -1, .step = -1, .text = "out of memory on GPU 0"};
    say_worker(j, 1, &c);
    copy(c.u.verdict.text, sizeof c.u.verdict.text, "something else");
    say_worker(j, 0, &c);
    assert_verdict(j, WORKER_PEER, PEN_DEVICE, "out of memory on GPU 0");
    assert_verdict(j, SERVER_PEER, PEN_DEVICE, "out of memory on GPU 0");
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->rank, 1);
    drop_job(j);
}

static void test_core_checks_the_bounds_of_a_reported_failure(void **state)
{
    (void)state;
    job *j         = training(1, 1);
    wire_control c = {.kind = WIRE_FAILURE};
    memset(&c.u.verdict, 0x7f,
           sizeof c.u.verdict); /* no NUL anywhere, 2,139,062,143 missing ranks */
    say_worker(j, 0, &c);
    const letter *l = must(j, SERVER_PEER, WIRE_VERDICT);
    assert_int_equal(l->status, PEN_INTERNAL);
    assert_int_equal(strlen(l->text), sizeof(pen_error){0}.text - 1);
    drop_job(j);
}

static void
test_core_sends_the_verdict_to_returning_members_and_not_a_member_to_the_dead(void **state)
{
    (void)state;
    job *j = training(3, 1);
    launcher_comes(j);
    breaks(j, WORKER_PEER + 2);
    exits(j, PEN_WORKER, 1, 0, 9);
    owes(j, 0, 1, 418, "fc1.weight");
    assert_null(last(j, WORKER_PEER + 2, WIRE_VERDICT));
    assert_int_equal(must(j, WORKER_PEER + 1, WIRE_VERDICT)->status, PEN_NOT_A_MEMBER);

    worker_comes(j, 2, 3, 1);
    assert_int_equal(must(j, WORKER_PEER + 2, WIRE_VERDICT)->status, PEN_PEER_LOST);
    forget(j);
    registers(j, 2, NULL, 0); /* a member that still asks is told again */
    assert_int_equal(must(j, WORKER_PEER + 2, WIRE_VERDICT)->status, PEN_PEER_LOST);

    breaks(j, WORKER_PEER + 1);
    worker_comes(j, 1, 3, 1);
    assert_verdict(
        j, WORKER_PEER + 1, PEN_NOT_A_MEMBER,
        "worker 1 (devbox) was removed from the job: worker 1 (devbox) is gone: it has not pushed "
        "'fc1.weight' for step 418; last seen 0.0 s ago");
    drop_job(j);
}

static void test_core_ends_when_all_members_left_after_the_verdict(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    exits(j, PEN_WORKER, 1, 0, 9);
    owes(j, 0, 1, 418, "fc1.weight");
    breaks(j, WORKER_PEER);
    assert_false(j->has_ended);
    server_leaves(j, 0);
    assert_false(j->has_ended); /* the launcher may not have read it yet */
    breaks(j, LAUNCHER_PEER);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_PEER_LOST);
    assert_non_null(strstr(j->ended_with, "worker 1 (devbox) is gone"));
    drop_job(j);
}

static void test_core_ends_five_seconds_after_the_verdict_at_the_latest(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    exits(j, PEN_WORKER, 1, 0, 9);
    owes(j, 0, 1, 418, "fc1.weight");
    pass(j, 4999);
    assert_false(j->has_ended);
    pass(j, 1);
    assert_true(j->has_ended);
    assert_true(scheduler_core_next_ms(j->core) == UINT64_MAX);
    drop_job(j);
}

static void test_core_stops_the_servers_when_the_last_worker_has_left(void **state)
{
    (void)state;
    job *j = training(2, 2);
    leaves(j, 1);
    must(j, WORKER_PEER + 1, WIRE_BYED);
    leaves(j, 1); /* the answer was lost */
    assert_int_equal(count(j, WIRE_BYED), 2);
    assert_int_equal(count(j, WIRE_STOP), 0);
    leaves(j, 0);
    assert_int_equal(count(j, WIRE_STOP), 2);
    server_leaves(j, 0);
    assert_false(j->has_ended);
    breaks(j, SERVER_PEER + 1);
    pass(j, 1000);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static job *two_workers_are_expected(void)
{
    job *j = make_job((const char *const[]){"world_size=2", "servers=1", NULL});
    launcher_comes(j);
    assert_true(server_comes(j, 0) != 0);
    return j;
}

static void test_core_ends_a_job_whose_programs_never_joined(void **state)
{
    (void)state;
    job *j = two_workers_are_expected();
    exits(j, PEN_WORKER, 1, 0, 0);
    exits(j, PEN_WORKER, 1, 0, 0);
    assert_int_equal(count(j, WIRE_STOP), 0);
    exits(j, PEN_WORKER, 0, 0, 0);
    must(j, SERVER_PEER, WIRE_STOP);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    server_leaves(j, 0);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static void test_core_names_a_program_that_ended_without_joining_when_another_joins(void **state)
{
    (void)state;
    static const char text[] = "worker 1 exited with code 0 before it joined";
    job *before              = two_workers_are_expected();
    worker_comes(before, 0, 2, 1);
    exits(before, PEN_WORKER, 1, 0, 0);
    assert_verdict(before, WORKER_PEER, PEN_PEER_LOST, text);
    drop_job(before);

    job *after = two_workers_are_expected();
    exits(after, PEN_WORKER, 1, 0, 0);
    worker_comes(after, 0, 2, 1);
    assert_verdict(after, WORKER_PEER, PEN_PEER_LOST, text);
    drop_job(after);
}

static void launcher_starts(job *j, uint32_t peer, int32_t workers)
{
    wire_control c             = hello_of(WIRE_LAUNCHER, -1, 0, 0, 90000 + peer);
    c.u.hello.local_world_size = workers;
    const uint64_t launcher    = hello(j, peer, &c);
    assert_true(launcher != 0);
    if (peer == LAUNCHER_PEER) j->launcher = launcher;
}

static void test_core_waits_for_a_missing_machine_as_long_as_for_workers(void **state)
{
    (void)state;
    job *j = make_job((const char *const[]){"world_size=3", "init_timeout_ms=20000", NULL});
    launcher_starts(j, LAUNCHER_PEER, 2);
    exits(j, PEN_WORKER, 0, 0, 0);
    pass(j, 60000); /* rank 1 computes, for an unknown time */
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    exits(j, PEN_WORKER, 1, 0, 0);
    pass(j, 19000);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    pass(j, 2000);
    assert_verdict(
        j, LAUNCHER_PEER, PEN_TIMED_OUT,
        "1 of 3 workers has not joined after 20 s: rank 2.  Ended without joining: 0 1.  "
        "`penstock doctor --master-addr a` on its host tests the connection");
    drop_job(j);
}

static void test_core_waits_for_the_worker_of_a_late_launcher(void **state)
{
    (void)state;
    job *j = make_job((const char *const[]){"world_size=2", "init_timeout_ms=20000", NULL});
    launcher_starts(j, LAUNCHER_PEER, 1);
    exits(j, PEN_WORKER, 0, 0, 0);
    pass(j, 19000);
    launcher_starts(j, LAUNCHER_PEER + 1, 1);
    pass(j, 60000);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    exits(j, PEN_WORKER, 1, 0, 0);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static void test_core_turns_away_a_machine_with_another_number_of_workers(void **state)
{
    (void)state;
    job *j         = make_job((const char *const[]){"world_size=4", NULL});
    wire_control c = hello_of(WIRE_LAUNCHER, -1, 0, 0, 91000);
    launcher_starts(j, LAUNCHER_PEER, 2);
    c.u.hello.local_world_size = 3;
    assert_int_equal(hello(j, LAUNCHER_PEER + 1, &c), 0);
    assert_verdict(j, LAUNCHER_PEER + 1, PEN_BAD_SETTING,
                   "this machine starts 3 workers, but devbox starts 2; all machines need the same "
                   "--nproc-per-node");
    assert_int_equal(count(j, WIRE_VERDICT), 1); /* the job goes on */
    drop_job(j);
}

static void test_core_knows_the_workers_of_machine_0_before_its_launcher_joins(void **state)
{
    (void)state;
    job *j         = make_job((const char *const[]){"world_size=4", "local_world_size=2", NULL});
    wire_control c = hello_of(WIRE_LAUNCHER, -1, 0, 0, 91000);
    c.u.hello.local_world_size = 3;
    assert_int_equal(hello(j, LAUNCHER_PEER + 1, &c), 0);
    assert_verdict(j, LAUNCHER_PEER + 1, PEN_BAD_SETTING,
                   "this machine starts 3 workers, but machine 0 starts 2; all machines need the "
                   "same --nproc-per-node");
    assert_int_equal(count(j, WIRE_VERDICT), 1);
    launcher_starts(j, LAUNCHER_PEER, 2);
    drop_job(j);
}

static void test_core_turns_latecomers_away_after_the_end(void **state)
{
    (void)state;
    job *j = make_job((const char *const[]){"world_size=1", "servers=2", NULL});
    launcher_comes(j);
    server_comes(j, 0);
    exits(j, PEN_WORKER, 0, 0, 0);
    assert_true(server_comes(j, 1) != 0);
    must(j, SERVER_PEER + 1, WIRE_STOP);
    assert_int_equal(worker_comes(j, 0, 1, 2), 0);
    assert_verdict(j, WORKER_PEER, PEN_WRONG_STATE, "worker 0 joined after the job had ended");
    server_leaves(j, 0);
    assert_false(j->has_ended);
    server_leaves(j, 1);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    drop_job(j);
}

static void test_core_does_not_wait_for_ever_for_a_server_that_was_asked_to_end(void **state)
{
    (void)state;
    job *j = training(1, 1);
    leaves(j, 0);
    pass(j, 5000);
    assert_true(j->has_ended);
    assert_int_equal(j->status, PEN_OK);
    assert_string_equal(j->logged, "server 0 (devbox) has not ended 5 s after it was asked to");
    drop_job(j);
}

static void test_core_treats_a_server_that_leaves_in_training_as_lost(void **state)
{
    (void)state;
    job *j = training(1, 2);
    server_leaves(j, 1);
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->status, PEN_PEER_LOST);
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->rank, 1);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_reports_the_first_failure_to_all),
        cmocka_unit_test(test_core_checks_the_bounds_of_a_reported_failure),
        cmocka_unit_test(
            test_core_sends_the_verdict_to_returning_members_and_not_a_member_to_the_dead),
        cmocka_unit_test(test_core_ends_when_all_members_left_after_the_verdict),
        cmocka_unit_test(test_core_ends_five_seconds_after_the_verdict_at_the_latest),
        cmocka_unit_test(test_core_stops_the_servers_when_the_last_worker_has_left),
        cmocka_unit_test(test_core_ends_a_job_whose_programs_never_joined),
        cmocka_unit_test(test_core_names_a_program_that_ended_without_joining_when_another_joins),
        cmocka_unit_test(test_core_waits_for_a_missing_machine_as_long_as_for_workers),
        cmocka_unit_test(test_core_waits_for_the_worker_of_a_late_launcher),
        cmocka_unit_test(test_core_turns_away_a_machine_with_another_number_of_workers),
        cmocka_unit_test(test_core_knows_the_workers_of_machine_0_before_its_launcher_joins),
        cmocka_unit_test(test_core_turns_latecomers_away_after_the_end),
        cmocka_unit_test(test_core_does_not_wait_for_ever_for_a_server_that_was_asked_to_end),
        cmocka_unit_test(test_core_treats_a_server_that_leaves_in_training_as_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
