/* cluster_check.c - what must be true at every moment of a run. */
#include "tests/sim/cluster_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_free_rule(const cluster *c)
{
    return c->plan.task.mode == MODEL_SSP || c->plan.task.mode == MODEL_ASYNC;
}

static const char *name_of(const cluster *c, uint32_t chunk)
{
    return c->tensor_name[c->cut->chunk[chunk].tensor];
}

/* ---- shards: every version is the reference's ------------------------------------------------ */
/* Which push a shard just applied is what its worker said, not what the shard was told. */
static void check_origin(sim_shard *s, uint32_t chunk)
{
    cluster *c         = s->server->c;
    const wire_data *d = s->message;
    for (uint32_t i = 0; d->kind == WIRE_PUSH && i < d->n; i++) {
        if (d->chunk[i] != chunk) continue;
        const uint64_t seq = d->seq != NULL ? d->seq[i] : d->step;
        const char *wrong  = model_apply(c->reference, chunk, (uint32_t)d->rank, seq);
        if (wrong != NULL)
            sim_wrong(c, "%s: %s (push %" PRIu64 " of rank %d)", name_of(c, chunk), wrong, seq,
                      d->rank);
        return;
    }
    sim_wrong(c, "%s changed without a push", name_of(c, chunk));
}

static void check_version(sim_shard *s, uint32_t chunk, const float *values, uint64_t version)
{
    cluster *c = s->server->c;
    uint32_t crc;
    if (version != s->version[chunk] + 1) {
        sim_wrong(c, "%s went from version %" PRIu64 " to %" PRIu64 " at once", name_of(c, chunk),
                  s->version[chunk], version);
        return;
    }
    s->version[chunk] = version;
    c->result.applied++;
    if (is_free_rule(c)) check_origin(s, chunk);
    if (!model_crc(c->reference, chunk, version, &crc))
        sim_wrong(c, "%s has version %" PRIu64 " and should not", name_of(c, chunk), version);
    else if (crc32c(0, values, c->cut->chunk[chunk].count * sizeof(float)) != crc)
        sim_wrong(c, "%s differs from the reference in version %" PRIu64, name_of(c, chunk),
                  version);
}

void check_shard(sim_shard *s)
{
    const cluster *c = s->server->c;
    for (uint32_t k = 0; k < c->cut->n_chunks && c->result.wrong[0] == '\0'; k++) {
        uint64_t version;
        const float *values = shard_values(s->shard, k, &version);
        if (values != NULL && version != s->version[k]) check_version(s, k, values, version);
    }
}

/* ---- what is served -------------------------------------------------------------------------- */
static void check_payload(sim_shard *s, const wire_data *d, uint32_t i, const uint8_t *at,
                          size_t size)
{
    cluster *c             = s->server->c;
    const uint32_t chunk   = d->chunk[i];
    const uint64_t version = d->version[i];
    uint32_t crc;
    if (!model_crc(c->reference, chunk, version, &crc) || crc32c(0, at, size) != crc)
        sim_wrong(c, "%s was served in version %" PRIu64 " with values that it never had",
                  name_of(c, chunk), version);
    if (d->crc[i] != crc) sim_wrong(c, "%s was served with a wrong checksum", name_of(c, chunk));
}

/* What it was told when it was served: by the time the message leaves, others may have gone on. */
static void check_bound(sim_shard *s, const wire_data *d, uint32_t i)
{
    cluster *c         = s->server->c;
    const uint32_t gap = d->staleness[i];
    if (gap > c->result.gap_max) c->result.gap_max = gap;
    if (c->plan.task.mode == MODEL_SSP && gap > c->plan.bound)
        sim_wrong(c, "rank %d got %s while it was %u steps ahead; the bound is %" PRIu64, d->rank,
                  name_of(c, d->chunk[i]), gap, c->plan.bound);
}

void check_served(sim_shard *s, const wire_data *d, const buf *payload)
{
    const cluster *c = s->server->c;
    if (d->kind != WIRE_VALUES || d->rank < 0) return;
    const uint8_t *at = payload != NULL ? payload->data : NULL;
    for (uint32_t i = 0; i < d->n && c->result.wrong[0] == '\0'; i++) {
        const size_t size = c->cut->chunk[d->chunk[i]].count * sizeof(float);
        if (at != NULL) check_payload(s, d, i, at, size);
        if (at != NULL && is_free_rule(c) && !(d->flags & WIRE_INITIAL)) check_bound(s, d, i);
        if (at != NULL) at += size;
    }
}

/* ---- snapshots: all chunks of all shards as they were when one step had ended ---------------- */
void check_cut(sim_shard *s, const shard_cut *cut)
{
    cluster *c = s->server->c;
    for (uint32_t i = 0; i < cut->n; i++) {
        const shard_cut_chunk *k = &cut->chunk[i];
        const bool trained       = (c->tensor[k->tensor].flags & PEN_FROZEN) == 0;
        uint32_t crc;
        if (!model_crc(c->reference, k->chunk, k->version, &crc) ||
            crc32c(0, k->values->data, k->count * sizeof(float)) != crc)
            sim_wrong(c, "%s is cut in version %" PRIu64 " with values that it never had",
                      name_of(c, k->chunk), k->version);
        if (is_free_rule(c) || !trained) continue;
        const uint64_t applied = (uint64_t)model_at(c->reference, (uint64_t)cut->step - 1).applied;
        if (k->version != applied)
            sim_wrong(c,
                      "the snapshot of step %" PRId64 " has %s in version %" PRIu64
                      " instead of %" PRIu64,
                      cut->step, name_of(c, k->chunk), k->version, applied);
    }
}

/* ---- workers --------------------------------------------------------------------------------- */
static bool is_in(const cluster *c, uint32_t chunk, uint32_t rank, uint64_t step)
{
    if (is_free_rule(c)) return model_clock(c->reference, chunk, rank) > step;
    const int64_t applied = model_at(c->reference, step).applied;
    for (uint32_t i = 0; i < sim_n_shards(c); i++) {
        const sim_shard *s = &c->server[i / c->plan.shards].shard[i % c->plan.shards];
        if (s->shard != NULL && shard_values(s->shard, chunk, NULL) != NULL)
            return s->version[chunk] >= (uint64_t)applied;
    }
    return false;
}

/* A push that was answered is in the state, on all shards. */
void check_acknowledged(sim_worker *w, const sim_call *call)
{
    cluster *c = w->c;
    if (!call->acknowledges) return;
    for (uint32_t k = 0; k < c->cut->n_chunks; k++) {
        const uint32_t t = c->cut->chunk[k].tensor;
        if ((call->tensor >= 0 && (uint32_t)call->tensor != t) || (c->tensor[t].flags & PEN_FROZEN))
            continue;
        if (!is_in(c, k, w->rank, w->step))
            sim_wrong(c,
                      "%s of rank %u was told that push %" PRIu64 " of %s counts, and it does not",
                      call->name, w->rank, w->step, name_of(c, k));
    }
}

static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static void check_outcome(sim_worker *w)
{
    const model_step expected = model_at(w->c->reference, w->step);
    const exchange_outcome *o = &w->outcome;
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
    if (expected.outcome == PEN_SKIPPED_NONFINITE &&
        o->bad_rank != model_bad_rank(&w->c->plan.task, w->step))
        sim_wrong(w->c, "rank %u: step %" PRIu64 " is said to be spoiled by rank %d", w->rank,
                  w->step, o->bad_rank);
    if (expected.outcome != PEN_APPLIED && w->rank == 0) w->c->result.skipped++;
}

/* bsp: exactly this version.  Else any that the chunk ever had. */
static bool holds_version(const sim_worker *w, uint32_t chunk, uint32_t crc)
{
    model_reference *m = w->c->reference;
    uint64_t version   = 0;
    uint32_t expected;
    if (!is_free_rule(w->c)) {
        const bool is_first =
            w->at == AT_COMMIT || (w->c->tensor[w->c->cut->chunk[chunk].tensor].flags & PEN_FROZEN);
        if (!is_first) version = (uint64_t)model_at(m, w->step).applied;
        return model_crc(m, chunk, version, &expected) && expected == crc;
    }
    for (uint64_t v = model_newest(m, chunk) + 1; v-- > 0;)
        if (model_crc(m, chunk, v, &expected) && expected == crc) return true;
    return false;
}

/* When step t begins, no rank is more than the bound behind. */
static void check_start(sim_worker *w, uint32_t chunk)
{
    const uint64_t slowest = model_slowest(w->c->reference, chunk), done = w->step + 1;
    if (w->c->plan.task.mode == MODEL_SSP && done > slowest + w->c->plan.bound)
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
        if (is_step && is_free_rule(c) && !(c->tensor[at->tensor].flags & PEN_FROZEN))
            check_start(w, k);
    }
}

/* ---- all ------------------------------------------------------------------------------------- */
void check_calls(cluster *c)
{
    for (uint32_t r = 0; r < c->plan.task.workers; r++) {
        const sim_worker *w = &c->worker[r];
        for (int i = 0; i < SIM_CALLS_MAX && w->life == LIFE_RUNS; i++)
            if (w->call[i].is_pending && w->call[i].deadline_ms < c->now_ms)
                sim_wrong(c, "%s of rank %u is pending %" PRIu64 " ms after its deadline",
                          w->call[i].name, r, c->now_ms - w->call[i].deadline_ms);
    }
}

/* The verdict is the same sentence for everybody. */
void check_failure(cluster *c, const pen_error *why)
{
    if (why->status == PEN_NOT_A_MEMBER) return; /* for one alone */
    if (c->result.sentence[0] == '\0') {
        c->result.verdict = why->status;
        snprintf(c->result.sentence, sizeof c->result.sentence, "%s", why->text);
    }
    if (strcmp(c->result.sentence, why->text) != 0)
        sim_wrong(c, "two verdicts: \"%.200s\" and \"%.200s\"", c->result.sentence, why->text);
}

static void check_shards_agree(cluster *c)
{
    const uint64_t steps = c->plan.task.steps;
    for (uint32_t k = 0; k < c->cut->n_chunks; k++)
        for (uint32_t r = 0; r < c->plan.task.workers; r++)
            if (!(c->tensor[c->cut->chunk[k].tensor].flags & PEN_FROZEN) &&
                !is_in(c, k, r, steps - 1))
                sim_wrong(c, "%s ends without the last push of rank %u", name_of(c, k), r);
}

void check_end(cluster *c)
{
    bool left = true;
    for (uint32_t r = 0; r < c->plan.task.workers; r++) {
        left &= c->worker[r].life == LIFE_LEFT;
        c->result.failed += c->worker[r].life == LIFE_FAILED;
        c->result.unreachable += c->worker[r].why.status == PEN_UNREACHABLE;
        if (c->worker[r].life == LIFE_RUNS)
            sim_wrong(c, "rank %u has not ended: it is at step %" PRIu64, r, c->worker[r].step);
    }
    for (uint32_t i = 0; i < c->plan.servers; i++) {
        left &= c->server[i].life == LIFE_LEFT;
        if (c->server[i].life == LIFE_RUNS) sim_wrong(c, "server %u has not ended", i);
    }
    left &= c->scheduler.life == LIFE_LEFT;
    if (c->scheduler.life == LIFE_RUNS) sim_wrong(c, "the scheduler has not ended");
    c->result.in_order = left;
    c->result.is_over  = c->result.wrong[0] == '\0';
    if (left) check_shards_agree(c);
}
