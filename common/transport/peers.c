/* peers.c - connections by descriptor, peers by number, and those whose end is still to be told.
 *
 * DESIGN
 * One record per connection, from its first sign of life until its end is told.  It is in open[fd] while
 * the connection lives, in the hash from its first message on, and in the list of ended ones from its
 * end on.  A message that comes after the news of its connection's end finds the record in that list.
 *
 * Where a descriptor had several connections within one reading, the first message of a peer is taken to
 * come from the living one, because an end that is told wrongly loses messages and one that is told
 * late does not.  The next peer on that descriptor, or its end, corrects it.
 */
#include "common/transport/peers.h"

#include <stdlib.h>
#include <string.h>

/* Without memory a record is not added, instead of exit(). */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

enum { FD_MAX = 1 << 20, SPARE = 64 };

typedef struct peers_one one;

struct peers_one {
    uint32_t number;
    int fd;
    bool is_named;     /* it has a number                                                        */
    bool is_respected; /* it said something                                                      */
    bool is_scolded;   /* it was refused                                                         */
    bool is_early;     /* it spoke before it was reported as accepted, by another thread         */
    uint64_t round;    /* of its last message, or of its end                                     */
    one *next;         /* of the ended                                                           */
    UT_hash_handle hh; /* of the named                                                           */
};

void peers_init(peers *self)
{
    *self      = (peers){.round = 2};
    self->last = &self->ended;
}

void peers_fini(peers *self)
{
    one *o, *next;
    HASH_CLEAR(hh, self->named);
    for (size_t fd = 0; fd < self->n_open; fd++) free(self->open[fd]);
    for (o = self->ended; o != NULL; o = next) {
        next = o->next;
        free(o);
    }
    free(self->open);
}

static one *find(const peers *self, uint32_t number)
{
    one *o;
    HASH_FIND(hh, self->named, &number, sizeof number, o);
    return o;
}

static bool make_room(peers *self, int fd)
{
    if (fd < 0 || fd > FD_MAX) return false;
    if ((size_t)fd < self->n_open) return true;
    const size_t n = (size_t)fd + SPARE;
    one **grown    = realloc(self->open, n * sizeof *grown);
    if (grown == NULL) return false;
    memset(grown + self->n_open, 0, (n - self->n_open) * sizeof *grown);
    self->open   = grown;
    self->n_open = n;
    return true;
}

static one *create(int fd)
{
    one *o = calloc(1, sizeof *o);
    if (o != NULL) o->fd = fd;
    return o;
}

static bool name(peers *self, one *o, uint32_t number)
{
    o->number = number;
    HASH_ADD(hh, self->named, number, sizeof o->number, o);
    o->is_named = o->hh.tbl != NULL;
    o->round    = self->round;
    return o->is_named;
}

static void append(peers *self, one *o)
{
    o->round    = self->round;
    o->next     = NULL;
    *self->last = o;
    self->last  = &o->next;
}

static one *unlink_ended(peers *self, one **link)
{
    one *o = *link;
    *link  = o->next;
    if (self->last == &o->next) self->last = link;
    return o;
}

/* ---- news ------------------------------------------------------------------------------------ */

void peers_accepted(peers *self, int fd)
{
    if (!make_room(self, fd)) return;
    one *was = self->open[fd];
    if (was != NULL && was->is_early) {
        was->is_early = false;
        return;
    }
    if (was != NULL) append(self, was);
    self->open[fd] = create(fd);
}

void peers_ended(peers *self, int fd)
{
    if (!make_room(self, fd) || self->open[fd] == NULL) return;
    append(self, self->open[fd]);
    self->open[fd] = NULL;
}

/* ---- messages -------------------------------------------------------------------------------- */

peers_standing peers_hear(peers *self, uint32_t number)
{
    one *o = find(self, number);
    if (o != NULL) {
        o->round = self->round;
        return PEERS_KNOWN;
    }
    const size_t n = self->n_gone < PEERS_GONE_MAX ? self->n_gone : PEERS_GONE_MAX;
    for (size_t i = 0; i < n; i++)
        if (self->gone[i] == number) return PEERS_GONE;
    return PEERS_NEW;
}

/* The oldest connection that ended on this descriptor without a word, so far. */
static one **find_silent(peers *self, int fd)
{
    one **link = &self->ended;
    while (*link != NULL && ((*link)->fd != fd || (*link)->is_named)) link = &(*link)->next;
    return link;
}

/* It has ended: its record is that of a silent end, or a new one. */
static bool meet_ended(peers *self, uint32_t number, int fd)
{
    one *o = *find_silent(self, fd);
    if (o != NULL) return name(self, o, number);
    o = create(fd);
    if (o == NULL) return false;
    append(self, o);
    return name(self, o, number);
}

/* The descriptor's connection is a newer one than was thought: what was taken for its peer has ended. */
static bool meet_successor(peers *self, uint32_t number, int fd)
{
    one **link = find_silent(self, fd);
    one *o     = *link != NULL ? unlink_ended(self, link) : create(fd);
    if (o == NULL) return false;
    append(self, self->open[fd]);
    self->open[fd] = o;
    return name(self, o, number);
}

bool peers_meet(peers *self, uint32_t number, int fd)
{
    if (!make_room(self, fd)) return false;
    one *o = self->open[fd];
    if (o == NULL && *find_silent(self, fd) != NULL) return meet_ended(self, number, fd);
    if (o == NULL) {
        o = self->open[fd] = create(fd);
        if (o == NULL) return false;
        o->is_early = true;
    }
    if (!o->is_named) return name(self, o, number);
    return (int32_t)(number - o->number) < 0 ? meet_ended(self, number, fd)
                                             : meet_successor(self, number, fd);
}

void peers_respect(peers *self, uint32_t number)
{
    one *o = find(self, number);
    if (o != NULL) o->is_respected = true;
}

void peers_scold(peers *self, int fd)
{
    if (!make_room(self, fd)) return;
    one *o = self->open[fd] != NULL ? self->open[fd] : *find_silent(self, fd);
    if (o != NULL) o->is_scolded = true;
}

bool peers_knows(const peers *self, uint32_t number)
{
    return find(self, number) != NULL;
}

/* ---- ends ------------------------------------------------------------------------------------ */

void peers_dry(peers *self)
{
    self->round += 2;
}

void peers_round(peers *self)
{
    self->round++;
}

/* Neither its end nor a message of it is of this round or the last. */
static bool is_ripe(const peers *self, const one *o)
{
    return self->round > o->round + 1;
}

static peers_end forget(peers *self, one *o, uint32_t *number)
{
    peers_end end = o->is_named || o->is_scolded ? PEERS_NONE : PEERS_STRANGER;
    if (o->is_named) {
        HASH_DEL(self->named, o);
        self->gone[self->n_gone++ % PEERS_GONE_MAX] = o->number;
        *number                                     = o->number;
        if (o->is_respected) end = PEERS_DOWN;
    }
    free(o);
    return end;
}

peers_end peers_take_end(peers *self, uint32_t *number)
{
    for (one **link = &self->ended; *link != NULL;) {
        if (!is_ripe(self, *link)) {
            link = &(*link)->next;
            continue;
        }
        const peers_end end = forget(self, unlink_ended(self, link), number);
        if (end != PEERS_NONE) return end;
    }
    return PEERS_NONE;
}
