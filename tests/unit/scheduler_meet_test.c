/* scheduler_meet_test.c - the scheduler's rules, one by one: barriers and reductions. */
#include "scheduler_job.h"

/* ---- meeting --------------------------------------------------------------------------------- */
static void
test_core_releases_a_barrier_when_the_last_has_come_and_answers_again_from_memory(void **state)
{
    (void)state;
    job *j = training(2, 1);
    enters(j, 0, 1);
    enters(j, 0, 1); /* sent again: the same arrival */
    assert_int_equal(count(j, WIRE_MET), 0);
    enters(j, 1, 1);
    assert_int_equal(count(j, WIRE_MET), 2);
    enters(j, 0, 1);
    assert_int_equal(count(j, WIRE_MET), 3);
    assert_int_equal(must(j, WORKER_PEER, WIRE_MET)->generation, 1);
    assert_int_equal(must(j, WORKER_PEER, WIRE_MET)->status, PEN_OK);
    drop_job(j);
}

static void test_core_keeps_several_meetings_apart(void **state)
{
    (void)state;
    job *j = training(2, 1);
    for (uint64_t g = 1; g <= 40; g++) {
        enters(j, 0, g);
        enters(j, 0, g + 1); /* one ahead of the other rank */
        forget(j);
        enters(j, 1, g);
        assert_int_equal(count(j, WIRE_MET), 2);
        assert_int_equal(must(j, WORKER_PEER, WIRE_MET)->generation, g);
    }
    forget(j);
    enters(j, 0, 1000); /* outside the window: not taken, not fatal */
    enters(j, 0, UINT64_MAX);
    enters(j, 1, 1000);
    assert_int_equal(j->n_sent, 0);
    drop_job(j);
}

static void test_core_reduces_in_rank_order_bit_for_bit(void **state)
{
    (void)state;
    const float value[3]  = {1e8f, 1.0f, -1e8f};
    const float expected  = (1e8f + 1.0f) + -1e8f; /* 0; any other order gives 1 */
    const int orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}};
    job *j                = training(3, 1);
    for (uint64_t o = 0; o < 3; o++) {
        for (int i = 0; i < 3; i++)
            meets(j, orders[o][i], o + 1, PEN_SUM, PEN_F32, 1, &value[orders[o][i]], "loss");
        const letter *l = must(j, WORKER_PEER + 2, WIRE_MET);
        assert_int_equal(l->size, 4);
        assert_memory_equal(l->data, &expected, 4);
    }
    drop_job(j);
}

#define REDUCES(type, dtype, op, a, b, result)                                                     \
    do {                                                                                           \
        const type x[2] = {(a), (b)}, want = (result);                                             \
        generation++;                                                                              \
        meets(j, 0, generation, (op), (dtype), 1, &x[0], "");                                      \
        meets(j, 1, generation, (op), (dtype), 1, &x[1], "");                                      \
        const letter *l = must(j, WORKER_PEER, WIRE_MET);                                          \
        assert_int_equal(l->generation, generation);                                               \
        assert_int_equal(l->size, sizeof want);                                                    \
        assert_memory_equal(l->data, &want, sizeof want);                                          \
    } while (0)

static void test_core_reduces_every_type_by_every_operation(void **state)
{
    (void)state;
    job *j              = training(2, 1);
    uint64_t generation = 0;
    REDUCES(float, PEN_F32, PEN_AVG, 1, 2, 1.5f);
    REDUCES(float, PEN_F32, PEN_MIN, 1, -2, -2);
    REDUCES(double, PEN_F64, PEN_SUM, 0.1, 0.2, 0.1 + 0.2);
    REDUCES(double, PEN_F64, PEN_PROD, 0.1, 0.2, 0.1 * 0.2);
    REDUCES(double, PEN_F64, PEN_MAX, -1, -2, -1);
    REDUCES(int32_t, PEN_I32, PEN_SUM, INT32_MAX, 1, INT32_MIN); /* wraps */
    REDUCES(int32_t, PEN_I32, PEN_AVG, 3, 4, 3);
    REDUCES(int64_t, PEN_I64, PEN_MIN, -5, 5, -5);
    REDUCES(int64_t, PEN_I64, PEN_PROD, -5, 5, -25);
    REDUCES(uint64_t, PEN_U64, PEN_MAX, UINT64_MAX, 1, UINT64_MAX);
    REDUCES(uint64_t, PEN_U64, PEN_SUM, UINT64_MAX, 2, 1);
    assert_int_equal(count(j, WIRE_MET), 2 * generation);
    drop_job(j);
}

static void test_core_passes_nan_through_minimum_and_maximum(void **state)
{
    (void)state;
    job *j           = training(2, 1);
    const float x[2] = {1, 0.0f / 0.0f * 1.0f};
    for (uint64_t g = 1; g <= 4; g++) {
        const int op = g <= 2 ? PEN_MIN : PEN_MAX, nan_rank = (int)(g % 2);
        meets(j, 0, g, op, PEN_F32, 1, &x[nan_rank == 0], "");
        meets(j, 1, g, op, PEN_F32, 1, &x[nan_rank == 1], "");
        float got;
        memcpy(&got, must(j, WORKER_PEER, WIRE_MET)->data, sizeof got);
        assert_true(got != got);
    }
    drop_job(j);
}

static void test_core_answers_unsupported_for_types_it_does_not_add(void **state)
{
    (void)state;
    job *j           = training(1, 1);
    const uint16_t x = 0;
    meets(j, 0, 1, PEN_SUM, PEN_F16, 1, &x, "");
    assert_int_equal(must(j, WORKER_PEER, WIRE_MET)->status, PEN_UNSUPPORTED);
    drop_job(j);
}

static void test_core_names_both_ranks_whose_calls_differ(void **state)
{
    (void)state;
    static const float x[1001];
    for (int32_t first = 0; first <= 2; first += 2) { /* the same sentence whoever comes first */
        job *j = training(3, 1);
        for (int32_t turn = 0; turn < 2; turn++) {
            const int32_t rank = turn == 0 ? first : 2 - first;
            meets(j, rank, 4, PEN_SUM, PEN_F32, rank == 2 ? 1000 : 1001, x, "loss");
        }
        assert_verdict(j, WORKER_PEER + 1, PEN_MISMATCH,
                       "all_reduce (call 4) differs: rank 2 has 1,000 f32 SUM 'loss', rank 0 has "
                       "1,001 f32 SUM 'loss'");
        drop_job(j);
    }
}

static void test_core_names_the_golden_call_that_differs(void **state)
{
    (void)state;
    static const float x[1001];
    job *j = training(3, 1);
    for (uint64_t g = 1; g < 418; g++)
        for (int32_t rank = 0; rank < 3; rank++) enters(j, rank, g);
    meets(j, 0, 418, PEN_SUM, PEN_F32, 1001, x, "loss");
    meets(j, 2, 418, PEN_SUM, PEN_F32, 1000, x, "loss");
    assert_verdict(j, SERVER_PEER, PEN_MISMATCH,
                   "all_reduce (call 418) differs: rank 2 has 1,000 f32 SUM 'loss', rank 0 has "
                   "1,001 f32 SUM 'loss'");
    drop_job(j);
}

static void test_core_tells_a_barrier_from_a_reduction(void **state)
{
    (void)state;
    const float x = 1;
    job *j        = training(2, 1);
    enters(j, 0, 1);
    meets(j, 1, 1, PEN_SUM, PEN_F32, 1, &x, "loss");
    assert_verdict(j, WORKER_PEER, PEN_MISMATCH,
                   "call 1 differs: rank 1 has 1 f32 SUM 'loss', rank 0 has a barrier 'epoch end'");
    drop_job(j);
}

static void test_core_refuses_reductions_that_are_too_large_or_lie_about_their_size(void **state)
{
    (void)state;
    static const double x[8193];
    job *j = training(1, 1);
    meets(j, 0, 1, PEN_SUM, PEN_F64, 8193, x, "w");
    assert_verdict(j, WORKER_PEER, PEN_UNSUPPORTED,
                   "all_reduce (call 1): rank 0 has 8,193 elements 'w'; at most 65536 bytes go "
                   "through the scheduler");
    drop_job(j);

    j                   = training(1, 1);
    wire_control c      = {.kind = WIRE_MEET};
    c.u.meet.generation = 1;
    c.u.meet.dtype      = PEN_F32;
    c.u.meet.count      = 1000;
    c.u.meet.data       = x;
    c.u.meet.data_size  = 8;
    say_worker(j, 0, &c);
    assert_int_equal(must(j, WORKER_PEER, WIRE_VERDICT)->status, PEN_INVALID_ARGUMENT);
    drop_job(j);
}

static void test_core_tells_those_who_wait_whom_they_wait_for(void **state)
{
    (void)state;
    job *j = training(3, 1);
    for (uint64_t g = 1; g < 212; g++)
        for (int32_t r = 0; r < 3; r++) enters(j, r, g);
    forget(j);
    enters(j, 1, 212);
    enters(j, 2, 212);
    for (int i = 0; i < 30; i++) {
        for (int32_t r = 1; r < 3; r++)
            beat(j, r, 418, "pen_barrier 'epoch end'", (uint64_t)i * 1000);
        beat(j, 0, 418, "after pen_metric", 1000 + (uint64_t)i * 1000);
        beat_server(j, 0);
        pass(j, i < 29 ? 1000 : 999);
    }
    assert_int_equal(count(j, WIRE_NOTICE), 0);
    pass(j, 1);
    assert_int_equal(count(j, WIRE_NOTICE), 2);
    assert_null(last(j, WORKER_PEER, WIRE_NOTICE));
    assert_string_equal(must(j, WORKER_PEER + 1, WIRE_NOTICE)->text,
                        "waiting 30 s for rank 0 in barrier 'epoch end' (call 212).  It is alive: "
                        "in user code since "
                        "31 s, last call pen_metric");
    drop_job(j);
}

static void test_core_tells_who_comes_again_whom_it_waits_for(void **state)
{
    (void)state;
    job *j = training(3, 1);
    enters(j, 1, 1);
    assert_int_equal(count(j, WIRE_NOTICE), 0);
    enters(j, 1, 1);
    assert_int_equal(count(j, WIRE_NOTICE), 1); /* to it alone */
    const letter *notice = must(j, WORKER_PEER + 1, WIRE_NOTICE);
    assert_int_equal(notice->generation, 1);
    assert_int_equal(notice->n, 2);
    assert_int_equal(notice->rank, 0);      /* the first of them */
    assert_int_equal(notice->status, true); /* not for the log */
    enters(j, 0, 1);
    enters(j, 1, 1);
    notice = must(j, WORKER_PEER + 1, WIRE_NOTICE);
    assert_int_equal(notice->n, 1);
    assert_int_equal(notice->rank, 2);
    drop_job(j);
}

static void test_core_says_that_a_missing_rank_is_disconnected_or_one_of_many(void **state)
{
    (void)state;
    static const char *const quick[] = {"warn_ms=500", "down_grace_ms=2000", NULL};
    job *j                           = make_job(quick);
    all_come(j, 3, 1);
    enters(j, 1, 1);
    beat(j, 0, 1, "pen_pull", 0);
    pass(j, 500);
    assert_string_equal(must(j, WORKER_PEER + 1, WIRE_NOTICE)->text,
                        "waiting 0.5 s for ranks 0 2 in barrier 'epoch end' (call 1).  Rank 0 is "
                        "alive: in pen_pull "
                        "since 0.5 s");
    enters(j, 2, 1);
    breaks(j, WORKER_PEER);
    forget(j);
    pass(j, 500);
    assert_string_equal(must(j, WORKER_PEER + 2, WIRE_NOTICE)->text,
                        "waiting 1 s for rank 0 in barrier 'epoch end' (call 1).  Its connection "
                        "is down since 0.5 s");
    drop_job(j);
}

static void test_core_ends_a_wait_for_a_rank_that_has_left(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        job *j = training(2, 1);
        if (late) leaves(j, 0);
        enters(j, 1, 1);
        if (!late) leaves(j, 0);
        assert_verdict(j, WORKER_PEER + 1, PEN_MISMATCH,
                       "worker 0 (devbox) has left the job and rank 1 waits for it in barrier "
                       "'epoch end' (call 1)");
        drop_job(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_core_releases_a_barrier_when_the_last_has_come_and_answers_again_from_memory),
        cmocka_unit_test(test_core_keeps_several_meetings_apart),
        cmocka_unit_test(test_core_reduces_in_rank_order_bit_for_bit),
        cmocka_unit_test(test_core_reduces_every_type_by_every_operation),
        cmocka_unit_test(test_core_passes_nan_through_minimum_and_maximum),
        cmocka_unit_test(test_core_answers_unsupported_for_types_it_does_not_add),
        cmocka_unit_test(test_core_names_both_ranks_whose_calls_differ),
        cmocka_unit_test(test_core_names_the_golden_call_that_differs),
        cmocka_unit_test(test_core_tells_a_barrier_from_a_reduction),
        cmocka_unit_test(test_core_refuses_reductions_that_are_too_large_or_lie_about_their_size),
        cmocka_unit_test(test_core_tells_those_who_wait_whom_they_wait_for),
        cmocka_unit_test(test_core_tells_who_comes_again_whom_it_waits_for),
        cmocka_unit_test(test_core_says_that_a_missing_rank_is_disconnected_or_one_of_many),
        cmocka_unit_test(test_core_ends_a_wait_for_a_rank_that_has_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
