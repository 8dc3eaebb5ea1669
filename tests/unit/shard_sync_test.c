/* shard_sync_test.c - the consistency rules of a shard: eager, ssp and async. */
#include "tests/unit/shard_model.h"

#include "server/shard/shard_test.h"

#include <string.h>

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
static void never_cut(void *user, shard_capture *capture)
{
    (void)user, (void)capture;
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

static void test_shard_refuses_incompatible_rules(void **state)
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
    assert_string_equal(why.text,
                        "unknown consistency rule 'bulk'; expected bsp, \"ssp s=N\" or async");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shard_eager_updates_a_chunk_when_the_last_rank_came),
        cmocka_unit_test(test_shard_eager_answers_a_repeat_with_values_and_does_not_sum_it),
        cmocka_unit_test(test_shard_eager_job_answers_a_push_that_wants_no_values),
        cmocka_unit_test(test_shard_refuses_to_mix_eager_and_decided_pushes_of_a_round),
        cmocka_unit_test(test_shard_refuses_incompatible_rules),
        cmocka_unit_test(test_shard_ssp_holds_exactly_beyond_its_bound),
        cmocka_unit_test(test_shard_async_applies_each_push_exactly_once_and_never_waits),
        cmocka_unit_test(test_shard_async_push_without_values_is_answered_without_payload),
    };
    return cmocka_run_group_tests_name("shard sync", tests, NULL, NULL);
}
