/* buf.h - reference-counted bytes: the only thing that crosses threads.
 *
 * Every holder of a reference may read data[0..size).  Only a sole holder (buf_is_alone) may write.  The last
 * release runs `release`, in its thread.
 */
#ifndef COMMON_BUF_H
#define COMMON_BUF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct buf buf;
struct buf {
    void *data;
    size_t size;                /* bytes */
    void (*release)(buf *self); /* frees self and what data points to */
    atomic_uint refs;
};

/* A new buffer of `size` uninitialised bytes, 64-byte aligned, one reference.  NULL: no memory. */
buf *buf_new(size_t size);

/* A buffer around foreign bytes, which stay BORROWED until the last release calls done(user). */
buf *buf_wrap(void *data, size_t size, void (*done)(void *user), void *user);

/* For owners of larger structs that embed a buf as their first member. */
void buf_init(buf *self, void *data, size_t size, void (*release)(buf *self));

/* Keeps `size` bytes at `data` of a larger buffer: by reference, or, since that would hold all of it, a copy of a small
 * part; of bytes without a holder too.  *held: where they are.  NULL: no memory. */
buf *buf_hold_part(const void *data, size_t size, buf *holder, const void **held);

buf *buf_acquire(buf *self); /* returns self; NULL stays NULL */
void buf_release(buf *self); /* NULL is fine */
bool buf_is_alone(const buf *self);

#endif
