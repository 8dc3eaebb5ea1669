/* transport_inproc.c - messages between threads of one process, by reference.
 *
 * A listener is a name in a registry; dialling it creates a pair of queues.  One lock guards all queues
 * and the registry: this transport is for tests and for a scheduler in the same process, not for bulk
 * data.  A dialler whose listener is absent, or closes, is connected when one of that name comes.
 */
#include "common/base/why.h"
#include "common/net/transport/transport.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ADDRESS_BYTES = 128 };

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
    char address[ADDRESS_BYTES];
    bool listens, is_open;
    int fd;
    uint64_t head_max, body_max;
    item *first, **last; /* what arrived */
    item *current;       /* holds the head of the last event */

    struct endpoint *listener; /* of a dialler: its other end, or NULL       */
    uint32_t number;           /* of a dialler: its number at that listener  */
    bool has_spoken;           /* of a dialler: the listener knows of it     */
    uint32_t numbers;          /* of a listener: given so far                */
} endpoint;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static endpoint *endpoints;
static unsigned names; /* names generated so far, for inproc://... */

static bool deliver(endpoint *to, transport_event_kind kind, uint32_t peer, const void *head,
                    size_t head_size, buf *body)
{
    item *i = malloc(sizeof *i + head_size);
    if (i == NULL) return false;
    *i = (item){.kind = kind, .peer = peer, .body = body, .head_size = head_size};
    if (head_size > 0) memcpy(i->head, head, head_size);
    *to->last = i;
    to->last  = &i->next;
    eventfd_write(to->fd, 1);
    return true;
}

static void connect_to(endpoint *listener, endpoint *dialler)
{
    dialler->listener   = listener;
    dialler->number     = ++listener->numbers;
    dialler->has_spoken = false;
    deliver(dialler, TRANSPORT_UP, 0, NULL, 0, NULL);
}

static endpoint *find_listener(const char *address)
{
    endpoint *e = endpoints;
    while (e != NULL && (!e->listens || strcmp(e->address, address) != 0)) e = e->next;
    return e;
}

static endpoint *find_dialler(const endpoint *listener, uint32_t number)
{
    endpoint *e = endpoints;
    while (e != NULL && (e->listener != listener || e->number != number)) e = e->next;
    return e;
}

static pen_status open_endpoint(endpoint *e, const char *address, const transport_options *o,
                                pen_error *why)
{
    if (strlen(address) >= sizeof e->address)
        return why_set(why, PEN_INVALID_ARGUMENT, "the address '%.200s' is too long", address);
    snprintf(e->address, sizeof e->address, "%s", address);
    e->head_max = o->head_bytes_max;
    e->body_max = o->body_bytes_max;
    e->fd       = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->fd < 0)
        return why_set(why, PEN_NO_MEMORY,
                       "cannot open '%s': %m; raise the limit of open files (ulimit -n)", address);
    e->last = &e->first;
    return PEN_OK;
}

static void enter(endpoint *e)
{
    e->is_open = true;
    e->next    = endpoints;
    endpoints  = e;
}

static pen_status enter_listener(endpoint *e, pen_error *why)
{
    if (strcmp(e->address, "inproc://*") == 0)
        snprintf(e->address, sizeof e->address, "inproc://any-%u", ++names);
    if (find_listener(e->address) != NULL)
        return why_set(why, PEN_UNREACHABLE, "'%s' is in use; choose another name", e->address);
    e->listens = true;
    enter(e);
    for (endpoint *d = endpoints; d != NULL; d = d->next)
        if (!d->listens && d->listener == NULL && strcmp(d->address, e->address) == 0)
            connect_to(e, d);
    return PEN_OK;
}

static pen_status inproc_listen(void *state, const char *address, const transport_options *o,
                                pen_error *why)
{
    endpoint *e       = state;
    pen_status status = open_endpoint(e, address, o, why);
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&lock);
    status = enter_listener(e, why);
    pthread_mutex_unlock(&lock);
    return status;
}

static pen_status inproc_dial(void *state, const char *address, const transport_options *o,
                              pen_error *why)
{
    endpoint *e             = state;
    const pen_status status = open_endpoint(e, address, o, why);
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&lock);
    enter(e);
    endpoint *listener = find_listener(e->address);
    if (listener != NULL) connect_to(listener, e);
    pthread_mutex_unlock(&lock);
    return PEN_OK;
}

static const char *inproc_address(void *state)
{
    return ((endpoint *)state)->address;
}

static int inproc_poll_fd(void *state)
{
    return ((endpoint *)state)->fd;
}

/* As over a socket, the receiver refuses what is too large: *is_refused, and the caller releases its body
 * outside the lock. */
static pen_status pass(endpoint *to, uint32_t peer, const void *head, size_t head_size, buf *body,
                       bool *is_refused)
{
    const char *note = NULL;
    if (head_size > to->head_max)
        note = "a head that is too large";
    else if (body != NULL && body->size > to->body_max)
        note = "a body that is too large";
    *is_refused = note != NULL;
    const bool is_delivered =
        note == NULL ? deliver(to, TRANSPORT_MESSAGE, peer, head, head_size, body)
                     : deliver(to, TRANSPORT_REFUSED, peer, note, strlen(note) + 1, NULL);
    return is_delivered ? PEN_OK : PEN_AGAIN;
}

static pen_status inproc_send(void *state, uint32_t peer, const void *head, size_t head_size,
                              buf *body)
{
    endpoint *e       = state;
    bool is_refused   = false;
    pen_status status = e->listens ? PEN_PEER_LOST : PEN_AGAIN;
    pthread_mutex_lock(&lock);
    endpoint *to = e->listens ? find_dialler(e, peer) : e->listener;
    if (to != NULL) {
        status = pass(to, e->listens ? 0 : e->number, head, head_size, body, &is_refused);
        e->has_spoken |= status == PEN_OK;
    }
    pthread_mutex_unlock(&lock);
    if (status == PEN_OK && is_refused) buf_release(body);
    return status;
}

static item *take_first(endpoint *e)
{
    eventfd_t count;
    pthread_mutex_lock(&lock);
    item *i = e->first;
    if (i == NULL) {
        eventfd_read(e->fd, &count);
    } else {
        e->first = i->next;
        if (e->first == NULL) e->last = &e->first;
    }
    pthread_mutex_unlock(&lock);
    return i;
}

static pen_status inproc_recv(void *state, transport_event *event)
{
    endpoint *e = state;
    *event      = (transport_event){0};
    free(e->current);
    item *i = e->current = take_first(e);
    if (i == NULL) return PEN_AGAIN;
    event->kind = i->kind;
    event->peer = i->peer;
    event->body = i->body;
    if (i->kind == TRANSPORT_REFUSED) snprintf(event->note, sizeof event->note, "%s", i->head);
    if (i->kind != TRANSPORT_MESSAGE) return PEN_OK;
    event->head      = i->head;
    event->head_size = i->head_size;
    return PEN_OK;
}

static void leave(endpoint *e)
{
    endpoint **link = &endpoints;
    while (*link != e) link = &(*link)->next;
    *link = e->next;
    if (!e->listens && e->listener != NULL && e->has_spoken)
        deliver(e->listener, TRANSPORT_DOWN, e->number, NULL, 0, NULL);
    for (endpoint *d = endpoints; d != NULL && e->listens; d = d->next) {
        if (d->listener != e) continue;
        d->listener = NULL;
        deliver(d, TRANSPORT_DOWN, 0, NULL, 0, NULL);
    }
}

static void inproc_close(void *state, uint32_t linger_ms)
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
    .scheme      = "inproc",
    .doc         = "Queues between threads of one process; for tests and a scheduler in a program.",
    .any_address = "inproc://*",
    .stays_inside = true,
    .keeps_order  = true,
    .state_size   = sizeof(endpoint),
    .listen       = inproc_listen,
    .dial         = inproc_dial,
    .address      = inproc_address,
    .send         = inproc_send,
    .recv         = inproc_recv,
    .poll_fd      = inproc_poll_fd,
    .close        = inproc_close,
};
