/* peers.h - which connection a peer speaks on, and from when on it is certain that it says no more.
 *
 * For transports whose library reports connections (by descriptor) and messages (by peer number) through two
 * queues that do not wait for each other.  Two things make that hard, and both are settled here:
 *   an end may be heard of before the last messages of its connection have been read: it is told only when the
 *   queue of messages was seen empty since, or has gone round often enough;
 *   a descriptor is given to the next connection at once: per descriptor the connections queue up, and a peer
 *   that speaks for the first time belongs to the oldest one that has a handshake and no peer yet.
 * No I/O, no clock.  Belongs to one thread; all zero is an empty one.
 */
#ifndef COMMON_TRANSPORT_PEERS_H
#define COMMON_TRANSPORT_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct peers_connection peers_connection;

typedef struct {
    struct peers_fd *fd; /* [n_fds] */
    size_t n_fds;
    struct peers_row *row; /* open addressing, a power of two, at most half full */
    size_t n_rows, capacity;
    peers_connection *ended, **ended_last; /* their ends are still to be told */
    size_t n_connections;
    uint64_t messages, greetings; /* so far */
} peers;

void peers_fini(peers *self);

/* News of connections, in the order in which they happened. */
void peers_accepted(peers *self, int fd);
void peers_greeted(peers *self); /* some connection has shaken hands */
void peers_ended(peers *self, int fd);

/* A message of that peer was read.  False: it was never heard before; then comes peers_meet(), after all news
 * there is.  That is false, too, when the message comes after the end of its peer was told: drop it. */
bool peers_hear(peers *self, uint32_t peer);
bool peers_meet(peers *self, uint32_t peer, int fd);

bool peers_knows(const peers *self, uint32_t peer); /* heard, and its end not told yet */

/* A connection whose refusal was reported already: its end is not worth another report. */
void peers_scold(peers *self, int fd);

typedef enum {
    PEERS_NONE,
    PEERS_DOWN,    /* *peer is gone; told once */
    PEERS_STRANGER /* a connection ended that never brought a message */
} peers_end;

/* The next end that may be told.  is_drained: no message was left to read after all news so far. */
peers_end peers_take_end(peers *self, bool is_drained, uint32_t *peer);

#endif
