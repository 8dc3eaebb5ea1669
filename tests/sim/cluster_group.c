/* cluster_group.c - a job without servers: workers that apply each step together and hold its state.
 *
 * The state is a number that depends on every step so far and on its contributors.  A step ends on each worker by
 * itself, some time after all members of its record have contributed; so when one dies or the epoch ends, some have
 * applied it and others have not.  A sealed worker applies nothing until the next epoch; a worker behind its record's
 * step then takes the state of one that is not. */
#include "tests/sim/cluster_state.h"

#include <inttypes.h>
#include <stdlib.h>

enum { LATE_MS = 40 }; /* maximum delay between the ends of a step on two workers */

static uint64_t now_of(const sim_worker *w)
{
    return sim_now(w->c, &w->clock);
}

static sim_worker *at(const sim_worker *w, uint32_t member)
{
    sim_worker *other = &w->c->worker[w->view.worker[member].rank];
    return other->incarnation == w->view.worker[member].incarnation ? other : NULL;
}

static bool is_behind(const sim_worker *w)
{
    return w->view.step >= 0 && w->step < (uint64_t)w->view.step;
}

void sim_group_begin(sim_worker *w)
{
    w->state = sim_need(calloc(w->c->plan.task.steps + 1, sizeof *w->state));
}

/* ---- epochs ---------------------------------------------------------------------------------- */
int64_t sim_group_seal(void *user)
{
    sim_worker *w = user;
    w->is_sealed  = true;
    return (int64_t)w->step;
}

void sim_group_install(sim_worker *w)
{
    w->is_sealed     = false;
    w->given.epoch   = 0;
    w->group_wake_ms = 0;
    if (w->view.step >= 0 && w->step > (uint64_t)w->view.step)
        sim_wrong(w->c,
                  "rank %u has applied %" PRIu64 " steps, and epoch %" PRIu64
                  " goes on from %" PRId64,
                  w->rank, w->step, w->view.epoch, w->view.step);
}

/* ---- a step ---------------------------------------------------------------------------------- */
static void contribute(sim_worker *w)
{
    w->given.term  = w->view.term;
    w->given.epoch = w->view.epoch;
    w->given.steps = w->step + 1;
}

static bool have_all_contributed(const sim_worker *w)
{
    for (uint32_t i = 0; i < w->view.n_workers; i++) {
        const sim_worker *other = at(w, i);
        if (other == NULL || other->given.term != w->view.term ||
            other->given.epoch != w->view.epoch || other->given.steps <= w->step)
            return false;
    }
    return true;
}

/* All workers in the job have the same state after the same step. */
static void check_state(const sim_worker *w)
{
    for (uint32_t i = 0; i < w->view.n_workers; i++) {
        const sim_worker *other = at(w, i);
        if (other != NULL && other->step >= w->step && other->state[w->step] != w->state[w->step])
            sim_wrong(w->c, "ranks %u and %u differ after step %" PRIu64, w->rank, other->rank,
                      w->step - 1);
    }
}

static void apply(sim_worker *w)
{
    double ranks = 0;
    for (uint32_t i = 0; i < w->view.n_workers; i++)
        ranks += sim_mark((uint32_t)w->view.worker[i].rank);
    w->state[w->step + 1] = draw_mix(w->state[w->step] ^ (uint64_t)ranks << 8 ^ w->step);
    w->step++;
    w->c->result.applied++;
    check_state(w);
}

static bool fill(sim_worker *w)
{
    for (uint32_t i = 0; i < w->view.n_workers; i++) {
        const sim_worker *other = at(w, i);
        if (other == NULL || other->life != LIFE_RUNS || other->step < (uint64_t)w->view.step)
            continue;
        for (uint64_t s = w->step; s <= other->step; s++) w->state[s] = other->state[s];
        w->step = other->step;
        w->c->result.fills++;
        return true;
    }
    return false;
}

/* True if it made progress. */
bool sim_group_step(sim_worker *w)
{
    const uint64_t now = now_of(w);
    if (w->is_sealed) return false;
    if (!is_behind(w)) contribute(w);
    if (!is_behind(w) && !have_all_contributed(w)) return false;
    if (w->group_wake_ms == 0) w->group_wake_ms = now + 1 + draw_below(&w->chance, LATE_MS);
    if (now < w->group_wake_ms) return false;
    if (is_behind(w)) {
        w->group_wake_ms = 0;
        if (!fill(w)) return false;
    } else {
        apply(w);
    }
    w->group_wake_ms = 0;
    w->at            = AT_BEGIN;
    return true;
}

/* No worker leaves before all have applied the last step: its state may be needed. */
bool sim_group_may_leave(const sim_worker *w)
{
    if (w->is_sealed) return false;
    for (uint32_t i = 0; i < w->view.n_workers; i++) {
        const sim_worker *other = at(w, i);
        if (other != NULL && other->life == LIFE_RUNS && other->step < w->c->plan.task.steps)
            return false;
    }
    return true;
}
