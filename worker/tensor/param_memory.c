/* param_memory.c - param memory and gradient memory that the SDK provides. */
#include "worker/tensor/param_memory.h"

#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/system/segment.h"
#include "worker/context.h"
#include "worker/tensor/device_copy/device_copies.h"

#include <stdlib.h>
#include <string.h>

struct grads_lent { /* a gradient that a strategy reads */
    struct grads_lent *next;
    void *data;
    pinned_pair *pinned_pair; /* data is its host side; NULL: host memory only */
};

static pen_status no_memory(const pen_tensor *t, const char *of, size_t bytes, pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY, "no memory for the %zu bytes of %s'%s'", bytes, of, t->name);
}

static void count(const pen_tensor *t, stat_id level, size_t bytes, bool is_taken)
{
    stat_hold(&t->ctx->stats, level, is_taken ? (int64_t)bytes : -(int64_t)bytes);
}

/* ---- blocks of host memory --------------------------------------------------------------------- */
static void drop_oldest(context_spare *spare)
{
    segment_free(spare->block[0].data);
    spare->bytes -= spare->block[0].bytes;
    spare->n--;
    memmove(spare->block, spare->block + 1, spare->n * sizeof spare->block[0]);
}

static void drop_spare(context_spare *spare)
{
    while (spare->n > 0) drop_oldest(spare);
}

/* The newest block of that size: the cache may still have it. */
static void *take_spare(context_spare *spare, size_t bytes)
{
    for (uint32_t i = spare->n; i-- > 0;) {
        void *data = spare->block[i].data;
        if (spare->block[i].bytes != bytes) continue;
        spare->bytes -= bytes;
        spare->n--;
        memmove(spare->block + i, spare->block + i + 1, (spare->n - i) * sizeof spare->block[0]);
        return data;
    }
    return NULL;
}

static void keep_spare(context_spare *spare, void *data, size_t bytes)
{
    if (bytes < SEGMENT_ALONE_BYTES || !segment_is_sole(data)) { /* small, or a view keeps it */
        segment_free(data);
        return;
    }
    if (spare->n == CONTEXT_SPARE_MAX) drop_oldest(spare);
    spare->block[spare->n].data    = data;
    spare->block[spare->n++].bytes = bytes;
    spare->bytes += bytes;
}

static void *take_block(context_spare *spare, size_t bytes, bool is_zero, pen_error *why)
{
    void *data = take_spare(spare, bytes);
    if (data != NULL && is_zero) memset(data, 0, bytes);
    if (data == NULL) {
        while (spare->n > 0 && spare->held + spare->bytes + bytes > spare->most) drop_oldest(spare);
        data = segment_alloc(bytes, why);
    }
    if (data == NULL && spare->n > 0) {
        drop_spare(spare);
        data = segment_alloc(bytes, why);
    }
    if (data == NULL) return NULL;
    spare->held += bytes;
    if (spare->held > spare->most) spare->most = spare->held;
    return data;
}

/* Host memory, with or without zeros.  With device=cuda it has a device side, and *w is the pair. */
static void *take(pen_tensor *t, size_t bytes, bool is_zero, pinned_pair **w, pen_error *why)
{
    *w = device_copies_holds(t->ctx) ? device_copies_take(t, bytes, why) : NULL;
    if (*w != NULL) return (*w)->host;
    return device_copies_holds(t->ctx) ? NULL
                                       : take_block(&t->ctx->memory.spare, bytes, is_zero, why);
}

static void give_back(pen_tensor *t, void *data, size_t bytes, pinned_pair *w)
{
    if (w != NULL) {
        device_copies_put(t, w);
        return;
    }
    t->ctx->memory.spare.held -= bytes;
    if (t->ctx->phase == CONTEXT_OPEN)
        segment_free(data); /* the first values of another tensor without init are zeros */
    else
        keep_spare(&t->ctx->memory.spare, data, bytes);
}

void param_memory_drop_spare(pen_ctx *ctx)
{
    pthread_mutex_lock(&ctx->memory.grad_lock);
    drop_spare(&ctx->memory.spare);
    pthread_mutex_unlock(&ctx->memory.grad_lock);
}

/* ---- values ---------------------------------------------------------------------------------- */
pen_status param_memory(pen_tensor *t, pen_error *why)
{
    pen_status status = PEN_OK;
    pthread_mutex_lock(&t->ctx->memory.grad_lock);
    if (t->param == NULL && t->holds_param) {
        pinned_pair *w;
        t->param = take(t, t->bytes, false, &w, why);
        if (w != NULL) t->device_copies->values = w;
        if (t->param == NULL)
            status = no_memory(t, "", t->bytes, why);
        else
            count(t, STAT_PARAM_BYTES, t->bytes, true);
    }
    pthread_mutex_unlock(&t->ctx->memory.grad_lock);
    return status;
}

static void drop_param(pen_tensor *t)
{
    if (t->param == NULL || !t->holds_param) return;
    pinned_pair *w = t->device_copies != NULL ? t->device_copies->values : NULL;
    if (w != NULL) t->device_copies->values = NULL;
    give_back(t, t->param, t->bytes, w);
    t->param = NULL;
    count(t, STAT_PARAM_BYTES, t->bytes, false);
}

void param_memory_drop(pen_tensor *t)
{
    pthread_mutex_lock(&t->ctx->memory.grad_lock);
    drop_param(t);
    pthread_mutex_unlock(&t->ctx->memory.grad_lock);
}

/* ---- gradients ------------------------------------------------------------------------------- */
static void free_grad(pen_tensor *t, void *data, pinned_pair *w)
{
    if (data == NULL) return;
    give_back(t, data, t->grad_bytes, w);
    count(t, STAT_GRAD_BYTES, t->grad_bytes, false);
}

/* Work on the device that reads it may be enqueued only: whoever takes its memory next follows that work. */
static void release_grad(pen_tensor *t, void *data, pinned_pair *w)
{
    if (w == NULL || !space_is_device(&t->ctx->memory.work)) {
        free_grad(t, data, w);
        return;
    }
    device_copies_put_behind(t, w);
    count(t, STAT_GRAD_BYTES, t->grad_bytes, false);
}

/* The address that a strategy has of it. */
static const void *lent_address(const pen_tensor *t, const void *data, const pinned_pair *w)
{
    return w != NULL && space_is_device(&t->ctx->memory.work) ? w->device : data;
}

/* The pinned pair of the current buffer. */
static pinned_pair *grad_pinned_pair(const pen_tensor *t)
{
    return t->param_grad != NULL && t->device_copies != NULL ? t->device_copies->grad : NULL;
}

static void set_grad(pen_tensor *t, void *data, pinned_pair *w)
{
    t->param_grad = data;
    if (t->device_copies != NULL && t->grad == NULL) t->device_copies->grad = w;
}

static pen_status make_grad(pen_tensor *t, pen_error *why)
{
    pinned_pair *w;
    void *data = take(t, t->grad_bytes, true, &w, why);
    if (data == NULL) return no_memory(t, "the gradient of ", t->grad_bytes, why);
    set_grad(t, data, w);
    count(t, STAT_GRAD_BYTES, t->grad_bytes, true);
    return w != NULL ? device_copies_zero(t, w, false, why) : PEN_OK;
}

static pen_status clear_grad(pen_tensor *t, pen_error *why)
{
    if (grad_pinned_pair(t) != NULL) return device_copies_zero(t, grad_pinned_pair(t), true, why);
    memset(t->param_grad, 0, t->grad_bytes);
    return PEN_OK;
}

void *param_grad(pen_tensor *t, pen_error *why)
{
    pen_status status = PEN_OK;
    pthread_mutex_lock(&t->ctx->memory.grad_lock);
    if (t->param_grad == NULL)
        status = make_grad(t, why);
    else if (!t->is_grad_seen)
        status = clear_grad(t, why);
    t->is_grad_seen = status == PEN_OK;
    void *data      = grad_pinned_pair(t) != NULL ? grad_pinned_pair(t)->device : t->param_grad;
    pthread_mutex_unlock(&t->ctx->memory.grad_lock);
    return status == PEN_OK ? data : NULL;
}

void *param_grad_seen(pen_tensor *t)
{
    pthread_mutex_lock(&t->ctx->memory.grad_lock);
    void *data = t->is_grad_seen ? t->param_grad : NULL;
    pthread_mutex_unlock(&t->ctx->memory.grad_lock);
    return data;
}

static void drop_grad(pen_tensor *t)
{
    if (t->param_grad == NULL) return;
    release_grad(t, t->param_grad, grad_pinned_pair(t));
    set_grad(t, NULL, NULL);
}

/* Without memory for the entry the gradient stays; the end of the step returns it. */
static void lend(pen_tensor *t)
{
    struct grads_lent *lent = malloc(sizeof *lent);
    if (lent == NULL) return;
    *lent   = (struct grads_lent){t->lent, t->param_grad, grad_pinned_pair(t)};
    t->lent = lent;
    t->ctx->memory.lent_bytes += t->grad_bytes;
    set_grad(t, NULL, NULL);
}

void param_grad_pass(pen_tensor *t, const void *lent)
{
    const bool stays = lent == NULL || space_is_device(&t->ctx->memory.work);
    if (t->grad != NULL || (t->ctx->stage < 2 && stays)) return;
    pthread_mutex_lock(&t->ctx->memory.grad_lock);
    if (t->param_grad != NULL && lent_address(t, t->param_grad, grad_pinned_pair(t)) == lent)
        lend(t);
    else
        drop_grad(t);
    t->is_grad_seen = false;
    pthread_mutex_unlock(&t->ctx->memory.grad_lock);
}

/* Removes grad from the list; NULL: not in it. */
static void *take_lent(pen_tensor *t, const void *grad, pinned_pair **w)
{
    for (struct grads_lent **at = &t->lent; *at != NULL; at = &(*at)->next) {
        struct grads_lent *lent = *at;
        void *data              = lent->data;
        if (grad != NULL && lent_address(t, data, lent->pinned_pair) != grad) continue;
        *at = lent->next;
        *w  = lent->pinned_pair;
        free(lent);
        t->ctx->memory.lent_bytes -= t->grad_bytes;
        pthread_cond_broadcast(&t->ctx->memory.grads_returned);
        return data;
    }
    return NULL;
}

void param_grad_return(pen_tensor *t, const void *grad)
{
    if (grad == NULL) return;
    pthread_mutex_lock(&t->ctx->memory.grad_lock);
    for (pen_tensor *name = t; name != NULL; name = name->next_alias) {
        pinned_pair *w = NULL;
        void *data     = take_lent(name, grad, &w);
        (void)grad_slot_move(&name->slot, GRAD_RETURN, name->name, -1, NULL);
        release_grad(name, data, w);
    }
    pthread_mutex_unlock(&t->ctx->memory.grad_lock);
}

void param_grad_begin(pen_tensor *t)
{
    pthread_mutex_lock(&t->ctx->memory.grad_lock);
    t->is_grad_seen = false;
    pthread_mutex_unlock(&t->ctx->memory.grad_lock);
}

void param_grad_step_end(pen_tensor *t, bool keeps)
{
    pinned_pair *w = NULL;
    pthread_mutex_lock(&t->ctx->memory.grad_lock);
    for (void *data; (data = take_lent(t, NULL, &w)) != NULL;) {
        if (t->param_grad == NULL && keeps)
            set_grad(t, data, w);
        else
            release_grad(t, data, w);
    }
    if (!keeps) drop_grad(t);
    t->is_grad_seen = false;
    pthread_mutex_unlock(&t->ctx->memory.grad_lock);
}

static struct timespec deadline_of(const pen_ctx *ctx)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t ms =
        (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 + ctx->settings.deadline_ms;
    return (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
}

pen_status param_grad_wait(pen_ctx *ctx, uint64_t bytes, uint64_t most, pen_error *why)
{
    const struct timespec until = deadline_of(ctx);
    int error                   = 0;
    pthread_mutex_lock(&ctx->memory.grad_lock);
    while (ctx->memory.lent_bytes > 0 && ctx->memory.lent_bytes + bytes > most && error == 0 &&
           !atomic_load(&ctx->has_failed))
        error = ctx->settings.deadline_ms < 0
                    ? pthread_cond_wait(&ctx->memory.grads_returned, &ctx->memory.grad_lock)
                    : pthread_cond_timedwait(&ctx->memory.grads_returned, &ctx->memory.grad_lock,
                                             &until);
    const uint64_t lent = ctx->memory.lent_bytes;
    pthread_mutex_unlock(&ctx->memory.grad_lock);
    if (atomic_load(&ctx->has_failed)) {
        *why = ctx->failure;
        return why->status;
    }
    if (error == 0) return PEN_OK;
    return why_set(why, PEN_TIMED_OUT,
                   "waited %.3g s for servers to take %llu bytes of gradients; look for a slow "
                   "rank, or raise reduce_bucket",
                   (double)ctx->settings.deadline_ms / 1000, (unsigned long long)lent);
}

void param_memory_free(pen_tensor *t)
{
    pinned_pair *w = NULL;
    drop_param(t);
    for (void *data; (data = take_lent(t, NULL, &w)) != NULL;) free_grad(t, data, w);
    free_grad(t, t->param_grad, grad_pinned_pair(t));
    set_grad(t, NULL, NULL);
}

/* ---- initial values ---------------------------------------------------------------------------- */
bool param_memory_init_as_is(const pen_tensor *t, uint64_t start, size_t n, void *to)
{
    enum { PIECE = 4096 };
    float piece[PIECE];
    if (!t->has_init) return false;
    const size_t width = t->bytes / t->elements;
    const uint64_t key = init_key(t->ctx->settings.seed, t->name);
    if (t->desc.dtype == PEN_F32) {
        init_values(&t->draw, key, start, n, to);
        return true;
    }
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t take = n - i < PIECE ? n - i : PIECE;
        init_values(&t->draw, key, start + i, take, piece);
        simd()->encode((char *)to + i * width, piece, t->desc.dtype, take);
    }
    return true;
}
