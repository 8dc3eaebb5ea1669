/* revive.c - restarts after deaths, and processes that start or leave because the job was scaled.
 *
 * DESIGN.  The scheduler decides what a death means; the launcher only restarts processes:
 *   scheduler  if it persists its state: on the same port, so that members find it
 *   server     if its shards have copies: it starts empty, and the new primaries fill it
 *   worker     with on_worker_loss=wait, --max-restarts times
 * Repeated deaths double the pause before a restart.  A verdict that comes within it ends the job instead, so nobody is
 * told of a restart before it is made.
 */
#include "cli/command.h"
#include "cli/run/launcher.h"
#include "common/base/clock.h"
#include "common/base/why.h"

#include <inttypes.h>
#include <stdlib.h>

enum { PAUSE_MS = 100, PAUSE_MAX_MS = 10000, STEADY_S = 30 };

/* ---- processes to restart ------------------------------------------------------------------------------ */
static bool has_failed(const process *p)
{
    return p->exit_code != 0 || p->exit_signal != 0;
}

static bool has_restarts(const launcher *l, const process *p)
{
    return p->restarts < l->options.max_restarts && !process_cannot_run(p);
}

bool revive_may_restart(const launcher *l, const process *p)
{
    const run_options *o = &l->options;
    if (l->stopping || l->asked || l->has_verdict || p->is_leaving) return false;
    switch (p->role) {
    case PEN_SCHEDULER: return l->state[0] != '\0' && p->exit_signal != 0;
    case PEN_SERVER: return o->replicas > 0 && has_failed(p);
    default: return o->loss == LOSS_WAIT && has_failed(p) && has_restarts(l, p);
    }
}

/* The first restart is almost immediate; a long run resets the pause. */
static uint64_t pause_ms(const process *p)
{
    uint64_t pause = PAUSE_MS;
    if (p->ended_s - p->started_s > STEADY_S) return pause;
    for (int i = 0; i < p->restarts && pause < PAUSE_MAX_MS; i++) pause *= 2;
    return pause < PAUSE_MAX_MS ? pause : PAUSE_MAX_MS;
}

const char *revive_end_note(const launcher *l, const process *p)
{
    const bool is_last = p->role == PEN_WORKER && l->options.loss == LOSS_WAIT && has_failed(p) &&
                         !has_restarts(l, p);
    return is_last ? "no restarts left" : "";
}

/* The scheduler decides: LOST, a take-over by a copy, or a verdict. */
static bool is_for_scheduler(const launcher *l, const process *p, uint64_t now)
{
    if (l->link == NULL && !launcher_seeks_link(l, now)) return false;
    if (p->role == PEN_SERVER) return l->options.replicas > 0;
    return p->role == PEN_WORKER && l->options.loss != LOSS_FAIL;
}

bool revive_takes_end(launcher *l, process *p, uint64_t now)
{
    if (revive_may_restart(l, p)) {
        p->due_ms = now + pause_ms(p);
        p->lost   = true; /* not a failure if the job ends before the restart */
        return true;
    }
    return p->is_leaving || is_for_scheduler(l, p, now);
}

/* ---- restarts --------------------------------------------------------------------------------------- */
uint64_t revive_ms(const launcher *l)
{
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < l->n; i++)
        if (l->all[i].due_ms != 0 && l->all[i].due_ms < next) next = l->all[i].due_ms;
    return next;
}

static pen_status start(launcher *l, int32_t role, int32_t rank, int32_t local_rank, pen_error *why)
{
    switch (role) {
    case PEN_SCHEDULER: {
        const pen_status status = launcher_start_scheduler(l, why);
        if (status == PEN_OK) launcher_write_note(l);
        return status;
    }
    case PEN_SERVER: return launcher_start_server(l, rank, why);
    default: return launcher_start_worker(l, rank, local_rank, why);
    }
}

/* All workers have left, even if some failed after that. */
static bool is_over(const launcher *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->all[i].role == PEN_SCHEDULER) return l->all[i].ended && l->all[i].due_ms == 0;
    return false;
}

void revive_due(launcher *l, uint64_t now)
{
    for (size_t i = 0; i < l->n; i++) {
        process *p = &l->all[i];
        if (p->due_ms == 0 || p->due_ms > now) continue;
        p->due_ms = 0;
        if (l->stopping || l->asked || l->has_verdict) continue;
        if (p->role == PEN_WORKER && is_over(l)) {
            p->lost = false; /* no job is left to rejoin: its failure counts */
            continue;
        }
        if (p->role == PEN_SCHEDULER)
            fprintf(stderr, "penstock: the scheduler was killed by signal %d; restarting it\n",
                    p->exit_signal);
        else
            fprintf(stderr, "penstock: %s ended (%s %d); restarting it\n", p->name,
                    p->exit_signal != 0 ? "signal" : "exit code",
                    p->exit_signal != 0 ? p->exit_signal : p->exit_code);
        pen_error why;
        if (start(l, p->role, p->rank, p->local_rank, &why) != PEN_OK)
            command_fail(1, "cannot restart %s: %s", p->name, why.text);
    }
}

/* ---- growing and shrinking -------------------------------------------------------------------------------- */
static process *find_process(launcher *l, int32_t role, int32_t rank)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->all[i].role == role && l->all[i].rank == rank) return &l->all[i];
    return NULL;
}

static bool is_missing(launcher *l, int32_t role, int32_t rank)
{
    const process *p = find_process(l, role, rank);
    return p == NULL || (p->ended && p->is_leaving && p->due_ms == 0);
}

static void mark_leaving(launcher *l, int32_t role, int from)
{
    for (size_t i = 0; i < l->n; i++) {
        process *p = &l->all[i];
        if (p->role == role && p->rank >= from && p->pid != 0) p->is_leaving = true;
    }
}

void revive_scale(launcher *l, int workers, int servers)
{
    const run_options *o = &l->options;
    pen_error why        = {.status = PEN_OK};
    pen_status status    = PEN_OK;
    int local_rank;
    if (l->stopping || l->asked) return;
    for (int r = 0; r < servers && status == PEN_OK; r++)
        if (launcher_node_of_server(o, r) == o->node_rank && is_missing(l, PEN_SERVER, r))
            status = launcher_start_server(l, r, &why);
    for (int r = 0; r < workers && status == PEN_OK; r++)
        if (launcher_node_of_worker(o, r, &local_rank) == o->node_rank &&
            is_missing(l, PEN_WORKER, r))
            status = launcher_start_worker(l, r, local_rank, &why);
    if (servers >= 0) mark_leaving(l, PEN_SERVER, servers);
    if (workers >= 0) mark_leaving(l, PEN_WORKER, workers);
    if (status != PEN_OK) command_fail(1, "cannot scale the job up: %s", why.text);
}
