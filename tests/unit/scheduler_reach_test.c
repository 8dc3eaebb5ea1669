/* scheduler_reach_test.c - what the scheduler makes of a member that cannot reach another. */
#include "scheduler_job.h"

static wire_control unreached(int32_t role, int32_t rank, const char *words)
{
    return (wire_control){
        .kind        = WIRE_UNREACHED,
        .u.unreached = {
            .role = role, .rank = rank, .address = "tcp://10.0.0.7:4711", .words = words}};
}

static void worker_misses(job *j, int32_t rank, int32_t role, int32_t whom, const char *words)
{
    wire_control c = unreached(role, whom, words);
    say_worker(j, rank, &c);
}

/* The far end is heard, and who misses it says so again. */
static void all_beat(job *j, int32_t workers, int32_t servers)
{
    pass(j, 100);
    for (int32_t w = 0; w < workers; w++) beat(j, w, -1, "pen_commit", 0);
    for (int32_t s = 0; s < servers; s++) beat_server(j, s);
}

static void everybody_hears_one_sentence_of_who_cannot_reach_whom(void **state)
{
    (void)state;
    job *j = training(3, 1);
    worker_misses(j, 2, PEN_SERVER, 0, "no answer, timed out");
    all_beat(j, 3, 1);
    pass(j, 1000);
    assert_int_equal(count(j, WIRE_VERDICT), 0); /* it may have come back since */
    worker_misses(j, 2, PEN_SERVER, 0, "no answer, timed out");
    pass(j, 500);
    const char *said = "worker 2 (b) cannot reach server 0 (devbox) at 10.0.0.7:4711: no answer, "
                       "timed out; open the TCP ports between these hosts, or start server 0 with "
                       "--host ADDRESS, one that all hosts reach";
    for (uint32_t w = 0; w < 3; w++) assert_verdict(j, WORKER_PEER + w, PEN_UNREACHABLE, said);
    assert_verdict(j, SERVER_PEER, PEN_UNREACHABLE, said);
    drop_job(j);
}

static void several_with_one_end_in_common_name_that_end(void **state)
{
    (void)state;
    job *j = training(3, 1);
    worker_misses(j, 2, PEN_WORKER, 1, "connection refused");
    worker_misses(j, 0, PEN_WORKER, 1, "connection refused");
    all_beat(j, 3, 1);
    worker_misses(j, 2, PEN_WORKER, 1, "connection refused");
    worker_misses(j, 0, PEN_WORKER, 1, "connection refused");
    pass(j, 500);
    assert_verdict(
        j, WORKER_PEER, PEN_UNREACHABLE,
        "worker 0 (devbox) cannot reach worker 1 (devbox) at 10.0.0.7:4711: connection "
        "refused; 1 more connection fails, also of worker 1 (devbox); open the TCP ports "
        "between these hosts");
    drop_job(j);
}

static void several_without_one_are_counted(void **state)
{
    (void)state;
    job *j = training(4, 1);
    worker_misses(j, 3, PEN_WORKER, 2, "connection refused");
    worker_misses(j, 2, PEN_SERVER, 0, "its name does not resolve");
    worker_misses(j, 0, PEN_WORKER, 1, "connection refused");
    all_beat(j, 4, 1);
    worker_misses(j, 3, PEN_WORKER, 2, "connection refused");
    worker_misses(j, 2, PEN_SERVER, 0, "its name does not resolve");
    worker_misses(j, 0, PEN_WORKER, 1, "connection refused");
    pass(j, 500);
    assert_verdict(j, WORKER_PEER, PEN_UNREACHABLE,
                   "worker 0 (devbox) cannot reach worker 1 (devbox) at 10.0.0.7:4711: connection "
                   "refused; 2 more connections fail; open the TCP ports between these hosts");
    drop_job(j);
}

static void what_does_not_know_the_secret_has_another_remedy(void **state)
{
    (void)state;
    job *j = training(1, 1);
    worker_misses(j, 0, PEN_SERVER, 0, "what answers does not know this job's secret");
    all_beat(j, 1, 1);
    worker_misses(j, 0, PEN_SERVER, 0, "what answers does not know this job's secret");
    pass(j, 500);
    assert_verdict(
        j, WORKER_PEER, PEN_UNREACHABLE,
        "worker 0 (devbox) cannot reach server 0 (devbox) at 10.0.0.7:4711: what answers "
        "does not know this job's secret; start all with the same secret and the same "
        "encryption");
    drop_job(j);
}

/* Nothing more is heard of the worker: it is stopped, or its host is. */
static void a_silent_end_is_judged_by_its_lease(void **state)
{
    (void)state;
    job *j = training(2, 1);
    for (int i = 0; i < 11; i++) {
        worker_misses(j, 0, PEN_WORKER, 1, "no answer, timed out");
        beat(j, 0, -1, "", 0);
        beat_server(j, 0);
        pass(j, 1000);
    }
    owes(j, 0, 1, -1, "");
    const letter *l = must(j, WORKER_PEER, WIRE_VERDICT);
    assert_int_equal(l->status, PEN_PEER_LOST);
    assert_non_null(strstr(l->text, "worker 1 (devbox) is gone"));
    drop_job(j);
}

static void nobody_is_blamed_for_what_is_no_member(void **state)
{
    (void)state;
    job *j = training(2, 1);
    worker_misses(j, 0, PEN_WORKER, 7, "connection refused"); /* there is none */
    worker_misses(j, 0, PEN_WORKER, 0, "connection refused"); /* itself */
    worker_misses(j, 0, PEN_SCHEDULER, 0, "connection refused");
    worker_misses(j, 0, PEN_SERVER, -1, "connection refused");
    all_beat(j, 2, 1);
    worker_misses(j, 0, PEN_SCHEDULER, 0, "connection refused");
    worker_misses(j, 0, PEN_SERVER, -1, "connection refused");
    pass(j, 2000);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_hears_one_sentence_of_who_cannot_reach_whom),
        cmocka_unit_test(several_with_one_end_in_common_name_that_end),
        cmocka_unit_test(several_without_one_are_counted),
        cmocka_unit_test(what_does_not_know_the_secret_has_another_remedy),
        cmocka_unit_test(a_silent_end_is_judged_by_its_lease),
        cmocka_unit_test(nobody_is_blamed_for_what_is_no_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
