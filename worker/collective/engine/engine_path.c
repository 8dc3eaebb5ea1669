/* engine_path.c - which path a call takes, and what happens if that path fails for some members. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/log.h"

#include <string.h>

void engine_take_path_of_group(engine_call *c)
{
    pen_group *g = c->g;
    c->path      = g->path;
    c->team      = g->team;
    c->on_mesh   = g->carrier == GROUP_WIRE;
    c->path_seq  = ++g->path_seq;
}

/* The member that refused makes the group's first call on the wire; so this is the first call here, too. */
bool engine_goes_round_node(engine_call *c, const pen_error *why)
{
    pen_group *g   = c->g;
    coll_engine *e = g->engine;
    if (c->path != &coll_path_node || why->status != PEN_UNREACHABLE ||
        !node_team_is_refused(g->node))
        return false;
    log_notice("%s: a group of %d uses sockets", why->text, g->size);
    pthread_mutex_lock(&e->lock);
    group_take_wire(g);
    pthread_mutex_unlock(&e->lock);
    g->path_seq--; /* the wire counts this call, as on the member that refused */
    engine_take_path_of_group(c);
    memset(c->op, 0, sizeof c->op);
    return true;
}
