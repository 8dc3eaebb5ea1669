/* fold_order_test.c - the order of a group's folds by node. */
#include "worker/collective/fold_order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void assert_order(const int *node, int n, const int *turn, const int *end, int n_parts)
{
    reduce_order *order;
    assert_true(fold_order_create(node, n, &order));
    assert_non_null(order);
    assert_int_equal(order->n_parts, n_parts);
    assert_memory_equal(order->turn, turn, (size_t)n * sizeof *turn);
    assert_memory_equal(order->end, end, (size_t)n_parts * sizeof *end);
    for (int i = 0, part = 0; i < n; i++) {
        bool ends;
        assert_int_equal(fold_order_at(order, i, &ends), turn[i]);
        assert_int_equal(ends, end[part] == i + 1);
        part += ends;
    }
    free(order);
}

static void nodes_follow_their_lowest_ranks_and_not_their_numbers(void **state)
{
    (void)state;
    assert_order((int[]){0, 0, 1, 1}, 4, (int[]){0, 1, 2, 3}, (int[]){2, 4}, 2);
    assert_order((int[]){7, 2, 7, 2, 2}, 5, (int[]){0, 2, 1, 3, 4}, (int[]){2, 5}, 2);
    assert_order((int[]){2, 1, 0, 0, 1, 2}, 6, (int[]){0, 5, 1, 4, 2, 3}, (int[]){2, 4, 6}, 3);
    assert_order((int[]){-1, 3, 3}, 3, (int[]){0, 1, 2}, (int[]){1, 3}, 2);
}

static void one_node_and_nodes_of_one_member_are_in_rank_order(void **state)
{
    (void)state;
    reduce_order *order;
    bool ends;
    assert_true(fold_order_create((int[]){4, 4, 4}, 3, &order));
    assert_null(order);
    assert_true(fold_order_create((int[]){2, 0, 1}, 3, &order));
    assert_null(order);
    assert_true(fold_order_create((int[]){0}, 1, &order));
    assert_null(order);
    assert_int_equal(fold_order_at(order, 2, &ends), 2);
    assert_false(ends);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_follow_their_lowest_ranks_and_not_their_numbers),
        cmocka_unit_test(one_node_and_nodes_of_one_member_are_in_rank_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
