/* io_view.c - what a view says: its facts at COMMITTED, this worker's node and local rank, and who joined or left. */
#include "worker/io/thread/io_thread.h"

#include <stdio.h>

void io_view_settle(io_thread *c)
{
    io_committed *now   = &c->committed;
    const wire_epoch *r = &c->view;
    *now                = (io_committed){.shares_memory = true};
    for (uint32_t i = 0; i < r->n_workers; i++) {
        uint32_t k = i; /* one behind the nearest on its node: mostly i */
        while (k > 0 && r->worker[k - 1].node != r->worker[i].node) k--;
        const bool is_first = k == 0;
        if (!is_first && r->worker[k - 1].sharing != r->worker[i].sharing)
            now->shares_memory = false;
        now->nodes += is_first;
        now->has_neighbors |= !is_first;
    }
    for (uint32_t i = 0; i < r->n_replicas; i++)
        now->has_copies |= r->replica[i].role != WIRE_PRIMARY;
    for (uint32_t i = 0; i < c->n_first_places; i++)
        now->has_copies |= c->first_place[i].role != WIRE_PRIMARY;
}

const wire_member *io_find(const wire_member *member, uint32_t n, int32_t rank)
{
    if (rank >= 0 && (uint32_t)rank < n && member[rank].rank == rank) return &member[rank];
    for (uint32_t i = 0; i < n; i++) /* ranks before it have left */
        if (member[i].rank == rank) return &member[i];
    return NULL;
}

bool io_is_member(const io_thread *c)
{
    const wire_member *self = io_find(c->view.worker, c->view.n_workers, c->ctx->env.rank);
    return self != NULL &&
           self->incarnation == membership_client_core(c->membership_client)->incarnation;
}

/* ---- node and local rank, if the launcher does not set them ------------------------------------- */
/* No earlier worker of the view is on its node. */
static bool is_first_of_node(const wire_control *m, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (m->u.epoch.worker[k].node == m->u.epoch.worker[i].node) return false;
    return true;
}

/* A late worker is not in a view yet: WELCOME has its place. */
void io_on_place(io_thread *c, const wire_control *m)
{
    worker_env *env = &c->ctx->env;
    int32_t local_rank, node, here = 1, nodes = 1;
    membership_client_place(c->membership_client, &local_rank, &node);
    for (uint32_t i = 0; i < m->u.epoch.n_workers; i++) {
        const wire_member *w = &m->u.epoch.worker[i];
        if (w->rank != env->rank || !io_is_member(c)) continue;
        local_rank = w->local_rank;
        node       = w->node;
    }
    for (uint32_t i = 0; i < m->u.epoch.n_workers; i++) {
        const wire_member *w = &m->u.epoch.worker[i];
        here += w->rank != env->rank && w->node == node;
        nodes += w->node != node && is_first_of_node(m, i);
    }
    env->local_rank = local_rank >= 0 ? local_rank : 0;
    env->node       = node >= 0 ? node : 0;
    if (env->local_world_size < 1) env->local_world_size = here;
    if (env->nodes < 1) env->nodes = nodes;
}

/* ---- events for the callback of pen_on_event() -------------------------------------------------- */
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

static bool has(const wire_epoch *r, const wire_member *w)
{
    const wire_member *other = io_find(r->worker, r->n_workers, w->rank);
    return other != NULL && other->incarnation == w->incarnation;
}

/* A lost worker is reported at once as LOST; the new view reports it again as LEFT. */
void io_notify_events(io_thread *c, const wire_epoch *before)
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
