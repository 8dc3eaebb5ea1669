/* transport_inproc.c - messages between threads of one process, by reference.
 *
 * A listener is a name in a registry; dialling it makes a pair of queues.  One lock guards all queues and the
 * registry: this transport is for tests and for a scheduler in the same process, not for bulk data.
 * A dialler whose listener is not there, or goes, waits and is connected when one of that name comes.
 */
#include "common/transport/transport.h"
#include "common/why.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { NAME_BYTES = 128, HEAD_BYTES_MAX = 1 << 20, BODY_BYTES_MAX = 64 << 20 };

typedef struct item {
    struct item *next;
    transport_event_kind kind;
    uint32_t peer;
    buf *body;
    size_t head_size;
    char head[];
} item;

typedef struct endpoint {
    struct endpoint *next; /* of the registry: all open endpoints */
    char name[NAME_BYTES];
    bool listens, is_open;
    int fd;
    uint64_t head_max, body_max;
    item *first, **last; /* what arrived */
    item *current;       /* holds the head of the last event */

    struct endpoint *listener; /* of a dialler: its other end, or NULL       */
    uint32_t number;           /* of a dialler: its number at that listener  */
    uint32_t numbers;          /* of a listener: given so far                */
} endpoint;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static endpoint *endpoints;

static pen_status deliver(endpoint *to, transport_event_kind kind, uint32_t peer, const void *head,
                          size_t head_size, buf *body)
{
    item *i = malloc(sizeof *i + head_size);
    if (i == NULL) return PEN_AGAIN;
    *i = (item){.kind = kind, .peer = peer, .body = body, .head_size = head_size};
    if (head_size > 0) memcpy(i->head, head, head_size);
    *to->last = i;
    to->last  = &i->next;
    eventfd_write(to->fd, 1);
    return PEN_OK;
}

static void connect_(endpoint *dialler, endpoint *listener)
{
    dialler->listener = listener;
    dialler->number   = ++listener->numbers;
    deliver(dialler, TRANSPORT_UP, 0, NULL, 0, NULL);
}

static endpoint *find_listener(const char *name)
{
    endpoint *e = endpoints;
    while (e != NULL && (!e->listens || strcmp(e->name, name) != 0)) e = e->next;
    return e;
}

static endpoint *find_dialler(const endpoint *listener, uint32_t number)
{
    endpoint *e = endpoints;
    while (e != NULL && (e->listener != listener || e->number != number)) e = e->next;
    return e;
}

static pen_status open_(endpoint *e, const char *address, const transport_options *o,
                        pen_error *why)
{
    const char *name = address + strlen("inproc://");
    if (strlen(name) >= sizeof e->name)
        return why_set(why, PEN_INVALID_ARGUMENT, "the address '%s' is too long", address);
    snprintf(e->name, sizeof e->name, "%s", name);
    e->head_max = o->head_bytes_max == 0 ? HEAD_BYTES_MAX : o->head_bytes_max;
    e->body_max = o->body_bytes_max == 0 ? BODY_BYTES_MAX : o->body_bytes_max;
    e->last     = &e->first;
    e->fd       = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->fd < 0)
        return why_set(why, PEN_NO_MEMORY, "cannot open '%s': %m; raise ulimit -n", address);
    return PEN_OK;
}

static void enter(endpoint *e)
{
    e->is_open = true;
    e->next    = endpoints;
    endpoints  = e;
}

static pen_status listen_(void *state, const char *address, const transport_options *o,
                          pen_error *why)
{
    endpoint *e       = state;
    pen_status status = open_(e, address, o, why);
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&lock);
    if (find_listener(e->name) != NULL) {
        status = why_set(why, PEN_UNREACHABLE, "'%s' is in use; choose another name", address);
    } else {
        e->listens = true;
        enter(e);
        for (endpoint *d = endpoints; d != NULL; d = d->next)
            if (!d->listens && d->listener == NULL && strcmp(d->name, e->name) == 0) connect_(d, e);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static pen_status dial(void *state, const char *address, const transport_options *o, pen_error *why)
{
    endpoint *e       = state;
    pen_status status = open_(e, address, o, why);
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&lock);
    enter(e);
    endpoint *listener = find_listener(e->name);
    if (listener != NULL) connect_(e, listener);
    pthread_mutex_unlock(&lock);
    return PEN_OK;
}

static const char *address_(void *state)
{
    static _Thread_local char address[NAME_BYTES + 16];
    snprintf(address, sizeof address, "inproc://%s", ((endpoint *)state)->name);
    return address;
}

static int poll_fd(void *state)
{
    return ((endpoint *)state)->fd;
}

/* What a socket would have done: too large is the receiver's to refuse. */
static pen_status pass(endpoint *to, uint32_t peer, const void *head, size_t head_size, buf *body)
{
    if (head_size > 0 && head_size <= to->head_max && (body == NULL || body->size <= to->body_max))
        return deliver(to, TRANSPORT_MESSAGE, peer, head, head_size, body);
    static const char note[] = "a message that is empty or too large";
    pen_status status        = deliver(to, TRANSPORT_REFUSED, peer, note, sizeof note, NULL);
    if (status == PEN_OK) buf_release(body);
    return status;
}

static pen_status send_(void *state, uint32_t peer, const void *head, size_t head_size, buf *body)
{
    endpoint *e = state;
    pthread_mutex_lock(&lock);
    endpoint *to      = e->listens ? find_dialler(e, peer) : e->listener;
    pen_status status = to == NULL ? e->listens ? PEN_PEER_LOST : PEN_AGAIN
                                   : pass(to, e->listens ? 0 : e->number, head, head_size, body);
    pthread_mutex_unlock(&lock);
    return status;
}

static pen_status recv_(void *state, transport_event *event)
{
    endpoint *e = state;
    eventfd_t count;
    *event = (transport_event){0};
    free(e->current);
    pthread_mutex_lock(&lock);
    item *i = e->current = e->first;
    if (i != NULL) {
        e->first = i->next;
        if (e->first == NULL) e->last = &e->first;
    } else {
        eventfd_read(e->fd, &count);
    }
    pthread_mutex_unlock(&lock);
    if (i == NULL) return PEN_AGAIN;
    event->kind = i->kind;
    event->peer = i->peer;
    event->body = i->body;
    if (i->kind == TRANSPORT_REFUSED) {
        snprintf(event->note, sizeof event->note, "%s", i->head);
    } else {
        event->head      = i->head;
        event->head_size = i->head_size;
    }
    return PEN_OK;
}

static void leave(endpoint *e)
{
    endpoint **link = &endpoints;
    while (*link != e) link = &(*link)->next;
    *link = e->next;
    if (!e->listens && e->listener != NULL)
        deliver(e->listener, TRANSPORT_DOWN, e->number, NULL, 0, NULL);
    for (endpoint *d = endpoints; d != NULL && e->listens; d = d->next) {
        if (d->listener != e) continue;
        d->listener = NULL;
        deliver(d, TRANSPORT_DOWN, 0, NULL, 0, NULL);
    }
}

static void close_(void *state, uint32_t linger_ms)
{
    endpoint *e = state;
    (void)linger_ms; /* what was sent has arrived already */
    pthread_mutex_lock(&lock);
    if (e->is_open) leave(e);
    pthread_mutex_unlock(&lock);
    for (item *i = e->first, *next; i != NULL; i = next) {
        next = i->next;
        buf_release(i->body);
        free(i);
    }
    free(e->current);
    if (e->last != NULL) close(e->fd);
}

const transport_ops transport_inproc = {
    .scheme = "inproc",
    .doc = "Queues between threads of one process; for tests and for a scheduler inside a program.",
    .state_size = sizeof(endpoint),
    .listen     = listen_,
    .dial       = dial,
    .address    = address_,
    .send       = send_,
    .recv       = recv_,
    .poll_fd    = poll_fd,
    .close      = close_,
};
