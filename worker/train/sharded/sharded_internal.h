/* sharded_internal.h - shared by train/sharded/ only. */
#ifndef WORKER_TRAIN_SHARDED_INTERNAL_H
#define WORKER_TRAIN_SHARDED_INTERNAL_H

#include "common/system/segment.h"
#include "worker/train/agreement.h"
#include "worker/train/group_calls.h"
#include "worker/train/reducer.h"
#include "worker/train/sharded/sharded_ranges.h"
#include "worker/train/solo.h"
#include "worker/train/step_thread.h"
#include "worker/train/strategy.h"
#include "worker/train/update/verdicts.h"

typedef struct
{ /* part of a tensor that is summed in one bucket, for one member; stage 0: a tensor, for all */
    uint32_t tensor;
    int owner;
    uint64_t start, count;
} sharded_piece;

typedef struct {       /* tensors whose values are gathered by one call */
    uint32_t first, n; /* of sharded.gathered[] */
    size_t *counts;    /* [size] bytes of each member's part */
    char *own, *all;   /* NULL: in place */
} sharded_run;

typedef struct sharded_units sharded_units;

typedef struct sharded {
    strategy base;
    pen_ctx *ctx;
    int stage;
    bool is_hybrid, is_arranged;
    /* everyone: all ranks; stage 0 has no other group.  sums, values: ranks that share a copy of the state (all, or a
     * node's); two groups, so that neither waits for the other.  across: ranks with the same part on other nodes. */
    group_calls everyone, sums, values, across;
    int n, *ranks;  /* all ranks; room for those at the start */
    int size, rank; /* of the group that shares a copy */

    void *arrays, *pieces; /* one block each for the arrays below: by tensor, by piece */
    sharded_range *range;  /* [n_tensors * size]; unused in stage 0, as the next one */
    sharded_range *own;    /* [n_tensors] */
    bool *sharded_out;     /* [n_tensors] values are here only while the unit is in use */
    memory_space space;    /* of sums, state and always local values */
    update_state *update_state;
    verdicts verdicts;
    uint32_t
        *bad_of; /* on a device, from stage 1 on: [n] of each rank's own gradients; else NULL */
    agreement agreement;

    reducer *reducer;                       /* NULL: solo */
    uint32_t n_pieces, n_trained, *trained; /* [n_trained] tensors */
    sharded_piece *piece;                   /* [n_pieces] in the order of registration */
    const char **piece_name;                /* [n_pieces] for the reducer, as the owner */
    int *piece_owner;
    uint32_t *first;     /* [n_tensors + 1] first piece of each tensor */
    float **sum, **dest; /* [n_tensors] own ranges: our memory, and where this step's sum goes */
    const wire_inputs *inputs;
    uint32_t round, n_ready; /* micro-batches summed before; ready gradients of the current one */
    pen_error failure;       /* of an earlier round */

    uint32_t n_gathered, *gathered; /* trained tensors that are always local */
    uint32_t n_runs;
    sharded_run *run;
    sharded_units *units; /* NULL: no tensor is sharded out */

    /* Stage 0. */
    solo *solo; /* in a group of one; else NULL */
    /* On a device: piece 0 has a word of each rank, its lowest chunk that is not finite.  `beside` collects it, behind all
     * that writes gradients, while space.stream sums; else NULL. */
    bool is_marked;
    memory_space beside;
    step_thread lazy;   /* of steps that come by bucket; for these: */
    uint32_t *list;     /* [n_tensors] tensors of the bucket that is updated */
    double weight_sum;  /* of the step that it ends */
    uint32_t own_first; /* for reducer_set_first(), by this rank's last step */
    /* on_worker_loss=continue */
    bool goes_on;
    int64_t *at;        /* [size at the start] current step of each survivor */
    bool has_sums;      /* of this step, from all members at its start */
    bool is_behind;     /* other ranks are in the next step already: no more calls in this one */
    bool is_to_lay_out; /* lay out the buckets again before the next step */
} sharded;

/* ---- sharded_setup.c ------------------------------------------------------------------------- */
pen_status sharded_set_up(sharded *s, pen_error *why); /* for pen_commit() */
void sharded_close(strategy *base); /* strategy_ops.close; also after a failed set-up */

/* ---- sharded_sums.c -------------------------------------------------------------------------- */
/* Puts a gradient of this rank into its buckets; grad NULL: zeros. */
void sharded_add(sharded *s, pen_tensor *x, const void *grad);
/* reducer_setup.summed: the sum of an own piece. */
void sharded_take_sum(void *group_calls, uint32_t piece);
/* The layout of the first step again; stage 0. */
pen_status sharded_lay_out_anew(sharded *s, pen_error *why);
/* Waits for all sums of the step, and for all inputs. */
pen_status sharded_complete_sums(sharded *s, pen_error *why);
/* Compares the inputs of all ranks; begins the step's outcome. */
pen_status sharded_agree(sharded *s, double *weight_sum, pen_error *why);
/* Gives a trained tensor's sum to the update state. */
pen_status sharded_give_sum(sharded *s, const pen_tensor *x, pen_error *why);
/* update_state_setup.add_up. */
pen_status sharded_add_norms(void *s, double *sums, size_t n, pen_error *why);
/* Exchanges the sums of squares and decides. */
pen_status sharded_decide(sharded *s, double weight_sum, pen_error *why);
/* A verdicts_culprit_fn. */
pen_status sharded_find_culprit(void *user, uint32_t chunk, bool is_own, const uint32_t *words,
                                int32_t last, int32_t *rank, pen_error *why);

/* ---- sharded_loss.c -------------------------------------------------------------------------- */
pen_status sharded_sum_up(sharded *s, pen_error *why); /* sharded_complete_sums() of stage 0 */

/* ---- sharded_buckets.c ----------------------------------------------------------------------- */
bool sharded_may_come_by_bucket(const sharded *s, const request *r);
/* Once all have agreed on its inputs, nothing can change the step.  AGAIN: it has a snapshot, and must end whole. */
pen_status sharded_begin_buckets(sharded *s, request *r, pen_error *why);
void sharded_update_buckets(void *user, request *r); /* in "pen-step" */

/* ---- sharded_values.c ------------------------------------------------------------------------ */
pen_status sharded_make_runs(sharded *s, pen_error *why);
void sharded_free_runs(sharded *s);
void sharded_count_pulls(const sharded *s); /* of all trained tensors */
/* Updates own ranges, and gathers the values that are always local. */
pen_status sharded_update(sharded *s, double weight_sum, pen_error *why);
pen_status sharded_gather_all(sharded *s, pen_error *why);

/* ---- sharded_units.c ------------------------------------------------------------------------- */
pen_status sharded_units_create(sharded *s, pen_error *why);
void sharded_units_destroy(sharded *s);
/* strategy_ops.use and release. */
pen_status sharded_units_use(strategy *s, const pen_unit *unit, pen_phase phase, int64_t step,
                             pen_error *why);
void sharded_units_release(strategy *s, const pen_unit *unit, pen_phase phase);
pen_status sharded_units_step_end(sharded *s, pen_error *why); /* own ranges have changed */

/* ---- counted memory of the SDK: on the host, or (there) in the space of the state -------------- */
static inline void *sharded_hold(sharded *s, size_t bytes, stat_id as, pen_error *why)
{
    void *data = segment_alloc(bytes, why);
    if (data != NULL) stat_hold(&s->ctx->stats, as, (int64_t)bytes);
    return data;
}

static inline void sharded_let_go(sharded *s, void *data, size_t bytes, stat_id as)
{
    if (data == NULL) return;
    stat_hold(&s->ctx->stats, as, -(int64_t)bytes);
    segment_free(data);
}

static inline void *sharded_hold_there(sharded *s, size_t bytes, stat_id as, pen_error *why)
{
    void *data = space_alloc(&s->space, bytes, true, why);
    if (data != NULL) stat_hold(&s->ctx->stats, as, (int64_t)bytes);
    return data;
}

static inline void sharded_let_go_there(sharded *s, void *data, size_t bytes, stat_id as)
{
    if (data == NULL) return;
    stat_hold(&s->ctx->stats, as, -(int64_t)bytes);
    space_free(&s->space, data, true);
}

#endif
