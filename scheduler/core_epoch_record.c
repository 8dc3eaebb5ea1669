/* core_epoch_record.c - the epoch record itself: who is in it, as all are told and as it is kept.
 *
 * DESIGN.  It is a copy, so that whoever asks later hears the same as all others did, whatever has become of
 * its members in the meantime.
 */
#include "scheduler/core_state.h"
#include <stdlib.h>

/* ---- copies of it ---------------------------------------------------------------------------- */
static bool keep_members(keep *kept, const wire_member *from, uint32_t n, const wire_member **to)
{
    wire_member *member = keep_bytes(kept, from, n * sizeof *member);
    for (uint32_t i = 0; member && i < n; i++) {
        member[i].host    = keep_text(kept, from[i].host);
        member[i].address = keep_texts(kept, from[i].address, from[i].n_addresses);
        if (!member[i].host || !member[i].address) return false;
    }
    *to = member;
    return member != NULL;
}

bool core_epoch_adopt(core_epoch *self, const wire_control *epoch)
{
    const wire_control c = *epoch;
    self->record         = c;
    keep_clear(&self->kept);
    keep *kept = &self->kept;

    self->record.u.epoch.replica = keep_bytes(
        kept, c.u.epoch.replica, c.u.epoch.n_replicas * sizeof *self->record.u.epoch.replica);
    return keep_members(kept, c.u.epoch.worker, c.u.epoch.n_workers,
                        &self->record.u.epoch.worker) &&
           keep_members(kept, c.u.epoch.server, c.u.epoch.n_servers,
                        &self->record.u.epoch.server) &&
           self->record.u.epoch.replica != NULL;
}

/* A worker that is waited for stays in with the number it had: what it pushed counts. */
uint64_t core_epoch_listed(const seat *s)
{
    if (s->role == PEN_WORKER && s->awaited_ms) return s->in_record;
    return s->rank >= 0 && seat_is_counted(s) ? s->incarnation : 0;
}

bool core_epoch_is_part(const seat *s)
{
    return seat_is_counted(s) && s->in_record == s->incarnation;
}

bool core_epoch_describe(keep *kept, const seat *s, wire_member *m)
{
    *m = (wire_member){.role        = s->role,
                       .rank        = s->rank,
                       .incarnation = core_epoch_listed(s),
                       .host        = keep_text(kept, s->host),
                       .pid         = s->pid,
                       .local_rank  = s->local_rank,
                       .node        = s->node,
                       .sharing     = s->sharing,
                       .n_addresses = s->n_addresses,
                       .address     = keep_texts(kept, s->address, s->n_addresses)};
    return m->host && m->address;
}

/* Those who count, in the order of their ranks. */
static const wire_member *list_members(keep *kept, const seat_list *list, uint32_t *n)
{
    wire_member *member = calloc(list->n + 1, sizeof *member);
    bool done           = member != NULL;
    *n                  = 0;
    for (uint32_t i = 0; done && i < list->n; i++)
        if (core_epoch_listed(list->at[i]))
            done = core_epoch_describe(kept, list->at[i], &member[(*n)++]);
    const wire_member *copy = done ? keep_bytes(kept, member, *n * sizeof *member) : NULL;
    free(member);
    return copy;
}

static const wire_replica *list_copies(keep *kept, const placement *table)
{
    wire_replica *copies = malloc((table->n + 1) * sizeof *copies);
    for (uint32_t i = 0; copies && i < table->n; i++) copies[i] = table->row[i].at;
    const wire_replica *kept_copies =
        copies ? keep_bytes(kept, copies, table->n * sizeof *copies) : NULL;
    free(copies);
    return kept_copies;
}

/* ---- writing it ------------------------------------------------------------------------------ */
void core_epoch_fail(scheduler_core *core)
{
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "the scheduler has no memory for the record of %u workers",
            core->members.roster.workers.n);
    core_verdict(core, &why);
}

/* False: no memory, and the old one stays. */
bool core_epoch_write(scheduler_core *core, const settled *s, bool members_changed)
{
    keep kept         = {0};
    wire_control c    = {.kind = WIRE_EPOCH};
    c.u.epoch.term    = core->job.term;
    c.u.epoch.epoch   = core->epoch.number;
    c.u.epoch.job     = core->job.name;
    c.u.epoch.step    = s ? s->step : -1;
    c.u.epoch.worker  = list_members(&kept, &core->members.roster.workers, &c.u.epoch.n_workers);
    c.u.epoch.server  = list_members(&kept, &core->members.roster.servers, &c.u.epoch.n_servers);
    c.u.epoch.replica = list_copies(&kept, &core->epoch.place);

    c.u.epoch.n_replicas      = core->epoch.place.n;
    c.u.epoch.members_changed = members_changed;
    c.u.epoch.has_decision    = s && s->has_decision;
    if (s) c.u.epoch.decision = s->decision;
    if (!c.u.epoch.worker || !c.u.epoch.server || !c.u.epoch.replica) {
        keep_clear(&kept);
        return false;
    }
    keep_clear(&core->epoch.kept);
    core->epoch.kept   = kept;
    core->epoch.record = c;
    return true;
}

/* Who is in the record that has just been written. */
void core_epoch_note(scheduler_core *core)
{
    seat *s;
    for (uint32_t i = 0; (s = roster_next(&core->members.roster, &i));)
        s->in_record = core_epoch_listed(s);
}

/* ---- telling it ------------------------------------------------------------------------------ */
/* A server that comes late holds nothing, whatever the record says of who had its rank before. */
static void tell_late_server(const scheduler_core *core, const seat *s)
{
    wire_control c   = core->epoch.record;
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
}

wire_control core_epoch_seal(const scheduler_core *core)
{
    wire_control c = {.kind = WIRE_SEAL};
    c.u.seal.term  = core->job.term;
    c.u.seal.epoch = core->epoch.number + 1;
    return c;
}

void core_epoch_tell(const scheduler_core *core, const seat *s)
{
    if (s->role == PEN_SERVER && core_is_late(core, s)) {
        tell_late_server(core, s);
        return;
    }
    core_send(&core->out, s, &core->epoch.record);
    if (s->role != PEN_SERVER || !core->epoch.change.is_open || !seat_is_counted(s)) return;
    const wire_control seal = core_epoch_seal(core);
    core_send(&core->out, s, &seal);
}

void core_epoch_fini(core_epoch *self)
{
    keep_clear(&self->kept);
    placement_fini(&self->place);
    placement_fini(&self->goal);
}
