/* transport_socket.h - the inside of the endpoints over plain sockets, shared by transport_socket*.c only. */
#ifndef COMMON_TRANSPORT_SOCKET_H
#define COMMON_TRANSPORT_SOCKET_H

#include "common/base/rate.h"
#include "common/containers/hash.h"
#include "common/net/local_socket.h"
#include "common/net/name_lookup.h"
#include "common/net/transport/tls.h"
#include "common/net/transport/transport.h"

/* ---- one connection: transport_socket_line.c ----------------------------------------------------- */
typedef struct line line;
typedef struct line_queued line_queued;

struct line {
    line *next, *prev;
    int fd;          /* -1: it has ended */
    tls *tls;        /* NULL: in clear text, for a process of this user or for all */
    bool is_proving; /* its handshake has not ended */
    uint32_t number;
    UT_hash_handle hh; /* of a listener, by number, from the first message on */
    bool is_greeted;   /* the other end has shown that it speaks the same protocol */
    bool is_over;      /* nothing more will be read from it */
    bool lacks_memory; /* that is why */
    bool is_cut;       /* ended by this side: what it has sent is not wanted */
    bool is_refused;   /* something of it was refused and reported */
    bool is_bulky;     /* its newest message is large */
    bool is_drained;   /* the kernel had less than there was room for */
    bool is_trusted, is_watched_out;
    const char *note;  /* why this side ended it, not reported yet; NULL: nothing to report */
    uint64_t since_ms; /* accepted */
    rate blames;

    uint8_t
        *in; /* [in_size]: bytes received, from in_at to in_end not yet used; NULL: none so far */
    size_t in_size, in_at, in_end, used;
    struct { /* the message that is being received */
        bool is_known, has_body;
        size_t head;
        uint64_t body_bytes;
        buf *body;
        size_t have;       /* of the body */
        const void *owner; /* of the place where it is received; NULL: a buffer */
    } now;
    buf placed;    /* the body, in memory of that owner */
    uint64_t skip; /* bytes of a refused message that are still to come */

    line_queued *queue; /* messages that the kernel has not taken */
    uint64_t queued;    /* their bytes */
};

typedef enum {
    LINE_NONE, /* no whole message is here */
    LINE_MESSAGE,
    LINE_REFUSED /* event->note says why; the connection lives, unless is_over is set */
} line_found;

line *line_create(int fd,
                  const transport_options *o); /* OWNS fd; NULL: no memory, and fd is closed */
void line_free(line *l);                       /* drops what is queued */
bool line_prove(line *l, tls_context *c,
                bool listens); /* it begins with a handshake; false: no memory */
void line_greet(line *l);
/* Reads once: as much as there is room for, a body to where it stays.  At an end is_over is set. */
void line_read(line *l);
/* The next whole message; event->head is valid until the next call. */
line_found line_take(line *l, const transport_options *o, transport_event *event);
/* PEN_OK: sent or queued, and the line OWNS body.  Otherwise it takes nothing. */
pen_status line_send(line *l, const void *head, size_t head_size, buf *body);
void line_flush(line *l);       /* sends what is queued, as far as the kernel takes it */
bool line_waits(const line *l); /* for the kernel to take more */
bool line_holds(const line *l); /* line_read() has left something that the kernel no longer has */
void line_cut(line *l);         /* ends it: it will be read as over */
void line_unplace(line *l, const void *owner); /* drops a message that goes to its memory */

/* ---- one endpoint -------------------------------------------------------------------------------- */
enum { ENDPOINT_ADDRESS_MAX = 256, ENDPOINT_EVENTS = 32 };

typedef enum { DIAL_WAITING, DIAL_NAMING, DIAL_CONNECTING, DIAL_PROVING, DIAL_UP } dial_state;

struct epoll_event;
typedef struct {
    transport_options o;
    char address[ENDPOINT_ADDRESS_MAX]; /* with the scheme of this transport */
    int epoll_fd, timer_fd;
    tls_context *tls; /* NULL: nothing is encrypted */
    pid_t pid;
    bool listens;

    line *lines;               /* of a dialler: one at most, number 0 */
    line *reading;             /* of which messages may be left; NULL: none */
    struct epoll_event *ready; /* [ENDPOINT_EVENTS] */
    int n_ready, next_ready;
    int n_drained; /* of those: nothing is left, so that the descriptor tells of what comes */

    /* a listener */
    int tcp_fd, local_fd; /* -1: none; tcp_fd is not listened at if o.sockets is LOCAL_ONLY */
    local_socket *local;
    line *by_number; /* hash */
    uint32_t last_number, living, connections_max;
    uint64_t observers_bytes; /* queued for lines that are not trusted, when last counted */
    bool is_full;             /* no descriptors: accepts nothing until the timer */

    /* a dialler */
    dial_state state;
    bool told_up, is_local; /* is_local: tries or has a Unix-domain socket */
    uint32_t wait_ms;       /* until the next attempt */
    name_lookup *asked;
} socket_endpoint;

/* ---- opening: transport_socket_open.c ------------------------------------------------------------ */
pen_status socket_listen(void *state, const char *address, const transport_options *o,
                         pen_error *why);
pen_status socket_dial(void *state, const char *address, const transport_options *o,
                       pen_error *why);
bool socket_watch(socket_endpoint *e, int fd, void *tag);
void socket_set_timer(socket_endpoint *e, uint32_t ms);  /* 0: stops */
void socket_prepare(int fd, const transport_options *o); /* options of a connection */
/* The next attempt of a dialler, or its lookup, begins. */
void socket_attempt(socket_endpoint *e);
void socket_attempt_later(socket_endpoint *e);
void socket_heed_answer(socket_endpoint *e);
void socket_connected(socket_endpoint *e);      /* or not: the attempt has ended */
void socket_prove(socket_endpoint *e, line *l); /* goes on with its handshake */

#endif
