/* core_status.c - STATUS: the whole job on one page, for `penstock status` and the exporter. */
#include "common/base/stat.h"
#include "scheduler/core/core_state.h"
#include <stdlib.h>
#include <string.h>

enum { WAITING_MAX = CORE_OVERDUES_MAX + 1 };

const char *core_phase_name(core_phase phase)
{
    static const char *const names[] = {"joining",  "registering", "loading", "training",
                                        "stopping", "failed",      "ended"};
    return names[phase];
}

typedef struct { /* memory of a STATUS while it is sent */
    wire_member_status *member;
    wire_stat *stat;
    sentence *waiting;
    const char *text[WAITING_MAX];
    wire_event event[CORE_EVENTS_MAX];
    uint64_t shard_bytes[WIRE_PARTITIONS_MAX];
    const char **addresses; /* of all members, concatenated */
    uint32_t n_addresses;
    const char *address;
} page;

static void page_free(page *p)
{
    free(p->member);
    free(p->stat);
    free(p->waiting);
    free(p->addresses);
}

static bool page_reserve(const scheduler_core *core, page *p)
{
    uint32_t members = 0, stats = 0, addresses = 0;
    const member_slot *s;
    for (uint32_t i = 0; (s = roster_next(&core->members.roster, &i)); members++) {
        stats += s->n_stats + 1;
        addresses += s->n_addresses;
    }
    p->member    = calloc(members + 1, sizeof *p->member);
    p->stat      = calloc(stats + 1, sizeof *p->stat);
    p->waiting   = calloc(WAITING_MAX, sizeof *p->waiting);
    p->addresses = calloc(addresses + 1, sizeof *p->addresses);
    return p->member && p->stat && p->waiting && p->addresses;
}

/* Addresses where members listen.  The locations of their memory, without "://", are for members only. */
static void fill_addresses(const member_slot *s, page *p, wire_member *m)
{
    m->address     = p->addresses + p->n_addresses;
    m->n_addresses = 0;
    for (uint32_t i = 0; i < s->n_addresses; i++)
        if (strstr(s->address[i], "://"))
            p->addresses[p->n_addresses + m->n_addresses++] = s->address[i];
    p->n_addresses += m->n_addresses;
}

static double seconds(uint64_t from_ms, uint64_t to_ms)
{
    return to_ms > from_ms ? (double)(to_ms - from_ms) / 1e3 : 0;
}

static void fill_member(const member_slot *s, uint64_t now_ms, wire_member_status *m,
                        wire_stat *stat)
{
    m->member             = core_epoch_member(s);
    m->member.incarnation = s->incarnation;
    m->state              = s->rank < 0 ? "guest" : member_state_name(s->state);
    m->call               = s->call;
    m->last_seen_s        = s->incarnation ? seconds(s->last_seen_ms, now_ms) : -1;
    m->call_s             = s->call[0] ? (double)s->call_ms / 1e3 + seconds(s->beat_ms, now_ms) : 0;
    m->step               = s->step;
    m->n_stats            = s->n_stats;
    m->stat               = stat;
    for (uint32_t i = 0; i < s->n_stats; i++)
        stat[i] = (wire_stat){s->stat[i].name, s->stat[i].value};
    if (s->role == PEN_WORKER) /* only the scheduler knows it */
        stat[m->n_stats++] = (wire_stat){"waited_for_s", (double)s->made_wait_ms / 1e3};
}

static uint32_t fill_members(const scheduler_core *core, uint64_t now_ms, page *p)
{
    uint32_t n      = 0;
    wire_stat *stat = p->stat;
    const member_slot *s;
    for (uint32_t i = 0; (s = roster_next(&core->members.roster, &i)); n++) {
        fill_member(s, now_ms, &p->member[n], stat);
        fill_addresses(s, p, &p->member[n].member);
        stat += p->member[n].n_stats;
    }
    return n;
}

static uint32_t fill_waiting(const scheduler_core *core, uint64_t now_ms, page *p)
{
    uint32_t n = 0;
    for (int i = 0; i < CORE_OVERDUES_MAX; i++) {
        if (!core_overdue_waiting(core, i, now_ms, &p->waiting[n])) continue;
        p->text[n] = p->waiting[n].text;
        n++;
    }
    if (core->job.has_verdict && n < WAITING_MAX) p->text[n++] = core->job.verdict.text;
    return n;
}

/* Bytes of the model on each shard; none before the plan. */
static uint32_t fill_shards(const scheduler_core *core, page *p)
{
    if (!core->model.plan || !core->model.shard || core->model.n_shards > WIRE_PARTITIONS_MAX)
        return 0;
    for (uint32_t i = 0; i < core->model.plan->n_partitions; i++)
        if (core->model.shard[i] < core->model.n_shards)
            p->shard_bytes[core->model.shard[i]] += core->model.plan->partition[i].bytes;
    return core->model.n_shards;
}

/* As a worker says that has the setting; 0: none. */
static int64_t steps_of(const scheduler_core *core)
{
    MEMBER_SLOT_EACH(s, &core->members.roster.workers)
        for (uint32_t i = 0; i < s->n_stats; i++)
            if (!strcmp(s->stat[i].name, stat_rows[STAT_STEPS_PLANNED].name) &&
                s->stat[i].value > 0 && s->stat[i].value < 1e15)
                return (int64_t)s->stat[i].value;
    return 0;
}

bool scheduler_core_describe(const scheduler_core *core, uint64_t now_ms, scheduler_status_fn tell,
                             void *user)
{
    page p = {0};
    if (!page_reserve(core, &p)) {
        page_free(&p);
        return false;
    }
    const char *mode       = core_model_setting(&core->model.wire, "mode");
    wire_control c         = {.kind = WIRE_STATUS};
    c.u.status.job         = core->job.name;
    c.u.status.phase       = core_phase_name(core->job.phase);
    c.u.status.mode        = mode ? mode : "";
    c.u.status.term        = core->job.term;
    c.u.status.epoch       = core->epoch.number;
    c.u.status.refused     = core->job.refused;
    c.u.status.step        = core->job.step;
    c.u.status.steps       = steps_of(core);
    c.u.status.steps_per_s = core->job.phase == PHASE_TRAINING
                                 ? core_history_rate(&core->reports.history, now_ms, core->job.step)
                                 : 0;
    c.u.status.snapshot    = core->services.snapshots.newest;
    c.u.status.uptime_s    = seconds(core->out.start_ms, now_ms);
    c.u.status.n_members   = fill_members(core, now_ms, &p);
    c.u.status.member      = p.member;
    c.u.status.n_waiting   = fill_waiting(core, now_ms, &p);
    c.u.status.waiting     = p.text;

    c.u.status.n_replicas = core->epoch.view.u.epoch.n_replicas;
    c.u.status.replica    = core->epoch.view.u.epoch.replica;

    p.address              = core->job.address;
    c.u.status.n_events    = core_events_fill(&core->out, p.event);
    c.u.status.event       = p.event;
    c.u.status.n_shards    = fill_shards(core, &p);
    c.u.status.shard_bytes = p.shard_bytes;
    c.u.status.scheduler   = (wire_member){.role        = PEN_SCHEDULER,
                                           .rank        = -1,
                                           .host        = core->job.host,
                                           .n_addresses = 1,
                                           .address     = &p.address};
    tell(user, &c);
    page_free(&p);
    return true;
}

typedef struct {
    const core_out *out;
    uint32_t peer;
} asker;

static void send_status(void *user, const wire_control *status)
{
    const asker *a = user;
    core_send_peer(a->out, a->peer, status);
}

void core_status(scheduler_core *core, uint32_t peer)
{
    if (!scheduler_core_describe(core, core->out.now_ms, send_status, &(asker){&core->out, peer}))
        core_refuse(&core->out, peer, PEN_NO_MEMORY, "no memory for the status");
}
