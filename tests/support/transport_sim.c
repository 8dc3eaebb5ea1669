/* transport_sim.c - a network in memory: messages in flight by the moment of their arrival, and a generator of faults. */
#include "tests/support/transport_sim.h"
#include "common/base/why.h"
#include "tests/support/transports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NAME_BYTES = 96,
    NETS_MAX   = 64,
    CUTS_MAX   = 256,
    RETRY_MS   = 100 /* between two attempts of a dialler */
};

typedef struct endpoint endpoint;

typedef struct item { /* in flight, or in an inbox */
    struct item *next;
    endpoint *to;
    uint32_t peer;       /* of the receiver: the sender      */
    uint32_t connection; /* the connection it was sent on; stale ones vanish */
    transport_event_kind kind;
    buf *body;
    size_t head_size;
    char head[];
} item;

typedef struct moment { /* messages that arrive then, in the order of their sending */
    struct moment *next;
    uint64_t ms;
    item *first, **last;
} moment;

struct endpoint {
    endpoint *next, *previous; /* of the net */
    sim_net *net;
    char name[NAME_BYTES], target[NAME_BYTES], address[2 * NAME_BYTES];
    bool listens, is_open, is_dead;
    uint64_t head_max, body_max;
    item *first, **last, *current;

    endpoint *listener;     /* of a dialler that is connected */
    uint32_t number;        /* its connection; 0 = none       */
    bool is_known;          /* to the listener: it has sent something */
    uint64_t connect_at_ms; /* when it tries again            */
    uint64_t latest_ms[2];  /* newest promised delivery, to the listener and back: keeps order */
};

typedef struct {
    char from[NAME_BYTES], to[NAME_BYTES];
} cut;

struct sim_net {
    uint32_t id, connections, connections_room;
    endpoint **dialler; /* [connections + 1] by number; NULL: has ended */
    uint64_t random;
    const clock_source *clock;
    sim_faults faults;
    sim_counts counts;
    endpoint *endpoints, *newest;
    moment *flying;      /* sorted by time; none is empty */
    uint64_t connect_ms; /* when a dialler that is not connected tries again; */
    bool has_changed;    /* since connect_ms was found */
    uint32_t names;      /* names generated so far, for sim://ID/... */
    bool runs_itself;    /* by the real clock, whenever an endpoint receives */
    cut cuts[CUTS_MAX];
    size_t n_cuts;
};

/* A net is found by number, only in its own thread. */
static _Thread_local sim_net *nets[NETS_MAX], *self_driven;

/* splitmix64 */
static uint64_t draw(sim_net *net)
{
    uint64_t z = net->random += 0x9e3779b97f4a7c15u;
    z          = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z          = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static bool happens(sim_net *net, double probability)
{
    return probability > 0 && (double)(draw(net) >> 11) * 0x1p-53 < probability;
}

static uint64_t draw_delay(sim_net *net)
{
    const sim_faults *f = &net->faults;
    if (f->delay_ms_max <= f->delay_ms_min) return f->delay_ms_min;
    return f->delay_ms_min + draw(net) % (f->delay_ms_max - f->delay_ms_min + 1);
}

/* ---- the net ------------------------------------------------------------------------------------------- */

sim_net *sim_net_create(uint64_t seed, const clock_source *clock)
{
    transport_add(&transport_sim);
    for (uint32_t id = 0; id < NETS_MAX; id++) {
        if (nets[id] != NULL) continue;
        sim_net *net = calloc(1, sizeof *net);
        if (net == NULL) return NULL;
        net->id         = id;
        net->random     = seed;
        net->clock      = clock;
        net->connect_ms = UINT64_MAX;
        return nets[id] = net;
    }
    return NULL;
}

static void free_items(item *i)
{
    for (item *next; i != NULL; i = next) {
        next = i->next;
        buf_release(i->body);
        free(i);
    }
}

void sim_net_destroy(sim_net *net)
{
    if (net == NULL) return;
    for (moment *m = net->flying, *next; m != NULL; m = next) {
        next = m->next;
        free_items(m->first);
        free(m);
    }
    free(net->dialler);
    nets[net->id] = NULL;
    free(net);
}

uint32_t sim_net_id(const sim_net *net)
{
    return net->id;
}

void sim_net_faults(sim_net *net, const sim_faults *faults)
{
    net->faults = *faults;
}

sim_counts sim_net_counts(const sim_net *net)
{
    return net->counts;
}

static bool matches(const char *pattern, const char *name)
{
    return strcmp(pattern, "*") == 0 || strcmp(pattern, name) == 0;
}

static bool is_cut(const sim_net *net, const endpoint *from, const endpoint *to)
{
    for (size_t i = 0; i < net->n_cuts; i++)
        if (matches(net->cuts[i].from, from->name) && matches(net->cuts[i].to, to->name))
            return true;
    return false;
}

void sim_net_partition(sim_net *net, const char *from, const char *to, bool on)
{
    size_t i = 0;
    while (i < net->n_cuts &&
           (strcmp(net->cuts[i].from, from) != 0 || strcmp(net->cuts[i].to, to) != 0))
        i++;
    if (!on && i < net->n_cuts) net->cuts[i] = net->cuts[--net->n_cuts];
    if (!on || i < net->n_cuts || net->n_cuts == CUTS_MAX) return;
    cut *c = &net->cuts[net->n_cuts++];
    snprintf(c->from, sizeof c->from, "%s", from);
    snprintf(c->to, sizeof c->to, "%s", to);
}

/* ---- moving ----------------------------------------------------------------------------------------------- */

static item *item_new(endpoint *to, transport_event_kind kind, uint32_t peer, const void *head,
                      size_t head_size, buf *body)
{
    item *i = malloc(sizeof *i + head_size);
    if (i == NULL) return NULL;
    *i = (item){.to = to, .kind = kind, .peer = peer, .body = body, .head_size = head_size};
    if (head_size > 0) memcpy(i->head, head, head_size);
    return i;
}

static void arrive(item *i)
{
    i->next      = NULL;
    *i->to->last = i;
    i->to->last  = &i->next;
}

static void tell(endpoint *to, transport_event_kind kind, uint32_t peer)
{
    item *i = to->is_dead ? NULL : item_new(to, kind, peer, NULL, 0, NULL);
    if (i != NULL) arrive(i);
}

static bool fly(sim_net *net, item *i, uint64_t due_ms)
{
    moment **link = &net->flying;
    while (*link != NULL && (*link)->ms < due_ms) link = &(*link)->next;
    if (*link == NULL || (*link)->ms != due_ms) {
        moment *m = malloc(sizeof *m);
        if (m == NULL) return false;
        *m    = (moment){.next = *link, .ms = due_ms, .last = &m->first};
        *link = m;
    }
    i->next        = NULL;
    *(*link)->last = i;
    (*link)->last  = &i->next;
    return true;
}

typedef bool (*item_test)(sim_net *net, const item *i, const endpoint *e);
typedef void (*item_fn)(sim_net *net, item *i);

/* Gives `fn` what arrives until then, in order, and `takes` names; NULL: all. */
static void sort_out(sim_net *net, uint64_t until_ms, item_test takes, const endpoint *e,
                     item_fn fn)
{
    for (moment **at = &net->flying; *at != NULL && (*at)->ms <= until_ms;) {
        moment *m = *at;
        for (item **link = &m->first; *link != NULL;) {
            item *i = *link;
            if (takes != NULL && !takes(net, i, e)) {
                link = &i->next;
                continue;
            }
            *link = i->next;
            if (*link == NULL) m->last = link;
            fn(net, i);
        }
        if (m->first != NULL) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        free(m);
    }
}

static endpoint *find_listener(sim_net *net, const char *name)
{
    endpoint *e = net->endpoints;
    while (e != NULL && (!e->listens || e->is_dead || strcmp(e->name, name) != 0)) e = e->next;
    return e;
}

static endpoint *find_connection(sim_net *net, uint32_t number)
{
    return number <= net->connections && net->dialler != NULL ? net->dialler[number] : NULL;
}

/* False: no memory. */
static bool number_it(sim_net *net, endpoint *dialler)
{
    if (net->connections + 1 >= net->connections_room) {
        const uint32_t room = 2 * net->connections_room + 64;
        endpoint **more     = realloc(net->dialler, room * sizeof(endpoint *));
        if (more == NULL) return false;
        net->dialler          = more;
        net->dialler[0]       = NULL;
        net->connections_room = room;
    }
    dialler->number               = ++net->connections;
    net->dialler[dialler->number] = dialler;
    return true;
}

static void try_connect(endpoint *dialler)
{
    sim_net *net       = dialler->net;
    net->has_changed   = true;
    endpoint *listener = find_listener(net, dialler->target);
    if (listener == NULL || dialler->is_dead || is_cut(net, dialler, listener) ||
        is_cut(net, listener, dialler) || !number_it(net, dialler)) {
        dialler->connect_at_ms = clock_ms(net->clock) + RETRY_MS;
        return;
    }
    dialler->listener     = listener;
    dialler->is_known     = false;
    dialler->latest_ms[0] = dialler->latest_ms[1] = 0;
    tell(dialler, TRANSPORT_UP, 0);
}

static void disconnect(endpoint *dialler, uint32_t reconnect_ms)
{
    if (dialler->listener == NULL) return;
    dialler->net->has_changed = true;
    if (dialler->is_known) tell(dialler->listener, TRANSPORT_DOWN, dialler->number);
    tell(dialler, TRANSPORT_DOWN, 0);
    dialler->net->dialler[dialler->number] = NULL;
    dialler->listener                      = NULL;
    dialler->number                        = 0;
    dialler->connect_at_ms                 = clock_ms(dialler->net->clock) + reconnect_ms;
}

void sim_net_break(sim_net *net, const char *dialler, const char *listener, uint32_t reconnect_ms)
{
    for (endpoint *e = net->endpoints; e != NULL; e = e->next)
        if (!e->listens && matches(dialler, e->name) && matches(listener, e->target))
            disconnect(e, reconnect_ms);
}

void sim_net_kill(sim_net *net, const char *name)
{
    for (endpoint *e = net->endpoints; e != NULL; e = e->next)
        if (strcmp(e->name, name) == 0) e->is_dead = net->has_changed = true;
    for (endpoint *e = net->endpoints; e != NULL; e = e->next)
        if (e->is_dead || (e->listener != NULL && e->listener->is_dead)) disconnect(e, RETRY_MS);
}

static void find_connect_ms(sim_net *net)
{
    if (!net->has_changed) return;
    net->has_changed = false;
    net->connect_ms  = UINT64_MAX;
    for (const endpoint *e = net->endpoints; e != NULL; e = e->next)
        if (!e->listens && !e->is_dead && e->listener == NULL && e->connect_at_ms < net->connect_ms)
            net->connect_ms = e->connect_at_ms;
}

uint64_t sim_net_next_ms(sim_net *net)
{
    find_connect_ms(net);
    const uint64_t next = net->flying == NULL ? UINT64_MAX : net->flying->ms;
    return net->connect_ms < next ? net->connect_ms : next;
}

/* The other end of the connection a message was sent on; NULL: that has ended. */
static const endpoint *sender_of(sim_net *net, const item *i)
{
    const endpoint *dialler = find_connection(net, i->connection);
    if (dialler == NULL) return NULL;
    return i->to == dialler ? dialler->listener : dialler;
}

/* The fate of a message that arrives: the connection it was sent on may be gone, or partitioned. */
static void land(sim_net *net, item *i)
{
    const endpoint *from = sender_of(net, i);
    if (from == NULL || i->to->is_dead || is_cut(net, from, i->to)) {
        net->counts.dropped++;
        buf_release(i->body);
        free(i);
        return;
    }
    net->counts.delivered++;
    if (i->to->listens) find_connection(net, i->connection)->is_known = true;
    arrive(i);
}

bool sim_net_deliver(sim_net *net)
{
    uint64_t now = clock_ms(net->clock);
    bool any     = false;
    find_connect_ms(net);
    for (endpoint *e = net->endpoints; e != NULL && net->connect_ms <= now; e = e->next) {
        if (e->listens || e->is_dead || e->listener != NULL || e->connect_at_ms > now) continue;
        try_connect(e);
        any = true;
    }
    any |= net->flying != NULL && net->flying->ms <= now;
    sort_out(net, now, NULL, NULL, land);
    return any;
}

/* ---- endpoints ----------------------------------------------------------------------------------------------- */

static sim_net *find_net(const char *number)
{
    if (strcmp(number, "self") == 0) {
        if (self_driven == NULL) self_driven = sim_net_create(0, &clock_real);
        if (self_driven != NULL) self_driven->runs_itself = true;
        return self_driven;
    }
    char *end;
    const unsigned long id = strtoul(number, &end, 10);
    return end != number && *end == '\0' && id < NETS_MAX ? nets[id] : NULL;
}

/* "sim://<id>/<name>" or "sim://<id>/<target>?from=<name>" */
static pen_status open_endpoint(endpoint *e, const char *address, const transport_options *o,
                                pen_error *why)
{
    char number[8];
    int used = 0;
    if (sscanf(address, "sim://%7[a-z0-9]/%95[^?]%n", number, e->target, &used) == 2)
        e->net = find_net(number);
    if (e->net == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%.200s' names no simulated network of this thread", address);
    if (strcmp(e->target, "*") == 0)
        snprintf(e->target, sizeof e->target, "any-%u", ++e->net->names);
    if (sscanf(address + used, "?from=%95s", e->name) != 1)
        snprintf(e->name, sizeof e->name, "%s", e->target);
    snprintf(e->address, sizeof e->address, "sim://%s/%s", number, e->target);
    e->head_max = o->head_bytes_max;
    e->body_max = o->body_bytes_max;
    e->last     = &e->first;
    return PEN_OK;
}

/* At the end of the list: the order of events must not depend on memory addresses. */
static void enter(endpoint *e)
{
    sim_net *net = e->net;
    e->previous  = net->newest;
    if (net->newest != NULL)
        net->newest->next = e;
    else
        net->endpoints = e;
    net->newest = e;
    e->is_open  = true;
}

static pen_status sim_listen(void *state, const char *address, const transport_options *o,
                             pen_error *why)
{
    endpoint *e       = state;
    pen_status status = open_endpoint(e, address, o, why);
    if (status != PEN_OK) return status;
    if (find_listener(e->net, e->name) != NULL)
        return why_set(why, PEN_UNREACHABLE, "'%s' is in use; choose another name", address);
    e->listens = true;
    enter(e);
    return PEN_OK;
}

static pen_status sim_dial(void *state, const char *address, const transport_options *o,
                           pen_error *why)
{
    endpoint *e       = state;
    pen_status status = open_endpoint(e, address, o, why);
    if (status != PEN_OK) return status;
    enter(e);
    try_connect(e);
    return PEN_OK;
}

static const char *sim_address(void *state)
{
    return ((endpoint *)state)->address;
}

static int sim_poll_fd(void *state)
{
    (void)state;
    return -1;
}

/* The time of arrival: never before what was sent earlier on this connection, unless reordering is intended. */
static uint64_t draw_due(sim_net *net, uint64_t *latest_ms)
{
    uint64_t due = clock_ms(net->clock) + draw_delay(net);
    if (happens(net, net->faults.reorder)) {
        net->counts.reordered++;
        return due + draw_delay(net) + 1;
    }
    if (due < *latest_ms) due = *latest_ms;
    return *latest_ms = due;
}

static pen_status send_once(endpoint *e, endpoint *dialler, endpoint *to, const void *head,
                            size_t head_size, buf *body)
{
    item *i =
        item_new(to, TRANSPORT_MESSAGE, e->listens ? 0 : dialler->number, head, head_size, body);
    if (i == NULL) return PEN_AGAIN;
    i->connection = dialler->number;
    if (fly(e->net, i, draw_due(e->net, &dialler->latest_ms[e->listens]))) return PEN_OK;
    free(i); /* the body stays the caller's */
    return PEN_AGAIN;
}

/* Why `to` would refuse the message; NULL: it accepts. */
static const char *fault_of(const endpoint *to, size_t head_size, const buf *body)
{
    if (head_size > to->head_max) return "a head that is too large";
    if (body != NULL && body->size > to->body_max) return "a body that is too large";
    return NULL;
}

static pen_status refuse(endpoint *to, uint32_t peer, const char *note, buf *body)
{
    item *i = item_new(to, TRANSPORT_REFUSED, peer, note, strlen(note) + 1, NULL);
    if (i == NULL) return PEN_AGAIN;
    arrive(i);
    buf_release(body);
    return PEN_OK;
}

static pen_status sim_send(void *state, uint32_t peer, const void *head, size_t head_size,
                           buf *body)
{
    endpoint *e       = state;
    endpoint *dialler = e->listens ? find_connection(e->net, peer) : e;
    if (dialler != NULL && e->listens && dialler->listener != e) dialler = NULL;
    endpoint *to = dialler == NULL ? NULL : e->listens ? dialler : dialler->listener;
    if (to == NULL) return e->listens ? PEN_PEER_LOST : PEN_AGAIN;
    if (e->is_dead) return PEN_PEER_LOST;
    const char *fault = fault_of(to, head_size, body);
    if (fault != NULL) return refuse(to, e->listens ? 0 : dialler->number, fault, body);

    sim_net *net = e->net;
    net->counts.sent++;
    net->counts.bytes += head_size + (body == NULL ? 0 : body->size);
    if (happens(net, net->faults.repeat)) {
        net->counts.repeated++;
        if (send_once(e, dialler, to, head, head_size, buf_acquire(body)) != PEN_OK)
            buf_release(body);
    }
    if (happens(net, net->faults.drop)) {
        net->counts.dropped++;
        buf_release(body);
        return PEN_OK;
    }
    return send_once(e, dialler, to, head, head_size, body);
}

static pen_status sim_recv(void *state, transport_event *event)
{
    endpoint *e = state;
    *event      = (transport_event){0};
    free(e->current);
    if (e->net->runs_itself) sim_net_deliver(e->net);
    item *i = e->current = e->is_dead ? NULL : e->first;
    if (i == NULL) return PEN_AGAIN;
    e->first = i->next;
    if (e->first == NULL) e->last = &e->first;
    event->kind = i->kind;
    event->peer = i->peer;
    event->body = i->body;
    if (i->kind == TRANSPORT_REFUSED) snprintf(event->note, sizeof event->note, "%s", i->head);
    if (i->kind != TRANSPORT_MESSAGE) return PEN_OK;
    event->head      = i->head;
    event->head_size = i->head_size;
    return PEN_OK;
}

static bool is_to(sim_net *net, const item *i, const endpoint *e)
{
    (void)net;
    return i->to == e;
}

static bool is_from(sim_net *net, const item *i, const endpoint *e)
{
    return sender_of(net, i) == e;
}

static void drop(sim_net *net, item *i)
{
    (void)net;
    buf_release(i->body);
    free(i);
}

static void leave(endpoint *e, uint32_t linger_ms)
{
    sim_net *net     = e->net;
    net->has_changed = true;
    /* What a closing endpoint has in flight arrives before the event of its end. */
    if (linger_ms > 0) sort_out(net, clock_ms(net->clock) + linger_ms, is_from, e, land);
    if (!e->listens) disconnect(e, 0);
    for (endpoint *d = net->endpoints; d != NULL && e->listens; d = d->next)
        if (d->listener == e) disconnect(d, RETRY_MS);
    *(e->previous != NULL ? &e->previous->next : &net->endpoints) = e->next;
    *(e->next != NULL ? &e->next->previous : &net->newest)        = e->previous;
    sort_out(net, UINT64_MAX, is_to, e, drop);
}

static void sim_close(void *state, uint32_t linger_ms)
{
    endpoint *e = state;
    if (e->is_open) leave(e, linger_ms);
    free_items(e->first);
    free(e->current);
    if (e->net == NULL || e->net != self_driven || e->net->endpoints != NULL) return;
    sim_net_destroy(e->net);
    self_driven = NULL;
}

const transport_ops transport_sim = {
    .scheme = "sim",
    .doc    = "A simulated network with seeded faults; for tests of whole clusters in one process.",
    .any_address  = "sim://self/*",
    .stays_inside = true,
    .keeps_order  = false, /* if reordering is on */
    .state_size   = sizeof(endpoint),
    .listen       = sim_listen,
    .dial         = sim_dial,
    .address      = sim_address,
    .send         = sim_send,
    .recv         = sim_recv,
    .poll_fd      = sim_poll_fd,
    .close        = sim_close,
};
