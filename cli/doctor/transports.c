/* transports.c - what one connection carries here, by each transport, in clear text and encrypted.
 *
 * DESIGN.  Both ends are in this process, one thread each, over TCP on loopback, so this is about processors, not about a
 * link: a link that is slower than its row is the limit, a faster one waits for a core.
 */
#include "cli/doctor/doctor.h"
#include "common/base/clock.h"
#include "common/net/auth/secret.h"
#include "common/net/transport/transport.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_BYTES = 1 << 20, IN_FLIGHT = 6, CONNECT_MS = 1000, WARM_MS = 20, MEASURE_MS = 60 };

/* ---- keys of two ends that have no job ----------------------------------------------------------- */
typedef struct {
    transport_keys listener, dialler;
} key_pair;

static bool admit(void *user, const uint8_t public_key[TRANSPORT_KEY_BYTES], transport_identity *as)
{
    const key_pair *k = user;
    *as               = (transport_identity){0};
    return memcmp(k->dialler.own_public, public_key, TRANSPORT_KEY_BYTES) == 0;
}

static bool share(void *user, transport_identity with, uint8_t key[TRANSPORT_KEY_BYTES])
{
    const key_pair *k = user;
    (void)with;
    memcpy(key, k->dialler.shared, TRANSPORT_KEY_BYTES);
    return true;
}

static bool make_keys(key_pair *k)
{
    secret s;
    if (secret_make(&s, NULL) != PEN_OK) return false;
    secret_derive(&s, 1, 0, k->listener.own, k->listener.own_public);
    secret_derive(&s, 2, 0, k->dialler.own, k->dialler.own_public);
    secret_subkey(&s, 3, 0, k->dialler.shared);
    memcpy(k->dialler.peer, k->listener.own_public, TRANSPORT_KEY_BYTES);
    k->listener.admits = admit;
    k->listener.shares = share;
    k->listener.user   = k;
    secret_wipe(&s);
    return true;
}

/* ---- one connection ------------------------------------------------------------------------------ */
typedef struct {
    transport *t;
    atomic_bool is_over;
    atomic_ullong bytes;
} listening;

static void rest(transport *t, int ms)
{
    struct pollfd fd = {.fd = transport_poll_fd(t), .events = POLLIN};
    poll(&fd, 1, ms);
}

static void *receive(void *user)
{
    listening *l = user;
    while (!atomic_load(&l->is_over)) {
        transport_event event;
        while (transport_recv(l->t, &event) == PEN_OK) {
            if (event.body != NULL) atomic_fetch_add(&l->bytes, event.body->size);
            buf_release(event.body);
        }
        rest(l->t, 5);
    }
    return NULL;
}

static void came_back(void *user)
{
    atomic_fetch_sub((atomic_int *)user, 1);
}

static bool await_up(transport *d)
{
    transport_event event;
    for (const uint64_t until = clock_ms(&clock_real) + CONNECT_MS;
         clock_ms(&clock_real) < until;) {
        while (transport_recv(d, &event) == PEN_OK)
            if (event.kind == TRANSPORT_UP) return true;
        rest(d, 1);
    }
    return false;
}

static void send_for(transport *d, uint64_t ms)
{
    static atomic_int in_flight; /* a thread of the transport may release the last ones later */
    static uint8_t data[BODY_BYTES];
    transport_event event;
    for (const uint64_t until = clock_ms(&clock_real) + ms; clock_ms(&clock_real) < until;) {
        while (transport_recv(d, &event) == PEN_OK) buf_release(event.body);
        while (atomic_load(&in_flight) < IN_FLIGHT) {
            buf *body = buf_wrap(data, BODY_BYTES, came_back, &in_flight);
            if (body == NULL) return;
            atomic_fetch_add(&in_flight, 1);
            if (transport_send(d, 0, "x", 1, body) == PEN_OK) continue;
            buf_release(body);
            break;
        }
        rest(d, 1);
    }
}

static double measure(listening *l, transport *d)
{
    if (!await_up(d)) return 0;
    send_for(d, WARM_MS);
    const unsigned long long bytes = atomic_load(&l->bytes);
    const uint64_t begun           = clock_ns(&clock_real);
    send_for(d, MEASURE_MS);
    return (double)(atomic_load(&l->bytes) - bytes) / (double)(clock_ns(&clock_real) - begun);
}

/* GB/s; 0: there was no connection. */
static double rate_of(transport_carrier carrier, const key_pair *keys)
{
    transport_options o = {.carrier = carrier, .keys = keys != NULL ? &keys->listener : NULL};
    listening l         = {0};
    transport *d        = NULL;
    pthread_t thread;
    double rate = 0;
    if (transport_listen("tcp://127.0.0.1:0", &o, &l.t, NULL) != PEN_OK) return 0;
    if (keys != NULL) o.keys = &keys->dialler;
    if (transport_dial(transport_address(l.t), &o, &d, NULL) == PEN_OK &&
        pthread_create(&thread, NULL, receive, &l) == 0) {
        rate = measure(&l, d);
        atomic_store(&l.is_over, true);
        pthread_join(thread, NULL);
    }
    transport_close(d, 0);
    transport_close(l.t, 0);
    return rate;
}

static void look_at_rates(doctor *d)
{
    key_pair keys = {0};
    if (d->root[0] != '\0' || !make_keys(&keys)) return; /* not this machine */
    const double clear = rate_of(TRANSPORT_SOCKET, NULL), tls = rate_of(TRANSPORT_SOCKET, &keys),
                 zmq = rate_of(TRANSPORT_ZMQ, NULL), curve = rate_of(TRANSPORT_ZMQ, &keys);
    explicit_bzero(&keys, sizeof keys);
    if (tls == 0)
        finding_add(d, FINDING_BAD, "set transport=zmq, or encryption=clear",
                    "no connection with TLS 1.3 within %d ms", CONNECT_MS);
    else
        finding_add(
            d, FINDING_OK, NULL,
            "one connection over TCP here: %.1f Gbit/s with TLS 1.3, %.1f in clear text; with "
            "transport=zmq %.1f with CURVE, %.1f in clear text",
            8 * tls, 8 * clear, 8 * curve, 8 * zmq);
}

const doctor_check doctor_transports[] = {
    {"network", "transports", look_at_rates,
     "what a connection carries, by each transport, encrypted and not"},
    {0},
};
