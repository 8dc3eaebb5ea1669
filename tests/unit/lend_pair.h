/* lend_pair.h - two endpoints that lend each other memory. */
#ifndef TESTS_UNIT_LEND_PAIR_H
#define TESTS_UNIT_LEND_PAIR_H

#include "common/base/clock.h"
#include "common/net/transport/lend.h"
#include "common/net/transport/transport.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000, BYTES = 1 << 20 };

/* ---- tools ------------------------------------------------------------------------------------------------ */
static inline void nap(transport *t)
{
    struct pollfd fd = {.fd = transport_poll_fd(t), .events = POLLIN};
    poll(&fd, 1, 5);
}

/* The other endpoint is in this process too, and must be served. */
static inline transport_event await_with(transport *t, transport_event_kind kind, transport *other)
{
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    transport_event event, passed;
    while (clock_ms(&clock_real) < until) {
        while (transport_recv(t, &event) == PEN_OK) {
            if (event.kind == kind) return event;
            buf_release(event.body);
        }
        while (other != NULL && transport_recv(other, &passed) == PEN_OK) buf_release(passed.body);
        nap(t);
    }
    fail_msg("nothing came");
    return event;
}

typedef struct {
    transport *listener, *dialler;
    uint32_t number; /* of the dialler at the listener */
} pair;

static inline pair open_pair(bool listener_lends, bool dialler_lends)
{
    pair p;
    const transport_options in = {.lends = listener_lends}, out = {.lends = dialler_lends};
    assert_int_equal(transport_listen("tcp://127.0.0.1:0", &in, &p.listener, NULL), PEN_OK);
    assert_int_equal(transport_dial(transport_address(p.listener), &out, &p.dialler, NULL), PEN_OK);
    (void)await_with(p.dialler, TRANSPORT_UP, p.listener);
    assert_int_equal(transport_send(p.dialler, 0, "hello", 5, NULL), PEN_OK);
    p.number = await_with(p.listener, TRANSPORT_MESSAGE, p.dialler).peer;
    transport_trust(p.listener, p.number);
    return p;
}

static inline void close_pair(pair *p)
{
    transport_close(p->dialler, 0);
    transport_close(p->listener, 0);
}

static inline void fill(buf *b, int seed)
{
    for (size_t i = 0; i < b->size; i++) ((uint8_t *)b->data)[i] = (uint8_t)(i * 7 + (size_t)seed);
}

static inline bool is_filled(const buf *b, int seed)
{
    for (size_t i = 0; i < b->size; i++)
        if (((uint8_t *)b->data)[i] != (uint8_t)(i * 7 + (size_t)seed)) return false;
    return true;
}

/* Bytes in a segment; `released` counts how often the last reference was dropped. */
typedef struct {
    atomic_int released;
    buf *body;
} watched;

static inline void note_release(void *user)
{
    atomic_fetch_add(&((watched *)user)->released, 1);
}

static inline void watch(watched *w, void *data, size_t size)
{
    atomic_init(&w->released, 0);
    w->body = buf_wrap(data, size, note_release, w);
    assert_non_null(w->body);
}

/* Until both ends know that they can map each other; one body is sent by copy first. */
static inline void acquaint(pair *p)
{
    buf *b = lend_buf_new(BYTES);
    fill(b, 1);
    assert_int_equal(transport_send(p->dialler, 0, "first", 5, buf_acquire(b)), PEN_OK);
    transport_event event = await_with(p->listener, TRANSPORT_MESSAGE, p->dialler);
    assert_true(is_filled(event.body, 1));
    buf_release(event.body);
    assert_int_equal(transport_send(p->listener, p->number, "back", 4, b), PEN_OK);
    event = await_with(p->dialler, TRANSPORT_MESSAGE, p->listener);
    buf_release(event.body);
    for (int i = 0; i < 20; i++) { /* PROBE and MAPPED in each direction */
        assert_int_not_equal(transport_recv(p->dialler, &event), PEN_OK);
        assert_int_not_equal(transport_recv(p->listener, &event), PEN_OK);
        nap(p->dialler);
    }
}

#endif
