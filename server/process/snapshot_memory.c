/* snapshot_memory.c - counts memory held by a capture, and copies made because of it.
 *
 * If a shard drops the old buffer just as the store thread releases it, the chunk counts as copied for too long.
 * Copies never exceed held memory, so the error ends with the snapshot.
 */
#include "server/process/snapshot_memory_test.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct snapshot_memory {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    uint64_t bytes_max, held, copied, most;
    bool is_open; /* a wait timed out: no more waits until the holds end */
    void (*most_at)(void *user, uint64_t bytes);
    void *user;
};

snapshot_memory *snapshot_memory_create(uint64_t bytes_max,
                                        void (*most_at)(void *user, uint64_t bytes), void *user)
{
    pthread_condattr_t attr;
    snapshot_memory *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->freed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&m->lock, NULL);
    m->bytes_max = bytes_max;
    m->most_at   = most_at;
    m->user      = user;
    return m;
}

void snapshot_memory_destroy(snapshot_memory *m)
{
    if (m == NULL) return;
    pthread_cond_destroy(&m->freed);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void snapshot_memory_hold(snapshot_memory *m, uint64_t bytes)
{
    pthread_mutex_lock(&m->lock);
    m->held += bytes;
    pthread_mutex_unlock(&m->lock);
}

void snapshot_memory_release(snapshot_memory *m, uint64_t bytes, bool was_copied)
{
    pthread_mutex_lock(&m->lock);
    m->held -= bytes < m->held ? bytes : m->held;
    if (was_copied) m->copied -= bytes < m->copied ? bytes : m->copied;
    if (m->copied > m->held) m->copied = m->held;
    if (m->held == 0) m->is_open = false;
    pthread_cond_broadcast(&m->freed);
    pthread_mutex_unlock(&m->lock);
}

bool snapshot_memory_take(snapshot_memory *m, uint64_t bytes)
{
    bool in_time = true;
    pthread_mutex_lock(&m->lock);
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += SNAPSHOT_MEMORY_PATIENCE_MS / 1000;
    /* One copy is always allowed: a chunk may exceed the bound. */
    while (in_time && m->held > 0 && !m->is_open && m->copied > 0 &&
           m->copied + bytes > m->bytes_max)
        in_time = pthread_cond_timedwait(&m->freed, &m->lock, &end) != ETIMEDOUT;
    if (!in_time) m->is_open = true;
    if (m->held > 0) {
        m->copied += bytes;
        if (m->copied > m->held) m->copied = m->held;
        if (m->copied > m->most) {
            m->most = m->copied;
            if (m->most_at != NULL) m->most_at(m->user, m->most);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return in_time;
}

uint64_t snapshot_memory_copied(snapshot_memory *m)
{
    pthread_mutex_lock(&m->lock);
    const uint64_t copied = m->copied;
    pthread_mutex_unlock(&m->lock);
    return copied;
}
