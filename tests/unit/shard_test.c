/* shard_test.c - one to three shards, driven with structs: sums, the numbers on the wire, initial values, snapshots. */
#include "tests/unit/shard_model.h"

#include "common/base/crc.h"
#include "common/snapshot/bundle.h"
#include "server/shard/shard_test.h"

#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- sums ------------------------------------------------------------------------------------ */
static void test_shard_sums_in_rank_order_for_any_order_of_arrival(void **state)
{
    (void)state;
    static const int32_t orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}};
    uint32_t crc                     = 0;
    for (size_t o = 0; o < 4; o++) {
        rig *r = start("sgd lr=1", "bsp", 2, 4);
        push_in_order(r, orders[o], 0);
        rig_decision decision;
        assert_true(rig_decide(r, 2, 0, 0, &decision));
        rig_pull(r, 2, 0, &decision);
        for (uint64_t i = 0; i < 12300; i += 7)
            assert_float_equal(rig_param(r, W1, i), by_hand(r, W1, i, 0, decision.decision.gscale),
                               0);
        if (o > 0) assert_int_equal(rig_params_crc(r), crc);
        crc = rig_params_crc(r);
        assert_int_equal(stat_of(r, STAT_PARKED_BYTES), 0);
        rig_destroy(r);
    }
}

static void test_shard_gives_the_same_bits_for_any_number_of_shards(void **state)
{
    (void)state;
    uint32_t params[4], slots[4];
    double norm = 0;
    for (uint32_t n = 1; n <= 3; n++) {
        const wire_model model = model_of("adamw lr=1e-2 weight_decay=0.1", "lamb lr=1e-2", "bsp");
        rig *r                 = rig_create(&model, &(rig_options){.n_shards = n, .world_size = 3});
        rig_init(r);
        r->inputs.clip = 0.1;
        rig_decision decision;
        for (uint64_t step = 0; step < 4; step++)
            rig_step(r, step, (int64_t)step, rig_noise, &decision);
        assert_true(decision.decision.clip < 1);
        if (n > 1) assert_true(decision.decision.norm == norm);
        norm      = decision.decision.norm;
        params[n] = rig_params_crc(r);
        slots[n]  = rig_slots_crc(r);
        assert_int_equal(stat_of(r, STAT_STEPS), 4);
        rig_destroy(r);
    }
    assert_int_equal(params[1], params[2]);
    assert_int_equal(params[1], params[3]);
    assert_int_equal(slots[1], slots[2]);
    assert_int_equal(slots[1], slots[3]);
}

/* ---- sums of nodes --------------------------------------------------------------------------- */
enum { NODE_RANKS = 5 };
static const int32_t node_of[NODE_RANKS] = {4, 1, 4, 2, 1}; /* 0 and 2; 1 and 4; 3 alone */

static rig *start_on_nodes(void)
{
    static const wire_pair by_node[] = {{"deterministic", "node"}};
    wire_model model                 = model_of("sgd lr=1", "sgd lr=1", "bsp");
    model.n_settings                 = 1;
    model.setting                    = by_node;
    rig *r                           = rig_create(&model,
                                                  &(rig_options){.n_shards = 2, .world_size = NODE_RANKS, .node = node_of});
    rig_init(r);
    return r;
}

static void push_weighted(rig *r, const int32_t *order, const double *weight, rig_gradient gradient)
{
    for (int i = 0; i < NODE_RANKS; i++) {
        r->inputs.weight = weight[order[i]];
        rig_push_all(r, order[i], 0, 0, gradient);
    }
    rig_flush(r);
}

static float weighed(int32_t rank, const double *weight, uint64_t i)
{
    return (float)weight[rank] * rig_noise(rank, 0, W1, i);
}

static void test_shard_by_node_sums_each_node_before_the_nodes(void **state)
{
    (void)state;
    static const int32_t orders[][NODE_RANKS] = {
        {0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {3, 1, 4, 0, 2}, {2, 0, 4, 3, 1}};
    static const double weight[][NODE_RANKS] = {{1, 1, 1, 1, 1}, {1, 0.5, 2, 0.75, 3}};
    for (int w = 0; w < 2; w++)
        for (int o = 0; o < 4; o++) {
            rig *r = start_on_nodes();
            rig_decision decision;
            push_weighted(r, orders[o], weight[w], rig_noise);
            assert_true(rig_decide(r, 2, 0, 0, &decision));
            rig_pull(r, 2, 0, &decision);
            const float lr = (float)r->inputs.rate[1], gscale = (float)decision.decision.gscale;
            for (uint64_t i = 0; i < 12300; i += 7) {
                const float sum = ((weighed(0, weight[w], i) + weighed(2, weight[w], i)) +
                                   (weighed(1, weight[w], i) + weighed(4, weight[w], i))) +
                                  weighed(3, weight[w], i);
                assert_float_equal(rig_param(r, W1, i), rig_value(W1, i) - lr * (gscale * sum), 0);
            }
            assert_int_equal(stat_of(r, STAT_PARKED_BYTES), 0);
            rig_destroy(r);
        }
}

static int32_t bad_rank;

static float noise_with_nan(int32_t rank, uint64_t step, uint32_t tensor, uint64_t i)
{
    return rank == bad_rank && tensor == W1 && i == 77 ? NAN : rig_noise(rank, step, tensor, i);
}

static void test_shard_by_node_names_the_rank_that_pushed_a_nan(void **state)
{
    (void)state;
    static const double weight[] = {1, 1, 1, 1, 1};
    for (bad_rank = 0; bad_rank < NODE_RANKS; bad_rank++) {
        rig *r = start_on_nodes();
        rig_decision decision;
        push_weighted(r, (const int32_t[]){1, 3, 0, 4, 2}, weight, noise_with_nan);
        assert_true(rig_decide(r, 0, 0, 0, &decision));
        assert_int_equal(decision.decision.outcome, PEN_SKIPPED_NONFINITE);
        assert_int_equal(decision.bad_rank, bad_rank);
        rig_destroy(r);
    }
}

/* A node's ranks without data add nothing, and a node without data is no term. */
static void test_shard_by_node_ignores_weight_0(void **state)
{
    (void)state;
    static const double weight[][NODE_RANKS] = {
        {0, 1, 0, 1, 1}, {1, 1, 1, 0, 1}, {0, 1, 1, 1, 0}, {0, 0, 0, 2, 0}};
    for (int w = 0; w < 4; w++) {
        rig *r = start_on_nodes();
        rig_decision decision;
        push_weighted(r, (const int32_t[]){4, 3, 2, 1, 0}, weight[w], rig_noise);
        assert_true(rig_decide(r, 0, 0, 0, &decision));
        rig_pull(r, 0, 0, &decision);
        const float lr = (float)r->inputs.rate[1], gscale = (float)decision.decision.gscale;
        for (uint64_t i = 0; i < 1000; i += 3) {
            const float sum = ((weighed(0, weight[w], i) + weighed(2, weight[w], i)) +
                               (weighed(1, weight[w], i) + weighed(4, weight[w], i))) +
                              weighed(3, weight[w], i);
            assert_float_equal(rig_param(r, W1, i), rig_value(W1, i) - lr * (gscale * sum), 0);
        }
        rig_destroy(r);
    }
}

static void test_shard_without_determinism_sums_at_once(void **state)
{
    (void)state;
    static const wire_pair fast[] = {{"deterministic", "no"}};
    wire_model model              = model_of("sgd lr=1", "sgd lr=1", "bsp");
    model.n_settings              = 1;
    model.setting                 = fast;
    rig *r =
        rig_create(&model, &(rig_options){.n_shards = 1, .world_size = 3, .park_bytes_max = 1});
    rig_init(r);
    push_in_order(r, (const int32_t[]){2, 1, 0}, 0);
    rig_decision decision;
    assert_true(rig_decide(r, 0, 0, 0, &decision));
    assert_null(rig_find(r, WIRE_REFUSED, 2, UINT32_MAX));
    rig_destroy(r);
}

static void test_shard_weighs_contributions_and_ignores_those_of_weight_0(void **state)
{
    (void)state;
    static const double weights[] = {0, 3, 0.5};
    rig *r                        = start("sgd lr=1", "bsp", 1, 3);
    for (int32_t rank = 2; rank >= 0; rank--) {
        r->inputs.weight = weights[rank];
        rig_push_all(r, rank, 0, 0, rig_noise);
    }
    rig_flush(r);
    rig_decision decision;
    assert_true(rig_decide(r, 0, 0, 0, &decision));
    assert_true(decision.decision.gscale == 1 / 3.5);
    rig_pull(r, 0, 0, &decision);
    for (uint64_t i = 0; i < 10; i++) {
        const float sum = 3.0f * rig_noise(1, 0, B0, i) + 0.5f * rig_noise(2, 0, B0, i);
        const float lr  = (float)r->inputs.rate[1];
        assert_float_equal(rig_param(r, B0, i), rig_value(B0, i) - lr * ((float)(1 / 3.5) * sum),
                           0);
    }
    rig_destroy(r);
}

static void test_shard_refuses_pushes_beyond_its_buffer_but_never_the_next_rank(void **state)
{
    (void)state;
    const wire_model model = model_of("sgd lr=1", "sgd lr=1", "bsp");
    rig *r =
        rig_create(&model, &(rig_options){.n_shards = 1, .world_size = 3, .park_bytes_max = 20000});
    rig_init(r);
    rig_push_all(r, 2, 0, 0, rig_noise);
    assert_true(stat_of(r, STAT_PARKED_BYTES) <= 20000);
    const uint64_t busy = stat_of(r, STAT_BUSY);
    assert_true(busy > 0);
    assert_int_equal(rig_find(r, WIRE_REFUSED, 2, UINT32_MAX)->d.status, PEN_AGAIN);

    rig_push_all(r, 0, 0, 0, rig_noise);
    rig_push_all(r, 1, 0, 0, rig_noise);
    assert_int_equal(stat_of(r, STAT_BUSY), busy);
    rig_push_all(r, 2, 0, WIRE_REPEATED, rig_noise); /* the back-off is over */
    rig_flush(r);
    rig_decision decision;
    assert_true(rig_decide(r, 1, 0, 0, &decision));
    rig_pull(r, 1, 0, &decision);
    for (uint64_t i = 0; i < 57000; i += 101)
        assert_float_equal(rig_param(r, W0, i), by_hand(r, W0, i, 0, decision.decision.gscale), 0);
    rig_destroy(r);
}

/* ---- bytes ----------------------------------------------------------------------------------- */
static void test_shard_refuses_a_corrupt_chunk_and_accepts_its_repeat(void **state)
{
    (void)state;
    rig *r             = start("sgd lr=1", "bsp", 1, 1);
    const uint32_t c   = chunk_of(r, W1);
    const uint32_t crc = rig_params_crc(r);
    buf *payload       = rig_payload(r, c, 0, 0, rig_noise);
    uint32_t sum       = crc32c(0, payload->data, payload->size);
    ((uint8_t *)payload->data)[100] ^= 4;
    wire_data d = {.kind       = WIRE_PUSH,
                   .flags      = WIRE_WANT_VALUES,
                   .n          = 1,
                   .chunk      = &c,
                   .crc        = &sum,
                   .has_inputs = true,
                   .inputs     = r->inputs};
    rig_deliver(r, rig_shard_of(r, c), 0, &d, payload);
    assert_int_equal(rig_find(r, WIRE_REFUSED, 0, c)->d.status, PEN_CORRUPT);
    assert_int_equal(stat_of(r, STAT_CORRUPT), 1);
    assert_int_equal(rig_params_crc(r), crc);
    buf_release(payload);
    rig_push(r, 0, 0, c, WIRE_WANT_VALUES, rig_noise);
    rig_flush(r);
    assert_non_null(rig_find(r, WIRE_VALUES, 0, c));
    assert_float_equal(rig_param(r, W1, 1), by_hand(r, W1, 1, 0, 1), 0);
    rig_destroy(r);
}

static void test_shard_keeps_the_bytes_of_an_old_reply_while_training_goes_on(void **state)
{
    (void)state;
    const wire_tensor big[] = {
        {.name = "big", .dtype = PEN_F32, .ndim = 1, .shape = {4 << 20}, .init = ""}};
    const wire_group one[] = {{.name = "all", .optim = "sgd lr=1", .sync = "async"}};
    const wire_model model = {.n_tensors = 1, .tensor = big, .n_groups = 1, .group = one};
    rig *r                 = rig_create(&model, &(rig_options){.n_shards = 1, .world_size = 1});
    rig_init(r);
    rig_push(r, 0, 0, 0, WIRE_WANT_VALUES, rig_noise);
    const rig_message *m = rig_find(r, WIRE_VALUES, 0, 0);
    assert_non_null(m);
    assert_ptr_equal(m->payload->data,
                     shard_values(r->shard[0], 0, NULL)); /* no copy was made of it */
    buf *old           = buf_acquire(m->payload);
    const uint32_t crc = m->d.crc[0];
    rig_forget_sent(r);
    rig_push(r, 0, 1, 0, WIRE_WANT_VALUES, rig_noise);
    assert_int_equal(crc32c(0, old->data, old->size), crc);
    m = rig_find(r, WIRE_VALUES, 0, 0);
    assert_int_not_equal(m->d.crc[0], crc);
    assert_int_equal(crc32c(0, m->payload->data, m->payload->size), m->d.crc[0]);
    buf_release(old);

    /* No other reference is left: the next update is in place. */
    const float *place = shard_values(r->shard[0], 0, NULL);
    rig_forget_sent(r);
    rig_push(r, 0, 2, 0, WIRE_WANT_VALUES, rig_noise);
    assert_ptr_equal(shard_values(r->shard[0], 0, NULL), place);
    rig_destroy(r);
}

static void test_shard_receives_and_sends_16_bit_numbers(void **state)
{
    (void)state;
    const wire_tensor mixed[] = {
        {.name = "full", .dtype = PEN_F32, .ndim = 1, .shape = {5000}, .group = 0, .init = ""},
        {.name       = "half",
         .dtype      = PEN_BF16,
         .grad_dtype = PEN_F32,
         .ndim       = 1,
         .shape      = {5000},
         .group      = 1,
         .init       = ""}};
    const wire_group two[] = {{.name = "a", .optim = "sgd lr=1", .sync = "bsp", .wire = "bf16"},
                              {.name = "b", .optim = "sgd lr=1", .sync = "bsp", .wire = "raw"}};
    const wire_model model = {.n_tensors = 2, .tensor = mixed, .n_groups = 2, .group = two};
    rig *r                 = rig_create(&model, &(rig_options){.n_shards = 1, .world_size = 2});
    rig_init(r);
    rig_decision decision;
    rig_step(r, 0, 0, rig_noise, &decision);
    for (uint64_t i = 0; i < 5000; i += 13) {
        const float g[2] = {rig_noise(0, 0, 0, i), rig_noise(1, 0, 0, i)};
        uint16_t wire[2];
        float back[2];
        simd()->encode(wire, g, PEN_BF16, 2);
        simd()->decode(back, wire, PEN_BF16, 2);
        const float lr = (float)r->inputs.rate[0], sum = back[0] + back[1];
        assert_float_equal(rig_param(r, 0, i), rig_value(0, i) - lr * (0.5f * sum), 0);
    }
    /* The wire carries the master of 'half' rounded once; the master itself keeps its bits. */
    const uint32_t c     = r->plan->first_chunk[1];
    const rig_message *m = rig_find(r, WIRE_VALUES, 1, c);
    assert_non_null(m);
    size_t at = 0;
    for (uint32_t i = 0; m->d.chunk[i] != c; i++)
        at += r->plan->chunk[m->d.chunk[i]].count *
              plan_dtype_bytes(mixed[r->plan->chunk[m->d.chunk[i]].tensor].dtype);
    uint16_t *want = malloc(r->plan->chunk[c].count * 2);
    simd()->encode(want, shard_values(r->shard[0], c, NULL), PEN_BF16, r->plan->chunk[c].count);
    assert_memory_equal((const uint8_t *)m->payload->data + at, want, r->plan->chunk[c].count * 2);
    free(want);
    rig_destroy(r);
}

/* ---- initial values -------------------------------------------------------------------------- */
static void
test_shard_holds_first_pulls_until_initial_values_arrive_and_accepts_them_once(void **state)
{
    (void)state;
    const wire_model model = model_of("sgd lr=1", "sgd lr=1", "bsp");
    rig *r                 = rig_create(&model, &(rig_options){.n_shards = 1, .world_size = 2});
    const uint32_t c       = chunk_of(r, ICE);
    wire_data pull         = {.kind = WIRE_PULL, .flags = WIRE_INITIAL, .n = 1, .chunk = &c};
    rig_deliver(r, 0, 1, &pull, NULL);
    rig_deliver(r, 0, 1, &pull, NULL);
    rig_push(r, 1, 0, chunk_of(r, B0), 0, rig_noise);
    rig_flush(r);
    assert_int_equal(rig_find(r, WIRE_REFUSED, 1, UINT32_MAX)->d.status, PEN_AGAIN);
    assert_null(rig_find(r, WIRE_VALUES, 1, UINT32_MAX));

    buf *payload   = rig_payload(r, c, 0, 0, NULL);
    uint32_t crc   = crc32c(0, payload->data, payload->size);
    wire_data init = {.kind = WIRE_INIT, .n = 1, .chunk = &c, .crc = &crc};
    rig_deliver(r, 0, 0, &init, payload);
    rig_flush(r);
    assert_int_equal(rig_count_sent(r, WIRE_VALUES, 1), 1);
    assert_int_equal(rig_find(r, WIRE_VALUES, 1, c)->d.flags, WIRE_INITIAL);
    assert_int_equal(rig_find(r, WIRE_RECEIPT, 0, c)->d.flags, WIRE_INITIAL);

    ((float *)payload->data)[0] = 1e9f;
    crc                         = crc32c(0, payload->data, payload->size);
    init.crc                    = &crc;
    rig_deliver(r, 0, 0, &init, payload);
    assert_float_equal(rig_param(r, ICE, 0), rig_value(ICE, 0), 0);
    init.from = 0;
    rig_deliver(r, 0, 1, &(wire_data){.kind = WIRE_INIT, .n = 1, .chunk = &c, .crc = &crc},
                payload);
    assert_int_equal(rig_find(r, WIRE_REFUSED, 1, c)->d.status, PEN_INVALID_ARGUMENT);
    buf_release(payload);
    rig_destroy(r);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static uint32_t cut_crc(const rig *r)
{
    uint32_t crc = 0;
    for (uint32_t c = 0; c < r->plan->n_chunks; c++) {
        const shard_capture *capture = r->capture[rig_shard_of(r, c)];
        for (uint32_t i = 0; i < capture->n; i++)
            if (capture->chunk[i].chunk == c)
                crc = crc32c(crc, capture->chunk[i].values->data, capture->chunk[i].values->size);
    }
    return crc;
}

static void test_shard_snapshot_stays_as_it_was_while_training_goes_on(void **state)
{
    (void)state;
    rig *r = start("adam lr=1e-2", "bsp", 2, 2);
    rig_decision decision;
    rig_step(r, 0, 0, rig_noise, &decision);
    r->inputs.snapshot = true;
    rig_step(r, 1, 1, rig_noise, &decision);
    r->inputs.snapshot = false;
    const uint32_t crc = rig_params_crc(r);
    assert_int_equal(r->cuts, 2);
    assert_int_equal(r->capture[0]->step, 2);
    assert_int_equal(r->capture[0]->applied, 2);
    rig_step(r, 2, 2, rig_noise, &decision);
    rig_step(r, 3, 3, rig_noise, &decision);
    assert_int_not_equal(rig_params_crc(r), crc);
    assert_int_equal(cut_crc(r), crc);
    for (uint32_t i = 0; i < r->capture[1]->n; i++)
        assert_int_equal(r->capture[1]->chunk[i].version,
                         r->capture[1]->chunk[i].n_slots > 0 ? 2 : 0);
    assert_int_equal(r->cuts, 2);
    rig_destroy(r);
}

/* Each step that a liar names is lower than the one before. */
static void test_shard_keeps_the_states_of_a_few_steps_whatever_steps_a_rank_names(void **state)
{
    (void)state;
    enum { LIES = 200, BYTES = 1 << 19 };
    rig *r         = start("sgd lr=1", "bsp", 1, 2);
    uint8_t *large = calloc(1, BYTES), row[64];
    rig_decision decision;
    assert_non_null(large);
    wire_data lie           = {.kind = WIRE_PUSH, .has_inputs = true, .inputs = r->inputs};
    lie.inputs.states       = large;
    lie.inputs.states_bytes = BYTES;
    const size_t before     = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (int i = 0; i < LIES; i++) {
        lie.step = (uint64_t)INT64_MAX - (uint64_t)i;
        rig_deliver(r, 0, 1, &lie, NULL);
    }
    rig_forget_sent(r);
    assert_in_range(mallinfo2().uordblks + mallinfo2().hblkhd - before, 0, 8 * BYTES);
    r->inputs.states       = row;
    r->inputs.states_bytes = (size_t)(bundle_put(row, 1, "rng", "seed", 4) - row);
    r->inputs.snapshot     = true;
    rig_step(r, 0, 0, rig_noise, &decision);
    assert_int_equal(r->cuts, 1);
    assert_int_equal(r->capture[0]->states_bytes, r->inputs.states_bytes);
    assert_memory_equal(r->capture[0]->states, row, r->inputs.states_bytes);
    free(large);
    rig_destroy(r);
}

static void test_shard_snapshot_of_async_is_taken_at_rank_0s_push(void **state)
{
    (void)state;
    rig *r             = start("sgd lr=1", "async", 1, 2);
    r->inputs.snapshot = true;
    rig_push_all(r, 1, 0, 0, rig_noise); /* only rank 0 may ask */
    assert_int_equal(r->cuts, 0);
    rig_push_all(r, 0, 0, 0, rig_noise);
    assert_int_equal(r->cuts, 1);
    assert_int_equal(r->capture[0]->step, 1);
    rig_destroy(r);
}

static void test_shard_without_trained_chunks_captures_at_rank_0s_request(void **state)
{
    (void)state;
    const wire_tensor one[] = {
        {.name = "w", .dtype = PEN_F32, .ndim = 1, .shape = {10}, .init = ""}};
    const wire_group all[] = {{.name = "all", .optim = "sgd lr=1", .sync = "bsp"}};
    const wire_model model = {.n_tensors = 1, .tensor = one, .n_groups = 1, .group = all};
    rig *r                 = rig_create(&model, &(rig_options){.n_shards = 2, .world_size = 1});
    const uint32_t idle    = 1 - rig_shard_of(r, 0);
    assert_true(shard_is_idle(r->shard[idle]));
    wire_data sign = {.kind = WIRE_PUSH, .step = 6, .has_inputs = true, .inputs = r->inputs};
    rig_deliver(r, idle, 0, &sign, NULL);
    assert_int_equal(r->cuts, 0);
    sign.inputs.snapshot = true;
    rig_deliver(r, idle, 0, &sign, NULL);
    assert_int_equal(r->cuts, 1);
    assert_int_equal(r->capture[idle]->step, 7);
    assert_int_equal(r->capture[idle]->n, 0);
    rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shard_sums_in_rank_order_for_any_order_of_arrival),
        cmocka_unit_test(test_shard_gives_the_same_bits_for_any_number_of_shards),
        cmocka_unit_test(test_shard_by_node_sums_each_node_before_the_nodes),
        cmocka_unit_test(test_shard_by_node_names_the_rank_that_pushed_a_nan),
        cmocka_unit_test(test_shard_by_node_ignores_weight_0),
        cmocka_unit_test(test_shard_without_determinism_sums_at_once),
        cmocka_unit_test(test_shard_weighs_contributions_and_ignores_those_of_weight_0),
        cmocka_unit_test(test_shard_refuses_pushes_beyond_its_buffer_but_never_the_next_rank),
        cmocka_unit_test(test_shard_refuses_a_corrupt_chunk_and_accepts_its_repeat),
        cmocka_unit_test(test_shard_keeps_the_bytes_of_an_old_reply_while_training_goes_on),
        cmocka_unit_test(test_shard_receives_and_sends_16_bit_numbers),
        cmocka_unit_test(
            test_shard_holds_first_pulls_until_initial_values_arrive_and_accepts_them_once),
        cmocka_unit_test(test_shard_snapshot_stays_as_it_was_while_training_goes_on),
        cmocka_unit_test(test_shard_snapshot_of_async_is_taken_at_rank_0s_push),
        cmocka_unit_test(test_shard_keeps_the_states_of_a_few_steps_whatever_steps_a_rank_names),
        cmocka_unit_test(test_shard_without_trained_chunks_captures_at_rank_0s_request),
    };
    return cmocka_run_group_tests_name("shard", tests, NULL, NULL);
}
