/* core_prove.c - PROVE, PROVEN: which workers can map each other's memory, found by trying.
 *
 * DESIGN.  Each worker has written a random number into its memory and sent it to the scheduler only (HELLO).  Once all
 * are here, each receives the memory locations of all (PROVE) and answers with the numbers it could read (PROVEN).
 * Workers that have all read each other's numbers share memory.  Such sets are named by their lowest member.  Boot ids,
 * names and addresses prove nothing.  A worker that does not answer in time shares nothing, and the job begins.
 */
#include "common/base/mutation.h"
#include "scheduler/core/core_state.h"

#include <stdlib.h>

/* ---- asking ---------------------------------------------------------------------------------- */
static bool is_asked(const member_slot *s)
{
    return s->number != 0 && s->state == MEMBER_JOINING;
}

static uint32_t count_asked(const scheduler_core *core)
{
    uint32_t n = 0;
    MEMBER_SLOT_EACH(each, &core->members.roster.workers) n += is_asked(each);
    return n;
}

/* To one, or to all (NULL).  False: no memory. */
static bool ask(scheduler_core *core, const member_slot *s)
{
    const member_slots *list = &core->members.roster.workers;
    wire_member *member      = calloc(list->n + 1, sizeof *member);
    wire_control c           = {.kind    = WIRE_PROVE,
                                .u.prove = {.round = core->members.proof.round, .worker = member}};
    if (!member) return false;
    MEMBER_SLOT_EACH(each, list)
        if (is_asked(each)) member[c.u.prove.n_workers++] = core_epoch_member(each);
    if (s)
        core_send(&core->out, s, &c);
    else
        core_send_all(&core->out, TO_WORKERS, &c);
    free(member);
    return true;
}

void core_prove_notify(scheduler_core *core, const member_slot *s)
{
    if (!core->members.proof.is_open || s->role != PEN_WORKER || s->opened || !is_asked(s)) return;
    (void)ask(core, s);
}

void core_prove_anew(scheduler_core *core)
{
    core->members.proof.is_open = false;
    MEMBER_SLOT_EACH(each, &core->members.roster.workers) member_slot_close(each);
}

/* ---- answers --------------------------------------------------------------------------------- */
void core_proven(scheduler_core *core, member_slot *s, const wire_control *c)
{
    const uint32_t n = core->members.roster.workers.n;
    if (!core->members.proof.is_open || c->u.proven.round != core->members.proof.round)
        return; /* of an earlier round */
    uint8_t *opened = calloc(n / 8 + 1, 1);
    if (!opened || c->u.proven.n_ranks != c->u.proven.n_numbers) {
        core->job.refused += opened != NULL;
        free(opened);
        return;
    }
    for (uint32_t i = 0; i < c->u.proven.n_ranks; i++) {
        const member_slot *other =
            roster_find(&core->members.roster, PEN_WORKER, c->u.proven.rank[i]);
        if (!other || !other->number) continue;
        if (other->number != c->u.proven.number[i] && !mutation(MUTATION_NUMBER_NOT_COMPARED))
            continue;
        opened[other->rank / 8] |= (uint8_t)(1u << other->rank % 8);
    }
    member_slot_close(s);
    s->opened = opened;
    core->due |= DUE_JOIN;
}

/* ---- sets -------------------------------------------------------------------- */
static bool opens(const member_slot *s, const member_slot *other)
{
    return s->opened && s->opened[other->rank / 8] >> other->rank % 8 & 1;
}

static bool belongs(const member_slots *list, const member_slot *first, const member_slot *s)
{
    for (int32_t i = first->rank; i < s->rank; i++) {
        const member_slot *other = list->at[i];
        if (other->sharing == first->rank && !(opens(other, s) && opens(s, other))) return false;
    }
    return true;
}

static void gather(const scheduler_core *core)
{
    const member_slots *list = &core->members.roster.workers;
    MEMBER_SLOT_EACH(each, list) each->sharing = each->rank;
    for (uint32_t i = 0; i < list->n; i++) {
        const member_slot *first = list->at[i];
        for (uint32_t k = i + 1; first->sharing == first->rank && k < list->n; k++) {
            member_slot *s = list->at[k];
            if (s->sharing == s->rank && belongs(list, first, s)) s->sharing = first->rank;
        }
    }
}

static bool have_all_answered(const scheduler_core *core)
{
    MEMBER_SLOT_EACH(each, &core->members.roster.workers)
        if (is_asked(each) && !each->opened) return false;
    return true;
}

bool core_prove_done(scheduler_core *core)
{
    if (!core->members.proof.is_open) {
        if (count_asked(core) < 2) return true;
        core->members.proof =
            (core_proof){true, core->members.proof.round + 1, core->out.now_ms + CORE_PROVE_MS};
        if (ask(core, NULL)) return false;
    } else if (!have_all_answered(core) && core->out.now_ms < core->members.proof.due_ms) {
        return false;
    }
    gather(core);
    core_prove_anew(core);
    return true;
}
