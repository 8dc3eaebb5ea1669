/* io_place.c - node and local rank of a worker from the view, if its launcher does not set them. */
#include "worker/io/thread/io_thread.h"

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
