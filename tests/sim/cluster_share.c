/* cluster_share.c - which memory can be mapped by which worker, and whether the record agrees.
 *
 * Workers see the memory of those in their room (a /dev/shm of a machine or of containers that share one).  A liar
 * reports numbers that it has not read, and a blind one reads nothing: both must be alone.  A boaster reports what it
 * has read and guesses the rest, and must gain nothing. */
#include "tests/sim/cluster_state.h"

#include "tests/sim/draw.h"

#include <inttypes.h>

static bool is_in(uint32_t set, uint32_t rank)
{
    return rank < SIM_FEW_RANKS && set >> rank & 1;
}

uint64_t sim_share_number(const sim_worker *w)
{
    const uint64_t process = w->c->plan.task.seed * 1000003 + w->rank * 1009 + w->birth;
    return w->c->plan.sharing.proves ? draw_mix(process) | 1 : 0;
}

uint32_t sim_share_prove(void *user, const wire_member *worker, uint32_t n, int32_t *rank,
                         uint64_t *number)
{
    sim_worker *w         = user;
    const sim_sharing *s  = &w->c->plan.sharing;
    const bool is_boaster = is_in(s->boasters, w->rank), is_liar = is_in(s->liars, w->rank);
    uint32_t told = 0;
    for (uint32_t i = 0; i < n && !is_in(s->blind, w->rank); i++) {
        const uint32_t other = (uint32_t)worker[i].rank;
        const bool can_read  = other < w->c->n_workers && s->room[other] == s->room[w->rank];
        if (other == w->rank || !(can_read || is_boaster || is_liar)) continue;
        rank[told]   = worker[i].rank;
        number[told] = can_read && !is_liar          ? sim_share_number(&w->c->worker[other])
                       : draw_chance(&w->chance, 50) ? sim_share_number(w) /* its own */
                                                     : draw(&w->chance);
        told++;
    }
    return told;
}

/* ---- the record ------------------------------------------------------------------------------ */
static bool can_map(const sim_sharing *s, uint32_t a, uint32_t b)
{
    const uint32_t alone = s->liars | s->blind;
    return a == b || (s->room[a] == s->room[b] && !is_in(alone, a) && !is_in(alone, b));
}

/* With faults an answer may be late: a missing worker is alone then. */
static bool is_exact(const sim_plan *p)
{
    return p->n_events == 0 && p->control.break_ms == 0 && p->crash_at_keep == 0;
}

static bool was_first(const cluster *c, const wire_member *m)
{
    for (uint32_t i = 0; i < c->n_founders; i++)
        if (c->founder[i] == m->incarnation) return true;
    return false;
}

static void check_pair(cluster *c, const wire_epoch *r, const wire_member *a, const wire_member *b)
{
    const bool can = can_map(&c->plan.sharing, (uint32_t)a->rank, (uint32_t)b->rank);
    if (a->sharing == b->sharing && !can)
        sim_wrong(c, "epoch %" PRIu64 " says that ranks %d and %d share memory", r->epoch, a->rank,
                  b->rank);
    if (a->sharing != b->sharing && can && is_exact(&c->plan))
        sim_wrong(c, "epoch %" PRIu64 " says that ranks %d and %d share no memory", r->epoch,
                  a->rank, b->rank);
}

void check_sharing(cluster *c, const wire_epoch *r)
{
    const bool is_first = c->n_founders == 0;
    if (!c->plan.sharing.proves) return;
    for (uint32_t i = 0; is_first && i < r->n_workers; i++)
        c->founder[c->n_founders++] = r->worker[i].incarnation;
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const wire_member *m = &r->worker[i];
        if (m->sharing > m->rank || (!was_first(c, m) && m->sharing != m->rank))
            sim_wrong(c, "epoch %" PRIu64 " puts rank %d, which proved nothing, to rank %d",
                      r->epoch, m->rank, m->sharing);
        for (uint32_t k = 0; k < i; k++) check_pair(c, r, &r->worker[k], m);
        c->result.shared += is_first && m->sharing != m->rank;
    }
}
