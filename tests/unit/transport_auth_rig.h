/* transport_auth_rig.h - the secrets of two jobs, and connections with and without them. */
#ifndef TESTS_UNIT_TRANSPORT_AUTH_RIG_H
#define TESTS_UNIT_TRANSPORT_AUTH_RIG_H

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/net/auth/auth.h"
#include "common/net/auth/secret.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_MS = 20000, MIB = 1 << 20 };

/* ---- tools ----------------------------------------------------------------------------------- */
static char path[2][64];                              /* the secrets of two jobs */
static const char *rig_address = "tcp://127.0.0.1:0"; /* of listeners */

static inline uint64_t now_ms(void)
{
    return clock_ms(&clock_real);
}

static inline long resident_kib(void)
{
    long pages = 0;
    FILE *f    = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static inline bool next(transport *t, transport_event *event, uint64_t wait_ms)
{
    const uint64_t until = now_ms() + wait_ms;
    do {
        if (transport_recv(t, event) == PEN_OK) {
            buf_release(event->body);
            return true;
        }
        struct pollfd fd = {.fd = transport_poll_fd(t), .events = POLLIN};
        poll(&fd, 1, wait_ms < 10 ? (int)wait_ms : 10);
    } while (now_ms() < until);
    return false;
}

/* The next event of that kind; others are skipped. */
static inline transport_event await(transport *t, transport_event_kind kind)
{
    transport_event event  = {0};
    const uint64_t give_up = now_ms() + PATIENCE_MS;
    while (now_ms() < give_up && next(t, &event, 100))
        if (event.kind == kind) return event;
    const uint64_t until = now_ms() + PATIENCE_MS;
    while (now_ms() < until)
        if (next(t, &event, 100) && event.kind == kind) return event;
    fail_msg("event %d did not come", kind);
    return event;
}

static inline auth *open_auth(int job, auth_role role, int32_t rank)
{
    auth *g;
    pen_error why;
    const auth_options o = {.encryption                    = AUTH_ON,
                            .transport                     = AUTH_TRANSPORT_ZMQ,
                            /* of "tcp://" */ .secret_file = path[job],
                            .role                          = role,
                            .rank                          = rank};
    if (auth_open(&o, &g, &why) != PEN_OK) fail_msg("%s", why.text);
    return g;
}

static inline transport *listen_with(const auth *g, transport_options o)
{
    transport *t;
    pen_error why;
    auth_listen(g, &o);
    if (transport_listen(rig_address, &o, &t, &why) != PEN_OK) fail_msg("%s", why.text);
    return t;
}

static inline int rig_port(transport *l)
{
    return atoi(strrchr(transport_address(l), ':') + 1);
}

static inline transport *dial_with(const auth *g, auth_role listener, const transport *l)
{
    transport *t;
    pen_error why;
    transport_options o = {0};
    auth_dial(g, listener, &o);
    if (transport_dial(transport_address((transport *)(uintptr_t)l), &o, &t, &why) != PEN_OK)
        fail_msg("%s", why.text);
    return t;
}

/* A handshake may need both ends; refusals of others are dropped. */
static inline void await_up(transport *l, transport *d)
{
    transport_event event;
    for (const uint64_t until = now_ms() + PATIENCE_MS; now_ms() < until;) {
        if (next(d, &event, 1) && event.kind == TRANSPORT_UP) return;
        if (next(l, &event, 0) && event.kind != TRANSPORT_REFUSED) fail_msg("event %d", event.kind);
    }
    fail_msg("no connection");
}

static inline void check_talk(transport *l, transport *d)
{
    await_up(l, d);
    assert_int_equal(transport_send(d, 0, "ping", 4, buf_new(100000)), PEN_OK);
    const uint32_t peer = await(l, TRANSPORT_MESSAGE).peer;
    assert_int_equal(transport_send(l, peer, "pong", 4, buf_new(10)), PEN_OK);
    await(d, TRANSPORT_MESSAGE);
}

/* ---- creating and destroying the secrets ----------------------------------------------------------- */
static inline int make_secrets(void **state)
{
    (void)state;
    log_level_set(-1);
    for (int i = 0; i < 2; i++) {
        secret s;
        pen_error why;
        snprintf(path[i], sizeof path[i], "/tmp/transport-guard-test-%d-%d.key", (int)getpid(), i);
        if (secret_make(&s, &why) != PEN_OK || secret_write(path[i], &s, &why) != PEN_OK) return 1;
    }
    return 0;
}

static inline int remove_secrets(void **state)
{
    (void)state;
    return unlink(path[0]) | unlink(path[1]);
}

#endif
