/* transport.c - the table of transports, and the front that hides which one is used. */
#include "common/transport/transport.h"
#include "common/why.h"

#include <stdlib.h>
#include <string.h>

extern const transport_ops transport_tcp, transport_ipc, transport_inproc, transport_sim;

const transport_ops *const transport_all[] = {&transport_tcp, &transport_ipc, &transport_inproc,
                                              &transport_sim, NULL};

struct transport {
    const transport_ops *ops;
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

static pen_status create(const char *address, transport **t, pen_error *why)
{
    const transport_ops *ops = transport_find(address);
    if (ops == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT, "'%s' is no address: say tcp://HOST:PORT",
                       address);
    *t = calloc(1, sizeof **t + ops->state_size);
    if (*t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a connection to %s", address);
    (*t)->ops = ops;
    return PEN_OK;
}

pen_status transport_listen(const char *address, const transport_options *o, transport **out,
                            pen_error *why)
{
    static const transport_options defaults;
    transport *t;
    pen_status status = create(address, &t, why);
    if (status != PEN_OK) return status;
    status = t->ops->listen(t->state, address, o != NULL ? o : &defaults, why);
    if (status == PEN_OK)
        *out = t;
    else
        transport_close(t, 0);
    return status;
}

pen_status transport_dial(const char *address, const transport_options *o, transport **out,
                          pen_error *why)
{
    static const transport_options defaults;
    transport *t;
    pen_status status = create(address, &t, why);
    if (status != PEN_OK) return status;
    status = t->ops->dial(t->state, address, o != NULL ? o : &defaults, why);
    if (status == PEN_OK)
        *out = t;
    else
        transport_close(t, 0);
    return status;
}

const char *transport_address(transport *t)
{
    return t->ops->address(t->state);
}

pen_status transport_send(transport *t, uint32_t peer, const void *head, size_t head_size,
                          buf *body)
{
    return t->ops->send(t->state, peer, head, head_size, body);
}

pen_status transport_recv(transport *t, transport_event *event)
{
    return t->ops->recv(t->state, event);
}

int transport_poll_fd(transport *t)
{
    return t->ops->poll_fd(t->state);
}

void transport_close(transport *t, uint32_t linger_ms)
{
    if (t == NULL) return;
    t->ops->close(t->state, linger_ms);
    free(t);
}
