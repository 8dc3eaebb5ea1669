/* io_view.c - a copy of an epoch's view: members, and which server holds which shard. */
#include "worker/io/thread/io_thread.h"

#include <stdlib.h>
#include <string.h>

void io_view_free(io_view *r)
{
    free(r->block);
    *r = (io_view){0};
}

/* ---- copies: a block of lists, then lists of addresses, then texts ----------------------------- */
typedef struct {
    size_t addresses, text_bytes;
} room;

static void add_room(room *r, const wire_member *member, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        r->addresses += member[i].n_addresses;
        r->text_bytes += strlen(member[i].host) + 1;
        for (uint32_t k = 0; k < member[i].n_addresses; k++)
            r->text_bytes += strlen(member[i].address[k]) + 1;
    }
}

static const char *keep_text(char **end, const char *text)
{
    char *kept = *end;
    *end       = stpcpy(kept, text) + 1;
    return kept;
}

static void keep_texts(wire_member *to, uint32_t n, const char **address, char **end)
{
    for (uint32_t i = 0; i < n; i++) {
        const char *const *from = to[i].address;
        to[i].host              = keep_text(end, to[i].host);
        to[i].address           = address;
        for (uint32_t k = 0; k < to[i].n_addresses; k++) *address++ = keep_text(end, from[k]);
    }
}

bool io_view_copy(io_view *to, const wire_control *m)
{
    const uint32_t n_workers = m->u.epoch.n_workers, n_servers = m->u.epoch.n_servers,
                   n_replicas = m->u.epoch.n_replicas, n = n_workers + n_servers;
    room r = {0};
    add_room(&r, m->u.epoch.worker, n_workers);
    add_room(&r, m->u.epoch.server, n_servers);
    *to = (io_view){.block = malloc(n * sizeof(wire_member) + r.addresses * sizeof(char *) +
                                    n_replicas * sizeof(wire_replica) + r.text_bytes + 1)};
    if (to->block == NULL) return false;
    wire_member *member   = to->block;
    const char **address  = (const char **)(void *)(member + n);
    wire_replica *replica = (wire_replica *)(void *)(address + r.addresses);
    char *text            = (char *)(replica + n_replicas);
    if (n_workers > 0) memcpy(member, m->u.epoch.worker, n_workers * sizeof *member);
    if (n_servers > 0) memcpy(member + n_workers, m->u.epoch.server, n_servers * sizeof *member);
    if (n_replicas > 0) memcpy(replica, m->u.epoch.replica, n_replicas * sizeof *replica);
    keep_texts(member, n, address, &text);
    to->term       = m->u.epoch.term;
    to->epoch      = m->u.epoch.epoch;
    to->n_workers  = n_workers;
    to->n_servers  = n_servers;
    to->n_replicas = n_replicas;
    to->worker     = member;
    to->server     = member + n_workers;
    to->replica    = replica;
    return true;
}

/* ---- what it says ------------------------------------------------------------------------------ */
void io_view_settle(io_thread *c)
{
    io_committed *now = &c->committed;
    const io_view *r  = &c->view;
    *now              = (io_committed){.shares_memory = true};
    for (uint32_t i = 0; i < r->n_workers; i++) {
        uint32_t k = i; /* one behind the nearest on its node: mostly i */
        while (k > 0 && r->worker[k - 1].node != r->worker[i].node) k--;
        const bool is_first = k == 0;
        if (!is_first && r->worker[k - 1].sharing != r->worker[i].sharing)
            now->shares_memory = false;
        now->nodes += is_first;
        now->has_neighbors |= !is_first;
    }
    for (uint32_t i = 0; i < r->n_replicas; i++)
        now->has_copies |= r->replica[i].role != WIRE_PRIMARY;
    for (uint32_t i = 0; i < c->n_first_places; i++)
        now->has_copies |= c->first_place[i].role != WIRE_PRIMARY;
}

const wire_member *io_find(const wire_member *member, uint32_t n, int32_t rank)
{
    if (rank >= 0 && (uint32_t)rank < n && member[rank].rank == rank) return &member[rank];
    for (uint32_t i = 0; i < n; i++) /* ranks before it have left */
        if (member[i].rank == rank) return &member[i];
    return NULL;
}
