/* state_table_test.c - bytes that are not tensors: rows, bundles of them, and what is restored. */
#include "worker/tensor/residency/state_table.h"

#include "common/base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static pen_error why;

static void add(state_table *t, const char *name, void *data, size_t size, bool per_rank)
{
    if (state_table_add(t, name, data, size, per_rank, &why) != PEN_OK) fail_msg("%s", why.text);
}

static void *pack(state_table *t, bool shares, size_t *size)
{
    void *bytes;
    if (state_table_pack(t, shares, &bytes, size, &why) != PEN_OK) fail_msg("%s", why.text);
    return bytes;
}

static int be_silent(void **state)
{
    (void)state;
    pen_log_set(NULL, NULL, -1);
    return 0;
}

static void test_states_are_restored_to_their_rank(void **state)
{
    (void)state;
    uint8_t *all = NULL;
    size_t size  = 0;
    for (int32_t rank = 0; rank < 3; rank++) {
        state_table t;
        uint64_t own = 100 + (uint64_t)rank, shared = 7 + (uint64_t)rank;
        state_table_init(&t);
        t.rank = rank;
        add(&t, "own", &own, sizeof own, true);
        add(&t, "shared", &shared, sizeof shared, false);
        add(&t, "nothing", NULL, 0, false);
        size_t n;
        void *bytes = pack(&t, rank == 0, &n);
        assert_true(bundle_merge(&all, &size, bytes, n));
        const size_t before = size;
        assert_true(bundle_merge(&all, &size, bytes, n)); /* again: no row is added */
        assert_int_equal(size, before);
        free(bytes);
        state_table_fini(&t);
    }
    for (int32_t rank = 0; rank < 4; rank++) {
        state_table t;
        uint64_t own = 1, shared = 1, late = 1;
        state_table_init(&t);
        t.rank = rank;
        add(&t, "own", &own, sizeof own, true);
        assert_int_equal(state_table_restore(&t, 12, all, size, &why), PEN_OK);
        assert_int_equal(own, rank < 3 ? 100 + (uint64_t)rank : 1); /* rank 3 was not there */
        add(&t, "shared", &shared, sizeof shared, false);           /* late: restored at once */
        assert_int_equal(shared, 7);
        add(&t, "unknown", &late, sizeof late, false);
        assert_int_equal(late, 1);
        state_table_fini(&t);
    }
    free(all);
}

static void test_states_of_another_size_are_named_and_change_nothing(void **state)
{
    (void)state;
    state_table t;
    uint32_t first = 1, second = 2;
    uint64_t wide = 3;
    size_t size;
    state_table_init(&t);
    add(&t, "first", &first, sizeof first, false);
    add(&t, "second", &second, sizeof second, false);
    void *bytes = pack(&t, true, &size);
    state_table_fini(&t);

    state_table_init(&t);
    first = 10;
    add(&t, "first", &first, sizeof first, false);
    add(&t, "second", &wide, sizeof wide, false);
    assert_int_equal(state_table_restore(&t, 5, bytes, size, &why), PEN_MISMATCH);
    assert_string_equal(why.text,
                        "the snapshot of step 5 has 4 bytes of the state 'second', and the "
                        "program has 8; resume with the program that wrote it");
    assert_int_equal(first, 10);
    assert_int_equal(wide, 3);
    free(bytes);
    state_table_fini(&t);
}

static void test_states_are_bounded_and_have_names_of_their_own(void **state)
{
    (void)state;
    state_table t;
    char byte[1];
    char *large = calloc(1, STATE_ROW_MAX + 1);
    char name[STATE_NAME_BYTES + 1];
    state_table_init(&t);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(state_table_add(&t, name, byte, 1, false, &why), PEN_INVALID_ARGUMENT);
    assert_int_equal(state_table_add(&t, "", byte, 1, false, &why), PEN_INVALID_ARGUMENT);
    assert_int_equal(state_table_add(&t, "none", NULL, 1, false, &why), PEN_INVALID_ARGUMENT);
    assert_int_equal(state_table_add(&t, "large", large, STATE_ROW_MAX + 1, false, &why),
                     PEN_INVALID_ARGUMENT);
    assert_string_equal(
        why.text,
        "the state 'large' has 65537 bytes; at most 65536 are allowed; use a tensor for more");
    for (int i = 0; i < STATE_TABLE_MAX / STATE_ROW_MAX; i++) {
        snprintf(name, sizeof name, "large %d", i);
        add(&t, name, large, STATE_ROW_MAX, false);
    }
    assert_int_equal(state_table_add(&t, "more", byte, 1, false, &why), PEN_INVALID_ARGUMENT);
    assert_int_equal(state_table_add(&t, "large 1", byte, 0, false, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, "the state 'large 1' was already added");
    state_table_remove(&t, "large 1");
    state_table_remove(&t, "large 1");
    add(&t, "more", byte, 1, false);
    free(large);
    state_table_fini(&t);
}

static void test_truncated_or_changed_states_never_reach_a_row(void **state)
{
    (void)state;
    state_table t;
    uint64_t a = 0x1111111111111111, b = 0x2222222222222222;
    size_t size;
    unsigned random = 1;
    int refused     = 0;
    state_table_init(&t);
    add(&t, "a", &a, sizeof a, false);
    add(&t, "b", &b, sizeof b, true);
    uint8_t *bytes = pack(&t, true, &size);
    for (size_t n = 1; n < size; n++) { /* every prefix of it, except one of whole rows */
        const bool is_whole = n == bundle_row_bytes("a", sizeof a);
        assert_int_equal(state_table_restore(&t, 1, bytes, n, &why),
                         is_whole ? PEN_OK : PEN_CORRUPT);
    }
    for (int i = 0; i < 2000; i++) {
        uint8_t *changed = malloc(size);
        memcpy(changed, bytes, size);
        for (int k = 0; k < 3; k++) {
            random = random * 1103515245 + 12345;
            changed[(random >> 8) % size] ^= (uint8_t)(1 << (random >> 4) % 8);
        }
        refused += state_table_restore(&t, 1, changed, size, &why) != PEN_OK;
        free(changed);
    }
    assert_true(refused > 100);
    free(bytes);
    state_table_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_are_restored_to_their_rank),
        cmocka_unit_test(test_states_of_another_size_are_named_and_change_nothing),
        cmocka_unit_test(test_states_are_bounded_and_have_names_of_their_own),
        cmocka_unit_test(test_truncated_or_changed_states_never_reach_a_row),
    };
    return cmocka_run_group_tests_name("state_table", tests, be_silent, NULL);
}
