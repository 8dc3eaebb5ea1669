/* offload.c - extents: places, transfers, holds. */
#include "common/offload/offload_state.h"

#include "common/base/why.h"
#include "common/containers/list.h"
#include "common/containers/arrays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const offload_ops *const offload_all[] = {&offload_file, &offload_memory, NULL};

const offload_ops *offload_find(const char *name)
{
    for (int i = 0; offload_all[i] != NULL; i++)
        if (strcmp(offload_all[i]->name, name) == 0) return offload_all[i];
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */
static void init_locks(offload *t)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, &monotonic);
    pthread_cond_init(&t->reads.more, NULL);
    pthread_cond_init(&t->writes.more, NULL);
    pthread_condattr_destroy(&monotonic);
}

pen_status offload_open(const offload_options *o, offload **out, pen_error *why)
{
    offload *t  = calloc(1, sizeof *t);
    void *state = t != NULL ? calloc(1, o->ops->state_size) : NULL;
    if (state == NULL) {
        free(t);
        return why_set(why, PEN_NO_MEMORY, "no memory for a tier");
    }
    *t = (offload){.ops         = o->ops,
                   .state       = state,
                   .stats       = o->stats,
                   .staging_max = o->staging_bytes_max,
                   .users       = 1};
    snprintf(t->dir, sizeof t->dir, "%s", o->dir != NULL ? o->dir : "memory");
    init_locks(t);
    pen_status status = o->ops->open(state, o->dir, why);
    if (status == PEN_OK) status = offload_start(t, why);
    if (status == PEN_OK)
        *out = t;
    else
        offload_close(t);
    return status;
}

/* Drops contents that were read ahead and not used. */
static void drop_reads(offload *t)
{
    for (uint32_t i = 0; i < t->n_extents; i++) {
        offload_job *job = t->extent[i].read;
        if (job == NULL) continue;
        t->extent[i].read = NULL;
        buf_release(job->content);
        free(job);
    }
}

void offload_close(offload *t)
{
    if (t == NULL) return;
    offload_stop(t);
    drop_reads(t);
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->n_extents; i++) offload_place_drop(t, t->extent[i].place);
    free(t->extent);
    t->extent    = NULL;
    t->n_extents = 0;
    offload_count(t, STAT_TIER_BYTES, t->is_reserved ? -t->end : 0);
    t->stats = NULL;
    offload_spares_free(t);
    offload_leave(t);
}

uint32_t offload_add(offload *t, size_t bytes)
{
    if (!VEC_MORE(t->extent, t->n_extents)) return OFFLOAD_NO_EXTENT;
    offload_place *place = offload_place_new(t, offload_round_up(bytes), NULL);
    if (place == NULL) return OFFLOAD_NO_EXTENT;
    t->extent[t->n_extents] = (offload_extent){.bytes = bytes, .place = place};
    return t->n_extents++;
}

pen_status offload_reserve(offload *t, pen_error *why)
{
    const pen_status status = t->ops->grow(t->state, t->end, why);
    if (status != PEN_OK) return status;
    t->is_reserved = true;
    offload_count(t, STAT_TIER_BYTES, t->end);
    return PEN_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */
static pen_status no_memory(size_t bytes, pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY,
                   "no memory for %zu bytes of optimizer state; give the job "
                   "more servers or "
                   "memory, or make sub_group smaller",
                   bytes);
}

static pen_status too_slow(const offload *t, pen_error *why)
{
    return why_set(why, PEN_TIMED_OUT,
                   "the disk of %.300s has not answered for %d s; check it, then continue from "
                   "the newest snapshot "
                   "(--resume)",
                   t->dir, OFFLOAD_PATIENCE_MS / 1000);
}

void offload_prefetch(offload *t, uint32_t extent)
{
    pthread_mutex_lock(&t->lock);
    offload_extent *e = &t->extent[extent];
    const bool is_idle =
        e->read == NULL && e->write == NULL && !e->place->is_zero && t->trouble.status == PEN_OK;
    offload_job *job = is_idle ? calloc(1, sizeof *job) : NULL;
    buf *content     = job != NULL ? offload_buffer_take(t, e->bytes, OFFLOAD_IF_ROOM) : NULL;
    if (content == NULL) {
        free(job);
    } else {
        *job    = (offload_job){.extent = extent, .place = e->place, .content = content};
        e->read = job;
        e->place->refs++;
        offload_post(&t->reads, job);
    }
    pthread_mutex_unlock(&t->lock);
}

/* Takes the content that was read ahead. */
static pen_status take_read(offload *t, offload_extent *e, buf **content, pen_error *why)
{
    struct timespec deadline = {0};
    offload_job *job         = e->read;
    while (!job->is_done)
        if (!offload_wait(t, &deadline)) return too_slow(t, why);
    e->read                 = NULL;
    *content                = job->content;
    const pen_status status = job->status;
    if (status != PEN_OK && why != NULL) *why = job->why;
    free(job);
    return status;
}

/* Takes a stored extent back before its write begins, if it is not held. */
static buf *take_back(offload *t, offload_extent *e)
{
    offload_job *job     = e->write;
    const bool is_queued = job->prev != NULL;
    if (job->place->refs > 2 || !buf_is_alone(job->content) || !is_queued) return NULL;
    buf *content = job->content;
    LIST_REMOVE(t->writes.first, job);
    e->write             = NULL;
    e->place->is_pending = false;
    offload_place_drop(t, job->place);
    free(job);
    return content;
}

static pen_status wait_for_write(offload *t, const offload_extent *e, pen_error *why)
{
    struct timespec deadline = {0};
    while (e->write != NULL)
        if (!offload_wait(t, &deadline)) return too_slow(t, why);
    if (t->trouble.status != PEN_OK && why != NULL) *why = t->trouble;
    return t->trouble.status;
}

static pen_status read_now(offload *t, uint32_t extent, buf **content, pen_error *why)
{
    offload_extent *e = &t->extent[extent];
    *content          = offload_buffer_take(t, e->bytes, OFFLOAD_WAIT);
    if (*content == NULL) return no_memory(e->bytes, why);
    if (!e->place->is_zero) return offload_read_place(t, extent, e->place, *content, why);
    memset((*content)->data, 0, e->bytes);
    return PEN_OK;
}

static pen_status come_in(offload *t, uint32_t extent, bool only_looks, buf **content,
                          pen_error *why)
{
    offload_extent *e = &t->extent[extent];
    pen_status status = t->trouble.status;
    if (status != PEN_OK) {
        if (why != NULL) *why = t->trouble;
        return status;
    }
    if (e->read != NULL) return take_read(t, e, content, why);
    if (e->write != NULL && only_looks) {
        *content = buf_acquire(e->write->content);
        return PEN_OK;
    }
    if (e->write != NULL && (*content = take_back(t, e)) != NULL) return PEN_OK;
    if (e->write != NULL) status = wait_for_write(t, e, why);
    return status == PEN_OK ? read_now(t, extent, content, why) : status;
}

static pen_status enter(offload *t, uint32_t extent, bool only_looks, buf **out, pen_error *why)
{
    buf *content = NULL;
    pthread_mutex_lock(&t->lock);
    const pen_status status = come_in(t, extent, only_looks, &content, why);
    pthread_mutex_unlock(&t->lock);
    if (status == PEN_OK)
        *out = content;
    else
        buf_release(content);
    return status;
}

pen_status offload_load(offload *t, uint32_t extent, buf **content, pen_error *why)
{
    return enter(t, extent, false, content, why);
}

pen_status offload_look(offload *t, uint32_t extent, buf **content, pen_error *why)
{
    return enter(t, extent, true, content, why);
}

pen_status offload_blank(offload *t, uint32_t extent, buf **content, pen_error *why)
{
    pthread_mutex_lock(&t->lock);
    buf *taken = offload_buffer_take(t, t->extent[extent].bytes, OFFLOAD_WAIT);
    pthread_mutex_unlock(&t->lock);
    if (taken == NULL) return no_memory(t->extent[extent].bytes, why);
    *content = taken;
    return PEN_OK;
}

/* ---- storing --------------------------------------------------------------------------------- */
/* Overwrites the held version: there is no room for both. */
static offload_place *take_over(offload *t, offload_place *held, const pen_error *why)
{
    offload_place *place = malloc(sizeof *place);
    if (place == NULL) return NULL;
    *place        = (offload_place){.at = held->at, .room = held->room, .refs = 1};
    held->is_lost = true;
    t->lost       = *why;
    return place;
}

/* Chooses the place of an extent's next version. */
static pen_status move_on(offload *t, offload_extent *e, pen_error *why)
{
    if (e->place->refs == 1) return PEN_OK;
    pen_error no_room  = {0};
    offload_place *old = e->place, *next = offload_place_new(t, old->room, &no_room);
    if (next == NULL && no_room.status == PEN_STORE) next = take_over(t, old, &no_room);
    if (next == NULL) return no_memory(e->bytes, why);
    e->place = next;
    offload_place_drop(t, old);
    return PEN_OK;
}

static pen_status go_out(offload *t, uint32_t extent, offload_job *job, pen_error *why)
{
    offload_extent *e = &t->extent[extent];
    pen_status status = wait_for_write(t, e, why);
    if (status == PEN_OK) status = move_on(t, e, why);
    if (status != PEN_OK) return status;
    job->place           = e->place;
    e->place->is_pending = true;
    e->place->is_zero    = false;
    e->place->refs++;
    e->write = job;
    offload_post(&t->writes, job);
    return PEN_OK;
}

pen_status offload_store(offload *t, uint32_t extent, buf *content, pen_error *why)
{
    offload_job *job = malloc(sizeof *job);
    if (job == NULL) {
        buf_release(content);
        return no_memory(sizeof *job, why);
    }
    *job = (offload_job){.extent = extent, .content = content};
    pthread_mutex_lock(&t->lock);
    offload_job *stale = t->extent[extent].read;
    buf *unread        = NULL;
    if (stale != NULL && take_read(t, &t->extent[extent], &unread, NULL) == PEN_TIMED_OUT)
        unread = NULL;
    const pen_status status = go_out(t, extent, job, why);
    pthread_mutex_unlock(&t->lock);
    buf_release(unread);
    if (status == PEN_OK) return PEN_OK;
    free(job);
    buf_release(content);
    return status;
}

/* ---- held versions --------------------------------------------------------------------------- */
struct offload_hold {
    offload *home;
    offload_place *place;
    uint32_t extent;
    size_t bytes;
};

offload_hold *offload_hold_take(offload *t, uint32_t extent)
{
    offload_hold *held = malloc(sizeof *held);
    if (held == NULL) return NULL;
    pthread_mutex_lock(&t->lock);
    *held = (offload_hold){.home   = t,
                           .place  = t->extent[extent].place,
                           .extent = extent,
                           .bytes  = t->extent[extent].bytes};
    held->place->refs++;
    t->users++;
    pthread_mutex_unlock(&t->lock);
    return held;
}

static pen_status is_gone(const offload *t, pen_error *why)
{
    return why_set(why, PEN_STORE, "the held version of the optimizer state is lost: %s",
                   t->lost.text);
}

static pen_status read_held(offload *t, const offload_hold *held, buf *content, pen_error *why)
{
    struct timespec deadline = {0};
    while (held->place->is_pending)
        if (!offload_wait(t, &deadline)) return too_slow(t, why);
    if (held->place->is_lost) return is_gone(t, why);
    if (held->place->is_zero) {
        memset(content->data, 0, held->bytes);
        return PEN_OK;
    }
    const pen_status status = offload_read_place(t, held->extent, held->place, content, why);
    return held->place->is_lost ? is_gone(t, why) : status; /* perhaps overwritten meanwhile */
}

pen_status offload_hold_read(offload_hold *held, buf **out, pen_error *why)
{
    offload *t = held->home;
    pthread_mutex_lock(&t->lock);
    buf *content = offload_buffer_take(t, held->bytes, OFFLOAD_ANYWAY);
    pen_status status =
        content != NULL ? read_held(t, held, content, why) : no_memory(held->bytes, why);
    pthread_mutex_unlock(&t->lock);
    if (status == PEN_OK)
        *out = content;
    else
        buf_release(content);
    return status;
}

void offload_hold_release(offload_hold *held)
{
    if (held == NULL) return;
    offload *t = held->home;
    pthread_mutex_lock(&t->lock);
    offload_place_drop(t, held->place);
    offload_leave(t);
    free(held);
}
