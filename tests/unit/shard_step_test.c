/* shard_step_test.c - the steps of a shard: repeats, decisions, staged sums, missing ranks. */
#include "tests/unit/shard_model.h"

#include "common/base/crc.h"
#include "server/shard/shard_test.h"

#include <math.h>
#include <string.h>

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
                     rig_noise); /* of a committed step: its record, once more */
        rig_flush(often);
        assert_true(rig_count_sent(often, WIRE_PREPARED, 1) > 0);
    }
    assert_int_equal(rig_params_crc(once), rig_params_crc(often));
    assert_int_equal(rig_slots_crc(once), rig_slots_crc(often));
    assert_true(stat_of(often, STAT_REPEATS) > 0);
    rig_destroy(once);
    rig_destroy(often);
}

static void test_shard_answers_a_repeat_of_a_prepared_step_with_prepared(void **state)
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
static void test_shard_sends_the_record_of_the_committed_step_again(void **state)
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
    for (uint32_t p = 0; p < r->plan->n_partitions; p++) decision.vote[p].hash++;
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

static void test_shard_names_the_rank_of_a_nonfinite_gradient(void **state)
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

    /* The next step is update number 2, as if no step had been skipped. */
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

/* ---- what must not be trusted ---------------------------------------------------------------- */
static void test_shard_refuses_impossible_messages_and_is_unchanged(void **state)
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

static void test_shard_drops_staged_sums_when_a_member_leaves(void **state)
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

/* ---- missing ranks --------------------------------------------------------------------------- */
static void test_shard_names_missing_ranks_and_their_owed_pushes(void **state)
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
        cmocka_unit_test(test_shard_never_sums_a_repeat),
        cmocka_unit_test(test_shard_answers_a_repeat_of_a_prepared_step_with_prepared),
        cmocka_unit_test(test_shard_sends_the_record_of_the_committed_step_again),
        cmocka_unit_test(test_shard_sends_no_receipt_when_the_answer_is_ready),
        cmocka_unit_test(test_shard_commits_a_decision_once_and_compares_later_ones),
        cmocka_unit_test(test_shard_refuses_a_decision_made_from_other_records),
        cmocka_unit_test(test_shard_names_the_rank_of_a_nonfinite_gradient),
        cmocka_unit_test(test_shard_skip_leaves_params_slots_and_applied_untouched),
        cmocka_unit_test(test_shard_reports_ranks_that_disagree_about_the_rate),
        cmocka_unit_test(test_shard_refuses_impossible_messages_and_is_unchanged),
        cmocka_unit_test(test_shard_drops_staged_sums_when_a_member_leaves),
        cmocka_unit_test(test_shard_names_missing_ranks_and_their_owed_pushes),
    };
    return cmocka_run_group_tests_name("shard step", tests, NULL, NULL);
}
