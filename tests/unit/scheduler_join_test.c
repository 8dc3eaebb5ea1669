/* scheduler_join_test.c - the scheduler's rules, one by one: who may join, with which rank, and who is missing. */
#include "scheduler_job.h"

#include <time.h>

/* ---- joining --------------------------------------------------------------------------------- */
static void test_core_sends_the_epoch_when_the_last_has_joined(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    server_comes(j, 0);
    server_comes(j, 1);
    worker_comes(j, 1, 2, 2);
    assert_int_equal(count(j, WIRE_EPOCH), 0);
    worker_comes(j, 0, 2, 2);
    assert_int_equal(count(j, WIRE_EPOCH), 4);
    assert_int_equal(must(j, SERVER_PEER + 1, WIRE_EPOCH)->n, 2);
    drop_job(j);
}

static void test_core_gives_servers_the_lowest_free_rank(void **state)
{
    (void)state;
    job *j         = make_job(nothing);
    wire_control c = hello_of(PEN_SERVER, 1, 0, 0, 1);
    assert_true(hello(j, 1, &c) != 0);
    c = hello_of(PEN_SERVER, -1, 0, 0, 2);
    assert_true(hello(j, 2, &c) != 0);
    assert_int_equal(must(j, 2, WIRE_WELCOME)->rank, 0);
    c = hello_of(PEN_SERVER, -1, 0, 0, 3);
    hello(j, 3, &c);
    assert_int_equal(must(j, 3, WIRE_WELCOME)->rank, 2);
    drop_job(j);
}

static void test_core_refuses_servers_beyond_the_number_of_the_first_worker(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    server_comes(j, 0);
    server_comes(j, 1);
    worker_comes(j, 0, 1, 1);
    assert_verdict(j, SERVER_PEER + 1, PEN_MISMATCH,
                   "the job has 1 server; this one is not needed");
    assert_int_equal(must(j, WORKER_PEER, WIRE_EPOCH)->n, 1);
    drop_job(j);
}

static void test_core_answers_a_repeated_hello_with_the_same_incarnation(void **state)
{
    (void)state;
    job *j               = make_job(nothing);
    const uint64_t first = worker_comes(j, 0, 2, 1);
    assert_int_equal(first >> 24, 7);
    assert_true(worker_comes(j, 0, 2, 1) == first);
    drop_job(j);
}

static void test_core_gives_a_process_that_restarts_while_joining_its_rank_again(void **state)
{
    (void)state;
    job *j               = make_job(nothing);
    const uint64_t first = worker_comes(j, 1, 2, 1);
    breaks(j, WORKER_PEER + 1);
    wire_control c        = hello_of(PEN_WORKER, 1, 2, 1, 777);
    const uint64_t second = hello(j, 5, &c);
    assert_true(second != 0 && second != first);
    assert_int_equal(must(j, 5, WIRE_WELCOME)->rank, 1);
    drop_job(j);
}

static void test_core_refuses_a_taken_rank_to_that_process_only(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    worker_comes(j, 1, 2, 1);
    wire_control c = hello_of(PEN_WORKER, 1, 2, 1, 777);
    assert_int_equal(hello(j, 5, &c), 0);
    assert_verdict(j, 5, PEN_MISMATCH,
                   "rank 1 of the workers is taken by process 4001 on devbox; process 4001 on "
                   "devbox needs its own RANK");
    assert_int_equal(count(j, WIRE_VERDICT), 1);
    drop_job(j);
}

static void test_core_refuses_other_sizes_ranks_and_jobs_to_that_process_only(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    worker_comes(j, 0, 2, 1);
    wire_control c = hello_of(PEN_WORKER, 1, 3, 1, 1);
    hello(j, 5, &c);
    assert_verdict(j, 5, PEN_MISMATCH,
                   "worker 1 (devbox) has a world size of 3, the job has 2 workers");
    c = hello_of(PEN_WORKER, 2, 2, 1, 1);
    hello(j, 5, &c);
    assert_verdict(j, 5, PEN_INVALID_ARGUMENT, "rank 2 (b) is not one of the job's 0 .. 1");
    c             = hello_of(PEN_WORKER, 1, 2, 1, 1);
    c.u.hello.job = "yours";
    hello(j, 5, &c);
    assert_verdict(j, 5, PEN_BAD_SETTING,
                   "the scheduler at a runs the job 'mine', not 'yours'; leave out --job, or set "
                   "--job mine (PENSTOCK_JOB)");
    drop_job(j);
}

static void test_core_refuses_impossible_sizes(void **state)
{
    (void)state;
    const int32_t worlds[] = {0, -1, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        job *j = make_job(nothing);
        assert_int_equal(worker_comes(j, 0, worlds[i], 1), 0);
        assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->status, PEN_BAD_SETTING);
        drop_job(j);
    }
    job *j = make_job(nothing);
    assert_int_equal(worker_comes(j, 0, 2, -1), 0);
    assert_verdict(j, WORKER_PEER, PEN_BAD_SETTING,
                   "worker 0 (devbox) asks for -1 servers, expected 0 .. 1024; set --servers on "
                   "the scheduler or on all workers");
    drop_job(j);
}

/* That many beat, as all waiting processes do. */
static void wait_joining(job *j, int32_t workers, int32_t servers, uint64_t ms)
{
    for (const uint64_t end = j->now + ms; j->now < end;) {
        pass(j, end - j->now < 5000 ? end - j->now : 5000);
        for (int32_t w = 0; w < workers; w++) beat(j, w, -1, "", 0);
        for (int32_t s = 0; s < servers; s++) beat_server(j, s);
    }
}

static void test_core_names_the_worker_that_has_not_joined(void **state)
{
    (void)state;
    static const char *const hosts[] = {"a", "a", "b"};
    job *j                           = make_job(nothing);
    server_comes(j, 0);
    for (int32_t w = 0; w < 3; w++) {
        wire_control c = hello_of(PEN_WORKER, w, 4, 1, 10 + (uint64_t)w);
        c.u.hello.host = hosts[w];
        j->worker[w]   = hello(j, WORKER_PEER + (uint32_t)w, &c);
        assert_true(j->worker[w] != 0);
    }
    wait_joining(j, 3, 1, 299999);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    pass(j, 1);
    assert_verdict(
        j, WORKER_PEER, PEN_TIMED_OUT,
        "1 of 4 workers has not joined after 300 s: rank 3.  Joined: 0 (a) 1 (a) 2 (b).  "
        "`penstock doctor --master-addr a` on its host tests the connection");
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->rank, 3);
    assert_int_equal(count(j, WIRE_VERDICT), 4);
    drop_job(j);
}

static void test_core_names_a_joined_and_silent_member_and_frees_its_slot(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    launcher_comes(j);
    worker_comes(j, 0, 3, 0);
    worker_comes(j, 1, 3, 0);
    wait_joining(j, 1, 0, 9999);
    assert_int_equal(count(j, WIRE_NOTICE), 0);
    pass(j, 1);
    assert_string_equal(
        must(j, LAUNCHER_PEER, WIRE_NOTICE)->text,
        "worker 1 (devbox) is gone before the job began; last seen 10.0 s ago by the scheduler at "
        "a; `penstock doctor --master-addr a` on devbox tests the connection; the job waits 290 s "
        "for it "
        "to come back");
    wait_joining(j, 1, 0, 30000);
    assert_int_equal(count(j, WIRE_NOTICE), 1);
    assert_int_equal(count(j, WIRE_VERDICT), 0);

    exits(j, PEN_WORKER, 1, 1, 0); /* which its launcher can report when the network is back */
    wire_control other = hello_of(PEN_WORKER, 1, 3, 0, 99); /* started in its place */
    other.u.hello.pid  = 4711;
    j->worker[1]       = hello(j, WORKER_PEER + 7, &other);
    assert_true(j->worker[1] != 0);
    worker_comes(j, 2, 3, 0);
    assert_int_equal(must(j, WORKER_PEER, WIRE_EPOCH)->n, 3);
    exits(j, PEN_WORKER, 1, 1, 0); /* or even later */
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    drop_job(j);
}

static void test_core_readmits_a_member_that_was_silent_before_the_job_began(void **state)
{
    (void)state;
    job *j             = make_job(nothing);
    const uint64_t old = worker_comes(j, 0, 2, 1);
    server_comes(j, 0);
    wait_joining(j, 0, 1, 20000);
    beat(j, 0, -1, "", 0); /* this connection is no longer known */
    assert_null(last(j, WORKER_PEER, WIRE_BEAT_ACK));
    worker_comes(j, 1, 2, 1);
    assert_null(last(j, WORKER_PEER, WIRE_EPOCH));
    assert_int_equal(worker_comes(j, 0, 2, 1), old);
    assert_int_equal(must(j, WORKER_PEER, WIRE_EPOCH)->n, 2);
    drop_job(j);
}

static void test_core_names_the_servers_that_have_not_joined(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    server_comes(j, 0);
    worker_comes(j, 0, 1, 3);
    wait_joining(j, 1, 1, 300000);
    assert_verdict(j, WORKER_PEER, PEN_TIMED_OUT,
                   "2 of 3 servers have not joined after 300 s: servers 1 2.  Joined: 0 (devbox).  "
                   "`penstock doctor --master-addr a` on their hosts tests the connection");
    drop_job(j);
}

static void test_core_truncates_a_list_of_missing_ranks_that_does_not_fit(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    worker_comes(j, 0, 2000, 1);
    wait_joining(j, 1, 0, 300000);
    const char *text = must(j, WORKER_PEER, WIRE_VERDICT)->text;
    assert_non_null(strstr(text, "1999 of 2000 workers have not joined"));
    assert_non_null(strstr(text, " more"));
    assert_non_null(strstr(text, "on their hosts tests the connection"));
    drop_job(j);
}

static void test_core_lets_1000_workers_join_register_and_beat_in_a_second(void **state)
{
    (void)state;
    const struct timespec zero = {0};
    struct timespec begin = zero, end = zero;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    job *j = make_job(nothing);
    all_come(j, 1000, 8);
    assert_int_equal(count(j, WIRE_EPOCH), 1008);
    forget(j);
    for (int32_t w = 0; w < 1000; w++) registers(j, w, NULL, 0);
    assert_int_equal(count(j, WIRE_PLAN), 1008);
    for (int32_t s = 0; s < 8; s++) ready(j, s, -1);
    for (int32_t w = 0; w < 1000; w++) beat(j, w, 1, "", 0);
    assert_int_equal(count(j, WIRE_BEAT_ACK), 1000);
    clock_gettime(CLOCK_MONOTONIC, &end);
    const double seconds =
        (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    print_message("1,000 workers in %.3f s\n", seconds);
    assert_true(seconds < 5);
    drop_job(j);
}

/* ---- settings -------------------------------------------------------------------------------- */
static void test_core_refuses_settings_that_no_job_can_have(void **state)
{
    (void)state;
    const struct {
        const char *set[4], *text;
    } cases[] = {
        {{"servers=1", "replicas=1", NULL},
         "replicas=1 needs at least 2 servers, one for each copy; the job has 1"},
        {{"servers=3", "servers_max=2", NULL}, "servers_max=2 is less than servers=3"},
        {{"world_size=3", "workers_max=2", NULL}, "workers_max=2 is less than world_size=3"},
        {{"world_size=3", "workers_min=4", NULL}, "workers_min=4 exceeds the number of workers, 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scheduler_settings settings;
        pen_error why;
        scheduler_core *core            = NULL;
        const scheduler_actions actions = {on_send, on_log, on_ended, NULL, NULL};
        config_defaults(scheduler_settings_rows, &settings);
        assert_int_equal(
            config_from_strings(scheduler_settings_rows, &settings, cases[i].set, &why), PEN_OK);
        assert_int_equal(scheduler_core_create(&settings, 1, "a", &actions, 0, &core, &why),
                         PEN_BAD_SETTING);
        assert_string_equal(why.text, cases[i].text);
        assert_null(core);
    }
}

static void test_core_refuses_workers_without_servers_if_the_job_needs_servers(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"on_worker_loss=wait",
         "on_worker_loss=wait needs servers, which keep the model for a worker that comes back; "
         "add --servers, or set 'fail' or 'continue'"},
        {"replicas=1",
         "replicas=1 needs servers to hold the copies, and the job has none; add --servers"},
        {"workers_max=3",
         "workers_max=3 needs servers, which give the model to workers that join later; "
         "add --servers, or leave out workers_max"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job *j = make_job((const char *const[]){cases[i][0], NULL});
        assert_int_equal(worker_comes(j, 0, 2, 0), 0);
        assert_verdict(j, WORKER_PEER, PEN_BAD_SETTING, cases[i][1]);
        drop_job(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_sends_the_epoch_when_the_last_has_joined),
        cmocka_unit_test(test_core_gives_servers_the_lowest_free_rank),
        cmocka_unit_test(test_core_refuses_servers_beyond_the_number_of_the_first_worker),
        cmocka_unit_test(test_core_answers_a_repeated_hello_with_the_same_incarnation),
        cmocka_unit_test(test_core_gives_a_process_that_restarts_while_joining_its_rank_again),
        cmocka_unit_test(test_core_refuses_a_taken_rank_to_that_process_only),
        cmocka_unit_test(test_core_refuses_other_sizes_ranks_and_jobs_to_that_process_only),
        cmocka_unit_test(test_core_refuses_impossible_sizes),
        cmocka_unit_test(test_core_names_the_worker_that_has_not_joined),
        cmocka_unit_test(test_core_names_a_joined_and_silent_member_and_frees_its_slot),
        cmocka_unit_test(test_core_readmits_a_member_that_was_silent_before_the_job_began),
        cmocka_unit_test(test_core_names_the_servers_that_have_not_joined),
        cmocka_unit_test(test_core_truncates_a_list_of_missing_ranks_that_does_not_fit),
        cmocka_unit_test(test_core_lets_1000_workers_join_register_and_beat_in_a_second),
        cmocka_unit_test(test_core_refuses_settings_that_no_job_can_have),
        cmocka_unit_test(test_core_refuses_workers_without_servers_if_the_job_needs_servers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
