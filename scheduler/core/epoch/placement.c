/* placement.c - deals shards to servers, and moves copies one step at a time. */
#include "scheduler/core/epoch/placement.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include <stdlib.h>
#include <string.h>

/* ---- tables ---------------------------------------------------------------------------------- */
void placement_fini(placement *table)
{
    free(table->row);
    *table = (placement){0};
}

bool placement_copy(const placement *from, placement *to)
{
    if (!VEC_ROOM(to->row, to->capacity, from->n)) return false;
    if (from->n) memcpy(to->row, from->row, from->n * sizeof *from->row);
    to->n = from->n;
    return true;
}

placement_row *placement_find(const placement *table, uint32_t shard, int32_t server)
{
    for (uint32_t i = 0; i < table->n; i++)
        if (table->row[i].at.shard == shard && table->row[i].at.server == server)
            return &table->row[i];
    return NULL;
}

placement_row *placement_primary(const placement *table, uint32_t shard)
{
    for (uint32_t i = 0; i < table->n; i++)
        if (table->row[i].at.shard == shard && table->row[i].at.role == WIRE_PRIMARY)
            return &table->row[i];
    return NULL;
}

static int compare_rows(const void *a, const void *b)
{
    const wire_replica *x = &((const placement_row *)a)->at, *y = &((const placement_row *)b)->at;
    if (x->shard != y->shard) return x->shard < y->shard ? -1 : 1;
    if (x->role != y->role) return x->role < y->role ? -1 : 1;
    return x->server < y->server ? -1 : x->server > y->server;
}

void placement_sort(placement *table)
{
    if (table->n) qsort(table->row, table->n, sizeof *table->row, compare_rows);
}

bool placement_add(placement *table, const wire_replica *copy)
{
    if (!VEC_ROOM(table->row, table->capacity, (size_t)table->n + 1)) return false;
    table->row[table->n++] = (placement_row){.at = *copy};
    placement_sort(table);
    return true;
}

void placement_remove(placement *table, const placement_row *row)
{
    const size_t i = (size_t)(row - table->row);
    table->n--;
    memmove(&table->row[i], &table->row[i + 1], (table->n - i) * sizeof *row);
}

uint32_t placement_count(const placement *table, int32_t server)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < table->n; i++) n += table->row[i].at.server == server;
    return n;
}

/* ---- building a goal ------------------------------------------------------------------------- */
typedef struct {
    const placement_server *server;
    uint32_t n_servers, n_shards, wanted; /* copies of each shard */
    placement table;
    uint32_t *copies, *primaries; /* [n_servers] */
} draft;

static bool is_usable(const draft *d, uint32_t server)
{
    return server < d->n_servers && d->server[server].places > 0 && !d->server[server].is_draining;
}

static const char *machine_of(const draft *d, uint32_t server)
{
    return d->server[server].machine ? d->server[server].machine : "";
}

static uint32_t copies_of(const placement *table, uint32_t shard)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < table->n; i++) n += table->row[i].at.shard == shard;
    return n;
}

/* The thread of a server with the fewest copies; among these, with the fewest primaries. */
static uint32_t least_place(const draft *d, uint32_t server)
{
    uint32_t best = 0, best_load = UINT32_MAX;
    for (uint32_t place = 0; place < d->server[server].places; place++) {
        uint32_t load = 0;
        for (uint32_t i = 0; i < d->table.n; i++) {
            const wire_replica *r = &d->table.row[i].at;
            if (r->server != (int32_t)server || r->place != place) continue;
            load += r->role == WIRE_PRIMARY ? 0x10001 : 0x10000;
        }
        if (load >= best_load) continue;
        best      = place;
        best_load = load;
    }
    return best;
}

static bool draft_add(draft *d, uint32_t shard, uint32_t server, uint32_t place, int32_t role)
{
    const wire_replica copy = {
        .shard = shard, .server = (int32_t)server, .place = place, .role = role};
    if (!placement_add(&d->table, &copy)) return false;
    d->copies[server]++;
    if (role == WIRE_PRIMARY) d->primaries[server]++;
    return true;
}

/* Whether this machine has another copy of the shard, beside the one on `except`. */
static bool shares_machine(const draft *d, uint32_t shard, uint32_t server, uint32_t except)
{
    const char *machine = machine_of(d, server);
    for (uint32_t i = 0; machine[0] && i < d->table.n; i++) {
        const wire_replica *r = &d->table.row[i].at;
        if (r->shard == shard && r->server != (int32_t)except &&
            strcmp(machine_of(d, (uint32_t)r->server), machine) == 0)
            return true;
    }
    return false;
}

/* ---- its parts ------------------------------------------------------------------------------- */
/* Keeps the copies that may stay: the primary first, then backups, then learners. */
static bool keep_copies(draft *d, const placement *now)
{
    for (uint32_t i = 0; i < now->n; i++) {
        const wire_replica *r = &now->row[i].at;
        const uint32_t n      = copies_of(&d->table, r->shard);
        if (r->shard >= d->n_shards || n >= d->wanted || !is_usable(d, (uint32_t)r->server))
            continue;
        if (!draft_add(d, r->shard, (uint32_t)r->server, r->place, n ? WIRE_BACKUP : WIRE_PRIMARY))
            return false;
    }
    return true;
}

static uint32_t count_threads(const draft *d)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < d->n_servers; s++)
        if (is_usable(d, s)) n += d->server[s].places;
    return n;
}

static bool deal_to_threads(draft *d)
{
    uint32_t shard = 0;
    for (uint32_t s = 0; s < d->n_servers; s++)
        for (uint32_t place = 0; is_usable(d, s) && place < d->server[s].places; place++)
            if (!draft_add(d, shard++, s, place, WIRE_PRIMARY)) return false;
    return true;
}

static bool add_copy(draft *d, uint32_t shard)
{
    const bool is_primary = copies_of(&d->table, shard) == 0;
    uint32_t best         = UINT32_MAX;
    uint64_t best_cost    = UINT64_MAX;
    for (uint32_t s = 0; s < d->n_servers; s++) {
        if (!is_usable(d, s) || placement_find(&d->table, shard, (int32_t)s)) continue;
        /* The cost of one more copy of this shard on this server: smaller is better. */
        const placement_row *primary = placement_primary(&d->table, shard);
        const uint32_t from          = primary ? (uint32_t)primary->at.server : shard;
        const uint64_t distance      = (s + d->n_servers - from % d->n_servers) % d->n_servers;
        const uint64_t load          = is_primary ? d->primaries[s] : d->copies[s];
        const uint64_t c = (uint64_t)shares_machine(d, shard, s, UINT32_MAX) << 62 | load << 40 |
                           (uint64_t)d->copies[s] << 20 | distance;
        if (c >= best_cost) continue;
        best      = s;
        best_cost = c;
    }
    if (best == UINT32_MAX) return true; /* no servers left */
    return draft_add(d, shard, best, least_place(d, best), is_primary ? WIRE_PRIMARY : WIRE_BACKUP);
}

static bool fill(draft *d)
{
    for (uint32_t copies = 1; copies <= d->wanted; copies++)
        for (uint32_t shard = 0; shard < d->n_shards; shard++)
            if (copies_of(&d->table, shard) < copies && !add_copy(d, shard)) return false;
    return true;
}

static void find_extremes(const draft *d, const uint32_t *load, uint32_t *most, uint32_t *least)
{
    *most = *least = UINT32_MAX;
    for (uint32_t s = 0; s < d->n_servers; s++) {
        if (!is_usable(d, s)) continue;
        if (*most == UINT32_MAX || load[s] > load[*most]) *most = s;
        if (*least == UINT32_MAX || load[s] < load[*least]) *least = s;
    }
}

/* A copy on `from` that `to` lacks: preferably a backup, and not on the machine of another copy. */
static placement_row *find_movable(const draft *d, uint32_t from, uint32_t to)
{
    placement_row *best = NULL;
    int best_cost       = 4;
    for (uint32_t i = 0; i < d->table.n; i++) {
        placement_row *row = &d->table.row[i];
        if (row->at.server != (int32_t)from ||
            placement_find(&d->table, row->at.shard, (int32_t)to))
            continue;
        const int c =
            2 * shares_machine(d, row->at.shard, to, from) + (row->at.role == WIRE_PRIMARY);
        if (c >= best_cost) continue;
        best      = row;
        best_cost = c;
    }
    return best;
}

static void balance_copies(draft *d)
{
    uint32_t most, least;
    for (uint32_t moves = 0; moves < d->table.n; moves++) {
        find_extremes(d, d->copies, &most, &least);
        if (d->copies[most] - d->copies[least] < 2) return;
        placement_row *row = find_movable(d, most, least);
        if (!row) return;
        const uint32_t place = least_place(d, least);
        d->primaries[most] -= row->at.role == WIRE_PRIMARY;
        d->primaries[least] += row->at.role == WIRE_PRIMARY;
        d->copies[most]--;
        d->copies[least]++;
        row->at.server = (int32_t)least;
        row->at.place  = place;
        placement_sort(&d->table);
    }
}

static void swap_primary(placement *table, uint32_t shard, int32_t server)
{
    placement_row *old = placement_primary(table, shard),
                  *new = placement_find(table, shard, server);
    if (old) old->at.role = WIRE_BACKUP;
    new->at.role = WIRE_PRIMARY;
    placement_sort(table);
}

/* A path from `from` to a server with at least two primaries less.  Each hop is a shard with its primary on one server
 * and a backup on the next.  via[s]: the shard that leads to s. */
static uint32_t find_way(const draft *d, uint32_t from, uint32_t *via, uint32_t *queue)
{
    for (uint32_t s = 0; s < d->n_servers; s++) via[s] = UINT32_MAX;
    uint32_t n = 0;
    queue[n++] = from;
    for (uint32_t head = 0; head < n; head++)
        for (uint32_t i = 0; i < d->table.n; i++) {
            const wire_replica *r        = &d->table.row[i].at;
            const placement_row *primary = placement_primary(&d->table, r->shard);
            const uint32_t to            = (uint32_t)r->server;
            if (primary->at.server != (int32_t)queue[head] || to == from || via[to] != UINT32_MAX)
                continue;
            via[to]    = r->shard;
            queue[n++] = to;
            if (d->primaries[to] + 1 < d->primaries[from]) return to;
        }
    return UINT32_MAX;
}

static bool balance_primaries(draft *d)
{
    uint32_t *via = malloc(2 * d->n_servers * sizeof *via), most, least;
    for (uint32_t moves = 0; via && moves < d->table.n; moves++) {
        find_extremes(d, d->primaries, &most, &least);
        if (d->primaries[most] - d->primaries[least] < 2) break;
        uint32_t to = find_way(d, most, via, via + d->n_servers);
        if (to == UINT32_MAX) break;
        d->primaries[to]++;
        d->primaries[most]--;
        while (to != most) { /* backwards: each shard's primary comes from the server before */
            const uint32_t from = (uint32_t)placement_primary(&d->table, via[to])->at.server;
            swap_primary(&d->table, via[to], (int32_t)to);
            to = from;
        }
    }
    const bool done = via != NULL;
    free(via);
    return done;
}

static bool make_placement(draft *d, const placement *now)
{
    if (!keep_copies(d, now)) return false;
    const bool is_first = now->n == 0;
    if (is_first && count_threads(d) == d->n_shards && !deal_to_threads(d)) return false;
    if (!fill(d)) return false;
    if (!is_first) balance_copies(d);
    return balance_primaries(d);
}

pen_status placement_goal(const placement *now, uint32_t n_shards, const placement_server *server,
                          uint32_t n_servers, uint32_t replicas, placement *goal)
{
    draft d         = {.server = server, .n_servers = n_servers, .n_shards = n_shards};
    uint32_t usable = 0;
    for (uint32_t s = 0; s < n_servers; s++) usable += is_usable(&d, s);
    if (!usable) return PEN_WRONG_STATE;
    d.wanted    = replicas + 1 < usable ? replicas + 1 : usable;
    d.copies    = calloc(n_servers, sizeof *d.copies);
    d.primaries = calloc(n_servers, sizeof *d.primaries);
    const bool made =
        d.copies && d.primaries && make_placement(&d, now) && placement_copy(&d.table, goal);
    free(d.copies);
    free(d.primaries);
    placement_fini(&d.table);
    return made ? PEN_OK : PEN_NO_MEMORY;
}

/* ---- moving to the goal ---------------------------------------------------------------------- */
/* Whether the shard's whole goal is in R. */
static bool has_arrived(const placement *table, const placement *goal, uint32_t shard)
{
    bool any = false;
    for (uint32_t i = 0; i < goal->n; i++) {
        if (goal->row[i].at.shard != shard) continue;
        const placement_row *row = placement_find(table, shard, goal->row[i].at.server);
        if (!row || row->at.role == WIRE_LEARNER) return false;
        any = true;
    }
    return any;
}

static bool add_learners(placement *table, const placement *goal)
{
    for (uint32_t i = 0; i < goal->n; i++) {
        wire_replica copy = goal->row[i].at;
        if (placement_find(table, copy.shard, copy.server)) continue;
        copy.role = WIRE_LEARNER;
        if (!placement_add(table, &copy)) return false;
    }
    return true;
}

static void move_primaries(placement *table, const placement *goal)
{
    for (uint32_t i = 0; i < goal->n; i++) {
        const wire_replica *wanted = &goal->row[i].at;
        const placement_row *row   = placement_find(table, wanted->shard, wanted->server);
        if (wanted->role == WIRE_PRIMARY && row && row->at.role == WIRE_BACKUP)
            swap_primary(table, wanted->shard, wanted->server);
    }
}

static void drop_surplus(placement *table, const placement *goal)
{
    for (uint32_t i = table->n; i-- > 0;) {
        const placement_row *row = &table->row[i];
        if (placement_find(goal, row->at.shard, row->at.server)) continue;
        if (row->at.role == WIRE_LEARNER || has_arrived(table, goal, row->at.shard))
            placement_remove(table, row);
    }
}

bool placement_follow(placement *table, const placement *goal)
{
    placement next = {0};
    if (!placement_copy(table, &next) || !add_learners(&next, goal)) {
        placement_fini(&next);
        return false;
    }
    move_primaries(&next, goal);
    drop_surplus(&next, goal);
    placement_fini(table);
    *table = next;
    return true;
}

static bool is_same(const placement *a, const placement *b)
{
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (a->row[i].at.shard != b->row[i].at.shard || a->row[i].at.role != b->row[i].at.role ||
            a->row[i].at.server != b->row[i].at.server)
            return false;
    return true;
}

bool placement_can_move(const placement *table, const placement *goal)
{
    placement next = {0};
    bool moves     = false;
    if (goal->n && placement_copy(table, &next)) {
        for (uint32_t i = 0; i < next.n; i++)
            if (next.row[i].at.role == WIRE_LEARNER && next.row[i].is_caught_up)
                next.row[i].at.role = WIRE_BACKUP;
        placement_sort(&next);
        moves = placement_follow(&next, goal) && !is_same(&next, table);
    }
    placement_fini(&next);
    return moves;
}
