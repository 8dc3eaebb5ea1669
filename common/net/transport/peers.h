/* peers.h - maps peers to connections, and reports their ends after their last message.
 *
 * For a library that reports connections (by descriptor) and messages (by peer number) through two unsynchronised
 * queues.  This solves two problems:
 *   - An end may be reported while messages of that connection still wait, or are about to be queued. It is passed
 *     on after two rounds without such a message.
 *   - A descriptor is reused at once, so it may mean several connections.  Peer numbers count up and show which of
 *     two is newer.  A peer may claim another's number: a mark, unique among connections, shows that.
 * A connection that ends without a message or handshake is a stranger's.  No I/O, no clock.  Belongs to one thread.
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
    struct peers_one *named; /* hash of peers with messages, by number */
    struct peers_one *ended; /* ends to be reported */
    uint64_t round;
    uint32_t greetings, failed;    /* in total; and those whose connection has not ended */
    uint32_t gone[PEERS_GONE_MAX]; /* the newest reported ends; a ring */
    size_t n_gone;
    void (*release)(void *kept);
} peers;

void peers_init(peers *self, void (*release)(void *kept)); /* NULL is fine for release */
void peers_fini(peers *self);

/* Events of connections, in order. */
void peers_accepted(peers *self, int fd);
void peers_greeted(peers *self); /* some connection shook hands */
void peers_failed(peers *self);  /* some handshake failed; its end follows */
void peers_ended(peers *self, int fd);

/* A message of that peer was read, on the connection with this mark.  NEW: read all events, then call peers_meet().  MET:
 * not respected yet.  GONE: its end was already reported; drop the message.  ANOTHER: the peer was met on another
 * connection, and this one claims to be it. */
typedef enum { PEERS_KNOWN, PEERS_MET, PEERS_NEW, PEERS_GONE, PEERS_ANOTHER } peers_standing;
peers_standing peers_receive(peers *self, uint32_t number, const void *mark);

/* The first message of a peer, on descriptor fd.  OWNS kept, which must keep the mark from being used again, and releases
 * it with the record.  False: no such descriptor, or no memory; kept is released. */
bool peers_meet(peers *self, uint32_t number, int fd, const void *mark, void *kept);

/* It sent more than its greeting: report its end. */
void peers_respect(peers *self, uint32_t number);

/* Its identity. */
void peers_identify(peers *self, uint32_t number, uint32_t who, uint32_t index);
bool peers_who(const peers *self, uint32_t number, uint32_t *who, uint32_t *index);

/* Its message was refused and reported: do not report its end too. */
void peers_scold(peers *self, int fd);

/* The descriptor of that peer's connection, or -1. */
int peers_fd(const peers *self, uint32_t number);

/* The peer on that descriptor's connection; 0: none has sent a message. */
uint32_t peers_number(const peers *self, int fd);

/* Whether a silent connection lives on that descriptor. */
bool peers_is_silent(const peers *self, int fd);

bool peers_knows(const peers *self, uint32_t number); /* has sent a message; end not reported yet */
size_t peers_count(const peers *self);                /* of those */

/* Call at most every few milliseconds, if since the last call the message queue was empty after all events were
 * read, or every peer with waiting messages was read from. */
void peers_round(peers *self);

bool peers_has_ended(const peers *self); /* unreported ends: more rounds are needed */

/* The next end to report.  DOWN: of *number.  STRANGER: of a silent connection. */
typedef enum { PEERS_NONE, PEERS_DOWN, PEERS_STRANGER } peers_end;
peers_end peers_take_end(peers *self, uint32_t *number);

#endif
