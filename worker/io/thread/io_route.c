/* io_route.c - the newest view: members, and which server holds which shard. */
#include "worker/io/thread/io_thread.h"

#include "common/base/log.h"
#include "common/base/why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_texts(char **text, uint32_t n)
{
    for (uint32_t i = 0; text != NULL && i < n; i++) free(text[i]);
    free(text);
}

/* ---- hosts, for sentences -------------------------------------------------------------------- */
/* Fills the hosts by rank; a rank that has left keeps its last host. */
static bool name_hosts(io_thread *c)
{
    uint32_t n = c->n_workers;
    for (uint32_t i = 0; i < c->view.n_workers; i++) {
        const int32_t rank = c->view.worker[i].rank;
        if (rank >= 0 && rank < WIRE_ITEMS_MAX && (uint32_t)rank >= n) n = (uint32_t)rank + 1;
    }
    char **host           = calloc(n + 1, sizeof *host);
    uint64_t *incarnation = calloc(n + 1, sizeof *incarnation);
    bool whole            = host != NULL && incarnation != NULL;
    for (uint32_t i = 0; i < n && whole; i++) {
        const wire_member *w = io_find(c->view.worker, c->view.n_workers, (int32_t)i);
        incarnation[i]       = w != NULL ? w->incarnation : 0;
        const char *before   = i < c->n_workers ? c->worker_host[i] : "unknown";
        host[i]              = strdup(w != NULL ? w->host : before);
        whole                = host[i] != NULL;
    }
    if (!whole) {
        free_texts(host, n);
        free(incarnation);
        return false;
    }
    free(c->incarnation);
    c->incarnation = incarnation;
    c->old_host    = c->worker_host; /* the ps client reads it until it has installed the new one */
    c->n_old_hosts = c->n_workers;
    c->worker_host = host;
    c->n_workers   = n;
    return true;
}

/* ---- routes ---------------------------------------------------------------------------------- */
static void free_routes(io_routes *r, uint32_t n)
{
    free_texts(r->address, n);
    free_texts(r->server, n);
    free(r->to);
    *r = (io_routes){0};
}

static bool set_route(io_routes *r, uint32_t shard, const wire_member *s, uint32_t place)
{
    char name[320];
    if (place >= s->n_addresses) return true;
    snprintf(name, sizeof name, "server %d (%s)", s->rank, s->host);
    free(r->server[shard]);
    free(r->address[shard]);
    r->to[shard]      = s->incarnation;
    r->address[shard] = strdup(s->address[place]);
    r->server[shard]  = strdup(name);
    return r->address[shard] != NULL && r->server[shard] != NULL;
}

/* The address of a shard without a server is NULL until a later view. */
static bool begin_routes(io_routes *r, uint32_t n)
{
    *r = (io_routes){.to      = calloc(n + 1, sizeof *r->to),
                     .address = calloc(n + 1, sizeof *r->address),
                     .server  = calloc(n + 1, sizeof *r->server)};
    if (!r->to || !r->address || !r->server) return false;
    for (uint32_t i = 0; i < n; i++)
        if ((r->server[i] = strdup("a server yet to come")) == NULL) return false;
    return true;
}

/* Without replicas in the plan, shards follow the order of servers and their threads. */
static bool follow_order(const io_thread *c, io_routes *r)
{
    uint32_t shard = 0;
    for (uint32_t i = 0; i < c->view.n_servers; i++)
        for (uint32_t a = 0; a < c->view.server[i].n_addresses && shard < c->n_shards; a++)
            if (!set_route(r, shard++, &c->view.server[i], a)) return false;
    return true;
}

static bool make_routes(const io_thread *c, io_routes *r)
{
    const bool is_newest     = c->view.n_replicas > 0;
    const wire_replica *copy = is_newest ? c->view.replica : c->first_place;
    const uint32_t n         = is_newest ? c->view.n_replicas : c->n_first_places;
    if (!begin_routes(r, c->n_shards)) return false;
    if (n == 0) return follow_order(c, r);
    for (uint32_t i = 0; i < n; i++) {
        if (copy[i].role != WIRE_PRIMARY || copy[i].shard >= c->n_shards) continue;
        const wire_member *s = io_find(c->view.server, c->view.n_servers, copy[i].server);
        if (s != NULL && !set_route(r, copy[i].shard, s, copy[i].place)) return false;
    }
    return true;
}

static bool is_other(const io_routes *a, const io_routes *b, uint32_t shard)
{
    if (a->to[shard] != b->to[shard]) return true;
    if (a->address[shard] == NULL || b->address[shard] == NULL)
        return a->address[shard] != b->address[shard];
    return strcmp(a->address[shard], b->address[shard]) != 0;
}

static void install(io_thread *c, const io_routes *next, const wire_control *m)
{
    if (c->ps_client == NULL) return;
    const ps_client_view view = {.term            = c->view.term,
                                 .epoch           = c->view.epoch,
                                 .to              = next->to,
                                 .members_changed = m->u.epoch.members_changed,
                                 .step            = m->u.epoch.step,
                                 .n_workers       = c->n_workers,
                                 .worker          = c->incarnation,
                                 .worker_host     = (const char *const *)c->worker_host,
                                 .server          = (const char *const *)next->server};
    ps_client_install(c->ps_client, &view, loop_now_ms(c->loop));
}

static pen_status reroute(io_thread *c, const wire_control *m, pen_error *why)
{
    io_routes next = {0}, before = c->route;
    if (!make_routes(c, &next)) {
        free_routes(&next, c->n_shards);
        return why_set(why, PEN_NO_MEMORY, "no memory for the routes to %u shards", c->n_shards);
    }
    if (m != NULL) install(c, &next, m);
    c->route = next;
    for (uint32_t s = 0; s < c->n_shards && before.to != NULL; s++)
        if (is_other(&before, &next, s)) io_disconnect_shard(c, s);
    free_routes(&before, c->n_shards);
    return PEN_OK;
}

/* ---- PLAN ------------------------------------------------------------------------------------ */
static uint32_t count_threads(const wire_epoch *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_servers; i++) n += r->server[i].n_addresses;
    return n;
}

static wire_replica *copy_replicas(const wire_replica *from, uint32_t n)
{
    wire_replica *to = calloc(n + 1, sizeof *to);
    if (to != NULL && n > 0) memcpy(to, from, n * sizeof *to);
    return to;
}

pen_status io_route_plan(io_thread *c, const wire_control *m, pen_error *why)
{
    c->n_shards    = m->u.plan.n_shards > 0 ? m->u.plan.n_shards : count_threads(&c->view);
    c->ranks_max   = m->u.plan.ranks_max;
    c->first_place = copy_replicas(m->u.plan.replica, m->u.plan.n_replicas);
    if (c->first_place == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the plan");
    c->n_first_places = m->u.plan.n_replicas;
    return reroute(c, NULL, why);
}

/* ---- EPOCH ----------------------------------------------------------------------------------- */
void io_notify_members(io_thread *c, int64_t after)
{
    const wire_epoch *r  = &c->view;
    member_list *m       = &c->ctx->members;
    const bool has_begun = atomic_load(&c->ctx->step_index) >= 0;
    int32_t *rank        = calloc(r->n_workers + 1, sizeof *rank);
    bool is_told         = rank != NULL;
    for (uint32_t i = 0; i < r->n_workers && is_told; i++) rank[i] = r->worker[i].rank;
    if (is_told)
        is_told = has_begun ? members_change(m, r->epoch, after, rank, r->n_workers)
                            : members_set(m, r->epoch, rank, r->n_workers);
    if (!is_told) log_error("no memory for the list of %u members", r->n_workers);
    free(rank);
}

pen_status io_route_epoch(io_thread *c, const wire_control *m, pen_error *why)
{
    wire_arena *arena   = c->view_arena;
    wire_epoch before   = c->view; /* valid until the next message */
    c->view_arena       = c->arena;
    c->arena            = arena;
    c->view             = m->u.epoch;
    const bool is_whole = name_hosts(c);
    pen_status status   = is_whole
                              ? PEN_OK
                              : why_set(why, PEN_NO_MEMORY, "no memory for the names of %u hosts",
                                        m->u.epoch.n_workers);
    if (status == PEN_OK && c->n_shards > 0) status = reroute(c, m, why);
    free_texts(c->old_host, c->n_old_hosts);
    c->old_host          = NULL;
    c->n_old_hosts       = 0;
    const bool has_begun = atomic_load(&c->ctx->step_index) >= 0;
    if (!has_begun || m->u.epoch.members_changed) io_notify_members(c, m->u.epoch.step);
    if (before.term != 0) io_notify_events(c, &before);
    return status;
}

void io_route_fini(io_thread *c)
{
    free_routes(&c->route, c->n_shards);
    free_texts(c->worker_host, c->n_workers);
    free(c->incarnation);
    free(c->first_place);
}
