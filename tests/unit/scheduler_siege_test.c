/* scheduler_siege_test.c - observers and strangers that ask and never read, or never stop asking.
 * They speak ZeroMQ's protocol by hand, because its library would read for them. */
#include "transport_tools.h"

#include "common/base/rate.h"
#include "proto/wire/wire.h"
#include "scheduler/shell/askers.h"
#include "scheduler/shell/scheduler.h"
#include "tests/support/resident.h"

#include <stdio.h>
#include <unistd.h>

enum { READERS = 20, QUESTIONS = 100, WORLD = 4000, BOUND_MIB = 96 };

/* ---- tools ----------------------------------------------------------------------------------- */
static void plain_message(int fd, wire_control *c)
{
    static wire_out out;
    pen_error why;
    uint8_t frame[512] = {0};
    if (wire_control_encode(c, &out, &why) != PEN_OK) fail_msg("%s", why.text);
    assert_true(out.size <= 255);
    frame[8] = (uint8_t)out.size; /* after the size of the body, which is none */
    memcpy(frame + 16, out.data, out.size);
    plain_send(fd, frame, 16 + out.size);
}

static int come(const scheduler *s)
{
    const int fd = plain_connect(atoi(strrchr(scheduler_address(s), ':') + 1));
    plain_send(fd, "PENSOCK\1", 8);
    return fd;
}

/* A worker of a large job, so that the answer to STATUS_ASK is long. */
static void join_large_job(int fd)
{
    wire_control hello       = {.kind = WIRE_HELLO};
    hello.u.hello.role       = PEN_WORKER;
    hello.u.hello.world_size = WORLD;
    hello.u.hello.nonce      = 1;
    hello.u.hello.host       = "devbox";
    hello.u.hello.job        = "mine";
    hello.u.hello.store      = "";
    plain_message(fd, &hello);
}

/* A client that reads is answered; asks again as `penstock top` does. */
static void assert_is_answered(const scheduler *s)
{
    char at[64];
    snprintf(at, sizeof at, "tcp://127.0.0.1%s", strrchr(scheduler_address(s), ':'));
    transport *t;
    assert_int_equal(
        transport_dial(at, &(transport_options){.carrier = TRANSPORT_SOCKET}, &t, NULL), PEN_OK);
    expect(t, TRANSPORT_UP);
    wire_control ask = {.kind = WIRE_STATUS_ASK};
    wire_out out     = {0};
    pen_error why;
    transport_event event = {0};
    assert_int_equal(wire_control_encode(&ask, &out, &why), PEN_OK);
    size_t size          = 0;
    const uint64_t until = now_ms() + 6 * PATIENCE_MS; /* it has the questions of others, too */
    while (size < WORLD && now_ms() < until) {
        transport_send(t, 0, out.data, out.size, NULL);
        if (next(t, &event, 1000) && event.kind == TRANSPORT_MESSAGE) size = event.head_size;
    }
    assert_true(size >= WORLD);
    wire_out_free(&out);
    transport_close(t, 0);
}

/* ---- memory ---------------------------------------------------------------------------------- */
static void test_scheduler_memory_for_20_clients_that_never_read_is_bounded(void **state)
{
    (void)state;
    scheduler_settings settings;
    scheduler *s = NULL;
    int fd[READERS];
    pen_error why;
    config_defaults(scheduler_settings_rows, &settings);
    /* In clear text beyond loopback nothing is proven: members have the same bounds, and the raw clients here have
     * no token. */
    assert_int_equal(config_set(scheduler_settings_rows, &settings, "host", "0.0.0.0", &why),
                     PEN_OK);
    assert_int_equal(config_set(scheduler_settings_rows, &settings, "encryption", "clear", &why),
                     PEN_OK);
    assert_int_equal(scheduler_start(&settings, &s, &why), PEN_OK);
    const int worker = come(s);
    join_large_job(worker);
    assert_is_answered(s);
    const long before = resident_mib();
    long most         = before;
    wire_control ask  = {.kind = WIRE_STATUS_ASK};
    for (int i = 0; i < READERS; i++) fd[i] = come(s);
    for (int n = 0; n < QUESTIONS; n++)
        for (int i = 0; i < READERS; i++) plain_message(fd[i], &ask);
    for (int i = 0; i < 50; i++) {
        if (resident_mib() > most) most = resident_mib();
        poll(NULL, 0, 20);
    }
    assert_is_answered(s);
    if (resident_mib() > most) most = resident_mib();
    print_message("%ld MiB before, %ld MiB at most\n", before, most);
    if (resident_is_meant()) assert_true(most - before < BOUND_MIB);
    for (int i = 0; i < READERS; i++) close(fd[i]);
    close(worker);
    scheduler_stop(s);
    assert_int_equal(scheduler_join(s, &why), PEN_ABORTED);
}

/* ---- rates ----------------------------------------------------------------------------------- */
static const wire_control ask = {.kind = WIRE_STATUS_ASK};

static int heard(askers *a, uint32_t peer, const wire_control *message, int times, uint64_t at_ms)
{
    int n = 0;
    for (int i = 0; i < times; i++) n += askers_receive(a, peer, message, at_ms);
    return n;
}

static void test_askers_have_a_budget_for_each_connection(void **state)
{
    (void)state;
    askers a = {0};
    assert_int_equal(heard(&a, 1, &ask, 1000, 5000), ASKERS_BURST);
    assert_int_equal(heard(&a, 2, &ask, 1, 5000), 1);
    assert_int_equal(heard(&a, 1, &ask, 1000, 6000), ASKERS_A_SECOND);
}

static void test_askers_together_have_a_bound_that_counts_questions_only(void **state)
{
    (void)state;
    askers a = {0};
    int n    = 0;
    for (uint32_t peer = 0; peer < ASKERS_PLACES; peer++) n += heard(&a, peer, &ask, 10, 5000);
    assert_int_equal(n, ASKERS_ALL_BURST);
    const wire_control beat = {.kind = WIRE_BEAT}, exited = {.kind = WIRE_EXITED},
                       worker = {.kind = WIRE_HELLO, .u.hello.role = PEN_WORKER};
    assert_int_equal(heard(&a, 7, &beat, 10, 5000), 10);
    assert_int_equal(heard(&a, 7, &worker, 10, 5000), 10);
    assert_int_equal(heard(&a, 7, &exited, 1000, 5000), 1000); /* from a launcher of many */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scheduler_memory_for_20_clients_that_never_read_is_bounded),
        cmocka_unit_test(test_askers_have_a_budget_for_each_connection),
        cmocka_unit_test(test_askers_together_have_a_bound_that_counts_questions_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
