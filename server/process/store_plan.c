/* store_plan.c - the store thread's work for a plan: makes shards, compares the snapshot with the model, restores
 * it. */
#include "server/process/store_thread.h"

#include "common/base/log.h"
#include "common/snapshot/bundle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the plan -------------------------------------------------------------------------------- */
void server_plan_destroy(server_plan *p)
{
    if (p == NULL) return;
    server_new_shards_destroy(p->new_shards);
    plan_destroy(p->plan);
    wire_arena_destroy(p->arena);
    free(p->states);
    free(p);
}

server_new_shards *server_new_shards_create(server *s, const server_plan *p, uint32_t room)
{
    server_new_shards *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    *r = (server_new_shards){.server = s,
                             .plan   = p,
                             .row    = calloc(room + 1, sizeof *r->row),
                             .hosted = calloc(room + 1, sizeof(server_hosted *))};
    if (r->row != NULL && r->hosted != NULL) return r;
    server_new_shards_destroy(r);
    return NULL;
}

void server_new_shards_destroy(server_new_shards *r)
{
    if (r == NULL) return;
    for (uint32_t i = 0; r->hosted != NULL && i < r->n; i++) server_hosted_destroy(r->hosted[i]);
    free(r->hosted);
    free(r->row);
    free(r);
}

static pen_status cut_model(server_plan *p, pen_error *why)
{
    if (plan_create(&p->message.u.plan.model, &p->plan, why) != PEN_OK) return why->status;
    if (p->message.u.plan.n_partitions != p->plan->n_partitions)
        return why_set(why, PEN_MISMATCH,
                       "the scheduler made %u partitions of the model and this server %u; "
                       "they are of different "
                       "versions",
                       p->message.u.plan.n_partitions, p->plan->n_partitions);
    if (p->message.u.plan.ranks_max > p->world_size) p->world_size = p->message.u.plan.ranks_max;
    if (p->message.u.plan.term != 0)
        p->term = p->message.u.plan.term; /* the job's term, permanently */
    /* The shards the plan places here; a plan without placement gives each thread one. */
    server *s              = p->server;
    const wire_control *c  = &p->message;
    const uint32_t n       = c->u.plan.n_replicas;
    const uint32_t threads = (uint32_t)s->settings.shards;
    p->new_shards          = server_new_shards_create(s, p, n > threads ? n : threads);
    if (p->new_shards == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the plan");
    for (uint32_t i = 0; i < n; i++)
        if (c->u.plan.replica[i].server == p->rank && c->u.plan.replica[i].place < threads)
            p->new_shards->row[p->new_shards->n++] = c->u.plan.replica[i];
    for (uint32_t i = 0; i < threads && n == 0 && c->u.plan.n_shards == 0; i++)
        p->new_shards->row[p->new_shards->n++] = (wire_replica){
            .shard = p->first_shard + i, .place = i, .server = p->rank, .role = WIRE_PRIMARY};
    return PEN_OK;
}

static pen_status make_shard(server_new_shards *r, uint32_t i, pen_error *why)
{
    server *s                   = r->server;
    const server_plan *p        = r->plan;
    const shard_options options = {.stats      = &s->stats,
                                   .suspect_ms = s->settings.lease_ms,
                                   .admission  = s->admission,
                                   .offload    = server_settings_offload(&s->settings),
                                   .handlers   = s->handlers};
    const int64_t restore       = p->message.u.plan.restore;
    const shard_setup setup     = {.model       = &p->message.u.plan.model,
                                   .plan        = p->plan,
                                   .shard_of    = p->message.u.plan.shard,
                                   .self        = r->row[i].shard,
                                   .world_size  = p->world_size,
                                   .server      = p->rank,
                                   .incarnation = p->incarnation,
                                   .is_empty    = r->row[i].role == WIRE_LEARNER,
                                   .first_step  = restore >= 0 ? (uint64_t)restore : 0,
                                   .applied     = p->applied};
    server_hosted *h = r->hosted[i] = calloc(1, sizeof *h);
    if (h == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for shard %u", setup.self);
    h->place                    = &s->shard[r->row[i].place];
    h->number                   = r->row[i].shard;
    const shard_outside outside = server_shard_outside(h);
    h->shard                    = shard_create(&options, &outside, why);
    return h->shard != NULL ? shard_configure(h->shard, &setup, why) : PEN_NO_MEMORY;
}

/* A server that joins later has no primaries in its first plan; then a copy is that of a shard on its way. */
static pen_status check_handlers(const server_plan *p, pen_error *why)
{
    const wire_model *m = &p->message.u.plan.model;
    bool has_copies = false, has_primaries = false;
    for (uint32_t i = 0; i < p->message.u.plan.n_replicas; i++) {
        const wire_replica *r = &p->message.u.plan.replica[i];
        has_copies            = has_copies || r->role == WIRE_BACKUP;
        has_primaries         = has_primaries || (r->role == WIRE_PRIMARY && r->server == p->rank);
    }
    has_copies = has_copies && has_primaries;
    for (uint32_t i = 0; i < m->n_tensors && has_copies; i++)
        if (plan_has_handler(&m->tensor[i]))
            return why_set(why, PEN_UNSUPPORTED,
                           "table '%.64s' has the handler '%.64s', whose state cannot be copied to "
                           "other servers yet; start the job with --replicas 0",
                           m->tensor[i].name, m->tensor[i].handler);
    return PEN_OK;
}

static pen_status make_shards(server_plan *p, store_reader *reader, pen_error *why)
{
    const int64_t restore = p->message.u.plan.restore;
    if (check_handlers(p, why) != PEN_OK) return why->status;
    for (uint32_t i = 0; i < p->new_shards->n; i++) {
        pen_status status = make_shard(p->new_shards, i, why);
        if (status == PEN_OK && reader != NULL)
            status = shard_load(p->new_shards->hosted[i]->shard, reader, restore, why);
        if (status != PEN_OK) return status;
        if (!shard_is_idle(p->new_shards->hosted[i]->shard))
            p->applied = shard_applied(p->new_shards->hosted[i]->shard);
    }
    return PEN_OK;
}

static void add_states(const void *data, size_t size, void *user)
{
    server_plan *p = user;
    if (!bundle_merge(&p->states, &p->states_bytes, data, size))
        log_warning("states in the snapshot of step %" PRId64
                    " are left out: invalid data, or no memory",
                    p->message.u.plan.restore);
}

/* They return to the workers through the scheduler. */
static pen_status restore_states(server_plan *p, store_reader *reader, const store_manifest *m,
                                 pen_error *why)
{
    if (m->is_import) return PEN_OK;
    const pen_status status =
        store_read_blobs(reader, m->step, DESCRIBE_STATES_BLOB, add_states, p, why);
    if (status != PEN_OK || p->states_bytes <= BUNDLE_BYTES_MAX) return status;
    return why_set(why, PEN_UNSUPPORTED,
                   "the snapshot of step %" PRId64
                   " has %zu bytes of worker states; servers can hand out %d; continue without "
                   "servers",
                   m->step, p->states_bytes, BUNDLE_BYTES_MAX);
}

static pen_status restore(server_plan *p, pen_error *why)
{
    const int64_t step   = p->message.u.plan.restore;
    store_reader *reader = NULL;
    const store_manifest *manifest;
    if (p->server->settings.store[0] == '\0')
        return why_set(why, PEN_STORE,
                       "the job restores step %" PRId64
                       ", but this server has no store; set one with "
                       "--store",
                       step);
    pen_status status = store_reader_open(p->server->settings.store, &reader, why);
    if (status == PEN_OK) status = store_reader_manifest(reader, step, &manifest, why);
    if (status == PEN_OK)
        status = snapshot_is_of(manifest, &p->message.u.plan.model, p->server->settings.store, why);
    if (status == PEN_OK) status = restore_states(p, reader, manifest, why);
    if (status == PEN_OK) {
        p->applied = manifest->applied;
        status     = make_shards(p, reader, why);
    }
    store_reader_close(reader);
    return status;
}

static void prepare(void *user)
{
    server_plan *p    = user;
    store_thread *t   = p->server->store;
    pen_status status = cut_model(p, &p->why);
    if (status == PEN_OK)
        status =
            p->message.u.plan.restore >= 0 ? restore(p, &p->why) : make_shards(p, NULL, &p->why);
    p->status = status;
    if (status == PEN_OK) {
        t->plan    = p;
        t->written = p->message.u.plan.restore;
        t->writer  = (part_writer){
             .dir = p->server->settings.store, .rank = p->rank, .restored = t->written};
    }
    if (!server_notify_main(p->server, SERVER_PREPARED, p, 0))
        server_no_memory(p->server, "passing the plan on");
}

void store_thread_prepare(store_thread *t, server_plan *p)
{
    if (!server_post(t->loop, prepare, p, 0)) server_no_memory(p->server, "taking the plan in");
}

/* Later copies: their primaries fill them. */
static void make_new_shards(void *user)
{
    server_new_shards *r = user;
    r->status            = PEN_OK;
    for (uint32_t i = 0; i < r->n && r->status == PEN_OK; i++)
        r->status = make_shard(r, i, &r->why);
    if (server_notify_main(r->server, SERVER_MADE, r, 0)) return;
    server_no_memory(r->server, "passing new shards on");
    server_new_shards_destroy(r);
}

void store_thread_make(store_thread *t, server_new_shards *r)
{
    if (server_post(t->loop, make_new_shards, r, 0)) return;
    server_no_memory(r->server, "making a shard");
    server_new_shards_destroy(r);
}
