/* decision_test.c - golden decisions, and equal bits for every layout of the same chunks. */
#include "proto/decision.h"
#include "tests/support/sum_reference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static pen_error why;

/* ---- a plan of given chunks ------------------------------------------------------------------ */
enum { CHUNKS_MAX = 64 };

typedef struct {
    plan p;
    plan_chunk chunk[CHUNKS_MAX];
    plan_partition partition[CHUNKS_MAX];
    uint32_t numbers[CHUNKS_MAX][CHUNKS_MAX];
} layout;

/* Chunk c has blocks[c] blocks and lies in partition part[c]. */
static void lay_out(layout *l, uint32_t n_chunks, const uint32_t *blocks, uint32_t n_partitions,
                    const uint32_t *part)
{
    memset(l, 0, sizeof *l);
    l->p = (plan){.n_chunks     = n_chunks,
                  .n_partitions = n_partitions,
                  .chunk        = l->chunk,
                  .partition    = l->partition};
    for (uint32_t c = 0; c < n_chunks; c++) {
        plan_partition *partition               = &l->partition[part[c]];
        partition->chunk                        = l->numbers[part[c]];
        plan_chunk *chunk                       = &l->chunk[c];
        chunk->partition                        = part[c];
        chunk->blocks                           = blocks[c];
        chunk->first_block                      = partition->blocks;
        chunk->index_in_partition               = partition->n_chunks;
        partition->chunk[partition->n_chunks++] = c;
        partition->blocks += blocks[c];
        partition->n_decided += blocks[c] > 0;
    }
}

typedef struct {
    wire_decision decision;
    uint32_t bad_chunk;
    int32_t bad_rank;
} result;

static result decide(const layout *l, const wire_vote *votes, const double *const *sums,
                     wire_inputs inputs)
{
    result r;
    decision_make(&l->p, votes, sums, &inputs, 17, &r.decision, &r.bad_chunk, &r.bad_rank);
    return r;
}

/* Two shards with sums of squares 9 and 16. */
static layout two;
static wire_vote two_records[2];
static const double nine[] = {9}, sixteen[] = {16};
static const double *const two_sums[] = {nine, sixteen};
static const wire_inputs plain        = {.loss_scale = 1, .weight = 1, .skip = true};

static int set_up(void **state)
{
    (void)state;
    lay_out(&two, 2, (uint32_t[]){1, 1}, 2, (uint32_t[]){0, 1});
    for (uint32_t i = 0; i < 2; i++)
        two_records[i] =
            (wire_vote){.partition = i, .weight_sum = 1, .finite = true, .bad_rank = -1};
    return 0;
}

static void check_same_bits(double a, double b)
{
    assert_memory_equal(&a, &b, sizeof a);
}

/* ---- decisions ------------------------------------------------------------------------------- */
static void test_decision_clips_to_the_bound_as_torch_does(void **state)
{
    (void)state;
    wire_inputs inputs = plain;
    inputs.clip        = 1;
    result r           = decide(&two, two_records, two_sums, inputs);
    assert_int_equal(r.decision.outcome, PEN_APPLIED);
    check_same_bits(r.decision.norm, 5);
    check_same_bits(r.decision.clip, 1 / (5 + 1e-6));
    check_same_bits(r.decision.gscale, 1 / (5 + 1e-6));
    assert_int_equal(r.decision.applied, 17);
    assert_int_equal(r.bad_rank, -1);
}

static void test_decision_does_not_clip_below_the_bound_or_without_one(void **state)
{
    (void)state;
    wire_inputs inputs = plain;
    check_same_bits(decide(&two, two_records, two_sums, inputs).decision.clip, 1);
    inputs.clip = 5.1;
    check_same_bits(decide(&two, two_records, two_sums, inputs).decision.clip, 1);
    inputs.clip = 5; /* norm + 1e-6 exceeds it */
    check_same_bits(decide(&two, two_records, two_sums, inputs).decision.clip, 5 / (5 + 1e-6));
}

static void test_decision_divides_by_weights_and_loss_scale(void **state)
{
    (void)state;
    wire_inputs inputs        = plain;
    inputs.loss_scale         = 8;
    inputs.clip               = 0.1;
    two_records[0].weight_sum = two_records[1].weight_sum = 4;
    result r = decide(&two, two_records, two_sums, inputs);
    check_same_bits(r.decision.norm, 5.0 / 32);
    check_same_bits(r.decision.clip, 0.1 / (5.0 / 32 + 1e-6));
    check_same_bits(r.decision.gscale, 0.1 / (5.0 / 32 + 1e-6) / 32);
}

static void test_decision_names_the_lowest_bad_chunk_and_its_rank(void **state)
{
    (void)state;
    two_records[0].finite = two_records[1].finite = false;
    two_records[0].bad_chunk = 9, two_records[0].bad_rank = 1;
    two_records[1].bad_chunk = 4, two_records[1].bad_rank = 2;
    result r = decide(&two, two_records, two_sums, plain);
    assert_int_equal(r.decision.outcome, PEN_SKIPPED_NONFINITE);
    assert_int_equal(r.bad_chunk, 4);
    assert_int_equal(r.bad_rank, 2);
    check_same_bits(r.decision.gscale, 0);
    check_same_bits(r.decision.clip, 1);
}

static void test_decision_applies_nonfinite_steps_unless_set_to_skip(void **state)
{
    (void)state;
    const double bad[]         = {NAN};
    const double *const sums[] = {bad, sixteen};
    wire_inputs inputs         = plain;
    inputs.skip                = false;
    inputs.clip                = 1;
    two_records[0].finite      = false;
    two_records[0].bad_rank    = 3;
    result r                   = decide(&two, two_records, sums, inputs);
    assert_int_equal(r.decision.outcome, PEN_APPLIED);
    assert_int_equal(r.bad_rank, 3);
    assert_true(isnan(r.decision.norm));
}

static void test_decision_writes_one_canonical_nan(void **state)
{
    (void)state;
    const double bad[]         = {-NAN};
    const double *const sums[] = {bad, sixteen};
    two_records[0].finite      = false;
    check_same_bits(decide(&two, two_records, sums, plain).decision.norm, NAN);
}

static void test_decision_skips_a_norm_that_overflows_though_all_is_finite(void **state)
{
    (void)state;
    const double large[]       = {1.7e308};
    const double *const sums[] = {large, large};
    wire_inputs inputs         = plain;
    result r                   = decide(&two, two_records, sums, inputs);
    assert_int_equal(r.decision.outcome, PEN_SKIPPED_NORM);
    assert_true(isinf(r.decision.norm));
    inputs.loss_scale = 0;
    assert_int_equal(decide(&two, two_records, two_sums, inputs).decision.outcome,
                     PEN_SKIPPED_NORM);
}

static void test_decision_skips_a_step_without_weight(void **state)
{
    (void)state;
    two_records[0].weight_sum = two_records[1].weight_sum = 0;
    result r = decide(&two, two_records, two_sums, plain);
    assert_int_equal(r.decision.outcome, PEN_SKIPPED_EMPTY);
    check_same_bits(r.decision.norm, 0);
    check_same_bits(r.decision.gscale, 0);
}

static void test_decision_skips_partitions_without_trained_chunks(void **state)
{
    (void)state;
    static layout l;
    lay_out(&l, 3, (uint32_t[]){0, 1, 1}, 2, (uint32_t[]){0, 1, 1});
    static const double both[] = {9, 16};
    const double *const sums[] = {NULL, both};
    const wire_vote votes[]    = {{.partition = 0, .finite = false},
                                  {.partition = 1, .weight_sum = 2, .finite = true}};
    result r                   = decide(&l, votes, sums, plain);
    assert_int_equal(r.decision.outcome, PEN_APPLIED);
    check_same_bits(r.decision.norm, 2.5);
}

static void test_decision_has_the_same_bits_however_the_chunks_are_partitioned(void **state)
{
    (void)state;
    static layout l;
    uint32_t blocks[CHUNKS_MAX], part[CHUNKS_MAX];
    double value[CHUNKS_MAX][4], sums[CHUNKS_MAX][4 * CHUNKS_MAX];
    uint64_t random = 1;
    for (uint32_t c = 0; c < CHUNKS_MAX; c++) {
        blocks[c] = c % 5;
        for (uint32_t b = 0; b < 4; b++) {
            random      = random * 6364136223846793005u + 1442695040888963407u;
            value[c][b] = (double)(random >> 11) * 0x1p-52;
        }
    }
    value[1][0] = 0x1p56; /* addends to it are lost; what it is added to is kept */
    double in_order[4 * CHUNKS_MAX];
    size_t n_values = 0;
    for (uint32_t c = 0; c < CHUNKS_MAX; c++)
        for (uint32_t b = 0; b < blocks[c]; b++) in_order[n_values++] = value[c][b];
    const double total   = sum_reference(in_order, n_values);
    wire_inputs inputs   = {.loss_scale = 3, .clip = 1, .skip = true};
    wire_decision first  = {0};
    bool does_order_show = false;
    for (uint32_t n = 1; n <= CHUNKS_MAX; n++) {
        for (uint32_t c = 0; c < CHUNKS_MAX; c++) part[c] = c * 29 % n;
        lay_out(&l, CHUNKS_MAX, blocks, n, part);
        const double *pointers[CHUNKS_MAX];
        wire_vote votes[CHUNKS_MAX];
        double by_partition[4 * CHUNKS_MAX];
        size_t at = 0;
        for (uint32_t i = 0; i < n; i++) {
            pointers[i] = sums[i];
            votes[i]    = (wire_vote){.partition = i, .weight_sum = 7, .finite = true};
            for (uint32_t k = 0; k < l.partition[i].n_chunks; k++) {
                uint32_t c = l.partition[i].chunk[k];
                memcpy(&sums[i][l.chunk[c].first_block], value[c], blocks[c] * sizeof(double));
            }
            for (uint32_t b = 0; b < l.partition[i].blocks; b++) by_partition[at++] = sums[i][b];
        }
        result r = decide(&l, votes, pointers, inputs);
        if (n == 1) first = r.decision;
        check_same_bits(r.decision.norm, sqrt(total) / 21);
        assert_memory_equal(&r.decision.norm, &first.norm, sizeof first.norm);
        assert_memory_equal(&r.decision.gscale, &first.gscale, sizeof first.gscale);
        does_order_show |= sqrt(sum_reference(by_partition, at)) / 21 != first.norm;
    }
    assert_true(does_order_show); /* else this test could never fail */
}

/* ---- hashes ---------------------------------------------------------------------------------- */
static uint64_t hash(uint64_t step, wire_vote vote, wire_inputs inputs, double sum)
{
    const double sums[] = {1, sum};
    return decision_vote_hash(step, &vote, &inputs, sums, 2);
}

static void test_decision_hash_changes_with_each_field(void **state)
{
    (void)state;
    static const double rates[] = {0.1, 0.2}, other_rates[] = {0.1, 0.3};
    const wire_vote r = {
        .partition = 1, .weight_sum = 2, .finite = true, .bad_chunk = 3, .bad_rank = 4};
    const wire_inputs i = {
        .loss_scale = 5, .clip = 6, .weight = 7, .skip = true, .n_rates = 2, .rate = rates};
    uint64_t base = hash(8, r, i, 9);

    wire_vote r2   = r;
    wire_inputs i2 = i;
    assert_true(hash(9, r, i, 9) != base);
    assert_true(hash(8, r, i, 10) != base);
    r2.partition = 2, assert_true(hash(8, r2, i, 9) != base), r2 = r;
    r2.weight_sum = 3, assert_true(hash(8, r2, i, 9) != base), r2 = r;
    r2.finite = false, assert_true(hash(8, r2, i, 9) != base), r2 = r;
    r2.bad_chunk = 4, assert_true(hash(8, r2, i, 9) != base), r2 = r;
    r2.bad_rank = 5, assert_true(hash(8, r2, i, 9) != base), r2 = r;
    r2.hash       = 77, assert_true(hash(8, r2, i, 9) == base); /* the hash is not hashed */
    i2.loss_scale = 6, assert_true(hash(8, r, i2, 9) != base), i2 = i;
    i2.clip = 7, assert_true(hash(8, r, i2, 9) != base), i2 = i;
    i2.skip = false, assert_true(hash(8, r, i2, 9) != base), i2 = i;
    i2.n_rates = 1, assert_true(hash(8, r, i2, 9) != base), i2 = i;
    i2.rate = other_rates, assert_true(hash(8, r, i2, 9) != base), i2 = i;
    i2.weight = 8, i2.snapshot = true,
    assert_true(hash(8, r, i2, 9) == base); /* each rank has its own */
}

static void test_decision_hash_is_the_one_of_the_first_release(void **state)
{
    (void)state;
    static const double rates[] = {0.1, 0.2};
    const wire_vote r           = {
                  .partition = 1, .weight_sum = 2, .finite = true, .bad_chunk = 3, .bad_rank = 4};
    const wire_inputs i = {
        .loss_scale = 5, .clip = 6, .weight = 7, .skip = true, .n_rates = 2, .rate = rates};
    assert_true(hash(8, r, i, 9) == 0xd35d01fd46b601b9);
}

/* ---- inputs ---------------------------------------------------------------------------------- */
static void check_differs(const wire_inputs *a, const wire_inputs *b, const char *sentence)
{
    assert_false(decision_inputs_equal(a, 0, b, 3, &why));
    assert_int_equal(why.status, PEN_MISMATCH);
    assert_string_equal(why.text, sentence);
    assert_int_equal(why.rank, 3);
}

static void test_decision_inputs_must_be_equal_but_for_weight_and_snapshot(void **state)
{
    (void)state;
    static const double rates[] = {0.1, 0.2}, copy[] = {0.1, 0.2}, other[] = {0.1, 0.3};
    const wire_inputs a = {
        .loss_scale = 1024, .clip = 1, .weight = 7, .skip = true, .n_rates = 2, .rate = rates};
    wire_inputs b = a;
    b.weight = 9, b.snapshot = true, b.rate = copy;
    assert_true(decision_inputs_equal(&a, 0, &b, 3, &why));

    b = a, b.loss_scale = 512;
    check_differs(
        &a, &b, "the loss scale is 1024 on rank 0 and 512 on rank 3; all ranks must give the same");
    b = a, b.clip = 0.5;
    check_differs(&a, &b,
                  "the clip bound is 1 on rank 0 and 0.5 on rank 3; all ranks must give the same");
    b = a, b.skip = false;
    check_differs(&a, &b,
                  "the skip policy is 1 on rank 0 and 0 on rank 3; all ranks must give the same");
    b = a, b.n_rates = 1;
    check_differs(
        &a, &b,
        "the number of learning rates is 2 on rank 0 and 1 on rank 3; all ranks must give the "
        "same");
    b = a, b.rate = other;
    check_differs(&a, &b,
                  "the learning rate of parameter group 1 is 0.20000000000000001 on rank 0 and "
                  "0.29999999999999999 on "
                  "rank 3; all ranks must give the same");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_decision_clips_to_the_bound_as_torch_does, set_up),
        cmocka_unit_test_setup(test_decision_does_not_clip_below_the_bound_or_without_one, set_up),
        cmocka_unit_test_setup(test_decision_divides_by_weights_and_loss_scale, set_up),
        cmocka_unit_test_setup(test_decision_names_the_lowest_bad_chunk_and_its_rank, set_up),
        cmocka_unit_test_setup(test_decision_applies_nonfinite_steps_unless_set_to_skip, set_up),
        cmocka_unit_test_setup(test_decision_writes_one_canonical_nan, set_up),
        cmocka_unit_test_setup(test_decision_skips_a_norm_that_overflows_though_all_is_finite,
                               set_up),
        cmocka_unit_test_setup(test_decision_skips_a_step_without_weight, set_up),
        cmocka_unit_test_setup(test_decision_skips_partitions_without_trained_chunks, set_up),
        cmocka_unit_test(test_decision_has_the_same_bits_however_the_chunks_are_partitioned),
        cmocka_unit_test(test_decision_hash_changes_with_each_field),
        cmocka_unit_test(test_decision_hash_is_the_one_of_the_first_release),
        cmocka_unit_test(test_decision_inputs_must_be_equal_but_for_weight_and_snapshot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
