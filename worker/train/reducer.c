/* reducer.c - lays out the buckets and starts their sums. */
#include "worker/train/reducer.h"

#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_ELEMENTS = 16 }; /* each gradient begins on a cache line */

typedef struct buffer { /* used by one bucket at a time */
    struct buffer *next;
    float *in, *out;
    size_t bytes;
    device_event *freed; /* on a device: the sum before has read `in` */
} buffer;

typedef struct {
    reducer *owner;
    buffer *buffer; /* NULL: none now, or its memory is part of reducer.in and out */
    float *in, *out;
    size_t start, elements;
    uint32_t first, n; /* gradients: laid[first .. first + n) */
    uint32_t left;     /* how many of them are not ready */
    bool is_summed;    /* under the lock */
    size_t *counts;    /* [size] elements of each member's part; NULL: no owners */
    /* On a device, of the program's streams that write gradients of it: the stream and its newest event. */
    device_stream *writer;
    device_event **written;
    uint32_t n_writers, n_written; /* in this step; events there are */
    char label[COLL_LABEL_BYTES];
} bucket;

struct reducer {
    reducer_setup setup;
    memory_space space;
    device_event *freed;               /* on a device: all sums have read `in` */
    float *in, *out;                   /* without buffers */
    size_t elements;                   /* of each */
    size_t largest, largest_own;       /* elements of a bucket, and of this member's part of one */
    void *arrays;                      /* one block for all arrays below */
    size_t *start;                     /* [n] of each gradient, in `in` */
    size_t *sum_start;                 /* [n] of its sum, in `out` */
    size_t *counts;                    /* [n * size]; NULL: no owners */
    uint32_t *laid;                    /* [n] gradients in the order of the buckets */
    uint32_t *where;                   /* [n] bucket of each gradient */
    uint32_t *order;                   /* [n] gradients in the order they became ready */
    uint64_t *gradient;                /* [n] elements */
    bucket *bucket;                    /* [n] at most */
    uint32_t n_buckets, n_ready, next; /* next: how many sums have started */
    uint32_t n_first, next_first;      /* reducer_set_first(): of this step, of the next */

    pthread_mutex_t lock; /* of all below, written by the thread that ends a call */
    pthread_cond_t ended;
    uint32_t in_progress, n_made; /* calls; buffers */
    atomic_ullong n_ended;        /* calls; changed under the lock */
    buffer *free;
    pen_error failure; /* the first one */
};

/* ---- buffers --------------------------------------------------------------------------------- */
static void count_bytes(const reducer *r, int64_t bytes)
{
    if (r->setup.stats != NULL) stat_hold(r->setup.stats, STAT_GRAD_BYTES, bytes);
}

static void free_buffer(reducer *r, buffer *x)
{
    count_bytes(r, -(int64_t)x->bytes);
    space_free(&r->space, x->in, true);
    space_free(&r->space, x->out, true);
    space_event_free(&r->space, x->freed);
    free(x);
}

static buffer *make_buffer(reducer *r, pen_error *why)
{
    buffer *x = calloc(1, sizeof *x);
    if (x == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for a bucket of gradients");
        return NULL;
    }
    x->bytes = (r->largest + r->largest_own) * sizeof *x->in;
    count_bytes(r, (int64_t)x->bytes);
    x->in = space_alloc(&r->space, r->largest * sizeof *x->in, true, why);
    if (x->in != NULL) x->out = space_alloc(&r->space, r->largest_own * sizeof *x->out, true, why);
    if (x->out != NULL && space_event(&r->space, &x->freed, why) == PEN_OK) return x;
    free_buffer(r, x);
    return NULL;
}

static void keep_failure(reducer *r, pen_status status, const pen_error *why)
{
    if (status == PEN_OK || r->failure.status != PEN_OK) return;
    r->failure        = why != NULL ? *why : (pen_error){.rank = -1, .step = -1};
    r->failure.status = status;
}

/* Call with the lock.  On a device all at once: how far its host runs ahead decides how many are in use, and to allocate
 * waits for the device. */
static buffer *make_buffers(reducer *r, pen_error *why)
{
    buffer *first = make_buffer(r, why);
    r->n_made += first != NULL;
    const uint32_t most = r->n_buckets < r->setup.n_buffers ? r->n_buckets : r->setup.n_buffers;
    while (first != NULL && space_is_device(&r->space) && r->n_made < most) {
        buffer *x = make_buffer(r, why);
        if (x == NULL) break; /* as few as there is memory for */
        x->next = r->free;
        r->free = x;
        r->n_made++;
    }
    return first;
}

static void take_buffer(reducer *r, bucket *b)
{
    pen_error why;
    pthread_mutex_lock(&r->lock);
    while (r->free == NULL && r->n_made >= r->setup.n_buffers && r->in_progress > 0)
        r->setup.await(r->setup.user, &r->n_ended, &r->lock, &r->ended);
    buffer *x = r->free;
    if (x != NULL) {
        r->free = x->next;
    } else {
        x = make_buffers(r, &why);
        if (x == NULL) keep_failure(r, why.status, &why);
    }
    pthread_mutex_unlock(&r->lock);
    b->buffer = x;
    b->in     = x != NULL ? x->in : NULL;
    b->out    = x != NULL ? x->out : NULL;
}

/* Call with the lock. */
static void return_buffer(reducer *r, bucket *b)
{
    pen_error why;
    buffer *x = b->buffer;
    if (x == NULL) return;
    if (space_record(&r->space, x->freed, &why) != PEN_OK) keep_failure(r, why.status, &why);
    b->buffer = NULL;
    b->in = b->out = NULL;
    if (r->n_made > r->setup.n_buffers) {
        r->n_made--;
        free_buffer(r, x);
        return;
    }
    x->next = r->free;
    r->free = x;
}

/* Free buffers may be too small for the next layout. */
static void free_buffers(reducer *r)
{
    for (uint32_t i = 0; i < r->n_buckets; i++)
        if (r->bucket[i].buffer != NULL) return_buffer(r, &r->bucket[i]);
    while (r->free != NULL) {
        buffer *x = r->free;
        r->free   = x->next;
        free_buffer(r, x);
    }
    r->n_made = 0;
}

/* ---- layout ---------------------------------------------------------------------------------- */
static size_t room_of(uint64_t elements)
{
    return (elements + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

static bool is_full(const reducer *r, const bucket *b, size_t more)
{
    const uint64_t bound = r->n_buckets == 1 ? r->setup.first_bytes : r->setup.bucket_bytes;
    return (b->elements + more) * sizeof(float) > bound;
}

static void name_bucket(const reducer *r, bucket *b)
{
    const char *first = r->setup.name[r->laid[b->first]];
    if (b->n == 1)
        snprintf(b->label, sizeof b->label, "%.60s", first);
    else
        snprintf(b->label, sizeof b->label, "%.40s and %u more", first, b->n - 1);
}

/* The members' parts follow each other; a sum is at its offset in the owner's part. */
static void lay_by_owner(reducer *r, bucket *b)
{
    size_t at = b->start;
    for (int member = 0; member < r->setup.size; member++) {
        const size_t part = at;
        for (uint32_t i = b->first; i < b->first + b->n; i++) {
            const uint32_t g = r->laid[i];
            if (r->setup.owner[g] != member) continue;
            r->start[g]     = at;
            r->sum_start[g] = b->start + (at - part);
            at += room_of(r->gradient[g]);
        }
        b->counts[member] = at - part;
    }
}

static bucket *new_bucket(reducer *r, size_t start, uint32_t first)
{
    bucket *b = &r->bucket[r->n_buckets];
    *b        = (bucket){.owner     = r,
                         .start     = start,
                         .first     = first,
                         .writer    = b->writer,
                         .written   = b->written,
                         .n_written = b->n_written};
    if (r->counts != NULL) b->counts = r->counts + (size_t)r->n_buckets * (size_t)r->setup.size;
    r->n_buckets++;
    return b;
}

static void give_memory(reducer *r, bucket *b)
{
    const size_t own = b->counts != NULL ? b->counts[r->setup.rank] : b->elements;
    if (b->elements > r->largest) r->largest = b->elements;
    if (own > r->largest_own) r->largest_own = own;
    if (r->setup.n_buffers > 0) return;
    b->in  = r->in + b->start;
    b->out = r->out + b->start;
}

/* Also between gradients. */
static void clear(reducer *r)
{
    pen_error why;
    if (r->in == NULL) return;
    const pen_status status =
        r->space.ops->zero(r->in, r->elements * sizeof *r->in, r->space.stream, &why);
    keep_failure(r, status, &why);
}

static void lay_out(reducer *r, const uint32_t *order)
{
    bucket *b = NULL;
    size_t at = 0;
    free_buffers(r);
    r->n_buckets = 0;
    r->largest = r->largest_own = 0;
    for (uint32_t i = 0; i < r->setup.n; i++) {
        const uint32_t g  = order[i];
        const size_t more = room_of(r->gradient[g]);
        if (b == NULL || is_full(r, b, more)) b = new_bucket(r, at, i);
        r->laid[i]  = g;
        r->start[g] = r->sum_start[g] = at;
        r->where[g]                   = r->n_buckets - 1;
        b->n++;
        b->elements += more;
        at += more;
    }
    for (uint32_t i = 0; i < r->n_buckets; i++) {
        name_bucket(r, &r->bucket[i]);
        if (r->counts != NULL) lay_by_owner(r, &r->bucket[i]);
        give_memory(r, &r->bucket[i]);
    }
    clear(r);
}

/* A backward pass visits the layers last to first. */
static void lay_out_backward(reducer *r)
{
    for (uint32_t i = 0; i < r->setup.n; i++) r->order[i] = r->setup.n - 1 - i;
    lay_out(r, r->order);
}

static bool is_permutation(const uint32_t *order, uint32_t n, bool *seen)
{
    for (uint32_t i = 0; i < n; i++) {
        if (order[i] >= n || seen[order[i]]) return false;
        seen[order[i]] = true;
    }
    return true;
}

pen_status reducer_arrange(reducer *r, const uint32_t *order, pen_error *why)
{
    const uint32_t n = r->setup.n;
    if (order == NULL) {
        lay_out_backward(r);
        return PEN_OK;
    }
    bool *seen = calloc((size_t)n + 1, sizeof *seen);
    if (seen == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to order %u gradients", n);
    const bool is_order = is_permutation(order, n, seen);
    free(seen);
    if (!is_order)
        return why_set(why, PEN_CORRUPT,
                       "the order of %u gradients that rank 0 sent is not a permutation", n);
    lay_out(r, order);
    return PEN_OK;
}

/* ---- create and destroy ---------------------------------------------------------------------- */
static void free_writers(const reducer *r, bucket *b)
{
    for (uint32_t i = 0; i < b->n_written; i++) space_event_free(&r->space, b->written[i]);
    free(b->written);
    free(b->writer);
}

void reducer_destroy(reducer *r)
{
    if (r == NULL) return;
    free_buffers(r);
    for (uint32_t i = 0; r->bucket != NULL && i < r->setup.n; i++) free_writers(r, &r->bucket[i]);
    space_free(&r->space, r->in, true);
    space_free(&r->space, r->out, true);
    space_event_free(&r->space, r->freed);
    if (r->out != NULL) count_bytes(r, -(int64_t)(2 * r->elements * sizeof *r->in));
    free(r->arrays);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->ended);
    free(r);
}

static bool make_tables(reducer *r)
{
    const size_t n       = (size_t)r->setup.n + 1;
    const size_t members = r->setup.owner != NULL ? (size_t)r->setup.size : 0;
    r->arrays            = ARRAYS_NEW(ARRAY(r->start, n), ARRAY(r->sum_start, n), ARRAY(r->laid, n),
                                      ARRAY(r->where, n), ARRAY(r->order, n), ARRAY(r->gradient, n),
                                      ARRAY(r->bucket, n), ARRAY(r->counts, n * members));
    if (members == 0) r->counts = NULL;
    return r->arrays != NULL;
}

static pen_status make_room(reducer *r, pen_error *why)
{
    for (uint32_t i = 0; i < r->setup.n; i++) r->elements += room_of(r->gradient[i]);
    if (r->elements == 0 || r->setup.n_buffers > 0) return PEN_OK;
    r->in = space_alloc(&r->space, r->elements * sizeof *r->in, true, why);
    if (r->in != NULL) r->out = space_alloc(&r->space, r->elements * sizeof *r->out, true, why);
    if (r->out == NULL) return why->status;
    count_bytes(r, (int64_t)(2 * r->elements * sizeof *r->in));
    return PEN_OK;
}

pen_status reducer_create(const reducer_setup *setup, reducer **out, pen_error *why)
{
    reducer *r = calloc(1, sizeof *r);
    if (r == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the buckets of gradients");
    r->setup = *setup;
    r->space = setup->space != NULL ? *setup->space : space_host();
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ended, NULL);
    if (!make_tables(r)) {
        reducer_destroy(r);
        return why_set(why, PEN_NO_MEMORY, "no memory for the buckets of %u gradients", setup->n);
    }
    if (setup->n > 0) memcpy(r->gradient, setup->elements, setup->n * sizeof *r->gradient);
    if (make_room(r, why) != PEN_OK || space_event(&r->space, &r->freed, why) != PEN_OK) {
        reducer_destroy(r);
        return why->status;
    }
    r->next_first = UINT32_MAX;
    lay_out_backward(r);
    *out = r;
    return PEN_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */
void reducer_begin(reducer *r)
{
    pen_error why;
    r->n_ready = r->next = 0;
    r->n_first           = r->next_first;
    r->failure.status    = PEN_OK;
    for (uint32_t b = 0; b < r->n_buckets; b++) {
        r->bucket[b].left      = r->bucket[b].n;
        r->bucket[b].n_writers = 0;
        r->bucket[b].is_summed = false;
    }
    if (space_record(&r->space, r->freed, &why) != PEN_OK) reducer_fail(r, &why);
}

void reducer_fail(reducer *r, const pen_error *why)
{
    pthread_mutex_lock(&r->lock);
    keep_failure(r, why->status, why);
    pthread_mutex_unlock(&r->lock);
}

float *reducer_room(reducer *r, uint32_t i, device_stream stream)
{
    bucket *b = &r->bucket[r->where[i]];
    pen_error why;
    if (b->in == NULL) take_buffer(r, b);
    if (b->in == NULL) return NULL;
    if (space_follow(&r->space, stream, b->buffer != NULL ? b->buffer->freed : r->freed, &why) !=
        PEN_OK) {
        reducer_fail(r, &why);
        return NULL;
    }
    return b->in + (r->start[i] - b->start);
}

static void end_call(void *user, pen_status status, const pen_error *why)
{
    bucket *b  = user;
    reducer *r = b->owner;
    if (status == PEN_OK && r->setup.summed != NULL) {
        for (uint32_t i = b->first; i < b->first + b->n; i++) {
            const uint32_t g = r->laid[i];
            if (r->setup.owner == NULL || r->setup.owner[g] == r->setup.rank)
                r->setup.summed(r->setup.user, g);
        }
    }
    pthread_mutex_lock(&r->lock);
    keep_failure(r, status, why);
    b->is_summed = status == PEN_OK;
    return_buffer(r, b);
    r->in_progress--;
    atomic_fetch_add(&r->n_ended, 1);
    pthread_cond_broadcast(&r->ended);
    pthread_mutex_unlock(&r->lock);
}

static void sum_bucket(reducer *r, bucket *b)
{
    pen_error why;
    const coll_call call = {.kind    = b->counts != NULL ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE,
                            .op      = PEN_SUM,
                            .dtype   = PEN_F32,
                            .n       = b->elements,
                            .in      = b->in,
                            .out     = b->out,
                            .counts  = b->counts,
                            .scale   = 1,
                            .stream  = r->space.stream,
                            .after   = b->written,
                            .n_after = b->n_writers,
                            .in_stream_order = space_is_device(&r->space),
                            .traffic         = TRAFFIC_GRAD,
                            .label           = b->label};
    trace_moment(TRACE_BUCKET,
                 &(trace_note){.bytes = b->elements * sizeof(float), .label = b->label});
    pthread_mutex_lock(&r->lock);
    r->in_progress++;
    pthread_mutex_unlock(&r->lock);
    pen_status status = PEN_OK;
    if (b->in == NULL) /* reducer_room() returned NULL */
        status = why_set(&why, PEN_NO_MEMORY, "no memory for the bucket of '%s'", b->label);
    if (status == PEN_OK) status = r->setup.submit(r->setup.user, &call, end_call, b, &why);
    if (status != PEN_OK) end_call(b, status, &why);
}

/* The i-th bucket in the order of the sums. */
static bucket *in_turn(const reducer *r, uint32_t i)
{
    const uint32_t first = r->n_first < r->n_buckets ? r->n_first : r->n_buckets;
    return &r->bucket[i < first ? i : r->n_buckets - 1 - (i - first)];
}

/* The sum of the bucket will wait for what is in the stream now.  The space's stream must not wait yet: sums of earlier
 * buckets come to it later. */
static pen_status note_writer(const reducer *r, bucket *b, device_stream stream, pen_error *why)
{
    uint32_t k = 0;
    if (space_is_in_order(&r->space, stream)) return PEN_OK;
    while (k < b->n_writers && b->writer[k] != stream) k++;
    if (k == b->n_written) {
        device_event *event = NULL;
        if (space_event(&r->space, &event, why) != PEN_OK) return why->status;
        if (!VEC_MORE(b->written, k) || !VEC_MORE(b->writer, k)) {
            space_event_free(&r->space, event);
            return why_set(why, PEN_NO_MEMORY, "no memory for an event of a device");
        }
        b->written[b->n_written++] = event;
    }
    if (k == b->n_writers) b->writer[b->n_writers++] = stream;
    return space_record_on(&r->space, b->written[k], stream, why);
}

void reducer_ready(reducer *r, uint32_t i, device_stream stream)
{
    pen_error why;
    bucket *b = &r->bucket[r->where[i]];
    if (note_writer(r, b, stream, &why) != PEN_OK) reducer_fail(r, &why);
    r->order[r->n_ready++] = i;
    b->left--;
    while (r->next < r->n_buckets && in_turn(r, r->next)->left == 0)
        sum_bucket(r, in_turn(r, r->next++));
}

pen_status reducer_join(reducer *r, device_stream stream, pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < r->n_buckets && status == PEN_OK; i++)
        for (uint32_t k = 0; k < r->bucket[i].n_writers && status == PEN_OK; k++)
            status = space_follow(&r->space, stream, r->bucket[i].written[k], why);
    return status;
}

pen_status reducer_wait(reducer *r, pen_error *why)
{
    pthread_mutex_lock(&r->lock);
    while (r->in_progress > 0) r->setup.await(r->setup.user, &r->n_ended, &r->lock, &r->ended);
    const pen_status status = r->failure.status;
    if (status != PEN_OK) *why = r->failure;
    pthread_mutex_unlock(&r->lock);
    return status;
}

void reducer_set_first(reducer *r, uint32_t n)
{
    r->next_first = n;
}

uint32_t reducer_summed(reducer *r)
{
    uint32_t n = 0;
    pthread_mutex_lock(&r->lock);
    for (uint32_t b = 0; b < r->n_buckets; b++) n += r->bucket[b].is_summed;
    pthread_mutex_unlock(&r->lock);
    return n;
}

pen_status reducer_wait_bucket(reducer *r, uint32_t i, const uint32_t **gradient, uint32_t *n,
                               pen_error *why)
{
    const bucket *b = in_turn(r, i);
    *gradient       = r->laid + b->first;
    *n              = b->n;
    pthread_mutex_lock(&r->lock);
    while (!b->is_summed && r->failure.status == PEN_OK)
        r->setup.await(r->setup.user, &r->n_ended, &r->lock, &r->ended);
    const pen_status status = r->failure.status;
    if (status != PEN_OK) *why = r->failure;
    pthread_mutex_unlock(&r->lock);
    return status;
}

const float *reducer_sum(const reducer *r, uint32_t i)
{
    const bucket *b = &r->bucket[r->where[i]];
    return b->out + (r->sum_start[i] - b->start);
}

const uint32_t *reducer_order(const reducer *r)
{
    return r->order;
}

uint32_t reducer_buckets(const reducer *r)
{
    return r->n_buckets;
}
