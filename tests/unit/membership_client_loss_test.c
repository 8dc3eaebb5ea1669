/* membership_client_loss_test.c - what a worker is told when the job goes on without another; manual clock,
 * no network. */
#include "common/base/why.h"
#include "worker/io/membership_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LEASE_MS = 10000 };

typedef struct {
    membership_client *membership_client;
    uint64_t now;
    int n_lost, n_failed;
    int32_t lost;
    uint32_t n_addresses, n_missing;
    char address[64], text[640];
    uint64_t record_id;
    pen_error why;
} world;

/* ---- actions --------------------------------------------------------------------------------- */
static void on_send(void *user, const wire_control *m)
{
    world *w = user;
    if (m->kind == WIRE_HELLO) {
        w->n_addresses = m->u.hello.n_addresses;
        snprintf(w->address, sizeof w->address, "%s", m->u.hello.address[0]);
    }
    if (m->kind == WIRE_OVERDUE) w->n_missing = m->u.overdue.n_missing;
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

static void on_failed(void *user, const pen_error *why)
{
    (void)why;
    ((world *)user)->n_failed++;
}

static const char *on_silence(void *user)
{
    (void)user;
    return "(nothing)";
}

static void on_log(void *user, int level, const char *line)
{
    (void)level;
    snprintf(((world *)user)->text, sizeof((world *)user)->text, "%s", line);
}

static void on_lost(void *user, int32_t rank, const pen_error *why)
{
    world *w = user;
    w->n_lost++;
    w->lost = rank;
    w->why  = *why;
}

static void on_record_please(void *user, uint64_t id, uint64_t asker)
{
    (void)asker;
    ((world *)user)->record_id = id;
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
                .u.welcome = {.incarnation = 900, .lease_ms = LEASE_MS, .rank = 0, .job = ""}});
}

static void joined(world *w)
{
    static const char *const addresses[]           = {"tcp://devbox:7", "node:x"};
    static const membership_client_actions actions = {
        on_send,    on_message, on_message,      on_committed, on_snapshot_done,
        on_nothing, on_nothing, on_failed,       on_beat,      on_silence,
        on_log,     on_lost,    on_record_please};
    const membership_client_setup setup = {.world_size      = 4,
                                           .nonce           = 5,
                                           .lease_ms        = LEASE_MS,
                                           .init_timeout_ms = 300000,
                                           .host            = "devbox",
                                           .job             = "",
                                           .scheduler       = "10.0.0.7:29500",
                                           .n_addresses     = 2,
                                           .address         = addresses};
    pen_error why;
    *w                   = (world){.now = 5000};
    w->membership_client = membership_client_create(&setup, &actions, w, w->now, &why);
    assert_non_null(w->membership_client);
    membership_up(membership_client_core(w->membership_client), w->now);
    welcome(w);
    hear(w, (wire_control){.kind = WIRE_EPOCH, .u.epoch.job = ""});
}

static void loses(world *w, int32_t rank)
{
    wire_control c = {.kind = WIRE_LOST, .u.lost = {.rank = rank}};
    why_set(&c.u.lost.why, PEN_PEER_LOST, "worker %d is gone", (int)rank);
    hear(w, c);
}

/* ---- tests ----------------------------------------------------------------------------------- */
static void hello_carries_the_address_for_other_workers(void **state)
{
    (void)state;
    world w;
    joined(&w);
    assert_int_equal(w.n_addresses, 2);
    assert_string_equal(w.address, "tcp://devbox:7");
    membership_client_destroy(w.membership_client);
}

static void each_loss_is_reported_once(void **state)
{
    (void)state;
    world w;
    joined(&w);
    loses(&w, 2);
    loses(&w, 2); /* again, after a reconnect */
    loses(&w, 4); /* no worker has that rank */
    loses(&w, -1);
    assert_int_equal(w.n_lost, 1);
    assert_int_equal(w.lost, 2);
    assert_int_equal(w.n_failed, 0);
    membership_client_destroy(w.membership_client);
}

static void an_overdue_call_names_at_most_32_ranks(void **state)
{
    (void)state;
    world w;
    joined(&w);
    const int32_t missing[40] = {0};
    membership_client_overdue(w.membership_client, "barrier (call 1)", 30000, missing, 40, false);
    assert_int_equal(w.n_missing, 32);
    hear(&w, (wire_control){.kind = WIRE_NOTICE, .u.notice.text = "waiting 30 s for rank 0"});
    assert_string_equal(w.text, "waiting 30 s for rank 0");
    membership_client_destroy(w.membership_client);
}

static void askers_of_the_flight_recorder_are_remembered_by_number(void **state)
{
    (void)state;
    world w;
    joined(&w);
    hear(&w, (wire_control){.kind = WIRE_RECORD_ASK, .u.record_ask = {.id = 7, .asker = 8}});
    assert_int_equal(w.record_id, 7);
    membership_client_destroy(w.membership_client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_carries_the_address_for_other_workers),
        cmocka_unit_test(each_loss_is_reported_once),
        cmocka_unit_test(an_overdue_call_names_at_most_32_ranks),
        cmocka_unit_test(askers_of_the_flight_recorder_are_remembered_by_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
