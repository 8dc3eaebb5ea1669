/* membership_client_epoch_test.c - a worker whose scheduler may be away for a while, and whose job changes;
 * manual clock, no network. */
#include "membership_client_pass.h"
#include "common/base/why.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SELF = 900, LEASE_MS = 10000, GRACE_MS = 60000 };

typedef struct {
    membership_client *membership_client;
    uint64_t now, hello_from, epoch;
    int sent[WIRE_CONTROL_END], n_failed, n_left, n_epochs, n_stops, n_lost, n_logs;
    pen_error why;
    char log[512];
} world;

/* ---- actions --------------------------------------------------------------------------------- */
static void on_send(void *user, const wire_control *m)
{
    world *w = user;
    w->sent[m->kind]++;
    if (m->kind == WIRE_HELLO) w->hello_from = m->from;
}

static void on_epoch(void *user, const wire_control *m)
{
    world *w = user;
    w->epoch = m->u.epoch.epoch;
    w->n_epochs++;
}

static void on_plan(void *user, const wire_control *m)
{
    (void)user, (void)m;
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

static void on_failed(void *user, const pen_error *why)
{
    world *w = user;
    w->n_failed++;
    w->why = *why;
}

static void on_beat(void *user, wire_control *beat)
{
    (void)user;
    beat->u.beat.call = "";
}

static const char *on_silence(void *user)
{
    (void)user;
    return "(nothing)";
}

static void on_log(void *user, int level, const char *line)
{
    world *w = user;
    snprintf(w->log, sizeof w->log, "%s", line);
    w->n_logs++;
    (void)level;
}

static void on_lost(void *user, int32_t rank, const pen_error *why)
{
    (void)rank, (void)why;
    ((world *)user)->n_lost++;
}

static void on_stop(void *user)
{
    ((world *)user)->n_stops++;
}

/* ---- a world --------------------------------------------------------------------------------- */
static void hear(world *w, wire_control m)
{
    membership_client_receive(w->membership_client, &m, w->now);
}

static void welcome(world *w, uint64_t incarnation, uint64_t term)
{
    hear(w, (wire_control){.kind      = WIRE_WELCOME,
                           .u.welcome = {.incarnation = incarnation,
                                         .term        = term,
                                         .lease_ms    = LEASE_MS,
                                         .grace_ms    = GRACE_MS,
                                         .job         = ""}});
}

static void epoch(world *w, uint64_t term, uint64_t number)
{
    hear(w, (wire_control){.kind    = WIRE_EPOCH,
                           .u.epoch = {.term = term, .epoch = number, .job = "", .step = -1}});
}

static void joined(world *w)
{
    static const membership_client_actions actions = {.send             = on_send,
                                                      .epoch            = on_epoch,
                                                      .plan             = on_plan,
                                                      .committed        = on_committed,
                                                      .snapshot_done    = on_snapshot_done,
                                                      .snapshot_please  = on_nothing,
                                                      .left             = on_left,
                                                      .failed           = on_failed,
                                                      .fill_beat        = on_beat,
                                                      .describe_silence = on_silence,
                                                      .log              = on_log,
                                                      .lost             = on_lost,
                                                      .stop             = on_stop};
    const membership_client_setup setup            = {.world_size      = 2,
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
    assert_int_equal(w->hello_from, 0);
    welcome(w, SELF, 3);
    epoch(w, 3, 1);
}

static void pass(world *w, uint64_t ms, bool answers)
{
    membership_client_pass(w->membership_client, &w->now, &w->sent[WIRE_BEAT], ms, answers);
}

/* ---- the scheduler is away ------------------------------------------------------------------- */
static void test_membership_client_goes_on_while_the_scheduler_is_away(void **state)
{
    (void)state;
    world w;
    joined(&w);
    pass(&w, 3000, true);
    membership_down(membership_client_core(w.membership_client), w.now);
    pass(&w, 30000, false);
    assert_int_equal(w.n_failed, 0);
    assert_int_equal(w.n_logs, 1); /* reported once */
    assert_string_equal(w.log,
                        "the scheduler at 10.0.0.7:29500 is away; going on without it for at "
                        "most 60 s");
    membership_up(membership_client_core(w.membership_client), w.now);
    assert_int_equal(w.hello_from, SELF); /* the scheduler knows us by that */
    welcome(&w, SELF, 4);
    assert_string_equal(w.log, "the scheduler at 10.0.0.7:29500 is back");
    epoch(&w, 4, 2);
    pass(&w, 120000, true);
    assert_int_equal(w.n_failed, 0);
    assert_int_equal(w.n_epochs, 2);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_ends_when_the_scheduler_is_away_for_too_long(void **state)
{
    (void)state;
    world w;
    joined(&w);
    membership_down(membership_client_core(w.membership_client), w.now);
    pass(&w, GRACE_MS - 1, false);
    assert_int_equal(w.n_failed, 0);
    pass(&w, 1, false);
    assert_int_equal(w.n_failed, 1);
    assert_int_equal(w.why.status, PEN_UNREACHABLE);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_rejects_a_scheduler_that_does_not_know_it(void **state)
{
    (void)state;
    world w;
    joined(&w);
    membership_down(membership_client_core(w.membership_client), w.now);
    pass(&w, 5000, false);
    membership_up(membership_client_core(w.membership_client), w.now);
    welcome(&w, 77, 9);
    assert_int_equal(w.n_failed, 1);
    assert_int_equal(w.why.status, PEN_NOT_A_MEMBER);
    assert_string_equal(w.why.text, "the scheduler at 10.0.0.7:29500 does not know this worker: it "
                                    "came back without the state of the job");
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_leaves_when_the_scheduler_is_back(void **state)
{
    (void)state;
    world w;
    joined(&w);
    membership_down(membership_client_core(w.membership_client), w.now);
    pass(&w, 500, false);
    membership_leave(membership_client_core(w.membership_client), w.now);
    pass(&w, 10000, false);
    assert_int_equal(w.n_left, 0);
    membership_up(membership_client_core(w.membership_client), w.now);
    welcome(&w, SELF, 4);
    assert_true(w.sent[WIRE_BYE] > 0);
    hear(&w, (wire_control){.kind = WIRE_BYED});
    assert_int_equal(w.n_left, 1);
    membership_client_destroy(w.membership_client);
}

/* ---- the job changes ------------------------------------------------------------------------- */
static void test_membership_client_reports_each_newer_epoch_once(void **state)
{
    (void)state;
    world w;
    joined(&w);
    epoch(&w, 3, 1);
    assert_int_equal(w.n_epochs, 1);
    epoch(&w, 3, 4);
    epoch(&w, 3, 4);
    epoch(&w, 3, 2);
    epoch(&w, 2, 9);
    assert_int_equal(w.n_epochs, 2);
    assert_int_equal(w.epoch, 4);
    epoch(&w, 5, 1); /* from a scheduler with a later term */
    assert_int_equal(w.n_epochs, 3);
    membership_client_destroy(w.membership_client);
}

static void train(world *w)
{
    static const wire_model model = {0};
    membership_client_register(w->membership_client, &model, w->now);
    hear(w, (wire_control){.kind = WIRE_PLAN});
    hear(w, (wire_control){.kind = WIRE_COMMITTED});
}

static void test_membership_client_in_training_rejects_a_scheduler_without_state(void **state)
{
    (void)state;
    world w;
    joined(&w);
    train(&w);
    epoch(&w, 3, 2);
    epoch(&w, 4, 3); /* it goes on from there */
    assert_int_equal(w.n_failed, 0);
    epoch(&w, 5, 1);
    assert_int_equal(w.n_failed, 1);
    assert_int_equal(w.n_epochs, 3);
    assert_int_equal(w.why.status, PEN_NOT_A_MEMBER);
    membership_client_destroy(w.membership_client);
}

static void lose(world *w, int32_t rank, uint64_t incarnation)
{
    wire_control c = {.kind = WIRE_LOST, .u.lost = {.rank = rank, .incarnation = incarnation}};
    why_set(&c.u.lost.why, PEN_PEER_LOST, "worker %d is gone", (int)rank);
    hear(w, c);
}

static void test_membership_client_reports_the_loss_of_each_incarnation_once(void **state)
{
    (void)state;
    world w;
    const wire_model model = {0};
    joined(&w);
    lose(&w, 1, 41);
    lose(&w, 1, 41);
    assert_int_equal(w.n_lost, 1);
    lose(&w, 1, 42);
    assert_int_equal(w.n_lost, 2);
    lose(&w, 3, 43); /* the job has two */
    assert_int_equal(w.n_lost, 2);
    membership_client_register(w.membership_client, &model, w.now);
    hear(&w, (wire_control){.kind = WIRE_PLAN, .u.plan = {.ranks_max = 4}});
    lose(&w, 3, 43);
    assert_int_equal(w.n_lost, 3);
    membership_client_destroy(w.membership_client);
}

static void test_membership_client_passes_on_a_request_to_leave(void **state)
{
    (void)state;
    world w;
    joined(&w);
    hear(&w, (wire_control){.kind = WIRE_STOP});
    assert_int_equal(w.n_stops, 1);
    assert_int_equal(w.n_failed, 0);
    membership_client_destroy(w.membership_client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_membership_client_goes_on_while_the_scheduler_is_away),
        cmocka_unit_test(test_membership_client_ends_when_the_scheduler_is_away_for_too_long),
        cmocka_unit_test(test_membership_client_rejects_a_scheduler_that_does_not_know_it),
        cmocka_unit_test(test_membership_client_leaves_when_the_scheduler_is_back),
        cmocka_unit_test(test_membership_client_reports_each_newer_epoch_once),
        cmocka_unit_test(test_membership_client_in_training_rejects_a_scheduler_without_state),
        cmocka_unit_test(test_membership_client_reports_the_loss_of_each_incarnation_once),
        cmocka_unit_test(test_membership_client_passes_on_a_request_to_leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
