/* cluster_check_program.c - invariants of what workers are told, and of the end of a run. */
#include "proto/scalars.h"
#include "tests/sim/cluster_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *name_of(const cluster *c, uint32_t chunk)
{
    return c->tensor_name[c->cut->chunk[chunk].tensor];
}

static bool is_trained(const cluster *c, uint32_t chunk)
{
    return (c->tensor[c->cut->chunk[chunk].tensor].flags & PEN_FROZEN) == 0;
}

/* ---- workers --------------------------------------------------------------------------------- */
/* Identities of what is sent to the shards. */
void check_pushed(sim_worker *w, const wire_data *d)
{
    cluster *c = w->c;
    for (uint32_t i = 0; d->kind == WIRE_PUSH && d->size == NULL && i < d->n; i++) {
        const uint64_t seq = d->seq != NULL ? d->seq[i] : d->step;
        if (d->seq == NULL && d->step != w->step)
            sim_wrong(c, "rank %u pushes %s of step %" PRIu64 " and is at step %" PRIu64, w->rank,
                      name_of(c, d->chunk[i]), d->step, w->step);
        const char *wrong = model_says(c->reference, d->chunk[i], w->rank, d->from, seq, w->step);
        if (wrong != NULL)
            sim_wrong(c, "rank %u, %s, push %" PRIu64 ": %s", w->rank, name_of(c, d->chunk[i]), seq,
                      wrong);
        w->pushed[d->chunk[i]] = seq + 1;
    }
}

static const sim_copy *primary_of(const cluster *c, uint32_t chunk)
{
    const wire_replica *row =
        sim_view_primary(&c->view, c->shard_of[c->cut->chunk[chunk].partition]);
    return row != NULL ? &c->server[row->server].copy[row->shard] : NULL;
}

/* bsp: the primary has the reference's state of this step, or a later one.  The primary of a
 * new epoch may not know it yet. */
static bool is_in(const cluster *c, uint32_t chunk, uint32_t rank, uint64_t seq)
{
    if (sim_is_free_rule(c)) return model_clock(c->reference, chunk, rank) > seq;
    uint64_t applied  = seq + 1;
    const sim_copy *k = primary_of(c, chunk);
    if (c->plan.task.mode == MODEL_DECIDE) {
        const model_step s = model_at(c->reference, seq);
        if (!model_has(&s.ranks, rank)) return false;
        applied = (uint64_t)s.applied;
    }
    if (k == NULL || k->shard == NULL || !k->is_authority) return true;
    return k->version[chunk] >= applied;
}

/* An acknowledged push is in the state, on all shards, and stays there. */
void check_acknowledged(sim_worker *w, const sim_call *call)
{
    cluster *c = w->c;
    if (!call->acknowledges) return;
    if (c->plan.task.mode == MODEL_DECIDE) model_saw_step(c->reference, w->step);
    for (uint32_t k = 0; k < c->cut->n_chunks; k++) {
        const uint32_t t = c->cut->chunk[k].tensor;
        if ((call->tensor >= 0 && (uint32_t)call->tensor != t) || !is_trained(c, k)) continue;
        if (w->pushed[k] == 0) continue; /* it was ahead of this rank, which has just joined */
        const uint64_t seq = w->pushed[k] - 1;
        if (sim_is_free_rule(c)) model_saw_push(c->reference, k, w->rank, seq);
        if (!is_in(c, k, w->rank, seq))
            sim_wrong(c,
                      "%s of rank %u was told that push %" PRIu64 " of %s counts, and it does not",
                      call->name, w->rank, seq, name_of(c, k));
    }
}

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* The ranks' numbers are of this step, once each, and of the ranks whose gradients count. */
static void check_scalars(const sim_worker *w, const model_step *expected)
{
    const wire_scalars *s = &w->outcome.scalars;
    double marks = 0, steps = 0, expected_marks = 0;
    uint32_t n = 0, n_steps = 0, n_expected = 0;
    MODEL_EACH(r, &expected->ranks)
    {
        expected_marks += sim_mark(r);
        n_expected++;
    }
    (void)scalars_find(s, SIM_SCALAR_RANKS, &marks, &n);
    (void)scalars_find(s, SIM_SCALAR_STEP, &steps, &n_steps);
    if (marks != expected_marks || n != n_expected || n_steps != n ||
        steps != (double)n * (double)w->step)
        sim_wrong(w->c,
                  "rank %u: scalars of step %" PRIu64
                  " are of %u ranks (marks %.0f), steps %g; not of %u (%.0f)",
                  w->rank, w->step, n, marks, steps, n_expected, expected_marks);
}

static void check_outcome(sim_worker *w)
{
    const model_step expected  = model_at(w->c->reference, w->step);
    const ps_client_outcome *o = &w->outcome;
    if (!w->has_outcome)
        sim_wrong(w->c, "rank %u ended step %" PRIu64 " without an outcome", w->rank, w->step);
    if (o->outcome != expected.outcome || o->applied != expected.applied ||
        !same_bits(o->clip, expected.clip))
        sim_wrong(w->c,
                  "rank %u: step %" PRIu64 " has outcome %d, clip %g, %" PRId64
                  " applied instead of %d, %g, %" PRId64,
                  w->rank, w->step, o->outcome, o->clip, o->applied, expected.outcome,
                  expected.clip, expected.applied);
    if (expected.outcome == PEN_APPLIED && !same_bits(o->norm, expected.norm))
        sim_wrong(w->c, "rank %u: step %" PRIu64 " has norm %.17g instead of %.17g", w->rank,
                  w->step, o->norm, expected.norm);
    if (expected.outcome == PEN_SKIPPED_NONFINITE && o->bad_rank != expected.bad_rank)
        sim_wrong(w->c, "rank %u: step %" PRIu64 " is said to be spoiled by rank %d", w->rank,
                  w->step, o->bad_rank);
    check_scalars(w, &expected);
    if (expected.outcome != PEN_APPLIED && w->rank == 0) w->c->result.skipped++;
}

/* After initial values, or after a step.  eager: chunks end independently, and a latecomer finds
 * some a round ahead of others. */
static uint64_t expected_version(const sim_worker *w, uint32_t chunk)
{
    const bool is_first    = w->at == AT_COMMIT;
    const uint64_t applied = (uint64_t)w->first_applied;
    if (w->c->plan.task.mode == MODEL_DECIDE)
        return is_first ? applied : (uint64_t)model_at(w->c->reference, w->step).applied;
    if (!is_first && w->pushed[chunk] > 0) return w->pushed[chunk];
    return w->loaded[chunk];
}

/* bsp: exactly this version.  Otherwise any that the chunk ever had. */
static bool holds_version(const sim_worker *w, uint32_t chunk, uint32_t crc)
{
    model_reference *m = w->c->reference;
    uint64_t version   = 0;
    uint32_t expected;
    if (!sim_is_free_rule(w->c)) {
        if (is_trained(w->c, chunk)) version = expected_version(w, chunk);
        return model_crc(m, chunk, version, &expected) && expected == crc;
    }
    for (uint64_t v = model_newest(m, chunk) + 1; v-- > 0;)
        if (model_crc(m, chunk, v, &expected) && expected == crc) return true;
    return false;
}

/* When step t begins, no rank is behind by more than the bound. */
static void check_start(sim_worker *w, uint32_t chunk)
{
    const uint64_t slowest = model_slowest(w->c->reference, chunk), done = w->pushed[chunk];
    if (w->c->plan.task.mode == MODEL_SSP && done > 0 && slowest != UINT64_MAX &&
        done > slowest + w->c->plan.bound)
        sim_wrong(w->c,
                  "rank %u goes on after %" PRIu64 " steps and the slowest has done %" PRIu64
                  "; the bound is %" PRIu64,
                  w->rank, done, slowest, w->c->plan.bound);
}

void check_step(sim_worker *w)
{
    const cluster *c   = w->c;
    const bool is_step = w->at != AT_COMMIT;
    if (is_step && c->plan.task.mode == MODEL_DECIDE) check_outcome(w);
    for (uint32_t k = 0; k < c->cut->n_chunks && c->result.wrong[0] == '\0'; k++) {
        const plan_chunk *at = &c->cut->chunk[k];
        const uint32_t crc = crc32c(0, w->param[at->tensor] + at->start, at->count * sizeof(float));
        if (!holds_version(w, k, crc))
            sim_wrong(w->c, "rank %u holds values of %s after step %" PRIu64 " that it should not",
                      w->rank, name_of(c, k), w->step);
        if (is_step && sim_is_free_rule(c) && is_trained(c, k)) check_start(w, k);
    }
}

/* No step relies on a connection that never existed. */
void check_ways(const sim_worker *w)
{
    const cluster *c = w->c;
    for (uint32_t i = 0; i < c->plan.n_events && !w->is_late; i++) {
        const sim_event *e = &c->plan.event[i];
        if (e->what != SIM_NO_WAY || e->from_ms > 0 || e->to_role == SIM_NOBODY) continue;
        const bool is_needed = e->role == SIM_WORKER ||
                               fault_needs(&w->view, (int32_t)e->rank, (int32_t)e->to) ||
                               fault_needs(&w->view, (int32_t)e->to, (int32_t)e->rank);
        if (is_needed)
            sim_wrong(w->c, "rank %u may begin its first step, and %s %u has never reached %s %u",
                      w->rank, e->role == SIM_WORKER ? "worker" : "server", e->rank,
                      e->to_role == SIM_WORKER ? "worker" : "server", e->to);
    }
}

/* ---- all ------------------------------------------------------------------------------------- */
void check_calls(cluster *c)
{
    for (uint32_t r = 0; r < c->n_workers; r++) {
        const sim_worker *w = &c->worker[r];
        if (w->life != LIFE_RUNS || w->stalled_until_ms > 0) continue;
        const uint64_t now = sim_now(c, &w->clock);
        for (int i = 0; i < SIM_CALLS_MAX && w->pending > 0; i++)
            if (w->call[i].is_pending && w->call[i].deadline_ms + 1 < now)
                sim_wrong(c, "%s of rank %u is pending %" PRIu64 " ms after its deadline",
                          w->call[i].name, r, now - w->call[i].deadline_ms);
    }
}

/* The verdict is the same sentence for all members, and there is none while the job can go on. */
void check_failure(cluster *c, const pen_error *why)
{
    if (why->status == PEN_NOT_A_MEMBER) return; /* for this worker only */
    c->is_excused |= sim_memory_has_refused();
    if (c->result.sentence[0] == '\0') {
        c->result.verdict = why->status;
        snprintf(c->result.sentence, sizeof c->result.sentence, "%s", why->text);
        if (c->plan.must_go_on && !c->is_excused)
            sim_wrong(c, "a verdict, though the job could go on: \"%.300s\"", why->text);
    }
    /* A scheduler that died with its verdict gives another one when it is back. */
    const bool may_differ = sim_memory_has_refused() && c->scheduler.birth > 0;
    if (strcmp(c->result.sentence, why->text) != 0 && !may_differ)
        sim_wrong(c, "two verdicts: \"%.200s\" and \"%.200s\"", c->result.sentence, why->text);
}

static void check_shards_agree(cluster *c)
{
    const uint64_t steps = c->plan.task.steps;
    for (uint32_t k = 0; k < c->cut->n_chunks; k++)
        for (uint32_t r = 0; r < c->n_workers; r++) {
            const sim_worker *w = &c->worker[r];
            const bool is_last  = w->life == LIFE_LEFT && w->step == steps && w->pushed[k] > 0;
            if (is_last && is_trained(c, k) && !is_in(c, k, r, w->pushed[k] - 1))
                sim_wrong(c, "%s ends without the last push of rank %u", name_of(c, k), r);
        }
}

/* A member that the others gave up, or that came, or came again, when all was over. */
static bool is_no_member(life how, uint32_t birth, uint64_t incarnation)
{
    return how == LIFE_CRASHED || (how == LIFE_FAILED && (birth > 0 || incarnation == 0));
}

static bool is_turned_away(const sim_worker *w)
{
    return w->life == LIFE_FAILED && w->why.status == PEN_NOT_A_MEMBER;
}

void check_end(cluster *c)
{
    bool left = true;
    for (uint32_t r = 0; r < c->n_workers; r++) {
        const sim_worker *w = &c->worker[r];
        left &= w->life == LIFE_LEFT || w->life == LIFE_ABSENT ||
                (c->plan.must_go_on &&
                 (is_turned_away(w) ||
                  is_no_member(w->life, w->birth,
                               membership_client_core(w->membership_client)->incarnation)));
        c->result.failed += w->life == LIFE_FAILED;
        c->result.unreachable += w->why.status == PEN_UNREACHABLE;
        if (w->life == LIFE_RUNS)
            sim_wrong(c, "rank %u has not ended: it is at step %" PRIu64, r, w->step);
    }
    for (uint32_t i = 0; i < c->n_servers; i++) {
        const life how = c->server[i].life;
        left &= how == LIFE_LEFT || how == LIFE_ABSENT ||
                (c->plan.must_go_on &&
                 is_no_member(how, c->server[i].birth, c->server[i].member.incarnation));
        if (how == LIFE_RUNS) sim_wrong(c, "server %u has not ended", i);
    }
    left &= c->scheduler.life == LIFE_LEFT ||
            (c->plan.must_go_on && c->scheduler.life == LIFE_CRASHED); /* no member was left */
    if (c->scheduler.life == LIFE_RUNS) sim_wrong(c, "the scheduler has not ended");
    c->result.in_order = left;
    c->result.is_over  = c->result.wrong[0] == '\0';
    c->result.excused  = c->is_excused;
    if (left) check_shards_agree(c);
    if (!left && c->plan.must_go_on && !c->is_excused)
        sim_wrong(c, "not everybody left in good order, and the job could go on");
}

/* A process is one member, however often the scheduler restarts. */
void check_incarnation(cluster *c, const char *who, uint64_t *first, uint64_t now)
{
    if (*first != 0 && *first != now) sim_wrong(c, "%s goes on as another member than it was", who);
    *first = now;
}

/* A scheduler that persists its state comes back: welcomed members wait for it. */
void check_lost_scheduler(cluster *c, const char *who, const membership *m, const pen_error *why)
{
    if (why->role != PEN_SCHEDULER || why->status != PEN_UNREACHABLE || m->incarnation == 0) return;
    if (c->plan.must_go_on && !c->is_excused && !c->scheduler.has_ended)
        sim_wrong(c, "%s gave the scheduler up: \"%s\"", who, why->text);
}
