/* model.h - the expected result of training: an independent reference, made from the history alone.
 *
 * DESIGN.  Gradients, weights and initial values are pure functions of (seed, rank, step, tensor,
 * element), so the reference needs no message to know what every rank pushed.  It shares no code
 * with the shards: no simd kernel, no update rule, no decision.
 *   bsp         a version of a chunk is a number of applied steps; the reference applies them itself
 *   ssp, async  the reference is told which push was applied next to a chunk, refuses one that was
 *               applied before or out of its rank's order, and applies it, too
 * In both cases it keeps the checksum of every version of every chunk.
 *
 * Members may change.  The scheduler's records, never a shard, tell the reference which ranks contribute,
 * from which step (or from which version of a chunk) on.  It then forgets its results for later steps,
 * and reports an error if one of them was observed.
 */
#ifndef TESTS_SIM_MODEL_H
#define TESTS_SIM_MODEL_H

#include "proto/plan.h"

enum { MODEL_RANKS_MAX = 1024 };

typedef struct {
    uint64_t word[MODEL_RANKS_MAX / 64];
} model_ranks; /* a set */

static inline bool model_has(const model_ranks *set, uint32_t rank)
{
    return set->word[rank / 64] >> rank % 64 & 1;
}

#define MODEL_EACH(rank, set)                                                                      \
    for (uint32_t rank = model_next(set, 0); rank < MODEL_RANKS_MAX;                               \
         rank          = model_next(set, rank + 1))

/* The lowest rank from `from` on; MODEL_RANKS_MAX: there is none. */
static inline uint32_t model_next(const model_ranks *set, uint32_t from)
{
    while (from < MODEL_RANKS_MAX && set->word[from / 64] >> from % 64 == 0)
        from = (from / 64 + 1) * 64;
    return from < MODEL_RANKS_MAX
               ? from + (uint32_t)__builtin_ctzll(set->word[from / 64] >> from % 64)
               : MODEL_RANKS_MAX;
}

typedef enum { MODEL_DECIDE, MODEL_EAGER, MODEL_SSP, MODEL_ASYNC } model_mode;

typedef struct {
    uint64_t seed;
    model_mode mode;
    uint32_t workers; /* at first */
    uint64_t steps;
    bool sgd; /* else sum */
    bool weighted;
    double rate, clip, loss_scale;
    uint32_t nonfinite_percent; /* steps with a gradient that is not finite */
} model_task;

/* ---- the task: what programs push ------------------------------------------------------------ */
float model_first(const model_task *task, uint32_t tensor, uint64_t element);
double model_weight(const model_task *task, uint32_t rank, uint64_t step);

/* A whole tensor's gradients in their type on the wire. */
void model_fill_gradient(const model_task *task, const wire_tensor *desc, uint32_t tensor,
                         uint32_t rank, uint64_t step, void *out);

/* ---- the reference --------------------------------------------------------------------------- */
typedef struct model_reference model_reference;

typedef struct {
    int32_t outcome;
    double norm, clip;
    int64_t applied;   /* after this step */
    model_ranks ranks; /* who contributed */
    int32_t bad_rank;  /* the rank whose gradient is not finite; -1 */
} model_step;

model_reference *model_create(const model_task *task, const wire_model *wire, const plan *cut);
void model_destroy(model_reference *self); /* NULL is fine */

/* Of a chunk's values after `version` updates.  False: there is no such version (yet). */
bool model_crc(model_reference *self, uint32_t chunk, uint64_t version, uint32_t *crc);
uint64_t model_newest(const model_reference *self, uint32_t chunk); /* version */

/* bsp: the result of this step. */
model_step model_at(model_reference *self, uint64_t step);

/* ---- observations ---------------------------------------------------------------------------- */
/* Pushes with numbers: number seq of this rank and chunk is its gradient of `step`.
 * NULL, or what is wrong with that: an identity never means two things. */
const char *model_says(model_reference *self, uint32_t chunk, uint32_t rank, uint64_t incarnation,
                       uint64_t seq, uint64_t step);

/* ssp, async: the primary applied this push to this chunk.  NULL, or an error. */
const char *model_apply(model_reference *self, uint32_t chunk, uint32_t rank, uint64_t seq);

/* A worker has received this version of the chunk, the end of this step, or the acknowledgement of
 * this push: it must never be lost. */
void model_saw_version(model_reference *self, uint32_t chunk, uint64_t version);
void model_saw_step(model_reference *self, uint64_t step);
void model_saw_push(model_reference *self, uint32_t chunk, uint32_t rank, uint64_t seq);

uint64_t model_clock(const model_reference *self, uint32_t chunk,
                     uint32_t rank);                                 /* pushes of rank applied */
uint64_t model_slowest(const model_reference *self, uint32_t chunk); /* of live ranks */

/* ---- membership ------------------------------------------------------------------------------ */
/* bsp with decisions: steps from this one on are the sums of these ranks (incarnation 0: absent). */
const char *model_settle(model_reference *self, uint64_t step,
                         const uint64_t incarnation[MODEL_RANKS_MAX]);
/* The other rules: a new primary of this chunk begins with this version. */
const char *model_settle_chunk(model_reference *self, uint32_t chunk, uint64_t version,
                               const uint64_t incarnation[MODEL_RANKS_MAX]);

#endif
