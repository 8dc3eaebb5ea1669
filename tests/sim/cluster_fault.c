/* cluster_fault.c - the plan's faults: deaths, restarts, partitions, joins and leaves. */
#include "tests/sim/cluster_state.h"

#include <inttypes.h>

enum {
    HEARTBEAT_MS = 2000, /* after this much silence a connection counts as broken       */
    RESTART_MS   = 700   /* until a launcher notices that a process ended, and restarts it */
};

static const char *const role_names[] = {"nobody", "scheduler", "server", "worker"};

/* ---- names and numbers of members ------------------------------------------------------------ */
static uint32_t member_slot_of(const cluster *c, sim_role role, uint32_t rank)
{
    return role == SIM_SCHEDULER ? 0 : role == SIM_SERVER ? 1 + rank : 1 + c->n_servers + rank;
}

static life life_of(const cluster *c, sim_role role, uint32_t rank)
{
    return role == SIM_SCHEDULER ? c->scheduler.life
           : role == SIM_SERVER  ? c->server[rank].life
                                 : c->worker[rank].life;
}

static uint32_t birth_of(const cluster *c, sim_role role, uint32_t rank)
{
    if (role == SIM_SCHEDULER) return c->scheduler.birth;
    return role == SIM_SERVER && rank < c->n_servers ? c->server[rank].birth
                                                     : 0; /* or a number of them */
}

static void begin(cluster *c, sim_role role, uint32_t rank)
{
    if (role == SIM_SCHEDULER && c->scheduler.disk.writes > 0 && c->scheduler.disk.size == 0) {
        c->scheduler.life = LIFE_LEFT; /* it had persisted that all is over, and died then */
        return;
    }
    sim_note(c, "%s %u begins", role_names[role], rank);
    c->restart_ms[member_slot_of(c, role, rank)] = 0;
    if (role == SIM_SCHEDULER) sim_scheduler_begin(c);
    if (role == SIM_SERVER) sim_server_begin(c, rank);
    if (role == SIM_WORKER) sim_worker_begin(c, rank);
}

void fault_start(cluster *c, sim_role role, uint32_t rank)
{
    const life how = life_of(c, role, rank);
    if (how != LIFE_ABSENT && how != LIFE_LEFT) return;
    begin(c, role, rank);
    c->result.joins++;
}

/* ---- what the faults permit ------------------------------------------------------------------ */
static bool is_alive(const cluster *c, int32_t server)
{
    const sim_server *s       = &c->server[server];
    const wire_member *member = sim_view_server(&c->view, server);
    return s->life == LIFE_RUNS && member != NULL && member->incarnation == s->incarnation;
}

/* Whether every shard has a live member in its replica set. */
static bool is_whole(const cluster *c)
{
    for (uint32_t i = 0; i < c->view.n_replicas; i++) {
        const uint32_t number = c->view.replica[i].shard;
        bool any              = false;
        for (uint32_t k = 0; k < c->view.n_replicas && !any; k++) {
            const wire_replica *r = &c->view.replica[k];
            any = r->shard == number && r->role != WIRE_LEARNER && is_alive(c, r->server);
        }
        if (!any) return false;
    }
    return c->view.n_replicas > 0;
}

/* Whether a verdict is correct from now on. */
static void judge(cluster *c, sim_role role, uint32_t rank)
{
    if (!c->plan.must_go_on) return;
    const sim_plan *p = &c->plan;
    uint32_t workers  = 0;
    for (uint32_t i = 0; i < c->n_workers; i++) workers += c->worker[i].life == LIFE_RUNS;
    if (role == SIM_SCHEDULER && !p->has_state) c->is_excused = true;
    if (role == SIM_SERVER && !is_whole(c)) c->is_excused = true;
    if (role == SIM_WORKER && p->on_worker_loss == LOSS_FAIL) c->is_excused = true;
    if (role == SIM_WORKER && p->on_worker_loss == LOSS_CONTINUE &&
        workers < (p->workers_min > 0 ? p->workers_min : 1))
        c->is_excused = true;
    /* No other worker has initial values. */
    if (role == SIM_WORKER && rank == 0 && p->on_worker_loss == LOSS_CONTINUE &&
        !c->worker[0].has_loaded)
        c->is_excused = true;
    /* Before training all members are needed. */
    if (!c->is_training) c->is_excused = true;
}

static void crash(cluster *c, sim_role role, uint32_t rank)
{
    if (life_of(c, role, rank) != LIFE_RUNS) return;
    if (role == SIM_SCHEDULER && c->scheduler.has_ended) return; /* all is over */
    sim_note(c, "%s %u crashes", role_names[role], rank);
    c->result.crashes++;
    net_kill(c, role, rank);
    if (role == SIM_SCHEDULER) sim_scheduler_crash(&c->scheduler);
    if (role == SIM_SERVER) sim_server_crash(&c->server[rank]);
    if (role == SIM_WORKER) sim_worker_crash(&c->worker[rank]);
    judge(c, role, rank);
}

void fault_ended(cluster *c, sim_role role, uint32_t rank)
{
    judge(c, role, rank);
    const bool again = c->plan.restarts && !c->is_excused &&
                       (role != SIM_WORKER || c->plan.on_worker_loss == LOSS_WAIT);
    if (again) c->restart_ms[member_slot_of(c, role, rank)] = c->now_ms + RESTART_MS;
}

/* ---- events ---------------------------------------------------------------------------------- */
static bool is_isolation(const sim_event *e)
{
    return e->what == SIM_CUT_OFF || e->what == SIM_DEAF || e->what == SIM_MUTE;
}

static void stall(cluster *c, const sim_event *e)
{
    const uint64_t until = SIM_START_MS + e->until_ms;
    if (e->role == SIM_SCHEDULER) c->scheduler.stalled_until_ms = until;
    if (e->role == SIM_SERVER) c->server[e->rank].stalled_until_ms = until;
    if (e->role == SIM_WORKER) c->worker[e->rank].stalled_until_ms = until;
}

static void swallow(cluster *c, const sim_event *e)
{
    endpoint *control =
        e->role == SIM_WORKER ? &c->worker[e->rank].control : &c->server[e->rank].control;
    control->is_swallowed = control->t != NULL;
}

/* For members, the one that comes back is the scheduler of another job. */
static void forget(cluster *c)
{
    if (c->scheduler.life != LIFE_RUNS || c->scheduler.has_ended) return;
    c->is_excused = true;
    crash(c, SIM_SCHEDULER, 0);
    sim_scheduler_forget(&c->scheduler);
}

static void event_begins(cluster *c, uint32_t i)
{
    const sim_event *e   = &c->plan.event[i];
    c->happened[i].birth = birth_of(c, e->role, e->rank);
    sim_note(c, "event %u begins: %d of %s %u", i, (int)e->what, role_names[e->role], e->rank);
    if (is_isolation(e)) net_partition(c, e, c->happened[i].birth, true);
    if (e->what == SIM_CRASH) crash(c, e->role, e->rank);
    if (e->what == SIM_STALL) stall(c, e);
    if (e->what == SIM_SWALLOW) swallow(c, e);
    if (e->what == SIM_FORGET) forget(c);
    if (e->what == SIM_JOIN) fault_start(c, e->role, e->rank);
    if (e->what == SIM_LEAVE) c->worker[e->rank].wants_to_leave = true;
    if (e->what == SIM_DRAIN || e->what == SIM_SCALE) sim_operator_wants(c, e);
}

static bool is_job_over(const cluster *c)
{
    return c->scheduler.life == LIFE_LEFT || c->scheduler.life == LIFE_FAILED ||
           c->scheduler.has_ended;
}

static bool is_way(const sim_event *e, sim_role role, uint32_t rank, sim_role to_role, uint32_t to)
{
    const sim_role far = e->to_role != SIM_NOBODY ? e->to_role : SIM_SERVER;
    return e->role == role && e->rank == rank && far == to_role && e->to == to;
}

bool fault_apart(const cluster *c, sim_role role, uint32_t rank, sim_role to_role, uint32_t to)
{
    for (uint32_t i = 0; i < c->plan.n_events && c->has_no_way; i++) {
        const sim_event *e = &c->plan.event[i];
        if (e->what != SIM_NO_WAY || !c->happened[i].has_begun || c->happened[i].has_ended)
            continue;
        if (is_way(e, role, rank, to_role, to)) return true;
        if (role == to_role && is_way(e, to_role, to, role, rank)) return true;
    }
    return false;
}

bool fault_needs(const wire_epoch *r, int32_t primary, int32_t copy)
{
    for (uint32_t i = 0; i < r->n_replicas; i++) {
        const wire_replica *a = &r->replica[i];
        if (a->server != primary || a->role != WIRE_PRIMARY) continue;
        for (uint32_t j = 0; j < r->n_replicas; j++)
            if (r->replica[j].shard == a->shard && r->replica[j].server == copy) return true;
    }
    return false;
}

bool fault_no_way(const cluster *c, uint32_t worker, int32_t server)
{
    return fault_apart(c, SIM_WORKER, worker, SIM_SERVER, (uint32_t)server);
}

bool fault_says(uint64_t *due_ms, bool is_missing, bool was_there, uint64_t now_ms)
{
    if (!is_missing) {
        *due_ms = 0;
        return false;
    }
    if (*due_ms == 0) *due_ms = now_ms + (was_there ? SIM_DOUBT_MS : SIM_MISSING_MS);
    if (now_ms < *due_ms) return false;
    *due_ms = now_ms + SIM_MISSED_MS;
    return true;
}

static void event_ends(cluster *c, uint32_t i)
{
    const sim_event *e = &c->plan.event[i];
    sim_note(c, "event %u ends: %d of %s %u", i, (int)e->what, role_names[e->role], e->rank);
    if (is_isolation(e)) {
        net_partition(c, e, c->happened[i].birth, false);
        net_break(c, e, c->happened[i].birth); /* a stream that lost a message cannot go on */
    }
    if (e->what == SIM_NO_WAY) net_break(c, e, c->happened[i].birth); /* all is dialled again */
    if ((e->what == SIM_CRASH || e->what == SIM_FORGET) &&
        life_of(c, e->role, e->rank) == LIFE_CRASHED && !is_job_over(c) &&
        (e->role != SIM_WORKER || c->plan.on_worker_loss == LOSS_WAIT))
        begin(c, e->role, e->rank);
}

static bool is_due(const cluster *c, uint64_t ms)
{
    return c->now_ms >= SIM_START_MS + ms;
}

static void happen(cluster *c, uint32_t i)
{
    const sim_event *e = &c->plan.event[i];
    if (!c->happened[i].has_begun && is_due(c, e->from_ms)) {
        c->happened[i].has_begun = true;
        event_begins(c, i);
    }
    if (is_isolation(e) && c->happened[i].has_begun && !c->happened[i].has_ended &&
        !c->happened[i].is_noticed && is_due(c, e->from_ms + HEARTBEAT_MS)) {
        c->happened[i].is_noticed = true;
        net_break(c, e, c->happened[i].birth);
    }
    if (e->until_ms > 0 && !c->happened[i].has_ended && is_due(c, e->until_ms)) {
        c->happened[i].has_ended = true;
        event_ends(c, i);
    }
}

static uint64_t break_mean_ms(const cluster *c, int plane)
{
    const uint32_t mean[NETS] = {c->plan.control.break_ms, c->plan.data.break_ms,
                                 c->plan.replica.break_ms};
    return mean[plane];
}

static void maybe_break(cluster *c, int plane)
{
    const uint64_t mean = break_mean_ms(c, plane);
    if (mean == 0 || c->is_healed || c->now_ms < c->break_at_ms[plane]) return;
    if (c->break_at_ms[plane] != 0) net_break_one(c, (net_plane)plane);
    c->break_at_ms[plane] = c->now_ms + 1 + draw_below(&c->chance, 2 * mean);
}

static void restart_if_due(cluster *c, sim_role role, uint32_t rank)
{
    const uint64_t at = c->restart_ms[member_slot_of(c, role, rank)];
    if (at == 0 || at > c->now_ms) return;
    c->restart_ms[member_slot_of(c, role, rank)] = 0;
    if (!is_job_over(c) && life_of(c, role, rank) != LIFE_RUNS) begin(c, role, rank);
}

static void restart_those_due(cluster *c)
{
    restart_if_due(c, SIM_SCHEDULER, 0);
    for (uint32_t rank = 0; rank < c->n_servers; rank++) restart_if_due(c, SIM_SERVER, rank);
    for (uint32_t rank = 0; rank < c->n_workers; rank++) restart_if_due(c, SIM_WORKER, rank);
}

void fault_happen(cluster *c)
{
    if (!c->is_healed && is_due(c, c->plan.heal_ms)) {
        c->is_healed = true;
        net_trouble(c, false);
        sim_note(c, "the network heals");
    }
    for (int plane = 0; plane < NETS; plane++) maybe_break(c, plane);
    for (uint32_t i = 0; i < c->plan.n_events; i++) happen(c, i);
    if (c->scheduler.is_dying) {
        c->scheduler.is_dying = false;
        crash(c, SIM_SCHEDULER, 0);
        c->restart_ms[0] = c->now_ms + RESTART_MS;
    }
    restart_those_due(c);
}

/* ---- when ------------------------------------------------------------------------------------ */
static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t event_due(const cluster *c, uint32_t i)
{
    const sim_event *e = &c->plan.event[i];
    uint64_t due       = UINT64_MAX;
    if (!c->happened[i].has_begun) due = SIM_START_MS + e->from_ms;
    if (e->until_ms > 0 && !c->happened[i].has_ended) due = least(due, SIM_START_MS + e->until_ms);
    if (is_isolation(e) && !c->happened[i].is_noticed && !c->happened[i].has_ended)
        due = least(due, SIM_START_MS + e->from_ms + HEARTBEAT_MS);
    return due;
}

uint64_t fault_due(const cluster *c)
{
    uint64_t due = UINT64_MAX;
    if (!c->is_healed) due = SIM_START_MS + c->plan.heal_ms;
    for (int plane = 0; plane < NETS; plane++)
        if (!c->is_healed && break_mean_ms(c, plane) > 0) due = least(due, c->break_at_ms[plane]);
    for (uint32_t i = 0; i < c->plan.n_events; i++) due = least(due, event_due(c, i));
    for (uint32_t i = 0; i < c->n_servers + c->n_workers + 1; i++)
        if (c->restart_ms[i] > 0) due = least(due, c->restart_ms[i]);
    return due;
}
