/* core_reach.c - UNREACHED: a live member cannot reach another live one.
 *
 * DESIGN.  A member reports a required connection that fails, with the address and the system's error.  A dead or
 * restarting peer looks the same.  So a report counts only after a later message of the peer and a repeat by the
 * member.  If the peer is dead, its lease or its launcher shows it, and the report is dropped.  Reports shortly after
 * the first are combined with it: one pair is named, with the number of the others; an end common to all is the
 * culprit.
 * Only the newcomer is turned away if the others do not need it: a worker before its gradients are awaited, a server
 * that a worker cannot reach as if it had died.
 */
#include "scheduler/core/core_state.h"
#include <stdio.h>
#include <string.h>

enum {
    GATHER_MS  = 500,  /* for more reports of the same */
    MORE_MS    = 2000, /* more time, for members that have neither reached all nor reported */
    LOOK_MS    = 100,
    CONFIRM_MS = 200, /* reports delayed by an outage come at once when it ends */
    STALE_MS   = 3000 /* without a repeat by then it is over */
};

static bool may_miss(const member_slot *s) /* it takes part and is connected */
{
    return member_slot_is_here(s) && s->is_bound;
}

static bool is_proven(const core_gap *g)
{
    return g->is_confirmed && may_miss(g->from) && may_miss(g->to);
}

static bool is_over(const core_gap *g, const void *now_ms)
{
    return !member_slot_is_here(g->from) || !member_slot_is_here(g->to) ||
           g->from->incarnation != g->from_incarnation || g->to->incarnation != g->to_incarnation ||
           *(const uint64_t *)now_ms - g->newest_ms >= STALE_MS;
}

/* Forgets the gaps for which `is` is true. */
static void forget(core_members *self, bool (*is)(const core_gap *g, const void *what),
                   const void *what)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < self->n_gaps; i++)
        if (!is(&self->gap[i], what)) self->gap[n++] = self->gap[i];
    self->n_gaps = n;
}

/* ---- reports ------------------------------------------------------------------------------ */
static core_gap *gap_of(scheduler_core *core, const member_slot *from, const member_slot *to)
{
    for (uint32_t i = 0; i < core->members.n_gaps; i++)
        if (core->members.gap[i].from == from && core->members.gap[i].to == to)
            return &core->members.gap[i];
    return NULL;
}

static bool is_from(const core_gap *g, const void *s)
{
    return g->from == s;
}

void core_reached(core_members *self, const member_slot *s)
{
    forget(self, is_from, s);
}

static core_gap *make_gap(scheduler_core *core, member_slot *from, member_slot *to)
{
    if (core->members.n_gaps == CORE_GAPS_MAX) return NULL; /* enough to name one */
    core_gap *g = &core->members.gap[core->members.n_gaps++];
    *g          = (core_gap){.from             = from,
                             .to               = to,
                             .from_incarnation = from->incarnation,
                             .to_incarnation   = to->incarnation,
                             .first_ms         = core->out.now_ms};
    return g;
}

void core_unreached(scheduler_core *core, member_slot *s, const wire_control *message)
{
    const int32_t role = message->u.unreached.role;
    member_slot *to    = role == PEN_WORKER || role == PEN_SERVER
                             ? roster_find(&core->members.roster, role, message->u.unreached.rank)
                             : NULL;
    if (!core_runs(core) || to == NULL || to == s || !member_slot_is_here(to)) return;
    forget(&core->members, is_over, &core->out.now_ms);
    core_gap *g = gap_of(core, s, to);
    if (g == NULL) g = make_gap(core, s, to);
    if (g == NULL) return;
    g->newest_ms = core->out.now_ms;
    g->is_confirmed =
        to->last_seen_ms > g->first_ms && core->out.now_ms - g->first_ms >= CONFIRM_MS;
    if (g->is_confirmed && core->members.gap_due_ms == 0) {
        core->members.gap_due_ms = core->out.now_ms + GATHER_MS;
        core->members.gap_end_ms = core->members.gap_due_ms + MORE_MS;
    }
    snprintf(g->address, sizeof g->address, "%s", message->u.unreached.address);
    snprintf(g->words, sizeof g->words, "%s", message->u.unreached.words);
}

/* ---- judging -------------------------------------------------------------------------- */
/* An order independent of the order of reports. */
static int order_of(const core_gap *a, const core_gap *b)
{
    const int64_t difference[] = {
        b->to->role - (int64_t)a->to->role, a->to->rank - (int64_t)b->to->rank,
        b->from->role - (int64_t)a->from->role, a->from->rank - (int64_t)b->from->rank};
    for (size_t i = 0; i < sizeof difference / sizeof *difference; i++)
        if (difference[i] != 0) return difference[i] < 0 ? -1 : 1;
    return 0;
}

static bool has_end(const core_gap *g, const void *s)
{
    return g->from == s || g->to == s;
}

static const member_slot *common_end(const core_gap *gap, uint32_t n, const core_gap *named)
{
    const member_slot *ends[] = {named->to, named->from};
    for (int e = 0; e < 2; e++) {
        uint32_t i = 0;
        while (i < n && has_end(&gap[i], ends[e])) i++;
        if (i == n) return ends[e];
    }
    return NULL;
}

static void describe(const core_gap *gap, uint32_t n, const core_gap *named, pen_error *why)
{
    const member_slot *end = n > 1 ? common_end(gap, n, named) : NULL;
    const sentence_gap all = {.from    = named->from,
                              .to      = named->to,
                              .address = named->address,
                              .words   = named->words,
                              .n_more  = n - 1,
                              .common  = end};
    sentence_unreached(&all, why);
}

/* A member that came later and that the job does not need. */
static bool is_newcomer(const scheduler_core *core, const member_slot *s)
{
    if (core->job.phase != PHASE_TRAINING) return false;
    if (s->role == PEN_SERVER) return core_is_late(core, s) || s->has_come_back;
    return core_is_late(core, s) ||
           ((s->has_come_back || s->begin_step >= 0) && (core_waits(core) || core_goes_on(core)));
}

static void turn_away(scheduler_core *core, member_slot *s, const pen_error *why)
{
    core_refuse(&core->out, s->peer, PEN_UNREACHABLE, "%.800s", why->text);
    if (s->state != MEMBER_JOINING) {
        core_lose(core, s, MEMBER_EVENT_LOST, why->text);
        return;
    }
    s->is_registered = s->is_ready = false; /* not awaited: its slot is free */
    roster_unbind(&core->members.roster, s);
    core_move(&core->out, s, MEMBER_EVENT_DOWN);
}

/* The common end of all, or else an end of the named one, if it is a newcomer; else NULL. */
static member_slot *find_newcomer(const scheduler_core *core, uint32_t n, const core_gap *named)
{
    const member_slot *end = n > 1 ? common_end(core->members.gap, n, named) : NULL;
    if (end != named->to && is_newcomer(core, named->from)) return named->from;
    if (end != named->from && is_newcomer(core, named->to)) return named->to;
    return NULL;
}

/* A server whose shards have no other copy must stay. */
static bool may_go(const scheduler_core *core, const member_slot *s)
{
    return s->role == PEN_WORKER || core->job.settings.replicas > 0;
}

/* False: affects the whole job.  Between servers none goes: the newcomer holds no copy until it can be filled. */
static bool judge_newcomer(scheduler_core *core, uint32_t n, const core_gap *named)
{
    pen_error why;
    member_slot *s = find_newcomer(core, n, named);
    if (s == NULL || !may_go(core, s)) return false;
    const bool is_copy = named->from->role == PEN_SERVER;
    describe(core->members.gap, n, named, &why);
    forget(&core->members, has_end, s);
    core_log(&core->out, LOG_WARNING, "%s", why.text);
    if (!is_copy) turn_away(core, s, &why);
    return true;
}

static uint32_t gather_proven(scheduler_core *core) /* moves them to the front; their number */
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < core->members.n_gaps; i++) {
        if (!is_proven(&core->members.gap[i])) continue;
        const core_gap g       = core->members.gap[i];
        core->members.gap[i]   = core->members.gap[n];
        core->members.gap[n++] = g;
    }
    return n;
}

static void judge(scheduler_core *core)
{
    const uint32_t n      = gather_proven(core);
    const core_gap *named = NULL;
    for (uint32_t i = 0; i < n; i++)
        if (named == NULL || order_of(&core->members.gap[i], named) < 0)
            named = &core->members.gap[i];
    if (named == NULL) return;
    const core_gap one = *named;
    if (judge_newcomer(core, n, &one)) return;
    pen_error why;
    describe(core->members.gap, n, &one, &why);
    core->members.n_gaps = 0;
    core_verdict(core, &why);
}

static bool has_told(const scheduler_core *core, const member_slot *s)
{
    for (uint32_t i = 0; i < core->members.n_gaps; i++)
        if (core->members.gap[i].from == s) return true;
    return false;
}

/* On a busy machine some members report a second late, and the sentence should cover all. */
static bool may_hear_more(const scheduler_core *core)
{
    for (uint32_t i = 0; i < core->members.n_gaps; i++)
        if (!core->members.gap[i].is_confirmed && may_miss(core->members.gap[i].from)) return true;
    if (core->job.phase >= PHASE_TRAINING) return false;
    MEMBER_SLOT_EACH(s, &core->members.roster.workers) {
        if (may_miss(s) && !s->is_ready && !has_told(core, s)) return true;
    }
    return false;
}

/* ---- silent members ----------------------------------------------------------------------------- */
/* A recent report of a live member that cannot reach it either. */
static const core_gap *witness_of(const scheduler_core *core, const member_slot *s, uint64_t at_ms)
{
    const core_gap *found = NULL;
    for (uint32_t i = 0; i < core->members.n_gaps; i++) {
        const core_gap *g = &core->members.gap[i];
        if (g->to != s || g->to_incarnation != s->incarnation) continue;
        if (!may_miss(g->from) || g->from_incarnation != g->from->incarnation) continue;
        if (g->newest_ms + STALE_MS <= at_ms) continue;
        if (!found || order_of(g, found) < 0) found = g;
    }
    return found;
}

static sentence_silence describe_silence(const scheduler_core *core, const core_gap *g)
{
    return (sentence_silence){.scheduler = core->job.address,
                              .host      = core->job.host,
                              .master    = core->job.master,
                              .from      = g ? g->from : NULL,
                              .address   = g ? g->address : NULL,
                              .words     = g ? g->words : NULL};
}

void core_add_silence(const scheduler_core *core, const member_slot *s, uint64_t at_ms,
                      pen_error *why)
{
    if (at_ms - s->last_seen_ms < core->job.settings.lease_ms) return;
    const sentence_silence silence = describe_silence(core, witness_of(core, s, at_ms));
    sentence_add_silence(s, &silence, why);
}

void core_missed(const scheduler_core *core, const member_slot *s, uint64_t waits_ms,
                 pen_error *why)
{
    const sentence_silence silence = describe_silence(core, NULL);
    sentence_missed(s, &silence, waits_ms, core->out.now_ms, why);
}

/* ---- time -------------------------------------------------------------------------------------- */
void core_reach_tick(scheduler_core *core)
{
    if (core->out.now_ms < core->members.gap_end_ms && core_runs(core) && may_hear_more(core)) {
        core->members.gap_due_ms = core->out.now_ms + LOOK_MS;
        return;
    }
    core->members.gap_due_ms = 0;
    if (!core_runs(core) || core->members.query.dead) core->members.n_gaps = 0;
    forget(&core->members, is_over, &core->out.now_ms);
    judge(core);
}

uint64_t core_reach_next_ms(const scheduler_core *core)
{
    return core->members.gap_due_ms != 0 ? core->members.gap_due_ms : UINT64_MAX;
}
