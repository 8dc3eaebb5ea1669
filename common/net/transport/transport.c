/* transport.c - the table of transports, and their front. */
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/net/transport/lend.h"
#include "common/net/transport/transport_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const transport_ops transport_tcp, transport_ipc, transport_socket;

enum { TRANSPORTS_MAX = 8 };
const transport_ops *transport_all[TRANSPORTS_MAX + 1] = {&transport_tcp, &transport_ipc,
                                                          &transport_socket, NULL};

void transport_add(const transport_ops *ops)
{
    int n = 0;
    for (; transport_all[n] != NULL; n++)
        if (transport_all[n] == ops) return;
    if (n < TRANSPORTS_MAX) transport_all[n] = ops;
}

enum { ADDRESS_BYTES = 512 };

struct transport {
    const transport_ops *ops;
    lend *lend; /* NULL: bodies are always sent */
    char *own;  /* of a listener at "tcp://" that another scheme carries; else NULL */
    _Alignas(max_align_t) char state[];
};

const transport_ops *transport_find(const char *address)
{
    for (int i = 0; transport_all[i] != NULL; i++) {
        size_t n = strlen(transport_all[i]->scheme);
        if (strncmp(address, transport_all[i]->scheme, n) == 0 &&
            strncmp(address + n, "://", 3) == 0)
            return transport_all[i];
    }
    return NULL;
}

static transport_options fill_in(const transport_options *given)
{
    transport_options o = given != NULL ? *given : (transport_options){0};
    if (o.head_bytes_max == 0) o.head_bytes_max = 1 << 20;
    if (o.body_bytes_max == 0) o.body_bytes_max = 64 << 20;
    if (o.heartbeat_ms == 0) o.heartbeat_ms = 2000;
    if (o.connect_ms == 0) o.connect_ms = 1000;
    if (o.reconnect_ms_max == 0) o.reconnect_ms_max = 2000;
    if (o.io_threads == 0) o.io_threads = 1;
    if (o.connections_max == 0) o.connections_max = 4096;
    return o;
}

static bool is_tcp(const char *address)
{
    return strncmp(address, "tcp://", 6) == 0;
}

/* The address with the scheme of its carrier. */
static const char *carry(const char *address, transport_carrier carrier,
                         char carried[ADDRESS_BYTES])
{
    if (carrier == TRANSPORT_ZMQ || !is_tcp(address)) return address;
    snprintf(carried, ADDRESS_BYTES, "%s://%.450s", transport_socket.scheme, address + 6);
    return carried;
}

static bool note_own_address(transport *t)
{
    const char *bound = t->ops->address(t->state), *rest = strstr(bound, "://");
    return asprintf(&t->own, "tcp%s", rest) >= 0;
}

static transport *create(const char *address, pen_error *why)
{
    const transport_ops *ops = transport_find(address);
    if (ops == NULL) {
        why_set(why, PEN_INVALID_ARGUMENT, "invalid address '%.200s'; expected tcp://HOST:PORT",
                address);
        return NULL;
    }
    transport *t = calloc(1, sizeof *t + ops->state_size);
    if (t == NULL)
        why_set(why, PEN_NO_MEMORY, "no memory for a connection to %.200s", address);
    else
        t->ops = ops;
    return t;
}

static pen_status open_with(bool listens, const char *address, const transport_options *given,
                            transport **out, pen_error *why)
{
    pen_error unasked;
    if (why == NULL) why = &unasked;
    const transport_options o = fill_in(given);
    char carried[ADDRESS_BYTES];
    const bool is_carried = is_tcp(address) && o.carrier != TRANSPORT_ZMQ;
    address               = carry(address, o.carrier, carried);
    transport *t          = create(address, why);
    if (t == NULL) return why->status;
    pen_status status = (listens ? t->ops->listen : t->ops->dial)(t->state, address, &o, why);
    if (status == PEN_OK && listens && is_carried && !note_own_address(t))
        status = why_set(why, PEN_NO_MEMORY, "no memory for a connection to %.200s", address);
    if (status == PEN_OK && o.lends && t->ops->crosses_processes) {
        t->lend = lend_create(t->ops, t->state, listens, o.body_bytes_max);
        if (t->lend == NULL)
            status = why_set(why, PEN_NO_MEMORY, "no memory for a connection to %.200s", address);
    }
    if (status == PEN_OK)
        *out = t;
    else
        transport_close(t, 0);
    return status;
}

pen_status transport_listen(const char *address, const transport_options *o, transport **out,
                            pen_error *why)
{
    return open_with(true, address, o, out, why);
}

pen_status transport_dial(const char *address, const transport_options *o, transport **out,
                          pen_error *why)
{
    return open_with(false, address, o, out, why);
}

const char *transport_address(transport *t)
{
    return t->own != NULL ? t->own : t->ops->address(t->state);
}

pen_status transport_send(transport *t, uint32_t peer, const void *head, size_t head_size,
                          buf *body)
{
    if (head_size == 0) return PEN_INVALID_ARGUMENT;
    if (t->lend != NULL) return lend_send(t->lend, peer, head, head_size, body);
    return t->ops->send(t->state, peer, head, head_size, body);
}

pen_status transport_recv(transport *t, transport_event *event)
{
    if (t->lend != NULL) return lend_recv(t->lend, event);
    pen_status status;
    while ((status = t->ops->recv(t->state, event)) == PEN_OK && lend_is_private(event))
        buf_release(event->body); /* a PROBE of a peer: no answer means no */
    return status;
}

void transport_blame(transport *t, uint32_t peer)
{
    if (t->ops->blame != NULL) t->ops->blame(t->state, peer);
}

void transport_trust(transport *t, uint32_t peer)
{
    if (t->ops->trust != NULL) t->ops->trust(t->state, peer);
    if (t->lend != NULL) lend_admit(t->lend, peer);
}

bool transport_who(transport *t, uint32_t peer, transport_identity *is)
{
    return t->ops->who != NULL && t->ops->who(t->state, peer, is);
}

bool transport_log_allowed(transport *t, uint32_t peer)
{
    transport_identity is = {UINT32_MAX, UINT32_MAX};
    (void)transport_who(t, peer, &is);
    const uint64_t member = (uint64_t)is.who << 32 | is.index;
    return log_allowed(member * 0x9e3779b97f4a7c15u ^ (uintptr_t)t);
}

void transport_culprit(uint32_t peer, const char *from, char text[TRANSPORT_CULPRIT_BYTES])
{
    if (peer != 0)
        snprintf(text, TRANSPORT_CULPRIT_BYTES, "a frame of peer %u", peer);
    else
        snprintf(text, TRANSPORT_CULPRIT_BYTES, "a connection%s%s that has not said who it is",
                 *from != '\0' ? " from " : "", from);
}

void transport_unplace(transport *t, const void *owner)
{
    if (t->ops->unplace != NULL) t->ops->unplace(t->state, owner);
}

void transport_set_queue(transport *t, uint64_t bytes_max)
{
    if (t->ops->set_queue != NULL) t->ops->set_queue(t->state, bytes_max);
}

uint32_t transport_unconfirmed_ms(transport *t)
{
    return t->ops->unconfirmed_ms != NULL ? t->ops->unconfirmed_ms(t->state) : 0;
}

int transport_poll_fd(transport *t)
{
    return t->ops->poll_fd(t->state);
}

void transport_close(transport *t, uint32_t linger_ms)
{
    if (t == NULL) return;
    lend_destroy(t->lend);
    t->ops->close(t->state, linger_ms);
    free(t->own);
    free(t);
}
