/* scheduler_model_test.c - the scheduler's rules, one by one: the model and its snapshots. */
#include "scheduler_job.h"

/* ---- the model ------------------------------------------------------------------------------- */
static void test_core_places_the_model_and_commits_when_all_servers_are_ready(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    all_come(j, 2, 2);
    forget(j);
    registers(j, 1, NULL, 0);
    assert_int_equal(count(j, WIRE_PLAN), 0);
    registers(j, 0, NULL, 0);
    assert_int_equal(count(j, WIRE_PLAN), 4);
    assert_int_equal(must(j, SERVER_PEER, WIRE_PLAN)->n_settings,
                     3); /* the model is sent to servers ... */
    assert_int_equal(must(j, WORKER_PEER, WIRE_PLAN)->n_settings,
                     0); /* ... and only shards to workers */
    assert_true(must(j, WORKER_PEER, WIRE_PLAN)->n > 0);
    assert_int_equal(must(j, SERVER_PEER, WIRE_PLAN)->step, -1);
    ready(j, 0, -1);
    assert_int_equal(count(j, WIRE_COMMITTED), 0);
    ready(j, 1, -1);
    assert_int_equal(count(j, WIRE_COMMITTED), 2);
    assert_int_equal(must(j, WORKER_PEER, WIRE_COMMITTED)->step, 0);
    drop_job(j);
}

static void test_core_names_tensor_and_both_ranks_that_register_different_models(void **state)
{
    (void)state;
    for (int32_t first = 0; first < 2; first++) { /* the same sentence whichever rank comes first */
        job *j = make_job(nothing);
        all_come(j, 2, 1);
        wire_tensor other[3];
        memcpy(other, tensors, sizeof other);
        other[0].shape[0] = 256; /* rank 0's */
        wire_control c    = {.kind = WIRE_REGISTER};
        c.u.register_     = (wire_model){3, 1, 0, other, groups, NULL};
        if (first == 0) say_worker(j, 0, &c);
        registers(j, 1, NULL, 0);
        if (first == 1) say_worker(j, 0, &c);
        const char *golden =
            "'fc1.weight' is f32[128,784] on rank 1 (devbox) and f32[256,784] on rank 0 (devbox); "
            "all ranks must register the same";
        assert_verdict(j, WORKER_PEER, PEN_MISMATCH, golden);
        assert_verdict(j, SERVER_PEER, PEN_MISMATCH, golden);
        drop_job(j);
    }
}

static void test_core_repeats_what_a_returning_member_missed(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    all_come(j, 1, 1);
    breaks(j, SERVER_PEER);
    registers(j, 0, NULL, 0);
    assert_null(last(j, SERVER_PEER, WIRE_PLAN));
    const uint64_t before = j->server[0];
    assert_true(server_comes(j, 0) == before);
    must(j, SERVER_PEER, WIRE_EPOCH);
    must(j, SERVER_PEER, WIRE_PLAN);
    breaks(j, WORKER_PEER);
    ready(j, 0, -1);
    worker_comes(j, 0, 1, 1);
    must(j, WORKER_PEER, WIRE_COMMITTED);
    forget(j);
    registers(j, 0, NULL, 0);
    must(j, WORKER_PEER, WIRE_PLAN);
    must(j, WORKER_PEER, WIRE_COMMITTED);
    drop_job(j);
}

/* ---- restoring ------------------------------------------------------------------------------- */
static job *with_snapshots(const int64_t *a, uint32_t n_a, const int64_t *b, uint32_t n_b,
                           const char *key)
{
    job *j                      = make_job(nothing);
    const int64_t *steps[]      = {a, b};
    const uint32_t n_steps[]    = {n_a, n_b};
    static const char *stores[] = {"/data/0", "/data/1"};
    for (int32_t s = 0; s < 2; s++) {
        wire_control c        = hello_of(PEN_SERVER, s, 0, 0, 50000 + (uint64_t)s);
        c.u.hello.store       = stores[s];
        c.u.hello.snapshot    = steps[s];
        c.u.hello.n_snapshots = n_steps[s];
        j->server[s]          = hello(j, SERVER_PEER + (uint32_t)s, &c);
    }
    worker_comes(j, 0, 1, 2);
    forget(j);
    const wire_pair pair = {key ? key : "mode", key ? "yes" : "ps-bsp"};
    registers(j, 0, &pair, 1);
    return j;
}

static void test_core_restores_the_newest_snapshot_that_all_servers_have(void **state)
{
    (void)state;
    const int64_t a[] = {1000, 1300, 1200}, b[] = {1200, 1000};
    job *j = with_snapshots(a, 3, b, 2, "resume");
    assert_int_equal(must(j, SERVER_PEER, WIRE_PLAN)->step, 1200);
    ready(j, 0, 1200);
    ready(j, 1, 1200);
    assert_int_equal(must(j, WORKER_PEER, WIRE_COMMITTED)->step, 1200);
    assert_int_equal(must(j, WORKER_PEER, WIRE_COMMITTED)->applied, 1199);
    drop_job(j);
}

static void test_core_asks_what_to_do_with_existing_snapshots(void **state)
{
    (void)state;
    const int64_t a[] = {1200};
    job *j            = with_snapshots(a, 1, NULL, 0, NULL);
    assert_verdict(j, WORKER_PEER, PEN_BAD_SETTING,
                   "store /data/0 holds a snapshot of step 1200; use --resume to continue from it "
                   "or --fresh to start over");
    drop_job(j);
}

static void test_core_starts_fresh_when_the_setting_says_fresh(void **state)
{
    (void)state;
    const int64_t a[] = {1200};
    job *j            = with_snapshots(a, 1, a, 1, "fresh");
    assert_int_equal(must(j, SERVER_PEER, WIRE_PLAN)->step, -1);
    drop_job(j);
}

static void test_core_names_the_store_without_a_snapshot_to_resume_from(void **state)
{
    (void)state;
    const int64_t a[] = {1200}, b[] = {1100};
    job *j = with_snapshots(a, 1, NULL, 0, "resume");
    assert_verdict(j, WORKER_PEER, PEN_NOT_FOUND,
                   "--resume found no snapshot in store /data/1 of server 1 (devbox); use --fresh "
                   "to start over");
    drop_job(j);
    j = with_snapshots(a, 1, b, 1, "resume");
    assert_verdict(j, WORKER_PEER, PEN_NOT_FOUND,
                   "--resume found no snapshot that all 2 servers have: the newest in store "
                   "/data/0 is of step 1200; use --fresh to start over");
    drop_job(j);
}

static void test_core_ends_the_job_when_a_server_restored_something_else(void **state)
{
    (void)state;
    const int64_t a[] = {1200};
    job *j            = with_snapshots(a, 1, a, 1, "resume");
    ready(j, 1, -1);
    assert_verdict(j, WORKER_PEER, PEN_STORE,
                   "server 1 (devbox) did not restore step 1200 from its store /data/1");
    drop_job(j);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static void part(job *j, int32_t server, int64_t step, pen_status status, const char *text)
{
    wire_control c = {.kind = WIRE_SNAPSHOT_PART, .u.snapshot_part = {step, status, text, 100}};
    say_server(j, server, &c);
}

static void test_core_completes_a_snapshot_when_every_server_has_its_part(void **state)
{
    (void)state;
    job *j         = training(2, 2);
    wire_control c = {.kind = WIRE_SNAPSHOT_PLEASE, .u.snapshot_please = {4}};
    say_worker(j, 1, &c);
    must(j, WORKER_PEER, WIRE_SNAPSHOT_PLEASE);
    part(j, 0, 101, PEN_OK, "");
    part(j, 0, 101, PEN_OK, ""); /* sent again */
    assert_int_equal(count(j, WIRE_SNAPSHOT_DONE), 0);
    part(j, 1, 101, PEN_OK, "");
    assert_int_equal(count(j, WIRE_SNAPSHOT_DONE), 3);
    assert_int_equal(must(j, WORKER_PEER + 1, WIRE_SNAPSHOT_DONE)->step, 101);
    must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE);
    forget(j);
    part(j, 0, 201, PEN_OK, "");
    part(j, 1, 201, PEN_OK, "");
    assert_int_equal(count(j, WIRE_SNAPSHOT_DONE), 2); /* not requested */
    drop_job(j);
}

static void test_core_names_the_server_that_could_not_write_its_part(void **state)
{
    (void)state;
    job *j = training(1, 2);
    part(j, 0, 101, PEN_OK, "");
    part(j, 1, 101, PEN_STORE, "no space left on device");
    assert_int_equal(must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE)->status, PEN_STORE);
    assert_string_equal(must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE)->text,
                        "no snapshot of step 101: server 1 (devbox): no space left on device");
    assert_int_equal(count(j, WIRE_VERDICT), 0); /* training goes on */
    drop_job(j);
}

static void test_core_says_a_failing_disk_once_and_that_it_works_again(void **state)
{
    (void)state;
    job *j = training(1, 1);
    part(j, 0, 101, PEN_STORE, "the disk is full");
    assert_non_null(strstr(
        j->logged, "no snapshot of step 101: server 0 (devbox): the disk is full; said once"));
    part(j, 0, 102, PEN_STORE, "the disk is full");
    assert_null(strstr(j->logged, "102"));
    part(j, 0, 103, PEN_STORE, "the previous one was still being written");
    assert_non_null(strstr(j->logged, "no snapshot of step 103"));
    part(j, 0, 104, PEN_OK, "");
    assert_non_null(
        strstr(j->logged, "the snapshot of step 104 is complete, the first since then"));
    drop_job(j);
}

static void lacks_room(job *j, int32_t server, int64_t step, int64_t spare)
{
    wire_control c               = {.kind            = WIRE_SNAPSHOT_PART,
                                    .u.snapshot_part = {step, PEN_STORE, "the disk is full", 0}};
    c.u.snapshot_part.lacks_room = true;
    c.u.snapshot_part.spare      = spare;
    say_server(j, server, &c);
}

static void test_core_deletes_the_oldest_snapshot_for_a_full_server_and_asks_once_more(void **state)
{
    (void)state;
    job *j         = training(1, 2);
    wire_control c = {.kind = WIRE_SNAPSHOT_PLEASE, .u.snapshot_please = {4}};
    say_worker(j, 0, &c);
    forget(j);
    part(j, 0, 101, PEN_OK, "");
    lacks_room(j, 1, 101, 20);
    assert_int_equal(must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE)->gone, 20);
    assert_int_equal(must(j, SERVER_PEER + 1, WIRE_SNAPSHOT_DONE)->gone, 20);
    assert_int_equal(count(j, WIRE_SNAPSHOT_DONE), 2); /* the asker is answered with the next one */
    must(j, WORKER_PEER, WIRE_SNAPSHOT_PLEASE);
    assert_non_null(strstr(j->logged,
                           "no snapshot of step 101: server 1 (devbox): the disk is full; "
                           "deleting the snapshot of step 20 and trying again"));
    forget(j);
    part(j, 0, 102, PEN_OK, "");
    lacks_room(j, 1, 102, 30); /* so the disk is full of other data */
    assert_int_equal(must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE)->gone, -1);
    assert_int_equal(must(j, WORKER_PEER, WIRE_SNAPSHOT_DONE)->status, PEN_STORE);
    assert_int_equal(count(j, WIRE_SNAPSHOT_PLEASE), 0);
    drop_job(j);
}

static void test_core_never_deletes_the_only_complete_snapshot(void **state)
{
    (void)state;
    job *j = training(1, 2);
    part(j, 0, 101, PEN_OK, "");
    lacks_room(j, 1, 101, -1);
    assert_int_equal(must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE)->gone, -1);
    assert_int_equal(count(j, WIRE_SNAPSHOT_PLEASE), 0);
    drop_job(j);
}

static void test_core_survives_snapshots_that_never_become_whole(void **state)
{
    (void)state;
    job *j = training(1, 2);
    for (int64_t step = 0; step < 100; step++) part(j, 0, step, PEN_OK, "");
    part(j, 1, 99, PEN_OK, "");
    assert_int_equal(must(j, SERVER_PEER, WIRE_SNAPSHOT_DONE)->step, 99);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_places_the_model_and_commits_when_all_servers_are_ready),
        cmocka_unit_test(test_core_names_tensor_and_both_ranks_that_register_different_models),
        cmocka_unit_test(test_core_repeats_what_a_returning_member_missed),
        cmocka_unit_test(test_core_restores_the_newest_snapshot_that_all_servers_have),
        cmocka_unit_test(test_core_asks_what_to_do_with_existing_snapshots),
        cmocka_unit_test(test_core_starts_fresh_when_the_setting_says_fresh),
        cmocka_unit_test(test_core_names_the_store_without_a_snapshot_to_resume_from),
        cmocka_unit_test(test_core_ends_the_job_when_a_server_restored_something_else),
        cmocka_unit_test(test_core_completes_a_snapshot_when_every_server_has_its_part),
        cmocka_unit_test(test_core_names_the_server_that_could_not_write_its_part),
        cmocka_unit_test(test_core_says_a_failing_disk_once_and_that_it_works_again),
        cmocka_unit_test(
            test_core_deletes_the_oldest_snapshot_for_a_full_server_and_asks_once_more),
        cmocka_unit_test(test_core_never_deletes_the_only_complete_snapshot),
        cmocka_unit_test(test_core_survives_snapshots_that_never_become_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
