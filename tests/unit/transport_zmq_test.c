/* transport_zmq_test.c - addresses and diallers: what libzmq hides. */
#include "transport_tools.h"

#include <unistd.h>

/* ---- addresses ------------------------------------------------------------------------------- */
static void test_transport_zmq_port_0_becomes_a_real_port(void **state)
{
    (void)state;
    transport *l = listen_anywhere();
    assert_true(port_of(l) > 0);
    close(plain_connect(port_of(l)));
    transport_close(l, 0);
}

static void test_transport_zmq_port_in_use_is_named(void **state)
{
    (void)state;
    transport *l = listen_anywhere(), *second;
    char sentence[200];
    pen_error why;
    snprintf(sentence, sizeof sentence,
             "port %d is in use (%s); choose another, or 0 for a free one", port_of(l),
             transport_address(l));
    assert_int_equal(transport_listen(transport_address(l), NULL, &second, &why), PEN_UNREACHABLE);
    assert_string_equal(why.text, sentence);
    transport_close(l, 0);
}

static void test_transport_zmq_listener_at_all_addresses_is_dialled_by_any(void **state)
{
    (void)state;
    char address[64];
    transport *l = listen_at("tcp://*:0", NULL);
    assert_int_equal(strncmp(transport_address(l), "tcp://[::]:", 11), 0);
    snprintf(address, sizeof address, "tcp://localhost:%d", port_of(l));
    transport *d = dial_up(address);
    say(d, 0, "by name");
    assert_hears(l, "by name");
    transport_close(d, 0);
    transport_close(l, 0);
}

static void test_transport_zmq_speaks_ipv6(void **state)
{
    (void)state;
    transport *l;
    if (transport_listen("tcp://[::1]:0", NULL, &l, NULL) != PEN_OK) skip(); /* no IPv6 here */
    transport *d = dial_up(transport_address(l));
    say(d, 0, "six");
    assert_hears(l, "six");
    transport_close(d, 0);
    transport_close(l, 0);
}

static void test_transport_zmq_invalid_address_is_a_sentence(void **state)
{
    (void)state;
    static const char *const nonsense[] = {"tcp://",
                                           "tcp://localhost",
                                           "tcp://localhost:",
                                           "tcp://127.0.0.1:99999",
                                           "tcp://127.0.0.1:http",
                                           "ipc://",
                                           "tcp://[::1:0",
                                           "tcp://:::"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        transport *t;
        pen_error why = {0};
        if (transport_listen(nonsense[i], NULL, &t, &why) == PEN_OK) fail_msg("%s", nonsense[i]);
        if (strstr(why.text, nonsense[i]) == NULL) fail_msg("%s: %s", nonsense[i], why.text);
        if (transport_dial(nonsense[i], NULL, &t, &why) == PEN_OK) transport_close(t, 0);
    }
}

/* ---- diallers -------------------------------------------------------------------------------- */
static void test_transport_zmq_culprit_is_named_by_its_number_or_its_address(void **state)
{
    (void)state;
    char text[TRANSPORT_CULPRIT_BYTES];
    transport_culprit(7, "", text);
    assert_string_equal(text, "a frame of peer 7");
    transport_culprit(0, "", text);
    assert_string_equal(text, "a connection that has not said who it is");
    transport_culprit(0, "[fe80::1]:4711", text);
    assert_string_equal(text, "a connection from [fe80::1]:4711 that has not said who it is");
}

/* A dialler must survive any kind of answer, and find the real listener when that comes. */
static void test_transport_zmq_dialler_outlives_a_stranger_at_its_address(void **state)
{
    (void)state;
    char address[64];
    const int listening = plain_listen(address);
    transport *d        = dial(address);
    const int fd        = accept(listening, NULL, NULL);
    plain_send(fd, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
               67);
    is_closed_by_peer(fd, 50);
    close(fd);
    close(listening);
    expect(d, TRANSPORT_REFUSED);
    assert_int_equal(transport_send(d, 0, "x", 1, NULL), PEN_AGAIN);

    transport *l = listen_at(address, NULL);
    expect(d, TRANSPORT_UP);
    say(d, 0, "at last");
    assert_hears(l, "at last");
    transport_close(d, 0);
    transport_close(l, 0);
}

/* The same when the listener itself breaks the protocol later. */
static void test_transport_zmq_dialler_comes_back_after_a_breach_of_protocol(void **state)
{
    (void)state;
    const transport_options small = {.head_bytes_max = 100, .body_bytes_max = 100};
    transport *l                  = listen_anywhere(), *d;
    assert_int_equal(transport_dial(transport_address(l), &small, &d, NULL), PEN_OK);
    expect(d, TRANSPORT_UP);
    say(d, 0, "hello");
    const uint32_t peer = expect(l, TRANSPORT_MESSAGE).peer;
    buf *body           = buf_new(1 << 20);
    assert_int_equal(transport_send(l, peer, "x", 1, body), PEN_OK);
    expect(d, TRANSPORT_DOWN);
    assert_int_equal(expect(l, TRANSPORT_DOWN).peer, peer);
    expect(d, TRANSPORT_UP);
    say(d, 0, "again");
    assert_hears(l, "again");
    transport_close(d, 0);
    transport_close(l, 0);
}

enum { TAKEOVERS = 100 };

/* An open listener, and a stranger who claims the id of a peer that leaves: in the form that ZeroMQ gives. */
static void test_transport_zmq_nobody_speaks_for_a_peer_that_has_left(void **state)
{
    (void)state;
    transport *l   = listen_anywhere();
    int n_refusals = 0;
    for (int i = 0; i < TAKEOVERS; i++) {
        transport *d = dial_up(transport_address(l));
        say(d, 0, "mine");
        transport_event event = expect(l, TRANSPORT_MESSAGE);
        const uint32_t number = event.peer, ordered = htonl(number);
        uint8_t id[5] = {0};
        memcpy(id + 1, &ordered, sizeof ordered);
        transport_close(d, 0);
        if (next(l, &event, 5))
            continue; /* ZeroMQ forgets the id; a slow machine reports the end already */
        const int fd = plain_connect(port_of(l));
        shake_hands_as(fd, "DEALER", id, sizeof id);
        plain_send(fd, "\0\4fake", 6);
        bool is_down = false;
        while (!is_down) {
            assert_true(next(l, &event, PATIENCE_MS));
            n_refusals += event.kind == TRANSPORT_REFUSED;
            is_down = event.kind == TRANSPORT_DOWN && event.peer == number;
            assert_false(event.kind == TRANSPORT_MESSAGE);
        }
        close(fd);
        while (next(l, &event, 0)) {} /* at most its own end */
    }
    assert_true(n_refusals > 0); /* ZeroMQ ignores those that come too early */
    transport_close(l, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport_zmq_port_0_becomes_a_real_port),
        cmocka_unit_test(test_transport_zmq_port_in_use_is_named),
        cmocka_unit_test(test_transport_zmq_culprit_is_named_by_its_number_or_its_address),
        cmocka_unit_test(test_transport_zmq_listener_at_all_addresses_is_dialled_by_any),
        cmocka_unit_test(test_transport_zmq_speaks_ipv6),
        cmocka_unit_test(test_transport_zmq_invalid_address_is_a_sentence),
        cmocka_unit_test(test_transport_zmq_nobody_speaks_for_a_peer_that_has_left),
        cmocka_unit_test(test_transport_zmq_dialler_outlives_a_stranger_at_its_address),
        cmocka_unit_test(test_transport_zmq_dialler_comes_back_after_a_breach_of_protocol),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
