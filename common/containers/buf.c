/* buf.c - reference-counted bytes.
 *
 * Large buffers are kept when they are freed, the newest first, and taken again.  malloc() would return their pages to the
 * kernel, and each body of a message would wait for new ones: at 512 KiB that took as long as the socket itself.
 */
#include "common/containers/buf.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNMENT  = 64,       /* a cache line, and the widest vector */
    KEPT_FROM  = 64 << 10, /* bytes of a buffer that is kept */
    KEPT_MAX   = 1 << 20,  /* more than a piece of a collective */
    KEPT_BYTES = 8 << 20,  /* of all kept */
    KEPT_BUFS  = 32
};

typedef struct own_bytes {
    buf base;
    size_t room; /* bytes behind the head, at least base.size */
    struct own_bytes *next;
} own_bytes;

static struct {
    pthread_mutex_t lock;
    own_bytes *newest;
    size_t bytes, n;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct {
    buf base;
    void (*done)(void *user);
    void *user;
} wrapped;

/* Sanitizers see each buffer end. */
static bool is_kept_size(size_t room)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)room;
    return false;
#else
    return room >= KEPT_FROM && room <= KEPT_MAX;
#endif
}

/* Nobody waits for the lock: a forked child may find it taken for good. */
static own_bytes *take_kept(size_t room)
{
    if (pthread_mutex_trylock(&kept.lock) != 0) return NULL;
    own_bytes **at = &kept.newest;
    while (*at != NULL && ((*at)->room < room || (*at)->room / 2 > room)) at = &(*at)->next;
    own_bytes *found = *at;
    if (found != NULL) {
        *at = found->next;
        kept.bytes -= found->room;
        kept.n--;
    }
    pthread_mutex_unlock(&kept.lock);
    return found;
}

static void free_with_bytes(buf *self)
{
    own_bytes *o = (own_bytes *)self, *oldest = o;
    if (is_kept_size(o->room) && pthread_mutex_trylock(&kept.lock) == 0) {
        o->next     = kept.newest;
        kept.newest = o;
        kept.bytes += o->room;
        oldest = NULL;
        if (++kept.n > KEPT_BUFS || kept.bytes > KEPT_BYTES) {
            own_bytes **at = &kept.newest;
            while ((*at)->next != NULL) at = &(*at)->next;
            oldest = *at;
            *at    = NULL;
            kept.bytes -= oldest->room;
            kept.n--;
        }
        pthread_mutex_unlock(&kept.lock);
    }
    free(oldest);
}

static void give_back(buf *self)
{
    wrapped *w = (wrapped *)self;
    if (w->done != NULL) w->done(w->user);
    free(w);
}

void buf_init(buf *self, void *data, size_t size, void (*release)(buf *self))
{
    self->data    = data;
    self->size    = size;
    self->release = release;
    atomic_init(&self->refs, 1);
}

buf *buf_new(size_t size)
{
    _Static_assert(sizeof(own_bytes) <= ALIGNMENT,
                   "the head takes one line, the bytes start on the next");
    if (size > SIZE_MAX - 2 * ALIGNMENT) return NULL;
    size_t rounded  = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    own_bytes *self = is_kept_size(rounded) ? take_kept(rounded) : NULL;
    if (self == NULL) {
        self = aligned_alloc(ALIGNMENT, ALIGNMENT + rounded);
        if (self == NULL) return NULL;
        self->room = rounded;
    }
    buf_init(&self->base, (char *)self + ALIGNMENT, size, free_with_bytes);
    return &self->base;
}

buf *buf_wrap(void *data, size_t size, void (*done)(void *user), void *user)
{
    wrapped *w = malloc(sizeof *w);
    if (w == NULL) return NULL;
    buf_init(&w->base, data, size, give_back);
    w->done = done;
    w->user = user;
    return &w->base;
}

buf *buf_acquire(buf *self)
{
    if (self != NULL) atomic_fetch_add_explicit(&self->refs, 1, memory_order_relaxed);
    return self;
}

void buf_release(buf *self)
{
    if (self == NULL) return;
    /* Release: our reads and writes come before the free.  Acquire: the others' do too. */
    if (atomic_fetch_sub_explicit(&self->refs, 1, memory_order_acq_rel) == 1) self->release(self);
}

bool buf_is_alone(const buf *self)
{
    return atomic_load_explicit(&self->refs, memory_order_acquire) == 1;
}

buf *buf_hold_part(const void *data, size_t size, buf *holder, const void **held)
{
    *held = data;
    if (holder != NULL && size >= holder->size / 2) return buf_acquire(holder);
    buf *copy = buf_new(size);
    if (copy == NULL) return NULL;
    memcpy(copy->data, data, size);
    *held = copy->data;
    return copy;
}
