/* core_step.c - decided steps: equal inputs, prepared partitions, and one decision for each. */
#include "server/shard/core/core_state.h"

#include "proto/decision.h"
#include "proto/scalars.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs ---------------------------------------------------------------------------------- */
/* A rank opens step S+1 only after every partition has taken S's decision. So partitions of one shard are at most
 * one step apart, and two slots are enough. */
static bool is_open_step(const shard_core *c, uint64_t step)
{
    return step == c->newest || step + 1 == c->newest;
}

void shard_core_open_step(shard_core *c, int32_t rank, uint64_t step, const wire_inputs *inputs)
{
    shard_core_inputs_of_step *s = &c->steps[step & 1];

    s->open   = true;
    s->step   = step;
    s->first  = rank;
    s->inputs = *inputs;
    memcpy(s->rate, inputs->rate, inputs->n_rates * sizeof *s->rate);
    s->inputs.rate         = s->rate;
    s->inputs.states       = NULL; /* the shard has them */
    s->inputs.states_bytes = 0;
    for (uint32_t r = 0; r < c->world_size; r++) s->weight[r] = NAN;
    if (s->scalars != NULL) memset(s->scalars, 0, c->world_size * sizeof *s->scalars);
}

/* Allocates scalars for the first rank that has any. */
static bool keep_scalars(const shard_core *c, shard_core_inputs_of_step *s, int32_t rank,
                         const wire_scalars *scalars)
{
    if (scalars->n == 0) return true;
    if (s->scalars == NULL) s->scalars = calloc(c->world_size, sizeof *s->scalars);
    if (s->scalars != NULL) s->scalars[rank] = *scalars;
    return s->scalars != NULL;
}

pen_status shard_core_inputs(shard_core *c, int32_t rank, uint64_t step, const wire_inputs *inputs,
                             pen_error *why)
{
    if (!is_open_step(c, step)) return PEN_OK; /* all its pushes are repeats, or early */
    shard_core_inputs_of_step *s = &c->steps[step & 1];
    if (!s->open || s->step != step) shard_core_open_step(c, rank, step, inputs);
    if (!decision_inputs_equal(&s->inputs, s->first, inputs, rank, why)) {
        if (why != NULL) why->step = (int64_t)step;
        return PEN_MISMATCH;
    }
    if (isnan(s->weight[rank]) && !keep_scalars(c, s, rank, &inputs->scalars))
        return why_set(why, PEN_NO_MEMORY, "no memory for the scalars of %u ranks", c->world_size);
    if (isnan(s->weight[rank])) s->weight[rank] = inputs->weight;
    if (s->weight[rank] == inputs->weight) return PEN_OK;
    why_set(why, PEN_MISMATCH, "rank %d pushes step %" PRIu64 " with weights %.17g and %.17g", rank,
            step, s->weight[rank], inputs->weight);
    why_culprit(why, PEN_WORKER, rank, (int64_t)step, NULL);
    return PEN_MISMATCH;
}

const wire_inputs *shard_core_step_inputs(const shard_core *c, uint64_t step)
{
    const shard_core_inputs_of_step *s = &c->steps[step & 1];
    return s->open && s->step == step ? &s->inputs : NULL;
}

/* With sums of nodes, each rank gives its node's weight, which counts once. */
static bool counts(const shard_core *c, const shard_core_inputs_of_step *s, uint32_t rank)
{
    if (isnan(s->weight[rank])) return false;
    for (uint32_t r = 0; s->inputs.is_node_sum && r < rank; r++)
        if (c->incarnation[r] != 0 && c->node[r] == c->node[rank] && !isnan(s->weight[r]))
            return false;
    return true;
}

double shard_core_weight_sum(const shard_core *c, uint64_t step)
{
    const shard_core_inputs_of_step *s = &c->steps[step & 1];
    double nodes = 0, sum = 0;
    for (uint32_t i = 0; i < c->live; i++) {
        const int32_t r = c->turns[i];
        if (counts(c, s, (uint32_t)r)) sum += s->weight[r];
        if (!shard_core_ends_node(c, r)) continue;
        nodes += sum;
        sum = 0;
    }
    return nodes + sum;
}

double shard_core_relative_weight(shard_core *c, int32_t rank, double weight)
{
    double sum = 0;
    uint32_t n = 0;
    if (weight == 0) return 0; /* a rank without data says nothing about the others */
    c->newest_weight[rank] = weight;
    for (uint32_t r = 0; r < c->world_size; r++) {
        if (c->newest_weight[r] == 0 || (c->incarnation[r] == 0 && r != (uint32_t)rank)) continue;
        sum += c->newest_weight[r];
        n++;
    }
    return weight * n / sum;
}

void shard_core_scalars(const shard_core *c, uint64_t step, wire_scalars *sum)
{
    const shard_core_inputs_of_step *s = &c->steps[step & 1];
    wire_scalars part                  = {0};
    for (uint32_t i = 0; s->scalars != NULL && i < c->live; i++) {
        const int32_t r = c->turns[i];
        if (counts(c, s, (uint32_t)r)) scalars_add(&part, &s->scalars[r]);
        if (!shard_core_ends_node(c, r)) continue;
        scalars_add(sum, &part);
        part = (wire_scalars){0};
    }
    scalars_add(sum, &part);
}

/* ---- prepared -------------------------------------------------------------------------------- */
void shard_core_partition_summed(shard_core *c, uint32_t chunk)
{
    const uint32_t p = c->chunk[chunk].desc.partition;
    shard_core_send(c, CORE_SUMMED, chunk);
    if (--c->partition[p].left == 0)
        shard_core_send(c, CORE_PREPARED, p)->seq = c->partition[p].step;
}

void shard_core_vote_is(shard_core *c, uint32_t partition, uint64_t hash)
{
    c->partition[partition].hash     = hash;
    c->partition[partition].has_hash = true;
}

bool shard_core_is_prepared(const shard_core *c, uint32_t partition, uint64_t step)
{
    const shard_core_partition *p = &c->partition[partition];
    return step < p->step || (step == p->step && p->has_hash);
}

/* ---- decided --------------------------------------------------------------------------------- */
static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool same_decision(const wire_decision *a, const wire_decision *b)
{
    return a->outcome == b->outcome && a->applied == b->applied && same_bits(a->clip, b->clip) &&
           same_bits(a->gscale, b->gscale) && same_bits(a->norm, b->norm);
}

static shard_core_actions refuse(shard_core *c, uint32_t peer, uint64_t step, pen_status status,
                                 const char *reason)
{
    return shard_core_refuse(c, CORE_EVERYONE, -1, peer, step, status, reason);
}

/* All partitions of a shard apply the same decision for a step; the first to apply one fixes it. */
static bool contradicts(const shard_core *c, const shard_core_partition *p,
                        const wire_decision *decision)
{
    for (uint32_t i = 0; i < c->n_partitions; i++) {
        const shard_core_partition *other = &c->partition[i];
        if (other->has_decision && other->step == p->step + 1 &&
            !same_decision(&other->decision, decision))
            return true;
    }
    return false;
}

static void close_partition(shard_core *c, shard_core_partition *p, const wire_decision *decision)
{
    for (uint32_t i = 0; i < p->n; i++) {
        shard_core_chunk *k = &c->chunk[c->order[p->first + i]];
        if (!shard_core_is_of_step(c, k)) continue;
        k->round++;
        k->got     = 0;
        k->capture = 0;
        k->turn    = shard_core_next_turn(c, -1);
    }
    p->step++;
    p->left         = p->decided;
    p->has_hash     = false;
    p->capture      = 0;
    p->decision     = *decision;
    p->has_decision = true;
    if (decision->outcome == PEN_APPLIED) p->applied++;
    c->applied = p->applied;
    if (p->step > c->newest) c->newest = p->step;
}

shard_core_actions shard_core_decide(shard_core *c, uint32_t partition, uint64_t step,
                                     uint64_t hash, const wire_decision *decision, uint32_t peer)
{
    static const char two_decisions[] = "two ranks decided differently about one step";
    c->n_actions                      = 0;
    shard_core_partition *p           = &c->partition[partition];
    if (p->decided == 0) return shard_core_sent(c);
    if (p->has_decision && step + 1 == p->step) {
        if (same_decision(&p->decision, decision)) return shard_core_sent(c);
        return refuse(c, peer, step, PEN_MISMATCH, two_decisions);
    }
    if (step < p->step)
        return refuse(c, peer, step, PEN_WRONG_STATE, "that step is already decided and over");
    if (step > p->step || !p->has_hash || p->hash != hash)
        return refuse(c, peer, step, PEN_MISMATCH,
                      "the decision does not match this shard's records");
    if (decision->applied != p->applied)
        return refuse(c, peer, step, PEN_MISMATCH,
                      "the decision's update count differs from this shard's");
    if (contradicts(c, p, decision)) return refuse(c, peer, step, PEN_MISMATCH, two_decisions);

    shard_core_action *a = shard_core_send(c, CORE_COMMIT, partition);
    a->seq               = step;
    a->capture           = p->capture;
    close_partition(c, p, decision);
    return shard_core_sent(c);
}
