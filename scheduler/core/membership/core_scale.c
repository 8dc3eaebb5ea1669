/* core_scale.c - SCALE and DRAIN: more or fewer workers and servers while the job trains.
 *
 * DESIGN.  Launchers receive SCALE, too, and start missing processes.  A surplus worker receives STOP: it ends its step
 * and leaves in good order, and the next view is without it.  A server is drained first: its copies move to others as
 * after a death, and once it is empty it receives STOP.
 */
#include "scheduler/core/core_state.h"
#include <stdarg.h>

static void answer(scheduler_core *core, const member_slot *s, pen_status status,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));

static void answer(scheduler_core *core, const member_slot *s, pen_status status,
                   const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    wire_control c = {.kind = WIRE_RESIZED, .u.resized = {.status = status, .text = text}};
    core_send(&core->out, s, &c);
}

static void stop(scheduler_core *core, member_slot *s)
{
    s->is_stopped = true;
    core_send(&core->out, s, &(wire_control){.kind = WIRE_STOP});
}

/* ---- servers --------------------------------------------------------------------------------- */
/* Servers that may hold copies. */
static uint32_t count_usable(const scheduler_core *core)
{
    uint32_t n = 0;
    MEMBER_SLOT_EACH(each, &core->members.roster.servers)
        n += member_slot_is_counted(each) && !each->is_draining;
    return n;
}

static bool holds_something(const scheduler_core *core, const member_slot *server)
{
    return placement_count(&core->epoch.place, server->rank) > 0;
}

bool core_scale_may_go(const scheduler_core *core, const member_slot *server)
{
    return server->is_draining && !holds_something(core, server);
}

static void begin_drain(scheduler_core *core, member_slot *server)
{
    server->is_draining     = true;
    core->epoch.goal_is_old = true;
    core_epoch_want(core, core->out.now_ms, "%.120s is drained", MEMBER_NAME(server));
}

void core_scale_settle(scheduler_core *core)
{
    MEMBER_SLOT_EACH(s, &core->members.roster.servers) {
        if (!s->is_draining || s->is_stopped || holds_something(core, s)) continue;
        core_log(&core->out, LOG_INFO, "%s is empty and ends", MEMBER_NAME(s));
        stop(core, s);
        /* Answers all observers that wait for this server. */
        uint32_t kept = 0;
        for (uint32_t i = 0; i < core->members.n_drains; i++) {
            const core_drain d = core->members.drain[i];
            if (d.server != s->rank) {
                core->members.drain[kept++] = d;
                continue;
            }
            const member_slot *asker = roster_of(&core->members.roster, d.asker);
            if (asker) answer(core, asker, PEN_OK, "server %d is empty and ends", (int)d.server);
        }
        core->members.n_drains = kept;
    }
}

static bool trains_with_servers(scheduler_core *core, const member_slot *asker)
{
    if (core->job.phase == PHASE_TRAINING && core->job.n_servers) return true;
    if (core->job.servers_known && !core->job.n_servers)
        answer(core, asker, PEN_UNSUPPORTED,
               "the job has no servers, so its number of workers is fixed");
    else
        answer(core, asker, PEN_WRONG_STATE, "the job is not training");
    return false;
}

void core_drain_ask(scheduler_core *core, member_slot *asker, const wire_control *message)
{
    const int32_t rank  = message->u.drain.server;
    member_slot *server = roster_find(&core->members.roster, PEN_SERVER, rank);
    if (!trains_with_servers(core, asker)) return;
    if (!server || !member_slot_is_counted(server)) {
        answer(core, asker, PEN_NOT_FOUND, "the job has no server %d", (int)rank);
    } else if (!server->is_draining && count_usable(core) == 1) {
        answer(core, asker, PEN_WRONG_STATE,
               "server %d is the only one; start another first (penstock scale --servers 2)",
               (int)rank);
    } else if (core->members.n_drains == CORE_DRAINS_MAX) {
        answer(core, asker, PEN_AGAIN, "too many servers are being drained");
    } else {
        core->members.drain[core->members.n_drains++] = (core_drain){asker->incarnation, rank};
        if (rank + 1 == core->members.wanted_servers) core->members.wanted_servers = rank;
        if (!server->is_draining) begin_drain(core, server);
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */
static uint32_t workers_min(const scheduler_core *core)
{
    return core->job.settings.workers_min ? (uint32_t)core->job.settings.workers_min : 1;
}

static bool check_workers(scheduler_core *core, const member_slot *asker, int32_t wanted)
{
    if (wanted < 0) return true;
    if (!core_is_elastic(core)) {
        answer(core, asker, PEN_UNSUPPORTED,
               "the job has a fixed number of workers; start it with --nproc-per-node MIN:MAX");
        return false;
    }
    if ((uint32_t)wanted >= workers_min(core) && (uint32_t)wanted <= core->members.ranks_max)
        return true;
    answer(core, asker, PEN_INVALID_ARGUMENT, "--workers must be between %u and %u, got %d",
           workers_min(core), core->members.ranks_max, (int)wanted);
    return false;
}

static bool check_servers(scheduler_core *core, const member_slot *asker, int32_t wanted)
{
    const uint32_t most = core->job.settings.servers_max > core->job.n_servers
                              ? (uint32_t)core->job.settings.servers_max
                              : core->job.n_servers;
    if (wanted < 0 || (wanted >= 1 && (uint32_t)wanted <= most)) return true;
    answer(
        core, asker, PEN_INVALID_ARGUMENT,
        "--servers must be between 1 and %u, got %d; start the job with --servers MIN:MAX for more",
        most, (int)wanted);
    return false;
}

/* A larger number than before: servers not gone yet stay. */
static void scale_servers(scheduler_core *core, int32_t wanted)
{
    const member_slots *list = &core->members.roster.servers;
    for (uint32_t i = 0; i < list->n; i++) {
        member_slot *s = list->at[i];
        if (!member_slot_is_counted(s) || s->is_stopped) continue;
        if ((int32_t)i >= wanted && !s->is_draining) begin_drain(core, s);
        if ((int32_t)i >= wanted || !s->is_draining) continue;
        s->is_draining          = false;
        core->epoch.goal_is_old = true;
        core_epoch_want(core, core->out.now_ms, "server %u stays", i);
    }
}

void core_scale(scheduler_core *core, member_slot *asker, const wire_control *message)
{
    const int32_t workers = message->u.scale.workers, servers = message->u.scale.servers;
    if (!trains_with_servers(core, asker) || !check_workers(core, asker, workers) ||
        !check_servers(core, asker, servers))
        return;
    if (workers >= 0) core->members.wanted_workers = workers;
    if (servers >= 0) core->members.wanted_servers = servers;
    wire_control c    = {.kind = WIRE_SCALE};
    c.u.scale.workers = core->members.wanted_workers;
    c.u.scale.servers = core->members.wanted_servers;
    core_send_all(&core->out, 1u << WIRE_LAUNCHER, &c);
    if (workers >= 0) {
        const member_slots *list = &core->members.roster.workers;
        for (uint32_t i = (uint32_t)workers; i < list->n; i++)
            if (member_slot_is_here(list->at[i]) && !list->at[i]->is_stopped)
                stop(core, list->at[i]);
    }
    if (servers >= 0) scale_servers(core, servers);
    const uint64_t target = (uint64_t)core->members.wanted_servers,
                   copies = core->job.settings.replicas;
    const char *fewer     = copies && target <= copies ? "; copies need more servers" : "";
    answer(core, asker, PEN_OK, "the job's target is %s and %s%s",
           MANY((uint64_t)core->members.wanted_workers, "worker"), MANY(target, "server"), fewer);
}
