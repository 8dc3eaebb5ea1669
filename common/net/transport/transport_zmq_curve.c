/* transport_zmq_curve.c - encryption and admission: CURVE, and the thread that answers ZeroMQ's key queries.
 *
 * DESIGN CURVE.  A dialler needs the listener's public key for its first message and proves its own key with the
 * second; everything after that is encrypted and authenticated.  Every connection has its own session keys, so a
 * recording cannot be decrypted later or replayed.
 *
 * Doors.  For each such dialler ZeroMQ asks a service inside the process (ZAP, RFC 27) whether to admit its public key.
 * The service is one thread, "pen-zap"; a query names the listener by its ZAP domain, the number of its door, and the
 * door's owner answers.  What needs no key, such as a Unix-domain socket, has the domain "penstock" and no door.
 * Without that thread ZeroMQ would admit every peer that knows the listener's key, so a listener with keys is opened
 * only if it runs.
 */
#include "common/net/transport/transport_zmq.h"

#include "common/base/why.h"
#include "common/containers/list.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRAME_BYTES = 256, REQUEST_FRAMES = 7, CURVE_NAME_BYTES = 24 };

typedef struct door {
    unsigned number;
    transport_keys keys;
    struct door *next, *prev;
} door;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static door *doors;
static bool has_thread;
static pthread_t thread;

/* ---- the service ------------------------------------------------------------------------------ */

typedef struct { /* version, id, domain, address, identity, mechanism, credentials */
    uint8_t frame[REQUEST_FRAMES][FRAME_BYTES];
    int size[REQUEST_FRAMES];
    int n;
} request;

static bool is_frame(const request *r, int i, const char *text)
{
    return i < r->n && (size_t)r->size[i] == strlen(text) &&
           memcmp(r->frame[i], text, strlen(text)) == 0;
}

/* Reads one whole request and drops extra frames.  False: the context has ended. */
static bool recv_request(void *socket, request *r)
{
    int more    = 1;
    size_t size = sizeof more;
    uint8_t rest[FRAME_BYTES];
    r->n = 0;
    for (int i = 0; more; i++) {
        uint8_t *to = i < REQUEST_FRAMES ? r->frame[i] : rest;
        int n;
        do n = zmq.recv(socket, to, FRAME_BYTES, 0);
        while (n < 0 && errno == EINTR);
        if (n < 0) return false;
        if (i < REQUEST_FRAMES) r->size[r->n++] = n < FRAME_BYTES ? n : FRAME_BYTES;
        zmq.getsockopt(socket, ZMQ_RCVMORE, &more, &size);
    }
    return true;
}

static bool ask_door(const request *r, transport_identity *as)
{
    char name[32] = "";
    bool is_in    = false;
    if (r->size[2] < (int)sizeof name) memcpy(name, r->frame[2], (size_t)r->size[2]);
    const unsigned number = (unsigned)strtoul(name, NULL, 10);
    pthread_mutex_lock(&lock);
    for (const door *d = doors; d != NULL; d = d->next)
        if (d->number == number) is_in = d->keys.admits(d->keys.user, r->frame[6], as);
    pthread_mutex_unlock(&lock);
    return is_in;
}

static bool may_come(const request *r, transport_identity *as)
{
    if (!is_frame(r, 0, "1.0")) return false;
    if (is_frame(r, 5, "NULL")) return is_frame(r, 2, "penstock");
    return is_frame(r, 5, "CURVE") && r->n == REQUEST_FRAMES && r->size[6] == TRANSPORT_KEY_BYTES &&
           ask_door(r, as);
}

static void *serve(void *socket)
{
    request r;
    while (recv_request(socket, &r)) {
        transport_identity as = {0};
        const bool is_in      = may_come(&r, &as);
        /* ZeroMQ stores the user id and attaches it to each message of that connection. */
        char name[CURVE_NAME_BYTES] = "";
        const char *const text[]    = {is_in ? "200" : "400", is_in ? "OK" : "no key of this job",
                                    name, ""};
        const bool has_key = is_in && is_frame(&r, 5, "CURVE");
        if (has_key) snprintf(name, sizeof name, "%u %u", as.who, as.index);
        zmq.send(socket, "1.0", 3, ZMQ_SNDMORE);
        zmq.send(socket, r.frame[1], r.n > 1 ? (size_t)r.size[1] : 0, ZMQ_SNDMORE);
        for (int i = 0; i < 4; i++)
            zmq.send(socket, text[i], strlen(text[i]), i < 3 ? ZMQ_SNDMORE : 0);
    }
    zmq.close(socket);
    return NULL;
}

/* Signals belong to the program: this thread blocks them. */
static bool start_thread(void *socket)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    has_thread = pthread_create(&thread, NULL, serve, socket) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (has_thread) pthread_setname_np(thread, "pen-zap");
    return has_thread;
}

static bool start_service(void *context)
{
    if (has_thread) return true;
    void *socket = zmq.socket(context, ZMQ_REP);
    if (socket == NULL) return false;
    set_int(socket, ZMQ_LINGER, 0);
    if (zmq.bind(socket, "inproc://zeromq.zap.01") == 0 && start_thread(socket)) return true;
    zmq.close(socket);
    return false;
}

void curve_stop(void)
{
    pthread_mutex_lock(&lock);
    const bool was = has_thread;
    has_thread     = false;
    pthread_mutex_unlock(&lock);
    if (was) pthread_join(thread, NULL);
}

void curve_forget(void)
{
    lock       = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    doors      = NULL;
    has_thread = false;
}

bool curve_who(zmq_msg_t *message, transport_identity *is)
{
    const char *name = zmq.msg_gets(message, "User-Id");
    return name != NULL && sscanf(name, "%u %u", &is->who, &is->index) == 2;
}

/* ---- endpoints -------------------------------------------------------------------------------- */

static pen_status open_door(endpoint *e, void *context, pen_error *why)
{
    static unsigned last;
    char domain[16];
    door *d = malloc(sizeof *d);
    if (d == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a listener's keys");
    pthread_mutex_lock(&lock);
    const bool is_served = start_service(context);
    if (is_served) {
        *d = (door){.number = ++last, .keys = *e->options.keys};
        LIST_PREPEND(doors, d);
        e->door = d->number;
    }
    pthread_mutex_unlock(&lock);
    if (!is_served) {
        free(d);
        return why_set(why, PEN_NO_MEMORY, "cannot start the key service of a listener: %s",
                       zmq.strerror(errno));
    }
    snprintf(domain, sizeof domain, "%u", e->door);
    zmq.setsockopt(e->socket, ZMQ_ZAP_DOMAIN, domain, strlen(domain));
    return PEN_OK;
}

static bool set_keys(endpoint *e)
{
    const transport_keys *k = e->options.keys;
    void *s                 = e->socket;
    set_int(s, ZMQ_CURVE_SERVER, e->listens);
    if (zmq.setsockopt(s, ZMQ_CURVE_SECRETKEY, k->own, sizeof k->own) != 0) return false;
    if (e->listens) return true;
    return zmq.setsockopt(s, ZMQ_CURVE_PUBLICKEY, k->own_public, sizeof k->own_public) == 0 &&
           zmq.setsockopt(s, ZMQ_CURVE_SERVERKEY, k->peer, sizeof k->peer) == 0;
}

pen_status curve_set(endpoint *e, void *context, bool is_on, pen_error *why)
{
    if (!is_on) {
        set_int(e->socket, ZMQ_CURVE_SERVER, 0); /* no mechanism */
        zmq.setsockopt(e->socket, ZMQ_ZAP_DOMAIN, "penstock", strlen("penstock"));
        return PEN_OK;
    }
    if (!zmq.has("curve"))
        return why_set(why, PEN_UNSUPPORTED,
                       "this ZeroMQ was built without encryption (CURVE); install libzmq with "
                       "libsodium, or set encryption=clear");
    if (!set_keys(e))
        return why_set(why, PEN_INTERNAL, "ZeroMQ rejected the keys of an endpoint: %s",
                       zmq.strerror(errno));
    return e->listens ? open_door(e, context, why) : PEN_OK;
}

void curve_close(endpoint *e)
{
    if (e->door == 0) return;
    pthread_mutex_lock(&lock);
    LIST_EACH(d, doors) {
        if (d->number != e->door) continue;
        LIST_REMOVE(doors, d);
        explicit_bzero(d, sizeof *d);
        free(d);
    }
    pthread_mutex_unlock(&lock);
    e->door = 0;
}
