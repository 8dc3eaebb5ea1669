/* tier_state.h - the inside of a tier, shared by tier.c, tier_staging.c and tier_work.c only. */
#ifndef COMMON_TIER_TIER_STATE_H
#define COMMON_TIER_TIER_STATE_H

#include "common/offload/tier_member.h"

#include <pthread.h>

/* One version of an extent: where it lies.  Under the tier's lock. */
typedef struct {
    uint64_t at;
    size_t room;   /* multiple of TIER_ALIGN */
    uint32_t refs; /* the extent, holds, and the write that fills it */
    uint32_t crc;
    bool is_zero;    /* nothing was ever written */
    bool is_pending; /* a write is on its way */
    bool is_lost;    /* another version was written over it, or its own write failed */
} tier_place;

/* One transfer.  The content is the job's until somebody takes it. */
typedef struct tier_job {
    struct tier_job *next, *prev; /* prev: NULL when it is in no queue */
    uint32_t extent;
    tier_place *place;
    buf *content;
    bool is_done;
    pen_status status;
    pen_error why;
} tier_job;

typedef struct {
    tier_job *first;
    pthread_cond_t more;
    pthread_t thread;
    bool is_started, is_working; /* is_working: at a job that is not in the queue any more */
} tier_queue;

typedef struct {
    size_t bytes;
    tier_place *place;
    tier_job *read, *write; /* NULL: none is on its way */
} tier_extent;

typedef struct tier_room_free {
    struct tier_room_free *next, *prev;
    uint64_t at;
    size_t room;
} tier_room_free;

typedef struct tier_buffer tier_buffer;

struct tier {
    const tier_ops *ops;
    void *state;
    stat_set *stats; /* NULL once it is closed; used with the lock held */
    char dir[512];   /* for sentences */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a job ended, a buffer came back */
    size_t users;           /* the owner, each buffer that is out, each hold */
    bool is_closed, is_reserved;
    pen_error trouble; /* status PEN_OK: none */
    pen_error lost;    /* why a version that was held is gone */

    tier_extent *extent;
    uint32_t n_extents;
    uint64_t end;         /* of the room that is given out */
    tier_room_free *free; /* places that nobody has any more */
    tier_queue reads, writes;

    uint64_t staging, staging_max, staging_most; /* bytes in buffers */
    tier_buffer *spare;
    uint32_t n_spare;
};

static inline size_t tier_round_up(size_t bytes)
{
    return (bytes + TIER_ALIGN - 1) & ~(size_t)(TIER_ALIGN - 1);
}

/* All of these are called with the lock held unless they say otherwise. */

/* tier_staging.c */
typedef enum { TIER_IF_ROOM, TIER_WAIT, TIER_ANYWAY } tier_haste;
buf *tier_buffer_take(tier *t, size_t bytes,
                      tier_haste haste); /* NULL: no memory, or no room and haste */
void tier_leave(tier *t); /* one user less; gives the lock up, and the tier if it was the last */
void tier_spares_free(tier *t);

/* tier_work.c */
pen_status tier_start(tier *t, pen_error *why); /* its threads; without the lock */
void tier_stop(tier *t);                        /* when all is written; without the lock */
void tier_post(tier_queue *q, tier_job *job);
/* Until the next change; false: TIER_PATIENCE_MS are over since *deadline was first passed as {0}. */
bool tier_wait(tier *t, struct timespec *deadline);
/* Reads a version into content and checks it; gives the lock up meanwhile, the caller has a reference to the place. */
pen_status tier_read_place(tier *t, uint32_t extent, const tier_place *place, buf *content,
                           pen_error *why);
void tier_count(tier *t, stat_id id, uint64_t n);
tier_place *tier_place_new(tier *t, size_t room, pen_error *why);
void tier_place_drop(tier *t, tier_place *place);

#endif
