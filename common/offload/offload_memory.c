/* offload_memory.c - a tier in memory: saves nothing; serves as the reference for other members. */
#include "common/offload/offload_member.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 1 << 20 }; /* growing must not move memory */

typedef struct {
    pthread_mutex_t lock;
    bool is_open;
    uint64_t n;
    char **page; /* [n] PAGE_BYTES each */
} memory_state;

static pen_status memory_open(void *state, const char *dir, pen_error *why)
{
    memory_state *m = state;
    (void)dir;
    if (pthread_mutex_init(&m->lock, NULL) != 0)
        return why_set(why, PEN_NO_MEMORY, "no memory for a tier");
    m->is_open = true;
    return PEN_OK;
}

static bool add_page(memory_state *m)
{
    if (!VEC_MORE(m->page, m->n)) return false;
    m->page[m->n] = calloc(1, PAGE_BYTES);
    if (m->page[m->n] == NULL) return false;
    m->n++;
    return true;
}

static pen_status memory_grow(void *state, uint64_t bytes, pen_error *why)
{
    memory_state *m = state;
    bool done       = true;
    pthread_mutex_lock(&m->lock);
    while (done && m->n * PAGE_BYTES < bytes) done = add_page(m);
    pthread_mutex_unlock(&m->lock);
    return done ? PEN_OK : why_set(why, PEN_STORE, "no memory for %" PRIu64 " bytes", bytes);
}

static void copy(memory_state *m, uint64_t at, char *to, const char *from, size_t n)
{
    pthread_mutex_lock(&m->lock);
    for (size_t done = 0, part; done < n; done += part) {
        const uint64_t place = at + done;
        char *here           = m->page[place / PAGE_BYTES] + place % PAGE_BYTES;
        part                 = PAGE_BYTES - (size_t)(place % PAGE_BYTES);
        if (part > n - done) part = n - done;
        if (to != NULL)
            memcpy(to + done, here, part);
        else
            memcpy(here, from + done, part);
    }
    pthread_mutex_unlock(&m->lock);
}

static pen_status memory_read(void *state, uint64_t at, void *to, size_t n, pen_error *why)
{
    (void)why;
    copy(state, at, to, NULL, n);
    return PEN_OK;
}

static pen_status memory_write(void *state, uint64_t at, const void *from, size_t n, pen_error *why)
{
    (void)why;
    copy(state, at, NULL, from, n);
    return PEN_OK;
}

static void memory_close(void *state)
{
    memory_state *m = state;
    for (uint64_t i = 0; i < m->n; i++) free(m->page[i]);
    free(m->page);
    if (m->is_open) pthread_mutex_destroy(&m->lock);
}

const offload_ops offload_memory = {
    .name       = "memory",
    .doc        = "Memory; saves none, for tests and comparison.",
    .state_size = sizeof(memory_state),
    .open       = memory_open,
    .grow       = memory_grow,
    .read       = memory_read,
    .write      = memory_write,
    .close      = memory_close,
};
