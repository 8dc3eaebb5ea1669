/* store_thread.c - the thread for slow work: allocates for a plan and restores (store_plan.c), writes snapshots
 * (store_part.c).
 *
 * This server's part is written once every shard has handed in its capture of that step.  Shards continue training
 * while their captures, which are references, are written; each chunk is released once it is copied.
 */
#include "server/process/store_thread.h"

#include "common/base/log.h"
#include "common/containers/list.h"
#include "common/system/fp_env.h"
#include "common/trace/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NICENESS = 10 }; /* training first */

/* ---- captures -------------------------------------------------------------------------------- */

/* The snapshot of this step, a free place, or the oldest, whose missing captures will never come. */
static pending *pending_of(store_thread *t, int64_t step)
{
    pending *choice = NULL;
    for (int i = 0; i < PENDING_MAX; i++) {
        pending *p = &t->pending[i];
        if (p->n > 0 && p->step == step) return p;
        if (choice == NULL || (choice->n > 0 && (p->n == 0 || p->step < choice->step))) choice = p;
    }
    store_part_forget(t, choice);
    choice->capture = calloc(t->n_expected + 1, sizeof(shard_capture *));
    choice->shard   = calloc(t->n_expected + 1, sizeof *choice->shard);
    choice->step    = step;
    choice->room    = t->n_expected;
    return choice->capture != NULL && choice->shard != NULL ? choice : NULL;
}

static bool is_expected(const store_thread *t, uint32_t number)
{
    for (uint32_t i = 0; i < t->n_expected; i++)
        if (t->expected[i] == number) return true;
    return false;
}

static bool has_capture(const pending *p, uint32_t number)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->shard[i] == number) return true;
    return p->n == p->room;
}

static void add_capture(store_thread *t, uint32_t number, shard_capture *capture)
{
    const bool is_new = capture->step > t->written && is_expected(t, number);
    pending *p        = is_new ? pending_of(t, capture->step) : NULL;
    if (p == NULL || has_capture(p, number)) {
        store_part_drop_capture(t, capture);
        return;
    }
    p->capture[p->n] = capture;
    p->shard[p->n]   = number;
    if (p->n++ == 0)
        (void)server_notify_main(t->server, SERVER_CAPTURE_BEGUN, &capture->step,
                                 sizeof capture->step);
    if (p->n < t->n_expected) return;
    t->written = p->step;
    store_part_write(t, p);
}

static handed_in *next_capture(store_thread *t)
{
    pthread_mutex_lock(&t->lock);
    handed_in *h = t->inbox;
    if (h != NULL) LIST_REMOVE(t->inbox, h);
    pthread_mutex_unlock(&t->lock);
    return h;
}

static void take_capture(void *user)
{
    store_thread *t = user;
    for (handed_in *h; (h = next_capture(t)) != NULL;) {
        add_capture(t, h->shard, h->capture);
        free(h);
    }
}

typedef struct {
    store_thread *thread;
    uint32_t n, *shard; /* OWNED */
} expected;

/* Snapshots that other shards began cannot become complete. */
static void expect(void *user)
{
    const expected *e = user;
    store_thread *t   = e->thread;
    if (t->n_expected == e->n &&
        (e->n == 0 || memcmp(t->expected, e->shard, e->n * sizeof *e->shard) == 0)) {
        free(e->shard);
        return;
    }
    for (int i = 0; i < PENDING_MAX; i++) store_part_forget(t, &t->pending[i]);
    free(t->expected);
    t->expected   = e->shard;
    t->n_expected = e->n;
}

void store_thread_expect(store_thread *t, uint32_t *numbers, uint32_t n)
{
    const expected e = {t, n, numbers};
    if (!server_post(t->loop, expect, &e, sizeof e)) free(numbers);
}

/* One snapshot may wait while another is written.  A third one replaces the waiting one: each capture may hold the
 * whole model.  Returns the captures given up; *given_up is their step, or -1. */
static handed_in *make_way(store_thread *t, int64_t step, int64_t *given_up)
{
    handed_in *victims = NULL;
    *given_up          = -1;
    if (t->writing < 0 || step <= t->writing || step <= t->waiting) return NULL;
    if (t->waiting >= 0) {
        *given_up = t->given_up = t->waiting;
        LIST_EACH(h, t->inbox) {
            if (h->capture->step > t->given_up || h->capture->step <= t->writing) continue;
            LIST_REMOVE(t->inbox, h);
            LIST_PREPEND(victims, h);
        }
    }
    t->waiting = step;
    return victims;
}

static void notify_given_up(store_thread *t, int64_t step)
{
    server_part part = {.server = t->server, .step = step};
    part.status      = why_set(&part.why, PEN_STORE,
                               "the previous one was still being written; raise --snapshot-every");
    (void)server_notify_main(t->server, SERVER_PART_WRITTEN, &part, sizeof part);
}

static bool is_among(const handed_in *list, int64_t step)
{
    while (list != NULL && list->capture->step != step) list = list->next;
    return list != NULL;
}

void store_thread_capture(store_thread *t, uint32_t number, shard_capture *capture)
{
    int64_t given_up;
    handed_in *h = malloc(sizeof *h);
    for (uint32_t k = 0; k < capture->n; k++)
        snapshot_memory_hold(t->memory, store_part_chunk_memory(&capture->chunk[k]));
    pthread_mutex_lock(&t->lock);
    const bool is_late = h == NULL || capture->step <= t->given_up;
    handed_in *victims = is_late ? NULL : make_way(t, capture->step, &given_up);
    if (!is_late) {
        *h = (handed_in){.shard = number, .capture = capture};
        LIST_APPEND(t->inbox, h);
    }
    pthread_mutex_unlock(&t->lock);
    if (is_late) {
        store_part_drop_capture(t, capture);
        free(h);
        return;
    }
    if (given_up >= 0) notify_given_up(t, given_up);
    LIST_EACH(victim, victims) {
        if (victim->capture->step != given_up && !is_among(victim_next, victim->capture->step))
            notify_given_up(t, victim->capture->step);
        store_part_drop_capture(t, victim->capture);
        free(victim);
    }
    if (!server_post(t->loop, take_capture, t, 0))
        log_warning("no memory to write the snapshot of step %" PRId64, capture->step);
}

void store_thread_copying(store_thread *t, size_t bytes)
{
    if (!snapshot_memory_take(t->memory, bytes))
        log_warning(
            "a snapshot has held memory for more than %d s: the disk of %s is slow; copies now "
            "exceed snapshot_copy_bytes_max",
            SNAPSHOT_MEMORY_PATIENCE_MS / 1000, t->server->settings.store);
}

/* ---- deleting, finding ----------------------------------------------------------------------- */
typedef struct {
    store_thread *thread;
    int32_t n_servers;
    int64_t dropped; /* -1: forget instead */
    bool opens;      /* may remove everything in the directory */
    uint32_t n;
    int64_t keep[SERVER_SNAPSHOTS_MAX];
} settled;

static void settle(void *user)
{
    const settled *f  = user;
    store_thread *t   = f->thread;
    pen_status status = PEN_OK;
    pen_error why     = {0};
    if (f->opens) status = store_part_open(t, &why);
    if (status == PEN_OK && t->writer.store != NULL)
        status = f->dropped >= 0 ? store_drop(t->writer.store, f->dropped,
                                              snapshot_id(t->plan->term, f->dropped), &why)
                                 : store_forget(t->writer.store, f->keep, f->n, &why);
    if (status == PEN_OK && t->writer.store != NULL && f->dropped < 0 && t->plan->rank == 0)
        status = store_forget_strays(t->writer.dir, f->n_servers, f->keep, f->n, &why);
    if (status != PEN_OK) log_warning("cannot remove an old snapshot: %s", why.text);
}

/* The next task makes up for a lost one. */
static void post_settled(store_thread *t, const int64_t *keep, uint32_t n, settled what)
{
    what.thread = t;
    what.n      = n;
    if (n > 0) memcpy(what.keep, keep, n * sizeof *keep);
    (void)server_post(t->loop, settle, &what, sizeof what);
}

void store_thread_forget(store_thread *t, const int64_t *keep, uint32_t n, int32_t n_servers)
{
    post_settled(t, keep, n, (settled){.n_servers = n_servers, .dropped = -1});
}

void store_thread_make_room(store_thread *t, const int64_t *keep, uint32_t n, int32_t n_servers)
{
    post_settled(t, keep, n, (settled){.n_servers = n_servers, .dropped = -1, .opens = true});
}

void store_thread_drop(store_thread *t, int64_t step)
{
    post_settled(t, NULL, 0, (settled){.dropped = step});
}

pen_status store_thread_find(const char *dir, int64_t *steps, uint32_t cap, uint32_t *n,
                             pen_error *why)
{
    *n = 0;
    if (dir[0] == '\0') return PEN_OK;
    store_reader *reader;
    pen_status status = store_reader_open(dir, &reader, why);
    if (status != PEN_OK) return status;
    status = store_reader_trouble(reader, why);
    if (status != PEN_OK) {
        store_reader_close(reader);
        return status;
    }
    int64_t all[1024];
    size_t count = store_reader_steps(reader, all, 1024);
    if (count > 1024) count = 1024;
    const size_t skip = count > cap ? count - cap : 0; /* the newest count */
    for (size_t i = skip; i < count; i++) steps[(*n)++] = all[i];
    store_reader_close(reader);
    return PEN_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */
static void *run_store_thread(void *user)
{
    store_thread *t = user;
    fp_env_set_ours();
    if (setpriority(PRIO_PROCESS, (id_t)gettid(), NICENESS) != 0)
        log_info("cannot lower the priority of the store's thread: %m");
    trace_thread("store", 0, 0);
    loop_run(t->loop);
    return NULL;
}

static void note_copied(void *user, uint64_t bytes)
{
    stat_max(&((server *)user)->stats, STAT_SNAPSHOT_COPIED, bytes);
}

static void quit(void *user)
{
    loop_stop(((store_thread *)user)->loop);
}

pen_status store_thread_start(server *s, store_thread **out, pen_error *why)
{
    store_thread *t = calloc(1, sizeof *t);
    if (t == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the store's thread");
    t->server  = s;
    t->writing = t->waiting = t->given_up = -1;
    pthread_mutex_init(&t->lock, NULL);
    t->memory = snapshot_memory_create(s->settings.snapshot_copy_bytes_max, note_copied, s);
    if (t->memory == NULL)
        why_set(why, PEN_NO_MEMORY, "no memory for the store's thread");
    else
        t->loop = loop_create(why);
    if (t->loop == NULL) {
        snapshot_memory_destroy(t->memory);
        free(t);
        return PEN_NO_MEMORY;
    }
    *out = t;
    if (pthread_create(&t->thread, NULL, run_store_thread, t) != 0)
        return why_set(why, PEN_NO_MEMORY, "no thread for the store: %m");
    t->is_running = true;
    return PEN_OK;
}

void store_thread_stop(store_thread *t)
{
    if (t == NULL) return;
    if (t->is_running) {
        /* As the last task, so that a complete part is still written; stopped hard if memory ran out. */
        if (!server_post(t->loop, quit, t, 0)) loop_stop(t->loop);
        pthread_join(t->thread, NULL);
    }
    loop_turn(t->loop, 0);
    for (handed_in *h; (h = next_capture(t)) != NULL; free(h))
        store_part_drop_capture(t, h->capture);
    for (int i = 0; i < PENDING_MAX; i++) store_part_forget(t, &t->pending[i]);
    free(t->expected);
    snapshot_memory_destroy(t->memory);
    pthread_mutex_destroy(&t->lock);
    store_close(t->writer.store);
    loop_destroy(t->loop);
    free(t);
}
