#include "scheduler/core.h"
#include "scheduler/core_state.h"

#include "common/utf8.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------ */
static pen_status check_without_servers(const scheduler_settings *settings, pen_error *why)
{
    if (settings->on_worker_loss == SCHEDULER_LOSS_WAIT)
        return why_set(
            why, PEN_BAD_SETTING,
            "on_worker_loss=wait needs servers: they keep the model for who comes back; add "
            "--servers, or say 'fail' or 'continue'");
    if (settings->replicas > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "replicas=%u are copies on servers, and the job has none; add --servers",
                       (unsigned)settings->replicas);
    if (settings->workers_max > 0)
        return why_set(
            why, PEN_BAD_SETTING,
            "workers that come while the job trains need servers, which have the model for "
            "them; add --servers, or leave out workers_max=%u",
            (unsigned)settings->workers_max);
    return PEN_OK;
}

pen_status core_check_kind(const scheduler_settings *settings, uint32_t n_servers, pen_error *why)
{
    const uint64_t most = settings->servers_max > n_servers ? settings->servers_max : n_servers;
    if (!n_servers) return check_without_servers(settings, why);
    if (settings->replicas < most) return PEN_OK;
    return why_set(
        why, PEN_BAD_SETTING,
        "replicas=%u needs at least %u servers, for copies lie on different ones; the job "
        "has %u",
        (unsigned)settings->replicas, (unsigned)settings->replicas + 1, (unsigned)most);
}

static pen_status check_settings(const scheduler_settings *settings, pen_error *why)
{
    const uint64_t most = settings->workers_max ? settings->workers_max : settings->world_size;
    if (utf8_check("job", settings->job, why) != PEN_OK) return PEN_BAD_SETTING;
    if (settings->servers_max && settings->servers_max < settings->servers)
        return why_set(why, PEN_BAD_SETTING, "servers_max=%u is less than servers=%u",
                       (unsigned)settings->servers_max, (unsigned)settings->servers);
    if (settings->workers_max && settings->workers_max < settings->world_size)
        return why_set(why, PEN_BAD_SETTING, "workers_max=%u is less than world_size=%u",
                       (unsigned)settings->workers_max, (unsigned)settings->world_size);
    if (most && settings->workers_min > most)
        return why_set(why, PEN_BAD_SETTING, "workers_min=%u is more than the %u workers there are",
                       (unsigned)settings->workers_min, (unsigned)most);
    return settings->servers ? core_check_kind(settings, (uint32_t)settings->servers, why) : PEN_OK;
}

pen_status scheduler_core_create(const scheduler_settings *settings, uint64_t term,
                                 const char *master, const scheduler_actions *actions,
                                 uint64_t now_ms, scheduler_core **core, pen_error *why)
{
    if (check_settings(settings, why) != PEN_OK) return PEN_BAD_SETTING;
    scheduler_core *made = calloc(1, sizeof *made);
    if (!made) return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory to start");

    made->settings        = *settings;
    made->actions         = *actions;
    made->term            = term;
    made->start_ms        = now_ms;
    made->now_ms          = now_ms;
    made->job_step        = -1;
    made->restore         = -1;
    made->newest_snapshot = -1;
    made->first_lost      = -1;
    made->n_servers       = (uint32_t)settings->servers;
    made->servers_known   = settings->servers > 0;
    snprintf(made->master, sizeof made->master, "%s", master);
    scheduler_core_introduce(made, master, master);
    snprintf(made->job, sizeof made->job, "%.63s", settings->job);
    const uint32_t world = (uint32_t)settings->world_size;
    if (roster_grow(&made->roster.workers, PEN_WORKER, world) != PEN_OK ||
        roster_grow(&made->roster.servers, PEN_SERVER, made->n_servers) != PEN_OK) {
        scheduler_core_destroy(made);
        return why_set(why, PEN_NO_MEMORY, "the scheduler has no memory for %u workers", world);
    }
    *core = made;
    return PEN_OK;
}

void scheduler_core_destroy(scheduler_core *core)
{
    if (!core) return;
    core_snapshot_fini(core);
    core_epoch_fini(core);
    core_fault_fini(core);
    core_shrink_fini(core);
    core_store_fini(core);
    stuck_destroy(core->report);
    plan_destroy(core->plan);
    free(core->shard);
    free(core->peers);
    free(core->states);
    keep_clear(&core->kept);
    roster_fini(&core->roster);
    free(core);
}

/* ---- saying ---------------------------------------------------------------------------------- */
void core_send_peer(scheduler_core *core, uint32_t peer, const wire_control *message)
{
    core->actions.send(core->actions.user, &peer, 1, message);
}

void core_send(scheduler_core *core, const seat *s, const wire_control *message)
{
    if (s->is_bound) core_send_peer(core, s->peer, message);
}

static bool reserve_peers(scheduler_core *core)
{
    const roster *r  = &core->roster;
    const uint32_t n = r->workers.n + r->servers.n + r->guests.n;
    if (n <= core->peers_capacity) return true;
    uint32_t *peers = realloc(core->peers, n * sizeof *peers);
    if (!peers) return false;
    core->peers          = peers;
    core->peers_capacity = n;
    return true;
}

void core_send_all(scheduler_core *core, unsigned roles, const wire_control *message)
{
    if (!reserve_peers(core)) {
        core_log(core, LOG_ERROR, "no memory to send %s", wire_kind_name((int)message->kind));
        return;
    }
    uint32_t n = 0;
    const seat *s;
    for (uint32_t i = 0; (s = roster_next(&core->roster, &i));) {
        if (!(roles & 1u << s->role) || !s->is_bound) continue;
        if (s->state == MEMBER_LEFT || s->state == MEMBER_DEAD) continue;
        core->peers[n++] = s->peer;
    }
    if (n) core->actions.send(core->actions.user, core->peers, n, message);
}

void core_log(scheduler_core *core, int level, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    core->actions.log(core->actions.user, level, line);
    if (level <= LOG_INFO) core_event(core, level, line);
}

void core_end(scheduler_core *core, pen_status status)
{
    if (core->phase == PHASE_ENDED) return;
    core->phase = PHASE_ENDED;
    if (core->actions.keep) core->actions.keep(core->actions.user, NULL, 0);
    core->actions.ended(core->actions.user, status, core->has_verdict ? &core->verdict : NULL);
}

bool core_move(scheduler_core *core, seat *s, member_event event)
{
    const member_state before = s->state;
    if (member_next(&s->state, event) != PEN_OK) return false;
    if (s->state == before) return true;
    char name[SENTENCE_SEAT_BYTES];
    core_log(core, LOG_DEBUG, "%s: %s, was %s", sentence_seat(name, s), member_state_name(s->state),
             member_state_name(before));
    core_event_moved(core, s);
    return true;
}

/* ---- hearing --------------------------------------------------------------------------------- */
static void beat(scheduler_core *core, seat *s, const wire_control *message, uint64_t now_ms)
{
    const uint64_t since_ms = s->beat_ms;
    seat_beat(s, message, now_ms);
    if (s->role == PEN_WORKER && s->step > core->job_step) core->job_step = s->step;
    if (s->role == PEN_WORKER) core_slow_beat(core, s, since_ms, now_ms);
    if (s->role == PEN_WORKER) core_history_beat(core, now_ms);
    if (s->role == PEN_WORKER) core_cycle_beat(core, s, now_ms);
    core_will_heard_step(core, now_ms);

    wire_control ack        = {.kind = WIRE_BEAT_ACK};
    ack.u.beat_ack.seq      = message->u.beat.seq;
    ack.u.beat_ack.job_step = core->job_step;
    core_send(core, s, &ack);
}

typedef void (*handler_fn)(scheduler_core *core, seat *s, const wire_control *message,
                           uint64_t now_ms);

/* Who may say what once it has said HELLO. */
/* clang-format off */
static const struct {
    unsigned roles;
    handler_fn fn;
} handlers[WIRE_CONTROL_END] = {
    [WIRE_REGISTER]        = {TO_WORKERS,                          core_register},
    [WIRE_READY]           = {TO_WORKERS | TO_SERVERS,             core_ready},
    [WIRE_BEAT]            = {TO_WORKERS | TO_SERVERS | TO_GUESTS, beat},
    [WIRE_FAILURE]         = {TO_WORKERS | TO_SERVERS,             core_failure},
    [WIRE_EXITED]          = {1u << WIRE_LAUNCHER,                 core_exited},
    [WIRE_BYE]             = {TO_WORKERS | TO_SERVERS | TO_GUESTS, core_bye},
    [WIRE_SNAPSHOT_PLEASE] = {TO_WORKERS | TO_GUESTS,              core_snapshot_please},
    [WIRE_SNAPSHOT_PART]   = {TO_SERVERS,                          core_snapshot_part},
    [WIRE_MISSING]         = {TO_SERVERS,                          core_missing},
    [WIRE_COMMAND]         = {TO_WORKERS,                          core_command},
    [WIRE_REPLY]           = {TO_WORKERS | TO_SERVERS,             core_reply},
    [WIRE_FAULT]           = {TO_WORKERS,                          core_fault},
    [WIRE_OVERDUE]         = {TO_WORKERS,                          core_overdue},
    [WIRE_SHRINK]          = {TO_WORKERS,                          core_shrink_ask},
    [WIRE_STORE]           = {TO_WORKERS,                          core_store_ask},
    [WIRE_RECORD_ASK]      = {TO_GUESTS,                           core_record_ask},
    [WIRE_RECORD]          = {TO_WORKERS,                          core_record},
    [WIRE_PROVEN]          = {TO_WORKERS,                          core_proven},
    [WIRE_SEALED]          = {TO_SERVERS,                          core_sealed},
    [WIRE_CAUGHT_UP]       = {TO_SERVERS,                          core_caught_up},
    [WIRE_SUSPECT]         = {TO_SERVERS,                          core_suspect},
    [WIRE_UNREACHED]       = {TO_WORKERS | TO_SERVERS,             core_unreached},
    [WIRE_SCALE]           = {TO_GUESTS,                           core_scale},
    [WIRE_DRAIN]           = {TO_GUESTS,                           core_drain_ask},
};
/* clang-format on */

/* True when the state of a member lets it speak.  BYE has a column of its own. */
static bool may_speak(scheduler_core *core, seat *s, wire_control_kind kind)
{
    if (s->role != PEN_WORKER && s->role != PEN_SERVER) return true;
    if (kind == WIRE_BYE) return true;
    if (core_move(core, s, MEMBER_EVENT_MESSAGE)) return true;
    if (s->state == MEMBER_DEAD) core_tell(core, s);
    return false;
}

static void hear(scheduler_core *core, uint32_t peer, const wire_control *message, uint64_t now_ms)
{
    seat *s = roster_at_peer(&core->roster, peer);
    if (!s || s->incarnation != message->from)
        return; /* from before a re-HELLO, or of a stranger */
    const unsigned kind = (unsigned)message->kind;
    if (kind >= WIRE_CONTROL_END || !(handlers[kind].roles & 1u << s->role)) {
        core->refused++;
        return;
    }
    s->last_seen_ms = now_ms;
    if (may_speak(core, s, message->kind)) handlers[kind].fn(core, s, message, now_ms);
}

/* A pause of this process (a stopped machine, a starved core) looks like the silence of all
 * others, and nobody knows when it began: everybody gets a new lease. */
static void forgive_pause(scheduler_core *core, uint64_t now_ms)
{
    const uint64_t promised = core->promised_ms, slack = core->settings.lease_ms / 4;
    core->promised_ms = 0;
    if (!promised || now_ms < promised || now_ms - promised <= slack) return;

    seat *s;
    for (uint32_t i = 0; (s = roster_next(&core->roster, &i));)
        s->last_seen_ms = s->down_ms = now_ms;
    char span[SENTENCE_SPAN_BYTES];
    core_log(core, LOG_WARNING, "the scheduler itself was held up for %s; nobody is blamed for it",
             sentence_span(span, now_ms - promised));
}

/* Every call from outside begins with it. */
static void enter(scheduler_core *core, uint64_t now_ms)
{
    core->now_ms = now_ms;
    forgive_pause(core, now_ms);
}

void scheduler_core_receive(scheduler_core *core, uint32_t peer, const wire_control *message,
                            uint64_t now_ms)
{
    if (core->phase == PHASE_ENDED) return;
    enter(core, now_ms);
    switch (message->kind) {
    case WIRE_HELLO: core_hello(core, peer, message, now_ms); break;
    case WIRE_STATUS_ASK:
        if (scheduler_core_is_member(core, peer)) /* whose connection nothing bounds so tightly */
            core->refused++;
        else
            core_status(core, peer, now_ms);
        break;
    default: hear(core, peer, message, now_ms); break;
    }
}

void scheduler_core_peer_down(scheduler_core *core, uint32_t peer, uint64_t now_ms)
{
    if (core->phase == PHASE_ENDED) return;
    enter(core, now_ms);
    seat *s = roster_at_peer(&core->roster, peer);
    if (!s) return;
    if (s->rank < 0) {
        core_dismiss(core, s, now_ms);
        return;
    }
    roster_unbind(&core->roster, s);
    s->down_ms = now_ms;
    if (core_is_late(core, s)) s->is_ready = s->is_registered = false;
    s->is_sealed =
        false; /* it may be dead: an epoch that rests on it alone would lose what others hold */
    core_move(core, s, MEMBER_EVENT_DOWN);
    core_settle(core, now_ms);
}

/* ---- time ------------------------------------------------------------------------------------ */
/* When its silence or absence becomes its death; UINT64_MAX: never. */
static uint64_t lost_ms(const scheduler_core *core, const seat *s)
{
    uint64_t due = UINT64_MAX;
    if (s->rank < 0) return due;
    if (s->state == MEMBER_AWAY) due = s->down_ms + core->settings.down_grace_ms;
    if (s->state == MEMBER_ACTIVE) due = s->last_seen_ms + core->settings.lease_ms;
    return due < core->amnesty_ms ? core->amnesty_ms : due;
}

static void lose_silent(scheduler_core *core, uint64_t now_ms)
{
    seat *s;
    for (uint32_t i = 0; (s = roster_next(&core->roster, &i));) {
        if (lost_ms(core, s) > now_ms) continue;
        core_lose(core, s, MEMBER_EVENT_LOST,
                  s->state == MEMBER_AWAY ? "its connection broke and did not come back"
                                          : "nothing was heard of it for a whole lease",
                  now_ms);
    }
}

void scheduler_core_tick(scheduler_core *core, uint64_t now_ms)
{
    if (core->phase == PHASE_ENDED) return;
    enter(core, now_ms);
    lose_silent(core, now_ms);
    core_join_tick(core, now_ms);
    core_wait_tick(core, now_ms);
    core_epoch_tick(core, now_ms);
    core_reach_tick(core, now_ms);
    core_end_tick(core, now_ms);
    core_will_tick(core, now_ms);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t scheduler_core_next_ms(scheduler_core *core)
{
    if (core->phase == PHASE_ENDED) return UINT64_MAX;
    uint64_t next = least(core_will_next_ms(core), core_reach_next_ms(core));
    next          = least(next, least(core_epoch_next_ms(core), core_wait_next_ms(core)));
    const seat *s;
    for (uint32_t i = 0; (s = roster_next(&core->roster, &i));)
        next = least(next, lost_ms(core, s));
    next = least(next, core_join_next_ms(core));
    if (core->phase == PHASE_STOPPING || core->phase == PHASE_FAILED)
        next = least(next, core->end_ms);
    if (core->inquest.dead) next = least(next, core->inquest.due_ms);
    core->promised_ms = next == UINT64_MAX ? 0 : next;
    return next;
}

void scheduler_core_fail(scheduler_core *core, const pen_error *why, uint64_t now_ms)
{
    core->now_ms = now_ms;
    if (core->phase != PHASE_ENDED) core_verdict(core, why, now_ms);
}

void scheduler_core_decline(scheduler_core *core, const pen_error *why, uint64_t now_ms,
                            uint64_t ms)
{
    core->now_ms   = now_ms;
    core->is_empty = true;
    core_verdict(core, why, now_ms);
    core->end_ms = now_ms + ms;
}

void scheduler_core_introduce(scheduler_core *core, const char *address, const char *host)
{
    snprintf(core->address, sizeof core->address, "%s", address);
    snprintf(core->host, sizeof core->host, "%s", host);
    core_will_write(core);
}

bool scheduler_core_is_member(const scheduler_core *core, uint32_t peer)
{
    const seat *s = roster_at_peer(&core->roster, peer);
    return s && s->rank >= 0;
}

void scheduler_core_refused(scheduler_core *core)
{
    core->refused++;
}
