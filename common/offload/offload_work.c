/* offload_work.c - the threads of a tier, their transfers, and the places of extents. */
#include "common/offload/offload_state.h"

#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/containers/list.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- places ---------------------------------------------------------------------------------- */
static bool find_free(offload *t, size_t room, uint64_t *at)
{
    LIST_EACH(found, t->free) {
        if (found->room != room) continue;
        *at = found->at;
        LIST_REMOVE(t->free, found);
        free(found);
        return true;
    }
    return false;
}

offload_place *offload_place_new(offload *t, size_t room, pen_error *why)
{
    offload_place *place = calloc(1, sizeof *place);
    if (place == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for a tier's tables");
        return NULL;
    }
    *place = (offload_place){.room = room, .refs = 1, .is_zero = true};
    if (find_free(t, room, &place->at)) return place;
    if (t->is_reserved && t->ops->grow(t->state, t->end + room, why) != PEN_OK) {
        free(place);
        return NULL;
    }
    place->at = t->end;
    t->end += room;
    if (t->is_reserved) offload_count(t, STAT_TIER_BYTES, room);
    return place;
}

void offload_place_drop(offload *t, offload_place *place)
{
    if (--place->refs > 0) return;
    offload_room_free *room = place->is_lost ? NULL : malloc(sizeof *room);
    if (room != NULL) { /* the overwritten version loses its place */
        *room = (offload_room_free){.at = place->at, .room = place->room};
        LIST_PREPEND(t->free, room);
    }
    free(place);
}

/* ---- queues ---------------------------------------------------------------------------------- */
void offload_post(offload_queue *q, offload_job *job)
{
    LIST_APPEND(q->first, job);
    pthread_cond_signal(&q->more);
}

bool offload_wait(offload *t, struct timespec *deadline)
{
    if (deadline->tv_sec == 0) {
        clock_gettime(CLOCK_MONOTONIC, deadline);
        deadline->tv_sec += OFFLOAD_PATIENCE_MS / 1000;
    }
    return pthread_cond_timedwait(&t->changed, &t->lock, deadline) != ETIMEDOUT;
}

/* ---- the threads ----------------------------------------------------------------------------- */
void offload_count(offload *t, stat_id id, uint64_t n)
{
    if (t->stats != NULL) stat_add(t->stats, id, n);
}

pen_status offload_read_place(offload *t, uint32_t extent, const offload_place *place, buf *content,
                              pen_error *why)
{
    const uint32_t wanted = place->crc;
    pthread_mutex_unlock(&t->lock);
    pen_status status  = t->ops->read(t->state, place->at, content->data, place->room, why);
    const uint32_t crc = status == PEN_OK ? crc32c(0, content->data, content->size) : 0;
    pthread_mutex_lock(&t->lock);
    if (status != PEN_OK) return status;
    offload_count(t, STAT_TIER_READ_BYTES, place->room);
    if (crc == wanted) return PEN_OK;
    return why_set(why, PEN_CORRUPT,
                   "optimizer state read from %.300s differs from what was written (part %u): that "
                   "disk or "
                   "this machine's memory is faulty; continue from the newest snapshot (--resume), "
                   "with another "
                   "offload_path",
                   t->dir, extent);
}

static void do_read(offload *t, offload_job *job)
{
    job->status  = offload_read_place(t, job->extent, job->place, job->content, &job->why);
    job->is_done = true;
    offload_place_drop(t, job->place);
}

static void do_write(offload *t, offload_job *job)
{
    offload_place *place = job->place;
    buf *const content   = job->content;
    pen_error why        = {0};
    pthread_mutex_unlock(&t->lock);
    /* The medium holds whole pages. */
    memset((char *)content->data + content->size, 0,
           offload_round_up(content->size) - content->size);
    place->crc              = crc32c(0, content->data, content->size);
    const pen_status status = t->ops->write(t->state, place->at, content->data, place->room, &why);
    pthread_mutex_lock(&t->lock);
    if (status == PEN_OK)
        offload_count(t, STAT_TIER_WRITE_BYTES, place->room);
    else {
        job->place->is_lost = true;
        t->lost             = why;
        if (t->trouble.status == PEN_OK) t->trouble = why;
    }
    place->is_pending = false;
    offload_place_drop(t, place);
    t->extent[job->extent].write = NULL;
    free(job);
    pthread_mutex_unlock(&t->lock);
    buf_release(content);
    pthread_mutex_lock(&t->lock);
}

/* Runs jobs until the tier is closed and the queue is empty. */
static void run_queue(offload *t, offload_queue *q, void (*work)(offload *t, offload_job *job))
{
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (q->first == NULL && !t->is_closed) pthread_cond_wait(&q->more, &t->lock);
        offload_job *job = q->first;
        if (job == NULL) break;
        LIST_REMOVE(q->first, job);
        q->is_working = true;
        work(t, job);
        q->is_working = false;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
}

static void *run_reads(void *user)
{
    offload *t = user;
    run_queue(t, &t->reads, do_read);
    return NULL;
}

static void *run_writes(void *user)
{
    offload *t = user;
    run_queue(t, &t->writes, do_write);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */
static bool start(offload *t, offload_queue *q, void *(*fn)(void *user))
{
    q->is_started = pthread_create(&q->thread, NULL, fn, t) == 0;
    return q->is_started;
}

pen_status offload_start(offload *t, pen_error *why)
{
    if (start(t, &t->reads, run_reads) && start(t, &t->writes, run_writes)) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "no thread to move optimizer state: %m");
}

void offload_stop(offload *t)
{
    pthread_mutex_lock(&t->lock);
    t->is_closed = true;
    pthread_cond_broadcast(&t->reads.more);
    pthread_cond_broadcast(&t->writes.more);
    pthread_mutex_unlock(&t->lock);
    if (t->reads.is_started) pthread_join(t->reads.thread, NULL);
    if (t->writes.is_started) pthread_join(t->writes.thread, NULL);
}
