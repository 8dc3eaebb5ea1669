/* scheduler_calls_test.c - failures and waits in jobs without servers: reports, long waits, the flight recorder. */
#include "tests/unit/scheduler_alone.h"

#include "common/base/why.h"

/* ---- failures -------------------------------------------------------------------------------- */
static void faults(job *j, int32_t rank, uint64_t group, uint64_t call, pen_status status,
                   int32_t culprit, const char *text)
{
    wire_control c  = {.kind = WIRE_FAULT};
    c.u.fault.group = group;
    c.u.fault.call  = call;
    why_set(&c.u.fault.why, status, "%s", text);
    why_culprit(&c.u.fault.why, PEN_WORKER, culprit, -1, "x");
    c.u.fault.why.missing[0] = culprit;
    c.u.fault.why.missing_n  = 1;
    say(j, rank, c);
}

static void the_first_report_of_a_failed_call_goes_to_all(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    beat(j, 3, "after pen_metric", 31000);
    faults(j, 0, 1, 418, PEN_TIMED_OUT, 3,
           "rank 3 (devbox) has not entered all_reduce 'x' (call 418) after 2 s");
    for (uint32_t w = 0; w < WORKERS; w++) {
        assert_string_equal(must(j, w, WIRE_FAULTED)->text,
                            "rank 3 (devbox) has not entered all_reduce 'x' (call 418) after 2 s; "
                            "it is alive: in user code for 31 s, last call pen_metric");
        assert_int_equal(must(j, w, WIRE_FAULTED)->group, 1);
    }
    forget(j);
    faults(j, 1, 1, 418, PEN_CORRUPT, 2, "something else");
    assert_int_equal(count(j, WIRE_FAULTED), 1);
    assert_int_equal(must(j, 1, WIRE_FAULTED)->status, PEN_TIMED_OUT);
    forget(j);
    faults(j, 1, 2, 418, PEN_CORRUPT, 2, "another group");
    assert_string_equal(must(j, 0, WIRE_FAULTED)->text, "another group");
    drop_job(j);
}

static void a_culprit_not_seen_for_long_is_not_reported_as_alive(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    beat(j, 3, "pen_step_end", 0);
    live(j, 3, 6000);
    faults(j, 0, 1, 5, PEN_TIMED_OUT, 3,
           "rank 3 (devbox) has not entered barrier (call 5) after 2 s");
    assert_string_equal(must(j, 1, WIRE_FAULTED)->text,
                        "rank 3 (devbox) has not entered barrier (call 5) after 2 s; it was last "
                        "seen 6 s ago, in pen_step_end");
    drop_job(j);
}

static void a_fault_about_a_dead_rank_repeats_the_sentence_of_its_loss(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    dies(j, 2);
    char lost[640];
    snprintf(lost, sizeof lost, "%s", must(j, 0, WIRE_LOST)->text);
    faults(j, 0, 1, 9, PEN_PEER_LOST, 2, "its connection broke");
    assert_string_equal(must(j, 3, WIRE_FAULTED)->text, lost);
    drop_job(j);
}

static void only_the_newest_faults_are_remembered(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    for (uint64_t call = 1; call <= 300; call++) faults(j, 0, 1, call, PEN_CORRUPT, 2, "first");
    forget(j);
    faults(j, 0, 1, 300, PEN_CORRUPT, 2, "second");
    assert_string_equal(must(j, 0, WIRE_FAULTED)->text, "first");
    faults(j, 0, 1, 1, PEN_CORRUPT, 2, "second");
    assert_string_equal(must(j, 0, WIRE_FAULTED)->text, "second");
    drop_job(j);
}

static void a_long_wait_names_the_missing_rank(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    beat(j, 0, "after pen_metric", 31000);
    const int32_t ranks[] = {0, 2};
    wire_control c        = {.kind = WIRE_OVERDUE};
    c.u.overdue.what      = "barrier 'epoch end' (call 212)";
    c.u.overdue.waited_ms = 30000;
    c.u.overdue.n_missing = 1;
    c.u.overdue.missing   = ranks;
    say(j, 1, c);
    assert_string_equal(must(j, 1, WIRE_NOTICE)->text,
                        "waiting 30 s for rank 0 in barrier 'epoch end' (call 212).  It is alive: "
                        "in user code for 31 s, last call pen_metric");
    assert_int_equal(count(j, WIRE_NOTICE), 1);
    c.u.overdue.n_missing = 2;
    leaves(j, 0);
    say(j, 1, c);
    assert_string_equal(must(j, 1, WIRE_NOTICE)->text,
                        "waiting 30 s for ranks 0 2 in barrier 'epoch end' (call 212).  Rank 0 has "
                        "left the job");
    drop_job(j);
}

static void a_wait_for_a_rank_that_left_long_ago_ends(void **state)
{
    (void)state;
    for (int goes_on = 0; goes_on < 2; goes_on++) {
        job *j = training(goes_on ? "on_worker_loss=continue" : "on_worker_loss=fail");
        const int32_t ranks[] = {2};
        wire_control c        = {.kind = WIRE_OVERDUE};
        c.u.overdue.what      = "barrier (call 2)";
        c.u.overdue.waited_ms = 30000;
        c.u.overdue.n_missing = 1;
        c.u.overdue.missing   = ranks;
        leaves(j, 2);
        say(j, 1, c); /* it may have been sent before rank 2 left */
        assert_int_equal(count(j, WIRE_LOST) + count(j, WIRE_VERDICT), 0);
        j->now += 2000;
        say(j, 1, c);
        const letter *l = must(j, 0, goes_on ? WIRE_LOST : WIRE_VERDICT);
        assert_int_equal(l->status, PEN_MISMATCH);
        assert_string_equal(
            l->text, goes_on ? "worker 2 (devbox) has left the job and rank 1 waits for it"
                             : "worker 2 (devbox) has left the job and rank 1 waits for it in "
                               "barrier (call 2)");
        drop_job(j);
    }
}

static void status_lists_long_waits(void **state)
{
    (void)state;
    job *j                = training("on_worker_loss=continue");
    const int32_t ranks[] = {0};
    wire_control c        = {.kind = WIRE_OVERDUE};
    c.u.overdue.what      = "barrier (call 2)";
    c.u.overdue.waited_ms = 3000;
    c.u.overdue.n_missing = 1;
    c.u.overdue.missing   = ranks;
    beat(j, 1, "pen_barrier", 2900);
    say(j, 1, c);
    say(j, 2, c); /* the same call: one line */
    j->now += 1000;
    beat(j, 1, "pen_barrier", 3900);
    give(j, 90, 0, (wire_control){.kind = WIRE_STATUS_ASK});
    assert_int_equal(must(j, 90, WIRE_STATUS)->n, 1);
    assert_string_equal(must(j, 90, WIRE_STATUS)->text,
                        "waiting 4 s for rank 0 in barrier (call 2).  It is alive: last seen 1.0 s "
                        "ago");
    j->now += 1000;
    beat(j, 1, "after pen_barrier", 500); /* it has ended */
    beat(j, 2, "after pen_barrier", 500);
    give(j, 90, 0, (wire_control){.kind = WIRE_STATUS_ASK});
    assert_int_equal(must(j, 90, WIRE_STATUS)->n, 0);
    drop_job(j);
}

/* ---- the flight recorder --------------------------------------------------------------------- */
static void an_asker_gets_one_record_of_every_rank(void **state)
{
    (void)state;
    job *j = training("on_worker_loss=continue");
    dies(j, 2);
    forget(j);
    give(j, LAUNCHER_PEER, j->launcher,
         (wire_control){.kind = WIRE_RECORD_ASK, .u.record_ask = {.id = 5}});
    assert_string_equal(must(j, LAUNCHER_PEER, WIRE_RECORD)->text, "worker 2 (devbox) is gone");
    assert_int_equal(must(j, LAUNCHER_PEER, WIRE_RECORD)->rank, 2);
    assert_int_equal(count(j, WIRE_RECORD_ASK), 3);
    wire_control c       = {.kind = WIRE_RECORD};
    c.u.record.id        = 5;
    c.u.record.asker     = j->launcher;
    c.u.record.data      = "{}\n";
    c.u.record.data_size = 3;
    say(j, 3, c);
    assert_int_equal(must(j, LAUNCHER_PEER, WIRE_RECORD)->rank, 3);
    assert_memory_equal(must(j, LAUNCHER_PEER, WIRE_RECORD)->data, "{}\n", 3);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_report_of_a_failed_call_goes_to_all),
        cmocka_unit_test(a_culprit_not_seen_for_long_is_not_reported_as_alive),
        cmocka_unit_test(a_fault_about_a_dead_rank_repeats_the_sentence_of_its_loss),
        cmocka_unit_test(only_the_newest_faults_are_remembered),
        cmocka_unit_test(a_long_wait_names_the_missing_rank),
        cmocka_unit_test(a_wait_for_a_rank_that_left_long_ago_ends),
        cmocka_unit_test(status_lists_long_waits),
        cmocka_unit_test(an_asker_gets_one_record_of_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
