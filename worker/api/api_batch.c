/* api_batch.c - calls that a thread collects and starts together.
 *
 * DESIGN
 * Collect.   Between begin and end, waiting calls of this thread are recorded and return at once.  A batch belongs
 *            to one thread and one context; its entries point to the caller's buffers.
 * Start.     All sends and receives start first, then collectives in their order.  No call of a batch waits for
 *            another one, so no order of calls inside it can deadlock.
 * Fuse.      all_reduces that follow one another on a group with the same type, operation and scale, and are small,
 *            become one call on a packed copy.  Every member collects the same calls, so all fuse alike.
 */
#include "worker/api/api_coll.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/system/fp_env.h"
#include "proto/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FUSE_BYTES = 32 << 10 };

typedef struct {
    pen_group *g;
    bool is_transfer;
    coll_call call;
    engine_transfer transfer;
    uint64_t patience_ms;
    size_t *counts, *out_counts; /* copies; the program may free its own */
    char label[COLL_LABEL_BYTES];
} entry;

typedef struct { /* collected or in progress; the last call that ends frees it */
    pen_ctx *ctx;
    entry *list;
    size_t n, cap;
    pen_status refused; /* why a call could not be recorded; PEN_OK: none */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    size_t left;   /* calls in progress */
    pen_error why; /* of the first failure */
    pen_status status;
    request *r; /* NULL: pen_batch_end() waits */
} batch;

typedef struct { /* one started call */
    batch *b;
    entry *first; /* the calls it carries out: more than one when fused */
    size_t n;
    unsigned char *packed;
} started;

static _Thread_local batch *open_batch;

/* ---- collecting ------------------------------------------------------------------------------ */
bool api_batch_is_open(const pen_ctx *ctx)
{
    return open_batch != NULL && open_batch->ctx == ctx;
}

static void free_batch(batch *b)
{
    for (size_t i = 0; i < b->n; i++) {
        free(b->list[i].counts);
        free(b->list[i].out_counts);
    }
    free(b->list);
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->ended);
    free(b);
}

static bool copy(const size_t *from, int n, size_t **to)
{
    if (from == NULL) return true;
    *to = malloc((size_t)n * sizeof **to);
    if (*to != NULL) memcpy(*to, from, (size_t)n * sizeof **to);
    return *to != NULL;
}

static entry *add(batch *b)
{
    return VEC_ROOM(b->list, b->cap, b->n + 1) ? &b->list[b->n++] : NULL;
}

static pen_status out_of_memory(batch *b)
{
    b->refused = PEN_NO_MEMORY;
    return last_error_report(PEN_NO_MEMORY, "no memory for another call of the batch");
}

pen_status api_batch_add_call(pen_group *g, const coll_call *call, uint64_t patience_ms)
{
    batch *b = open_batch;
    entry *e = add(b);
    if (e == NULL) return out_of_memory(b);
    e->g           = g;
    e->call        = *call;
    e->patience_ms = patience_ms;
    memcpy(e->label, call->label, strnlen(call->label, sizeof e->label - 1));
    if (!copy(call->counts, g->size, &e->counts) ||
        !copy(call->out_counts, g->size, &e->out_counts))
        return out_of_memory(b);
    e->call.counts     = e->counts;
    e->call.out_counts = e->out_counts;
    return PEN_OK;
}

pen_status api_batch_add_transfer(pen_group *g, const engine_transfer *t, uint64_t patience_ms)
{
    batch *b = open_batch;
    entry *e = add(b);
    if (e == NULL) return out_of_memory(b);
    e->g           = g;
    e->is_transfer = true;
    e->transfer    = *t;
    e->patience_ms = patience_ms;
    memcpy(e->label, t->label, strnlen(t->label, sizeof e->label - 1));
    return PEN_OK;
}

pen_status pen_batch_begin(pen_ctx *ctx)
{
    FP_ENV_OURS();
    pen_status status = context_check(ctx, "pen_batch_begin");
    if (status != PEN_OK) return status;
    if (open_batch != NULL)
        return last_error_report(
            PEN_WRONG_STATE,
            "pen_batch_begin: this thread has an open batch; call pen_batch_end() first");
    batch *b = calloc(1, sizeof *b);
    if (b == NULL) return last_error_report(PEN_NO_MEMORY, "no memory for a batch");
    b->ctx = ctx;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->ended, NULL);
    open_batch = b;
    return PEN_OK;
}

/* ---- ending ---------------------------------------------------------------------------------- */
/* Drops one share. The last one wakes the waiter, or ends the request. */
static void leave(batch *b, pen_status status, const pen_error *why)
{
    pthread_mutex_lock(&b->lock);
    if (status != PEN_OK && b->status == PEN_OK) {
        b->status = status;
        b->why    = *why;
    }
    const bool is_last = --b->left == 0;
    request *r         = b->r;
    if (is_last && r == NULL) pthread_cond_broadcast(&b->ended);
    pthread_mutex_unlock(&b->lock);
    if (!is_last || r == NULL) return;
    request_table *table = &r->ctx->requests;
    request_end(r, b->status, b->status != PEN_OK ? &b->why : NULL);
    free_batch(b);
    request_notify(table);
}

static size_t bytes_of(const coll_call *call)
{
    return call->n * plan_dtype_bytes(call->dtype);
}

static void call_over(void *user, pen_status status, const pen_error *why)
{
    started *s = user;
    size_t at  = 0;
    batch *b   = s->b;
    for (size_t i = 0; i < s->n && s->packed != NULL && status == PEN_OK; i++) {
        const size_t size = bytes_of(&s->first[i].call);
        if (size > 0) memcpy(s->first[i].call.out, s->packed + at, size);
        at += size;
    }
    free(s->packed);
    free(s);
    leave(b, status, why);
}

static void transfer_over(void *user, const mesh_result *result)
{
    started *s = user;
    batch *b   = s->b;
    free(s);
    leave(b, result->status, &result->why);
}

/* ---- fusing ---------------------------------------------------------------------------------- */
static bool fuses(const entry *a, const entry *b)
{
    return !b->is_transfer && a->g == b->g && b->call.kind == COLL_ALL_REDUCE &&
           a->call.op == b->call.op && a->call.dtype == b->call.dtype &&
           a->call.scale == b->call.scale && a->call.stream == b->call.stream;
}

static size_t next_collective(const batch *b, size_t i)
{
    while (i < b->n && b->list[i].is_transfer) i++;
    return i;
}

/* How many calls from i on are fused. */
static size_t run_length(const batch *b, size_t i)
{
    const entry *e = &b->list[i];
    size_t n = 1, bytes = bytes_of(&e->call);
    if (e->call.kind != COLL_ALL_REDUCE || e->call.stream != NULL) return 1;
    while (i + n < b->n && fuses(e, &b->list[i + n])) {
        bytes += bytes_of(&b->list[i + n].call);
        if (bytes > FUSE_BYTES) break;
        n++;
    }
    return n;
}

static bool pack(started *s, coll_call *call)
{
    size_t at = 0, n = 0;
    for (size_t i = 0; i < s->n; i++) n += s->first[i].call.n;
    s->packed = malloc(n * plan_dtype_bytes(call->dtype) + 1);
    if (s->packed == NULL) return false;
    for (size_t i = 0; i < s->n; i++) {
        const size_t size = bytes_of(&s->first[i].call);
        if (size > 0) memcpy(s->packed + at, s->first[i].call.in, size);
        at += size;
    }
    call->n   = n;
    call->in  = s->packed;
    call->out = s->packed;
    return true;
}

/* ---- starting -------------------------------------------------------------------------------- */
static void enter(batch *b)
{
    pthread_mutex_lock(&b->lock);
    b->left++;
    pthread_mutex_unlock(&b->lock);
}

static pen_status start_calls(batch *b, size_t i, size_t n, pen_error *why)
{
    entry *e       = &b->list[i];
    started *s     = malloc(sizeof *s);
    coll_call call = e->call;
    if (s == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a batch");
    *s         = (started){.b = b, .first = e, .n = n};
    call.label = e->label;
    if (n > 1 && !pack(s, &call)) {
        free(s);
        return why_set(why, PEN_NO_MEMORY, "no memory for a batch");
    }
    enter(b);
    pen_status status = coll_submit(e->g, &call, e->patience_ms, call_over, s, why);
    if (status == PEN_OK) return PEN_OK;
    call_over(s, status, why);
    return status;
}

static pen_status start_transfer(batch *b, entry *e, pen_error *why)
{
    started *s        = malloc(sizeof *s);
    const uint64_t at = e->patience_ms > 0 ? clock_ms(&clock_real) + e->patience_ms : 0;
    if (s == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a batch");
    *s                = (started){.b = b, .first = e, .n = 1};
    e->transfer.label = e->label;
    enter(b);
    pen_status status = engine_transfer_begin(e->g, &e->transfer, at, transfer_over, s, why);
    if (status == PEN_OK) return PEN_OK;
    mesh_result refused = {.status = status, .why = *why};
    transfer_over(s, &refused);
    return status;
}

static pen_status wait_for_all(batch *b)
{
    pthread_mutex_lock(&b->lock);
    while (b->left > 0) pthread_cond_wait(&b->ended, &b->lock); /* each ends by its deadline */
    pthread_mutex_unlock(&b->lock);
    pen_status status = b->status;
    if (status != PEN_OK) last_error_set(&b->why);
    free_batch(b);
    return status;
}

static batch *take_open(pen_ctx *ctx)
{
    batch *b = open_batch;
    if (b == NULL || b->ctx != ctx) {
        last_error_report(PEN_WRONG_STATE, "pen_batch_end: this thread has no open batch on this "
                                           "context; call pen_batch_begin() first");
        return NULL;
    }
    open_batch = NULL;
    return b;
}

/* A share of pen_batch_end() itself keeps the batch alive while calls start. */
static pen_status run_batch(batch *b, const pen_opts *o, pen_req *req)
{
    pen_error why;
    pen_status status = PEN_OK;
    b->left           = 1;
    if (req != NULL) {
        status = request_begin(b->ctx, REQUEST_COLL, o, req, &b->r);
        if (status != PEN_OK) {
            free_batch(b);
            return status;
        }
    }
    /* Stops at the first call that cannot start: later ones would wait for members that never join them. */
    for (size_t i = 0; i < b->n && status == PEN_OK; i++)
        if (b->list[i].is_transfer) status = start_transfer(b, &b->list[i], &why);
    for (size_t i = next_collective(b, 0), n; i < b->n && status == PEN_OK;
         i        = next_collective(b, i + n)) {
        n      = run_length(b, i);
        status = start_calls(b, i, n, &why);
    }
    leave(b, status, &why);
    if (req != NULL) return PEN_OK;
    const uint64_t begun    = clock_ms(&clock_real);
    status                  = wait_for_all(b);
    const pen_result result = {.status  = status,
                               .seconds = (double)(clock_ms(&clock_real) - begun) / 1000};
    api_notify(o, &result);
    return status;
}

pen_status pen_batch_end(pen_ctx *ctx, const pen_opts *o, pen_req *req)
{
    FP_ENV_OURS();
    const bool waits  = req == NULL;
    pen_status status = context_enter(ctx, "pen_batch_end", waits);
    if (status != PEN_OK && (ctx == NULL || ctx->pid != getpid())) return status;
    batch *b = take_open(ctx);
    if (b == NULL) return waits ? context_leave(ctx, PEN_WRONG_STATE) : PEN_WRONG_STATE;
    if (status == PEN_OK) status = api_check_opts(o);
    if (status == PEN_OK && b->refused != PEN_OK)
        status = last_error_report(b->refused,
                                   "pen_batch_end: cannot run the batch: a call in it failed");
    if (status != PEN_OK) {
        free_batch(b);
        return waits ? context_leave(ctx, status) : status;
    }
    status = run_batch(b, o, req);
    return waits ? context_leave(ctx, status) : status;
}
