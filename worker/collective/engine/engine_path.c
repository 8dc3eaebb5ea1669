/* engine_path.c - which path a call takes, and what happens if that path fails for some members.
 *
 * DESIGN
 * Host.    The group's own path.  If a member cannot map the others' memory, the group uses sockets from that call on.
 * Device.  Members on one host work on each other's device memory (device.h); the first such call creates a team for that.
 * If they are on several hosts, each host has such a team, and hier.h passes the host's share between hosts.  Elsewhere,
 * and if peers' devices cannot be reached, a call goes through host memory: copied in on the caller's stream, run, copied
 * out on the caller's stream (engine_stage.c).
 * Alike.  Some members may be unable to create a team, and some may pass host memory by mistake.  So before the first
 * such call of a group, members vote on the group's own path, with the header of the call itself; later, each member
 * marks which memory each call of the group has.
 */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "worker/collective/fault_point.h"

#include <stdlib.h>
#include <string.h>

/* ---- kinds of memory ------------------------------------------------------------------------- */
/* A member without elements has no buffer to inspect: a stream then means a device, else the previous call decides. */
static const device_ops *ops_of(engine_call *c)
{
    const pen_group *g = c->g;
    coll_call *call    = &c->call;
    const void *data   = NULL;
    if (coll_in_elements(call, g->size, g->rank) > 0) data = call->in;
    if (data == NULL && coll_out_elements(call, g->size, g->rank) > 0) data = call->out;
    if (!device_is_loaded()) return device_host();
    if (data != NULL) return device_of(data);
    call->any_memory = call->stream == NULL;
    return call->stream != NULL || g->was_on_device ? device_all[0] : device_host();
}

/* ---- the team -------------------------------------------------------------------------------- */
/* Devices fold in rank order only.  Of a group on several hosts, the members of each host have a team. */
static bool may_have_team(const engine_call *c)
{
    const pen_group *g   = c->g;
    const coll_engine *e = g->engine;
    const bool is_hier   = g->carrier == GROUP_HIER;
    if (ENGINE_PRETENCE(e->rank) == PRETEND_UNREACHABLE || e->device_place == NULL) return false;
    for (int i = 0; i < g->size; i++)
        if ((!is_hier && e->place_of[g->ranks[i]] != e->place_of[e->rank]) ||
            e->device_address[g->ranks[i]][0] == '\0')
            return false;
    return is_hier ? hier_fits_devices(g->hier, &c->call) : g->order == NULL;
}

/* The members of a group on this host, in its order. */
typedef struct {
    const char **address;
    int *ranks;
    int n, own;
    void *arrays;
} company;

static bool find_company(const coll_engine *e, const pen_group *g, company *found)
{
    const size_t many = (size_t)g->size;
    *found            = (company){0};
    found->arrays     = ARRAYS_NEW(ARRAY(found->address, many), ARRAY(found->ranks, many));
    for (int i = 0; i < g->size && found->arrays != NULL; i++) {
        const int rank = g->ranks[i];
        if (e->place_of[rank] != e->place_of[e->rank]) continue;
        if (i == g->rank) found->own = found->n;
        found->ranks[found->n]     = rank;
        found->address[found->n++] = e->device_address[rank];
    }
    return found->arrays != NULL;
}

/* Looks for NCCL only if it may be used, because that loads it. */
static const nccl_table *nccl_of(const coll_engine *e, const device_ops *ops)
{
    const device_sync_choice sync = (device_sync_choice)e->setup.settings->device_backend;
    const bool is_wanted =
        sync == DEVICE_SYNC_NCCL ||
        (sync == DEVICE_SYNC_AUTO && (e->order == SUMS_LOOSE || schedule_wants_nccl(e->table)));
    return is_wanted && !device_is_host(ops) ? nccl_find() : NULL;
}

bool coll_engine_may_use_nccl(const coll_engine *e, const device_ops *ops)
{
    return e->world_size > 1 && nccl_of(e, ops) != NULL;
}

/* Members that sleep on the doorbell of shared memory also wait for what a member shows of its device. */
static void ring_members(void *user)
{
    pen_group *g = user;
    g->has_rung  = true;
    if (g->node != NULL) node_team_ring(g->node);
}

static device_options options_of(const coll_engine *e, pen_group *g, const device_ops *ops)
{
    device_options o = {.ops         = ops,
                        .device      = -1,
                        .sync        = (device_sync_choice)e->setup.settings->device_backend,
                        .may_reorder = e->order == SUMS_LOOSE,
                        .rules       = e->table,
                        .nccl        = nccl_of(e, ops),
                        .stop        = g->stop,
                        .ring        = ring_members,
                        .user        = g,
                        .stats       = e->setup.stats};
    return o;
}

static device_team *make_team(coll_engine *e, pen_group *g, const device_ops *ops, int device,
                              pen_error *why)
{
    const uint32_t *word;
    company here;
    if (coll_stop_word(g, ops, device, &word, why) != PEN_OK) return NULL;
    const device_options o = options_of(e, g, ops);
    device_team *team      = NULL;
    if (!find_company(e, g, &here)) {
        why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", g->size);
        return NULL;
    }
    if (device_team_create(e->device_place, g->id, here.address, here.ranks, here.n, here.own, &o,
                           &team, why) != PEN_OK)
        team = NULL;
    free(here.arrays);
    return team;
}

static void say_that_host_carries(const coll_engine *e, const char *reason)
{
    log_notice("rank %d: calls on device memory go through the host: %s", e->rank, reason);
}

/* ---- the path of a call ---------------------------------------------------------------------- */
/* Each returns the state that follows. */
static call_state take(engine_call *c, const coll_path *path, void *team, uint64_t *seq)
{
    c->path     = path;
    c->team     = team;
    c->on_mesh  = path == c->g->path && c->g->carrier == GROUP_WIRE;
    c->path_seq = ++*seq;
    return CALL_RUNNING;
}

static call_state take_path_of_group(engine_call *c)
{
    return take(c, c->g->path, c->g->team, &c->g->path_seq);
}

static call_state take_device(engine_call *c)
{
    pen_group *g = c->g;
    if (g->carrier != GROUP_HIER) return take(c, &coll_path_device, g->device, &g->device_seq);
    const hier_devices devices = {.inside = g->device,
                                  .ops    = c->ops,
                                  .stats  = g->engine->setup.stats,
                                  .device = engine_device_of(&c->call, c->ops)};
    hier_take_devices(g->hier, &devices); /* it works on the devices of each host */
    return take_path_of_group(c);
}

static call_state take_host(engine_call *c)
{
    (void)take_path_of_group(c);
    return CALL_STAGING;
}

static call_state prepare_vote(engine_call *c)
{
    pen_group *g   = c->g;
    coll_engine *e = g->engine;
    pen_error why;
    if (g->device == NULL)
        g->device = make_team(e, g, c->ops, engine_device_of(&c->call, c->ops), &why);
    if (g->device == NULL) say_that_host_carries(e, why.text);
    c->can  = g->device != NULL;
    c->vote = (coll_call){.kind  = COLL_ALL_REDUCE,
                          .op    = PEN_MIN,
                          .dtype = PEN_I32,
                          .n     = 1,
                          .in    = &c->can,
                          .out   = &c->all_can,
                          .scale = 1,
                          .label = c->label,
                          .shown = &c->call};
    (void)take_path_of_group(c);
    return CALL_AGREEING;
}

static call_state choose_for_device(engine_call *c)
{
    pen_group *g = c->g;
    if (g->size == 1)
        return take(c, &coll_path_self_device, (void *)(uintptr_t)c->ops, &g->path_seq);
    if (!may_have_team(c)) return take_host(c);
    if (!g->device_is_settled) return prepare_vote(c);
    return g->device_carries ? take_device(c) : take_host(c);
}

call_state engine_choose_path(engine_call *c)
{
    pen_group *g          = c->g;
    const bool is_barrier = c->call.kind == COLL_BARRIER;
    c->ops                = is_barrier ? device_host() : ops_of(c);
    const bool is_on_device =
        !device_is_host(c->ops) || ENGINE_PRETENCE(g->engine->rank) != PRETEND_NOTHING;
    c->call.on_device = is_on_device && !is_barrier;
    if (!is_barrier) g->was_on_device = c->call.on_device;
    if (g->device != NULL) device_team_mark(g->device, c->seq, c->call.on_device);
    return c->call.on_device ? choose_for_device(c) : take_path_of_group(c);
}

call_state engine_settle_device(engine_call *c)
{
    pen_group *g         = c->g;
    g->device_is_settled = true;
    g->device_carries    = c->all_can != 0;
    if (g->device_carries) {
        device_team_mark(g->device, c->seq, true);
        return take_device(c);
    }
    if (g->device != NULL) {
        say_that_host_carries(g->engine, "another member of the group cannot reach all devices");
        device_team_destroy(g->device);
        g->device = NULL;
    }
    return take_host(c);
}

/* ---- a path that cannot carry the group ------------------------------------------------------- */
static bool is_refused(const engine_call *c)
{
    const pen_group *g = c->g;
    if (c->path == &coll_path_device) return device_team_is_refused(g->device);
    return c->path == &coll_path_hier && c->call.on_device && !c->call.is_staged &&
           hier_refuses_devices(g->hier);
}

bool engine_goes_round_device(engine_call *c)
{
    pen_group *g = c->g;
    if (c->why.status != PEN_UNSUPPORTED || !is_refused(c)) return false;
    say_that_host_carries(g->engine, c->why.text);
    g->device_carries = false;
    (void)take_host(c);
    return true;
}

/* The member that refused makes the group's first call on the wire; so this is the first call here, too. */
bool engine_goes_round_node(engine_call *c)
{
    pen_group *g   = c->g;
    coll_engine *e = g->engine;
    if (c->path != &coll_path_node || c->why.status != PEN_UNREACHABLE ||
        !node_team_is_refused(g->node))
        return false;
    log_notice("%s: a group of %d uses sockets", c->why.text, g->size);
    pthread_mutex_lock(&e->lock);
    group_take_wire(g);
    pthread_mutex_unlock(&e->lock);
    g->path_seq--; /* the wire counts this call, as on the member that refused */
    (void)take_path_of_group(c);
    return true;
}

/* Elsewhere the headers show the difference: those of a vote, or of a path that carries both kinds. */
pen_status engine_compare_memory(engine_call *c, pen_error *why)
{
    const pen_group *g = c->g;
    if (g->device == NULL || !g->device_carries || g->carrier == GROUP_HIER) return PEN_OK;
    return device_team_compare(g->device, c->seq, c->call.on_device, why);
}
