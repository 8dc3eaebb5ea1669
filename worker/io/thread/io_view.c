/* io_view.c - a copy of an epoch's view: members, and which server holds which shard. */
#include "worker/io/thread/io_thread.h"

enum { RECORD_BYTES_MAX = 64 << 20 };

void io_view_free(io_view *r)
{
    wire_arena_destroy(r->arena);
    *r = (io_view){0};
}

bool io_view_copy(io_view *to, const wire_control *m)
{
    wire_out out = {0};
    wire_control copy;
    pen_error why;
    wire_arena *arena   = wire_arena_create(RECORD_BYTES_MAX);
    *to                 = (io_view){.arena = arena};
    const bool is_there = arena != NULL && wire_control_encode(m, &out, &why) == PEN_OK &&
                          wire_control_decode(out.data, out.size, arena, &copy, &why) == PEN_OK;
    wire_out_free(&out);
    if (is_there)
        *to = (io_view){.arena      = arena,
                        .term       = copy.u.epoch.term,
                        .epoch      = copy.u.epoch.epoch,
                        .n_workers  = copy.u.epoch.n_workers,
                        .n_servers  = copy.u.epoch.n_servers,
                        .n_replicas = copy.u.epoch.n_replicas,
                        .worker     = copy.u.epoch.worker,
                        .server     = copy.u.epoch.server,
                        .replica    = copy.u.epoch.replica};
    else
        io_view_free(to);
    return is_there;
}

void io_view_settle(io_thread *c)
{
    io_committed *now = &c->committed;
    const io_view *r  = &c->view;
    *now              = (io_committed){.shares_memory = true};
    for (uint32_t i = 0; i < r->n_workers; i++) {
        bool is_first = true;
        for (uint32_t k = 0; k < i; k++) {
            if (r->worker[i].node != r->worker[k].node) continue;
            is_first = false;
            if (r->worker[i].sharing != r->worker[k].sharing) now->shares_memory = false;
        }
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
    for (uint32_t i = 0; i < n; i++)
        if (member[i].rank == rank) return &member[i];
    return NULL;
}
