/* lend_test.c - large bodies between two ends on one host: not copied, returned, and never changed under a reader. */
#include "tests/unit/lend_pair.h"

#include "common/system/segment.h"

/* ---- tools ------------------------------------------------------------------------------------------------ */
static void settle(pair *p)
{
    transport_event event;
    for (int i = 0; i < 40; i++) {
        assert_int_not_equal(transport_recv(p->listener, &event), PEN_OK);
        assert_int_not_equal(transport_recv(p->dialler, &event), PEN_OK);
        nap(p->dialler);
    }
}

/* ---- tests ------------------------------------------------------------------------------------------------ */
static void a_large_body_in_a_segment_is_read_in_place(void **state)
{
    (void)state;
    pair p = open_pair(true, true);
    acquaint(&p);
    uint8_t *data = segment_alloc(BYTES, NULL);
    assert_non_null(data);
    watched w;
    watch(&w, data, BYTES);
    fill(w.body, 3);
    assert_int_equal(transport_send(p.dialler, 0, "lent", 4, w.body), PEN_OK);
    const transport_event event = await_with(p.listener, TRANSPORT_MESSAGE, p.dialler);
    assert_int_equal(event.head_size, 4);
    assert_memory_equal(event.head, "lent", 4);
    assert_int_equal(event.body->size, BYTES);
    assert_true(is_filled(event.body, 3));
    data[77] ^= 0xff; /* the same memory */
    assert_int_equal(((uint8_t *)event.body->data)[77], data[77]);
    settle(&p);
    assert_int_equal(atomic_load(&w.released), 0); /* still being read */
    buf_release(event.body);
    settle(&p);
    assert_int_equal(atomic_load(&w.released), 1);
    segment_free(data);
    close_pair(&p);
}

static void both_ends_lend_and_many_bodies_are_out_at_once(void **state)
{
    (void)state;
    enum { N = 100 };
    pair p = open_pair(true, true);
    acquaint(&p);
    buf *held[2][N];
    for (int i = 0; i < N; i++) {
        for (int way = 0; way < 2; way++) {
            buf *b = lend_buf_new(LEND_BYTES_MIN);
            fill(b, i + way);
            transport *from = way ? p.listener : p.dialler, *to = way ? p.dialler : p.listener;
            assert_int_equal(transport_send(from, way ? p.number : 0, "x", 1, b), PEN_OK);
            held[way][i] = await_with(to, TRANSPORT_MESSAGE, from).body;
        }
    }
    for (int i = 0; i < N; i++) {
        for (int way = 0; way < 2; way++) {
            assert_true(is_filled(held[way][i], i + way));
            buf_release(held[way][i]);
        }
    }
    settle(&p);
    close_pair(&p);
}

static void small_and_foreign_bodies_travel(void **state)
{
    (void)state;
    pair p = open_pair(true, true);
    acquaint(&p);
    buf *small = lend_buf_new(100), *foreign = buf_new(BYTES);
    fill(small, 5);
    fill(foreign, 6);
    assert_int_equal(transport_send(p.dialler, 0, "s", 1, small), PEN_OK);
    transport_event event = await_with(p.listener, TRANSPORT_MESSAGE, p.dialler);
    assert_true(is_filled(event.body, 5));
    buf_release(event.body);
    assert_int_equal(transport_send(p.dialler, 0, "f", 1, buf_acquire(foreign)), PEN_OK);
    event = await_with(p.listener, TRANSPORT_MESSAGE, p.dialler);
    ((uint8_t *)foreign->data)[9] ^= 0xff; /* another copy */
    assert_int_not_equal(((uint8_t *)event.body->data)[9], ((uint8_t *)foreign->data)[9]);
    buf_release(event.body);
    buf_release(foreign);
    close_pair(&p);
}

static void an_endpoint_without_lending_gets_bytes_and_no_probes(void **state)
{
    (void)state;
    pair p = open_pair(true, false);
    for (int i = 0; i < 3; i++) {
        buf *b = lend_buf_new(BYTES);
        fill(b, i);
        assert_int_equal(transport_send(p.listener, p.number, "v", 1, buf_acquire(b)), PEN_OK);
        const transport_event event = await_with(p.dialler, TRANSPORT_MESSAGE, p.listener);
        assert_true(is_filled(event.body, i));
        ((uint8_t *)b->data)[5] ^= 0xff;
        assert_int_not_equal(((uint8_t *)event.body->data)[5], ((uint8_t *)b->data)[5]);
        buf_release(event.body);
        buf_release(b);
        settle(&p);
    }
    close_pair(&p);
}

static void an_ended_connection_returns_bodies_that_a_live_reader_still_sees_unchanged(void **state)
{
    (void)state;
    pair p = open_pair(true, true);
    acquaint(&p);
    uint8_t *data = segment_alloc(BYTES, NULL);
    watched w;
    watch(&w, data, BYTES);
    fill(w.body, 8);
    assert_int_equal(transport_send(p.dialler, 0, "lent", 4, w.body), PEN_OK);
    const transport_event event = await_with(p.listener, TRANSPORT_MESSAGE, p.dialler);
    transport_close(p.dialler, 0);
    assert_int_equal(atomic_load(&w.released), 1);
    memset(data, 0, BYTES); /* the program goes on with its buffer */
    assert_true(is_filled(event.body, 8));
    buf_release(event.body);
    transport_close(p.listener, 0);
    segment_free(data);
}

/* ---- a reader that is alive and looks dead ---------------------------------------------------------------- */
static void heads_are_any_bytes(void **state)
{
    (void)state;
    pair p = open_pair(true, true);
    assert_int_equal(transport_send(p.dialler, 0, "\0x", 2, NULL), PEN_OK);
    assert_int_equal(await_with(p.listener, TRANSPORT_MESSAGE, p.dialler).head_size, 2);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_body_in_a_segment_is_read_in_place),
        cmocka_unit_test(both_ends_lend_and_many_bodies_are_out_at_once),
        cmocka_unit_test(small_and_foreign_bodies_travel),
        cmocka_unit_test(an_endpoint_without_lending_gets_bytes_and_no_probes),
        cmocka_unit_test(
            an_ended_connection_returns_bodies_that_a_live_reader_still_sees_unchanged),
        cmocka_unit_test(heads_are_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
