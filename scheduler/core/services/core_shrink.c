/* core_shrink.c - SHRINK and SHRUNK: the live members of a group agree on the survivors.
 *
 * DESIGN.  Every live member sends SHRINK with the list of live members.  When all have, they are the survivors and
 * receive the same list and the same number for their new group.  Members that died or left are not awaited, so a death
 * may complete an agreement.  Answers are remembered for repeats; without room, the oldest finished one goes.
 */
#include "common/containers/hash.h"
#include "common/containers/arrays.h"
#include "scheduler/core/services/core_services.h"
#include <stdlib.h>
#include <string.h>

static void forget(core_shrink *a)
{
    free(a->rank);
    free(a->has_asked);
    *a = (core_shrink){0};
}

void core_shrink_fini(core_shrinks *self)
{
    for (int i = 0; i < CORE_SHRINKS_MAX; i++) forget(&self->at[i]);
}

/* ---- answering ------------------------------------------------------------------------------- */
static void refuse(const core_out *out, const member_slot *s, uint64_t group, pen_status status,
                   const char *text)
{
    wire_control c = {.kind     = WIRE_SHRUNK,
                      .u.shrunk = {.group = group, .status = status, .text = text}};
    core_send(out, s, &c);
}

static wire_control shrunk_message(const core_shrink *a)
{
    wire_control c = {
        .kind     = WIRE_SHRUNK,
        .u.shrunk = {
            .group = a->group, .new_group = a->new_group, .n_ranks = a->n, .rank = a->rank}};
    return c;
}

static bool is_waited_for(const core_out *out, const core_shrink *a, uint32_t i)
{
    return !a->has_asked[i] &&
           member_slot_is_counted(roster_find(out->all, PEN_WORKER, a->rank[i]));
}

static bool is_survivor(const core_out *out, const core_shrink *a, uint32_t i)
{
    return a->has_asked[i] && member_slot_is_counted(roster_find(out->all, PEN_WORKER, a->rank[i]));
}

/* Reduces a->rank to the survivors. */
static void complete(const core_out *out, core_shrink *a)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < a->n; i++)
        if (is_survivor(out, a, i)) a->rank[n++] = a->rank[i];
    a->n       = n;
    a->is_over = true;
    /* Equal for the same survivors of the same group, else different; never 0. */
    const uint64_t both[] = {a->group, hash_bytes(a->rank, a->n * sizeof *a->rank)};
    a->new_group          = hash_bytes(both, sizeof both);
    free(a->has_asked);
    a->has_asked         = NULL;
    const wire_control c = shrunk_message(a);
    for (uint32_t i = 0; i < n; i++)
        core_send(out, roster_find(out->all, PEN_WORKER, a->rank[i]), &c);
}

static void settle_group(const core_out *out, core_shrink *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (is_waited_for(out, a, i)) return;
    complete(out, a);
}

void core_shrink_settle(core_shrinks *self, const core_out *out)
{
    for (int i = 0; i < CORE_SHRINKS_MAX; i++)
        if (self->at[i].is_used && !self->at[i].is_over) settle_group(out, &self->at[i]);
}

/* ---- asking ---------------------------------------------------------------------------------- */
static bool is_well_formed(const core_out *out, const member_slot *s, const wire_control *c)
{
    bool is_in         = false;
    const uint32_t n   = c->u.shrink.n_ranks;
    const int32_t *all = c->u.shrink.rank;
    bool *has          = calloc(out->all->workers.n, sizeof *has);
    uint32_t i         = 0;
    for (; has && i < n && roster_find(out->all, PEN_WORKER, all[i]) && !has[all[i]]; i++) {
        has[all[i]] = true;
        is_in       = is_in || all[i] == s->rank;
    }
    free(has);
    return i == n && is_in;
}

static core_shrink *find_shrink(core_shrinks *self, uint64_t group)
{
    for (int i = 0; i < CORE_SHRINKS_MAX; i++)
        if (self->at[i].is_used && self->at[i].group == group) return &self->at[i];
    return NULL;
}

/* A free place, else the oldest finished one; NULL: all are in progress. */
static core_shrink *make_room(core_shrinks *self)
{
    core_shrink *oldest = NULL;
    for (int i = 0; i < CORE_SHRINKS_MAX; i++) {
        core_shrink *a = &self->at[i];
        if (!a->is_used) return a;
        if (a->is_over && (!oldest || a->serial < oldest->serial)) oldest = a;
    }
    if (oldest) forget(oldest);
    return oldest;
}

static bool is_listed(const core_shrink *a, int32_t rank)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (a->rank[i] == rank) return true;
    return false;
}

/* Askers omit members they know to be lost, and their knowledge may differ. */
static bool merge(core_shrink *a, const wire_control *c)
{
    const size_t n = (size_t)a->n + c->u.shrink.n_ranks;
    if (!VEC_ROOM(a->rank, a->ranks_capacity, n) || !VEC_ROOM(a->has_asked, a->asked_capacity, n))
        return false;
    for (uint32_t i = 0; i < c->u.shrink.n_ranks; i++) {
        if (is_listed(a, c->u.shrink.rank[i])) continue;
        a->has_asked[a->n] = false;
        a->rank[a->n++]    = c->u.shrink.rank[i];
    }
    return true;
}

static void take(const core_out *out, const member_slot *s, core_shrink *a)
{
    if (a->is_over) {
        const wire_control again = shrunk_message(a);
        core_send(out, s, &again);
        return;
    }
    for (uint32_t i = 0; i < a->n; i++)
        if (a->rank[i] == s->rank) a->has_asked[i] = true;
    settle_group(out, a);
}

void core_shrink_ask(core_shrinks *self, const core_out *out, const member_slot *s,
                     const wire_control *message)
{
    const uint64_t group = message->u.shrink.group;
    if (!is_well_formed(out, s, message)) {
        refuse(out, s, group, PEN_INVALID_ARGUMENT,
               "invalid list of ranks to shrink to: expected different ranks of the job, the "
               "caller's among them");
        return;
    }
    core_shrink *a = find_shrink(self, group);
    if (!a) {
        a = make_room(self);
        if (a) *a = (core_shrink){.is_used = true, .group = group, .serial = ++self->serial};
    }
    if (a && (a->is_over || merge(a, message))) {
        take(out, s, a);
        return;
    }
    if (a && a->n == 0) forget(a);
    refuse(out, s, group, PEN_NO_MEMORY, "the scheduler has no room for another agreement");
}
