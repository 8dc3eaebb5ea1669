/* peers.c - connections by descriptor, peers by number, and ends not yet reported.
 *
 * DESIGN One record per connection, from its first event until its end is reported.  It is in open[fd] while the
 * connection lives, in the hash from its first message on, and in the list of ended ones after its end, where late
 * messages find it.
 *
 * If a descriptor had several connections within one reading, the first message of a peer is attributed to the
 * living one: a wrong end loses messages, a late one does not.  While this is in doubt, the silent connection
 * before it is not reported either.  The doubt ends when the next peer speaks on that descriptor, when this one
 * speaks again after a while, or with its end.
 */
#include "common/net/transport/peers.h"

#include "common/containers/hash.h"
#include "common/containers/list.h"
#include "common/containers/arrays.h"

#include <stdlib.h>

enum { FD_MAX = 1 << 20 };

typedef struct peers_one one;

struct peers_one {
    uint32_t number;
    int fd;
    bool is_named;      /* it has a number */
    bool is_respected;  /* it sent a message */
    bool is_scolded;    /* it was refused */
    bool is_shy;        /* it may have shaken hands, but sent nothing */
    bool is_early;      /* it spoke before its accept event, which comes from another thread */
    uint32_t greetings; /* number of all handshakes at its start */
    bool is_doubtful;   /* its number may belong to the silent connection before it */
    uint64_t met;       /* round of its first message */
    uint64_t round;     /* of its last message, or of its end */
    bool is_identified;
    uint32_t who, index;
    const void *mark;  /* of its connection, from its first message on */
    void *kept;        /* the owner's: keeps the mark unique */
    one *next, *prev;  /* of the ended */
    UT_hash_handle hh; /* of the named */
};

void peers_init(peers *self, void (*release)(void *kept))
{
    *self = (peers){.round = 2, .release = release};
}

static void discard(const peers *self, one *o)
{
    if (o != NULL && o->kept != NULL) self->release(o->kept);
    free(o);
}

void peers_fini(peers *self)
{
    HASH_CLEAR(hh, self->named);
    for (size_t fd = 0; fd < self->n_open; fd++) discard(self, self->open[fd]);
    LIST_EACH(o, self->ended) discard(self, o);
    free(self->open);
}

static one *find_peer(const peers *self, uint32_t number)
{
    one *o;
    HASH_FIND(hh, self->named, &number, sizeof number, o);
    return o;
}

/* Whether a whole round lies between that one and this. */
static bool is_past(const peers *self, uint64_t round)
{
    return self->round > round + 1;
}

static bool make_room(peers *self, int fd)
{
    return fd >= 0 && fd <= FD_MAX && VEC_ROOM(self->open, self->n_open, (size_t)fd + 1);
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
    o->met = o->round = self->round;
    return o->is_named;
}

static void append(peers *self, one *o)
{
    o->round = self->round;
    LIST_APPEND(self->ended, o);
}

/* ---- events of connections ------------------------------------------------------------------- */

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
    if (self->open[fd] != NULL) self->open[fd]->greetings = self->greetings;
}

void peers_greeted(peers *self)
{
    self->greetings++;
}

void peers_failed(peers *self)
{
    self->failed++;
}

/* Handshakes are reported without a descriptor: we only know that one happened during its life. */
static bool may_have_greeted(peers *self, const one *o)
{
    if (o->is_named || self->failed == 0) return o->greetings != self->greetings;
    self->failed--;
    return false;
}

void peers_ended(peers *self, int fd)
{
    if (!make_room(self, fd) || self->open[fd] == NULL) return;
    one *o         = self->open[fd];
    self->open[fd] = NULL;
    o->is_shy      = may_have_greeted(self, o);
    append(self, o);
}

/* ---- messages -------------------------------------------------------------------------------- */

peers_standing peers_receive(peers *self, uint32_t number, const void *mark)
{
    one *o = find_peer(self, number);
    if (o != NULL && o->mark != mark) return PEERS_ANOTHER;
    if (o != NULL) {
        o->round = self->round;
        if (is_past(self, o->met)) o->is_doubtful = false; /* an ended one sends nothing more */
        return o->is_respected ? PEERS_KNOWN : PEERS_MET;
    }
    const size_t n = self->n_gone < PEERS_GONE_MAX ? self->n_gone : PEERS_GONE_MAX;
    for (size_t i = 0; i < n; i++)
        if (self->gone[i] == number) return PEERS_GONE;
    return PEERS_NEW;
}

static bool is_silent(const one *o)
{
    return !o->is_named && !o->is_scolded;
}

static one *find_ended(const peers *self, int fd, bool is_shy)
{
    LIST_EACH(o, self->ended)
        if (o->fd == fd && is_silent(o) && o->is_shy == is_shy) return o;
    return NULL;
}

/* The oldest silent connection that ended on this descriptor, preferably one that may have shaken hands. */
static one *find_silent(const peers *self, int fd)
{
    one *o = find_ended(self, fd, true);
    return o != NULL ? o : find_ended(self, fd, false);
}

/* It has ended: uses the record of a silent end, or a new one. */
static bool meet_ended(peers *self, uint32_t number, int fd)
{
    one *o = find_silent(self, fd);
    if (o != NULL) return name(self, o, number);
    o = create(fd);
    if (o == NULL) return false;
    append(self, o);
    return name(self, o, number);
}

/* The descriptor's connection is newer than assumed: the assumed peer has ended. */
static bool meet_successor(peers *self, uint32_t number, int fd)
{
    one *o = find_silent(self, fd);
    if (o != NULL)
        LIST_REMOVE(self->ended, o);
    else if ((o = create(fd)) == NULL)
        return false;
    append(self, self->open[fd]);
    self->open[fd] = o;
    return name(self, o, number);
}

static bool meet(peers *self, uint32_t number, int fd)
{
    if (!make_room(self, fd)) return false;
    one *o = self->open[fd];
    if (o == NULL && find_silent(self, fd) != NULL) return meet_ended(self, number, fd);
    if (o == NULL) {
        o = self->open[fd] = create(fd);
        if (o == NULL) return false;
        o->is_early = true;
    }
    if (!o->is_named) {
        o->is_doubtful = find_silent(self, fd) != NULL;
        return name(self, o, number);
    }
    return (int32_t)(number - o->number) < 0 ? meet_ended(self, number, fd)
                                             : meet_successor(self, number, fd);
}

bool peers_meet(peers *self, uint32_t number, int fd, const void *mark, void *kept)
{
    one *o = kept != NULL && meet(self, number, fd) ? find_peer(self, number) : NULL;
    if (o == NULL) {
        if (kept != NULL) self->release(kept);
        return false;
    }
    o->mark = mark;
    o->kept = kept;
    return true;
}

void peers_respect(peers *self, uint32_t number)
{
    one *o = find_peer(self, number);
    if (o != NULL) o->is_respected = true;
}

void peers_identify(peers *self, uint32_t number, uint32_t who, uint32_t index)
{
    one *o = find_peer(self, number);
    if (o == NULL) return;
    o->is_identified = true;
    o->who           = who;
    o->index         = index;
}

bool peers_who(const peers *self, uint32_t number, uint32_t *who, uint32_t *index)
{
    const one *o = find_peer(self, number);
    if (o == NULL || !o->is_identified) return false;
    *who   = o->who;
    *index = o->index;
    return true;
}

void peers_scold(peers *self, int fd)
{
    if (!make_room(self, fd)) return;
    one *o = self->open[fd] != NULL ? self->open[fd] : find_silent(self, fd);
    if (o != NULL) o->is_scolded = true;
}

int peers_fd(const peers *self, uint32_t number)
{
    const one *o = find_peer(self, number);
    return o != NULL && (size_t)o->fd < self->n_open && self->open[o->fd] == o ? o->fd : -1;
}

uint32_t peers_number(const peers *self, int fd)
{
    const one *o = fd >= 0 && (size_t)fd < self->n_open ? self->open[fd] : NULL;
    return o != NULL && o->is_named ? o->number : 0;
}

bool peers_is_silent(const peers *self, int fd)
{
    const one *o = fd >= 0 && (size_t)fd < self->n_open ? self->open[fd] : NULL;
    return o != NULL && !o->is_named;
}

bool peers_knows(const peers *self, uint32_t number)
{
    return find_peer(self, number) != NULL;
}

size_t peers_count(const peers *self)
{
    return HASH_COUNT(self->named);
}

/* ---- ends ------------------------------------------------------------------------------------ */

void peers_round(peers *self)
{
    self->round++;
}

bool peers_has_ended(const peers *self)
{
    return self->ended != NULL;
}

/* A silent one is not reported while its successor's number may be its own. */
static bool is_ripe(const peers *self, const one *o)
{
    const one *successor = self->open[o->fd];
    return is_past(self, o->round) &&
           (!is_silent(o) || successor == NULL || !successor->is_doubtful);
}

static peers_end forget(peers *self, one *o, uint32_t *number)
{
    peers_end end = is_silent(o) && !o->is_shy ? PEERS_STRANGER : PEERS_NONE;
    if (o->is_named) {
        HASH_DEL(self->named, o);
        self->gone[self->n_gone++ % PEERS_GONE_MAX] = o->number;
        *number                                     = o->number;
        if (o->is_respected) end = PEERS_DOWN;
    }
    discard(self, o);
    return end;
}

peers_end peers_take_end(peers *self, uint32_t *number)
{
    LIST_EACH(o, self->ended) {
        if (!is_ripe(self, o)) continue;
        LIST_REMOVE(self->ended, o);
        const peers_end end = forget(self, o, number);
        if (end != PEERS_NONE) return end;
    }
    return PEERS_NONE;
}
