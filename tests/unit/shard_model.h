/* shard_model.h - the model that tests of one to three shards train. */
#ifndef TESTS_UNIT_SHARD_MODEL_H
#define TESTS_UNIT_SHARD_MODEL_H

#include "common/compute/simd/simd.h"
#include "tests/support/shard_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* A model of three trained tensors of odd sizes and a frozen one, in two groups. */
enum { W0, B0, W1, ICE, TENSORS };

static const wire_tensor tensors[TENSORS] = {
    [W0] = {.name = "w0", .dtype = PEN_F32, .ndim = 2, .shape = {190, 300}, .group = 0, .init = ""},
    [B0] = {.name  = "b0",
            .dtype = PEN_F32,
            .ndim  = 1,
            .shape = {10},
            .group = 1,
            .flags = PEN_NO_DECAY,
            .init  = ""},
    [W1] = {.name = "w1", .dtype = PEN_F32, .ndim = 1, .shape = {12300}, .group = 1, .init = ""},
    [ICE] = {.name  = "ice",
             .dtype = PEN_F32,
             .ndim  = 1,
             .shape = {5000},
             .flags = PEN_FROZEN,
             .init  = ""},
};

static wire_group groups[2];

static inline wire_model model_of(const char *optim0, const char *optim1, const char *sync)
{
    groups[0] = (wire_group){.name = "decay", .optim = optim0, .sync = sync};
    groups[1] = (wire_group){.name = "rest", .optim = optim1, .sync = sync};
    return (wire_model){.n_tensors = TENSORS, .tensor = tensors, .n_groups = 2, .group = groups};
}

static inline rig *start(const char *optim, const char *sync, uint32_t n_shards,
                         uint32_t world_size)
{
    const wire_model model = model_of(optim, optim, sync);
    rig *r = rig_create(&model, &(rig_options){.n_shards = n_shards, .world_size = world_size});
    rig_init(r);
    return r;
}

static inline uint32_t chunk_of(const rig *r, uint32_t tensor)
{
    return r->plan->first_chunk[tensor];
}

static inline uint64_t stat_of(const rig *r, stat_id id)
{
    return stat_get(&r->stats, id);
}

/* ---- sums ------------------------------------------------------------------------------------ */
/* sgd written out: p -= lr * (gscale * sum), with the sum in rank order. */
static inline float by_hand(const rig *r, uint32_t tensor, uint64_t i, uint64_t step, double gscale)
{
    float sum = rig_noise(0, step, tensor, i);
    for (uint32_t rank = 1; rank < r->world_size; rank++)
        sum += rig_noise((int32_t)rank, step, tensor, i);
    const float lr = (float)r->inputs.rate[r->model.tensor[tensor].group];
    float p        = rig_value(tensor, i);
    p -= lr * ((float)gscale * sum);
    return p;
}

static inline void push_in_order(rig *r, const int32_t *order, uint64_t step)
{
    for (uint32_t i = 0; i < r->world_size; i++) rig_push_all(r, order[i], step, 0, rig_noise);
    rig_flush(r);
}

#endif
