/* held.c - memory of values and gradients that the program did not bring. */
#include "worker/held.h"

#include "common/segment.h"
#include "common/simd/simd.h"
#include "common/why.h"
#include "worker/context.h"

#include <stdlib.h>
#include <string.h>

struct held_lent { /* a gradient that an engine reads */
    struct held_lent *next;
    void *data;
};

static void count(const pen_tensor *t, stat_id level, size_t bytes, bool is_taken)
{
    stat_hold(&t->ctx->stats, level, is_taken ? (int64_t)bytes : -(int64_t)bytes);
}

/* ---- values ---------------------------------------------------------------------------------- */
pen_status held_param(pen_tensor *t, pen_error *why)
{
    pen_status status = PEN_OK;
    pthread_mutex_lock(&t->ctx->held_lock);
    if (t->param == NULL && t->holds_param) {
        t->param = segment_alloc(t->bytes, why);
        if (t->param == NULL)
            status = why_set(why, PEN_NO_MEMORY, "no memory for the %zu bytes of '%s'", t->bytes,
                             t->name);
        else
            count(t, STAT_PARAM_BYTES, t->bytes, true);
    }
    pthread_mutex_unlock(&t->ctx->held_lock);
    return status;
}

static void drop_param(pen_tensor *t)
{
    if (t->param == NULL || !t->holds_param) return;
    segment_free(t->param);
    t->param = NULL;
    count(t, STAT_PARAM_BYTES, t->bytes, false);
}

void held_param_drop(pen_tensor *t)
{
    pthread_mutex_lock(&t->ctx->held_lock);
    drop_param(t);
    pthread_mutex_unlock(&t->ctx->held_lock);
}

/* ---- gradients ------------------------------------------------------------------------------- */
static void free_grad(pen_tensor *t, void *data)
{
    if (data == NULL) return;
    segment_free(data);
    count(t, STAT_GRAD_BYTES, t->grad_bytes, false);
}

void *held_grad(pen_tensor *t, pen_error *why)
{
    pthread_mutex_lock(&t->ctx->held_lock);
    if (t->held_grad == NULL) {
        t->held_grad = segment_alloc(t->grad_bytes, why);
        if (t->held_grad == NULL)
            why_set(why, PEN_NO_MEMORY, "no memory for the %zu bytes of the gradient of '%s'",
                    t->grad_bytes, t->name);
        else
            count(t, STAT_GRAD_BYTES, t->grad_bytes, true);
    } else if (!t->is_grad_seen) {
        memset(t->held_grad, 0, t->grad_bytes);
    }
    t->is_grad_seen = t->held_grad != NULL;
    void *data      = t->held_grad;
    pthread_mutex_unlock(&t->ctx->held_lock);
    return data;
}

void *held_grad_seen(pen_tensor *t)
{
    pthread_mutex_lock(&t->ctx->held_lock);
    void *data = t->is_grad_seen ? t->held_grad : NULL;
    pthread_mutex_unlock(&t->ctx->held_lock);
    return data;
}

/* Without memory for the note it stays where it is, and is returned by the step's end. */
void held_grad_lend(pen_tensor *t)
{
    pthread_mutex_lock(&t->ctx->held_lock);
    struct held_lent *lent = t->held_grad != NULL ? malloc(sizeof *lent) : NULL;
    if (lent != NULL) {
        *lent   = (struct held_lent){t->lent, t->held_grad};
        t->lent = lent;
        t->ctx->lent_bytes += t->grad_bytes;
        t->held_grad = NULL;
    }
    t->is_grad_seen = false;
    pthread_mutex_unlock(&t->ctx->held_lock);
}

/* Out of the list; NULL when it is not in it. */
static void *take_lent(pen_tensor *t, const void *grad)
{
    for (struct held_lent **at = &t->lent; *at != NULL; at = &(*at)->next) {
        struct held_lent *lent = *at;
        void *data             = lent->data;
        if (grad != NULL && data != grad) continue;
        *at = lent->next;
        free(lent);
        t->ctx->lent_bytes -= t->grad_bytes;
        pthread_cond_broadcast(&t->ctx->held_returned);
        return data;
    }
    return NULL;
}

void held_grad_return(pen_tensor *t, const void *grad)
{
    if (grad == NULL) return;
    pthread_mutex_lock(&t->ctx->held_lock);
    for (pen_tensor *name = t; name != NULL; name = name->next_alias)
        free_grad(name, take_lent(name, grad));
    pthread_mutex_unlock(&t->ctx->held_lock);
}

void held_grad_begin(pen_tensor *t)
{
    pthread_mutex_lock(&t->ctx->held_lock);
    t->is_grad_seen = false;
    pthread_mutex_unlock(&t->ctx->held_lock);
}

void held_grad_step_end(pen_tensor *t, bool keeps)
{
    pthread_mutex_lock(&t->ctx->held_lock);
    for (void *data; (data = take_lent(t, NULL)) != NULL;) {
        if (t->held_grad == NULL && keeps)
            t->held_grad = data;
        else
            free_grad(t, data);
    }
    if (!keeps) {
        free_grad(t, t->held_grad);
        t->held_grad = NULL;
    }
    t->is_grad_seen = false;
    pthread_mutex_unlock(&t->ctx->held_lock);
}

static struct timespec deadline_of(const pen_ctx *ctx)
{
    const int64_t ms = ctx->settings.deadline_ms;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    return until;
}

pen_status held_grad_wait(pen_ctx *ctx, uint64_t bytes, uint64_t most, pen_error *why)
{
    const struct timespec until = deadline_of(ctx);
    int error                   = 0;
    pthread_mutex_lock(&ctx->held_lock);
    while (ctx->lent_bytes > 0 && ctx->lent_bytes + bytes > most && error == 0 &&
           !atomic_load(&ctx->has_failed))
        error = ctx->settings.deadline_ms < 0
                    ? pthread_cond_wait(&ctx->held_returned, &ctx->held_lock)
                    : pthread_cond_timedwait(&ctx->held_returned, &ctx->held_lock, &until);
    const uint64_t lent = ctx->lent_bytes;
    pthread_mutex_unlock(&ctx->held_lock);
    if (atomic_load(&ctx->has_failed)) {
        *why = ctx->failure;
        return why->status;
    }
    if (error == 0) return PEN_OK;
    return why_set(
        why, PEN_TIMED_OUT,
        "waited %.3g s for servers to take %llu bytes of gradients: another rank is behind, or "
        "raise reduce_bucket",
        (double)ctx->settings.deadline_ms / 1000, (unsigned long long)lent);
}

void held_free(pen_tensor *t)
{
    drop_param(t);
    for (void *data; (data = take_lent(t, NULL)) != NULL;) free_grad(t, data);
    free_grad(t, t->held_grad);
    t->held_grad = NULL;
}

/* ---- first values ---------------------------------------------------------------------------- */
bool held_draw(const pen_tensor *t, uint64_t start, size_t n, float *to)
{
    if (!t->has_draw) return false;
    draw_values(&t->draw, draw_key(t->ctx->settings.seed, t->name), start, n, to);
    return true;
}

bool held_draw_as_is(const pen_tensor *t, uint64_t start, size_t n, void *to)
{
    enum { PIECE = 4096 };
    float piece[PIECE];
    const size_t width = t->bytes / t->elements;
    if (t->desc.dtype == PEN_F32) return held_draw(t, start, n, to);
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t take = n - i < PIECE ? n - i : PIECE;
        if (!held_draw(t, start + i, take, piece)) return false;
        simd()->encode((char *)to + i * width, piece, t->desc.dtype, take);
    }
    return t->has_draw;
}
