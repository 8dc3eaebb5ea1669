/* transport_sim_test.c - the simulated network: the same run from the same seed, and each fault alone. */
#include "tests/support/clock_simulated.h"
#include "tests/support/transport_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEED = 42, MANY = 1000 };

typedef struct {
    clock_simulated clock;
    sim_net *net;
    transport *server, *a, *b;
} world;

static transport *open_at(const world *w, const char *name, bool listens)
{
    transport *t;
    pen_error why;
    char address[64];
    snprintf(address, sizeof address, "sim://%u/%s", sim_net_id(w->net), name);
    if ((listens ? transport_listen : transport_dial)(address, NULL, &t, &why) != PEN_OK)
        fail_msg("%s", why.text);
    return t;
}

static void open_world(world *w, uint64_t seed)
{
    w->clock = clock_simulated_at(1000000000);
    w->net   = sim_net_create(seed, &w->clock.source);
    assert_non_null(w->net);
    w->server = open_at(w, "server", true);
    w->a      = open_at(w, "server?from=a", false);
    w->b      = open_at(w, "server?from=b", false);
}

static void close_world(world *w)
{
    transport_close(w->a, 0);
    transport_close(w->b, 0);
    transport_close(w->server, 0);
    sim_net_destroy(w->net);
}

static int make_world(void **state)
{
    world *w = *state = malloc(sizeof *w);
    open_world(w, SEED);
    return 0;
}

static int drop_world(void **state)
{
    close_world(*state);
    free(*state);
    return 0;
}

static uint64_t now_ms(const world *w)
{
    return clock_ms(&w->clock.source);
}

static void run_until(world *w, uint64_t until_ms)
{
    while (sim_net_next_ms(w->net) <= until_ms) {
        if (sim_net_next_ms(w->net) > now_ms(w)) w->clock.ns = sim_net_next_ms(w->net) * 1000000;
        sim_net_deliver(w->net);
    }
    w->clock.ns = until_ms * 1000000;
}

static void run(world *w, uint64_t ms)
{
    run_until(w, now_ms(w) + ms);
}

static pen_status send_number(transport *t, uint32_t peer, int number)
{
    return transport_send(t, peer, &number, sizeof number, NULL);
}

/* The next event of that kind that has arrived already; others are dropped. */
static bool next(transport *t, transport_event_kind kind, transport_event *event)
{
    while (transport_recv(t, event) == PEN_OK) {
        if (event->kind == kind) return true;
        buf_release(event->body);
    }
    return false;
}

static int number_of(const transport_event *event)
{
    int number;
    assert_int_equal(event->head_size, sizeof number);
    memcpy(&number, event->head, sizeof number);
    return number;
}

static int count_messages(transport *t)
{
    transport_event event;
    int n = 0;
    while (next(t, TRANSPORT_MESSAGE, &event)) n++;
    return n;
}

/* The server's number of a, made known by one message. */
static uint32_t meet_a(world *w)
{
    transport_event event;
    assert_int_equal(send_number(w->a, 0, 0), PEN_OK);
    run(w, 100);
    assert_true(next(w->server, TRANSPORT_MESSAGE, &event));
    return event.peer;
}

/* ---- determinism ----------------------------------------------------------------------------- */

/* All that two diallers got through, with times, as text. */
static void write_story(uint64_t seed, char *story, size_t size)
{
    world w;
    size_t used = 0;
    open_world(&w, seed);
    sim_net_faults(
        w.net,
        &(sim_faults){
            .drop = 0.1, .repeat = 0.1, .reorder = 0.2, .delay_ms_min = 1, .delay_ms_max = 30});
    for (int i = 0; i < 100; i++) {
        transport_event event;
        assert_int_equal(send_number(i % 2 == 0 ? w.a : w.b, 0, i), PEN_OK);
        if (i == 50) sim_net_break(w.net, "a", "server", 0);
        run(&w, 1 + (uint64_t)i % 7);
        while (next(w.server, TRANSPORT_MESSAGE, &event) && used < size)
            used += (size_t)snprintf(story + used, size - used, "%llu:%u:%d ",
                                     (unsigned long long)now_ms(&w), event.peer, number_of(&event));
    }
    close_world(&w);
}

static void test_sim_same_seed_gives_the_same_run_and_another_does_not(void **state)
{
    (void)state;
    static char one[8192], same[8192], other[8192];
    write_story(7, one, sizeof one);
    write_story(7, same, sizeof same);
    write_story(8, other, sizeof other);
    assert_true(strlen(one) > 500);
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
}

/* ---- one fault at a time --------------------------------------------------------------------- */

static void test_sim_without_faults_loses_nothing_and_keeps_order(void **state)
{
    world *w = *state;
    transport_event event;
    for (int i = 0; i < MANY; i++) assert_int_equal(send_number(w->a, 0, i), PEN_OK);
    assert_int_equal(sim_net_next_ms(w->net), now_ms(w));
    run(w, 0);
    for (int i = 0; i < MANY; i++) {
        assert_true(next(w->server, TRANSPORT_MESSAGE, &event));
        assert_int_equal(number_of(&event), i);
    }
    assert_int_equal(sim_net_next_ms(w->net), UINT64_MAX);
    assert_int_equal(sim_net_counts(w->net).delivered, MANY);
    assert_int_equal(sim_net_counts(w->net).bytes, MANY * sizeof(int));
}

static void test_sim_drops_at_the_given_rate(void **state)
{
    world *w = *state;
    sim_net_faults(w->net, &(sim_faults){.drop = 0.3});
    for (int i = 0; i < MANY; i++) assert_int_equal(send_number(w->a, 0, i), PEN_OK);
    run(w, 1);
    const int n = count_messages(w->server);
    assert_in_range(n, 650, 750); /* 700 +- 3.4 deviations of 14.5; the seed is fixed */
    assert_int_equal(sim_net_counts(w->net).dropped, MANY - n);
    sim_net_faults(w->net, &(sim_faults){.drop = 1});
    assert_int_equal(send_number(w->a, 0, 0), PEN_OK);
    run(w, 1);
    assert_int_equal(count_messages(w->server), 0);
}

static void test_sim_repeats_a_message_with_its_body(void **state)
{
    world *w = *state;
    transport_event first, second;
    sim_net_faults(w->net, &(sim_faults){.repeat = 1, .delay_ms_max = 10});
    buf *body = buf_new(8);
    memcpy(body->data, "payload", 8);
    assert_int_equal(transport_send(w->a, 0, "x", 1, body), PEN_OK);
    run(w, 20);
    assert_true(next(w->server, TRANSPORT_MESSAGE, &first));
    assert_true(next(w->server, TRANSPORT_MESSAGE, &second));
    assert_false(buf_is_alone(first.body));
    buf_release(first.body);
    assert_true(buf_is_alone(second.body));
    assert_string_equal(second.body->data, "payload");
    buf_release(second.body);
    assert_int_equal(count_messages(w->server), 0);
    assert_int_equal(sim_net_counts(w->net).repeated, 1);
}

static void test_sim_delays_within_bounds_and_knows_the_next_delivery(void **state)
{
    world *w = *state;
    sim_net_faults(w->net, &(sim_faults){.delay_ms_min = 20, .delay_ms_max = 30});
    for (int i = 0; i < 100; i++) {
        const uint64_t sent = now_ms(w);
        assert_int_equal(send_number(w->a, 0, i), PEN_OK);
        assert_in_range(sim_net_next_ms(w->net), sent + 20, sent + 30);
        run_until(w, sim_net_next_ms(w->net) - 1);
        assert_int_equal(count_messages(w->server), 0);
        run(w, 1);
        assert_int_equal(count_messages(w->server), 1);
    }
}

static void test_sim_delay_alone_does_not_reorder_a_connection(void **state)
{
    world *w = *state;
    transport_event event;
    sim_net_faults(w->net, &(sim_faults){.delay_ms_max = 50});
    for (int i = 0; i < MANY; i++) assert_int_equal(send_number(w->a, 0, i), PEN_OK);
    run(w, 100);
    for (int i = 0; i < MANY; i++) {
        assert_true(next(w->server, TRANSPORT_MESSAGE, &event));
        assert_int_equal(number_of(&event), i);
    }
}

static void test_sim_reorders_when_set_and_loses_nothing(void **state)
{
    world *w = *state;
    transport_event event;
    sim_net_faults(w->net, &(sim_faults){.reorder = 0.2, .delay_ms_max = 5});
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(send_number(w->a, 0, i), PEN_OK);
        run(w, 1);
    }
    run(w, 100);
    int n = 0, overtaken = 0, highest = -1;
    while (next(w->server, TRANSPORT_MESSAGE, &event)) {
        const int number = number_of(&event);
        if (number < highest) overtaken++;
        if (number > highest) highest = number;
        n++;
    }
    assert_int_equal(n, MANY);
    assert_true(overtaken > 50);
    assert_in_range(sim_net_counts(w->net).reordered, 150, 250);
}

/* ---- partitions ------------------------------------------------------------------------------ */

static void test_sim_partition_is_one_way_between_two_names(void **state)
{
    world *w         = *state;
    const uint32_t a = meet_a(w);
    sim_net_partition(w->net, "a", "server", true);
    assert_int_equal(send_number(w->a, 0, 1), PEN_OK);
    assert_int_equal(send_number(w->b, 0, 2), PEN_OK);
    assert_int_equal(send_number(w->server, a, 3), PEN_OK);
    run(w, 10);
    transport_event event;
    assert_true(next(w->server, TRANSPORT_MESSAGE, &event));
    assert_int_equal(number_of(&event), 2);
    assert_int_equal(count_messages(w->server), 0);
    assert_int_equal(count_messages(w->a), 1);

    sim_net_partition(w->net, "a", "server", false);
    assert_int_equal(send_number(w->a, 0, 4), PEN_OK);
    run(w, 10);
    assert_int_equal(count_messages(w->server), 1);
}

static void test_sim_partition_drops_messages_in_flight(void **state)
{
    world *w = *state;
    sim_net_faults(w->net, &(sim_faults){.delay_ms_min = 10, .delay_ms_max = 10});
    assert_int_equal(send_number(w->a, 0, 1), PEN_OK);
    run(w, 5);
    sim_net_partition(w->net, "*", "server", true);
    run(w, 50);
    assert_int_equal(count_messages(w->server), 0);
}

static void test_sim_partitioned_dialler_connects_when_it_heals(void **state)
{
    world *w = *state;
    transport_event event;
    assert_true(next(w->a, TRANSPORT_UP, &event));
    sim_net_partition(w->net, "a", "*", true);
    sim_net_break(w->net, "a", "server", 10);
    run(w, 1000);
    assert_true(next(w->a, TRANSPORT_DOWN, &event));
    assert_false(next(w->a, TRANSPORT_UP, &event));
    assert_int_equal(send_number(w->a, 0, 1), PEN_AGAIN);
    sim_net_partition(w->net, "a", "*", false);
    run(w, 100);
    assert_true(next(w->a, TRANSPORT_UP, &event));
}

/* ---- breaks and deaths ----------------------------------------------------------------------- */

static void test_sim_break_is_seen_by_both_and_heals_under_a_new_number(void **state)
{
    world *w         = *state;
    const uint32_t a = meet_a(w);
    transport_event event;
    assert_true(next(w->a, TRANSPORT_UP, &event));
    sim_net_faults(w->net, &(sim_faults){.delay_ms_min = 10, .delay_ms_max = 10});
    assert_int_equal(send_number(w->a, 0, 1), PEN_OK);
    sim_net_break(w->net, "a", "server", 50);
    assert_true(next(w->a, TRANSPORT_DOWN, &event));
    assert_true(next(w->server, TRANSPORT_DOWN, &event));
    assert_int_equal(event.peer, a);
    assert_int_equal(send_number(w->server, a, 2), PEN_PEER_LOST);
    assert_int_equal(send_number(w->a, 0, 2), PEN_AGAIN);
    assert_int_equal(sim_net_next_ms(w->net), now_ms(w) + 10); /* of what was in flight */

    run(w, 49);
    assert_false(next(w->a, TRANSPORT_UP, &event));
    run(w, 1);
    assert_true(next(w->a, TRANSPORT_UP, &event));
    assert_int_equal(count_messages(w->server), 0);
    assert_int_not_equal(meet_a(w), a);
}

static void test_sim_break_of_a_silent_peer_is_no_event_for_the_listener(void **state)
{
    world *w = *state;
    transport_event event;
    sim_net_break(w->net, "b", "*", 50);
    assert_int_equal(transport_recv(w->server, &event), PEN_AGAIN);
}

static void test_sim_killed_name_is_down_for_all_and_silent_for_ever(void **state)
{
    world *w         = *state;
    const uint32_t a = meet_a(w);
    transport_event event;
    sim_net_kill(w->net, "a");
    assert_true(next(w->server, TRANSPORT_DOWN, &event));
    assert_int_equal(event.peer, a);
    run(w, 1000);
    assert_int_equal(transport_recv(w->a, &event), PEN_AGAIN);
    assert_int_not_equal(send_number(w->a, 0, 1), PEN_OK);
    assert_int_equal(send_number(w->b, 0, 1), PEN_OK);

    sim_net_kill(w->net, "server");
    assert_true(next(w->b, TRANSPORT_DOWN, &event));
    transport *again = open_at(w, "server", true); /* a new process with that name */
    run(w, 1000);
    assert_true(next(w->b, TRANSPORT_UP, &event));
    assert_int_equal(send_number(w->b, 0, 2), PEN_OK);
    run(w, 1);
    assert_int_equal(count_messages(again), 1);
    transport_close(again, 0);
}

static int released;

static void count_release(void *user)
{
    (void)user;
    released++;
}

static void test_sim_bodies_are_released_once_wherever_they_end(void **state)
{
    (void)state;
    world w;
    char bytes[4];
    open_world(&w, SEED);
    released = 0;
    sim_net_faults(w.net, &(sim_faults){.drop = 0.3, .repeat = 0.3, .delay_ms_max = 20});
    for (int i = 0; i < 100; i++) {
        buf *body = buf_wrap(bytes, sizeof bytes, count_release, NULL);
        assert_int_equal(transport_send(w.a, 0, "x", 1, body), PEN_OK);
        run(&w, i < 80 ? 1 : 0);
    }
    transport_event event; /* now some are dropped, some in an inbox, some in flight */
    for (int i = 0; i < 10; i++) {
        assert_true(next(w.server, TRANSPORT_MESSAGE, &event));
        buf_release(event.body);
    }
    close_world(&w);
    assert_int_equal(released, 100);
}

static void test_sim_close_with_linger_delivers_messages_in_flight(void **state)
{
    world *w = *state;
    transport_event event;
    sim_net_faults(w->net, &(sim_faults){.delay_ms_min = 20, .delay_ms_max = 20});
    assert_int_equal(send_number(w->a, 0, 1), PEN_OK);
    transport_close(w->a, 100);
    w->a = NULL;
    assert_int_equal(transport_recv(w->server, &event), PEN_OK);
    assert_int_equal(number_of(&event), 1);
    assert_int_equal(transport_recv(w->server, &event), PEN_OK);
    assert_int_equal(event.kind, TRANSPORT_DOWN);

    assert_int_equal(send_number(w->b, 0, 2), PEN_OK);
    transport_close(w->b, 0);
    w->b = NULL;
    run(w, 100);
    assert_int_equal(transport_recv(w->server, &event), PEN_AGAIN);
}

static void test_sim_unknown_net_is_refused(void **state)
{
    (void)state;
    transport *t;
    pen_error why;
    assert_int_equal(transport_dial("sim://63/x", NULL, &t, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, "'sim://63/x' names no simulated network of this thread");
    assert_int_equal(transport_listen("sim://one/x", NULL, &t, &why), PEN_INVALID_ARGUMENT);
    assert_int_equal(transport_listen("sim://", NULL, &t, &why), PEN_INVALID_ARGUMENT);
}

int main(void)
{
#define test(name) cmocka_unit_test_setup_teardown(name, make_world, drop_world)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sim_same_seed_gives_the_same_run_and_another_does_not),
        test(test_sim_without_faults_loses_nothing_and_keeps_order),
        test(test_sim_drops_at_the_given_rate),
        test(test_sim_repeats_a_message_with_its_body),
        test(test_sim_delays_within_bounds_and_knows_the_next_delivery),
        test(test_sim_delay_alone_does_not_reorder_a_connection),
        test(test_sim_reorders_when_set_and_loses_nothing),
        test(test_sim_partition_is_one_way_between_two_names),
        test(test_sim_partition_drops_messages_in_flight),
        test(test_sim_partitioned_dialler_connects_when_it_heals),
        test(test_sim_break_is_seen_by_both_and_heals_under_a_new_number),
        test(test_sim_break_of_a_silent_peer_is_no_event_for_the_listener),
        test(test_sim_killed_name_is_down_for_all_and_silent_for_ever),
        cmocka_unit_test(test_sim_bodies_are_released_once_wherever_they_end),
        test(test_sim_close_with_linger_delivers_messages_in_flight),
        cmocka_unit_test(test_sim_unknown_net_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
