/* recycler.c - hands out kept buffers that fit, and takes them back when they are released. */
#include "server/shard/recycler_test.h"

#include "common/containers/list.h"
#include "common/net/transport/lend.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct item {
    buf base;
    struct item *next, *prev; /* while in the free list */
    recycler *home;
    buf *memory;
    bool lends;
} item;

struct recycler {
    pthread_mutex_t lock;
    uint64_t bytes_max, kept;
    item *free;
    size_t users; /* the owner and each buffer in use */
    bool is_closed;
};

recycler *recycler_create(uint64_t bytes_max)
{
    recycler *self = calloc(1, sizeof *self);
    if (self == NULL) return NULL;
    pthread_mutex_init(&self->lock, NULL);
    self->bytes_max = bytes_max;
    self->users     = 1;
    return self;
}

/* Call with the lock held; releases it. */
static void leave(recycler *self)
{
    const bool is_last = --self->users == 0;
    pthread_mutex_unlock(&self->lock);
    if (!is_last) return;
    pthread_mutex_destroy(&self->lock);
    free(self);
}

static void discard(item *one)
{
    buf_release(one->memory);
    free(one);
}

void recycler_destroy(recycler *self)
{
    if (self == NULL) return;
    pthread_mutex_lock(&self->lock);
    item *all       = self->free;
    self->free      = NULL;
    self->is_closed = true;
    leave(self);
    LIST_EACH(one, all) discard(one);
}

static void come_back(buf *base)
{
    item *one      = (item *)base;
    recycler *home = one->home;
    pthread_mutex_lock(&home->lock);
    const bool is_kept = !home->is_closed && home->kept + base->size <= home->bytes_max;
    if (is_kept) {
        LIST_PREPEND(home->free, one);
        home->kept += base->size;
    }
    leave(home);
    if (!is_kept) discard(one);
}

static item *find_item(recycler *self, size_t size, bool lends)
{
    LIST_EACH(one, self->free) {
        if (one->base.size != size || one->lends != lends) continue;
        LIST_REMOVE(self->free, one);
        self->kept -= size;
        return one;
    }
    return NULL;
}

static item *make_item(size_t size, bool lends)
{
    item *one = malloc(sizeof *one);
    buf *b    = one != NULL ? lends ? lend_buf_new(size) : buf_new(size) : NULL;
    if (b == NULL) {
        free(one);
        return NULL;
    }
    *one = (item){.memory = b, .lends = lends};
    return one;
}

buf *recycler_take(recycler *self, size_t size, bool lends)
{
    if (self == NULL) return lends ? lend_buf_new(size) : buf_new(size);
    pthread_mutex_lock(&self->lock);
    item *one = find_item(self, size, lends);
    self->users++;
    pthread_mutex_unlock(&self->lock);
    if (one == NULL) one = make_item(size, lends);
    if (one == NULL) {
        pthread_mutex_lock(&self->lock);
        leave(self);
        return NULL;
    }
    one->home = self;
    buf_init(&one->base, one->memory->data, size, come_back);
    return &one->base;
}

uint64_t recycler_kept(recycler *self)
{
    pthread_mutex_lock(&self->lock);
    const uint64_t kept = self->kept;
    pthread_mutex_unlock(&self->lock);
    return kept;
}
