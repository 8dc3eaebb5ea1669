/* server_epoch.c - epochs in the main thread: this server's shards and their roles, and sealing between two epochs. */
#include "server/process/server_state.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table of copies --------------------------------------------------------------------- */
/* From the view; before the first view, from the plan. */
static const wire_replica *table_of(const server *s, uint32_t *n)
{
    const wire_control *first = s->plan != NULL ? &s->plan->message : NULL;
    *n                        = s->view.n_replicas;
    if (*n > 0) return s->view.replica;
    *n = first != NULL ? first->u.plan.n_replicas : 0;
    if (*n > 0) return first->u.plan.replica;
    *n = first != NULL && first->u.plan.n_shards == 0 ? (uint32_t)s->settings.shards : 0;
    return s->fallback;
}

static const wire_member *server_of(const server *s, int32_t rank)
{
    for (uint32_t i = 0; i < s->view.n_servers; i++)
        if (s->view.server[i].rank == rank) return &s->view.server[i];
    return NULL;
}

static bool is_mine(const server *s, const wire_replica *r)
{
    return r->server == s->rank && r->place < s->settings.shards && r->shard < s->n_shards;
}

static void add_copy(const server *s, server_row *row, const wire_replica *r)
{
    const wire_member *m = server_of(s, r->server);
    if (row->n_replicas == SHARD_COPIES_MAX || m == NULL) return;
    const uint32_t i = row->n_replicas++;
    row->replica[i]  = (shard_replica){r->server, m->incarnation, r->role == WIRE_LEARNER};
    if (r->place < m->n_addresses)
        snprintf(row->address[i], sizeof row->address[i], "%s", m->address[r->place]);
}

static void fill_row(const server *s, server_row *row, const wire_replica *mine)
{
    uint32_t n;
    const wire_replica *table = table_of(s, &n);
    *row                      = (server_row){.number = mine->shard, .role = (shard_role)mine->role};
    for (uint32_t i = 0; i < n; i++) {
        if (table[i].shard != mine->shard) continue;
        if (table[i].role == WIRE_PRIMARY) {
            const wire_member *m = server_of(s, table[i].server);
            row->primary         = m != NULL                    ? m->incarnation
                                   : table[i].server == s->rank ? s->member.incarnation
                                                                : 0;
        }
        if (table[i].server != s->rank) add_copy(s, row, &table[i]);
    }
}

/* ---- notifying the threads ------------------------------------------------------------------- */
static wire_member *copy_workers(const server *s)
{
    const uint32_t n    = s->view.n_workers;
    wire_member *worker = calloc(n + 1, sizeof *worker);
    for (uint32_t i = 0; worker != NULL && i < n;
         i++) /* shards need no names, which lie in an arena */
        worker[i] = (wire_member){.role        = PEN_WORKER,
                                  .rank        = s->view.worker[i].rank,
                                  .node        = s->view.worker[i].node,
                                  .incarnation = s->view.worker[i].incarnation};
    return worker;
}

static server_epoch_update *new_epoch_update(server *s, uint32_t place, uint32_t n_fresh)
{
    uint32_t n;
    const wire_replica *table         = table_of(s, &n);
    server_epoch_update *epoch_update = calloc(1, sizeof *epoch_update);
    if (epoch_update == NULL) return NULL;
    epoch_update->to    = &s->shard[place];
    epoch_update->view  = (shard_view){.term            = s->view.term,
                                       .epoch           = s->view.epoch,
                                       .worker          = copy_workers(s),
                                       .n_workers       = s->view.n_workers,
                                       .members_changed = s->view.members_changed,
                                       .step            = s->view.step,
                                       .has_decision    = s->view.has_decision,
                                       .decision        = s->view.decision};
    epoch_update->row   = calloc(n + 1, sizeof *epoch_update->row);
    epoch_update->fresh = calloc(n_fresh + 1, sizeof(server_hosted *));
    if (epoch_update->view.worker == NULL || epoch_update->row == NULL ||
        epoch_update->fresh == NULL) {
        server_epoch_update_destroy(epoch_update);
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++)
        if (is_mine(s, &table[i]) && table[i].place == place)
            fill_row(s, &epoch_update->row[epoch_update->n_rows++], &table[i]);
    return epoch_update;
}

static void hand_fresh(server_epoch_update *epoch_update, server_new_shards *r)
{
    for (uint32_t i = 0; r != NULL && i < r->n; i++) {
        if (r->hosted[i] == NULL || r->hosted[i]->place != epoch_update->to) continue;
        epoch_update->fresh[epoch_update->n_fresh++] = r->hosted[i];
        r->hosted[i]                                 = NULL;
    }
}

static void notify_store(server *s)
{
    uint32_t n, mine = 0;
    const wire_replica *table = table_of(s, &n);
    uint32_t *served          = calloc(n + 1, sizeof *served);
    for (uint32_t i = 0; served != NULL && i < n; i++)
        if (is_mine(s, &table[i]) && table[i].role == WIRE_PRIMARY) served[mine++] = table[i].shard;
    if (served != NULL) store_thread_expect(s->store, served, mine);
}

static void notify_places(server *s, server_new_shards *fresh)
{
    if (s->has_ended) return; /* tasks posted earlier still run, to free what they own */
    notify_store(s);
    for (uint32_t i = 0; i < s->settings.shards; i++) {
        server_epoch_update *epoch_update = new_epoch_update(s, i, fresh != NULL ? fresh->n : 0);
        if (epoch_update == NULL) {
            server_no_memory(s, "telling a shard its members");
            return;
        }
        hand_fresh(epoch_update, fresh);
        if (server_post(s->shard[i].loop, server_shard_epoch_update, epoch_update, 0)) continue;
        server_epoch_update_destroy(epoch_update);
        server_no_memory(s, "telling a shard its members");
        return;
    }
}

/* ---- adding and removing shards -------------------------------------------------------------- */
static void cannot_be(server *s, const wire_replica *r)
{
    pen_error why;
    why_set(&why, PEN_INTERNAL,
            "epoch %" PRIu64 ": server %d should have shard %u as its %s, but never had it",
            s->view.epoch, s->rank, r->shard, r->role == WIRE_PRIMARY ? "primary" : "backup");
    why_culprit(&why, PEN_SERVER, s->rank, -1, NULL);
    server_report(s, &why);
}

/* Learners start empty; every other shard is here already. */
static void make_learners(server *s)
{
    uint32_t n;
    if (s->has_ended) return;
    const wire_replica *table     = table_of(s, &n);
    server_new_shards *new_shards = server_new_shards_create(s, s->plan, n);
    if (new_shards == NULL) {
        server_no_memory(s, "new shards");
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!is_mine(s, &table[i]) || s->shard_presence[table[i].shard] != SERVER_ABSENT) continue;
        if (table[i].role != WIRE_LEARNER) {
            cannot_be(s, &table[i]);
            continue;
        }
        s->shard_presence[table[i].shard] = SERVER_MAKING;
        new_shards->row[new_shards->n++]  = table[i];
    }
    if (new_shards->n > 0)
        store_thread_make(s->store, new_shards);
    else
        server_new_shards_destroy(new_shards);
}

static void forget_gone(server *s)
{
    uint32_t n;
    const wire_replica *table = table_of(s, &n);
    for (uint32_t number = 0; number < s->n_shards; number++) {
        bool found = false;
        for (uint32_t i = 0; i < n; i++)
            found = found || (table[i].shard == number && is_mine(s, &table[i]));
        if (!found && s->shard_presence[number] == SERVER_HERE)
            s->shard_presence[number] = SERVER_ABSENT;
    }
}

static bool is_wanted(const server *s, const wire_replica *row)
{
    uint32_t n;
    const wire_replica *table = table_of(s, &n);
    for (uint32_t i = 0; i < n; i++)
        if (table[i].shard == row->shard && table[i].place == row->place && is_mine(s, &table[i]))
            return true;
    return false;
}

void server_made(void *user)
{
    server_new_shards *r = user;
    server *s            = r->server;
    if (r->status != PEN_OK) {
        server_report(s, &r->why);
        server_new_shards_destroy(r);
        return;
    }
    for (uint32_t i = 0; i < r->n; i++)
        s->shard_presence[r->row[i].shard] = is_wanted(s, &r->row[i]) ? SERVER_HERE : SERVER_ABSENT;
    notify_places(s, r); /* drops shards that left */
    server_new_shards_destroy(r);
}

/* ---- EPOCH ----------------------------------------------------------------------------------- */
void server_epoch_take(server *s, const wire_control *c)
{
    wire_arena *before = s->view_arena;
    s->view_arena      = s->arena;
    s->arena           = before;
    s->view            = c->u.epoch;
    s->n_workers       = s->view.n_workers;
    s->n_servers       = (int32_t)s->view.n_servers;
    s->first_shard     = 0;
    for (uint32_t i = 0; i < s->view.n_servers; i++)
        if (s->view.server[i].rank < s->rank) s->first_shard += s->view.server[i].n_addresses;
    if (!s->is_ready) return;
    forget_gone(s);
    make_learners(s);
    notify_places(s, NULL);
}

/* ---- PLAN ------------------------------------------------------------------------------------ */
static void send_ready(server *s)
{
    wire_control c         = {.kind = WIRE_READY};
    c.u.ready.restored     = s->plan->message.u.plan.restore;
    c.u.ready.applied      = s->plan->applied;
    c.u.ready.states       = s->plan->states;
    c.u.ready.states_bytes = s->plan->states_bytes;
    server_send(s, &c);
}

static bool has_reached(const server *s)
{
    return s->is_ready && s->n_reached == s->settings.shards;
}

void server_epoch_plan(server *s, const wire_control *c)
{
    if (s->plan != NULL) { /* sent again after a reconnect */
        if (has_reached(s)) send_ready(s);
        return;
    }
    if (s->n_workers == 0) return;
    server_plan *p    = calloc(1, sizeof *p);
    wire_arena *arena = wire_arena_create(SERVER_ARENA_BYTES_MAX);
    if (p == NULL || arena == NULL) {
        wire_arena_destroy(arena);
        free(p);
        server_no_memory(s, "the plan");
        return;
    }
    p->server      = s;
    p->arena       = s->arena; /* with the message in it */
    p->message     = *c;
    s->arena       = arena;
    p->world_size  = s->n_workers;
    p->first_shard = s->first_shard;
    p->incarnation = s->member.incarnation;
    p->term        = s->term;
    p->rank        = s->rank;
    s->plan        = p;
    store_thread_prepare(s->store, p);
}

static bool count_shards(server *s)
{
    const wire_control *c = &s->plan->message;
    s->n_shards           = c->u.plan.n_shards;
    for (uint32_t i = 0; i < c->u.plan.n_partitions; i++)
        if (c->u.plan.shard[i] >= s->n_shards) s->n_shards = c->u.plan.shard[i] + 1;
    const uint32_t last = s->first_shard + (uint32_t)s->settings.shards;
    if (c->u.plan.n_shards == 0 && last > s->n_shards) s->n_shards = last;
    for (uint32_t i = 0; i < s->settings.shards; i++)
        s->fallback[i] = (wire_replica){
            .shard = s->first_shard + i, .place = i, .server = s->rank, .role = WIRE_PRIMARY};
    s->shard_presence = calloc(s->n_shards + 1, sizeof *s->shard_presence);
    return s->shard_presence != NULL;
}

void server_prepared(void *user)
{
    server_plan *p = user;
    server *s      = p->server;
    if (p->status != PEN_OK) {
        server_report(s, &p->why);
        return;
    }
    if (!count_shards(s)) {
        server_no_memory(s, "the table of shards");
        return;
    }
    if (p->message.u.plan.restore >= 0) {
        s->restored = p->message.u.plan.restore;
        log_notice("server %d restored step %" PRId64 " from %s", s->rank, s->restored,
                   s->settings.store);
    }
    for (uint32_t i = 0; i < p->new_shards->n; i++)
        if (p->new_shards->row[i].shard < s->n_shards)
            s->shard_presence[p->new_shards->row[i].shard] = SERVER_HERE;
    s->is_ready = true;
    forget_gone(s);
    make_learners(s);
    notify_places(s,
                  p->new_shards); /* READY follows once they reached the copies of their shards */
}

void server_place_reached(void *user)
{
    server *s = user;
    s->n_reached++;
    if (has_reached(s)) send_ready(s);
}

/* ---- SEAL ------------------------------------------------------------------------------------ */
void server_epoch_seal(server *s, uint64_t term, uint64_t epoch)
{
    for (uint32_t i = 0; i < s->settings.shards; i++) {
        const server_seal seal = {&s->shard[i], term, epoch};
        if (server_post(s->shard[i].loop, server_shard_seal, &seal, sizeof seal)) continue;
        server_no_memory(s, "sealing a shard");
        return;
    }
}

void server_sealed(void *user)
{
    server_place_sealed *told = user;
    server *s                 = told->server;
    if (membership_sealed(&s->member, told->term, told->epoch, told->report, told->n) != PEN_OK)
        server_no_memory(s, "the report of a sealed shard");
    free(told);
}

void server_epoch_fini(server *s)
{
    wire_arena_destroy(s->view_arena);
    free(s->shard_presence);
    s->view_arena     = NULL;
    s->shard_presence = NULL;
}
