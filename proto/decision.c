/* decision.c - apply or skip, and by how much to clip. */
#include "proto/decision.h"

#include "common/base/why.h"
#include "common/compute/arithmetic.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- the hash of a vote -------------------------------------------------------------------- */
/* Numbers are hashed as in memory; payloads are little-endian, too. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "records are hashed, and payloads sent, little-endian");

/* Without padding, so that its bytes are canonical. */
typedef struct {
    uint64_t step;
    double weight_sum, loss_scale, clip;
    uint32_t partition, finite, bad_chunk, skip, n_rates, n_sums;
    int32_t bad_rank;
    uint32_t zero;
} canonical;
_Static_assert(sizeof(canonical) == 4 * 8 + 8 * 4, "no padding");

uint64_t decision_vote_hash(uint64_t step, const wire_vote *vote, const wire_inputs *inputs,
                            const double *sums, uint32_t n_sums)
{
    const canonical head = {.step       = step,
                            .weight_sum = vote->weight_sum,
                            .loss_scale = inputs->loss_scale,
                            .clip       = inputs->clip,
                            .partition  = vote->partition,
                            .finite     = vote->finite,
                            .bad_chunk  = vote->bad_chunk,
                            .skip       = inputs->skip,
                            .n_rates    = inputs->n_rates,
                            .n_sums     = n_sums,
                            .bad_rank   = vote->bad_rank};
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, &head, sizeof head);
    if (inputs->n_rates > 0)
        XXH3_64bits_update(&state, inputs->rate, inputs->n_rates * sizeof(double));
    if (n_sums > 0) XXH3_64bits_update(&state, sums, n_sums * sizeof(double));
    for (uint32_t i = 0; i < vote->scalars.n; i++) {
        const wire_scalars *s = &vote->scalars;
        const uint64_t ranks  = s->ranks[i];
        XXH3_64bits_update(&state, &s->name[i], sizeof s->name[i]);
        XXH3_64bits_update(&state, &s->sum[i], sizeof s->sum[i]);
        XXH3_64bits_update(&state, &ranks, sizeof ranks);
    }
    return XXH3_64bits_digest(&state);
}

/* ---- inputs that must be equal --------------------------------------------------------------- */
static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool differ(const char *what, double a, int32_t rank_a, double b, int32_t rank_b,
                   pen_error *why)
{
    const bool is_up = rank_a < rank_b; /* the sentence does not depend on who came first */
    why_set(why, PEN_MISMATCH,
            "%s is %.17g on rank %d and %.17g on rank %d; all ranks must give the same", what,
            is_up ? a : b, is_up ? rank_a : rank_b, is_up ? b : a, is_up ? rank_b : rank_a);
    why_culprit(why, PEN_WORKER, rank_b, -1, NULL);
    return false;
}

bool decision_inputs_equal(const wire_inputs *a, int32_t rank_a, const wire_inputs *b,
                           int32_t rank_b, pen_error *why)
{
    if (!same_bits(a->loss_scale, b->loss_scale))
        return differ("the loss scale", a->loss_scale, rank_a, b->loss_scale, rank_b, why);
    if (!same_bits(a->clip, b->clip))
        return differ("the clip bound", a->clip, rank_a, b->clip, rank_b, why);
    if (a->skip != b->skip) return differ("the skip policy", a->skip, rank_a, b->skip, rank_b, why);
    if (a->n_rates != b->n_rates)
        return differ("the number of learning rates", a->n_rates, rank_a, b->n_rates, rank_b, why);
    for (uint32_t g = 0; g < a->n_rates; g++) {
        if (same_bits(a->rate[g], b->rate[g])) continue;
        char what[64];
        snprintf(what, sizeof what, "the learning rate of parameter group %u", g);
        return differ(what, a->rate[g], rank_a, b->rate[g], rank_b, why);
    }
    return true;
}

/* ---- the decision ---------------------------------------------------------------------------- */
/* In chunk order, so that the sum has the same bits for any partitioning. */
static double add_sums(const plan *p, const double *const *sums)
{
    sum_tree tree = {0};
    for (uint32_t c = 0; c < p->n_chunks; c++) {
        const plan_chunk *chunk = &p->chunk[c];
        if (chunk->blocks > 0)
            sum_tree_add(&tree, sums[chunk->partition] + chunk->first_block, chunk->blocks);
    }
    return sum_of_lanes(tree.lane);
}

/* Of the first vote that counts: all decided partitions have the same contributors. */
static double weights(const plan *p, const wire_vote *votes)
{
    for (uint32_t i = 0; i < p->n_partitions; i++)
        if (p->partition[i].n_decided > 0) return votes[i].weight_sum;
    return 0;
}

static bool find_bad(const plan *p, const wire_vote *votes, uint32_t *bad_chunk, int32_t *bad_rank)
{
    bool found = false;
    *bad_chunk = 0;
    *bad_rank  = -1;
    for (uint32_t i = 0; i < p->n_partitions; i++) {
        const wire_vote *r = &votes[i];
        if (p->partition[i].n_decided == 0 || r->finite || (found && r->bad_chunk >= *bad_chunk))
            continue;
        *bad_chunk = r->bad_chunk;
        *bad_rank  = r->bad_rank;
        found      = true;
    }
    return found;
}

void decision_make(const plan *p, const wire_vote *votes, const double *const *sums,
                   const wire_inputs *inputs, int64_t applied, wire_decision *decision,
                   uint32_t *bad_chunk, int32_t *bad_rank)
{
    const bool is_bad     = find_bad(p, votes, bad_chunk, bad_rank);
    const step_decision d = step_decide(add_sums(p, sums), is_bad, weights(p, votes),
                                        inputs->loss_scale, inputs->clip, inputs->skip);
    *decision             = (wire_decision){.outcome = d.outcome,
                                            .norm    = d.norm,
                                            .clip    = d.clip,
                                            .gscale  = d.gscale,
                                            .applied = applied};
}
