/* scheduler_prove_test.c - shared memory is proven before a job begins, and the record lists where workers are. */
#include "scheduler/core/membership/core_members.h"
#include "tests/support/scheduler_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WORKERS = 5 };

/* The number in that rank's memory; 0: it shares none. */
static uint64_t number_of(int32_t rank)
{
    return 0x1234567890abcdef + (uint64_t)rank;
}

static void comes(scene *r, int32_t rank, uint64_t nonce, const char *machine, bool shares)
{
    const char *const address = "node:somewhere";
    wire_control c            = scene_hello(PEN_WORKER, rank, r->workers, r->servers, nonce);
    c.u.hello.machine         = machine;
    c.u.hello.number          = shares ? number_of(rank) : 0;
    c.u.hello.n_addresses     = 1;
    c.u.hello.address         = &address;
    scene_give(r, SCENE_WORKER(rank), &c, 0);
}

static void all_come(scene *r)
{
    for (int32_t w = 0; w < r->workers; w++) comes(r, w, 4000 + (uint64_t)w, "a", true);
}

/* What it could read: "0 1 3"; '!' before a rank marks a wrong number. */
static void proves(scene *r, int32_t rank, uint64_t round, const char *ranks)
{
    int32_t who[16];
    uint64_t number[16];
    uint32_t n = 0;
    for (bool is_wrong = false; *ranks != '\0'; ranks++) {
        if (*ranks < '0' || *ranks > '9') {
            is_wrong = *ranks == '!';
            continue;
        }
        who[n]    = *ranks - '0';
        number[n] = number_of(who[n]) + is_wrong;
        n++;
    }
    wire_control c       = {.kind = WIRE_PROVEN};
    c.u.proven.round     = round;
    c.u.proven.n_ranks   = n;
    c.u.proven.n_numbers = n;
    c.u.proven.rank      = who;
    c.u.proven.number    = number;
    scene_say(r, SCENE_WORKER(rank), &c);
}

static uint64_t round_of(const scene *r, int32_t rank)
{
    return scene_must(r, SCENE_WORKER(rank), WIRE_PROVE)->u.prove.round;
}

/* `sharing` of all in the record: "0 0 2". */
static void assert_sharing(const scene *r, const char *expected)
{
    char text[128]        = "";
    const wire_control *c = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    for (uint32_t i = 0; i < c->u.epoch.n_workers; i++)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i > 0 ? " " : "",
                       c->u.epoch.worker[i].sharing);
    assert_string_equal(text, expected);
}

static void workers_that_read_each_others_numbers_share_memory(void **state)
{
    (void)state;
    scene *r = scene_wait(WORKERS, 0, NULL);
    all_come(r);
    assert_int_equal(scene_count(r, WIRE_EPOCH), 0);
    const wire_control *asked = scene_must(r, SCENE_WORKER(3), WIRE_PROVE);
    assert_int_equal(asked->u.prove.n_workers, WORKERS);
    assert_string_equal(asked->u.prove.worker[2].address[0], "node:somewhere");
    const uint64_t round = asked->u.prove.round;
    proves(r, 0, round, "1 3 4");
    proves(r, 1, round, "0 3");
    proves(r, 2, round, "4");
    proves(r, 3, round, "0 1 4");
    assert_int_equal(scene_count(r, WIRE_EPOCH), 0);
    proves(r, 4, round, "0 2 3");
    assert_sharing(r, "0 0 2 0 2"); /* 4 and 1 cannot map each other */
    scene_drop(r);
}

static void one_machine_is_not_a_proof(void **state)
{
    (void)state;
    scene *r = scene_wait(3, 0, NULL);
    all_come(r);
    const uint64_t round = round_of(r, 0);
    proves(r, 0, round, "1");
    proves(r, 1, round, ""); /* one may be able to open the other's, but not the reverse */
    proves(r, 2, round, "");
    assert_sharing(r, "0 1 2");
    scene_drop(r);
}

static void guessed_numbers_prove_nothing(void **state)
{
    (void)state;
    scene *r = scene_wait(3, 0, NULL);
    all_come(r);
    const uint64_t round = round_of(r, 0);
    proves(r, 0, round, "1 2");
    proves(r, 1, round, "!0 !2");
    proves(r, 2, round, "0 1 7 9"); /* rank 7 does not exist */
    assert_sharing(r, "0 1 0");
    scene_drop(r);
}

static void a_job_without_shared_memory_needs_no_proof(void **state)
{
    (void)state;
    scene *r = scene_wait(3, 0, NULL);
    comes(r, 0, 1, "a", false);
    comes(r, 1, 2, "a", true);
    comes(r, 2, 3, "a", false);
    assert_int_equal(scene_count(r, WIRE_PROVE), 0);
    assert_sharing(r, "0 1 2");
    scene_drop(r);
}

static void a_worker_without_shared_memory_is_left_out(void **state)
{
    (void)state;
    scene *r = scene_wait(3, 0, NULL);
    comes(r, 0, 1, "a", true);
    comes(r, 1, 2, "a", false);
    comes(r, 2, 3, "a", true);
    const uint64_t round = round_of(r, 0);
    proves(r, 0, round, "1 2");
    proves(r, 2, round, "0 1");
    assert_sharing(r, "0 1 0");
    scene_drop(r);
}

static void proofs_are_not_waited_for_beyond_their_time(void **state)
{
    (void)state;
    scene *r = scene_wait(3, 0, NULL);
    all_come(r);
    const uint64_t round = round_of(r, 0);
    proves(r, 0, round, "1 2");
    proves(r, 1, round, "0 2");
    scene_pass(r, 4000);
    assert_int_equal(scene_count(r, WIRE_EPOCH), 0);
    scene_pass(r, 2000);
    assert_sharing(r, "0 0 2");
    scene_drop(r);
}

static void a_replacement_is_asked_with_all_the_others(void **state)
{
    (void)state;
    scene *r = scene_wait(3, 0, NULL);
    all_come(r);
    const uint64_t round = round_of(r, 0);
    proves(r, 0, round, "1 2");
    proves(r, 1, round, "0 2");
    scheduler_core_peer_down(r->core, SCENE_WORKER(2), r->now);
    scene_pass(r, 7000); /* the first question has timed out, and no record was sent */
    assert_int_equal(scene_count(r, WIRE_EPOCH), 0);
    scene_forget(r);
    comes(r, 2, 777, "a", true);
    assert_true(round_of(r, 0) > round);
    proves(r, 2, round, "0 1"); /* an answer to an earlier question */
    for (int32_t w = 0; w < 3; w++) proves(r, w, round_of(r, w), "0 1 2");
    assert_sharing(r, "0 0 0");
    scene_drop(r);
}

static void a_returning_member_is_asked_again(void **state)
{
    (void)state;
    scene *r = scene_wait(2, 0, NULL);
    all_come(r);
    proves(r, 0, round_of(r, 0), "1");
    scheduler_core_peer_down(r->core, SCENE_WORKER(1), r->now);
    scene_forget(r);
    comes(r, 1, 4001, "a", true); /* the same process */
    proves(r, 1, round_of(r, 1), "0");
    assert_sharing(r, "0 0");
    scene_drop(r);
}

static void proofs_outlive_the_scheduler(void **state)
{
    (void)state;
    scene *r = scene_wait(2, 1, "state=kept", NULL);
    scene_server_comes(r, 0, 5000);
    all_come(r);
    for (int32_t w = 0; w < 2; w++) proves(r, w, round_of(r, w), "0 1");
    for (int32_t w = 0; w < 2; w++) scene_registers(r, w, false);
    scene_ready(r, 0);
    scene_restart(r);
    for (int32_t w = 0; w < 2; w++) {
        wire_control c    = scene_hello(PEN_WORKER, w, 2, 1, 4000 + (uint64_t)w);
        c.u.hello.machine = "a";
        scene_say(r, SCENE_WORKER(w), &c);
    }
    scene_comes_back(r, SCENE_SERVER(0));
    scene_seals_all(r, 0);
    assert_int_equal(scene_count(r, WIRE_PROVE), 0);
    assert_sharing(r, "0 0");
    const wire_control *c = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    assert_int_equal(c->u.epoch.worker[1].local_rank, 1);
    assert_int_equal(c->u.epoch.worker[1].node, 0);
    scene_drop(r);
}

/* ---- where workers are ----------------------------------------------------------------------- */
static void the_record_places_workers_whose_launcher_does_not(void **state)
{
    (void)state;
    scene *r                 = scene_wait(4, 0, NULL);
    const char *const on[]   = {"a", "b", "a", "b"};
    const int32_t expected[] = {0, 0, 1, 1};
    for (int32_t w = 0; w < 4; w++) comes(r, w, 1 + (uint64_t)w, on[w], false);
    const wire_control *c = scene_must(r, SCENE_WORKER(3), WIRE_EPOCH);
    for (int32_t w = 0; w < 4; w++) {
        assert_int_equal(c->u.epoch.worker[w].node, w % 2);
        assert_int_equal(c->u.epoch.worker[w].local_rank, expected[w]);
    }
    scene_drop(r);
}

static void local_ranks_that_contradict_each_other_end_the_job_with_a_sentence(void **state)
{
    (void)state;
    scene *r = scene_wait(2, 0, NULL);
    for (int32_t w = 0; w < 2; w++) {
        wire_control c       = scene_hello(PEN_WORKER, w, 2, 0, 10 + (uint64_t)w);
        c.u.hello.machine    = "a";
        c.u.hello.local_rank = 0;
        scene_give(r, SCENE_WORKER(w), &c, 0);
    }
    const wire_control *c = scene_must(r, SCENE_WORKER(0), WIRE_VERDICT);
    assert_int_equal(c->u.verdict.status, PEN_MISMATCH);
    assert_string_equal(c->u.verdict.text,
                        "worker 0 (devbox) and worker 1 (devbox) are on one node and both have "
                        "LOCAL_RANK 0; set a different one for each, or none at all");
    assert_int_equal(scene_count(r, WIRE_EPOCH), 0);
    scene_drop(r);
}

static void a_latecomer_is_told_its_place(void **state)
{
    (void)state;
    scene *r = scene_train(2, 1, "on_worker_loss=wait", NULL);
    scene_worker_dies(r, 1);
    scene_forget(r);
    scene_worker_comes(r, 1, 777);
    const wire_control *c = scene_must(r, SCENE_WORKER(1), WIRE_WELCOME);
    assert_int_equal(c->u.welcome.local_rank, 1);
    assert_int_equal(c->u.welcome.node, 0);
    scene_drop(r);
}

static void workers_of_another_kernel_are_not_tried(void **state)
{
    static const char *const machine[] = {"boot:1:x", "boot:1:y", "boot:12:x", "boot:1:x", "id:1"};
    (void)state;
    scene *r = scene_wait(WORKERS, 0, NULL);
    for (int32_t w = 0; w < WORKERS; w++) comes(r, w, 100 + (uint64_t)w, machine[w], true);
    assert_int_equal(scene_must(r, SCENE_WORKER(0), WIRE_PROVE)->u.prove.n_workers, 3);
    assert_null(scene_last(r, SCENE_WORKER(2), WIRE_PROVE));
    assert_null(scene_last(r, SCENE_WORKER(4), WIRE_PROVE));
    const uint64_t round = round_of(r, 0);
    proves(r, 2, round, "0 1 3 4"); /* it was not asked, and can do nothing with what it knows */
    proves(r, 0, round, "1 2 3");
    proves(r, 1, round, "0 2 3");
    proves(r, 3, round, "0 1 2");
    assert_sharing(r, "0 0 2 0 4");
    scene_drop(r);
}

static void a_host_of_many_workers_has_several_sets(void **state)
{
    enum { MANY = 2 * CORE_SHARING_MAX + 1 };
    int32_t who[CORE_SHARING_MAX];
    uint64_t number[CORE_SHARING_MAX];
    (void)state;
    scene *r = scene_wait(MANY, 0, NULL);
    for (int32_t w = 0; w < MANY; w++) comes(r, w, 100 + (uint64_t)w, "a", true);
    assert_null(scene_last(r, SCENE_WORKER(MANY - 1), WIRE_PROVE));
    for (int32_t w = 0; w < MANY - 1; w++) {
        const wire_control *asked = scene_must(r, SCENE_WORKER(w), WIRE_PROVE);
        const uint32_t n          = asked->u.prove.n_workers;
        assert_int_equal(n, CORE_SHARING_MAX);
        for (uint32_t i = 0; i < n; i++) {
            who[i]    = asked->u.prove.worker[i].rank;
            number[i] = number_of(who[i]);
            assert_int_equal(who[i] / CORE_SHARING_MAX, w / CORE_SHARING_MAX);
        }
        wire_control c       = {.kind = WIRE_PROVEN};
        c.u.proven.round     = asked->u.prove.round;
        c.u.proven.n_ranks   = n;
        c.u.proven.n_numbers = n;
        c.u.proven.rank      = who;
        c.u.proven.number    = number;
        scene_say(r, SCENE_WORKER(w), &c);
    }
    const wire_control *epoch = scene_must(r, SCENE_WORKER(0), WIRE_EPOCH);
    for (int32_t w = 0; w < MANY; w++)
        assert_int_equal(epoch->u.epoch.worker[w].sharing, w - w % CORE_SHARING_MAX);
    scene_drop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_of_another_kernel_are_not_tried),
        cmocka_unit_test(a_host_of_many_workers_has_several_sets),
        cmocka_unit_test(workers_that_read_each_others_numbers_share_memory),
        cmocka_unit_test(one_machine_is_not_a_proof),
        cmocka_unit_test(guessed_numbers_prove_nothing),
        cmocka_unit_test(a_job_without_shared_memory_needs_no_proof),
        cmocka_unit_test(a_worker_without_shared_memory_is_left_out),
        cmocka_unit_test(proofs_are_not_waited_for_beyond_their_time),
        cmocka_unit_test(a_replacement_is_asked_with_all_the_others),
        cmocka_unit_test(a_returning_member_is_asked_again),
        cmocka_unit_test(proofs_outlive_the_scheduler),
        cmocka_unit_test(the_record_places_workers_whose_launcher_does_not),
        cmocka_unit_test(local_ranks_that_contradict_each_other_end_the_job_with_a_sentence),
        cmocka_unit_test(a_latecomer_is_told_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
