/* core_epoch_view.c - the epoch view: its members, as sent and persisted.
 *
 * DESIGN.  It is a copy, so that late askers get the same view as the others, whatever became of its members.
 */
#include "scheduler/core/core_state.h"
#include <stdlib.h>

/* ---- its members ---------------------------------------------------------------------------- */
/* An awaited worker stays in with its old incarnation: its pushes count. */
uint64_t core_epoch_listed(const member_slot *s)
{
    if (s->role == PEN_WORKER && s->awaited_ms) return s->in_view;
    return s->rank >= 0 && member_slot_is_counted(s) ? s->incarnation : 0;
}

bool core_epoch_is_part(const member_slot *s)
{
    return member_slot_is_counted(s) && s->in_view == s->incarnation;
}

wire_member core_epoch_member(const member_slot *s)
{
    return (wire_member){.role        = s->role,
                         .rank        = s->rank,
                         .incarnation = core_epoch_listed(s),
                         .host        = s->host,
                         .pid         = s->pid,
                         .local_rank  = s->local_rank,
                         .node        = s->node,
                         .sharing     = s->sharing,
                         .n_addresses = s->n_addresses,
                         .address     = s->address};
}

/* In rank order; returns their number. */
static uint32_t list_members(const member_slots *list, wire_member *member)
{
    uint32_t n = 0;
    MEMBER_SLOT_EACH(each, list)
        if (core_epoch_listed(each)) member[n++] = core_epoch_member(each);
    return n;
}

/* ---- writing it ------------------------------------------------------------------------------ */
void core_epoch_fail(scheduler_core *core)
{
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "the scheduler has no memory for the record of %u workers",
            core->members.roster.workers.n);
    core_verdict(core, &why);
}

bool core_epoch_write(scheduler_core *core, const resolved *s, bool members_changed)
{
    const roster *r        = &core->members.roster;
    const placement *place = &core->epoch.place;
    wire_member *worker    = calloc(r->workers.n + 1, sizeof *worker);
    wire_member *server    = calloc(r->servers.n + 1, sizeof *server);
    wire_replica *copy     = calloc(place->n + 1, sizeof *copy);
    bool done              = worker && server && copy;
    for (uint32_t i = 0; done && i < place->n; i++) copy[i] = place->row[i].at;
    if (done) {
        wire_control c            = {.kind = WIRE_EPOCH};
        c.u.epoch.term            = core->job.term;
        c.u.epoch.epoch           = core->epoch.number;
        c.u.epoch.job             = core->job.name;
        c.u.epoch.step            = s ? s->step : -1;
        c.u.epoch.n_workers       = list_members(&r->workers, worker);
        c.u.epoch.worker          = worker;
        c.u.epoch.n_servers       = list_members(&r->servers, server);
        c.u.epoch.server          = server;
        c.u.epoch.n_replicas      = place->n;
        c.u.epoch.replica         = copy;
        c.u.epoch.members_changed = members_changed;
        c.u.epoch.has_decision    = s && s->has_decision;
        if (s) c.u.epoch.decision = s->decision;
        done = wire_control_copy(&c, &core->epoch.kept, &core->epoch.view);
    }
    free(worker);
    free(server);
    free(copy);
    return done;
}

void core_epoch_note(scheduler_core *core)
{
    ROSTER_EACH(s, &core->members.roster) s->in_view = core_epoch_listed(s);
}

/* ---- sending it ------------------------------------------------------------------------------ */
wire_control core_epoch_seal(const scheduler_core *core)
{
    wire_control c = {.kind   = WIRE_SEAL,
                      .u.seal = {.term = core->job.term, .epoch = core->epoch.number + 1}};
    return c;
}

void core_epoch_notify(const scheduler_core *core, const member_slot *s)
{
    if (s->role == PEN_SERVER && core_is_late(core, s)) {
        /* A late server holds nothing, whatever the view says about its predecessor. */
        wire_control c   = core->epoch.view;
        const uint32_t n = c.u.epoch.n_replicas, n_servers = c.u.epoch.n_servers;
        wire_replica *own = malloc((n + 1) * sizeof *own);
        wire_member *all  = malloc((n_servers + 1) * sizeof *all);
        uint32_t copies = 0, servers = 0;
        for (uint32_t i = 0; own && i < n; i++)
            if (c.u.epoch.replica[i].server != s->rank) own[copies++] = c.u.epoch.replica[i];
        for (uint32_t i = 0; all && i < n_servers; i++)
            if (c.u.epoch.server[i].rank != s->rank) all[servers++] = c.u.epoch.server[i];
        c.u.epoch.replica    = own;
        c.u.epoch.n_replicas = copies;
        c.u.epoch.server     = all;
        c.u.epoch.n_servers  = servers;
        if (own && all) core_send(&core->out, s, &c);
        free(own);
        free(all);
        return;
    }
    core_send(&core->out, s, &core->epoch.view);
    if (!core_is_holder(core, s) || !core->epoch.change.is_open || !member_slot_is_counted(s))
        return;
    const wire_control seal = core_epoch_seal(core);
    core_send(&core->out, s, &seal);
}

void core_epoch_fini(core_epoch *self)
{
    wire_arena_destroy(self->kept);
    placement_fini(&self->place);
    placement_fini(&self->goal);
}
