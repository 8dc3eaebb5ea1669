/* peers.h - which connection a peer speaks on, and from when on it is certain that it says no more.
 *
 * For a library that reports connections (by descriptor) and messages (by the number of a peer) through
 * two queues that do not wait for each other.  Two things make that hard, and both are settled here:
 *   - An end may be heard of while messages of that connection still wait, or are about to be queued.
 *     It is told when two rounds went by without one of them.
 *   - A descriptor is given to the next connection at once, so one number of a descriptor may mean
 *     several connections.  Numbers of peers count up, and so tell which of two is the newer.
 * A connection that ends without a word and without a handshake is a stranger's.  No I/O, no clock.  Belongs to one thread.
 */
#ifndef COMMON_TRANSPORT_PEERS_H
#define COMMON_TRANSPORT_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PEERS_GONE_MAX = 64 };

struct peers_one;

typedef struct {
    struct peers_one **open; /* [n_open] by descriptor; NULL: no connection there */
    size_t n_open;
    struct peers_one *named; /* hash of those that have spoken, by number */
    struct peers_one *ended; /* their ends are still to be told           */
    uint64_t round;
    uint32_t greetings, failed;    /* so far; and those whose connection has not ended yet */
    uint32_t gone[PEERS_GONE_MAX]; /* the newest whose ends were told; a ring */
    size_t n_gone;
} peers;

void peers_init(peers *self);
void peers_fini(peers *self);

/* News of connections, in the order in which they happened. */
void peers_accepted(peers *self, int fd);
void peers_greeted(peers *self); /* one of them shook hands                   */
void peers_failed(peers *self);  /* one of them failed to, and will end next  */
void peers_ended(peers *self, int fd);

/* A message of that peer was read.  NEW: take all news there is, then call peers_meet().  MET: it is not respected yet.
 * GONE: its end was told already; drop the message. */
typedef enum { PEERS_KNOWN, PEERS_MET, PEERS_NEW, PEERS_GONE } peers_standing;
peers_standing peers_hear(peers *self, uint32_t number);

/* The first message of a peer came by descriptor fd.  False: no such descriptor, or no memory. */
bool peers_meet(peers *self, uint32_t number, int fd);

/* It is a peer whose end is worth telling: it said more than that it is there. */
void peers_respect(peers *self, uint32_t number);

/* Where peers must prove something before they are heard: room for what is kept of one meanwhile, freed with free() when
 * it is admitted, and with the connection.  NULL: there is no such peer. */
void **peers_keep(peers *self, uint32_t number);
void peers_admit(peers *self, uint32_t number);
/* As whom, for who asks. */
void peers_identify(peers *self, uint32_t number, uint32_t who, uint32_t index);
bool peers_who(const peers *self, uint32_t number, uint32_t *who, uint32_t *index);
bool peers_is_admitted(const peers *self, uint32_t number);
bool peers_has_admitted(const peers *self, int fd); /* who has the connection there now */

/* What came by that descriptor was refused already: its end is not worth another report. */
void peers_scold(peers *self, int fd);

/* The descriptor of that peer's connection, or -1 when it has none now. */
int peers_fd(const peers *self, uint32_t number);

/* Who speaks on that descriptor's connection now; 0: nobody that has spoken. */
uint32_t peers_number(const peers *self, int fd);

/* Whether a connection lives on that descriptor of which no message has come. */
bool peers_is_silent(const peers *self, int fd);

bool peers_knows(const peers *self, uint32_t number); /* has spoken, and its end was not told yet */
size_t peers_count(const peers *self);                /* of those */

/* Called at most every few milliseconds, when since the last call the queue of messages was found empty
 * after all news was taken, or every peer with waiting messages was read from. */
void peers_round(peers *self);

bool peers_has_ended(
    const peers *self); /* somebody, and it was not told yet: more rounds are needed */

/* The next end that may be told.  DOWN: of *number.  STRANGER: of a connection without a word, or, where something was
 * kept of it, of one that was not admitted. */
typedef enum { PEERS_NONE, PEERS_DOWN, PEERS_STRANGER } peers_end;
peers_end peers_take_end(peers *self, uint32_t *number);

#endif
