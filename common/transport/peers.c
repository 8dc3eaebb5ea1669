/* peers.c - connections queued by descriptor, and a table from peers to connections. */
#include "common/transport/peers.h"

#include <stdlib.h>
#include <string.h>

enum { FD_MAX = 1 << 20, ROUND_MESSAGES = 256 };

struct peers_connection {
    peers_connection *later;      /* on the same descriptor */
    peers_connection *next_ended; /* of all that have ended */
    int fd;
    uint32_t peer;
    bool is_accepted, is_met, is_ended, is_scolded;
    bool is_mute;       /* nobody shook hands between its coming and its end: it sent no message */
    uint64_t greetings; /* there were when it came                                               */
    uint64_t latest;    /* message number of its last sign of life                               */
};

typedef struct peers_fd {
    peers_connection *oldest;
    uint32_t
        unannounced;    /* connections that came and went before the news of their coming        */
    uint32_t last_down; /* whoever still speaks after its end was told here is no new peer       */
    bool has_last_down;
} peers_fd;

typedef struct peers_row {
    peers_connection *connection; /* NULL = empty */
    uint32_t peer;
} peers_row;

/* ---- the table -------------------------------------------------------------------------------------------- */

static size_t slot_of(const peers *self, uint32_t peer)
{
    size_t i = (peer * 2654435761u) & (self->capacity - 1);
    while (self->row[i].connection != NULL && self->row[i].peer != peer)
        i = (i + 1) & (self->capacity - 1);
    return i;
}

static peers_connection *find(const peers *self, uint32_t peer)
{
    return self->capacity == 0 ? NULL : self->row[slot_of(self, peer)].connection;
}

static bool grow(peers *self)
{
    peers grown    = *self;
    grown.capacity = self->capacity == 0 ? 64 : 2 * self->capacity;
    grown.row      = calloc(grown.capacity, sizeof *grown.row);
    if (grown.row == NULL) return false;
    for (size_t i = 0; i < self->capacity; i++)
        if (self->row[i].connection != NULL)
            grown.row[slot_of(&grown, self->row[i].peer)] = self->row[i];
    free(self->row);
    *self = grown;
    return true;
}

static bool enter(peers *self, uint32_t peer, peers_connection *c)
{
    if (2 * self->n_rows >= self->capacity && !grow(self)) return false;
    self->row[slot_of(self, peer)] = (peers_row){.connection = c, .peer = peer};
    self->n_rows++;
    return true;
}

/* Removes a row and closes the gap it leaves in its run. */
static void forget(peers *self, uint32_t peer)
{
    size_t i                = slot_of(self, peer);
    self->row[i].connection = NULL;
    self->n_rows--;
    for (size_t j = (i + 1) & (self->capacity - 1); self->row[j].connection != NULL;
         j        = (j + 1) & (self->capacity - 1)) {
        peers_row row                      = self->row[j];
        self->row[j].connection            = NULL;
        self->row[slot_of(self, row.peer)] = row;
    }
}

/* ---- connections -------------------------------------------------------------------------------------------- */

static peers_fd *fd_at(peers *self, int fd)
{
    if (fd < 0 || fd >= FD_MAX) return NULL;
    if ((size_t)fd >= self->n_fds) {
        size_t n        = (size_t)fd + 64;
        peers_fd *grown = realloc(self->fd, n * sizeof *grown);
        if (grown == NULL) return NULL;
        memset(grown + self->n_fds, 0, (n - self->n_fds) * sizeof *grown);
        self->fd    = grown;
        self->n_fds = n;
    }
    return &self->fd[fd];
}

static peers_connection *append(peers *self, int fd)
{
    peers_connection *c = calloc(1, sizeof *c), **link = &self->fd[fd].oldest;
    if (c == NULL) return NULL;
    c->fd        = fd;
    c->greetings = self->greetings;
    while (*link != NULL) link = &(*link)->later;
    self->n_connections++;
    return *link = c;
}

static void end(peers *self, peers_connection *c)
{
    c->is_ended = true;
    c->is_mute  = c->greetings == self->greetings;
    c->latest   = self->messages;
    if (self->ended == NULL) self->ended_last = &self->ended;
    *self->ended_last = c;
    self->ended_last  = &c->next_ended;
}

static peers_connection *find_open(const peers_fd *f)
{
    peers_connection *c = f->oldest;
    while (c != NULL && c->is_ended) c = c->later;
    return c;
}

/* With several threads at work in the library a connection may speak, and even end, before the news that it was
 * accepted.  It is the same connection then. */
void peers_accepted(peers *self, int fd)
{
    peers_fd *f = fd_at(self, fd);
    if (f == NULL) return;
    for (peers_connection *c = f->oldest; c != NULL; c = c->later) {
        if (c->is_accepted) continue;
        c->is_accepted = true;
        return;
    }
    if (f->unannounced > 0) {
        f->unannounced--;
        return;
    }
    peers_connection *open = find_open(f), *c = append(self, fd);
    if (open != NULL) end(self, open); /* one descriptor, one connection */
    if (c != NULL) c->is_accepted = true;
}

void peers_greeted(peers *self)
{
    self->greetings++;
}

void peers_ended(peers *self, int fd)
{
    peers_fd *f = fd_at(self, fd);
    if (f == NULL) return;
    peers_connection *c = find_open(f);
    if (c != NULL)
        end(self, c);
    else
        f->unannounced++;
}

void peers_scold(peers *self, int fd)
{
    peers_fd *f = fd_at(self, fd);
    for (peers_connection *c = f == NULL ? NULL : f->oldest; c != NULL; c = c->later)
        if (!c->is_met) c->is_scolded = true;
}

/* ---- messages ---------------------------------------------------------------------------------------------- */

bool peers_knows(const peers *self, uint32_t peer)
{
    return find(self, peer) != NULL;
}

bool peers_hear(peers *self, uint32_t peer)
{
    self->messages++;
    peers_connection *c = find(self, peer);
    if (c != NULL) c->latest = self->messages;
    return c != NULL;
}

static bool may_speak(const peers_connection *c)
{
    return !c->is_met && !c->is_scolded && !c->is_mute;
}

bool peers_meet(peers *self, uint32_t peer, int fd)
{
    peers_fd *f = fd_at(self, fd);
    if (f == NULL || (f->has_last_down && f->last_down == peer)) return false;
    peers_connection *c = f->oldest;
    while (c != NULL && !may_speak(c)) c = c->later;
    if (c == NULL) c = append(self, fd);
    if (c == NULL || !enter(self, peer, c)) return false;
    c->peer   = peer;
    c->is_met = true;
    c->latest = self->messages;
    return true;
}

/* ---- ends ---------------------------------------------------------------------------------------------------- */

/* Messages are read from the peers in turn: one that still had any would have been heard in one round. */
static bool is_silent(const peers *self, const peers_connection *c)
{
    return self->messages - c->latest > ROUND_MESSAGES + 2 * self->n_connections;
}

static void drop(peers *self, peers_connection *c)
{
    peers_fd *f             = &self->fd[c->fd];
    peers_connection **link = &f->oldest;
    while (*link != c) link = &(*link)->later;
    *link = c->later;
    if (!c->is_accepted) f->unannounced++;
    if (c->is_met) {
        forget(self, c->peer);
        f->last_down     = c->peer;
        f->has_last_down = true;
    }
    self->n_connections--;
    free(c);
}

static peers_connection *unlink_ended(peers *self, bool is_drained)
{
    peers_connection **link = &self->ended;
    while (*link != NULL && !is_drained && !is_silent(self, *link)) link = &(*link)->next_ended;
    peers_connection *c = *link;
    if (c == NULL) return NULL;
    *link = c->next_ended;
    if (*link == NULL) self->ended_last = link;
    return c;
}

peers_end peers_take_end(peers *self, bool is_drained, uint32_t *peer)
{
    for (peers_connection *c; (c = unlink_ended(self, is_drained)) != NULL;) {
        peers_end what = c->is_met ? PEERS_DOWN : c->is_scolded ? PEERS_NONE : PEERS_STRANGER;
        *peer          = c->peer;
        drop(self, c);
        if (what != PEERS_NONE) return what;
    }
    return PEERS_NONE;
}

void peers_fini(peers *self)
{
    for (size_t i = 0; i < self->n_fds; i++)
        for (peers_connection *c = self->fd[i].oldest, *later; c != NULL; c = later) {
            later = c->later;
            free(c);
        }
    free(self->fd);
    free(self->row);
    *self = (peers){0};
}
