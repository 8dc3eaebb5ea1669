/* membership_client_test.c - what a worker concludes about its scheduler; manual clock, no network. */
#include "membership_client_pass.h"
#include "common/base/why.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SELF = 900, LEASE_MS = 10000 };

typedef struct {
    membership_client *membership_client;
    uint64_t now;
    int sent[WIRE_CONTROL_END], n_failed, n_left, n_renewed;
    pen_error why;
} world;

/* ---- actions --------------------------------------------------------------------------------- */
static void on_send(void *user, const wire_control *m)
{
    ((world *)user)->sent[m->kind]++;
}

static void on_message(void *user, const wire_control *m)
{
    (void)user, (void)m;
}

static void on_beat(void *user, wire_control *beat)
{
    (void)user;
    beat->u.beat.call = "";
}

static void on_committed(void *user, int64_t step, int64_t applied)
{
    (void)user, (void)step, (void)applied;
}

static void on_snapshot_done(void *user, int64_t step, pen_status status, const char *text)
{
    (void)user, (void)step, (void)status, (void)text;
}

static void on_nothing(void *user)
{
    (void)user;
}

static void on_left(void *user)
{
    ((world *)user)->n_left++;
}

static void on_renew(void *user)
{
    ((world *)user)->n_renewed++;
}

static void on_failed(void *user, const pen_error *why)
{
    world *w = user;
    w->n_failed++;
    w->why = *why;
}

static const char *on_silence(void *user)
{
    (void)user;
    return "(nothing)";
}

static void on_log(void *user, int level, const char *line)
{
    (void)user, (void)level, (void)line;
}

/* ---- a world --------------------------------------------------------------------------------- */
static void hear(world *w, wire_control m)
{
    membership_client_receive(w->membership_client, &m, w->now);
}

static void welcome(world *w)
{
    hear(w, (wire_control){
                .kind      = WIRE_WELCOME,
                .u.welcome = {.incarnation = SELF, .lease_ms = LEASE_MS, .rank = 0, .job = ""}});
}

static void leave_will(world *w, const char *text)
{
    wire_control c = {.kind = WIRE_WILL};
    why_set(&c.u.verdict, PEN_UNREACHABLE, "%s", text);
    why_culprit(&c.u.verdict, PEN_SCHEDULER, -1, 418, "pen_step_end");
    hear(w, c);
}

static void joined(world *w)
{
    static const membership_client_actions actions = {
        on_send, on_message, on_message, on_committed, on_snapshot_done, on_nothing,
        on_left, on_failed,  on_beat,    on_silence,   on_log,           .renew = on_renew};
    const membership_client_setup setup = {.rank            = 0,
                                           .world_size      = 2,
                                           .servers         = 1,
                                           .nonce           = 5,
                                           .lease_ms        = LEASE_MS,
                                           .init_timeout_ms = 300000,
                                           .host            = "devbox",
                                           .job             = "",
                                           .scheduler       = "10.0.0.7:29500"};
    pen_error why;
    *w                   = (world){.now = 5000};
    w->membership_client = membership_client_create(&setup, &actions, w, w->now, &why);
    assert_non_null(w->membership_client);
    membership_up(membership_client_core(w->membership_client), w->now);
    welcome(w);
    hear(w, (wire_control){.kind = WIRE_EPOCH, .u.epoch.job = ""});
}

static void pass(world *w, uint64_t ms, bool answers)
{
    membership_client_pass(w->membership_client, &w->now, &w->sent[WIRE_BEAT], ms, answers);
}

/* ---- the scheduler is gone ------------------------------------------------------------------- */
static void test_membership_client_reports_the_last_will_after_the_connection_broke(void **state)
{
    (void)state;
    world w;
    joined(&w);
    leave_will(&w, "an old will");
    leave_will(&w, "the scheduler is gone; step 418");
    pass(&w, 3000, true);
    membership_down(membership_client_core(w.membership_client), w.now);
    pass(&w, 999, false);
    assert_int_equal(w.n_failed, 0);
    pass(&w, 1, false);
    assert_int_equal(w.n_failed, 1);
    assert_string_equal(w.why.text, "the scheduler is gone; step 418");
    assert_int_equal(w.why.status, PEN_UNREACHABLE);
    assert_int_equal(w.why.role, PEN_SCHEDULER);
    assert_int_equal(w.why.step, 418);
    assert_string_equal(w.why.tensor, "pen_step_end");
    assert_float_equal(w.why.last_seen_s, 1, 1e-9);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_reports_the_last_will_after_a_lease_of_silence(void **state)
{
    (void)state;
    world w;
    joined(&w);
    leave_will(&w, "the scheduler is gone; step 418");
    pass(&w, 5000, true);
    const uint64_t heard = w.now;
    pass(&w, LEASE_MS - 1000, false);
    assert_int_equal(w.n_failed, 0);
    pass(&w, 1001, false);
    assert_int_equal(w.n_failed, 1);
    assert_true(w.now <= heard + LEASE_MS + 1);
    assert_string_equal(w.why.text, "the scheduler is gone; step 418");
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_has_its_own_sentence_without_a_last_will(void **state)
{
    (void)state;
    world w;
    joined(&w);
    membership_down(membership_client_core(w.membership_client), w.now);
    pass(&w, 1000, false);
    assert_string_equal(w.why.text, "the scheduler at 10.0.0.7:29500 is gone: its connection broke "
                                    "and did not come back");
    membership_client_destroy(w.membership_client);
}

/* ---- the scheduler is alive ------------------------------------------------------------------ */
static void test_membership_client_goes_on_when_the_scheduler_welcomes_it_back(void **state)
{
    (void)state;
    world w;
    joined(&w);
    membership_down(membership_client_core(w.membership_client), w.now);
    pass(&w, 900, false);
    const int hellos = w.sent[WIRE_HELLO];
    membership_up(membership_client_core(w.membership_client), w.now);
    assert_int_equal(w.sent[WIRE_HELLO], hellos + 1);
    pass(&w, 800, false);
    welcome(&w);
    pass(&w, 60000, true);
    assert_int_equal(w.n_failed, 0);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_does_not_take_a_bare_connection_for_the_scheduler(void **state)
{
    (void)state;
    world w;
    joined(&w);
    membership_down(membership_client_core(w.membership_client), w.now);
    pass(&w, 500, false);
    membership_up(membership_client_core(w.membership_client),
                  w.now);                         /* another process has its port now */
    hear(&w, (wire_control){.kind = WIRE_HELLO}); /* or we dialled ourselves */
    pass(&w, 1299, false);
    assert_int_equal(w.n_failed, 0);
    pass(&w, 1, false);
    assert_int_equal(w.n_failed, 1);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_counts_a_broken_connection_from_its_first_break(void **state)
{
    (void)state;
    world w;
    joined(&w);
    membership_down(membership_client_core(w.membership_client), w.now);
    for (int i = 0; i < 9; i++) {
        pass(&w, 100, false);
        membership_up(membership_client_core(w.membership_client), w.now);
        membership_down(membership_client_core(w.membership_client), w.now);
    }
    assert_int_equal(w.n_failed, 0);
    pass(&w, 100, false);
    assert_int_equal(w.n_failed, 1);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_blames_no_member_for_its_own_pause(void **state)
{
    (void)state;
    world w;
    joined(&w);
    pass(&w, 3000, true);
    w.now += 9900; /* stopped and continued */
    membership_tick(membership_client_core(w.membership_client), w.now);
    pass(&w, 5000, true);
    assert_int_equal(w.n_failed, 0);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_asks_for_another_connection_after_each_quarter_of_a_silent_lease(
    void **state)
{
    (void)state;
    world w;
    joined(&w);
    pass(&w, 60000, true);
    assert_int_equal(w.n_renewed, 0);
    pass(&w, LEASE_MS / 4 + 1, false);
    assert_int_equal(w.n_renewed, 1);
    pass(&w, LEASE_MS / 2, false);
    assert_int_equal(w.n_renewed, 3);
    membership_up(membership_client_core(w.membership_client), w.now);
    welcome(&w);
    pass(&w, 60000, true);
    assert_int_equal(w.n_renewed, 3);
    assert_int_equal(w.n_failed, 0);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_beats_at_once_with_a_new_step(void **state)
{
    (void)state;
    world w;
    const wire_model model = {0};
    const uint32_t shard   = 0;
    joined(&w);
    membership_client_register(w.membership_client, &model, w.now);
    hear(&w, (wire_control){.kind = WIRE_PLAN, .u.plan = {.n_partitions = 1, .shard = &shard}});
    const int beats = w.sent[WIRE_BEAT];
    hear(&w, (wire_control){.kind = WIRE_COMMITTED});
    assert_int_equal(w.sent[WIRE_BEAT], beats + 1);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_repeats_a_failure_until_the_verdict_has_come(void **state)
{
    (void)state;
    world w;
    joined(&w);
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "no memory for a step");
    membership_client_report(w.membership_client, &why);
    assert_int_equal(w.sent[WIRE_FAILURE], 1);
    membership_down(membership_client_core(w.membership_client), w.now); /* it may be lost */
    pass(&w, 500, false);
    assert_int_equal(w.sent[WIRE_FAILURE], 1);
    membership_up(membership_client_core(w.membership_client), w.now);
    welcome(&w);
    assert_int_equal(w.sent[WIRE_FAILURE], 2);
    hear(&w, (wire_control){.kind = WIRE_VERDICT, .u.verdict = why});
    assert_int_equal(w.n_failed, 1);
    pass(&w, 2000, true);
    assert_int_equal(w.sent[WIRE_FAILURE], 2);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_leaves_without_error_if_the_scheduler_is_gone(void **state)
{
    (void)state;
    world w;
    joined(&w);
    membership_leave(membership_client_core(w.membership_client), w.now);
    membership_down(membership_client_core(w.membership_client), w.now);
    pass(&w, 1000, false);
    assert_int_equal(w.n_failed, 0);
    assert_int_equal(w.n_left, 1);
    membership_client_destroy(w.membership_client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_membership_client_reports_the_last_will_after_the_connection_broke),
        cmocka_unit_test(test_membership_client_reports_the_last_will_after_a_lease_of_silence),
        cmocka_unit_test(test_membership_client_has_its_own_sentence_without_a_last_will),
        cmocka_unit_test(test_membership_client_goes_on_when_the_scheduler_welcomes_it_back),
        cmocka_unit_test(test_membership_client_does_not_take_a_bare_connection_for_the_scheduler),
        cmocka_unit_test(test_membership_client_counts_a_broken_connection_from_its_first_break),
        cmocka_unit_test(test_membership_client_blames_no_member_for_its_own_pause),
        cmocka_unit_test(
            test_membership_client_asks_for_another_connection_after_each_quarter_of_a_silent_lease),
        cmocka_unit_test(test_membership_client_beats_at_once_with_a_new_step),
        cmocka_unit_test(test_membership_client_repeats_a_failure_until_the_verdict_has_come),
        cmocka_unit_test(test_membership_client_leaves_without_error_if_the_scheduler_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
