/* offload_state.h - the inside of a tier, shared by offload.c, offload_staging.c and offload_work.c only. */
#ifndef COMMON_OFFLOAD_STATE_H
#define COMMON_OFFLOAD_STATE_H

#include "common/offload/offload_member.h"

#include <pthread.h>

/* Where one version of an extent lies.  Under the tier's lock. */
typedef struct {
    uint64_t at;
    size_t room;   /* multiple of OFFLOAD_ALIGN */
    uint32_t refs; /* by the extent, holds, and the write that fills it */
    uint32_t crc;
    bool is_zero;    /* never written */
    bool is_pending; /* a write is in progress */
    bool is_lost;    /* overwritten by another version, or its own write failed */
} offload_place;

/* One transfer.  The job owns the content until it is taken. */
typedef struct offload_job {
    struct offload_job *next, *prev; /* prev: NULL when not queued */
    uint32_t extent;
    offload_place *place;
    buf *content;
    bool is_done;
    pen_status status;
    pen_error why;
} offload_job;

typedef struct {
    offload_job *first;
    pthread_cond_t more;
    pthread_t thread;
    bool is_started, is_working; /* is_working: on a job that has left the queue */
} offload_queue;

typedef struct {
    size_t bytes;
    offload_place *place;
    offload_job *read, *write; /* NULL: none in progress */
} offload_extent;

typedef struct offload_room_free {
    struct offload_room_free *next, *prev;
    uint64_t at;
    size_t room;
} offload_room_free;

typedef struct offload_buffer offload_buffer;

struct offload {
    const offload_ops *ops;
    void *state;
    stat_set *stats; /* NULL after close; used with the lock held */
    char dir[512];   /* for error messages */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* signals a finished job or a returned buffer */
    size_t users;           /* the owner, each buffer in use, each hold */
    bool is_closed, is_reserved;
    pen_error trouble; /* status PEN_OK: none */
    pen_error lost;    /* why a held version was lost */

    offload_extent *extent;
    uint32_t n_extents;
    uint64_t end;            /* of the allocated room */
    offload_room_free *free; /* unused room */
    offload_queue reads, writes;

    uint64_t staging, staging_max, staging_most; /* bytes in buffers */
    offload_buffer *spare;
    uint32_t n_spare;
};

static inline size_t offload_round_up(size_t bytes)
{
    return (bytes + OFFLOAD_ALIGN - 1) & ~(size_t)(OFFLOAD_ALIGN - 1);
}

/* All functions below are called with the lock held unless stated otherwise. */

/* offload_staging.c */
typedef enum { OFFLOAD_IF_ROOM, OFFLOAD_WAIT, OFFLOAD_ANYWAY } offload_haste;
buf *offload_buffer_take(offload *t, size_t bytes,
                         offload_haste haste); /* NULL: no memory, or no room under this haste */
void offload_leave(offload *t); /* drops one user; unlocks, and frees the tier after the last */
void offload_spares_free(offload *t);

/* offload_work.c */
pen_status offload_start(offload *t, pen_error *why); /* starts the threads; without the lock */
void offload_stop(offload *t);                        /* after all writes; without the lock */
void offload_post(offload_queue *q, offload_job *job);
/* Waits for the next change; false: OFFLOAD_PATIENCE_MS have passed since *deadline was first passed as {0}. */
bool offload_wait(offload *t, struct timespec *deadline);
/* Reads a version into content and checks it, without the lock meanwhile; the caller holds a reference to the place. */
pen_status offload_read_place(offload *t, uint32_t extent, const offload_place *place, buf *content,
                              pen_error *why);
void offload_count(offload *t, stat_id id, uint64_t n);
offload_place *offload_place_new(offload *t, size_t room, pen_error *why);
void offload_place_drop(offload *t, offload_place *place);

#endif
