/* update_state_internal.h - shared by update_state*.c only.
 *
 *     update_state.c            memory, first values, the state for snapshots
 *     update_state_decide.c     sums of squares, the verdict
 *     update_state_carry_out.c  the update
 */
#ifndef WORKER_TRAIN_UPDATE_STATE_INTERNAL_H
#define WORKER_TRAIN_UPDATE_STATE_INTERNAL_H

#include "common/compute/simd/simd.h"
#include "worker/context.h"
#include "worker/train/update/update_state.h"

enum { UPDATE_STATE_VERDICTS = 4 };
enum { BAD_SUMS, BAD_OWN, BAD_WORDS }; /* of update_state.bad */

_Static_assert((int)UPDATE_STATE_PENDING_MAX < (int)UPDATE_STATE_VERDICTS,
               "the one before stays readable");

typedef struct {
    sharded_range own;
    bool is_sharded_out;          /* its values are the master */
    float *master;                /* [own.count]; NULL: the values are the program's, in float32 */
    float *slot[OPTIM_SLOTS_MAX]; /* [own.count] each */
    const float *grad;            /* [own.count] of this step: weighted, summed */
    uint64_t version;             /* updates applied, as far as the host knows */
    float *staged;                /* on a device: host memory of state_ranges; NULL: none */
} update_state_tensor;

typedef struct { /* host memory that a space writes */
    device_verdict verdict;
    uint32_t word[]; /* [members] */
} copied_verdict;

/* Floats, sums and verdicts are memory of the space: update_state_space_of(). */
struct update_state {
    const model *model;
    memory_space space;
    int members;
    const uint32_t *stop;
    pen_status (*add_up)(void *user, double *sums, size_t n, pen_error *why);
    void *user;
    plan *plan;
    void *arrays; /* one block for the next six */
    update_state_tensor *tensor;
    uint32_t *first_sum;       /* [n_chunks] of its blocks in `sums` */
    device_update_span *span;  /* [n_tensors] */
    device_norm_span *measure; /* [n_chunks] */
    uint32_t *alike;           /* [n_tensors] */
    bool *is_done;             /* [n_tensors] */

    size_t n_sums;
    double *sums; /* [n_sums] of squares, in the order of the chunks and their blocks */
    double *
        whole; /* for rules that need whole tensors: sums of squares of all their blocks; NULL: none does */
    double *norms;           /* [2 * n_tensors] the same rules: of parameters and update */
    uint32_t *bad;           /* [BAD_WORDS] lowest chunk that is not finite */
    uint32_t *none;          /* [BAD_WORDS] NO_CHUNK */
    device_verdict *verdict; /* [UPDATE_STATE_VERDICTS] */
    char *copied;            /* [UPDATE_STATE_VERDICTS] copied_verdict */
    bool has_words;          /* in them */
    device_event *arrived[UPDATE_STATE_VERDICTS];
    uint64_t n_decided, n_settled;

    state_range *held; /* [n_tensors]; made when first asked for */
    int64_t applied;   /* as far as the host knows */
};

/* Where a tensor's state is: that of a frozen tensor is the host's if nothing but snapshots reads it. */
static inline memory_space update_state_space_of(const update_state *r, const pen_tensor *t)
{
    return t->trained || r->tensor[t->index].is_sharded_out ? r->space : space_host();
}

bool update_state_needs_whole(const update_state *r, const pen_tensor *t);
float *update_state_param_of(const update_state *r, const pen_tensor *t); /* of the own range */
copied_verdict *update_state_copied(const update_state *r, uint64_t number);

static inline device_verdict *update_state_verdict_at(const update_state *r, uint64_t number)
{
    return &r->verdict[number % UPDATE_STATE_VERDICTS];
}

static inline size_t update_state_blocks_of(uint64_t elements)
{
    return (elements + SIMD_BLOCK - 1) / SIMD_BLOCK;
}

#endif
