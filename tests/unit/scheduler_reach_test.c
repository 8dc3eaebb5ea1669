/* scheduler_reach_test.c - how the scheduler treats a member that cannot reach another. */
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

/* The far end is alive, and the reporting member repeats its report. */
static void all_beat(job *j, int32_t workers, int32_t servers)
{
    pass(j, 300);
    for (int32_t w = 0; w < workers; w++) beat(j, w, -1, "pen_commit", 0);
    for (int32_t s = 0; s < servers; s++) beat_server(j, s);
}

static void all_members_get_one_sentence_about_an_unreachable_pair(void **state)
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
                       "a --host ADDRESS that all hosts reach";
    for (uint32_t w = 0; w < 3; w++) assert_verdict(j, WORKER_PEER + w, PEN_UNREACHABLE, said);
    assert_verdict(j, SERVER_PEER, PEN_UNREACHABLE, said);
    drop_job(j);
}

static void a_member_silent_for_a_lease_is_named_with_others_that_cannot_reach_it(void **state)
{
    (void)state;
    job *j = training(3, 1);
    all_beat(j, 3, 1);
    for (int s = 0; s < 9; s++) { /* server 0 is silent from here on */
        pass(j, 1000);
        for (int32_t w = 0; w < 3; w++) beat(j, w, 7, "pen_step_end", 0);
        if (s > 6) worker_misses(j, 2, PEN_SERVER, 0, "no answer, timed out");
    }
    pass(j, 1000);
    assert_verdict(
        j, WORKER_PEER, PEN_PEER_LOST,
        "server 0 (devbox) is gone: it held 'fc1.weight' and 2 more tensors; step 7; last seen "
        "10.0 s ago by the scheduler at a; worker 2 (b) cannot reach it at 10.0.0.7:4711: no "
        "answer, timed out; `penstock doctor --master-addr a` on devbox tests the connection");
    drop_job(j);
}

static void several_reports_with_one_end_in_common_name_that_end(void **state)
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

static void several_reports_without_one_are_counted(void **state)
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

static void a_peer_without_the_secret_gets_another_remedy(void **state)
{
    (void)state;
    job *j = training(1, 1);
    worker_misses(j, 0, PEN_SERVER, 0, "the other end does not know this job's secret");
    all_beat(j, 1, 1);
    worker_misses(j, 0, PEN_SERVER, 0, "the other end does not know this job's secret");
    pass(j, 500);
    assert_verdict(
        j, WORKER_PEER, PEN_UNREACHABLE,
        "worker 0 (devbox) cannot reach server 0 (devbox) at 10.0.0.7:4711: the other end "
        "does not know this job's secret; use the same secret and the same encryption everywhere");
    drop_job(j);
}

/* The worker is silent: it is stopped, or its host is. */
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

static void reports_about_processes_that_are_not_members_blame_no_rank(void **state)
{
    (void)state;
    job *j = training(2, 1);
    worker_misses(j, 0, PEN_WORKER, 7, "connection refused"); /* no such rank exists */
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

/* The end of an outage: messages held back in it arrive together. */
static void reports_delayed_by_an_outage_are_not_a_finding(void **state)
{
    (void)state;
    job *j = training(2, 1);
    worker_misses(j, 0, PEN_SERVER, 0, "no answer, timed out");
    j->now += 1;
    beat_server(j, 0);
    j->now += 1;
    worker_misses(j, 0, PEN_SERVER, 0, "no answer, timed out");
    for (int i = 0; i < 5; i++) all_beat(j, 2, 1);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    drop_job(j);
}

static void two_outages_reported_once_each_are_not_a_finding(void **state)
{
    (void)state;
    job *j = training(2, 1);
    for (int outage = 0; outage < 3; outage++) {
        worker_misses(j, 0, PEN_SERVER, 0, "no answer, timed out");
        for (int i = 0; i < 11; i++) all_beat(j, 2, 1);
    }
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    drop_job(j);
}

/* ---- before the first step ------------------------------------------------------------------- */
static void reaches(job *j, int32_t rank)
{
    wire_control c = {.kind = WIRE_READY, .u.ready = {.restored = -1}};
    say_worker(j, rank, &c);
}

/* All have registered their model, the servers are ready, and no worker has reached anything yet. */
static job *connecting(int32_t workers, int32_t servers)
{
    job *j            = make_job(nothing);
    j->reaches_nobody = true;
    all_come(j, workers, servers);
    for (int32_t w = 0; w < workers; w++) registers(j, w, NULL, 0);
    for (int32_t s = 0; s < servers; s++) ready(j, s, -1);
    return j;
}

static void misses_twice(job *j, int32_t rank, int32_t workers)
{
    worker_misses(j, rank, PEN_SERVER, 0, "no route to host");
    all_beat(j, workers, 1);
    worker_misses(j, rank, PEN_SERVER, 0, "no route to host");
}

static void no_worker_begins_before_all_have_reached_their_peers(void **state)
{
    (void)state;
    for (int32_t servers = 0; servers < 2; servers++) {
        job *j = connecting(3, servers);
        reaches(j, 0);
        reaches(j, 2);
        reaches(j, 2); /* it is sent until it is answered */
        for (int i = 0; i < 4; i++) all_beat(j, 3, servers);
        assert_int_equal(count(j, WIRE_COMMITTED), 0);
        reaches(j, 1);
        assert_int_equal(count(j, WIRE_COMMITTED), 3);
        reaches(j, 1); /* the answer was lost */
        assert_int_equal(count(j, WIRE_COMMITTED), 4);
        drop_job(j);
    }
}

static void a_member_that_finally_reached_all_is_not_a_finding(void **state)
{
    (void)state;
    job *j = connecting(2, 1);
    reaches(j, 1);
    misses_twice(j, 0, 2);
    reaches(j, 0);
    pass(j, 2000);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    assert_int_equal(count(j, WIRE_COMMITTED), 2);
    drop_job(j);
}

static void a_report_one_second_later_is_in_the_same_sentence(void **state)
{
    (void)state;
    job *j = connecting(3, 1);
    reaches(j, 2);
    misses_twice(j, 0, 3);
    pass(j, 1000);
    assert_int_equal(count(j, WIRE_VERDICT), 0); /* worker 1 has neither reached all nor said why */
    worker_misses(j, 1, PEN_SERVER, 0, "no route to host");
    all_beat(j, 3, 1);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    worker_misses(j, 0, PEN_SERVER, 0, "no route to host");
    worker_misses(j, 1, PEN_SERVER, 0, "no route to host");
    pass(j, 100);
    assert_verdict(
        j, WORKER_PEER + 2, PEN_UNREACHABLE,
        "worker 0 (devbox) cannot reach server 0 (devbox) at 10.0.0.7:4711: no route to "
        "host; 1 more connection fails, also of server 0 (devbox); open the TCP ports "
        "between these hosts, or start server 0 with a --host ADDRESS that all hosts reach");
    drop_job(j);
}

static void a_silent_reporter_is_waited_for_two_seconds(void **state)
{
    (void)state;
    job *j = connecting(2, 1);
    misses_twice(j, 0, 2);
    pass(j, 2400);
    assert_int_equal(count(j, WIRE_VERDICT), 0);
    pass(j, 100);
    assert_int_equal(must(j, WORKER_PEER + 1, WIRE_VERDICT)->status, PEN_UNREACHABLE);
    drop_job(j);
}

static void a_rank_that_leaves_before_it_has_reached_all_is_named(void **state)
{
    (void)state;
    job *j = connecting(2, 0);
    reaches(j, 0);
    leaves(j, 1);
    assert_non_null(strstr(must(j, WORKER_PEER, WIRE_VERDICT)->text, "worker 1 (devbox)"));
    drop_job(j);
}

/* ---- latecomers ------------------------------------------------------------------------------ */
static void scene_misses(scene *r, uint32_t peer, int32_t role, int32_t rank)
{
    for (int i = 0; i < 2; i++) {
        wire_control c = unreached(role, rank, "no answer, timed out");
        scene_say(r, peer, &c);
        scene_pass(r, 300);
    }
    scheduler_core_tick(r->core, r->now += 300); /* a process that is turned away falls silent */
}

static void a_late_worker_counts_once_it_has_reached_the_servers(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "on_worker_loss=wait", NULL);
    scene_worker_dies(r, 1);
    scene_forget(r);
    r->reaches_nobody = true;
    scene_worker_comes(r, 1, 888);
    scene_registers(r, 1, false);
    scene_must(r, SCENE_WORKER(1), WIRE_PLAN);
    scene_pass(r, 2000);
    assert_int_equal(scene_count(r, WIRE_SEAL), 0);

    scene_misses(r, SCENE_WORKER(1), PEN_SERVER, 0);
    const wire_control *v = scene_must(r, SCENE_WORKER(1), WIRE_VERDICT);
    assert_int_equal(v->u.verdict.status, PEN_UNREACHABLE);
    assert_non_null(strstr(v->u.verdict.text, "worker 1 (devbox) cannot reach server 0"));
    assert_int_equal(scene_count(r, WIRE_VERDICT), 1); /* the others wait for the next one */
    assert_int_equal(scene_count(r, WIRE_SEAL), 0);

    scheduler_core_peer_down(r->core, SCENE_WORKER(1), r->now);
    r->reaches_nobody = false;
    scene_worker_comes(r, 1, 889);
    scene_registers(r, 1, false);
    scene_seals_all(r, 17);
    scene_must(r, SCENE_WORKER(1), WIRE_COMMITTED);
    scene_drop(r);
}

static scene *with_a_server_that_came_back(void)
{
    scene *r = scene_train(2, 2, "replicas=1", NULL);
    scene_server_dies(r, 1);
    scene_seals_all(r, 5);
    scene_server_comes(r, 1, 777);
    scene_ready(r, 1);
    scene_seals_all(r, 6);
    scene_caught_up(r, scene_must(r, SCENE_SERVER(0), WIRE_EPOCH), 1);
    scene_pass(r, 500);
    scene_seals_all(r, 7);
    scene_forget(r);
    return r;
}

static void a_restarted_server_that_a_worker_cannot_reach_is_the_only_one_to_leave(void **state)
{
    (void)state;
    scene *r = with_a_server_that_came_back();
    scene_misses(r, SCENE_WORKER(0), PEN_SERVER, 1);
    const wire_control *v = scene_must(r, SCENE_SERVER(1), WIRE_VERDICT);
    assert_non_null(strstr(v->u.verdict.text, "cannot reach server 1"));
    assert_int_equal(scene_count(r, WIRE_VERDICT), 1);
    scene_must(r, SCENE_SERVER(0), WIRE_SEAL);
    scene_drop(r);
}

static void a_worker_that_reaches_no_server_is_not_the_fault_of_the_newest(void **state)
{
    (void)state;
    scene *r = with_a_server_that_came_back();
    for (int i = 0; i < 2; i++)
        for (int32_t s = 0; s < 2; s++) {
            wire_control c = unreached(PEN_SERVER, s, "no answer, timed out");
            scene_say(r, SCENE_WORKER(0), &c);
            scene_pass(r, 300);
        }
    scene_pass(r, 600);
    const wire_control *v = scene_must(r, SCENE_WORKER(1), WIRE_VERDICT);
    assert_non_null(strstr(v->u.verdict.text, "1 more connection fails, also of worker 0"));
    scene_drop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_members_get_one_sentence_about_an_unreachable_pair),
        cmocka_unit_test(a_member_silent_for_a_lease_is_named_with_others_that_cannot_reach_it),
        cmocka_unit_test(several_reports_with_one_end_in_common_name_that_end),
        cmocka_unit_test(several_reports_without_one_are_counted),
        cmocka_unit_test(a_peer_without_the_secret_gets_another_remedy),
        cmocka_unit_test(a_silent_end_is_judged_by_its_lease),
        cmocka_unit_test(reports_about_processes_that_are_not_members_blame_no_rank),
        cmocka_unit_test(reports_delayed_by_an_outage_are_not_a_finding),
        cmocka_unit_test(two_outages_reported_once_each_are_not_a_finding),
        cmocka_unit_test(no_worker_begins_before_all_have_reached_their_peers),
        cmocka_unit_test(a_member_that_finally_reached_all_is_not_a_finding),
        cmocka_unit_test(a_report_one_second_later_is_in_the_same_sentence),
        cmocka_unit_test(a_silent_reporter_is_waited_for_two_seconds),
        cmocka_unit_test(a_rank_that_leaves_before_it_has_reached_all_is_named),
        cmocka_unit_test(a_late_worker_counts_once_it_has_reached_the_servers),
        cmocka_unit_test(a_restarted_server_that_a_worker_cannot_reach_is_the_only_one_to_leave),
        cmocka_unit_test(a_worker_that_reaches_no_server_is_not_the_fault_of_the_newest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
