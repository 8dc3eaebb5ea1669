/* core.c - messages and ticks to the parts of the core, in one order of follow-ups. */
#include "scheduler/core/core.h"
#include "scheduler/core/core_state.h"

#include "common/base/utf8.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)ROSTER_WORKERS_MAX == SETTINGS_WORKERS_MAX &&
                   (int)ROSTER_SERVERS_MAX == SETTINGS_SERVERS_MAX,
               "a roster has room for as many as settings allow");

#define ROW(...) CONFIG_ROW(scheduler_settings, __VA_ARGS__)
const config_row scheduler_settings_rows[] = {SCHEDULER_SETTINGS(ROW){0}};

/* ---- life ------------------------------------------------------------------------------------ */
static uint32_t positive(int64_t number)
{
    return number > 0 ? (uint32_t)number : 0;
}

static pen_status check_settings(const scheduler_settings *settings, pen_error *why)
{
    const uint64_t most =
        settings->workers_max ? settings->workers_max : positive(settings->world_size);
    if (utf8_check("job", settings->job, why) != PEN_OK) return PEN_BAD_SETTING;
    if (settings->servers_max && (int64_t)settings->servers_max < settings->servers)
        return why_set(why, PEN_BAD_SETTING, "servers_max=%u is less than servers=%u",
                       (unsigned)settings->servers_max, (unsigned)settings->servers);
    if (settings->workers_max && (int64_t)settings->workers_max < settings->world_size)
        return why_set(why, PEN_BAD_SETTING, "workers_max=%u is less than world_size=%u",
                       (unsigned)settings->workers_max, (unsigned)settings->world_size);
    if (most && settings->workers_min > most)
        return why_set(why, PEN_BAD_SETTING, "workers_min=%u exceeds the number of workers, %u",
                       (unsigned)settings->workers_min, (unsigned)most);
    const uint32_t servers = positive(settings->servers);
    return servers > 0 ? core_check_kind(settings, servers, why) : PEN_OK;
}

pen_status scheduler_core_create(const scheduler_settings *settings, uint64_t term,
                                 const char *master, const scheduler_actions *actions,
                                 uint64_t now_ms, scheduler_core **core, pen_error *why)
{
    if (check_settings(settings, why) != PEN_OK) return PEN_BAD_SETTING;
    scheduler_core *made = calloc(1, sizeof *made);
    if (!made) return why_set(why, PEN_NO_MEMORY, "no memory to start the scheduler");

    made->job.settings              = *settings;
    made->out.actions               = *actions;
    made->out.all                   = &made->members.roster;
    made->job.term                  = term;
    made->out.start_ms              = now_ms;
    made->out.now_ms                = now_ms;
    made->job.step                  = -1;
    made->model.restore             = -1;
    made->services.snapshots.newest = -1;
    made->members.first_lost        = -1;
    made->job.n_servers             = positive(settings->servers);
    made->job.servers_known         = settings->servers > 0;
    snprintf(made->job.master, sizeof made->job.master, "%s", master);
    scheduler_core_introduce(made, master, master);
    snprintf(made->job.name, sizeof made->job.name, "%.63s", settings->job);
    const uint32_t world = positive(settings->world_size);
    if (roster_grow(&made->members.roster.workers, PEN_WORKER, world) != PEN_OK ||
        roster_grow(&made->members.roster.servers, PEN_SERVER, made->job.n_servers) != PEN_OK) {
        scheduler_core_destroy(made);
        return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for %u workers", world);
    }
    *core = made;
    return PEN_OK;
}

void scheduler_core_destroy(scheduler_core *core)
{
    if (!core) return;
    for (int i = 0; i < CORE_SNAPSHOTS_MAX; i++) free(core->services.snapshots.at[i].has_part);
    core_shrink_fini(&core->services.shrinks);
    kv_fini(&core->services.store);
    core_epoch_fini(&core->epoch);
    stuck_destroy(core->reports.calls);
    plan_destroy(core->model.plan);
    free(core->model.shard);
    free(core->out.peers);
    free(core->model.states);
    wire_arena_destroy(core->model.kept);
    roster_fini(&core->members.roster);
    free(core);
}

/* ---- receiving --------------------------------------------------------------------------------- */
static void beat(scheduler_core *core, member_slot *s, const wire_control *message)
{
    const uint64_t since_ms = s->beat_ms;
    member_slot_beat(s, message, core->out.now_ms);
    if (s->role == PEN_WORKER && s->step > core->job.step) core->job.step = s->step;
    if (s->role == PEN_WORKER) {
        core_slow_beat(&core->members.roster.workers, s, since_ms, core->out.now_ms);
        if (core->job.phase == PHASE_TRAINING)
            core_history_beat(&core->reports.history, &core->out, core->job.step);
        core_cycle_beat(core, s);
    }
    core_last_will_heard_step(core);

    wire_control ack = {.kind       = WIRE_BEAT_ACK,
                        .u.beat_ack = {.seq = message->u.beat.seq, .job_step = core->job.step}};
    core_send(&core->out, s, &ack);
}

static void missing(scheduler_core *core, member_slot *s, const wire_control *message)
{
    core_cycle_missing(core, message);
    core_loss_missing(core, message);
    core_missing(core, s, message);
}

enum {
    WHILE_IT_RUNS = 1 << 29, /* ignored otherwise: no call is under way */
    OR_VERDICT    = 1 << 30  /* after a verdict, the verdict is the answer */
};

/* Which roles may send what after HELLO, and the function that handles it. */
/* clang-format off */
#define MESSAGES(X)                                                                                        \
    X(REGISTER,        TO_WORKERS | OR_VERDICT,                 core_register(core, s, c))                 \
    X(READY,           TO_WORKERS | TO_SERVERS | OR_VERDICT,    core_ready(core, s, c))                    \
    X(BEAT,            TO_WORKERS | TO_SERVERS | TO_OBSERVERS,     beat(core, s, c))                          \
    X(FAILURE,         TO_WORKERS | TO_SERVERS | OR_VERDICT,    core_failure(core, s, c))                  \
    X(EXITED,          1u << WIRE_LAUNCHER,                     core_exited(core, c))                      \
    X(BYE,             TO_WORKERS | TO_SERVERS | TO_OBSERVERS,     core_bye(core, s))                         \
    X(SNAPSHOT_PLEASE, TO_WORKERS | TO_OBSERVERS,                  core_snapshot_please(core, s, c))          \
    X(SNAPSHOT_PART,   TO_SERVERS,                              core_snapshot_part(core, s, c))            \
    X(MISSING,         TO_SERVERS,                              missing(core, s, c))                       \
    X(COMMAND,         TO_WORKERS,                              core_command(&core->out, s, c))            \
    X(REPLY,           TO_WORKERS | TO_SERVERS,                 core_reply(&core->out, s, c))              \
    X(FAULT,           TO_WORKERS | OR_VERDICT | WHILE_IT_RUNS, core_fault(core, s, c))                    \
    X(OVERDUE,         TO_WORKERS,                              core_overdue(core, s, c))                  \
    X(SHRINK,          TO_WORKERS | OR_VERDICT | WHILE_IT_RUNS,                                            \
      core_shrink_ask(&core->services.shrinks, &core->out, s, c))                                          \
    X(STORE,           TO_WORKERS | OR_VERDICT | WHILE_IT_RUNS, core_kv_ask(core, s, c))                \
    X(RECORD_ASK,      TO_OBSERVERS,                                                                          \
      core_recorder_ask(&core->reports, &core->out, s->incarnation, c->u.record_ask.id))                     \
    X(RECORD,          TO_WORKERS,                              core_recorder(&core->reports, &core->out, s, c)) \
    X(PROVEN,          TO_WORKERS,                              core_proven(core, s, c))                   \
    X(SEALED,          TO_WORKERS | TO_SERVERS,                 core_sealed(core, s, c))                   \
    X(CAUGHT_UP,       TO_SERVERS,                              core_caught_up(core, s, c))                \
    X(SUSPECT,         TO_SERVERS,                              core_suspect(core, s, c))                  \
    X(UNREACHED,       TO_WORKERS | TO_SERVERS | OR_VERDICT,    core_unreached(core, s, c))                \
    X(SCALE,           TO_OBSERVERS,                               core_scale(core, s, c))                    \
    X(DRAIN,           TO_OBSERVERS,                               core_drain_ask(core, s, c))

static const unsigned may_send[WIRE_CONTROL_END] = {
#define X(kind, who, call) [WIRE_##kind] = who,
    MESSAGES(X)
#undef X
};

static void dispatch(scheduler_core *core, member_slot *s, const wire_control *c)
{
    switch ((int)c->kind) {
#define X(kind, who, call) case WIRE_##kind: call; break;
    MESSAGES(X)
#undef X
    }
}
/* clang-format on */

/* Whether the state of a member allows its messages.  BYE has a column of its own in member.c. */
static bool may_speak(scheduler_core *core, member_slot *s, wire_control_kind kind)
{
    if (s->role != PEN_WORKER && s->role != PEN_SERVER) return true;
    if (kind == WIRE_BYE) return true;
    if (core_move(&core->out, s, MEMBER_EVENT_MESSAGE)) return true;
    if (s->state == MEMBER_DEAD) core_notify(core, s);
    return false;
}

static void receive(scheduler_core *core, uint32_t peer, const wire_control *message)
{
    member_slot *s = roster_at_peer(&core->members.roster, peer);
    if (!s || s->incarnation != message->from)
        return; /* from before a second HELLO, or from a stranger */
    const unsigned kind = (unsigned)message->kind;
    if (kind >= WIRE_CONTROL_END || !(may_send[kind] & 1u << s->role)) {
        core->job.refused++;
        return;
    }
    s->last_seen_ms = core->out.now_ms;
    if (!may_speak(core, s, message->kind)) return;
    if (core->job.has_verdict && (may_send[kind] & OR_VERDICT))
        core_notify(core, s);
    else if (core_runs(core) || !(may_send[kind] & WHILE_IT_RUNS))
        dispatch(core, s, message);
}

/* ---- what follows ---------------------------------------------------------------------------- */
/* Applies the job's rule for a death. */
static void follow_loss(scheduler_core *core, member_slot *s)
{
    const bool is_worker  = s->role == PEN_WORKER;
    const bool is_counted = s->in_view && s->in_view == s->incarnation;
    if (core->job.phase >= PHASE_STOPPING)
        core->due |= DUE_END;
    else if (core_may_change(core) && !is_counted)
        return; /* no member waits for it yet */
    else if (is_worker && core->job.phase >= PHASE_REGISTERING && core_goes_on(core))
        core_go_on(core, s);
    else if (!is_worker && !core->members.query.dead && core_epoch_survives(core))
        core_epoch_lost(core, s);
    else if (is_worker && core_may_change(core) && core_waits(core))
        core_wait_for(core, s);
    else
        core_judge(core, s);
}

static void follow_losses(scheduler_core *core)
{
    ROSTER_EACH(s, &core->members.roster) {
        if (s->is_lost) follow_loss(core, s);
        s->is_lost = false;
    }
}

static void take_over(scheduler_core *core)
{
    core_snapshot_fail(core, "a server died while it was being written; the next one is tried");
}

/* The reactions to causes.  Runs the first that is due, and starts again from the top until none is.  Handlers only
 * note causes for other parts. */
static const struct {
    core_due due;
    void (*act)(scheduler_core *core);
} reactions[] = {
    {DUE_VERDICT, core_verdict_notify},
    {DUE_LOST, follow_losses},
    {DUE_END, core_settle},
    {DUE_JOIN, core_join_begin},
    {DUE_LEFT, core_left_registering},
    {DUE_MODEL, core_model_advance},
    {DUE_TAKEN_OVER, take_over},
    {DUE_MOVED, core_scale_settle},
    {DUE_EPOCH, core_epoch_advance},
};

static void follow(scheduler_core *core)
{
    while (core->due && core->job.phase != PHASE_ENDED) {
        size_t i = 0;
        while (!(core->due & reactions[i].due)) i++;
        core->due &= ~reactions[i].due;
        reactions[i].act(core);
    }
}

/* A pause of this process (a stopped machine, a starved core) looks like silence of all others, and its start is
 * unknown: every member gets a new lease. */
static void forgive_pause(scheduler_core *core)
{
    const uint64_t promised = core->job.promised_ms, slack = core->job.settings.lease_ms / 4;
    core->job.promised_ms = 0;
    if (!promised || core->out.now_ms < promised || core->out.now_ms - promised <= slack) return;

    ROSTER_EACH(s, &core->members.roster) s->last_seen_ms = s->down_ms = core->out.now_ms;
    core_log(&core->out, LOG_WARNING, "the scheduler was paused for %s; all leases are renewed",
             SPAN_NAME(core->out.now_ms - promised));
}

/* Every external call begins here.  False: the job has ended. */
static bool enter(scheduler_core *core, uint64_t now_ms)
{
    if (core->job.phase == PHASE_ENDED) return false;
    core->out.now_ms = now_ms;
    forgive_pause(core);
    return true;
}

void scheduler_core_receive(scheduler_core *core, uint32_t peer, const wire_control *message,
                            uint64_t now_ms)
{
    if (!enter(core, now_ms)) return;
    switch (message->kind) {
    case WIRE_HELLO:
        if (core_hello(core, peer, message)) break;
        follow(core);
        core_hello(core, peer, message);
        break;
    case WIRE_STATUS_ASK:
        if (scheduler_core_is_member(core, peer)) /* members have no tight rate limit */
            core->job.refused++;
        else
            core_status(core, peer);
        break;
    default: receive(core, peer, message); break;
    }
    follow(core);
}

void scheduler_core_peer_down(scheduler_core *core, uint32_t peer, uint64_t now_ms)
{
    if (!enter(core, now_ms)) return;
    member_slot *s = roster_at_peer(&core->members.roster, peer);
    if (!s) return;
    if (s->rank < 0) {
        core_dismiss(core, s);
        follow(core);
        return;
    }
    roster_unbind(&core->members.roster, s);
    s->down_ms = now_ms;
    if (core_is_late(core, s)) s->is_ready = s->is_registered = false;
    s->is_sealed = false; /* it may be dead: an epoch that relies on it alone would lose state */
    core_move(&core->out, s, MEMBER_EVENT_DOWN);
    core->due |= DUE_END;
    follow(core);
}

/* ---- time ------------------------------------------------------------------------------------ */
/* When its silence or absence becomes its death; UINT64_MAX: never. */
static uint64_t lost_ms(const scheduler_core *core, const member_slot *s)
{
    uint64_t due = UINT64_MAX;
    if (s->rank < 0) return due;
    if (s->state == MEMBER_AWAY) due = s->down_ms + core->job.settings.down_grace_ms;
    if (s->state == MEMBER_ACTIVE) due = s->last_seen_ms + core->job.settings.lease_ms;
    return due < core->job.amnesty_ms ? core->job.amnesty_ms : due;
}

static uint64_t first_lost_ms(const scheduler_core *core)
{
    uint64_t first = UINT64_MAX;
    ROSTER_EACH(s, &core->members.roster)
        if (lost_ms(core, s) < first) first = lost_ms(core, s);
    return first;
}

static void lose_silent(scheduler_core *core)
{
    ROSTER_EACH(s, &core->members.roster) {
        if (lost_ms(core, s) > core->out.now_ms) continue;
        core_lose(core, s, MEMBER_EVENT_LOST,
                  s->state == MEMBER_AWAY ? "its connection broke and did not come back"
                                          : "no message came from it for a whole lease");
        follow(core);
    }
}

/* Timed work: in this order, each when it is due. */
static const struct {
    void (*tick)(scheduler_core *core);
    uint64_t (*next_ms)(const scheduler_core *core); /* UINT64_MAX: not due */
} clocks[] = {
    {lose_silent, first_lost_ms},          {core_join_tick, core_join_next_ms},
    {core_wait_tick, core_wait_next_ms},   {core_epoch_tick, core_epoch_next_ms},
    {core_reach_tick, core_reach_next_ms}, {core_conclude, core_death_next_ms},
    {core_end_tick, core_end_next_ms},     {core_last_will_tick, core_last_will_next_ms},
};
enum { N_CLOCKS = sizeof clocks / sizeof *clocks };

void scheduler_core_tick(scheduler_core *core, uint64_t now_ms)
{
    if (!enter(core, now_ms)) return;
    for (size_t i = 0; i < N_CLOCKS && core->job.phase != PHASE_ENDED; i++) {
        if (clocks[i].next_ms(core) > now_ms) continue;
        clocks[i].tick(core);
        follow(core);
    }
}

uint64_t scheduler_core_next_ms(scheduler_core *core)
{
    if (core->job.phase == PHASE_ENDED) return UINT64_MAX;
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < N_CLOCKS; i++) {
        const uint64_t own = clocks[i].next_ms(core);
        if (own < next) next = own;
    }
    core->job.promised_ms = next == UINT64_MAX ? 0 : next;
    return next;
}

void scheduler_core_fail(scheduler_core *core, const pen_error *why, uint64_t now_ms)
{
    core->out.now_ms = now_ms;
    if (core->job.phase != PHASE_ENDED) core_verdict(core, why);
    follow(core);
}

void scheduler_core_decline(scheduler_core *core, const pen_error *why, uint64_t now_ms,
                            uint64_t ms)
{
    core->out.now_ms   = now_ms;
    core->job.is_empty = true;
    core_verdict(core, why);
    core->job.end_ms = now_ms + ms;
    follow(core);
}

void scheduler_core_introduce(scheduler_core *core, const char *address, const char *host)
{
    snprintf(core->job.address, sizeof core->job.address, "%s", address);
    snprintf(core->job.host, sizeof core->job.host, "%s", host);
    core_last_will_write(core);
}

bool scheduler_core_is_member(const scheduler_core *core, uint32_t peer)
{
    const member_slot *s = roster_at_peer(&core->members.roster, peer);
    return s && s->rank >= 0;
}

void scheduler_core_refused(scheduler_core *core)
{
    core->job.refused++;
}
