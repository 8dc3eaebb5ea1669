/* transport_zmq.h - the inside of the endpoints over ZeroMQ, shared by transport_zmq*.c only. */
#ifndef COMMON_TRANSPORT_ZMQ_H
#define COMMON_TRANSPORT_ZMQ_H

#include "common/base/rate.h"
#include "common/net/local_socket.h"
#include "common/net/name_lookup.h"
#include "common/net/transport/peers.h"
#include "common/net/transport/transport.h"

#include <stdatomic.h>
#include <zmq.h>

/* ---- the library: transport_zmq_context.c ------------------------------------------------------ */
/* clang-format off */
#define ZMQ_FUNCTIONS(X) \
    X(bind) X(close) X(connect) X(ctx_new) X(ctx_set) X(ctx_shutdown) X(ctx_term) X(disconnect) X(getsockopt) \
    X(has) X(msg_close) X(msg_copy) X(msg_data) X(msg_gets) X(msg_init) X(msg_init_data) X(msg_more) X(msg_move) \
    X(msg_recv) X(msg_send) X(msg_size) X(recv) X(send) X(setsockopt) X(socket) X(socket_monitor) X(strerror)
/* clang-format on */
#define ZMQ_MEMBER(name) __typeof__(zmq_##name) *name;

/* Its functions, once zmqctx_load() has succeeded, which endpoints do first. */
extern struct zmq_functions {
    ZMQ_FUNCTIONS(ZMQ_MEMBER)
} zmq;

pen_status zmqctx_load(pen_error *why);

/* ---- connections of a listener: transport_zmq_watch.c ------------------------------------------ */
typedef struct watched watched;

enum { WATCH_NOTES = 8, WATCH_RATES = 251 };

typedef struct {
    watched *at; /* [n] by descriptor */
    size_t n;
    uint32_t living, connections_max;
    uint64_t accepted;            /* connections so far */
    uint64_t message_bytes_max;   /* limit of an incomplete message */
    uint64_t queue_bytes_max;     /* 0: any */
    uint64_t observers_bytes_max; /* 0: any */
    uint64_t observers_bytes;     /* upper bound of their queued bytes */
    int timer_fd;                 /* ticks while there are connections; -1: none yet */
    struct {
        uint32_t peer;
        const char *text;
        char from[TRANSPORT_FROM_BYTES]; /* empty: not known */
    } note[WATCH_NOTES];                 /* of ended connections, not reported yet */
    size_t n_notes;
    rate rate[WATCH_RATES]; /* of connections, by address */
} watch;

/* ---- one endpoint ------------------------------------------------------------------------------ */
enum { DIAL_REFUSED_MAX = 64 };
typedef struct { /* of a dialler: its state, and what its owner knows */
    bool is_up, told_up, broke;
    bool is_local;     /* the present target is a Unix-domain socket */
    uint32_t refused;  /* attempts that met a wrong listener; not reported */
    const char *fault; /* fault of the newest; NULL: unknown */
    int fd;            /* of the present connection */
    uint32_t tries;    /* searches for a listener's socket without success */
} dialled;

enum { DIAL_TARGET_MAX = 256 };

typedef struct {
    void *socket, *monitor;
    atomic_size_t *queued; /* frames that ZeroMQ has not written, and one */
    int epoll_fd;
    unsigned generation, door; /* door: 0 = none */
    bool listens, has_context, has_head, has_keys;
    char address[DIAL_TARGET_MAX];
    transport_options options;
    uint64_t head_max, body_max;
    zmq_msg_t head; /* of the last event; closed by the next recv */

    dialled link;
    local_socket *local;          /* of a listener; NULL: none */
    int reserved_fd;              /* of a listener: its port, which nobody listens at; -1: none */
    char target[DIAL_TARGET_MAX]; /* of a dialler: what is dialled; empty: nothing */
    name_lookup *asked;           /* pending; NULL: none */
    peers peers;                  /* of a listener */
    watch watch;                  /* of a listener */
    uint32_t unknown;             /* connections with an unknown key; not reported */
    bool is_telling;              /* reporting ripe ends */
    uint64_t round_ms;            /* when this round began */
    size_t messages;              /* of this round */
    int timer_fd;                 /* wakes the owner; -1 until needed */
    bool is_ticking;              /* listening: the timer was set */
} endpoint;

static inline void set_int(void *socket, int option, int value)
{
    zmq.setsockopt(socket, option, &value, sizeof value);
}

/* ---- frames, and what wakes the owner: transport_zmq_socket.c ------------------------------------ */
bool zmqio_send_frame(void *socket, zmq_msg_t *frame);
bool zmqio_send(void *socket, const void *bytes, size_t size, int flags);
bool queue_create(endpoint *e); /* the count of its frames that ZeroMQ has not let go of */
void queue_drop(
    endpoint *e); /* after its socket: those frames hold the count, and the last one frees it */
/* Sends the last frame of a message: a copy of bytes, or the bytes of owner, which is released after it. */
bool queue_last(endpoint *e, const void *bytes, size_t size, buf *owner);
bool zmqio_recv_frame(void *socket, zmq_msg_t *frame);
int zmqio_recv(void *socket, void *bytes, size_t size);
pen_status endpoint_name_peer(endpoint *e,
                              uint32_t number); /* begins a message to a peer of a listener */
/* The [id] frame of a listener; close it.  number 0: the peer chose another form of id.  False: none. */
bool endpoint_recv_id(endpoint *e, zmq_msg_t *id, uint32_t *number);
/* The mark of a message's connection, as text its descriptor.  ZeroMQ attaches the properties of the connection to each
 * message; those of another connection are elsewhere in memory as long as one message of this one is kept.  NULL: none. */
const char *mark_of(zmq_msg_t *message);
void *mark_keep(zmq_msg_t *message);         /* NULL: no memory */
void mark_drop(void *kept);                  /* NULL is fine */
bool endpoint_watch_fd(endpoint *e, int fd); /* its readability wakes the owner */
/* Wakes the owner after this time; 0: stops. */
void endpoint_set_timer(endpoint *e, long ms);
void endpoint_set_ticking(endpoint *e, long every_ms); /* the timer of its watch, likewise */
bool endpoint_has_fired(int timer_fd);

/* ---- the one context of the process: transport_zmq_context.c ----------------------------------- */
unsigned zmqctx_generation(void); /* number of forks since the first process */

void *zmqctx_acquire(uint32_t io_threads, unsigned *number);
void zmqctx_release(void);
void *zmqctx_router(
    void *ctx); /* a ROUTER whose names of peers cannot be guessed; NULL: errno says why */

/* ---- keys: transport_zmq_curve.c ---------------------------------------------------------------- */
/* Whether what is bound or connected from now on is encrypted, with the keys of the options.  The first call with keys
 * starts the service. */
pen_status curve_set(endpoint *e, void *context, bool is_on, pen_error *why);
/* The key's owner for the connection of a message; false: not encrypted. */
bool curve_who(zmq_msg_t *message, transport_identity *is);
void curve_close(endpoint *e); /* removes its keys from the service */

/* Of the context: ends the service's thread; a forked child only forgets it. */
void curve_stop(void);
void curve_forget(void);

/* ---- opening: transport_zmq_open.c -------------------------------------------------------------- */
pen_status endpoint_listen(void *state, const char *address, const transport_options *o,
                           pen_error *why);
pen_status endpoint_dial(void *state, const char *address, const transport_options *o,
                         pen_error *why);
/* Replaces the dialling socket by an unconnected one and releases its queue.  False: unchanged. */
bool endpoint_renew(endpoint *e);

/* ---- address of a dialler: transport_zmq_name.c ------------------------------------------------- */
/* Dials a numeric address at once, a name after its lookup.  False: errno says what is wrong with the address. */
bool dial_begin(endpoint *e);
void dial_failed(endpoint *e);      /* an attempt failed: the listener may be elsewhere by now */
void dial_heed_answer(endpoint *e); /* if the lookup is done */
void dial_hang_up(endpoint *e);
void dial_end(endpoint *e); /* abandons the lookup */

/* ---- limits: transport_zmq_watch.c -------------------------------------------------------------- */
void watch_init(endpoint *e, const transport_options *o);
void watch_fini(endpoint *e);
void watch_accepted(endpoint *e, int fd);
void watch_ended(endpoint *e, int fd);
void watch_took(endpoint *e, uint32_t peer, uint64_t bytes, int frames);
void watch_gave(endpoint *e, uint32_t peer, uint64_t bytes, int frames);
void watch_blame(endpoint *e, uint32_t peer);
void watch_trust(endpoint *e, uint32_t peer);
/* The first connection from this descriptor on; -1: none. */
int watch_next(const endpoint *e, int fd);
void watch_end(endpoint *e, int fd); /* ends this connection without an event */
/* Call on a tick, after the message queue was found dry (or not). */
void watch_look(endpoint *e, bool is_dry);
bool watch_take_note(endpoint *e, transport_event *event, const char **text);

#endif
