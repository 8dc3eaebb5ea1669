/* containers_test.c - lists, growing arrays, arrays in one allocation, hashes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/containers/arrays.h"
#include "common/containers/hash.h"
#include "common/containers/list.h"

#include <stdlib.h>
#include <string.h>

/* ---- list ------------------------------------------------------------------------------------ */
typedef struct node {
    struct node *next, *prev;
    char name;
} node;

/* The names from first to last, after walking the list in both directions. */
static const char *names(node *first)
{
    static char text[16];
    size_t n = 0, back = 0;
    LIST_EACH(x, first) text[n++] = x->name;
    text[n] = '\0';
    if (first != NULL) assert_null(first->prev->next);
    for (node *x = first != NULL ? first->prev : NULL; x != NULL; x = x == first ? NULL : x->prev)
        assert_int_equal(text[n - ++back], x->name);
    assert_int_equal(back, n);
    return text;
}

static void test_a_list_keeps_insertion_order(void **state)
{
    (void)state;
    node a = {.name = 'a'}, b = {.name = 'b'}, c = {.name = 'c'}, *first = NULL;
    assert_string_equal(names(first), "");
    LIST_APPEND(first, &a);
    LIST_APPEND(first, &b);
    assert_string_equal(names(first), "ab");
    LIST_PREPEND(first, &c);
    assert_string_equal(names(first), "cab");
}

static void test_any_element_can_be_removed_and_is_then_in_no_list(void **state)
{
    (void)state;
    for (int gone = 0; gone < 3; gone++) {
        node at[3] = {{.name = 'a'}, {.name = 'b'}, {.name = 'c'}}, *first = NULL;
        for (int i = 0; i < 3; i++) LIST_APPEND(first, &at[i]);
        LIST_REMOVE(first, &at[gone]);
        assert_null(at[gone].next);
        assert_null(at[gone].prev);
        assert_string_equal(names(first), ((const char *[]){"bc", "ac", "ab"})[gone]);
        LIST_PREPEND(first, &at[gone]);
        for (int i = 0; i < 3; i++) LIST_REMOVE(first, &at[i]);
        assert_null(first);
    }
}

static void test_elements_may_be_freed_while_their_list_is_walked(void **state)
{
    (void)state;
    node *first = NULL;
    for (char c = 'a'; c <= 'f'; c++) {
        node *x = malloc(sizeof *x);
        x->name = c;
        LIST_APPEND(first, x);
    }
    LIST_EACH(x, first)
        if (x->name % 2) {
            LIST_REMOVE(first, x);
            free(x);
        }
    assert_string_equal(names(first), "bdf");
    LIST_EACH(x, first) free(x);
}

/* ---- vec ------------------------------------------------------------------------------------- */
static void test_room_grows_and_keeps_the_contents(void **state)
{
    (void)state;
    uint32_t *at = NULL;
    size_t room  = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        assert_true(VEC_ROOM(at, room, i + 1));
        assert_true(room > i);
        assert_int_equal(at[room - 1], 0);
        at[i] = i;
    }
    for (uint32_t i = 0; i < 1000; i++) assert_int_equal(at[i], i);
    assert_true(VEC_ROOM(at, room, 5000));
    assert_true(room >= 5000 && room < 20000);
    free(at);
}

/* AddressSanitizer would find a row beyond the allocation. */
static void test_an_array_without_a_capacity_has_room_for_one_more(void **state)
{
    (void)state;
    uint64_t *at = NULL;
    size_t n     = 0;
    for (int round = 0; round < 3; round++) {
        for (; n < 100; n++) {
            assert_true(VEC_MORE(at, n));
            at[n] = n;
        }
        for (size_t i = 0; i < n; i++) assert_int_equal(at[i], i);
        n = (size_t)round * 8; /* fewer again: the first ones remain */
    }
    free(at);
}

static void test_a_size_beyond_memory_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    uint64_t *at = NULL, *before;
    size_t room  = 0;
    assert_true(VEC_ROOM(at, room, 1));
    before            = at;
    const size_t had  = room;
    volatile size_t n = SIZE_MAX / sizeof *at + 2; /* times 8 this would wrap to 8 */
    assert_false(VEC_ROOM(at, room, n));
    assert_ptr_equal(at, before);
    assert_int_equal(room, had);
    free(at);
}

/* ---- hash ------------------------------------------------------------------------------------ */
typedef struct {
    uint32_t number;
    UT_hash_handle hh;
} row;

static void test_a_table_finds_a_key_until_it_is_removed(void **state)
{
    (void)state;
    row *table = NULL, *found, rows[300];
    for (uint32_t i = 0; i < 300; i++) {
        rows[i] = (row){.number = i * 7919};
        HASH_ADD(hh, table, number, sizeof rows[i].number, &rows[i]);
        assert_non_null(rows[i].hh.tbl);
    }
    HASH_DEL(table, &rows[17]);
    for (uint32_t i = 0; i < 300; i++) {
        const uint32_t number = i * 7919;
        HASH_FIND(hh, table, &number, sizeof number, found);
        assert_ptr_equal(found, i == 17 ? NULL : &rows[i]);
    }
    HASH_CLEAR(hh, table);
}

static void test_a_hash_depends_on_the_bytes_only_and_is_never_0(void **state)
{
    (void)state;
    const char text[] = "a text that is hashed, a text that is hashed";
    for (size_t n = 0; n < sizeof text; n++) {
        char copy[sizeof text];
        memcpy(copy, text, n);
        assert_true(hash_bytes(text, n) != 0);
        assert_true(hash_bytes(text, n) == hash_bytes(copy, n));
        if (n > 0) assert_true(hash_bytes(text, n) != hash_bytes(text, n - 1));
    }
}

/* ---- arrays ---------------------------------------------------------------------------------- */
static void
test_arrays_in_one_allocation_are_zeroed_disjoint_and_of_the_requested_length(void **state)
{
    (void)state;
    char *a;
    double *b;
    int *none;
    void *memory = ARRAYS_NEW(ARRAY(a, 100), ARRAY(none, 0), ARRAY(b, 7));
    assert_non_null(memory);
    for (int i = 0; i < 100; i++) assert_int_equal(a[i], 0);
    memset(a, 255, 100);
    for (int i = 0; i < 7; i++) assert_true(b[i] == 0);
    assert_int_equal((uintptr_t)b % 64, 0);
    assert_true((char *)none >= a + 100 && (char *)b > (char *)none);
    free(memory);
}

static void test_arrays_of_more_than_memory_can_hold_are_not_made(void **state)
{
    (void)state;
    char *a   = NULL;
    double *b = NULL;
    assert_null(ARRAYS_NEW(ARRAY(a, 8), ARRAY(b, SIZE_MAX / 4)));
    assert_null(ARRAYS_NEW(ARRAY(a, SIZE_MAX - 8)));
    assert_true(a == NULL && b == NULL);
}

static void test_texts_are_kept_in_one_allocation_and_equal_neighbours_once(void **state)
{
    (void)state;
    char first[]       = "host-a";
    const char *text[] = {first, "host-a", "", "", "host-b", "host-a"};
    void *memory       = arrays_keep_texts(text, 6);
    assert_non_null(memory);
    first[0] = 'x';
    assert_string_equal(text[0], "host-a");
    assert_ptr_equal(text[1], text[0]);
    assert_string_equal(text[2], "");
    assert_ptr_equal(text[3], text[2]);
    assert_string_equal(text[4], "host-b");
    assert_string_equal(text[5], "host-a");
    free(memory);
    free(arrays_keep_texts(text, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_arrays_in_one_allocation_are_zeroed_disjoint_and_of_the_requested_length),
        cmocka_unit_test(test_arrays_of_more_than_memory_can_hold_are_not_made),
        cmocka_unit_test(test_texts_are_kept_in_one_allocation_and_equal_neighbours_once),
        cmocka_unit_test(test_a_list_keeps_insertion_order),
        cmocka_unit_test(test_any_element_can_be_removed_and_is_then_in_no_list),
        cmocka_unit_test(test_elements_may_be_freed_while_their_list_is_walked),
        cmocka_unit_test(test_room_grows_and_keeps_the_contents),
        cmocka_unit_test(test_an_array_without_a_capacity_has_room_for_one_more),
        cmocka_unit_test(test_a_size_beyond_memory_is_refused_and_changes_nothing),
        cmocka_unit_test(test_a_table_finds_a_key_until_it_is_removed),
        cmocka_unit_test(test_a_hash_depends_on_the_bytes_only_and_is_never_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
