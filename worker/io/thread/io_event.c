/* io_event.c - events of the job for the callback of pen_on_event(). */
#include "worker/io/thread/io_thread.h"

#include <stdio.h>

void io_tell(io_thread *c, pen_event_kind kind, int32_t rank, const char *text)
{
    pen_ctx *ctx = c->ctx;
    pthread_mutex_lock(&ctx->monitor_lock);
    const context_event_fn fn = ctx->event;
    void *user                = ctx->event_user;
    pthread_mutex_unlock(&ctx->monitor_lock);
    if (fn == NULL) return;
    const pen_event event = {.kind  = kind,
                             .node  = {PEN_WORKER, rank},
                             .epoch = c->view.epoch,
                             .step  = atomic_load(&ctx->step_index),
                             .text  = text};
    request_callback(true);
    fn(ctx, &event, user);
    request_callback(false);
}

static bool has(const io_view *r, const wire_member *w)
{
    const wire_member *other = io_find(r->worker, r->n_workers, w->rank);
    return other != NULL && other->incarnation == w->incarnation;
}

/* A lost worker is reported at once as LOST; the new view reports it again as LEFT. */
void io_notify_events(io_thread *c, const io_view *before)
{
    char text[400];
    for (uint32_t i = 0; i < before->n_workers; i++) {
        const wire_member *w = &before->worker[i];
        if (has(&c->view, w)) continue;
        snprintf(text, sizeof text, "worker %d (%s) left in view %llu", w->rank, w->host,
                 (unsigned long long)c->view.epoch);
        io_tell(c, PEN_EV_LEFT, w->rank, text);
    }
    for (uint32_t i = 0; i < c->view.n_workers; i++) {
        const wire_member *w = &c->view.worker[i];
        if (has(before, w)) continue;
        snprintf(text, sizeof text, "worker %d (%s) joined in view %llu", w->rank, w->host,
                 (unsigned long long)c->view.epoch);
        io_tell(c, PEN_EV_JOINED, w->rank, text);
    }
}
