/* buf.c - reference-counted bytes. */
#include "common/containers/buf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 }; /* a cache line, and the widest vector */

typedef struct {
    buf base;
    void (*done)(void *user);
    void *user;
} wrapped;

static void free_with_bytes(buf *self)
{
    free(self);
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
    _Static_assert(sizeof(buf) <= ALIGNMENT,
                   "the head takes one line, the bytes start on the next");
    if (size > SIZE_MAX - 2 * ALIGNMENT) return NULL;
    size_t rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    buf *self      = aligned_alloc(ALIGNMENT, ALIGNMENT + rounded);
    if (self == NULL) return NULL;
    buf_init(self, (char *)self + ALIGNMENT, size, free_with_bytes);
    return self;
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
