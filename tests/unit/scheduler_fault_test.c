/* scheduler_fault_test.c - the scheduler's rules, one by one: which members are alive, and which are gone. */
#include "scheduler_job.h"

/* ---- messages of members --------------------------------------------------------------------- */
/* All but the silent worker (-1: none) beat once a second. */
static void live(job *j, int32_t workers, int32_t servers, int32_t silent, uint64_t ms)
{
    for (uint64_t t = 0; t < ms && !j->has_ended; t += 1000) {
        pass(j, 1000);
        for (int32_t w = 0; w < workers; w++)
            if (w != silent) beat(j, w, 418, "", 0);
        for (int32_t s = 0; s < servers; s++) beat_server(j, s);
    }
}

/* ---- which members are alive ----------------------------------------------------------------- */
static void test_core_declares_a_silent_worker_dead_after_its_lease_and_not_before(void **state)
{
    (void)state;
    job *j = training(2, 1);
    live(j, 2, 1, -1, 1000);
    live(j, 2, 1, 1, 9000);
    assert_int_equal(count(j, WIRE_ENQUIRE), 0);
    live(j, 2, 1, 1, 1000);
    assert_int_equal(count(j, WIRE_ENQUIRE), 1);
    owes(j, 0, 1, 418, "fc1.weight");
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST,
                   "worker 1 (devbox) is gone: it has not pushed 'fc1.weight' for step 418; last "
                   "seen 10.0 s ago by the scheduler at a; `penstock doctor --master-addr a` on "
                   "devbox tests the connection");
    drop_job(j);
}

static void test_core_keeps_a_worker_that_only_beats_alive(void **state)
{
    (void)state;
    job *j = training(2, 1);
    live(j, 2, 1, -1, 120000);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    assert_false(j->has_ended);
    drop_job(j);
}

static void test_core_blames_no_member_for_its_own_pause(void **state)
{
    (void)state;
    job *j = training(2, 1);
    assert_true(scheduler_core_next_ms(j->core) != UINT64_MAX);
    j->now += 60000;
    scheduler_core_tick(j->core, j->now);
    assert_int_equal(count(j, WIRE_ENQUIRE), 0);
    assert_non_null(strstr(j->logged, "was paused for"));
    live(j, 2, 1, 1, 11000);
    assert_int_equal(count(j, WIRE_ENQUIRE), 1);
    drop_job(j);
}

static void test_core_does_not_take_a_reconnection_in_time_for_a_death(void **state)
{
    (void)state;
    job *j                = training(2, 1);
    const uint64_t before = j->worker[1];
    breaks(j, WORKER_PEER + 1);
    pass(j, 900);
    wire_control c = hello_of(PEN_WORKER, 1, 2, 1, 11);
    assert_true(hello(j, 77, &c) == before);
    pass(j, 5000);
    assert_int_equal(count(j, WIRE_VERDICT) + count(j, WIRE_ENQUIRE), 0);
    drop_job(j);
}

static void test_core_declares_a_broken_connection_a_death_after_its_grace(void **state)
{
    (void)state;
    job *j = training(2, 2);
    beat(j, 1, 418, "", 0);
    pass(j, 100);
    breaks(j, WORKER_PEER + 1);
    pass(j, 999);
    assert_int_equal(count(j, WIRE_ENQUIRE), 0);
    pass(j, 1);
    assert_int_equal(count(j, WIRE_ENQUIRE), 2);
    owes(j, 0, 1, 418, "fc2.weight");
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    owes(j, 1, 1, 418, "fc1.weight"); /* the first tensor of the lowest step is named */
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST,
                   "worker 1 (devbox) is gone: it has not pushed 'fc1.weight' for step 418; last "
                   "seen 1.1 s ago");
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->step, 418);
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->rank, 1);
    assert_int_equal(count(j, WIRE_VERDICT), 3);
    drop_job(j);
}

static void test_core_ignores_the_old_connection_after_a_new_hello(void **state)
{
    (void)state;
    job *j         = training(2, 1);
    wire_control c = hello_of(PEN_WORKER, 1, 2, 1, 11);
    hello(j, 77, &c);
    forget(j);
    beat(j, 1, 5, "", 0); /* by WORKER_PEER + 1 */
    assert_int_equal(count(j, WIRE_BEAT_ACK), 0);
    breaks(j, WORKER_PEER + 1);
    pass(j, 2000);
    assert_int_equal(count(j, WIRE_ENQUIRE), 0);
    drop_job(j);
}

static void test_core_acts_on_a_launchers_report_at_once(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    beat(j, 1, 418, "pen_barrier 'epoch end'", 40);
    pass(j, 100);
    exits(j, PEN_WORKER, 1, 0, 9);
    assert_int_equal(count(j, WIRE_ENQUIRE), 1);
    owes(j, 0, 1, -1, NULL); /* the server knows of nothing */
    const char *golden =
        "worker 1 (devbox) is gone in step 418, in pen_barrier 'epoch end'; last seen 0.1 s ago";
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST, golden);
    assert_verdict(j, LAUNCHER_PEER, PEN_PEER_LOST, golden);
    drop_job(j);
}

static void test_core_waits_a_quarter_second_for_servers_that_do_not_answer(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    beat(j, 1, 418, "after pen_metric", 40);
    exits(j, PEN_WORKER, 1, 3, 0);
    pass(j, 249);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    pass(j, 1);
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST,
                   "worker 1 (devbox) is gone in step 418, after pen_metric; last seen 0.0 s ago");
    drop_job(j);
}

static void test_core_names_the_tensors_of_a_dead_server(void **state)
{
    (void)state;
    job *j = training(2, 1);
    beat(j, 0, 418, "", 0);
    beat_server(j, 0);
    pass(j, 100);
    breaks(j, SERVER_PEER);
    pass(j, 1000);
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST,
                   "server 0 (devbox) is gone: it held 'fc1.weight' and 2 more tensors; step 418; "
                   "last seen 1.1 s ago");
    drop_job(j);
}

static void test_core_reports_a_process_that_fails_before_it_joins(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    launcher_comes(j);
    worker_comes(j, 0, 2, 1);
    exits(j, PEN_WORKER, 1, 1, 0);
    assert_verdict(j, WORKER_PEER, PEN_PEER_LOST, "worker 1 exited with code 1 before it joined");
    drop_job(j);
}

static void test_core_counts_a_clean_exit_as_a_goodbye(void **state)
{
    (void)state;
    job *j = training(2, 1);
    launcher_comes(j);
    breaks(j, WORKER_PEER + 1);
    exits(j, PEN_WORKER, 1, 0, 0);
    assert_string_equal(j->logged, "worker 1 (devbox) ended without pen_finalize()");
    live(j, 1, 1, -1, 5000);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_declares_a_silent_worker_dead_after_its_lease_and_not_before),
        cmocka_unit_test(test_core_keeps_a_worker_that_only_beats_alive),
        cmocka_unit_test(test_core_blames_no_member_for_its_own_pause),
        cmocka_unit_test(test_core_does_not_take_a_reconnection_in_time_for_a_death),
        cmocka_unit_test(test_core_declares_a_broken_connection_a_death_after_its_grace),
        cmocka_unit_test(test_core_ignores_the_old_connection_after_a_new_hello),
        cmocka_unit_test(test_core_acts_on_a_launchers_report_at_once),
        cmocka_unit_test(test_core_waits_a_quarter_second_for_servers_that_do_not_answer),
        cmocka_unit_test(test_core_names_the_tensors_of_a_dead_server),
        cmocka_unit_test(test_core_reports_a_process_that_fails_before_it_joins),
        cmocka_unit_test(test_core_counts_a_clean_exit_as_a_goodbye),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
