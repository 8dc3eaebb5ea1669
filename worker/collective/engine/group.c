/* group.c - groups: ids that need no message, and the choice of a path. */
#include "worker/collective/engine/group.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "worker/collective/engine/engine_internal.h"
#include "worker/collective/fold_order.h"

#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------- */
uint64_t group_hash(uint64_t seed, const void *data, size_t size)
{
    const unsigned char *byte = data;
    uint64_t h                = seed ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) h = (h ^ byte[i]) * 0x100000001b3u;
    h = (h ^ (h >> 32)) * 0xd6e8feb86659fd93u;
    return h ^ (h >> 32);
}

static uint64_t never_small(uint64_t id)
{
    return id > 16 ? id : id + 17; /* small ids are reserved: the world's is 1 */
}

uint64_t group_child_id(pen_group *parent, const int *ranks, int n)
{
    const uint64_t members = group_hash((uint64_t)n, ranks, (size_t)n * sizeof *ranks);
    uint32_t i             = 0;
    while (i < parent->n_children && parent->child[i].members != members) i++;
    if (i == parent->n_children) {
        if (!VEC_MORE(parent->child, i)) return 0;
        parent->child[i] = (group_child){.members = members};
        parent->n_children++;
    }
    const uint64_t times = parent->child[i].times++;
    const uint64_t all[] = {parent->id, members, times};
    return never_small(group_hash(0, all, sizeof all));
}

const char *group_carrier_name(group_carrier carrier)
{
    static const char *const names[] = {"self", "node", "wire", "hier"};
    return names[carrier];
}

/* ---- the engine's list of groups -------------------------------------------------------------- */
static bool enlist(coll_engine *e, pen_group *g)
{
    pthread_mutex_lock(&e->lock);
    const bool is_there = VEC_MORE(e->group, (size_t)e->n_groups);
    if (is_there) {
        e->group[e->n_groups++] = g;
        engine_group_inherit(e, g);
    }
    pthread_mutex_unlock(&e->lock);
    return is_there;
}

/* ---- creation and destruction ---------------------------------------------------------------- */
static pen_group *make_group(pen_ctx *ctx, uint64_t id, const int *ranks, int n, int own)
{
    pen_group *g = calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    g->ranks = calloc((size_t)n, sizeof *g->ranks);
    if (g->ranks == NULL) {
        free(g);
        return NULL;
    }
    g->ctx  = ctx;
    g->id   = id;
    g->size = n;
    g->path = &coll_path_self;
    g->rank = -1;
    for (int i = 0; i < n; i++) {
        g->ranks[i] = ranks != NULL ? ranks[i] : i;
        if (g->ranks[i] == own) g->rank = i;
    }
    return g;
}

pen_group *group_create_world(pen_ctx *ctx, int size, int rank)
{
    pen_group *g = make_group(ctx, 1, NULL, size, rank);
    if (g != NULL) g->is_world = true;
    return g;
}

pen_status group_reach(coll_engine *e, const pen_group *g, pen_error *why)
{
    if (g->carrier != GROUP_WIRE && g->carrier != GROUP_HIER) return PEN_OK;
    pthread_mutex_lock(&e->mesh_lock);
    const pen_status status = wire_team_dial(g->wire, why);
    pthread_mutex_unlock(&e->mesh_lock);
    return status;
}

pen_status group_create(coll_engine *e, uint64_t id, const int *ranks, int n, pen_group **out,
                        pen_error *why)
{
    pen_group *g = make_group(e->setup.ctx, id, ranks, n, e->rank);
    if (g == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", n);
    g->engine         = e;
    pen_status status = coll_failure(g, why);
    if (status == PEN_OK) status = group_connect(e, g, why);
    if (status == PEN_OK) status = group_reach(e, g, why);
    if (status != PEN_OK) {
        group_destroy(g);
        return status;
    }
    *out = g;
    return PEN_OK;
}

void group_destroy(pen_group *g)
{
    if (g == NULL) return;
    coll_engine *e = g->engine;
    if (e != NULL) {
        /* The thread "pen-coll" may be inside this group's path: it leaves soon, because a path never waits. */
        pthread_mutex_lock(&e->lock);
        while (g->is_driven) pthread_cond_wait(&e->ended, &e->lock);
        for (int i = 0; i < e->n_groups; i++)
            if (e->group[i] == g) e->group[i--] = e->group[--e->n_groups];
        if (e->node_group == g) e->node_group = NULL;
        if (e->across_group == g) e->across_group = NULL;
        pthread_mutex_unlock(&e->lock);
        if (g->device != NULL && g->has_failed) device_team_stop(g->device);
        if (g->device != NULL) device_team_destroy(g->device);
        if (g->hier != NULL) hier_leave_devices(g->hier);
        engine_stages_free(g);
        engine_stop_free(g);
        pthread_mutex_lock(&e->mesh_lock);
        hier_team_destroy(g->hier);
        if (g->wire != NULL) wire_team_destroy(g->wire);
        pthread_mutex_unlock(&e->mesh_lock);
        if (g->node != NULL) node_team_destroy(g->node);
    }
    free(g->order);
    free(g->survivors);
    free(g->child);
    free(g->ranks);
    free(g);
}

/* ---- host layout ----------------------------------------------------------------------------- */
typedef struct {
    void *arrays;             /* all of these */
    int *host_of;             /* [size] position of the first member on the same host */
    int *place;               /* [size] of each member on its host */
    int *host;                /* [n_hosts] the first members */
    int n_hosts, inside_size; /* inside_size: members on this host */
    bool is_even;             /* the same number on every host */
} layout;

static bool look_at(const coll_engine *e, const pen_group *g, layout *l)
{
    const size_t n = (size_t)g->size;
    int *first, *count;
    void *scratch = ARRAYS_NEW(ARRAY(first, (size_t)e->world_size), ARRAY(count, n));
    *l            = (layout){.is_even = true};
    l->arrays     = ARRAYS_NEW(ARRAY(l->host_of, n), ARRAY(l->place, n), ARRAY(l->host, n));
    for (int i = 0; scratch != NULL && l->arrays != NULL && i < g->size; i++) {
        int *known = &first[e->place_of[g->ranks[i]]]; /* its host's first position, plus one */
        if (*known == 0) {
            *known                = i + 1;
            l->host[l->n_hosts++] = i;
        }
        l->host_of[i] = *known - 1;
        l->place[i]   = count[l->host_of[i]]++;
    }
    if (scratch == NULL || l->arrays == NULL) {
        free(scratch);
        free(l->arrays);
        return false;
    }
    l->inside_size = count[l->host_of[g->rank]];
    for (int k = 0; k < l->n_hosts; k++) l->is_even &= count[l->host[k]] == l->inside_size;
    free(scratch);
    return true;
}

/* ---- the order of folds ---------------------------------------------------------------------- */
static pen_status choose_order(const coll_engine *e, pen_group *g, pen_error *why)
{
    if (e->order != SUMS_BY_NODE) return PEN_OK;
    int *node     = calloc((size_t)g->size, sizeof *node);
    bool has_room = node != NULL;
    for (int i = 0; i < g->size && has_room; i++) node[i] = e->node_of[g->ranks[i]];
    has_room = has_room && fold_order_create(node, g->size, &g->order);
    free(node);
    return has_room ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", g->size);
}

/* Members share memory with those of their node, and with no others. */
static bool is_by_node(const coll_engine *e, const pen_group *g, const layout *l)
{
    for (int i = 0; i < g->size; i++)
        if (e->node_of[g->ranks[i]] != e->node_of[g->ranks[l->host_of[i]]]) return false;
    for (int i = 0; i < l->n_hosts; i++)
        for (int k = 0; k < i; k++)
            if (e->node_of[g->ranks[l->host[i]]] == e->node_of[g->ranks[l->host[k]]]) return false;
    return true;
}

/* Whether two levels fold floats in the order that the job wants. */
static bool may_fold_in_two(const coll_engine *e, const pen_group *g, const layout *l)
{
    switch (e->order) {
    case SUMS_LOOSE: return true;
    case SUMS_BY_NODE: return is_by_node(e, g, l);
    default: return e->two_level == TWO_LEVEL_YES;
    }
}

/* ---- teams ----------------------------------------------------------------------------------- */
static pen_status make_wire(coll_engine *e, uint64_t id, const int *ranks, int n, int rank,
                            wire_team **team, pen_error *why)
{
    pthread_mutex_lock(&e->mesh_lock);
    pen_status status = wire_team_create(e->mesh, id, ranks, n, rank, team, why);
    pthread_mutex_unlock(&e->mesh_lock);
    return status;
}

/* Members positions[n] of g: an array of their RANKs, and of their addresses. */
typedef struct {
    int *ranks;
    const char **address;
    int n, own;
} part;

static bool part_create(const pen_group *g, part *p)
{
    *p = (part){.ranks   = calloc((size_t)g->size, sizeof *p->ranks),
                .address = calloc((size_t)g->size, sizeof *p->address)};
    return p->ranks != NULL && p->address != NULL;
}

static void part_add(const coll_engine *e, const pen_group *g, part *p, int position)
{
    if (position == g->rank) p->own = p->n;
    p->ranks[p->n]     = g->ranks[position];
    p->address[p->n++] = e->node_address[g->ranks[position]];
}

static void part_free(part *p)
{
    free(p->ranks);
    free(p->address);
}

/* NULL: peers cannot be mapped; logged once and marked for the peers, and the wire carries all. */
static node_team *make_node(coll_engine *e, uint64_t id, const part *p)
{
    node_team *team = NULL;
    pen_error why;
    if (e->place == NULL) return NULL;
    if (node_team_create(e->place, id, p->address, p->ranks, p->n, p->own, &team, &why) == PEN_OK)
        return team;
    node_refuse(e->place, id);
    log_notice("rank %d: no shared memory with the %d workers of its host; they use sockets: %s",
               e->rank, p->n, why.text);
    return NULL;
}

/* *team NULL: peers cannot be mapped. */
static pen_status make_inside(coll_engine *e, const pen_group *g, const layout *l, node_team **team,
                              int *own, pen_error *why)
{
    part p;
    pen_status status = PEN_OK;
    *team             = NULL;
    if (part_create(g, &p)) {
        for (int i = 0; i < g->size; i++)
            if (l->host_of[i] == l->host_of[g->rank]) part_add(e, g, &p, i);
        const uint64_t name[] = {g->id, 1, (uint64_t)l->host_of[g->rank]};
        const uint64_t id = l->n_hosts == 1 ? g->id : never_small(group_hash(0, name, sizeof name));
        *own              = p.own;
        if (p.n > 1) *team = make_node(e, id, &p);
    } else {
        status = why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", g->size);
    }
    part_free(&p);
    return status;
}

static pen_status make_across(coll_engine *e, const pen_group *g, const layout *l, hier_options *o,
                              pen_error *why)
{
    part p;
    pen_status status = PEN_OK;
    if (!part_create(g, &p)) {
        status = why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", g->size);
    } else {
        int *at = p.ranks; /* by host, before the ranks */
        for (int i = 0; i < g->size; i++)
            if (l->place[i] == o->inside_rank) at[l->host_of[i]] = i;
        for (int k = 0; k < l->n_hosts; k++) part_add(e, g, &p, at[l->host[k]]);
        const uint64_t name[] = {g->id, 2, (uint64_t)o->inside_rank};
        o->across_size        = p.n;
        o->across_rank        = p.own;
        status = make_wire(e, never_small(group_hash(0, name, sizeof name)), p.ranks, p.n, p.own,
                           &o->across, why);
    }
    part_free(&p);
    return status;
}

static pen_status make_hier(coll_engine *e, pen_group *g, const layout *l, pen_error *why)
{
    hier_options o    = {.mesh_lock       = &e->mesh_lock,
                         .mesh            = e->mesh,
                         .flat            = g->wire,
                         .size            = g->size,
                         .rank            = g->rank,
                         .ranks           = g->ranks,
                         .host_of         = l->host_of,
                         .place           = l->place,
                         .inside_size     = l->inside_size,
                         .may_fold_in_two = may_fold_in_two(e, g, l)};
    pen_status status = PEN_OK;
    if (l->inside_size > 1) status = make_inside(e, g, l, &o.inside, &o.inside_rank, why);
    if (status == PEN_OK && l->is_even) status = make_across(e, g, l, &o, why);
    if (status == PEN_OK && (g->hier = hier_team_create(&o)) == NULL)
        status = why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", g->size);
    if (status == PEN_OK) {
        g->carrier = GROUP_HIER;
        g->path    = &coll_path_hier;
        g->team    = g->hier;
        return PEN_OK;
    }
    if (o.inside != NULL) node_team_destroy(o.inside);
    return status;
}

/* Uses only what all members know: a member without shared memory counts as a host, also for itself. */
static bool wants_two_levels(const coll_engine *e, const pen_group *g, const layout *l)
{
    if (e->two_level == TWO_LEVEL_NO || l->n_hosts == 1 || l->n_hosts == g->size) return false;
    /* Of many on one node, whose floats must be added one after another, the wire has fewer messages. */
    bool is_one_node = g->size > MESH_DIAL_ALL;
    for (int i = 0; i < g->size; i++)
        is_one_node &= e->node_of[g->ranks[i]] == e->node_of[g->ranks[0]];
    return !is_one_node || may_fold_in_two(e, g, l);
}

void group_take_wire(pen_group *g)
{
    g->carrier = GROUP_WIRE;
    g->path    = &coll_path_wire;
    g->team    = g->wire;
}

static pen_status choose(coll_engine *e, pen_group *g, const layout *l, pen_error *why)
{
    int own;
    group_take_wire(g);
    if (wants_two_levels(e, g, l)) return make_hier(e, g, l, why);
    if (l->n_hosts == 1 && make_inside(e, g, l, &g->node, &own, why) != PEN_OK) return why->status;
    if (g->node != NULL) {
        node_team_set_order(g->node, g->order);
        g->carrier = GROUP_NODE;
        g->path    = &coll_path_node;
        g->team    = g->node;
    }
    return PEN_OK;
}

pen_status group_connect(coll_engine *e, pen_group *g, pen_error *why)
{
    layout l;
    g->engine = e;
    if (g->size > 1) {
        pen_status status = make_wire(e, g->id, g->ranks, g->size, g->rank, &g->wire, why);
        if (status == PEN_OK) status = choose_order(e, g, why);
        if (status != PEN_OK) return status;
        wire_team_set_order(g->wire, g->order);
        if (!look_at(e, g, &l))
            return why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", g->size);
        status = choose(e, g, &l, why);
        free(l.arrays);
        if (status != PEN_OK) return status;
        log_info("group %016llx of %d: path %s", (unsigned long long)g->id, g->size,
                 group_carrier_name(g->carrier));
    }
    return enlist(e, g) ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for another group");
}
