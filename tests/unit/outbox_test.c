/* outbox_test.c - messages that wait for room, with a transport whose room the test sets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "scheduler/shell/outbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int room[4]; /* of each peer; -1: no such peer */
static char wire[256];

/* Replaces the real one, which this program therefore does not link. */
pen_status transport_send(transport *t, uint32_t peer, const void *head, size_t head_size,
                          buf *body)
{
    (void)t;
    assert_null(body);
    if (room[peer] < 0) return PEN_PEER_LOST;
    if (room[peer] == 0) return PEN_AGAIN;
    room[peer]--;
    const size_t used = strlen(wire);
    snprintf(wire + used, sizeof wire - used, "%u%.*s ", peer, (int)head_size, (const char *)head);
    return PEN_OK;
}

static int empty(void **state)
{
    (void)state;
    memset(room, 0, sizeof room);
    wire[0] = 0;
    return 0;
}

static bool send_text(outbox *o, uint32_t peer, const char *text)
{
    return outbox_send(o, NULL, peer, text, strlen(text));
}

static void test_outbox_sends_at_once_when_there_is_room(void **state)
{
    (void)state;
    outbox o = {0};
    room[1]  = 1;
    assert_true(send_text(&o, 1, "a"));
    assert_string_equal(wire, "1a ");
    assert_true(outbox_flush(&o, NULL));
}

static void test_outbox_keeps_the_order_of_each_peer_and_blocks_no_other_peer(void **state)
{
    (void)state;
    outbox o = {0};
    assert_true(send_text(&o, 1, "a"));
    assert_true(send_text(&o, 2, "b"));
    room[1] = 2;
    assert_true(send_text(&o, 1, "c")); /* there is room now, but "a" goes first */
    assert_string_equal(wire, "");
    assert_false(outbox_flush(&o, NULL));
    assert_string_equal(wire, "1a 1c ");
    room[2] = 1;
    assert_true(outbox_flush(&o, NULL));
    assert_string_equal(wire, "1a 1c 2b ");
    assert_int_equal(o.bytes, 0);
    room[3] = 0;
    assert_true(send_text(&o, 3, "d")); /* an emptied outbox can be filled again */
    room[3] = 1;
    assert_true(outbox_flush(&o, NULL));
    assert_string_equal(wire, "1a 1c 2b 3d ");
}

static void test_outbox_forgets_a_peer_that_is_gone(void **state)
{
    (void)state;
    outbox o = {0};
    send_text(&o, 1, "a");
    send_text(&o, 2, "b");
    send_text(&o, 1, "c");
    outbox_forget(&o, 1);
    room[1] = room[2] = 5;
    assert_true(send_text(&o, 2, "d"));
    assert_true(outbox_flush(&o, NULL));
    assert_string_equal(wire, "2b 2d ");
    room[3] = -1;
    assert_false(send_text(&o, 3, "x"));
}

static void test_outbox_drops_messages_beyond_its_bound(void **state)
{
    (void)state;
    enum { MIB = 1 << 20 };
    outbox o   = {0};
    char *data = calloc(1, MIB);
    for (int i = 0; i < OUTBOX_BYTES_MAX / MIB; i++)
        assert_true(outbox_send(&o, NULL, 1, data, MIB));
    assert_false(outbox_send(&o, NULL, 1, data, MIB));
    outbox_clear(&o);
    assert_int_equal(o.bytes, 0);
    assert_true(outbox_send(&o, NULL, 1, data, MIB));
    outbox_clear(&o);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_outbox_sends_at_once_when_there_is_room, empty),
        cmocka_unit_test_setup(test_outbox_keeps_the_order_of_each_peer_and_blocks_no_other_peer,
                               empty),
        cmocka_unit_test_setup(test_outbox_forgets_a_peer_that_is_gone, empty),
        cmocka_unit_test_setup(test_outbox_drops_messages_beyond_its_bound, empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
