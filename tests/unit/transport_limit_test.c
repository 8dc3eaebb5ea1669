/* transport_limit_test.c - what untrusted peers may use: connections, memory, time. */
#include "tests/unit/transport_auth_rig.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>

/* ---- plain sockets that speak the protocol in clear text ----------------------------------------- */
static int plain_connect(transport *l)
{
    const int port        = atoi(strrchr(transport_address(l), ':') + 1);
    struct sockaddr_in to = {.sin_family      = AF_INET,
                             .sin_port        = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd          = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    const struct timeval patience = {.tv_sec = 5};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return fd;
}

static void shake_hands(int fd)
{
    static const uint8_t ready[] = "\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06"
                                   "DEALER\x08Identity\x00\x00\x00\x00";
    uint8_t greeting[64]         = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0, 'N', 'U', 'L', 'L'},
            sink[200];
    assert_int_equal(send(fd, greeting, sizeof greeting, MSG_NOSIGNAL), sizeof greeting);
    assert_int_equal(send(fd, ready, sizeof ready - 1, MSG_NOSIGNAL), sizeof ready - 1);
    assert_int_equal(recv(fd, sink, sizeof greeting, MSG_WAITALL), sizeof greeting);
    assert_int_equal(recv(fd, sink, 2, MSG_WAITALL), 2);
    assert_int_equal(recv(fd, sink + 2, sink[1], MSG_WAITALL), sink[1]);
}

static bool is_open(int fd)
{
    char byte;
    for (;;) {
        const ssize_t n = recv(fd, &byte, 1, MSG_DONTWAIT);
        if (n <= 0) return n < 0;
    }
}

static bool closes_within(transport *l, int fd, uint64_t ms)
{
    transport_event event;
    const uint64_t until = now_ms() + ms;
    while (now_ms() < until && is_open(fd)) next(l, &event, 10);
    return !is_open(fd);
}

/* ---- limits ---------------------------------------------------------------------------------- */
static void test_transport_half_open_connections_are_closed(void **state)
{
    (void)state;
    auth *server = open_auth(0, AUTH_SERVER, 0);
    transport *l = listen_with(server, (transport_options){.heartbeat_ms = 5000});
    const int fd = plain_connect(l);
    assert_true(closes_within(l, fd, 8000));
    close(fd);
    transport_close(l, 0);
    auth_close(server);
}

static void test_transport_flood_of_silent_connections_evicts_only_its_own(void **state)
{
    (void)state;
    enum { MAX = 16, FLOOD = 60 };
    int fd[FLOOD];
    transport *l = listen_with(NULL, (transport_options){.connections_max = MAX});
    transport *d = dial_with(NULL, AUTH_SERVER, l);
    check_talk(l, d);
    for (int i = 0; i < FLOOD; i++) {
        transport_event event;
        fd[i] = plain_connect(l);
        next(l, &event, 5);
    }
    assert_true(closes_within(l, fd[0], PATIENCE_MS));
    assert_true(closes_within(l, fd[FLOOD - MAX - 4], PATIENCE_MS));
    transport *e = dial_with(NULL, AUTH_SERVER, l); /* there is room for a peer that speaks */
    check_talk(l, e);
    assert_int_equal(transport_send(d, 0, "still here", 10, NULL), PEN_OK);
    await(l, TRANSPORT_MESSAGE);
    for (int i = 0; i < FLOOD; i++) close(fd[i]);
    transport_close(d, 0);
    transport_close(e, 0);
    transport_close(l, 0);
}

/* Connects this many times, each connection for a while; returns whether it was told that this is too often. */
static bool storm(transport *l, int times)
{
    enum { OPEN = 64, STORM_ENDS_MS = 2000 };
    int fd[OPEN];
    bool is_told = false;
    transport_event event;
    for (int i = 0; i < times && !is_told; i++) {
        if (i >= OPEN) close(fd[i % OPEN]);
        fd[i % OPEN] = plain_connect(l);
        while (transport_recv(l, &event) == PEN_OK)
            is_told |= strstr(event.note, "too many connections a second") != NULL;
        if (is_told || i == times - 1)
            for (int k = 0; k < OPEN; k++) close(fd[k]);
    }
    /* An accepted connection is reported a little later, on a slow machine much later. */
    for (const uint64_t until = clock_ms(&clock_real) + STORM_ENDS_MS;
         !is_told && clock_ms(&clock_real) < until;) {
        if (transport_recv(l, &event) == PEN_OK)
            is_told = strstr(event.note, "too many connections a second") != NULL;
        else
            poll(NULL, 0, 5);
    }
    return is_told;
}

/* Only while no peer at that address has spoken; a member that comes back is not kept out. */
static void test_transport_address_that_connects_too_often_is_refused_at_accept(void **state)
{
    (void)state;
    enum { STORM = 16000 };
    transport *l = listen_with(NULL, (transport_options){0});
    assert_true(storm(l, STORM));
    transport_close(l, 0);

    l            = listen_with(NULL, (transport_options){0});
    transport *d = dial_with(NULL, AUTH_SERVER, l);
    check_talk(l, d);
    assert_false(storm(l, STORM));
    transport *back = dial_with(NULL, AUTH_SERVER, l);
    check_talk(l, back);
    transport_close(back, 0);
    transport_close(d, 0);
    transport_close(l, 0);
}

static void test_transport_message_without_end_costs_its_sender_the_connection(void **state)
{
    (void)state;
    enum { PIECE = 64 << 10, GIVE_UP_MIB = 1500 };
    static const char word[]        = "a message without end: its connection was ended";
    bool is_told                    = false;
    static uint8_t frame[9 + PIECE] = {3, 0, 0, 0, 0, 0, 1, 0, 0}; /* more to come, 64 KiB */
    const transport_options o       = {.head_bytes_max = MIB, .body_bytes_max = MIB};
    transport *l = listen_with(NULL, o), *d = dial_with(NULL, AUTH_SERVER, l);
    transport_event event;
    check_talk(l, d);
    const long before = (resident_kib() / 1024);
    long most = 0, sent = 0;
    const int fd = plain_connect(l);
    shake_hands(fd);
    for (bool open = true; open && sent / (MIB / PIECE) < GIVE_UP_MIB; sent++) {
        open = send(fd, frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame;
        if (sent % 64 != 0) continue;
        while (transport_recv(l, &event) == PEN_OK) {
            buf_release(event.body);
            is_told |= event.kind == TRANSPORT_REFUSED && strcmp(event.note, word) == 0;
        }
        if ((resident_kib() / 1024) - before > most) most = (resident_kib() / 1024) - before;
    }
    print_message("ended after %ld MiB, of which %ld MiB were held\n", sent / (MIB / PIECE), most);
    assert_true(sent / (MIB / PIECE) < GIVE_UP_MIB);
    assert_true(is_told || strcmp(await(l, TRANSPORT_REFUSED).note, word) == 0);
    assert_int_equal(transport_send(d, 0, "still here", 10, NULL), PEN_OK);
    await(l, TRANSPORT_MESSAGE);
    close(fd);
    transport_close(d, 0);
    transport_close(l, 0);
}

static void test_transport_peer_that_does_not_read_loses_its_connection(void **state)
{
    (void)state;
    const transport_options o = {
        .head_bytes_max = MIB, .body_bytes_max = MIB, .queue_bytes_max = MIB};
    transport *l = listen_with(NULL, o), *d = dial_with(NULL, AUTH_SERVER, l);
    check_talk(l, d);
    const int fd = plain_connect(l);
    shake_hands(fd);
    assert_int_equal(send(fd, "\x00\x05hello", 7, MSG_NOSIGNAL), 7);
    const uint32_t peer = await(l, TRANSPORT_MESSAGE).peer;
    for (int i = 0; i < 150; i++) {
        buf *body = buf_new(MIB);
        if (transport_send(l, peer, "x", 1, body) != PEN_OK) buf_release(body);
    }
    const transport_event event = await(l, TRANSPORT_REFUSED);
    assert_int_equal(event.peer, peer);
    assert_string_equal(event.note, "it does not read, and more than queue_bytes_max waits: ended");
    assert_int_equal(await(l, TRANSPORT_DOWN).peer, peer);
    assert_int_equal(transport_send(d, 0, "still here", 10, NULL), PEN_OK);
    await(l, TRANSPORT_MESSAGE);
    close(fd);
    transport_close(d, 0);
    transport_close(l, 0);
}

static atomic_int left_here; /* bodies that have left the sender */

static void count_leaving(void *memory)
{
    (void)memory;
    atomic_fetch_add(&left_here, 1);
}

/* Twenty silent peers together get the room of one; trusted peers have their own bound; peers that read stay. */
static void test_transport_what_waits_for_all_who_are_not_trusted_is_bounded_together(void **state)
{
    (void)state;
    enum { SILENT = 20, EACH_MIB = 12, BOUND_MIB = 32, OF_ONE_OF_US_MIB = 64 };
    static uint8_t body[MIB];
    const transport_options o = {
        .head_bytes_max = MIB, .body_bytes_max = MIB, .observers_bytes_max = BOUND_MIB * MIB};
    transport *l = listen_with(NULL, o), *d = dial_with(NULL, AUTH_SERVER, l);
    int fd[SILENT + 1], sent                = 0;
    uint32_t peer[SILENT + 1];
    check_talk(l, d);
    for (int i = 0; i <= SILENT; i++) {
        shake_hands(fd[i] = plain_connect(l));
        assert_int_equal(send(fd[i], "\x00\x05hello", 7, MSG_NOSIGNAL), 7);
        peer[i] = await(l, TRANSPORT_MESSAGE).peer;
    }
    transport_trust(l, peer[SILENT]);
    atomic_store(&left_here, 0);
    for (int n = 0; n < OF_ONE_OF_US_MIB; n++)
        for (int i = 0; i <= SILENT; i++) {
            if (i < SILENT && n >= EACH_MIB) continue;
            buf *b = buf_wrap(body, MIB, count_leaving, body);
            if (transport_send(l, peer[i], "x", 1, b) != PEN_OK) buf_release(b);
            sent++;
        }
    const uint64_t until  = now_ms() + PATIENCE_MS;
    transport_event event = {0};
    int told              = 0;
    while (sent - atomic_load(&left_here) > BOUND_MIB + OF_ONE_OF_US_MIB && now_ms() < until) {
        if (!next(l, &event, 10) || event.kind != TRANSPORT_REFUSED) continue;
        told++;
        assert_int_not_equal(event.peer, peer[SILENT]);
        assert_string_equal(
            event.note, "it does not read, and too much waits for observers and strangers: ended");
    }
    assert_in_range(sent - atomic_load(&left_here), 1, BOUND_MIB + OF_ONE_OF_US_MIB);
    assert_true(told > 0);
    assert_int_equal(transport_send(d, 0, "still here", 10, NULL), PEN_OK);
    await(l, TRANSPORT_MESSAGE);
    assert_int_equal(transport_send(l, peer[SILENT], "still here", 10, NULL), PEN_OK);
    for (int i = 0; i <= SILENT; i++) close(fd[i]);
    transport_close(d, 0);
    transport_close(l, 0);
}

/* A listener whose owner does not receive until everything has arrived, and a peer that sent much. */
static void test_transport_queue_of_one_peer_is_bounded(void **state)
{
    (void)state;
    enum { SENT_MIB = 200, IN_THE_KERNEL_MIB = 16 };
    static uint8_t body[MIB];
    const transport_options o = {
        .head_bytes_max = MIB, .body_bytes_max = MIB, .queue_bytes_max = MIB};
    transport *l = listen_with(NULL, o), *d = dial_with(NULL, AUTH_SERVER, l);
    transport_event event;
    check_talk(l, d);
    atomic_store(&left_here, 0);
    for (int i = 0; i < SENT_MIB; i++) {
        buf *b = buf_wrap(body, MIB, count_leaving, body);
        assert_int_equal(transport_send(d, 0, "x", 1, b), PEN_OK);
    }
    const uint64_t until = now_ms() + 6 * PATIENCE_MS;
    while (atomic_load(&left_here) < SENT_MIB - IN_THE_KERNEL_MIB && now_ms() < until)
        poll(NULL, 0, 10);
    assert_true(atomic_load(&left_here) >= SENT_MIB - IN_THE_KERNEL_MIB);
    poll(NULL, 0, 300); /* a tick */
    for (int i = 0; i < SENT_MIB && transport_recv(l, &event) == PEN_OK; i++) {
        buf_release(event.body);
        if (event.kind == TRANSPORT_REFUSED) break;
    }
    assert_int_equal(event.kind, TRANSPORT_REFUSED);
    assert_string_equal(event.note,
                        "more in its queue than queue_bytes_max: its connection was ended");
    transport_close(d, 0);
    transport_close(l, 0);
}

static void test_transport_peer_that_sends_garbage_is_disconnected_and_others_are_not(void **state)
{
    (void)state;
    transport *l = listen_with(NULL, (transport_options){0});
    transport *d = dial_with(NULL, AUTH_SERVER, l), *bad = dial_with(NULL, AUTH_SERVER, l);
    check_talk(l, d);
    await(bad, TRANSPORT_UP);
    uint32_t blamed = 0;
    for (int i = 0; i < TRANSPORT_BLAMES + 20; i++)
        assert_int_equal(transport_send(bad, 0, "nonsense", 8, NULL), PEN_OK);
    for (int i = 0; i <= TRANSPORT_BLAMES; i++) {
        blamed = await(l, TRANSPORT_MESSAGE).peer;
        transport_blame(l, blamed);
    }
    const transport_event event = await(l, TRANSPORT_REFUSED);
    assert_int_equal(event.peer, blamed);
    assert_string_equal(event.note, "too much that was refused: its connection was ended");
    assert_int_equal(await(l, TRANSPORT_DOWN).peer, blamed);
    await(bad, TRANSPORT_DOWN);
    assert_int_equal(transport_send(d, 0, "still here", 10, NULL), PEN_OK);
    await(l, TRANSPORT_MESSAGE);
    transport_close(bad, 0);
    transport_close(d, 0);
    transport_close(l, 0);
}

/* A burst of large valid messages is not a message without end. */
static void test_transport_bursts_of_whole_messages_end_no_connection(void **state)
{
    (void)state;
    enum { SENT_MIB = 400 };
    const transport_options o = {.head_bytes_max = MIB, .body_bytes_max = MIB};
    transport *l = listen_with(NULL, o), *d = dial_with(NULL, AUTH_SERVER, l);
    transport_event event;
    check_talk(l, d);
    for (int i = 0; i < SENT_MIB; i++)
        assert_int_equal(transport_send(d, 0, "x", 1, buf_new(MIB)), PEN_OK);
    for (int i = 0; i < SENT_MIB; i++) {
        if (i % 100 == 0) poll(NULL, 0, 250);
        assert_true(next(l, &event, PATIENCE_MS));
        assert_int_equal(event.kind, TRANSPORT_MESSAGE);
    }
    assert_false(next(l, &event, 500));
    transport_close(d, 0);
    transport_close(l, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport_half_open_connections_are_closed),
        cmocka_unit_test(test_transport_flood_of_silent_connections_evicts_only_its_own),
        cmocka_unit_test(test_transport_address_that_connects_too_often_is_refused_at_accept),
        cmocka_unit_test(test_transport_message_without_end_costs_its_sender_the_connection),
        cmocka_unit_test(test_transport_peer_that_does_not_read_loses_its_connection),
        cmocka_unit_test(test_transport_what_waits_for_all_who_are_not_trusted_is_bounded_together),
        cmocka_unit_test(test_transport_queue_of_one_peer_is_bounded),
        cmocka_unit_test(test_transport_peer_that_sends_garbage_is_disconnected_and_others_are_not),
        cmocka_unit_test(test_transport_bursts_of_whole_messages_end_no_connection),
    };
    return cmocka_run_group_tests(tests, make_secrets, remove_secrets);
}
