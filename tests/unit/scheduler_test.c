/* scheduler_test.c - the scheduler on a real socket, with peers played by the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/auth/auth.h"
#include "common/net/transport/transport.h"
#include "proto/wire/wire.h"
#include "scheduler/shell/scheduler.h"
#include "tests/support/transports.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE_MS = 20000 };

typedef struct {
    auth *auth;
    transport *transport;
    wire_arena *arena;
    wire_out out;
    uint64_t incarnation;
} peer;

static scheduler *start(const char *host, const char *lease)
{
    const char *const strings[] = {host, lease, NULL};
    scheduler_settings settings;
    scheduler *s = NULL;
    pen_error why;
    config_defaults(scheduler_settings_rows, &settings);
    assert_int_equal(config_from_strings(scheduler_settings_rows, &settings, strings, &why),
                     PEN_OK);
    if (scheduler_start(&settings, &s, &why) != PEN_OK) fail_msg("%s", why.text);
    return s;
}

static peer dial(const scheduler *s, auth_role role)
{
    peer p = {.arena = wire_arena_create(1 << 20)};
    pen_error why;
    transport_options o    = {0};
    const auth_options who = {.role          = role,
                              .local_sockets = true,
                              .scheduler     = scheduler_address(s),
                              .address       = {scheduler_address(s)}};
    if (auth_open(&who, &p.auth, &why) != PEN_OK) fail_msg("%s", why.text);
    auth_dial(p.auth, AUTH_SCHEDULER, &o);
    if (transport_dial(scheduler_address(s), &o, &p.transport, &why) != PEN_OK)
        fail_msg("%s", why.text);
    return p;
}

static void hang_up(peer *p)
{
    transport_close(p->transport, 0);
    auth_close(p->auth);
    wire_arena_destroy(p->arena);
    wire_out_free(&p->out);
    p->transport = NULL;
}

static void say(peer *p, wire_control *c)
{
    pen_error why;
    c->from = p->incarnation;
    if (wire_control_encode(c, &p->out, &why) != PEN_OK) fail_msg("%s", why.text);
    const uint64_t end = clock_ms(&clock_real) + PATIENCE_MS;
    while (transport_send(p->transport, 0, p->out.data, p->out.size, NULL) != PEN_OK) {
        transport_event event; /* until it is admitted nothing else arrives */
        if (transport_recv(p->transport, &event) != PEN_OK) poll(NULL, 0, 1);
        if (clock_ms(&clock_real) > end) fail_msg("the message would not leave");
    }
}

/* The next message of that kind; others are skipped.  Valid until this peer's next receive. */
static wire_control hear(peer *p, wire_control_kind kind)
{
    const uint64_t end = clock_ms(&clock_real) + PATIENCE_MS;
    while (clock_ms(&clock_real) < end) {
        transport_event event = {0};
        wire_control c        = {0};
        pen_error why;
        if (transport_recv(p->transport, &event) != PEN_OK) {
            struct pollfd fd = {.fd = transport_poll_fd(p->transport), .events = POLLIN};
            poll(&fd, 1, 10);
            continue;
        }
        buf_release(event.body);
        if (event.kind != TRANSPORT_MESSAGE) continue;
        wire_arena_reset(p->arena);
        if (wire_control_decode(event.head, event.head_size, p->arena, &c, &why) != PEN_OK)
            fail_msg("%s", why.text);
        if (c.kind == kind) return c;
    }
    fail_msg("no %s came", wire_kind_name((int)kind));
    return (wire_control){0};
}

static void join(peer *p, int32_t role, int32_t rank)
{
    static const char *const address[] = {"tcp://127.0.0.1:1"};
    wire_control c                     = {.kind = WIRE_HELLO};
    c.u.hello.role                     = role;
    c.u.hello.rank                     = rank;
    c.u.hello.world_size               = 1;
    c.u.hello.servers                  = 1;
    c.u.hello.nonce                    = (uint64_t)(role * 100 + rank + 1);
    c.u.hello.host                     = "devbox";
    c.u.hello.job                      = "mine";
    c.u.hello.store                    = "";
    c.u.hello.n_addresses              = role == PEN_SERVER;
    c.u.hello.address                  = address;
    say(p, &c);
    p->incarnation = hear(p, WIRE_WELCOME).u.welcome.incarnation;
    assert_true(p->incarnation != 0);
}

static void assert_serves_a_job(const char *host)
{
    scheduler *s = start(host, "lease_ms=10000");
    peer server = dial(s, AUTH_SERVER), worker = dial(s, AUTH_WORKER);
    join(&server, PEN_SERVER, 0);
    join(&worker, PEN_WORKER, 0);
    assert_int_equal(hear(&worker, WIRE_EPOCH).u.epoch.n_servers, 1);
    hear(&server, WIRE_EPOCH);
    wire_control beat = {.kind = WIRE_BEAT, .u.beat = {.seq = 1, .step = -1, .call = ""}};
    say(&worker, &beat);
    assert_int_equal(hear(&worker, WIRE_BEAT_ACK).u.beat_ack.seq, 1);
    wire_control bye = {.kind = WIRE_BYE};
    say(&worker, &bye);
    hear(&worker, WIRE_BYED);
    hear(&server, WIRE_STOP);
    say(&server, &bye);
    pen_error why;
    assert_int_equal(scheduler_join(s, &why), PEN_OK);
    hang_up(&worker);
    hang_up(&server);
}

static void test_scheduler_serves_a_job_from_hello_to_bye_over_tcp(void **state)
{
    (void)state;
    assert_serves_a_job("host=127.0.0.1");
}

static void test_scheduler_serves_a_job_inside_one_process(void **state)
{
    (void)state;
    assert_serves_a_job("host=inproc://scheduler_test");
}

static void test_scheduler_sends_the_verdict_to_all_and_ends_when_a_connection_is_gone(void **state)
{
    (void)state;
    scheduler *s = start("host=127.0.0.1", "down_grace_ms=50");
    peer server = dial(s, AUTH_SERVER), worker = dial(s, AUTH_WORKER);
    join(&server, PEN_SERVER, 0);
    join(&worker, PEN_WORKER, 0);
    hear(&server, WIRE_EPOCH);
    hang_up(&worker);
    const wire_control verdict = hear(&server, WIRE_VERDICT);
    assert_int_equal(verdict.u.verdict.status, PEN_PEER_LOST);
    assert_non_null(strstr(verdict.u.verdict.text,
                           "worker 0 (devbox) is gone before its first step; last seen"));
    hang_up(&server);
    pen_error why;
    assert_int_equal(scheduler_join(s, &why), PEN_PEER_LOST);
    assert_non_null(strstr(why.text, "worker 0 (devbox) is gone"));
}

static void test_scheduler_counts_frames_it_cannot_read(void **state)
{
    (void)state;
    scheduler *s     = start("host=127.0.0.1", "lease_ms=10000");
    peer p           = dial(s, AUTH_WORKER);
    wire_control ask = {.kind = WIRE_STATUS_ASK};
    pen_error why;
    say(&p, &ask);
    hear(&p, WIRE_STATUS);
    for (int i = 0; i < 3; i++)
        assert_int_equal(transport_send(p.transport, 0, "nonsense", 8, NULL), PEN_OK);
    say(&p, &ask);
    assert_true(hear(&p, WIRE_STATUS).u.status.refused == 3);
    scheduler_stop(s);
    assert_int_equal(scheduler_join(s, &why), PEN_ABORTED);
    hang_up(&p);
}

static void test_scheduler_that_is_stopped_notifies_all(void **state)
{
    (void)state;
    scheduler *s = start("host=127.0.0.1", "lease_ms=10000");
    peer server = dial(s, AUTH_SERVER), worker = dial(s, AUTH_WORKER);
    join(&server, PEN_SERVER, 0);
    join(&worker, PEN_WORKER, 0);
    hear(&worker, WIRE_EPOCH);
    scheduler_stop(s);
    pen_error why;
    assert_int_equal(scheduler_join(s, &why), PEN_ABORTED);
    assert_string_equal(hear(&worker, WIRE_VERDICT).u.verdict.text,
                        "the scheduler was stopped before the job had ended");
    hang_up(&worker);
    hang_up(&server);
}

static void test_scheduler_names_a_taken_port(void **state)
{
    (void)state;
    scheduler *s = start("host=127.0.0.1", "lease_ms=10000"), *second = NULL;
    scheduler_settings settings;
    pen_error why;
    config_defaults(scheduler_settings_rows, &settings);
    settings.port = strtoul(strrchr(scheduler_address(s), ':') + 1, NULL, 10);
    assert_true(settings.port != 0);
    assert_int_equal(scheduler_start(&settings, &second, &why), PEN_UNREACHABLE);
    assert_non_null(strstr(why.text, strrchr(scheduler_address(s), ':') + 1));
    assert_null(second);
    scheduler_stop(s);
    scheduler_join(s, &why);
}

/* The state as after a crash: copied before the scheduler is stopped, restored before the next begins. */
static void copy_file(const char *from, const char *to)
{
    char data[65536];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    const size_t n = fread(data, 1, sizeof data, in);
    assert_true(n > 0 && n < sizeof data);
    assert_int_equal(fwrite(data, 1, n, out), n);
    fclose(in);
    fclose(out);
}

static scheduler *start_with_state(const char *dir)
{
    scheduler_settings settings;
    scheduler *s = NULL;
    pen_error why;
    config_defaults(scheduler_settings_rows, &settings);
    snprintf(settings.state, sizeof settings.state, "%s", dir);
    snprintf(settings.host, sizeof settings.host, "inproc://scheduler_state");
    if (scheduler_start(&settings, &s, &why) != PEN_OK) fail_msg("%s", why.text);
    return s;
}

static void test_scheduler_with_a_state_knows_its_members_after_its_death(void **state)
{
    (void)state;
    char dir[] = "/tmp/penstock-scheduler-XXXXXX", kept[64], copy[64], text[128];
    pen_error why;
    assert_non_null(mkdtemp(dir));
    snprintf(kept, sizeof kept, "%s/state", dir);
    snprintf(copy, sizeof copy, "%s/copy", dir);
    scheduler *s = start_with_state(dir);
    peer server = dial(s, AUTH_SERVER), worker = dial(s, AUTH_WORKER);
    join(&server, PEN_SERVER, 0);
    join(&worker, PEN_WORKER, 0);
    const uint64_t term = hear(&worker, WIRE_EPOCH).u.epoch.term, was = worker.incarnation;
    copy_file(kept, copy);
    scheduler_stop(s);
    assert_int_equal(scheduler_join(s, &why), PEN_ABORTED);
    hang_up(&worker);
    hang_up(&server);
    copy_file(copy, kept);

    s      = start_with_state(dir);
    worker = dial(s, AUTH_WORKER);
    server = dial(s, AUTH_SERVER);
    join(&worker, PEN_WORKER, 0); /* the same nonce: the same process */
    join(&server, PEN_SERVER, 0);
    assert_true(worker.incarnation == was);
    assert_true(hear(&worker, WIRE_EPOCH).u.epoch.term == term); /* the same as before */
    wire_control bye = {.kind = WIRE_BYE};
    say(&worker, &bye);
    hear(&server, WIRE_STOP);
    say(&server, &bye);
    assert_int_equal(scheduler_join(s, &why), PEN_OK);
    hang_up(&worker);
    hang_up(&server);
    assert_null(fopen(kept, "rb")); /* the job is over */
    remove(copy);
    snprintf(text, sizeof text, "%s/lock", dir);
    remove(text);
    assert_int_equal(remove(dir), 0);
}

static int quiet(void **state)
{
    (void)state;
    log_level_set(LOG_ERROR);
    return 0;
}

int main(void)
{
    add_test_transports();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler_serves_a_job_from_hello_to_bye_over_tcp),
        cmocka_unit_test(test_scheduler_serves_a_job_inside_one_process),
        cmocka_unit_test(
            test_scheduler_sends_the_verdict_to_all_and_ends_when_a_connection_is_gone),
        cmocka_unit_test(test_scheduler_counts_frames_it_cannot_read),
        cmocka_unit_test(test_scheduler_that_is_stopped_notifies_all),
        cmocka_unit_test(test_scheduler_names_a_taken_port),
        cmocka_unit_test(test_scheduler_with_a_state_knows_its_members_after_its_death),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
