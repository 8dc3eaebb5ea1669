/* transport_test.c - the contract of every transport in the registry: over TCP in clear text and with keys, and over
 * local sockets, alone and beside TCP. */
#include "common/base/clock.h"
#include "common/net/auth/secret.h"
#include "common/net/transport/transport.h"
#include "tests/support/transports.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000, PEERS = 8, MESSAGES = 200 };

/* ---- tools ----------------------------------------------------------------------------------- */

static const transport_keys *listens, *dials; /* NULL: not encrypted */
static transport_sockets sockets;

static void nap(transport *t)
{
    struct pollfd fd = {.fd = transport_poll_fd(t), .events = POLLIN}; /* -1 only waits */
    poll(&fd, 1, fd.fd < 0 ? 1 : 20);
}

/* What a listener received while a dialler waited to be up. */
enum { SHELF = 512, WORDS = 64 };
static struct {
    const transport *of;
    transport_event event;
    char head[WORDS];
} shelf[SHELF];
static size_t n_shelf;

static void put_aside(const transport *t, const transport_event *event)
{
    assert_true(n_shelf < SHELF && event->head_size <= WORDS);
    shelf[n_shelf].of    = t;
    shelf[n_shelf].event = *event;
    if (event->head_size > 0) memcpy(shelf[n_shelf].head, event->head, event->head_size);
    n_shelf++;
}

static pen_status take(transport *t, transport_event *event)
{
    static char head[WORDS];
    for (size_t i = 0; i < n_shelf; i++) {
        if (shelf[i].of != t) continue;
        *event = shelf[i].event;
        memcpy(head, shelf[i].head, WORDS);
        if (event->head != NULL) event->head = head;
        memmove(&shelf[i], &shelf[i + 1], (--n_shelf - i) * sizeof shelf[0]);
        return PEN_OK;
    }
    return transport_recv(t, event);
}

static bool try_await(transport *t, transport_event_kind kind, transport_event *event, uint64_t ms)
{
    const uint64_t until = clock_ms(&clock_real) + ms;
    while (clock_ms(&clock_real) < until) {
        while (take(t, event) == PEN_OK) {
            if (event->kind == kind) return true;
            buf_release(event->body);
        }
        nap(t);
    }
    return false;
}

static transport_event await(transport *t, transport_event_kind kind)
{
    transport_event event;
    assert_true(try_await(t, kind, &event, PATIENCE_MS));
    return event;
}

/* The listener must run, too. */
static void await_up(transport *t, transport *l)
{
    transport_event up, other;
    for (int looks = 0; !try_await(t, TRANSPORT_UP, &up, 1); looks++) {
        assert_true(looks < PATIENCE_MS);
        while (transport_recv(l, &other) == PEN_OK) put_aside(l, &other);
    }
    assert_int_equal(up.peer, 0);
}

static transport *listen_at(const char *address, const transport_options *o)
{
    transport *t;
    pen_error why;
    transport_options full = o != NULL ? *o : (transport_options){0};
    full.keys              = listens;
    full.sockets           = sockets;
    if (transport_listen(address, &full, &t, &why) != PEN_OK) fail_msg("%s", why.text);
    return t;
}

/* Dials and waits for the connection. */
static transport *dial_at(const char *address, transport *l)
{
    transport *t;
    pen_error why;
    const transport_options o = {.keys = dials, .sockets = sockets};
    if (transport_dial(address, &o, &t, &why) != PEN_OK) fail_msg("%s", why.text);
    await_up(t, l);
    return t;
}

static transport *dial(transport *l)
{
    return dial_at(transport_address(l), l);
}

static void say(transport *t, uint32_t peer, const char *text)
{
    assert_int_equal(transport_send(t, peer, text, strlen(text), NULL), PEN_OK);
}

static void assert_says(const transport_event *event, const char *text)
{
    assert_int_equal(event->head_size, strlen(text));
    assert_memory_equal(event->head, text, event->head_size);
}

/* A body that counts how often it was released. */
typedef struct {
    buf base;
    atomic_int released;
    uint8_t data[];
} counted;

static void count_release(buf *self)
{
    atomic_fetch_add(&((counted *)self)->released, 1);
}

static counted *counted_new(size_t size)
{
    counted *c = malloc(sizeof *c + size);
    assert_non_null(c);
    atomic_init(&c->released, 0);
    buf_init(&c->base, c->data, size, count_release);
    for (size_t i = 0; i < size; i++) c->data[i] = (uint8_t)(i * 31 >> 3);
    return c;
}

static void assert_released_once(counted *c)
{
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    while (atomic_load(&c->released) == 0 && clock_ms(&clock_real) < until) {
        const struct timespec moment = {.tv_nsec = 1000000};
        nanosleep(&moment, NULL);
    }
    assert_int_equal(atomic_load(&c->released), 1);
    free(c);
}

#define FOR_EACH(ops)                                                                              \
    for (const transport_ops *const *row_ = transport_all, *ops; (ops = *row_) != NULL; row_++)

/* ---- the table ------------------------------------------------------------------------------- */

static void test_transport_every_row_is_whole_and_found_by_its_scheme(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        char address[64];
        snprintf(address, sizeof address, "%s://x", ops->scheme);
        assert_ptr_equal(transport_find(address), ops);
        assert_ptr_equal(transport_find(ops->any_address), ops);
        assert_int_equal(ops->doc[strlen(ops->doc) - 1], '.');
        assert_true(ops->listen && ops->dial && ops->address && ops->send && ops->recv &&
                    ops->poll_fd && ops->close && ops->state_size > 0);
    }
}

static void test_transport_unknown_scheme_is_refused_with_the_remedy(void **state)
{
    (void)state;
    transport *t;
    pen_error why;
    assert_int_equal(transport_dial("carrier-pigeon://x", NULL, &t, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, "invalid address 'carrier-pigeon://x'; expected tcp://HOST:PORT");
    assert_int_equal(transport_listen("tcp:/x", NULL, &t, NULL), PEN_INVALID_ARGUMENT);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void check_whole(const transport_ops *ops, size_t head_size, size_t body_size)
{
    transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
    counted *c = counted_new(body_size);
    char *head = malloc(head_size);
    memset(head, 'h', head_size);
    assert_int_equal(transport_send(d, 0, head, head_size, &c->base), PEN_OK);
    transport_event event = await(l, TRANSPORT_MESSAGE);
    assert_int_equal(event.head_size, head_size);
    assert_memory_equal(event.head, head, head_size);
    assert_non_null(event.body);
    assert_int_equal(event.body->size, body_size);
    assert_memory_equal(event.body->data, c->data, body_size);
    buf_release(event.body);
    assert_released_once(c);
    free(head);
    transport_close(d, 0);
    transport_close(l, 0);
}

static void test_transport_message_with_body_arrives_whole(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 100, 4096, (32 << 10) - 1, 32 << 10, 3 << 20};
    FOR_EACH(ops)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_whole(ops, i % 2 == 0 ? 1 : 5000, sizes[i]);
}

static void test_transport_message_without_body_has_none(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
        say(d, 0, "only a head");
        const transport_event event = await(l, TRANSPORT_MESSAGE);
        assert_says(&event, "only a head");
        assert_null(event.body);
        assert_int_equal(transport_send(d, 0, "", 0, NULL), PEN_INVALID_ARGUMENT);
        transport_close(d, 0);
        transport_close(l, 0);
    }
}

static void test_transport_peers_are_told_apart_and_answered(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL), *d[PEERS];
        for (int i = 0; i < PEERS; i++) d[i] = dial(l);
        for (int round = 0; round < 3; round++) {
            uint32_t seen[PEERS];
            char text[32];
            for (int i = 0; i < PEERS; i++) {
                snprintf(text, sizeof text, "I am %d", i);
                say(d[i], 0, text);
            }
            for (int i = 0; i < PEERS; i++) {
                const transport_event event = await(l, TRANSPORT_MESSAGE);
                seen[i]                     = event.peer;
                for (int j = 0; j < i; j++) assert_int_not_equal(seen[j], event.peer);
                snprintf(text, sizeof text, "you are %c", ((const char *)event.head)[5]);
                say(l, event.peer, text);
            }
            for (int i = 0; i < PEERS; i++) {
                const transport_event event = await(d[i], TRANSPORT_MESSAGE);
                snprintf(text, sizeof text, "you are %d", i);
                assert_says(&event, text);
                assert_int_equal(event.peer, 0);
            }
        }
        for (int i = 0; i < PEERS; i++) transport_close(d[i], 0);
        transport_close(l, 0);
    }
}

static void test_transport_order_is_kept_where_it_is_promised(void **state)
{
    (void)state;
    int asked = 0;
    FOR_EACH(ops)
    {
        if (!ops->keeps_order) continue;
        transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
        for (int i = 0; i < MESSAGES; i++) {
            buf *body      = i % 3 == 0 ? buf_new(i % 2 == 0 ? 10 : 100000) : NULL;
            const int word = i << 8 | 1; /* a head does not begin with a zero */
            assert_int_equal(transport_send(d, 0, &word, sizeof word, body), PEN_OK);
        }
        for (int i = 0; i < MESSAGES; i++) {
            const transport_event event = await(l, TRANSPORT_MESSAGE);
            const int word              = i << 8 | 1;
            assert_memory_equal(event.head, &word, sizeof word);
            buf_release(event.body);
        }
        transport_close(d, 0);
        transport_close(l, 0);
        asked++;
    }
    assert_true(asked > 0);
}

static void test_transport_recv_without_a_message_returns_again_at_once(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
        transport_event event;
        const uint64_t start = clock_ms(&clock_real);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(take(l, &event), PEN_AGAIN);
            assert_int_equal(take(d, &event), PEN_AGAIN);
        }
        assert_true(clock_ms(&clock_real) - start < 500);
        transport_close(d, 0);
        transport_close(l, 0);
    }
}

static void test_transport_descriptor_becomes_readable_when_a_message_comes(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
        transport_event event;
        if (transport_poll_fd(l) >= 0) {
            while (take(l, &event) == PEN_OK) {}
            say(d, 0, "wake up");
            struct pollfd fd = {.fd = transport_poll_fd(l), .events = POLLIN};
            do assert_int_equal(poll(&fd, 1, PATIENCE_MS), 1);
            while (take(l, &event) != PEN_OK);
            assert_says(&event, "wake up");
        }
        transport_close(d, 0);
        transport_close(l, 0);
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void test_transport_oversized_is_refused_and_neighbours_are_unharmed(void **state)
{
    (void)state;
    const transport_options small = {.head_bytes_max = 100, .body_bytes_max = 1000};
    FOR_EACH(ops)
    {
        transport *l   = listen_at(ops->any_address, &small);
        transport *bad = dial(l), *good = dial(l);
        char head[101] = "a large head";
        counted *c     = counted_new(1001);
        assert_int_equal(transport_send(bad, 0, head, sizeof head, NULL), PEN_OK);
        assert_string_equal(await(l, TRANSPORT_REFUSED).note, "a head that is too large");
        assert_int_equal(transport_send(bad, 0, "x", 1, &c->base), PEN_OK);
        assert_string_equal(await(l, TRANSPORT_REFUSED).note, "a body that is too large");
        assert_released_once(c);

        assert_int_equal(transport_send(good, 0, head, 100, buf_new(1000)), PEN_OK);
        transport_event event = await(l, TRANSPORT_MESSAGE);
        assert_int_equal(event.head_size, 100);
        assert_int_equal(event.body->size, 1000);
        buf_release(event.body);
        say(l, event.peer, "still here");
        event = await(good, TRANSPORT_MESSAGE);
        assert_says(&event, "still here");
        transport_close(bad, 0);
        transport_close(good, 0);
        transport_close(l, 0);
    }
}

static void test_transport_address_in_use_is_unreachable_and_named(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l        = listen_at(ops->any_address, NULL), *second;
        const char *address = transport_address(l);
        pen_error why;
        assert_int_equal(transport_listen(address, NULL, &second, &why), PEN_UNREACHABLE);
        assert_non_null(strstr(why.text, "in use"));
        assert_non_null(strstr(why.text, address));
        transport *d = dial_at(address, l); /* the first one is unharmed */
        transport_close(d, 0);
        transport_close(l, 0);
    }
}

/* ---- connections ----------------------------------------------------------------------------- */

static void test_transport_listener_gets_down_after_a_peers_last_message(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL);
        transport *a = dial(l), *b = dial(l);
        say(a, 0, "hello");
        const uint32_t number = await(l, TRANSPORT_MESSAGE).peer;
        say(b, 0, "me too");
        const uint32_t other = await(l, TRANSPORT_MESSAGE).peer;
        say(a, 0, "goodbye");
        transport_close(a, 1000);
        const uint64_t start  = clock_ms(&clock_real);
        transport_event event = await(l, TRANSPORT_MESSAGE);
        assert_says(&event, "goodbye");
        assert_int_equal(await(l, TRANSPORT_DOWN).peer, number);
        assert_true(clock_ms(&clock_real) - start < 1000);
        assert_int_equal(transport_send(l, number, "x", 1, NULL), PEN_PEER_LOST);
        say(l, other, "you stay");
        assert_false(try_await(l, TRANSPORT_DOWN, &event, 30));
        transport_close(b, 0);
        transport_close(l, 0);
    }
}

static void test_transport_listener_gets_no_event_for_a_peer_that_never_sent(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL);
        transport_close(dial(l), 1000);
        transport *d = dial(l);
        say(d, 0, "first");
        transport_event event;
        while (take(l, &event) != PEN_OK) nap(l);
        assert_says(&event, "first");
        for (int i = 0; i < 30; i++) {
            assert_int_equal(take(l, &event), PEN_AGAIN);
            struct timespec moment = {.tv_nsec = 1000000};
            nanosleep(&moment, NULL);
        }
        transport_close(d, 0);
        transport_close(l, 0);
    }
}

static void test_transport_send_to_an_unknown_number_is_peer_lost(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL);
        counted *c   = counted_new(100000);
        assert_int_equal(transport_send(l, 4711, "x", 1, &c->base), PEN_PEER_LOST);
        assert_int_equal(atomic_load(&c->released), 0); /* still owned by the caller */
        buf_release(&c->base);
        assert_released_once(c);
        transport_close(l, 0);
    }
}

/* The other end is not there yet, comes, goes and comes back under the same address. */
static void test_transport_dialler_finds_its_listener_again(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        char address[256];
        transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
        snprintf(address, sizeof address, "%s", transport_address(l));
        say(d, 0, "before");
        await(l, TRANSPORT_MESSAGE);
        transport_close(l, 0);
        const uint64_t start = clock_ms(&clock_real);
        await(d, TRANSPORT_DOWN);
        assert_true(clock_ms(&clock_real) - start < 1000);

        counted *c = counted_new(100000);
        assert_int_equal(transport_send(d, 0, "between", 7, &c->base), PEN_AGAIN);
        buf_release(&c->base);
        assert_released_once(c);

        l = listen_at(address, NULL);
        await_up(d, l);
        say(d, 0, "after");
        const transport_event event = await(l, TRANSPORT_MESSAGE);
        assert_says(&event, "after");
        transport_close(d, 0);
        transport_close(l, 0);
    }
}

static void test_transport_peer_that_comes_back_gets_a_new_number(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l       = listen_at(ops->any_address, NULL);
        uint32_t number[4] = {0};
        for (int i = 0; i < 4; i++) {
            transport *d = dial(l);
            say(d, 0, "hello");
            number[i] = await(l, TRANSPORT_MESSAGE).peer;
            for (int j = 0; j < i; j++) assert_int_not_equal(number[i], number[j]);
            transport_close(d, 0);
            assert_int_equal(await(l, TRANSPORT_DOWN).peer, number[i]);
        }
        transport_close(l, 0);
    }
}

/* Many short lives on the same few descriptors, read late: each has its message and one DOWN after. */
static void test_transport_every_peer_that_spoke_ends_once_and_last(void **state)
{
    (void)state;
    enum { LIVES = 40 };
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL);
        uint32_t lives[LIVES];
        int n_lives = 0, n_down = 0;
        bool is_down[LIVES] = {false};
        for (int i = 0; i < LIVES; i++) {
            transport *d = dial(l);
            if (i % 4 != 3) say(d, 0, "hello"); /* some never send */
            transport_close(d, 1000);
        }
        const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
        while (n_down < LIVES * 3 / 4 && clock_ms(&clock_real) < until) {
            transport_event event;
            if (take(l, &event) != PEN_OK) {
                nap(l);
                continue;
            }
            int i = 0;
            while (i < n_lives && lives[i] != event.peer) i++;
            if (event.kind == TRANSPORT_MESSAGE) {
                assert_int_equal(i, n_lives);
                lives[n_lives++] = event.peer;
            } else {
                assert_int_equal(event.kind, TRANSPORT_DOWN);
                assert_true(i < n_lives && !is_down[i]);
                is_down[i] = true;
                n_down++;
            }
        }
        assert_int_equal(n_lives, LIVES * 3 / 4);
        assert_int_equal(n_down, LIVES * 3 / 4);
        transport_close(l, 0);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void test_transport_close_releases_what_is_queued_on_either_side(void **state)
{
    (void)state;
    enum { QUEUED = 20 };
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
        counted *out[QUEUED], *back[QUEUED];
        say(d, 0, "hello");
        const uint32_t number = await(l, TRANSPORT_MESSAGE).peer;
        for (int i = 0; i < QUEUED; i++) {
            out[i]  = counted_new(1 << 20);
            back[i] = counted_new(1 << 20);
            assert_int_equal(transport_send(d, 0, "x", 1, &out[i]->base), PEN_OK);
            assert_int_equal(transport_send(l, number, "x", 1, &back[i]->base), PEN_OK);
        }
        buf_release(await(l, TRANSPORT_MESSAGE).body);
        transport_close(d, 0);
        transport_close(l, 0);
        for (int i = 0; i < QUEUED; i++) {
            assert_released_once(out[i]);
            assert_released_once(back[i]);
        }
    }
}

static void test_transport_close_lets_queued_messages_leave(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
        for (int i = 0; i < 20; i++)
            assert_int_equal(transport_send(d, 0, "x", 1, buf_new(1 << 18)), PEN_OK);
        transport_close(d, 2000);
        for (int i = 0; i < 20; i++) buf_release(await(l, TRANSPORT_MESSAGE).body);
        transport_close(l, 0);
    }
}

/* However late the other side receives, and although it has seen an empty queue before. */
static void test_transport_last_messages_of_a_listener_arrive(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
        transport_event event;
        say(d, 0, "hello");
        const uint32_t peer = await(l, TRANSPORT_MESSAGE).peer;
        assert_int_equal(take(d, &event), PEN_AGAIN);
        for (int i = 0; i < 20; i++)
            assert_int_equal(transport_send(l, peer, "x", 1, buf_new(1 << 10)), PEN_OK);
        transport_close(l, 2000);
        poll(NULL, 0, 300);
        for (int i = 0; i < 20; i++) buf_release(await(d, TRANSPORT_MESSAGE).body);
        await(d, TRANSPORT_DOWN);
        transport_close(d, 0);
    }
}

static void test_transport_close_of_nothing_is_fine(void **state)
{
    (void)state;
    transport_close(NULL, 0);
    FOR_EACH(ops)
    {
        transport *d, *l = listen_at(ops->any_address, NULL);
        char address[256];
        snprintf(address, sizeof address, "%s", transport_address(l));
        transport_close(l, 0);
        assert_int_equal(transport_dial(address, NULL, &d, NULL), PEN_OK); /* no one reads */
        transport_close(d, 0);
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

static const transport_identity dialler_is = {7, 4};

static bool is_dialler(void *user, const uint8_t public_key[TRANSPORT_KEY_BYTES],
                       transport_identity *as)
{
    const transport_keys *dialler = user;
    *as                           = dialler_is;
    return memcmp(dialler->own_public, public_key, TRANSPORT_KEY_BYTES) == 0;
}

static bool share(void *user, transport_identity with, uint8_t key[TRANSPORT_KEY_BYTES])
{
    const transport_keys *dialler = user;
    memcpy(key, dialler->shared, TRANSPORT_KEY_BYTES);
    return with.who == dialler_is.who && with.index == dialler_is.index;
}

static void make_keys(transport_keys *listener, transport_keys *dialler)
{
    secret s;
    pen_error why;
    if (secret_make(&s, &why) != PEN_OK) fail_msg("%s", why.text);
    secret_derive(&s, 1, 0, listener->own, listener->own_public);
    secret_derive(&s, 2, 0, dialler->own, dialler->own_public);
    secret_subkey(&s, 3, 0, dialler->shared);
    memcpy(dialler->peer, listener->own_public, TRANSPORT_KEY_BYTES);
    dialler->self    = dialler_is;
    listener->admits = is_dialler;
    listener->shares = share;
    listener->user   = dialler;
}

static void test_transport_key_of_a_dialler_says_who_it_is(void **state)
{
    (void)state;
    FOR_EACH(ops)
    {
        transport *l = listen_at(ops->any_address, NULL), *d = dial(l);
        say(d, 0, "it is me");
        transport_identity is = {0};
        const bool is_known   = transport_who(l, await(l, TRANSPORT_MESSAGE).peer, &is);
        const bool needs_key  = listens != NULL && sockets == TRANSPORT_TCP && !ops->stays_inside;
        assert_true(is_known || !needs_key);
        if (is_known) assert_memory_equal(&is, &dialler_is, sizeof is);
        transport_close(l, 0);
        transport_close(d, 0);
    }
}

int main(void)
{
    add_test_transports();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transport_every_row_is_whole_and_found_by_its_scheme),
        cmocka_unit_test(test_transport_unknown_scheme_is_refused_with_the_remedy),
        cmocka_unit_test(test_transport_message_with_body_arrives_whole),
        cmocka_unit_test(test_transport_message_without_body_has_none),
        cmocka_unit_test(test_transport_peers_are_told_apart_and_answered),
        cmocka_unit_test(test_transport_order_is_kept_where_it_is_promised),
        cmocka_unit_test(test_transport_recv_without_a_message_returns_again_at_once),
        cmocka_unit_test(test_transport_descriptor_becomes_readable_when_a_message_comes),
        cmocka_unit_test(test_transport_oversized_is_refused_and_neighbours_are_unharmed),
        cmocka_unit_test(test_transport_address_in_use_is_unreachable_and_named),
        cmocka_unit_test(test_transport_listener_gets_down_after_a_peers_last_message),
        cmocka_unit_test(test_transport_listener_gets_no_event_for_a_peer_that_never_sent),
        cmocka_unit_test(test_transport_send_to_an_unknown_number_is_peer_lost),
        cmocka_unit_test(test_transport_dialler_finds_its_listener_again),
        cmocka_unit_test(test_transport_peer_that_comes_back_gets_a_new_number),
        cmocka_unit_test(test_transport_every_peer_that_spoke_ends_once_and_last),
        cmocka_unit_test(test_transport_close_releases_what_is_queued_on_either_side),
        cmocka_unit_test(test_transport_close_lets_queued_messages_leave),
        cmocka_unit_test(test_transport_last_messages_of_a_listener_arrive),
        cmocka_unit_test(test_transport_close_of_nothing_is_fine),
        cmocka_unit_test(test_transport_key_of_a_dialler_says_who_it_is),
    };
    transport_keys listener, dialler;
    int failed = cmocka_run_group_tests_name("in clear text", tests, NULL, NULL);
    sockets    = TRANSPORT_LOCAL_TOO;
    failed +=
        cmocka_run_group_tests_name("local sockets beside TCP in clear text", tests, NULL, NULL);
    sockets = TRANSPORT_TCP;
    make_keys(&listener, &dialler);
    listens = &listener;
    dials   = &dialler;
    failed += cmocka_run_group_tests_name("encrypted", tests, NULL, NULL);
    sockets = TRANSPORT_LOCAL_TOO;
    failed += cmocka_run_group_tests_name("local sockets beside encrypted TCP", tests, NULL, NULL);
    sockets = TRANSPORT_LOCAL_ONLY;
    return failed + cmocka_run_group_tests_name("local sockets only", tests, NULL, NULL);
}
