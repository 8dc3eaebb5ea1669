/* scheduler_core_test.c - answers to status queries, invalid messages, and the last will. */
#include "scheduler_job.h"
#include "tests/support/wire_samples.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_core_describes_the_job_to_any_asker(void **state)
{
    (void)state;
    job *j = training(3, 1);
    beat(j, 2, 17, "", 0);
    scheduler_core_refused(j->core);
    wire_control c = {.kind = WIRE_STATUS_ASK};
    give(j, 42, &c, 0);
    const letter *l = must(j, 42, WIRE_STATUS);
    assert_int_equal(l->n, 4);
    assert_int_equal(l->step, 17);
    assert_true(l->refused == 1);
    assert_string_equal(l->text, "training");
    drop_job(j);
}

static void note_addresses(void *user, const wire_control *status)
{
    const wire_member *m = &status->u.status.member[0].member;
    for (uint32_t i = 0; i < m->n_addresses; i++) strcat(strcat(user, m->address[i]), " ");
}

/* Any asker: an observer, a tool, a reader of /status. */
static void test_core_does_not_disclose_the_memory_of_members(void **state)
{
    (void)state;
    static const char *const none[] = {NULL};
    static const char *const own[]  = {"node:b-1:9:0:41:5:ab:4096", "tcp://devbox:7", "host:a",
                                       "cuda:41:6:cd:8192:0"};
    char told[256]                  = "";
    job *j                          = make_job(none);
    wire_control c                  = hello_of(PEN_WORKER, 0, 2, 0, 10);
    c.u.hello.n_addresses           = 4;
    c.u.hello.address               = own;
    assert_true(hello(j, WORKER_PEER, &c) != 0);
    assert_true(scheduler_core_describe(j->core, j->now, note_addresses, told));
    assert_string_equal(told, "tcp://devbox:7 ");
    drop_job(j);
}

static void test_core_answers_beats_with_the_furthest_step(void **state)
{
    (void)state;
    job *j = training(2, 1);
    beat(j, 0, 7, "", 0);
    beat(j, 1, 5, "", 0);
    assert_int_equal(must(j, WORKER_PEER + 1, WIRE_BEAT_ACK)->step, 7);
    drop_job(j);
}

static void test_core_ignores_every_message_out_of_turn(void **state)
{
    (void)state;
    static const char *const none[] = {NULL};
    for (int stage = 0; stage < 3; stage++) {
        job *j = stage == 0 ? make_job(none) : training(2, 1);
        if (stage == 0) worker_comes(j, 0, 2, 1);
        if (stage == 2) leaves(j, 0);
        for (int kind = 0; kind < WIRE_CONTROL_END + 5; kind++) {
            wire_control c = {.kind = (wire_control_kind)kind};
            if (kind == WIRE_BYE || kind == WIRE_FAILURE || kind == WIRE_REGISTER) continue;
            say_worker(j, 0, &c);
            say_server(j, 0, &c);
            give(j, 42, &c, 12345);
            give(j, WORKER_PEER, &c, j->worker[0] + 1);
        }
        assert_false(j->has_ended);
        assert_int_equal(count(j, WIRE_ENQUIRE), 0);
        drop_job(j);
    }
}

/* ---- any message, from any peer, at any time: nothing breaks, and all promises hold ---------- */
static uint64_t drawn(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void storm_speaks(job *j, uint64_t *seed)
{
    static const int32_t roles[] = {PEN_WORKER,    PEN_WORKER,    PEN_SERVER,
                                    WIRE_LAUNCHER, WIRE_OBSERVER, 77};
    const int32_t rank           = (int32_t)(drawn(seed) % 5) - 1;
    const uint64_t nonce         = drawn(seed) % 12;
    const uint32_t peer          = (uint32_t)(drawn(seed) % 16);
    const int kind               = WIRE_HELLO + (int)(drawn(seed) % 25);
    if (!wire_is_control_kind(kind)) return;
    wire_control c = wire_sample_control((wire_control_kind)kind);
    if (drawn(seed) % 4 == 0) c = hello_of(roles[drawn(seed) % 6], rank, 3, 2, nonce);
    if (c.kind == WIRE_EXITED) c.u.exited.rank = rank;
    if (c.kind == WIRE_FAILURE && drawn(seed) % 64)
        return; /* or every job would end in its first second */
    if (c.kind == WIRE_EXITED && drawn(seed) % 16) return;
    give(j, peer, &c, (uint64_t)7 << 24 | (drawn(seed) % 16 + 1));
}

static void test_core_survives_any_message_from_any_peer_at_any_time(void **state)
{
    (void)state;
    uint64_t seed = 20240229;
    print_message("seed %" PRIu64 "\n", seed);
    uint32_t n_ended = 0;
    for (int round = 0; round < 300; round++) {
        job *j = make_job(nothing);
        if (round % 2) all_come(j, 3, 2);
        for (int event = 0; event < 400 && !j->has_ended; event++) {
            forget(j);
            if (drawn(&seed) % 20 == 0) breaks(j, (uint32_t)(drawn(&seed) % 16));
            if (drawn(&seed) % 10 == 0) pass(j, drawn(&seed) % 500);
            storm_speaks(j, &seed);
        }
        if (!j->has_ended && round % 2)
            pass(j, 20000); /* all three workers are silent: their lease ends the job */
        n_ended += j->has_ended;
        drop_job(j);
    }
    assert_true(n_ended >= 150);
}

/* ---- the last will --------------------------------------------------------------------------- */
static void assert_same_will(const job *j, const char *text)
{
    const uint32_t peers[] = {WORKER_PEER, WORKER_PEER + 1, SERVER_PEER};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(must(j, peers[i], WIRE_WILL)->text, text);
        assert_int_equal(must(j, peers[i], WIRE_WILL)->status, PEN_UNREACHABLE);
    }
}

static void test_core_sends_its_last_will_to_every_new_member(void **state)
{
    (void)state;
    job *j = make_job(nothing);
    scheduler_core_introduce(j->core, "10.0.0.7:29500", "devbox");
    worker_comes(j, 0, 2, 1);
    assert_string_equal(must(j, WORKER_PEER, WIRE_WILL)->text,
                        "the scheduler at 10.0.0.7:29500 is gone: it ran on devbox; at its last "
                        "message the job was before its first step");
    drop_job(j);
}

static void test_core_sends_a_changed_last_will_to_all_at_once(void **state)
{
    (void)state;
    job *j = training(2, 1);
    pass(j, 4000);
    assert_int_equal(count(j, WIRE_WILL), 0); /* no change */
    beat(j, 0, 417, "pen_step_end", 0);
    beat(j, 1, 418, "pen_ready", 0);
    assert_int_equal(count(j, WIRE_WILL), 0);               /* not for each single change */
    assert_true(scheduler_core_next_ms(j->core) == j->now); /* but soon: it is the first step */
    pass(j, 2000);
    assert_int_equal(count(j, WIRE_WILL), 3);
    assert_same_will(j, "the scheduler at a is gone: it ran on a; at its last message the job was "
                        "in step 418, worker 1 in pen_ready");
    assert_int_equal(must(j, WORKER_PEER, WIRE_WILL)->step, 418);
    drop_job(j);
}

static void test_core_sends_the_same_last_will_to_a_returning_member(void **state)
{
    (void)state;
    job *j = training(2, 1);
    beat(j, 0, 5, "pen_step_end", 0);
    pass(j, 2000);
    const letter told = *must(j, WORKER_PEER, WIRE_WILL);
    beat(j, 0, 6, "pen_step_end", 0);
    breaks(j, WORKER_PEER + 1);
    worker_comes(j, 1, 2, 1);
    assert_string_equal(must(j, WORKER_PEER + 1, WIRE_WILL)->text, told.text);
    drop_job(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_core_describes_the_job_to_any_asker),
        cmocka_unit_test(test_core_does_not_disclose_the_memory_of_members),
        cmocka_unit_test(test_core_answers_beats_with_the_furthest_step),
        cmocka_unit_test(test_core_ignores_every_message_out_of_turn),
        cmocka_unit_test(test_core_survives_any_message_from_any_peer_at_any_time),
        cmocka_unit_test(test_core_sends_its_last_will_to_every_new_member),
        cmocka_unit_test(test_core_sends_a_changed_last_will_to_all_at_once),
        cmocka_unit_test(test_core_sends_the_same_last_will_to_a_returning_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
