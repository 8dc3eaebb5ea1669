/* peers_test.c - one end per connection, after its last message, for the right peer, in any order of events. */
#include "common/net/transport/peers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { FD = 7 };

static int make_peers(void **state)
{
    peers_init(*state = malloc(sizeof(peers)), free);
    return 0;
}

static int drop_peers(void **state)
{
    peers_fini(*state);
    free(*state);
    return 0;
}

/* Enough rounds to report every end that no further message delays. */
static void pass(peers *p)
{
    peers_round(p);
    peers_round(p);
}

/* The connection of each peer has the mark that its number makes. */
static const void *mark_of(uint32_t number)
{
    return (const void *)((uintptr_t)number + 1);
}

static peers_standing receive(peers *p, uint32_t number)
{
    return peers_receive(p, number, mark_of(number));
}

static bool meet(peers *p, uint32_t number, int fd)
{
    return peers_meet(p, number, fd, mark_of(number), malloc(1));
}

/* A first message with content. */
static void speak(peers *p, uint32_t number, int fd)
{
    assert_int_equal(receive(p, number), PEERS_NEW);
    assert_true(meet(p, number, fd));
    peers_respect(p, number);
}

static void assert_down(peers *p, uint32_t number)
{
    uint32_t told = 0;
    assert_int_equal(peers_take_end(p, &told), PEERS_DOWN);
    assert_int_equal(told, number);
}

static void assert_end(peers *p, peers_end end)
{
    uint32_t told;
    assert_int_equal(peers_take_end(p, &told), end);
}

static void test_peers_end_is_reported_once_and_after_two_rounds(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    speak(p, 1, FD);
    assert_true(peers_knows(p, 1));
    assert_int_equal(receive(p, 1), PEERS_KNOWN);
    assert_false(peers_has_ended(p));
    peers_ended(p, FD);
    assert_true(peers_has_ended(p));
    peers_round(p);
    assert_end(p, PEERS_NONE);
    peers_round(p);
    assert_down(p, 1);
    assert_end(p, PEERS_NONE);
    assert_false(peers_knows(p, 1));
    assert_int_equal(receive(p, 1), PEERS_GONE);
    assert_int_equal(peers_count(p), 0);
}

static void test_peers_another_connection_never_takes_the_place_of_a_peer(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    speak(p, 1, FD);
    assert_int_equal(peers_receive(p, 1, mark_of(2)), PEERS_ANOTHER); /* while it lives */
    peers_ended(p, FD);
    for (int i = 0; i < 2; i++) { /* after its end, and it does not put that off */
        peers_accepted(p, FD);    /* on the same descriptor */
        assert_int_equal(peers_receive(p, 1, mark_of(2)), PEERS_ANOTHER);
        peers_ended(p, FD);
        peers_round(p);
    }
    assert_down(p, 1);
}

static void test_peers_record_without_memory_for_its_mark_is_refused(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    assert_int_equal(receive(p, 1), PEERS_NEW);
    assert_false(peers_meet(p, 1, FD, mark_of(1), NULL));
    assert_int_equal(receive(p, 1), PEERS_NEW);
}

static void test_peers_end_waits_for_the_last_message(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    speak(p, 1, FD);
    peers_ended(p, FD);
    for (int i = 0; i < 5; i++) {
        peers_round(p);
        assert_end(p, PEERS_NONE);
        assert_int_equal(receive(p, 1), PEERS_KNOWN);
    }
    peers_round(p);
    assert_end(p, PEERS_NONE);
    peers_round(p);
    assert_down(p, 1);
}

static void test_peers_first_message_may_come_after_the_end(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    peers_ended(p, FD);
    speak(p, 1, FD);
    pass(p);
    assert_down(p, 1);
    assert_end(p, PEERS_NONE); /* and no stranger */
}

static void test_peers_connection_without_a_message_is_a_stranger_once(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    peers_ended(p, FD);
    assert_end(p, PEERS_NONE);
    pass(p);
    assert_end(p, PEERS_STRANGER);
    assert_end(p, PEERS_NONE);
}

/* A dialler that closes at once may lose its first message. */
static void test_peers_connection_with_a_handshake_is_not_a_stranger(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    peers_greeted(p);
    peers_ended(p, FD);
    pass(p);
    assert_end(p, PEERS_NONE);
    peers_accepted(p, FD); /* the greeting was another peer's */
    peers_ended(p, FD);
    pass(p);
    assert_end(p, PEERS_STRANGER);
}

static void test_peers_failed_handshake_is_a_stranger_while_others_shake_hands(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    peers_accepted(p, FD + 1);
    peers_greeted(p);
    peers_failed(p);
    peers_ended(p, FD);
    peers_ended(p, FD + 1);
    pass(p);
    assert_end(p, PEERS_STRANGER);
    assert_end(p, PEERS_NONE);
}

static void test_peers_reported_stranger_is_not_reported_again(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    peers_scold(p, FD);
    peers_ended(p, FD);
    peers_accepted(p, FD);
    peers_ended(p, FD);
    peers_scold(p, FD); /* the second is refused after its end */
    pass(p);
    assert_end(p, PEERS_NONE);
}

static void test_peers_that_only_sent_a_greeting_end_without_an_event(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    assert_int_equal(receive(p, 1), PEERS_NEW);
    assert_true(meet(p, 1, FD));
    peers_ended(p, FD);
    pass(p);
    assert_end(p, PEERS_NONE);
    assert_int_equal(receive(p, 1), PEERS_GONE);
}

/* One spoke and ended, its successor on the descriptor lives: all four orders of their messages. */
static void test_peers_successor_on_a_descriptor_ends_its_predecessor_only(void **state)
{
    peers *p = *state;
    for (uint32_t n = 10; n < 14; n += 2) {
        const bool older_first = n == 10;
        peers_accepted(p, FD);
        peers_ended(p, FD);
        peers_accepted(p, FD);
        speak(p, older_first ? n : n + 1, FD);
        speak(p, older_first ? n + 1 : n, FD);
        pass(p);
        assert_down(p, n);
        assert_end(p, PEERS_NONE);
        assert_true(peers_knows(p, n + 1));
        peers_ended(p, FD);
        pass(p);
        assert_down(p, n + 1);
        assert_end(p, PEERS_NONE);
    }
}

static void test_peers_numbers_may_wrap(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    speak(p, UINT32_MAX, FD);
    peers_ended(p, FD);
    peers_accepted(p, FD);
    speak(p, 0, FD);
    pass(p);
    assert_down(p, UINT32_MAX);
    assert_end(p, PEERS_NONE);
    assert_true(peers_knows(p, 0));
}

/* In doubt the living one spoke: a late end loses nothing, a wrong end does. */
static void test_peers_doubt_is_resolved_by_another_message(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    peers_ended(p, FD); /* a stranger */
    peers_accepted(p, FD);
    speak(p, 1, FD);
    pass(p);
    assert_end(p, PEERS_NONE); /* 1 may be the one that ended */
    assert_int_equal(receive(p, 1), PEERS_KNOWN);
    assert_end(p, PEERS_STRANGER);
    pass(p);
    assert_end(p, PEERS_NONE);
}

static void test_peers_doubt_is_resolved_by_the_end(void **state)
{
    peers *p = *state;
    peers_accepted(p, FD);
    peers_ended(p, FD);
    peers_accepted(p, FD);
    speak(p, 1, FD);
    peers_ended(p, FD);
    pass(p);
    assert_end(p, PEERS_STRANGER);
    assert_down(p, 1);
    assert_end(p, PEERS_NONE);
}

static void test_peers_may_send_before_they_are_reported_as_accepted(void **state)
{
    peers *p = *state;
    speak(p, 1, FD);
    peers_accepted(p, FD);
    pass(p);
    assert_end(p, PEERS_NONE);
    peers_ended(p, FD);
    pass(p);
    assert_down(p, 1);
    assert_end(p, PEERS_NONE);
}

static void test_peers_unlikely_descriptors_are_refused(void **state)
{
    peers *p = *state;
    assert_false(meet(p, 1, -1));
    assert_false(meet(p, 1, 1 << 30));
    peers_accepted(p, -1);
    peers_ended(p, 1 << 30);
    peers_scold(p, -1);
    pass(p);
    assert_end(p, PEERS_NONE);
}

/* Random lives on four descriptors; events and messages are as late as possible: each peer that spoke ends once. */
static void test_peers_that_sent_a_message_end_once_in_any_order(void **state)
{
    enum { FDS = 4, ROUNDS = 2000 };
    peers *p      = *state;
    unsigned seed = 4711;
    uint32_t born = 0, spoke = 0, down = 0, silent = 0, strangers = 0;
    bool is_open[FDS] = {false};
    for (int r = 0; r < ROUNDS; r++) {
        struct {
            uint32_t number;
            int fd;
        } waiting[8];
        int n = 0;
        for (int k = 0; k < 8; k++) { /* eight events are read before any message */
            const int fd = rand_r(&seed) % FDS;
            if (is_open[fd])
                peers_ended(p, fd);
            else
                peers_accepted(p, fd);
            is_open[fd] = !is_open[fd];
            if (!is_open[fd]) continue;
            born++;
            if (rand_r(&seed) % 4 == 0)
                silent++;
            else
                waiting[n].number = born, waiting[n++].fd = fd;
        }
        for (int k = 0; k < n; k++) speak(p, waiting[k].number, waiting[k].fd), spoke++;
        pass(p);
        uint32_t number;
        for (peers_end end; (end = peers_take_end(p, &number)) != PEERS_NONE;)
            *(end == PEERS_DOWN ? &down : &strangers) += 1;
    }
    for (int fd = 0; fd < FDS; fd++)
        if (is_open[fd]) peers_ended(p, fd);
    pass(p);
    uint32_t number;
    for (peers_end end; (end = peers_take_end(p, &number)) != PEERS_NONE;)
        *(end == PEERS_DOWN ? &down : &strangers) += 1;
    assert_int_equal(down, spoke);
    assert_int_equal(strangers, silent);
    assert_int_equal(peers_count(p), 0);
}

int main(void)
{
#define test(name) cmocka_unit_test_setup_teardown(name, make_peers, drop_peers)
    const struct CMUnitTest tests[] = {
        test(test_peers_end_is_reported_once_and_after_two_rounds),
        test(test_peers_end_waits_for_the_last_message),
        test(test_peers_another_connection_never_takes_the_place_of_a_peer),
        test(test_peers_record_without_memory_for_its_mark_is_refused),
        test(test_peers_first_message_may_come_after_the_end),
        test(test_peers_connection_without_a_message_is_a_stranger_once),
        test(test_peers_connection_with_a_handshake_is_not_a_stranger),
        test(test_peers_failed_handshake_is_a_stranger_while_others_shake_hands),
        test(test_peers_reported_stranger_is_not_reported_again),
        test(test_peers_that_only_sent_a_greeting_end_without_an_event),
        test(test_peers_successor_on_a_descriptor_ends_its_predecessor_only),
        test(test_peers_numbers_may_wrap),
        test(test_peers_doubt_is_resolved_by_another_message),
        test(test_peers_doubt_is_resolved_by_the_end),
        test(test_peers_may_send_before_they_are_reported_as_accepted),
        test(test_peers_unlikely_descriptors_are_refused),
        test(test_peers_that_sent_a_message_end_once_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
