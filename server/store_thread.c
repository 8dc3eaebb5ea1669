/* store_thread.c - the thread that may take long: it makes room for a plan, restores, and writes
 * snapshots.
 *
 * A snapshot's part of this server is written when every shard has handed in its cut of that step,
 * in one transaction.  Nobody waits for it: shards train on while their cuts, which are references,
 * are written.
 */
#include "server/server_state.h"

#include "common/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PENDING_MAX = 4 }; /* snapshots of which some cuts are here and some are not */

typedef struct {
    uint32_t n; /* cuts that are here */
    int64_t step;
    shard_cut **cut; /* [shards] */
} pending;

struct store_thread {
    server *server;
    loop *loop;
    pthread_t thread;
    bool is_running;
    const server_plan *plan;
    store *store; /* opened with the first snapshot */
    pending pending[PENDING_MAX];
    int64_t written; /* newest step whose part was written, or failed to be */
};

/* ---- the plan -------------------------------------------------------------------------------- */
void server_plan_destroy(server_plan *p)
{
    if (p == NULL) return;
    for (uint32_t i = 0; p->shard != NULL && i < p->server->settings.shards; i++)
        shard_destroy(p->shard[i]);
    free(p->shard);
    plan_destroy(p->plan);
    wire_arena_destroy(p->arena);
    free(p);
}

static pen_status cut_model(server_plan *p, pen_error *why)
{
    p->arena = wire_arena_create(4 * WIRE_HEAD_BYTES_MAX);
    p->shard = calloc(p->server->settings.shards, sizeof *p->shard);
    if (p->arena == NULL || p->shard == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the plan");
    pen_status status = wire_control_decode(p->head, p->head_size, p->arena, &p->message, why);
    if (status == PEN_OK) status = plan_create(&p->message.u.plan.model, &p->plan, why);
    if (status != PEN_OK) return status;
    if (p->message.u.plan.n_partitions != p->plan->n_partitions)
        return why_set(why, PEN_MISMATCH,
                       "the scheduler cut the model into %u partitions and this server into %u; "
                       "they are of different "
                       "versions",
                       p->message.u.plan.n_partitions, p->plan->n_partitions);
    return PEN_OK;
}

static pen_status make_shard(server_plan *p, uint32_t i, pen_error *why)
{
    server *s                   = p->server;
    const shard_options options = {.stats = &s->stats};
    const shard_outside outside = server_shard_outside(&s->shard[i]);
    const int64_t restore       = p->message.u.plan.restore;
    const shard_setup setup     = {.model       = &p->message.u.plan.model,
                                   .plan        = p->plan,
                                   .shard_of    = p->message.u.plan.shard,
                                   .self        = p->first_shard + i,
                                   .world_size  = p->world_size,
                                   .incarnation = p->incarnation,
                                   .first_step  = restore >= 0 ? (uint64_t)restore : 0,
                                   .applied     = p->applied};
    p->shard[i]                 = shard_create(&options, &outside, why);
    return p->shard[i] != NULL ? shard_configure(p->shard[i], &setup, why) : PEN_NO_MEMORY;
}

static pen_status make_shards(server_plan *p, store_reader *reader, pen_error *why)
{
    const int64_t restore = p->message.u.plan.restore;
    for (uint32_t i = 0; i < p->server->settings.shards; i++) {
        pen_status status = make_shard(p, i, why);
        if (status == PEN_OK && reader != NULL)
            status = shard_load(p->shard[i], reader, restore, why);
        if (status != PEN_OK) return status;
        if (shard_is_idle(p->shard[i]))
            p->idle |= (uint64_t)1 << i;
        else
            p->applied = shard_applied(p->shard[i]);
    }
    return PEN_OK;
}

static pen_status restore(server_plan *p, pen_error *why)
{
    const int64_t step   = p->message.u.plan.restore;
    store_reader *reader = NULL;
    const store_manifest *manifest;
    if (p->server->settings.store[0] == '\0')
        return why_set(why, PEN_STORE,
                       "the job restores step %" PRId64
                       " and this server has no store; give it one with "
                       "--store",
                       step);
    pen_status status = store_reader_open(p->server->settings.store, &reader, why);
    if (status == PEN_OK) status = store_reader_manifest(reader, step, &manifest, why);
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
    if (status == PEN_OK) t->plan = p;
    if (status == PEN_OK) t->written = p->message.u.plan.restore;
    if (!server_post(p->server->loop, server_prepared, p)) log_error("no memory to pass a plan on");
}

void store_thread_prepare(store_thread *t, server_plan *p)
{
    if (server_post(t->loop, prepare, p)) return;
    why_set(&p->why, PEN_NO_MEMORY, "no memory to take the plan in");
    server_report(p->server, &p->why);
}

/* ---- writing --------------------------------------------------------------------------------- */
/* Equal on all parts of one snapshot, and never that of another job's at the same step. */
static uint64_t id_of(uint64_t term, int64_t step)
{
    return term * 0x9e3779b97f4a7c15u + (uint64_t)step;
}

static void describe_tensors(const server_plan *p, store_tensor *rows)
{
    const wire_model *model = &p->message.u.plan.model;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        const wire_tensor *tensor = &model->tensor[t];
        const char *words         = model->group[tensor->group].optim;
        const optim_ops *optim    = NULL;
        optim_hyper unused;
        rows[t] = (store_tensor){
            .name = tensor->name, .elements = plan_tensor_elements(tensor), .optim = words};
        if (tensor->flags & PEN_FROZEN || optim_parse(words, &optim, &unused, NULL) != PEN_OK)
            continue;
        rows[t].slots = optim->slot_count;
        for (int k = 0; k < optim->slot_count; k++) rows[t].slot_names[k] = optim->slot_names[k];
    }
}

static pen_status put_chunk(store_thread *t, const shard_cut_chunk *k, const store_tensor *row,
                            uint64_t *bytes, pen_error *why)
{
    pen_status status =
        store_put(t->store, row->name, "param", k->start, k->count, k->values->data, why);
    for (uint32_t i = 0; status == PEN_OK && i < k->n_slots; i++)
        status = store_put(t->store, row->name, row->slot_names[i], k->start, k->count,
                           k->slot[i]->data, why);
    *bytes += k->count * sizeof(float) * (1 + k->n_slots);
    return status;
}

static pen_status put_versions(store_thread *t, const pending *p, pen_error *why)
{
    size_t n = 0;
    for (uint32_t i = 0; i < t->server->settings.shards; i++) n += p->cut[i]->n;
    shard_version_row *rows = calloc(n + 1, sizeof *rows);
    if (rows == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the counters of a snapshot");
    n = 0;
    for (uint32_t i = 0; i < t->server->settings.shards; i++)
        for (uint32_t k = 0; k < p->cut[i]->n; k++)
            rows[n++] = (shard_version_row){.chunk   = p->cut[i]->chunk[k].chunk,
                                            .version = p->cut[i]->chunk[k].version};
    const pen_status status =
        store_put_blob(t->store, SHARD_VERSIONS_BLOB, rows, n * sizeof *rows, why);
    free(rows);
    return status;
}

static int64_t applied_of(const store_thread *t, const pending *p)
{
    int64_t applied = 0;
    for (uint32_t i = 0; i < t->server->settings.shards; i++)
        if (p->cut[i]->applied > applied) applied = p->cut[i]->applied;
    return applied;
}

static pen_status write_part(store_thread *t, const pending *p, store_tensor *rows, uint64_t *bytes,
                             pen_error *why)
{
    const store_manifest manifest = {.step      = p->step,
                                     .applied   = applied_of(t, p),
                                     .id        = id_of(t->plan->term, p->step),
                                     .job       = t->server->job,
                                     .n_tensors = t->plan->message.u.plan.model.n_tensors,
                                     .tensor    = rows};
    pen_status status             = store_begin(t->store, &manifest, why);
    for (uint32_t i = 0; i < t->server->settings.shards; i++)
        for (uint32_t k = 0; status == PEN_OK && k < p->cut[i]->n; k++)
            status =
                put_chunk(t, &p->cut[i]->chunk[k], &rows[p->cut[i]->chunk[k].tensor], bytes, why);
    if (status == PEN_OK) status = put_versions(t, p, why);
    if (status == PEN_OK) return store_commit(t->store, why);
    store_abort(t->store);
    return status;
}

static pen_status write_pending(store_thread *t, const pending *p, uint64_t *bytes, pen_error *why)
{
    const char *dir = t->server->settings.store;
    if (dir[0] == '\0')
        return why_set(why, PEN_STORE,
                       "this server has no store; give it a directory with --store");
    pen_status status = t->store != NULL ? PEN_OK : store_open(dir, t->plan->rank, &t->store, why);
    if (status != PEN_OK) return status;
    store_tensor *rows = calloc(t->plan->message.u.plan.model.n_tensors, sizeof *rows);
    if (rows == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the manifest of a snapshot");
    describe_tensors(t->plan, rows);
    status = write_part(t, p, rows, bytes, why);
    free(rows);
    return status;
}

static void forget_pending(const store_thread *t, pending *p)
{
    for (uint32_t i = 0; p->cut != NULL && i < t->server->settings.shards; i++)
        shard_cut_destroy(p->cut[i]);
    free(p->cut);
    *p = (pending){0};
}

static void write_and_tell(store_thread *t, pending *p)
{
    server_part *part = calloc(1, sizeof *part);
    if (part != NULL) {
        part->server = t->server;
        part->step   = p->step;
        part->status = write_pending(t, p, &part->bytes, &part->why);
        if (!server_post(t->server->loop, server_part_written, part)) free(part);
    }
    forget_pending(t, p);
}

/* ---- cuts ------------------------------------------------------------------------------------ */
typedef struct {
    store_thread *thread;
    uint32_t shard;
    shard_cut *cut;
} handed_in;

/* The one of this step, a free place, or the oldest: its missing cuts will not come any more. */
static pending *pending_of(store_thread *t, int64_t step)
{
    pending *choice = NULL;
    for (int i = 0; i < PENDING_MAX; i++) {
        pending *p = &t->pending[i];
        if (p->n > 0 && p->step == step) return p;
        if (choice == NULL || (choice->n > 0 && (p->n == 0 || p->step < choice->step))) choice = p;
    }
    forget_pending(t, choice);
    choice->cut  = calloc(t->server->settings.shards, sizeof(shard_cut *));
    choice->step = step;
    return choice->cut != NULL ? choice : NULL;
}

/* The first cut of a step is the sign for shards that get none by themselves. */
static void tell_idle(const store_thread *t, int64_t step)
{
    for (uint32_t i = 0; i < t->server->settings.shards; i++) {
        server_sign *sign = t->plan->idle >> i & 1 ? malloc(sizeof *sign) : NULL;
        if (sign == NULL) continue;
        *sign = (server_sign){&t->server->shard[i], step};
        if (!server_post(t->server->shard[i].loop, server_shard_cut_idle, sign)) free(sign);
    }
}

static void add_cut(store_thread *t, uint32_t index, shard_cut *cut)
{
    pending *p = cut->step > t->written ? pending_of(t, cut->step) : NULL;
    if (p == NULL || p->cut[index] != NULL) {
        shard_cut_destroy(cut);
        return;
    }
    p->cut[index] = cut;
    if (p->n++ == 0) tell_idle(t, cut->step);
    if (p->n < t->server->settings.shards) return;
    t->written = p->step;
    write_and_tell(t, p);
}

static void take_cut(void *user)
{
    handed_in *h = user;
    add_cut(h->thread, h->shard, h->cut);
    free(h);
}

void store_thread_cut(store_thread *t, uint32_t index, shard_cut *cut)
{
    handed_in *h = malloc(sizeof *h);
    if (h != NULL) *h = (handed_in){t, index, cut};
    if (h != NULL && server_post(t->loop, take_cut, h)) return;
    log_warning("no memory to write the snapshot of step %" PRId64, cut->step);
    shard_cut_destroy(cut);
    free(h);
}

/* ---- forgetting, finding --------------------------------------------------------------------- */
typedef struct {
    store_thread *thread;
    int64_t step;
} forgotten;

static void forget_before(void *user)
{
    forgotten *f = user;
    pen_error why;
    if (f->thread->store != NULL && store_forget_before(f->thread->store, f->step, &why) != PEN_OK)
        log_warning("old snapshots are kept: %s", why.text);
    free(f);
}

void store_thread_forget_before(store_thread *t, int64_t step)
{
    forgotten *f = malloc(sizeof *f);
    if (f == NULL) return; /* the next one forgets these, too */
    *f = (forgotten){t, step};
    if (!server_post(t->loop, forget_before, f)) free(f);
}

pen_status store_thread_find(const char *dir, int64_t *steps, uint32_t cap, uint32_t *n,
                             pen_error *why)
{
    struct stat found;
    *n = 0;
    if (dir[0] == '\0' || stat(dir, &found) != 0) return PEN_OK;
    store_reader *reader;
    const pen_status status = store_reader_open(dir, &reader, why);
    if (status == PEN_NOT_FOUND) return PEN_OK;
    if (status != PEN_OK) return status;
    int64_t all[1024];
    size_t count = store_reader_steps(reader, all, 1024);
    if (count > 1024) count = 1024;
    const size_t skip = count > cap ? count - cap : 0; /* the newest are wanted */
    for (size_t i = skip; i < count; i++) steps[(*n)++] = all[i];
    store_reader_close(reader);
    return PEN_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */
static void *run(void *user)
{
    store_thread *t = user;
    loop_run(t->loop);
    return NULL;
}

static void quit(void *user)
{
    loop_stop(((store_thread *)user)->loop);
}

pen_status store_thread_start(server *s, store_thread **out, pen_error *why)
{
    store_thread *t = calloc(1, sizeof *t);
    if (t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the store's thread");
    t->server = s;
    t->loop   = loop_create(why);
    if (t->loop == NULL) {
        free(t);
        return PEN_NO_MEMORY;
    }
    *out = t;
    if (pthread_create(&t->thread, NULL, run, t) != 0)
        return why_set(why, PEN_NO_MEMORY, "no thread for the store: %m");
    t->is_running = true;
    return PEN_OK;
}

void store_thread_stop(store_thread *t)
{
    if (t == NULL) return;
    if (t->is_running) {
        /* As the last task, so that a part that is complete is written; stopped hard where memory
         * ran out. */
        if (!server_post(t->loop, quit, t)) loop_stop(t->loop);
        pthread_join(t->thread, NULL);
    }
    loop_turn(t->loop, 0);
    for (int i = 0; i < PENDING_MAX; i++) forget_pending(t, &t->pending[i]);
    store_close(t->store);
    loop_destroy(t->loop);
    free(t);
}
