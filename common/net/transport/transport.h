/* transport.h - moves opaque messages between peers.  Mechanism only.
 *
 * If both ends allow it (options.lends), a large body in a segment is lent to a peer of the same host, not sent:
 * the sender's reference is released after the receiver has dropped its own.
 *
 * A transport knows no gradient, key or step.  It does not retry or batch: those are policies and live above it.
 * It may lose a message when a connection breaks; the simulated one drops, delays, repeats and reorders on purpose,
 * so layers above must cope.
 *
 * An endpoint either listens (many peers) or dials (one peer, number 0).  A message is a head (small, copied) and
 * an optional body (a buf, sent without a copy).  An endpoint belongs to one thread. A dialled endpoint reconnects
 * by itself and resolves the name each time; messages queued on one connection are not sent on the next.
 *
 * The life of a connection, as its two owners see it:
 *   dialled     UP, messages, DOWN, UP, ...  Before the first UP and after a DOWN send() returns AGAIN.
 *   listening   The first message introduces a peer, with a number of its own until 2^32 wraps.  Then messages,
 *               then one DOWN: nothing of that number follows.
 * Events come after messages that have already arrived, so a slow owner may read the first messages of a new
 * connection before the DOWN and UP between.
 */
#ifndef COMMON_TRANSPORT_H
#define COMMON_TRANSPORT_H

#include "common/containers/buf.h"
#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct transport transport;

/* The keys of an endpoint, and those it accepts: X25519 keys for CURVE, keys that both ends share for TLS.  Transports
 * within one process (those of tests) ignore them. */
enum { TRANSPORT_KEY_BYTES = 32 };
typedef struct { /* the owner of a key; the layer above defines the numbers */
    uint32_t who, index;
} transport_identity;

typedef struct {
    uint8_t own[TRANSPORT_KEY_BYTES]; /* secret */
    uint8_t own_public[TRANSPORT_KEY_BYTES];
    uint8_t peer[TRANSPORT_KEY_BYTES]; /* dialled: the only accepted listener's public key */

    /* Listening: whether to admit the owner of this public key, and its identity (transport_who()).  One call at a
     * time, in another thread, none after transport_close(). */
    bool (*admits)(void *user, const uint8_t public_key[TRANSPORT_KEY_BYTES],
                   transport_identity *as);

    /* Dialled: its own identity, and the key that it shares with this kind of listener. */
    transport_identity self;
    uint8_t shared[TRANSPORT_KEY_BYTES];
    /* Listening: the key shared with a dialler of that identity; false: it is not admitted.  In the thread of the
     * endpoint. */
    bool (*shares)(void *user, transport_identity with, uint8_t key[TRANSPORT_KEY_BYTES]);
    void *user;
} transport_keys;

/* What carries the messages of a "tcp://" address. */
typedef enum {
    TRANSPORT_ZMQ,    /* ZeroMQ; with keys, CURVE */
    TRANSPORT_SOCKET, /* plain sockets, as of "socket://" addresses; with keys, TLS 1.3 */
} transport_carrier;

enum {
    TRANSPORT_ZMQ_FIRST = 0xff
}; /* the first byte that an end of ZeroMQ sends, and no other end here */
#define TRANSPORT_DIFFERS                                                                          \
    "the other end speaks ZeroMQ, this side does not: transport must be the same for all"

/* What a "tcp://" address stands for; other transports ignore it. */
typedef enum {
    TRANSPORT_TCP, /* TCP: encrypted with keys, otherwise open to all */
    TRANSPORT_LOCAL_TOO, /* and, for processes of this user on this host, a Unix-domain socket (local_socket.h) */
    TRANSPORT_LOCAL_ONLY, /* that socket alone: the port is only reserved */
} transport_sockets;

typedef struct {
    const transport_keys *keys; /* of TCP; BORROWED until it is closed; NULL: clear text */
    transport_carrier carrier;
    transport_sockets sockets;
    uint64_t head_bytes_max; /* larger heads are refused;  0 = 1 MiB */
    uint64_t body_bytes_max; /* larger bodies are refused; 0 = 64 MiB */

    /* Listening.  Beyond it the oldest silent connection is ended; 0 = 4096. */
    uint32_t connections_max;
    /* Listening.  Bytes queued for or from one peer; beyond it its connection is ended; 0 = unlimited. */
    uint64_t queue_bytes_max;
    /* Listening.  Bytes queued for all untrusted peers (transport_trust()); beyond it the connections furthest
     * behind are ended until half of it remains; 0 = unlimited. */
    uint64_t observers_bytes_max;

    uint32_t heartbeat_ms;     /* of the connection; 0 = 2000.  Silent for 3 of them: DOWN */
    uint32_t connect_ms;       /* time-out of one attempt; 0 = 1000 */
    uint32_t reconnect_ms_max; /* between two attempts, growing to this; 0 = 2000 */
    uint32_t io_threads;       /* of the process-wide context; the first open decides; 0 = 1 */
    uint64_t seed;             /* simulated transport only */
    bool lends;                /* large bodies may be lent to a peer that can map them (lend.h) */

    /* Listening, plain sockets only.  Where to receive the body of this message, much of which has not arrived: `bytes`
     * bytes, BORROWED until the message is delivered, the connection ends, or transport_unplace().  NULL: a buffer of the
     * transport's.  *owner: for transport_unplace().  Called by transport_recv(), for a peer that has sent a message
     * before; must not send, receive or close. */
    void *(*place)(void *user, uint32_t peer, const void *head, size_t head_size, uint64_t bytes,
                   const void **owner);
    void *place_user;
} transport_options;

enum { TRANSPORT_FROM_BYTES = 56, TRANSPORT_CULPRIT_BYTES = 128 };

typedef enum {
    TRANSPORT_MESSAGE,
    TRANSPORT_UP,     /* dialled only: connected, also after each reconnect */
    TRANSPORT_DOWN,   /* the peer's connection is gone: closed, killed, or silent past heartbeat */
    TRANSPORT_REFUSED /* invalid input was dropped; note says what */
} transport_event_kind;

typedef struct {
    transport_event_kind kind;
    uint32_t peer;    /* 0 when dialled, and for REFUSED without a number */
    const void *head; /* BORROWED until the next recv on this endpoint; NULL: no message */
    size_t head_size;
    buf *body;         /* OWNED by the receiver of the event; NULL: none */
    bool is_placed;    /* the body is where options.place said; it must not outlive the event */
    bool lacks_memory; /* REFUSED: there is no memory for it; the peer did nothing wrong */
    bool has_moved;    /* AGAIN of plain sockets: parts of a known peer's messages came or left */
    /* Of REFUSED: the fault, and without a number the address if known. */
    char note[96], from[TRANSPORT_FROM_BYTES];
} transport_event;

typedef struct {
    const char *scheme;      /* "tcp", "ipc": the part of an address before :// */
    const char *doc;         /* one sentence for docs/families.md */
    const char *any_address; /* listening there always finds a free address, see address() */
    bool keeps_order;        /* of the messages of one connection */
    bool stays_inside;       /* within one process: no access control */
    bool crosses_processes;  /* bodies may be lent: lend.h */
    size_t state_size;       /* the front allocates, zeroes and frees this many bytes */

    /* Both get every option filled in; after a failure *state must be safe for close(). "tcp://HOST:0" picks a free
     * port; a port in use is UNREACHABLE with a sentence that names it. */
    pen_status (*listen)(void *state, const char *address, const transport_options *o,
                         pen_error *why);
    pen_status (*dial)(void *state, const char *address, const transport_options *o,
                       pen_error *why);
    const char *(*address)(void *state); /* of a listener, with the real port */

    /* Queues one message; head_size is at least 1.  On PEN_OK the transport OWNS one reference to body (may be
     * NULL) and releases it, from any thread, once the bytes are sent or dropped. On any other status the caller
     * keeps it.  PEN_AGAIN: the queue is full (back-pressure), or a dialled endpoint has no connection now.
     * PEN_PEER_LOST: no such peer. */
    pen_status (*send)(void *state, uint32_t peer, const void *head, size_t head_size, buf *body);

    /* The last message of this peer was bad.  A peer that repeats this loses its connection.  Optional. */
    void (*blame)(void *state, uint32_t peer);

    /* From now on only queue_bytes_max bounds this peer's queue.  Optional. */
    void (*trust)(void *state, uint32_t peer);

    /* Of a listener.  Optional. */
    bool (*who)(void *state, uint32_t peer, transport_identity *is);

    /* Drops messages that are being received where options.place said.  Optional. */
    void (*unplace)(void *state, const void *owner);

    /* Changes queue_bytes_max.  Optional. */
    void (*set_queue)(void *state, uint64_t bytes_max);

    /* Dialled: how long the other host has acknowledged nothing.  Optional. */
    uint32_t (*unconfirmed_ms)(void *state);

    /* Takes one event if there is one, else PEN_AGAIN; never blocks. */
    pen_status (*recv)(void *state, transport_event *event);

    /* For loop_add(); may be edge-triggered: drain until AGAIN.  -1: none, call recv. */
    int (*poll_fd)(void *state);

    /* Called once.  linger_ms: time for queued messages to leave in the background; 0 drops them.  All bodies are
     * released soon after, from any thread.  Closing the last endpoint of a process waits for the rest. */
    void (*close)(void *state, uint32_t linger_ms);
} transport_ops;

extern const transport_ops *transport_all[];              /* NULL-terminated */
const transport_ops *transport_find(const char *address); /* by scheme; NULL when unknown */

/* The front: an endpoint of whichever member the address names.  options may be NULL.  An empty head is
 * INVALID_ARGUMENT.  In a forked child every call but close on an endpoint of the parent is WRONG_STATE without
 * effect; new endpoints belong to the child. */
pen_status transport_listen(const char *address, const transport_options *o, transport **t,
                            pen_error *why);
pen_status transport_dial(const char *address, const transport_options *o, transport **t,
                          pen_error *why);
const char *transport_address(transport *t);
pen_status transport_send(transport *t, uint32_t peer, const void *head, size_t head_size,
                          buf *body);
pen_status transport_recv(transport *t, transport_event *event);
/* The layer above found this peer's last message bad.  A peer blamed more than TRANSPORT_BLAMES times, and more
 * than ten times a second, loses its connection. */
enum { TRANSPORT_BLAMES = 100 };
void transport_blame(transport *t, uint32_t peer);

/* This peer of a listener is a member of the job, as the layer above knows by now: observers_bytes_max no longer
 * applies to it, and bodies may be lent both ways.  Cheap enough for each message; forgotten with the connection. */
void transport_trust(transport *t, uint32_t peer);

/* The identity in the key of this peer of a listener.  False: its connection has no key, or no such peer now. */
bool transport_who(transport *t, uint32_t peer, transport_identity *is);

/* Whether to log a refusal of this peer now: one line a minute per proven member, however often it connects, and
 * one for all other peers together. */
bool transport_log_allowed(transport *t, uint32_t peer);

/* The subject of such a line: "a frame of peer 7", or the address of a peer without a number, if known. */
void transport_culprit(uint32_t peer, const char *from, char text[TRANSPORT_CULPRIT_BYTES]);

/* Afterwards nothing is received into memory of this owner (options.place): such messages are dropped. */
void transport_unplace(transport *t, const void *owner);

/* Changes queue_bytes_max of a listener once the peers' traffic is known. */
void transport_set_queue(transport *t, uint64_t bytes_max);

/* Dialled and up: how long the other host has acknowledged nothing despite retransmissions; 0: it has, there was
 * nothing, or unknown.  A host acknowledges even for a stopped process, so this is about the network.  A hint. */
uint32_t transport_unconfirmed_ms(transport *t);

int transport_poll_fd(transport *t);
void transport_close(transport *t, uint32_t linger_ms); /* NULL is fine */

#endif
