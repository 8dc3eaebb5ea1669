/* shard_test.c - one to three shards, driven with structs: sums, decisions, rules, repeats,
 * references. */
#include "tests/support/shard_rig.h"

#include "common/base/crc.h"
#include "common/compute/simd/simd.h"
#include "server/shard/shard_test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
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

static wire_model model_of(const char *optim0, const char *optim1, const char *sync)
{
    groups[0] = (wire_group){.name = "decay", .optim = optim0, .sync = sync};
    groups[1] = (wire_group){.name = "rest", .optim = optim1, .sync = sync};
    return (wire_model){.n_tensors = TENSORS, .tensor = tensors, .n_groups = 2, .group = groups};
}

static rig *start(const char *optim, const char *sync, uint32_t n_shards, uint32_t world_size)
{
    const wire_model model = model_of(optim, optim, sync);
    rig *r = rig_create(&model, &(rig_options){.n_shards = n_shards, .world_size = world_size});
    rig_init(r);
    return r;
}

static uint32_t chunk_of(const rig *r, uint32_t tensor)
{
    return r->plan->first_chunk[tensor];
}

static uint64_t stat_of(const rig *r, stat_id id)
{
    return stat_get(&r->stats, id);
}

/* ---- sums ------------------------------------------------------------------------------------ */
/* sgd by hand: p -= lr * (gscale * sum), with the sum in rank order. */
static float by_hand(const rig *r, uint32_t tensor, uint64_t i, uint64_t step, double gscale)
{
    float sum = rig_noise(0, step, tensor, i);
    for (uint32_t rank = 1; rank < r->world_size; rank++)
        sum += rig_noise((int32_t)rank, step, tensor, i);
    const float lr = (float)r->inputs.rate[r->model.tensor[tensor].group];
    float p        = rig_value(tensor, i);
    p -= lr * ((float)gscale * sum);
    return p;
}

static void push_in_order(rig *r, const int32_t *order, uint64_t step)
{
    for (uint32_t i = 0; i < r->world_size; i++) rig_push_all(r, order[i], step, 0, rig_noise);
    rig_flush(r);
}

static void test_shard_sums_in_rank_order_whatever_the_order_of_arrival(void **state)
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

static void test_shard_refuses_what_it_cannot_keep_but_never_whose_turn_it_is(void **state)
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

/* ---- repeats --------------------------------------------------------------------------------- */
static void test_shard_never_sums_a_repeat(void **state)
{
    (void)state;
    rig *once = start("adam lr=1e-2", "bsp", 2, 3), *often = start("adam lr=1e-2", "bsp", 2, 3);
    rig_decision decision;
    for (uint64_t step = 0; step < 3; step++) {
        rig_step(once, step, (int64_t)step, rig_noise, &decision);
        rig_forget_sent(often);
        for (int round = 0; round < 3; round++)
            for (int32_t rank = 2; rank >= 0; rank--) rig_push_all(often, rank, step, 0, rig_noise);
        rig_flush(often);
        assert_true(rig_decide(often, 0, step, (int64_t)step, &decision));
        for (int32_t rank = 0; rank < 3; rank++) rig_pull(often, rank, step, &decision);
        rig_pull(often, 0, step, &decision);
        rig_forget_sent(often);
        rig_push_all(often, 1, step, WIRE_REPEATED,
                     rig_noise); /* of a step that is committed: its record, once more */
        rig_flush(often);
        assert_true(rig_count_sent(often, WIRE_PREPARED, 1) > 0);
    }
    assert_int_equal(rig_params_crc(once), rig_params_crc(often));
    assert_int_equal(rig_slots_crc(once), rig_slots_crc(often));
    assert_true(stat_of(often, STAT_REPEATS) > 0);
    rig_destroy(once);
    rig_destroy(often);
}

static void test_shard_tells_a_repeat_that_its_step_is_prepared(void **state)
{
    (void)state;
    rig *r = start("sgd lr=1", "bsp", 1, 2);
    push_in_order(r, (const int32_t[]){0, 1}, 0);
    rig_forget_sent(r);
    rig_push(r, 1, 0, chunk_of(r, B0), WIRE_REPEATED, rig_noise);
    rig_flush(r);
    assert_int_equal(rig_count_sent(r, WIRE_PREPARED, 1), 1);
    assert_int_equal(rig_count_sent(r, WIRE_PREPARED, 0), 0);
    rig_destroy(r);
}

/* Rank 1 lost PREPARED, rank 0 went on and committed: without the record rank 1 could never decide.
 */
static void test_shard_tells_the_record_of_the_committed_step_again(void **state)
{
    (void)state;
    rig *r = start("sgd lr=1", "bsp", 1, 2);
    push_in_order(r, (const int32_t[]){0, 1}, 0);
    rig_decision first, again;
    assert_true(rig_decide(r, 0, 0, 0, &first));
    rig_pull(r, 0, 0, &first);
    rig_push_all(r, 0, 1, 0, rig_noise);
    rig_flush(r);
    rig_forget_sent(r);
    rig_push_all(r, 1, 0, WIRE_REPEATED, rig_noise);
    rig_flush(r);
    assert_true(rig_decide(r, 1, 0, 0, &again));
    assert_memory_equal(&again.decision, &first.decision, sizeof first.decision);
    rig_pull(r, 1, 0, &again);
    rig_flush(r);
    assert_null(rig_find(r, WIRE_REFUSED, 1, UINT32_MAX));
    rig_destroy(r);
}

static void test_shard_sends_no_receipt_when_the_answer_is_ready(void **state)
{
    (void)state;
    rig *r = start("sgd lr=1", "bsp", 1, 2);
    rig_push_all(r, 0, 0, 0, rig_noise);
    rig_flush(r);
    assert_non_null(rig_find(r, WIRE_RECEIPT, 0, chunk_of(r, W1)));
    rig_push_all(r, 1, 0, 0, rig_noise);
    rig_flush(r);
    assert_null(rig_find(r, WIRE_RECEIPT, 1, UINT32_MAX));
    assert_non_null(rig_find(r, WIRE_PREPARED, 1, UINT32_MAX));
    rig_destroy(r);
}

/* ---- decisions ------------------------------------------------------------------------------- */
static void test_shard_commits_a_decision_once_and_compares_later_ones(void **state)
{
    (void)state;
    rig *r = start("sgd lr=1", "bsp", 1, 3);
    push_in_order(r, (const int32_t[]){0, 1, 2}, 0);
    rig_decision decision, other;
    assert_true(rig_decide(r, 0, 0, 0, &decision));
    rig_pull(r, 0, 0, &decision);
    const uint32_t crc = rig_params_crc(r);
    rig_pull(r, 1, 0, &decision);
    assert_int_equal(rig_params_crc(r), crc);
    uint64_t version;
    shard_values(r->shard[0], chunk_of(r, W0), &version);
    assert_int_equal(version, 1);
    assert_int_equal(shard_applied(r->shard[0]), 1);

    other                 = decision;
    other.decision.gscale = nextafter(other.decision.gscale, 1);
    rig_pull(r, 2, 0, &other);
    assert_int_equal(rig_find(r, WIRE_REFUSED, 2, UINT32_MAX)->d.status, PEN_MISMATCH);
    assert_int_equal(r->reports, 1);
    assert_int_equal(r->report.rank, 2);
    assert_int_equal(rig_params_crc(r), crc);
    rig_destroy(r);
}

static void test_shard_refuses_a_decision_made_from_other_records(void **state)
{
    (void)state;
    rig *r             = start("sgd lr=1", "bsp", 1, 1);
    const uint32_t crc = rig_params_crc(r);
    rig_push_all(r, 0, 0, 0, rig_noise);
    rig_flush(r);
    rig_decision decision;
    assert_true(rig_decide(r, 0, 0, 0, &decision));
    for (uint32_t p = 0; p < r->plan->n_partitions; p++) decision.record[p].hash++;
    rig_pull(r, 0, 0, &decision);
    assert_int_equal(rig_find(r, WIRE_REFUSED, 0, UINT32_MAX)->d.status, PEN_MISMATCH);
    assert_int_equal(rig_params_crc(r), crc);
    rig_destroy(r);
}

static float with_nan_on_1(int32_t rank, uint64_t step, uint32_t tensor, uint64_t i)
{
    return rank == 1 && tensor == W1 && i == 9000 ? NAN : rig_noise(rank, step, tensor, i);
}

static float with_inf_on_0(int32_t rank, uint64_t step, uint32_t tensor, uint64_t i)
{
    return rank == 0 && tensor == B0 && i == 3 ? INFINITY : rig_noise(rank, step, tensor, i);
}

static float overflowing_on_2(int32_t rank, uint64_t step, uint32_t tensor, uint64_t i)
{
    return rank > 0 && tensor == W0 && i == 77 ? 3e38f : rig_noise(rank, step, tensor, i);
}

static void test_shard_names_who_made_a_gradient_not_finite(void **state)
{
    (void)state;
    const struct {
        rig_gradient g;
        uint32_t tensor;
        uint64_t element;
        int32_t rank;
    } cases[] = {
        {with_nan_on_1, W1, 9000, 1}, {with_inf_on_0, B0, 3, 0}, {overflowing_on_2, W0, 77, 2}};
    for (size_t i = 0; i < 3; i++) {
        rig *r = start("sgd lr=1", "bsp", 2, 3);
        for (int32_t rank = 2; rank >= 0; rank--) rig_push_all(r, rank, 0, 0, cases[i].g);
        rig_flush(r);
        rig_decision decision;
        assert_true(rig_decide(r, 0, 0, 0, &decision));
        assert_int_equal(decision.decision.outcome, PEN_SKIPPED_NONFINITE);
        assert_int_equal(decision.bad_rank, cases[i].rank);
        const plan_chunk *c = &r->plan->chunk[decision.bad_chunk];
        assert_int_equal(c->tensor, cases[i].tensor);
        assert_true(cases[i].element >= c->start && cases[i].element < c->start + c->count);
        rig_destroy(r);
    }
}

static void test_shard_skip_leaves_params_slots_and_applied_untouched(void **state)
{
    (void)state;
    rig *r = start("adam lr=1e-2", "bsp", 3, 2), *plain = start("adam lr=1e-2", "bsp", 3, 2);
    rig_decision decision;
    rig_step(r, 0, 0, rig_noise, &decision);
    rig_step(plain, 0, 0, rig_noise, &decision);
    const uint32_t params = rig_params_crc(r), slots = rig_slots_crc(r);

    rig_step(r, 1, 1, with_nan_on_1, &decision);
    assert_int_equal(decision.decision.outcome, PEN_SKIPPED_NONFINITE);
    assert_int_equal(rig_params_crc(r), params);
    assert_int_equal(rig_slots_crc(r), slots);
    assert_int_equal(shard_applied(r->shard[0]), 1);
    assert_int_equal(stat_of(r, STAT_SKIPPED), 1);

    /* The next step is update number 2, as if nothing had been. */
    rig_step(r, 2, 1, rig_noise, &decision);
    rig_forget_sent(plain);
    for (int32_t rank = 0; rank < 2; rank++) rig_push_all(plain, rank, 1, 0, with_nan_on_1);
    rig_flush(plain);
    assert_true(rig_decide(plain, 0, 1, 1, &decision));
    for (int32_t rank = 0; rank < 2; rank++) rig_pull(plain, rank, 1, &decision);
    rig_step(plain, 2, 1, rig_noise, &decision);
    assert_int_equal(rig_params_crc(r), rig_params_crc(plain));
    assert_int_not_equal(rig_params_crc(r), params);
    rig_destroy(r);
    rig_destroy(plain);
}

static void test_shard_reports_ranks_that_disagree_about_the_rate(void **state)
{
    (void)state;
    rig *r = start("sgd lr=1", "bsp", 1, 2);
    rig_push_all(r, 0, 0, 0, rig_noise);
    const double rates[] = {0.125, 0.5};
    r->inputs.rate       = rates;
    rig_push(r, 1, 0, chunk_of(r, W0), 0, rig_noise);
    assert_int_equal(r->reports, 1);
    assert_int_equal(r->report.status, PEN_MISMATCH);
    assert_non_null(strstr(r->report.text, "learning rate of parameter group 1"));
    assert_int_equal(rig_find(r, WIRE_REFUSED, 1, UINT32_MAX)->d.status, PEN_MISMATCH);
    rig_destroy(r);
}

/* ---- eager ----------------------------------------------------------------------------------- */
static void test_shard_eager_updates_a_chunk_when_the_last_rank_came(void **state)
{
    (void)state;
    rig *r = start("sgd lr=1", "bsp", 2, 3);
    for (uint64_t step = 0; step < 2; step++) {
        rig_forget_sent(r);
        rig_push_all(r, 2, step, WIRE_WANT_VALUES, rig_noise);
        rig_push_all(r, 0, step, WIRE_WANT_VALUES, rig_noise);
        rig_flush(r);
        assert_null(rig_find(r, WIRE_VALUES, 0, UINT32_MAX));
        assert_non_null(rig_find(r, WIRE_RECEIPT, 2, chunk_of(r, W1)));
        rig_push_all(r, 1, step, WIRE_WANT_VALUES, rig_noise);
        rig_flush(r);
        for (int32_t rank = 0; rank < 3; rank++) {
            const rig_message *m = rig_find(r, WIRE_VALUES, rank, chunk_of(r, W1));
            assert_non_null(m);
            assert_int_equal(m->d.version[0], step + 1);
            assert_int_equal(m->d.step, step);
        }
        if (step > 0) continue;
        for (uint64_t i = 0; i < 12300; i += 11)
            assert_float_equal(rig_param(r, W1, i), by_hand(r, W1, i, 0, 1.0 / 3), 0);
    }
    assert_null(rig_find(r, WIRE_PREPARED, 0, UINT32_MAX));
    rig_destroy(r);
}

static void test_shard_eager_answers_a_repeat_with_values_and_does_not_sum_it(void **state)
{
    (void)state;
    rig *r           = start("sgd lr=1", "bsp", 1, 2);
    const uint32_t c = chunk_of(r, B0);
    rig_push(r, 1, 0, c, WIRE_WANT_VALUES, rig_noise);
    rig_push(r, 1, 0, c, WIRE_WANT_VALUES, rig_noise);
    rig_push(r, 0, 0, c, WIRE_WANT_VALUES, rig_noise);
    rig_flush(r);
    assert_float_equal(rig_param(r, B0, 4), by_hand(r, B0, 4, 0, 0.5), 0);
    rig_forget_sent(r);
    rig_push(r, 1, 0, c, WIRE_WANT_VALUES, rig_noise);
    rig_flush(r);
    assert_non_null(rig_find(r, WIRE_VALUES, 1, c));
    assert_float_equal(rig_param(r, B0, 4), by_hand(r, B0, 4, 0, 0.5), 0);
    rig_destroy(r);
}

static void test_shard_eager_job_answers_a_push_that_wants_no_values(void **state)
{
    (void)state;
    static const wire_pair eager[] = {{"commit", "eager"}};
    wire_model model               = model_of("sgd lr=1", "sgd lr=1", "bsp");
    model.n_settings               = 1;
    model.setting                  = eager;
    rig *r = rig_create(&model, &(rig_options){.n_shards = 1, .world_size = 2, .first_step = 5});
    const uint32_t c = chunk_of(r, B0);
    rig_init(r);
    rig_push(r, 1, 5, c, 0, rig_noise);
    rig_flush(r);
    assert_null(rig_find(r, WIRE_VALUES, 1, c));
    rig_push(r, 0, 5, c, WIRE_WANT_VALUES, rig_noise);
    rig_flush(r);
    assert_null(rig_find(r, WIRE_VALUES, 1, c)->payload);
    assert_non_null(rig_find(r, WIRE_VALUES, 0, c)->payload);
    assert_float_equal(rig_param(r, B0, 4), by_hand(r, B0, 4, 5, 0.5), 0);
    rig_destroy(r);
}

static void test_shard_refuses_to_mix_eager_and_decided_pushes_of_a_round(void **state)
{
    (void)state;
    rig *r = start("sgd lr=1", "bsp", 1, 2);
    rig_push(r, 0, 0, chunk_of(r, B0), 0, rig_noise);
    rig_push(r, 1, 0, chunk_of(r, B0), WIRE_WANT_VALUES, rig_noise);
    assert_int_equal(rig_find(r, WIRE_REFUSED, 1, UINT32_MAX)->d.status, PEN_MISMATCH);
    assert_int_equal(r->reports, 1);
    assert_string_equal(r->report.tensor, "b0");
    rig_destroy(r);
}

static void never_send(void *user, uint32_t peer, const wire_data *d, buf *payload)
{
    (void)user, (void)peer, (void)d, (void)payload;
    fail();
}
static void never_cut(void *user, shard_cut *cut)
{
    (void)user, (void)cut;
    fail();
}
static void never_report(void *user, const pen_error *error)
{
    (void)user, (void)error;
    fail();
}

static pen_status configure(const char *optim0, const char *sync, pen_error *why)
{
    const wire_model model = model_of(optim0, "sgd lr=1", sync);
    plan *p;
    assert_int_equal(plan_create(&model, &p, why), PEN_OK);
    uint32_t shard_of[PLAN_PARTITIONS_MAX] = {0};
    const shard_setup setup = {.model = &model, .plan = p, .shard_of = shard_of, .world_size = 1};
    stat_set stats          = {0};
    const shard_outside out = {NULL, never_send, never_cut, never_report};
    shard *s                = shard_create(&(shard_options){.stats = &stats}, &out, why);
    const pen_status status = shard_configure(s, &setup, why);
    shard_destroy(s);
    plan_destroy(p);
    return status;
}

static void test_shard_refuses_rules_that_cannot_go_together(void **state)
{
    (void)state;
    pen_error why;
    assert_int_equal(configure("lamb lr=1", "bsp", &why), PEN_OK);
    assert_int_equal(configure("lamb lr=1", "ssp s=1", &why), PEN_UNSUPPORTED);
    assert_string_equal(
        why.text,
        "'w0': its update rule needs the norm of the whole tensor, which sync=ssp never has at "
        "one time; use sync=bsp");
    assert_int_equal(configure("sgd lr=1", "bulk", &why), PEN_BAD_SETTING);
    assert_string_equal(
        why.text, "there is no consistency rule 'bulk'; known are bsp, \"ssp s=N\" and async");
    assert_int_equal(configure("sgd lr=1", "ssp t=1", &why), PEN_BAD_SETTING);
}

/* ---- ssp and async --------------------------------------------------------------------------- */
static bool is_answered(const rig *r, int32_t rank, uint32_t chunk, uint64_t seq)
{
    for (size_t i = 0; i < r->n_sent; i++) {
        const wire_data *d = &r->sent[i].d;
        for (uint32_t j = 0; j < d->n && d->kind == WIRE_VALUES && d->rank == rank; j++)
            if (d->chunk[j] == chunk && (d->seq != NULL ? d->seq[j] : d->step) == seq) return true;
    }
    return false;
}

static void test_shard_ssp_holds_exactly_beyond_its_bound(void **state)
{
    (void)state;
    static const char *const rules[] = {"ssp s=0", "ssp s=2", "ssp s=8"};
    static const uint64_t bounds[]   = {0, 2, 8};
    for (size_t k = 0; k < 3; k++) {
        rig *r           = start("sgd lr=1", rules[k], 1, 2);
        const uint32_t c = chunk_of(r, W1);
        for (uint64_t seq = 0; seq < bounds[k]; seq++) {
            rig_push(r, 0, seq, c, WIRE_WANT_VALUES, rig_noise);
            rig_flush(r);
            assert_true(is_answered(r, 0, c, seq));
        }
        assert_int_equal(stat_of(r, STAT_HELD), 0);
        rig_push(r, 0, bounds[k], c, WIRE_WANT_VALUES, rig_noise);
        rig_flush(r);
        assert_false(is_answered(r, 0, c, bounds[k]));
        assert_non_null(rig_find(r, WIRE_RECEIPT, 0, c));
        assert_int_equal(stat_of(r, STAT_HELD), 1);
        rig_push(r, 1, 0, c, WIRE_WANT_VALUES, rig_noise);
        rig_flush(r);
        assert_true(is_answered(r, 0, c, bounds[k]));
        assert_true(is_answered(r, 1, c, 0));
        assert_int_equal(stat_of(r, STAT_GAP_MAX), bounds[k]);
        assert_int_equal(rig_find(r, WIRE_VALUES, 0, c)->d.staleness[0], bounds[k]);
        rig_destroy(r);
    }
}

static void test_shard_async_applies_each_push_exactly_once_and_never_waits(void **state)
{
    (void)state;
    rig *r           = start("sgd lr=1", "async", 1, 2);
    const uint32_t c = chunk_of(r, B0);
    float want       = rig_value(B0, 5);
    const float lr   = (float)r->inputs.rate[1];
    for (uint64_t seq = 0; seq < 6; seq++) {
        for (int i = 0; i < 3; i++) rig_push(r, 0, seq, c, WIRE_WANT_VALUES, rig_noise);
        rig_push(r, 0, seq + 2, c, WIRE_WANT_VALUES, rig_noise); /* a gap */
        rig_flush(r);
        want -= lr * (1.0f * rig_noise(0, seq, B0, 5));
        assert_true(is_answered(r, 0, c, seq));
        assert_float_equal(rig_param(r, B0, 5), want, 0);
    }
    assert_int_equal(rig_find(r, WIRE_REFUSED, 0, c)->d.status, PEN_AGAIN);
    assert_int_equal(stat_of(r, STAT_REPEATS), 12);
    assert_int_equal(stat_of(r, STAT_GAP_MAX), 6);
    uint64_t version;
    shard_values(r->shard[0], c, &version);
    assert_int_equal(version, 6);
    rig_destroy(r);
}

static void test_shard_async_push_without_values_is_answered_without_payload(void **state)
{
    (void)state;
    rig *r           = start("sgd lr=1", "async", 1, 2);
    const uint32_t c = chunk_of(r, W0);
    rig_push(r, 1, 0, c, 0, rig_noise);
    rig_flush(r);
    const rig_message *m = rig_find(r, WIRE_VALUES, 1, c);
    assert_non_null(m);
    assert_null(m->payload);
    assert_null(m->d.crc);
    assert_int_equal(m->d.version[0], 1);
    rig_destroy(r);
}

/* ---- bytes ----------------------------------------------------------------------------------- */
static void test_shard_refuses_a_corrupt_chunk_and_takes_it_when_sent_again(void **state)
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

    /* Nobody else holds them any more: the next update is in place. */
    const float *place = shard_values(r->shard[0], 0, NULL);
    rig_forget_sent(r);
    rig_push(r, 0, 2, 0, WIRE_WANT_VALUES, rig_noise);
    assert_ptr_equal(shard_values(r->shard[0], 0, NULL), place);
    rig_destroy(r);
}

static void test_shard_takes_and_gives_16_bit_numbers(void **state)
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
    /* What travels of 'half' is the master rounded once; the master itself keeps its bits. */
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

/* ---- first values ---------------------------------------------------------------------------- */
static void test_shard_holds_first_pulls_until_values_came_and_takes_them_once(void **state)
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
        const shard_cut *cut = r->cut[rig_shard_of(r, c)];
        for (uint32_t i = 0; i < cut->n; i++)
            if (cut->chunk[i].chunk == c)
                crc = crc32c(crc, cut->chunk[i].values->data, cut->chunk[i].values->size);
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
    assert_int_equal(r->cut[0]->step, 2);
    assert_int_equal(r->cut[0]->applied, 2);
    rig_step(r, 2, 2, rig_noise, &decision);
    rig_step(r, 3, 3, rig_noise, &decision);
    assert_int_not_equal(rig_params_crc(r), crc);
    assert_int_equal(cut_crc(r), crc);
    for (uint32_t i = 0; i < r->cut[1]->n; i++)
        assert_int_equal(r->cut[1]->chunk[i].version, r->cut[1]->chunk[i].n_slots > 0 ? 2 : 0);
    assert_int_equal(r->cuts, 2);
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
    assert_int_equal(r->cut[0]->step, 1);
    rig_destroy(r);
}

static void test_shard_without_trained_chunks_cuts_when_rank_0_says_so(void **state)
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
    assert_int_equal(r->cut[idle]->step, 7);
    assert_int_equal(r->cut[idle]->n, 0);
    rig_destroy(r);
}

/* ---- what may not be believed ---------------------------------------------------------------- */
static void test_shard_refuses_what_cannot_be_and_is_unchanged(void **state)
{
    (void)state;
    rig *r           = start("sgd lr=1", "bsp", 1, 2);
    const uint32_t c = chunk_of(r, B0), far = 4000000000u;
    buf *good      = rig_payload(r, c, 0, 0, rig_noise);
    buf *short_one = buf_new(good->size - 4);
    memcpy(short_one->data, good->data, short_one->size);
    const uint32_t crc     = crc32c(0, good->data, good->size);
    const uint32_t params  = rig_params_crc(r);
    wire_inputs weightless = r->inputs, rateless = r->inputs;
    weightless.weight = -1;
    rateless.n_rates  = 1;

    const wire_data push = {.kind       = WIRE_PUSH,
                            .n          = 1,
                            .chunk      = &c,
                            .crc        = &crc,
                            .has_inputs = true,
                            .inputs     = r->inputs};
    struct {
        const char *what;
        wire_data d;
        buf *payload;
        int32_t rank;
        pen_status status;
    } cases[]             = {{"unknown chunk", push, good, 0, PEN_INVALID_ARGUMENT},
                             {"payload too short", push, short_one, 0, PEN_INVALID_ARGUMENT},
                             {"no payload", push, NULL, 0, PEN_INVALID_ARGUMENT},
                             {"no checksums", push, good, 0, PEN_INVALID_ARGUMENT},
                             {"negative weight", push, good, 0, PEN_INVALID_ARGUMENT},
                             {"too few rates", push, good, 0, PEN_INVALID_ARGUMENT},
                             {"no inputs", push, good, 0, PEN_INVALID_ARGUMENT},
                             {"another incarnation", push, good, 0, PEN_NOT_A_MEMBER},
                             {"another server", push, good, 0, PEN_NOT_A_MEMBER},
                             {"an epoch that is over", push, good, 0, PEN_AGAIN},
                             {"an epoch to come", push, good, 0, PEN_AGAIN},
                             {"no such rank", push, good, 2, PEN_NOT_A_MEMBER},
                             {"no rank", push, good, -1, PEN_NOT_A_MEMBER},
                             {"a server's word", push, NULL, 0, PEN_INVALID_ARGUMENT}};
    cases[0].d.chunk      = &far;
    cases[3].d.crc        = NULL;
    cases[4].d.inputs     = weightless;
    cases[5].d.inputs     = rateless;
    cases[6].d.has_inputs = false;
    cases[7].d.from       = 12345;
    cases[8].d.to         = 12345;
    cases[9].d.epoch      = RIG_EPOCH - 1;
    cases[10].d.epoch     = RIG_EPOCH + 1;
    cases[13].d           = (wire_data){.kind = WIRE_PREPARED};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig_forget_sent(r);
        rig_deliver(r, 0, cases[i].rank, &cases[i].d, cases[i].payload);
        const rig_message *m = rig_find(r, WIRE_REFUSED, cases[i].rank, UINT32_MAX);
        if (m == NULL || m->d.status != cases[i].status)
            fail_msg("%s: not refused as it should be", cases[i].what);
    }
    assert_string_equal(r->sent[0].d.text, "PREPARED is not for a server");
    rig_push_all(r, 0, 0, 0, rig_noise);
    rig_push_all(r, 1, 0, 0, rig_noise);
    rig_flush(r);
    rig_decision decision;
    assert_true(rig_decide(r, 0, 0, 0, &decision));
    assert_int_equal(rig_params_crc(r), params);
    buf_release(good);
    buf_release(short_one);
    rig_destroy(r);
}

static void test_shard_drops_what_is_staged_when_a_member_goes(void **state)
{
    (void)state;
    rig *r = start("sgd lr=1", "bsp", 1, 3);
    rig_push_all(r, 0, 0, 0, rig_noise);
    rig_push_all(r, 2, 0, 0, rig_noise);
    const wire_member left[] = {{.rank = 0, .incarnation = rig_incarnation(0)},
                                {.rank = 1, .incarnation = rig_incarnation(1)}};
    shard_epoch(r->shard[0], RIG_TERM, RIG_EPOCH + 1, left, 2);
    rig_forget_sent(r);
    rig_push(r, 0, 0, chunk_of(r, B0), 0, rig_noise);
    assert_string_equal(rig_find(r, WIRE_REFUSED, 0, UINT32_MAX)->d.text, "epoch 3 is over");

    for (int32_t rank = 1; rank >= 0; rank--)
        for (uint32_t c = 0; c < r->plan->n_chunks; c++) {
            if (r->plan->chunk[c].blocks == 0) continue;
            buf *payload = rig_payload(r, c, rank, 0, rig_noise);
            uint32_t crc = crc32c(0, payload->data, payload->size);
            wire_data d  = {.kind       = WIRE_PUSH,
                            .epoch      = RIG_EPOCH + 1,
                            .n          = 1,
                            .chunk      = &c,
                            .crc        = &crc,
                            .has_inputs = true,
                            .inputs     = r->inputs};
            rig_deliver(r, 0, rank, &d, payload);
            buf_release(payload);
        }
    rig_flush(r);
    rig_decision decision;
    assert_true(rig_decide(r, 1, 0, 0, &decision));
    assert_true(decision.decision.gscale == 0.5);
    rig_destroy(r);
}

/* ---- who is missing -------------------------------------------------------------------------- */
static void test_shard_says_who_is_missing_and_what_a_rank_owes(void **state)
{
    (void)state;
    rig *r           = start("sgd lr=1", "bsp", 1, 4);
    const uint32_t c = chunk_of(r, B0);
    uint64_t step;
    uint32_t chunk;
    const char *tensor;
    assert_false(shard_missing(r->shard[0], 3, &step, &chunk, &tensor));
    rig_push_all(r, 0, 0, 0, rig_noise);
    rig_push_all(r, 2, 0, 0, rig_noise);
    rig_push(r, 3, 0, chunk_of(r, W0), 0, rig_noise);

    assert_true(shard_missing(r->shard[0], 3, &step, &chunk, &tensor));
    assert_int_equal(step, 0);
    assert_string_equal(tensor, r->plan->chunk[chunk].tensor == W0 ? "w0" : tensor);
    assert_false(shard_missing(r->shard[0], 0, &step, &chunk, &tensor));

    wire_data ask = {.kind = WIRE_INQUIRE, .n = 1, .chunk = &c};
    rig_deliver(r, 0, 0, &ask, NULL);
    const rig_message *m = rig_find(r, WIRE_WAITING, 0, c);
    assert_non_null(m);
    assert_string_equal(m->d.text, "b0");
    assert_int_equal(m->d.n_missing, 2);
    assert_int_equal(m->d.missing[0], 1);
    assert_int_equal(m->d.missing[1], 3);
    rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shard_sums_in_rank_order_whatever_the_order_of_arrival),
        cmocka_unit_test(test_shard_gives_the_same_bits_for_any_number_of_shards),
        cmocka_unit_test(test_shard_without_determinism_sums_at_once),
        cmocka_unit_test(test_shard_weighs_contributions_and_ignores_those_of_weight_0),
        cmocka_unit_test(test_shard_refuses_what_it_cannot_keep_but_never_whose_turn_it_is),
        cmocka_unit_test(test_shard_never_sums_a_repeat),
        cmocka_unit_test(test_shard_tells_a_repeat_that_its_step_is_prepared),
        cmocka_unit_test(test_shard_tells_the_record_of_the_committed_step_again),
        cmocka_unit_test(test_shard_sends_no_receipt_when_the_answer_is_ready),
        cmocka_unit_test(test_shard_commits_a_decision_once_and_compares_later_ones),
        cmocka_unit_test(test_shard_refuses_a_decision_made_from_other_records),
        cmocka_unit_test(test_shard_names_who_made_a_gradient_not_finite),
        cmocka_unit_test(test_shard_skip_leaves_params_slots_and_applied_untouched),
        cmocka_unit_test(test_shard_reports_ranks_that_disagree_about_the_rate),
        cmocka_unit_test(test_shard_eager_updates_a_chunk_when_the_last_rank_came),
        cmocka_unit_test(test_shard_eager_answers_a_repeat_with_values_and_does_not_sum_it),
        cmocka_unit_test(test_shard_eager_job_answers_a_push_that_wants_no_values),
        cmocka_unit_test(test_shard_refuses_to_mix_eager_and_decided_pushes_of_a_round),
        cmocka_unit_test(test_shard_refuses_rules_that_cannot_go_together),
        cmocka_unit_test(test_shard_ssp_holds_exactly_beyond_its_bound),
        cmocka_unit_test(test_shard_async_applies_each_push_exactly_once_and_never_waits),
        cmocka_unit_test(test_shard_async_push_without_values_is_answered_without_payload),
        cmocka_unit_test(test_shard_refuses_a_corrupt_chunk_and_takes_it_when_sent_again),
        cmocka_unit_test(test_shard_keeps_the_bytes_of_an_old_reply_while_training_goes_on),
        cmocka_unit_test(test_shard_takes_and_gives_16_bit_numbers),
        cmocka_unit_test(test_shard_holds_first_pulls_until_values_came_and_takes_them_once),
        cmocka_unit_test(test_shard_snapshot_stays_as_it_was_while_training_goes_on),
        cmocka_unit_test(test_shard_snapshot_of_async_is_taken_at_rank_0s_push),
        cmocka_unit_test(test_shard_without_trained_chunks_cuts_when_rank_0_says_so),
        cmocka_unit_test(test_shard_refuses_what_cannot_be_and_is_unchanged),
        cmocka_unit_test(test_shard_drops_what_is_staged_when_a_member_goes),
        cmocka_unit_test(test_shard_says_who_is_missing_and_what_a_rank_owes),
    };
    return cmocka_run_group_tests_name("shard", tests, NULL, NULL);
}
