/* scalars_test.c - numbers of the program, summed over ranks: order, absence, bounds, the chunk that has them. */
#include "proto/scalars.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

static void given(wire_scalars *s, const char *name, double value)
{
    assert_true(scalars_set(s, scalars_name(name), value));
}

static void found(const wire_scalars *s, const char *name, double sum, uint32_t ranks)
{
    double got     = 0;
    uint32_t count = 0;
    assert_true(scalars_find(s, scalars_name(name), &got, &count));
    assert_memory_equal(&got, &sum, sizeof sum);
    assert_int_equal(count, ranks);
}

static void a_sum_is_in_rank_order_and_counts_its_contributors(void **state)
{
    (void)state;
    wire_scalars rank[3] = {{0}}, sum = {0};
    given(&rank[0], "loss", 0.1);
    given(&rank[1], "loss", 0.2);
    given(&rank[1], "hits", 5);
    given(&rank[2], "loss", 0.3);
    for (int r = 0; r < 3; r++) scalars_add(&sum, &rank[r]);
    found(&sum, "loss", 0.1 + 0.2 + 0.3, 3);
    found(&sum, "hits", 5, 1);
    double value;
    uint32_t ranks;
    assert_false(scalars_find(&sum, scalars_name("none"), &value, &ranks));
}

static void the_last_number_of_a_name_counts_and_a_ninth_name_does_not(void **state)
{
    (void)state;
    wire_scalars s = {0}, sum = {0}, other = {0};
    for (int i = 0; i < WIRE_SCALARS_MAX; i++) given(&s, (char[]){(char)('a' + i), '\0'}, i);
    assert_false(scalars_set(&s, scalars_name("z"), 1));
    given(&s, "a", 7);
    given(&other, "z", 1);
    given(&other, "b", 2);
    scalars_add(&sum, &s);
    scalars_add(&sum, &other);
    assert_int_equal(sum.n, WIRE_SCALARS_MAX);
    found(&sum, "a", 7, 1);
    found(&sum, "b", 1 + 2, 2);
}

static void every_nan_becomes_the_same_nan(void **state)
{
    (void)state;
    wire_scalars s = {0}, sum = {0};
    given(&s, "loss", -NAN);
    found(&s, "loss", NAN, 1);
    scalars_add(&sum, &s);
    scalars_add(&sum, &s);
    found(&sum, "loss", NAN, 2);
}

static void scalars_go_with_the_first_two_phase_chunk_or_else_the_first_trained_one(void **state)
{
    (void)state;
    plan_chunk chunk[4] = {{.trained = false},
                           {.trained = true},
                           {.trained = true, .blocks = 1},
                           {.trained = true, .blocks = 1}};
    plan p              = {.n_chunks = 4, .chunk = chunk};
    uint32_t which      = 99;
    assert_true(scalars_chunk(&p, &which));
    assert_int_equal(which, 2);
    p.n_chunks = 2;
    assert_true(scalars_chunk(&p, &which));
    assert_int_equal(which, 1);
    p.n_chunks = 1;
    assert_false(scalars_chunk(&p, &which));
}

static void scalars_of_a_rank_count_as_its_own(void **state)
{
    (void)state;
    wire_scalars s = {0};
    pen_error why;
    scalars_set(&s, scalars_name("loss"), 1);
    scalars_set(&s, scalars_name("hits"), 2);
    assert_int_equal(scalars_check(&s, 3, &why), PEN_OK);
    s.ranks[1] = 2;
    assert_int_equal(scalars_check(&s, 3, &why), PEN_CORRUPT);
    assert_string_equal(why.text, "rank 3 gives a scalar as that of several ranks");
    assert_int_equal(why.rank, 3);
    s.n = WIRE_SCALARS_MAX + 1;
    assert_int_equal(scalars_check(&s, 3, &why), PEN_CORRUPT);
    assert_string_equal(why.text, "rank 3 has 9 scalars in a step, where 8 are the most");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sum_is_in_rank_order_and_counts_its_contributors),
        cmocka_unit_test(the_last_number_of_a_name_counts_and_a_ninth_name_does_not),
        cmocka_unit_test(every_nan_becomes_the_same_nan),
        cmocka_unit_test(scalars_of_a_rank_count_as_its_own),
        cmocka_unit_test(scalars_go_with_the_first_two_phase_chunk_or_else_the_first_trained_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
