/* client_record.c - the record of an epoch, copied: who the members are, and which server holds what. */
#include "worker/client.h"

#include <stdlib.h>
#include <string.h>

void client_free_texts(char **text, uint32_t n)
{
    for (uint32_t i = 0; text != NULL && i < n; i++) free(text[i]);
    free(text);
}

static void free_members(client_member *member, uint32_t n)
{
    for (uint32_t i = 0; member != NULL && i < n; i++) {
        free(member[i].host);
        client_free_texts(member[i].address, member[i].n_addresses);
    }
    free(member);
}

static bool copy_member(client_member *to, const wire_member *from)
{
    to->rank        = from->rank;
    to->node        = from->node;
    to->sharing     = from->sharing;
    to->incarnation = from->incarnation;
    to->host        = strdup(from->host);
    to->address     = calloc(from->n_addresses + 1, sizeof *to->address);
    if (to->host == NULL || to->address == NULL) return false;
    for (; to->n_addresses < from->n_addresses; to->n_addresses++) {
        to->address[to->n_addresses] = strdup(from->address[to->n_addresses]);
        if (to->address[to->n_addresses] == NULL) return false;
    }
    return true;
}

static client_member *copy_members(const wire_member *from, uint32_t n)
{
    client_member *to = calloc(n + 1, sizeof *to);
    for (uint32_t i = 0; i < n && to != NULL; i++) {
        if (copy_member(&to[i], &from[i])) continue;
        free_members(to, n);
        return NULL;
    }
    return to;
}

wire_replica *client_copy_replicas(const wire_replica *from, uint32_t n)
{
    wire_replica *to = calloc(n + 1, sizeof *to);
    if (to != NULL && n > 0) memcpy(to, from, n * sizeof *to);
    return to;
}

void client_record_free(client_record *r)
{
    free_members(r->worker, r->n_workers);
    free_members(r->server, r->n_servers);
    free(r->replica);
    *r = (client_record){0};
}

bool client_record_copy(client_record *to, const wire_control *m)
{
    *to =
        (client_record){.term       = m->u.epoch.term,
                        .epoch      = m->u.epoch.epoch,
                        .n_workers  = m->u.epoch.n_workers,
                        .n_servers  = m->u.epoch.n_servers,
                        .n_replicas = m->u.epoch.n_replicas,
                        .worker     = copy_members(m->u.epoch.worker, m->u.epoch.n_workers),
                        .server     = copy_members(m->u.epoch.server, m->u.epoch.n_servers),
                        .replica = client_copy_replicas(m->u.epoch.replica, m->u.epoch.n_replicas)};
    if (to->worker != NULL && to->server != NULL && to->replica != NULL) return true;
    client_record_free(to);
    return false;
}

const client_member *client_find_worker(const client_record *r, int32_t rank)
{
    for (uint32_t i = 0; i < r->n_workers; i++)
        if (r->worker[i].rank == rank) return &r->worker[i];
    return NULL;
}

const client_member *client_find_server(const client_record *r, int32_t rank)
{
    for (uint32_t i = 0; i < r->n_servers; i++)
        if (r->server[i].rank == rank) return &r->server[i];
    return NULL;
}
