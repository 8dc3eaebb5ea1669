/* offload_staging.c - the staging memory of a tier: aligned, reused buffers, bounded in bytes. */
#include "common/offload/offload_state.h"

#include "common/containers/list.h"

#include <stdlib.h>
#include <time.h>

enum { SPARES_MAX = 8 };

struct offload_buffer {
    buf base;
    offload_buffer *next, *prev; /* while it is a spare */
    offload *home;
    void *memory;
    size_t room;
};

static void discard(offload_buffer *b)
{
    free(b->memory);
    free(b);
}

void offload_spares_free(offload *t)
{
    LIST_EACH(b, t->spare) discard(b);
    t->spare   = NULL;
    t->n_spare = 0;
}

void offload_leave(offload *t)
{
    const bool is_last = --t->users == 0;
    pthread_mutex_unlock(&t->lock);
    if (!is_last) return;
    t->ops->close(t->state);
    offload_spares_free(t);
    LIST_EACH(room, t->free) free(room);
    pthread_cond_destroy(&t->changed);
    pthread_cond_destroy(&t->reads.more);
    pthread_cond_destroy(&t->writes.more);
    pthread_mutex_destroy(&t->lock);
    free(t->state);
    free(t);
}

static void come_back(buf *base)
{
    offload_buffer *b = (offload_buffer *)base;
    offload *t        = b->home;
    pthread_mutex_lock(&t->lock);
    t->staging -= b->room;
    const bool is_kept = !t->is_closed && t->n_spare < SPARES_MAX;
    if (is_kept) {
        LIST_PREPEND(t->spare, b);
        t->n_spare++;
    }
    pthread_cond_broadcast(&t->changed);
    offload_leave(t);
    if (!is_kept) discard(b);
}

/* Returns a spare of this size; else frees any spare, so that the spares match current sizes. */
static offload_buffer *find_spare(offload *t, size_t room)
{
    LIST_EACH(b, t->spare) {
        if (b->room != room) continue;
        LIST_REMOVE(t->spare, b);
        t->n_spare--;
        return b;
    }
    if (t->n_spare == SPARES_MAX) offload_spares_free(t);
    return NULL;
}

static offload_buffer *make_buffer(size_t room)
{
    offload_buffer *b = malloc(sizeof *b);
    void *memory      = b != NULL ? aligned_alloc(OFFLOAD_ALIGN, room) : NULL;
    if (memory == NULL) {
        free(b);
        return NULL;
    }
    *b = (offload_buffer){.memory = memory, .room = room};
    return b;
}

/* Drops contents read ahead to make room for a current request. */
static buf *evict(offload *t)
{
    for (uint32_t i = 0; i < t->n_extents; i++) {
        offload_job *job = t->extent[i].read;
        if (job == NULL || !job->is_done) continue;
        buf *content      = job->content;
        t->extent[i].read = NULL;
        free(job);
        return content;
    }
    return NULL;
}

/* Whether waiting can free room: a transfer is in progress. */
static bool is_busy(const offload *t)
{
    return t->reads.first != NULL || t->reads.is_working || t->writes.first != NULL ||
           t->writes.is_working;
}

static bool has_room(const offload *t, size_t room)
{
    return t->staging == 0 || t->staging + room <= t->staging_max;
}

static void make_room(offload *t, size_t room)
{
    struct timespec deadline = {0};
    while (!has_room(t, room)) {
        buf *unwanted = evict(t);
        if (unwanted != NULL) {
            pthread_mutex_unlock(&t->lock);
            buf_release(unwanted);
            pthread_mutex_lock(&t->lock);
        } else if (!is_busy(t) || !offload_wait(t, &deadline)) {
            return; /* nothing will come back: exceed the limit by one buffer */
        }
    }
}

buf *offload_buffer_take(offload *t, size_t bytes, offload_haste haste)
{
    const size_t room = offload_round_up(bytes);
    if (haste == OFFLOAD_WAIT) make_room(t, room);
    if (haste == OFFLOAD_IF_ROOM && !has_room(t, room)) return NULL;
    offload_buffer *b = find_spare(t, room);
    if (b == NULL) b = make_buffer(room);
    if (b == NULL) return NULL;
    b->home = t;
    t->users++;
    t->staging += room;
    if (t->staging > t->staging_most) t->staging_most = t->staging;
    buf_init(&b->base, b->memory, bytes, come_back);
    return &b->base;
}
