/* transport.h - moves opaque messages between peers.  Mechanism only.
 *
 * Where both ends allow it (options.lends), a large body that lies in a segment is lent to a peer of the same
 * host, not sent: its sender's reference is then released when the receiver has dropped its own.
 *
 * A transport knows no gradient, key or step.  It does not retry or batch: those are policies and
 * live above it.  It may lose a message when a connection breaks, and the simulated one drops,
 * delays, repeats and reorders on purpose, so nothing above may assume otherwise.
 *
 * An endpoint either listens (many peers) or dials (one peer, number 0).  A message is a head (small,
 * copied) and an optional body (a buf, sent without a copy).  An endpoint belongs to one thread.
 * A dialled endpoint reconnects by itself, resolving the name anew each time; nothing that was queued
 * on one connection is sent on the next.
 *
 * The life of a connection, as its two owners see it:
 *   dialled     UP, messages, DOWN, UP, ...  Before the first UP and after a DOWN send() says AGAIN.
 *   listening   The first message makes a peer known, under a number that is its own until the number
 *               space of 2^32 wraps.  Then messages, then one DOWN: nothing of that number comes after it.
 * News of connections comes after the messages that have arrived already, so an owner that did not
 * look for a while may read the first messages of a new connection before the DOWN and UP between.
 */
#ifndef COMMON_TRANSPORT_H
#define COMMON_TRANSPORT_H

#include "common/base/buf.h"
#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct transport transport;

/* What an endpoint proves itself with, and whom it believes: X25519 keys (CURVE).  Members that stay
 * within one process (those of tests) take no notice. */
enum { TRANSPORT_KEY_BYTES = 32 };
typedef struct { /* whose key it is; what the numbers mean the layer above knows */
    uint32_t who, index;
} transport_identity;

typedef struct {
    uint8_t own[TRANSPORT_KEY_BYTES]; /* secret */
    uint8_t own_public[TRANSPORT_KEY_BYTES];
    uint8_t
        peer[TRANSPORT_KEY_BYTES]; /* dialled: the listener's public key; nobody else is believed */

    /* Listening: may the owner of this public key come in, and as whom (transport_who())?  One call at a time, in
     * another thread, and none after transport_close(). */
    bool (*admits)(void *user, const uint8_t public_key[TRANSPORT_KEY_BYTES],
                   transport_identity *as);
    void *user;
} transport_keys;

/* What both ends of an unencrypted connection prove, in its first messages, before anything else is taken
 * (proof.h).  Members that stay within one process take no notice.  Called in any thread that uses the endpoint. */
typedef struct {
    void *user;
    uint32_t who, index; /* dialled: which of the keys below is its own */

    /* The key with which the listener proves itself, listening or dialled.  False: there is none now. */
    bool (*listener_key)(void *user, uint8_t key[TRANSPORT_KEY_BYTES]);
    /* The key of such a dialler.  False: there is none, or it may not come in. */
    bool (*dialler_key)(void *user, uint32_t who, uint32_t index, uint8_t key[TRANSPORT_KEY_BYTES]);
    /* Whether nothing is proven in this job, as is known by now: then a connection is up at once.  NULL: no. */
    bool (*is_open)(void *user);
} transport_proof;

typedef struct {
    const transport_keys *keys; /* BORROWED until it is closed; NULL: clear text                  */
    const transport_proof *proof; /* BORROWED likewise; NULL: without keys anybody may come    */
    uint64_t head_bytes_max;      /* larger heads are refused;  0 = 1 MiB  */
    uint64_t body_bytes_max;      /* larger bodies are refused; 0 = 64 MiB */

    /* Listening.  More connections: the oldest that has said nothing is ended; 0 = 4096. */
    uint32_t connections_max;
    /* Listening.  More bytes waiting for or from one peer: its connection is ended; 0 = any number. */
    uint64_t queue_bytes_max;
    /* Listening.  More bytes waiting for all peers together that are not trusted (transport_trust()): connections of
     * those that are furthest behind are ended, until half of it waits; 0 = any number. */
    uint64_t guests_bytes_max;

    uint32_t heartbeat_ms; /* of the connection; 0 = 2000.  Silent for 3 of them: DOWN           */
    uint32_t connect_ms;   /* time-out of one attempt; 0 = 1000                                  */
    uint32_t reconnect_ms_max; /* between two attempts, growing to this; 0 = 2000                */
    uint32_t io_threads; /* of the process-wide context, honoured by whoever opens first; 0 = 1 */
    uint64_t seed;       /* simulated transport only              */
    bool lends; /* large bodies may stay where they are, for a peer that can map them (lend.h) */
} transport_options;

enum { TRANSPORT_FROM_BYTES = 56, TRANSPORT_CULPRIT_BYTES = 128 };

typedef enum {
    TRANSPORT_MESSAGE,
    TRANSPORT_UP,     /* dialled only: a connection is there, again after each reconnect         */
    TRANSPORT_DOWN,   /* the peer's connection is gone: closed, killed, or silent past heartbeat */
    TRANSPORT_REFUSED /* something that is no message arrived and was dropped; note says what    */
} transport_event_kind;

typedef struct {
    transport_event_kind kind;
    uint32_t peer;    /* 0 when dialled, and of REFUSED when nobody had a number yet     */
    const void *head; /* BORROWED until the next recv on this endpoint; NULL: no message */
    size_t head_size;
    buf *body; /* OWNED by whoever received the event; NULL when there was none */
    /* Of REFUSED: what was, and where nobody had a number the address, if it is known. */
    char note[96], from[TRANSPORT_FROM_BYTES];
} transport_event;

typedef struct {
    const char *scheme; /* "tcp", "ipc": the part of an address before ://                   */
    const char *doc;    /* one sentence for docs/families.md                                  */
    const char
        *any_address;       /* listening there always finds a free place; address() tells which   */
    bool keeps_order;       /* of the messages of one connection                                  */
    bool stays_inside;      /* one process: there is nobody to keep out                           */
    bool crosses_processes; /* so that large bodies may be lent: lend.h                      */
    size_t state_size;      /* the front allocates, zeroes and frees this many bytes              */

    /* Both get every option filled in, and must leave *state safe for close() when they fail.
     * "tcp://HOST:0" picks a free port; one in use is UNREACHABLE with a sentence that names it. */
    pen_status (*listen)(void *state, const char *address, const transport_options *o,
                         pen_error *why);
    pen_status (*dial)(void *state, const char *address, const transport_options *o,
                       pen_error *why);
    const char *(*address)(void *state); /* of a listener, with the real port                   */

    /* Queues one message; head_size is at least 1.  On PEN_OK the transport OWNS one reference to
     * body (may be NULL) and releases it, from any thread, when the bytes have left or never will.
     * On any other status the caller still owns it.  PEN_AGAIN: the queue is full (back-pressure),
     * or a dialled endpoint has no connection now.  PEN_PEER_LOST: no such peer. */
    pen_status (*send)(void *state, uint32_t peer, const void *head, size_t head_size, buf *body);

    /* What this peer sent last was no good.  Who goes on like that loses its connection.  Optional. */
    void (*blame)(void *state, uint32_t peer);

    /* What waits for this peer is bounded by queue_bytes_max alone.  Optional. */
    void (*trust)(void *state, uint32_t peer);

    /* Of a listener.  Optional. */
    bool (*who)(void *state, uint32_t peer, transport_identity *is);

    /* Changes queue_bytes_max.  Optional. */
    void (*set_queue)(void *state, uint64_t bytes_max);

    /* Dialled: so long the other host has confirmed nothing of what was sent to it.  Optional. */
    uint32_t (*unconfirmed_ms)(void *state);

    /* Takes one event if there is one, else PEN_AGAIN; never blocks. */
    pen_status (*recv)(void *state, transport_event *event);

    /* For loop_add(); may be edge-triggered: drain until AGAIN.  -1: has none, call recv. */
    int (*poll_fd)(void *state);

    /* Called once.  linger_ms: how long queued messages may still leave in the background; 0 drops
     * them.  All bodies are released soon after, from any thread.  The last endpoint of a process
     * to close waits for what lingers. */
    void (*close)(void *state, uint32_t linger_ms);
} transport_ops;

extern const transport_ops *transport_all[];              /* NULL-terminated */
const transport_ops *transport_find(const char *address); /* by scheme; NULL when unknown */

/* The front: an endpoint of whichever member the address names.  options may be NULL.  An empty head
 * is INVALID_ARGUMENT.  In a forked child every call on an endpoint of the parent, but close, is
 * WRONG_STATE and touches nothing; new endpoints are the child's own. */
pen_status transport_listen(const char *address, const transport_options *o, transport **t,
                            pen_error *why);
pen_status transport_dial(const char *address, const transport_options *o, transport **t,
                          pen_error *why);
const char *transport_address(transport *t);
pen_status transport_send(transport *t, uint32_t peer, const void *head, size_t head_size,
                          buf *body);
pen_status transport_recv(transport *t, transport_event *event);
/* What this peer of a listener sent last was no good, as the layer above found.  A peer of which that is
 * said more than TRANSPORT_BLAMES times, and more than ten times a second, loses its connection. */
enum { TRANSPORT_BLAMES = 100 };
void transport_blame(transport *t, uint32_t peer);

/* This peer of a listener is a member of the job, as the layer above knows by now: guests_bytes_max is not about it any
 * more, bodies may be lent to it, and it may lend some.  Until then all bytes travel.  Cheap enough for each message;
 * forgotten with the connection. */
void transport_trust(transport *t, uint32_t peer);

/* Whose key this peer of a listener has proven to hold.  False: nobody proves anything here, or there is no such peer
 * now. */
bool transport_who(transport *t, uint32_t peer, transport_identity *is);

/* Whether a line about something refused from this peer may be logged now: one a minute for each member that proved who
 * it is, however often it connects, and one for all others of this endpoint together. */
bool transport_log_allowed(transport *t, uint32_t peer);

/* What was refused, for such a line: "a frame of peer 7", and where there is no number what else is known. */
void transport_culprit(uint32_t peer, const char *from, char text[TRANSPORT_CULPRIT_BYTES]);

/* Another queue_bytes_max of a listener, once it is known what its peers will send. */
void transport_set_queue(transport *t, uint64_t bytes_max);

/* Of a dialled endpoint whose connection is up: so long the other host has confirmed nothing of what was sent to it, again
 * and again; 0: it has, there was nothing, or nobody knows.  A host confirms what a process that is stopped does not
 * read, so this is about the way to it.  A hint. */
uint32_t transport_unconfirmed_ms(transport *t);

int transport_poll_fd(transport *t);
void transport_close(transport *t, uint32_t linger_ms); /* NULL is fine */

#endif
