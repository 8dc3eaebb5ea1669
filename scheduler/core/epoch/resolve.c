/* resolve.c - compares the reports of a change, and chooses each shard's primary. */
#include "scheduler/core/epoch/resolve.h"
#include "common/base/mutation.h"
#include "common/base/why.h"
#include <inttypes.h>
#include <string.h>

typedef struct {
    const resolve_holder *server;
    uint32_t n_servers;
} facts;

/* NULL: the server is gone or did not report that shard. */
static const wire_sealed_report *report_of(const facts *f, const wire_replica *copy)
{
    if (copy->server < 0 || (uint32_t)copy->server >= f->n_servers) return NULL;
    const resolve_holder *s = &f->server[copy->server];
    for (uint32_t i = 0; s->is_alive && i < s->n_reports; i++)
        if (s->report[i].shard == copy->shard) return &s->report[i];
    return NULL;
}

static bool is_alive(const facts *f, const wire_replica *copy)
{
    return copy->server >= 0 && (uint32_t)copy->server < f->n_servers &&
           f->server[copy->server].is_alive;
}

static bool may_lead(const wire_replica *copy)
{
    return copy->role != WIRE_LEARNER || mutation(MUTATION_LEARNER_PROMOTED);
}

/* The primary if it lives, else the copy that has applied the most; ties: the lowest rank. */
static placement_row *choose_primary(const facts *f, placement *table, uint32_t shard)
{
    placement_row *best = NULL;
    uint64_t best_index = 0;
    for (uint32_t i = 0; i < table->n; i++) {
        placement_row *row          = &table->row[i];
        const wire_sealed_report *r = row->at.shard == shard ? report_of(f, &row->at) : NULL;
        if (!r || !may_lead(&row->at)) continue;
        if (row->at.role == WIRE_PRIMARY) return row;
        if (best && r->index <= best_index) continue;
        best       = row;
        best_index = r->index;
    }
    return best;
}

/* The new role of a copy beside its primary, whose report is `lead`. */
static void place_copy(const facts *f, placement_row *row, const wire_sealed_report *lead)
{
    const wire_sealed_report *r = report_of(f, &row->at);
    const bool is_level         = r && r->index == lead->index && r->digest == lead->digest;
    const bool was_learner      = row->at.role == WIRE_LEARNER;
    const bool is_trusted       = was_learner ? row->is_caught_up : !row->is_suspect;
    row->at.role                = is_level && is_trusted ? WIRE_BACKUP : WIRE_LEARNER;
    row->is_caught_up = row->is_suspect = false;
}

static void remove_dead(const facts *f, placement *table)
{
    for (uint32_t i = table->n; i-- > 0;)
        if (!is_alive(f, &table->row[i].at)) placement_remove(table, &table->row[i]);
}

/* Counts steps by primaries and the copies level with them. */
static void count_steps(const facts *f, const placement *table, resolved *out)
{
    for (uint32_t i = 0; i < table->n; i++) {
        const wire_sealed_report *r =
            table->row[i].at.role == WIRE_LEARNER ? NULL : report_of(f, &table->row[i].at);
        if (!r) continue;
        if (r->step > out->step) out->step = r->step;
        if (r->clock >= 0 && (out->clock < 0 || r->clock < out->clock)) out->clock = r->clock;
    }
}

static bool is_same(const wire_decision *a, const wire_decision *b)
{
    return a->outcome == b->outcome && a->applied == b->applied &&
           memcmp(&a->clip, &b->clip, sizeof a->clip) == 0 &&
           memcmp(&a->gscale, &b->gscale, sizeof a->gscale) == 0;
}

static pen_status check_step(const wire_sealed_report *r, const resolved *out, pen_error *why)
{
    const bool follows = r->step == out->step - 1 && r->all_prepared;
    if (r->step < 0 || r->step == out->step || follows) return PEN_OK;
    return why_set(why, PEN_INTERNAL,
                   "shard %u has committed %" PRId64
                   " steps and is %sprepared for the next, another "
                   "has committed %" PRId64 "; the job cannot go on from there",
                   r->shard, r->step, r->all_prepared ? "" : "not ", out->step);
}

static pen_status take_decision(const wire_sealed_report *r, resolved *out, pen_error *why)
{
    const bool is_other_step = mutation(MUTATION_DECISION_OF_OTHER_STEP) && r->has_decision;
    if (!r->has_decision || (r->step != out->step && !is_other_step)) return PEN_OK;
    if (!out->has_decision) {
        out->has_decision = true;
        out->decision     = r->decision;
        return PEN_OK;
    }
    if (is_other_step || is_same(&r->decision, &out->decision)) return PEN_OK;
    return why_set(why, PEN_INTERNAL,
                   "shard %u has committed step %" PRId64
                   " with another decision than other shards; "
                   "the job cannot go on from there",
                   r->shard, out->step - 1);
}

static pen_status check_reports(const facts *f, const placement *table, resolved *out,
                                pen_error *why)
{
    pen_status status = PEN_OK;
    for (uint32_t i = 0; i < table->n && status == PEN_OK; i++) {
        const wire_sealed_report *r =
            table->row[i].at.role == WIRE_LEARNER ? NULL : report_of(f, &table->row[i].at);
        if (!r) continue;
        status = check_step(r, out, why);
        if (status == PEN_OK) status = take_decision(r, out, why);
    }
    return status;
}

pen_status resolve_epoch(placement *table, uint32_t n_shards, const resolve_holder *server,
                         uint32_t n_servers, resolved *out, pen_error *why)
{
    const facts f = {server, n_servers};
    *out          = (resolved){.step = -1, .clock = -1};
    remove_dead(&f, table);
    for (uint32_t shard = 0; shard < n_shards; shard++) {
        placement_row *lead = choose_primary(&f, table, shard);
        if (!lead) return why_set(why, PEN_PEER_LOST, "no copy of shard %u is left", shard);
        const wire_sealed_report *r = report_of(&f, &lead->at);
        out->n_moved += lead->at.role != WIRE_PRIMARY;
        for (uint32_t i = 0; i < table->n; i++)
            if (table->row[i].at.shard == shard && &table->row[i] != lead)
                place_copy(&f, &table->row[i], r);
        lead->at.role      = WIRE_PRIMARY;
        lead->is_caught_up = lead->is_suspect = false;
    }
    placement_sort(table);
    count_steps(&f, table, out);
    return check_reports(&f, table, out, why);
}

/* ---- without servers ------------------------------------------------------------------------- */
pen_status resolve_workers(const resolve_holder *worker, uint32_t n_workers, resolved *out,
                           pen_error *why)
{
    *out = (resolved){.step = -1, .clock = -1};
    for (uint32_t i = 0; i < n_workers; i++) {
        if (!worker[i].is_alive) continue;
        if (worker[i].n_reports != 1 || worker[i].report->step < 0)
            return why_set(why, PEN_INTERNAL, "sealed worker %u did not report its step", i);
        const wire_sealed_report *r = worker[i].report;
        const bool is_further       = mutation(MUTATION_LEAST_STEP_SETTLED) && out->step >= 0
                                          ? r->step < out->step
                                          : r->step > out->step;
        if (!is_further) continue;
        out->step         = r->step;
        out->has_decision = r->has_decision;
        out->decision     = r->decision;
    }
    if (out->step >= 0) return PEN_OK;
    return why_set(why, PEN_INTERNAL, "no worker that holds the job's state is left");
}
