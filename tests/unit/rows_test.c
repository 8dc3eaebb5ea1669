/* rows_test.c - rows of tables as they travel and as a server holds them: against the rules of tensors, and liars. */
#include "common/base/crc.h"
#include "proto/rows.h"
#include "server/shard/table/row_store.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BYTES = 1 << 20 };

static uint64_t room[BYTES / sizeof(uint64_t)], other[BYTES / sizeof(uint64_t)];

/* A push of n rows of `dim` values (0: row i has 1 + i % 5), with ascending keys; returns its size. */
static size_t make_push(void *to, uint32_t n, uint64_t first, uint64_t stride, uint32_t dim,
                        float seed, rows *r)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < n; i++) elements += dim > 0 ? dim : 1 + i % 5;
    const size_t size = rows_bytes(ROWS_PUSHED, n, elements, dim, sizeof(float));
    assert_true(size <= BYTES);
    memset(to, 0, size);
    *r           = rows_lay(to, ROWS_PUSHED, n, (uint32_t)elements, dim);
    float *value = (float *)(uintptr_t)r->value;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t key    = first + i * stride;
        const uint32_t length = 1 + i % 5;
        memcpy((uint8_t *)(uintptr_t)r->key + i * sizeof key, &key, sizeof key);
        if (dim == 0)
            memcpy((uint8_t *)(uintptr_t)r->length + i * sizeof length, &length, sizeof length);
        for (uint32_t e = 0; e < (dim > 0 ? dim : length); e++)
            *value++ = sinf(seed + (float)(key + e));
    }
    return size;
}

static pen_status reads(const void *data, size_t size, rows_form form, uint32_t dim,
                        const char *sentence)
{
    rows r;
    pen_error why           = {0};
    const pen_status status = rows_read(data, size, form, dim, sizeof(float), &r, &why);
    if (sentence != NULL) assert_string_equal(why.text, sentence);
    return status;
}

/* ---- bytes that travel ----------------------------------------------------------------------- */
static void test_what_was_laid_is_read_again_in_every_form(void **state)
{
    (void)state;
    rows r, again;
    pen_error why;
    for (uint32_t dim = 0; dim < 4; dim++) {
        const size_t size = make_push(room, 9, 3, 7, dim, 0, &r);
        assert_int_equal(rows_read(room, size, ROWS_PUSHED, dim, sizeof(float), &again, &why),
                         PEN_OK);
        assert_int_equal(again.n, 9);
        for (uint32_t i = 0; i < 9; i++) assert_true(rows_key(&again, i) == 3 + 7 * i);
        assert_ptr_equal(again.value, r.value);
    }
    assert_int_equal(reads(room, rows_bytes(ROWS_ASKED, 0, 0, 4, 4), ROWS_ASKED, 4, NULL),
                     PEN_CORRUPT);
    (void)rows_lay(room, ROWS_ASKED, 0, 0, 4);
    assert_int_equal(reads(room, rows_bytes(ROWS_ASKED, 0, 0, 4, 4), ROWS_ASKED, 4, NULL), PEN_OK);
}

static void test_bytes_of_a_liar_are_refused_with_a_reason(void **state)
{
    (void)state;
    rows r;
    size_t size = make_push(room, 3, 5, 1, 2, 0, &r);
    assert_int_equal(
        reads(room, 7, ROWS_PUSHED, 2, "rows of a table have 7 bytes; 8 are the least"),
        PEN_CORRUPT);
    assert_int_equal(
        reads(room, size - 8, ROWS_PUSHED, 2, "3 rows with 6 values do not have 48 bytes"),
        PEN_CORRUPT);
    uint64_t key = UINT64_MAX;
    memcpy((uint8_t *)(uintptr_t)r.key, &key, sizeof key);
    assert_int_equal(
        reads(room, size, ROWS_PUSHED, 2, "key 6 comes after 18446744073709551615; keys ascend"),
        PEN_CORRUPT);
    key = 6;
    memcpy((uint8_t *)(uintptr_t)r.key, &key, sizeof key);
    assert_int_equal(reads(room, size, ROWS_PUSHED, 2, "key 6 comes after 6; keys ascend"),
                     PEN_CORRUPT);
    size            = make_push(room, 3, 5, 1, 0, 0, &r);
    uint32_t length = ROWS_LENGTH_MAX + 1;
    memcpy((uint8_t *)(uintptr_t)r.length + 4, &length, sizeof length);
    assert_int_equal(
        reads(room, size, ROWS_PUSHED, 0, "row 1 has 1048577 values; at most 1048576 are allowed"),
        PEN_CORRUPT);
    length = 4;
    memcpy((uint8_t *)(uintptr_t)r.length + 4, &length, sizeof length);
    assert_int_equal(reads(room, size, ROWS_PUSHED, 0, "3 rows have 8 values, the message has 6"),
                     PEN_CORRUPT);
    const uint32_t most[2] = {UINT32_MAX, UINT32_MAX};
    memcpy(room, most, sizeof most);
    assert_int_equal(reads(room, size, ROWS_PUSHED, 0, NULL), PEN_CORRUPT);
    assert_int_equal(reads(room, size, ROWS_ASKED, 0, NULL), PEN_CORRUPT);
}

static void test_every_key_has_a_part_and_parts_are_alike(void **state)
{
    (void)state;
    uint32_t by_hash[16] = {0}, by_range[16] = {0};
    for (uint64_t i = 0; i < 16000; i++) {
        by_hash[rows_part_by_hash(i, 16)]++;
        by_range[rows_part_by_range(i * (UINT64_MAX / 16000), 16)]++;
    }
    for (int p = 0; p < 16; p++)
        assert_true(by_hash[p] > 850 && by_hash[p] < 1150 && by_range[p] > 990 &&
                    by_range[p] < 1010);
    assert_int_equal(rows_part_by_range(0, 3), 0);
    assert_int_equal(rows_part_by_range(UINT64_MAX, 3), 2);
    assert_true(rows_part_by_hash(UINT64_MAX, 1) == 0);
}

/* ---- the store ------------------------------------------------------------------------------- */
static row_store *make_store(const char *optim, uint32_t dim, const char *init)
{
    row_store_rules rules = {.dim = dim, .seed = 99};
    pen_error why;
    assert_int_equal(optim_parse(optim, &rules.optim, &rules.hyper, &why), PEN_OK);
    assert_int_equal(init_parse(init, &rules.init, &why), PEN_OK);
    row_store *store = row_store_create(&rules);
    assert_non_null(store);
    return store;
}

static void update(row_store *store, const rows *r)
{
    pen_error why;
    assert_int_equal(row_store_check(store, r, &why), PEN_OK);
    assert_int_equal(row_store_update(store, r, PEN_F32, 0.05, 0.5, NULL, &why), PEN_OK);
}

/* All values of these rows; free() it. */
static float *values(row_store *store, const rows *r, uint32_t dim, size_t *n)
{
    const uint64_t elements = row_store_elements(store, r);
    void *answer    = calloc(1, rows_bytes(ROWS_ANSWERED, r->n, elements, dim, sizeof(float)));
    const rows laid = rows_lay(answer, ROWS_ANSWERED, r->n, (uint32_t)elements, dim);
    row_store_read(store, r, &laid, PEN_F32);
    float *copy = malloc(elements * sizeof *copy + 1);
    memcpy(copy, laid.value, elements * sizeof *copy);
    free(answer);
    *n = elements;
    return copy;
}

static void test_a_row_trains_as_a_tensor_of_its_length_does_under_every_rule(void **state)
{
    (void)state;
    for (int k = 0; optim_all[k] != NULL; k++) {
        char words[64];
        snprintf(words, sizeof words, strcmp(optim_all[k]->name, "sum") == 0 ? "%s" : "%s lr=0.05",
                 optim_all[k]->name);
        for (uint32_t dim = 1; dim <= 37; dim += 18) {
            row_store *store = make_store(words, dim, "uniform a=-0.5 b=0.5");
            const optim_ops *ops;
            optim_hyper hyper;
            pen_error why;
            float param[64], slot[OPTIM_SLOTS_MAX][64] = {{0}};
            double norms[2];
            rows r;
            assert_int_equal(optim_parse(words, &ops, &hyper, &why), PEN_OK);
            init_row(&(init_rule){INIT_UNIFORM, -0.5, 0.5}, 99, 12, 0, dim, param);
            optim_span span = {.param = param, .n = dim, .lr = 0.05, .gscale = 0.5};
            for (int i = 0; i < ops->slot_count; i++) span.slot[i] = slot[i];
            if (ops->slot_init != NULL) ops->slot_init(&hyper, &span);
            for (uint64_t step = 1; step <= 4; step++) {
                make_push(room, 5, 10, 1, dim, (float)step, &r); /* keys 10 to 14: 12 is the one */
                update(store, &r);
                span.grad = (const float *)(const void *)r.value + 2 * dim;
                span.step = step;
                optim_apply(ops, &hyper, &span, 1, norms);
            }
            size_t n;
            float *got = values(store, &r, dim, &n);
            assert_int_equal(n, 5 * dim);
            assert_memory_equal(got + 2 * dim, param, dim * sizeof(float));
            free(got);
            row_store_destroy(store);
        }
    }
}

static void test_first_values_depend_on_seed_and_key_and_a_read_makes_no_row(void **state)
{
    (void)state;
    row_store *store = make_store("sgd lr=1", 6, "normal std=1");
    rows r;
    size_t n;
    float want[6];
    make_push(room, 300, 1, 1000003, 6, 0, &r);
    float *got = values(store, &r, 6, &n);
    for (uint32_t i = 0; i < r.n; i++) {
        init_row(&(init_rule){INIT_NORMAL, 0, 1}, 99, rows_key(&r, i), 0, 6, want);
        assert_memory_equal(got + i * 6, want, sizeof want);
    }
    assert_int_equal(row_store_blocks(store), 0);
    assert_memory_not_equal(got, got + 6, sizeof want);
    free(got);
    row_store_destroy(store);
}

static void test_many_rows_are_found_again_and_blocks_make_an_equal_copy(void **state)
{
    (void)state;
    for (uint32_t dim = 0; dim <= 3; dim += 3) {
        row_store *store = make_store("adam lr=0.1", dim, "zero"),
                  *copy  = make_store("adam lr=0.1", dim, "zero");
        pen_error why;
        rows r;
        size_t n, m;
        for (uint64_t batch = 0; batch < 20; batch++) { /* far beyond the first hash table */
            make_push(room, 1000, batch % 10 * 7, 70, dim, (float)batch, &r);
            update(store, &r);
        }
        for (uint32_t i = 0; i < row_store_blocks(store); i++)
            assert_int_equal(row_store_add_block(copy, row_store_block(store, i)->data,
                                                 row_store_used(row_store_block(store, i)), &why),
                             PEN_OK);
        for (int pass = 0; pass < 2; pass++) { /* the second time after the same update of both */
            float *a = values(store, &r, dim, &n), *b = values(copy, &r, dim, &m);
            assert_true(n == m && n > 0);
            assert_memory_equal(a, b, n * sizeof *a);
            free(a);
            free(b);
            make_push(other, 1000, 3, 35, dim, 5, &r); /* old rows and new ones */
            if (dim == 0) make_push(other, 1000, 1000000, 1, 0, 5, &r);
            update(store, &r);
            update(copy, &r);
        }
        assert_int_equal(row_store_blocks(store), row_store_blocks(copy));
        for (uint32_t i = 0; i < row_store_blocks(store); i++)
            assert_memory_equal(row_store_block(store, i)->data, row_store_block(copy, i)->data,
                                row_store_used(row_store_block(store, i)));
        row_store_destroy(store);
        row_store_destroy(copy);
    }
}

static void test_a_block_that_is_held_is_copied_before_a_change(void **state)
{
    (void)state;
    row_store *store = make_store("sgd lr=1", 4, "zero");
    rows r;
    make_push(room, 10, 1, 1, 4, 0, &r);
    update(store, &r);
    buf *held          = buf_acquire(row_store_block(store, 0));
    const uint32_t crc = crc32c(0, held->data, held->size);
    update(store, &r);
    assert_true(crc32c(0, held->data, held->size) == crc);
    assert_ptr_not_equal(row_store_block(store, 0), held);
    buf_release(held);
    row_store_destroy(store);
}

static void test_a_row_keeps_its_length(void **state)
{
    (void)state;
    row_store *store = make_store("sgd lr=1", 0, "zero");
    pen_error why;
    rows r;
    make_push(room, 3, 0, 5, 0, 0, &r); /* keys 0, 5, 10 with 1, 2, 3 values */
    update(store, &r);
    make_push(room, 2, 5, 5, 0, 0, &r); /* keys 5, 10 with 1, 2 */
    assert_int_equal(row_store_check(store, &r, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, "key 5 comes with 1 values and has 2");
    make_push(room, 1, 77, 1, 0, 0, &r);
    const uint32_t none = 0;
    memcpy((uint8_t *)(uintptr_t)r.length, &none, sizeof none);
    assert_int_equal(row_store_check(store, &r, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, "key 77 comes with no values");
    row_store_destroy(store);
}

static void test_rows_larger_than_a_block_have_their_own(void **state)
{
    (void)state;
    const uint32_t dim = 40000;
    row_store *store   = make_store("sgd lr=1", dim, "zero");
    rows r;
    size_t n;
    make_push(room, 3, 8, 1, dim, 0, &r);
    update(store, &r);
    float *got = values(store, &r, dim, &n);
    for (size_t i = 0; i < n; i += 999)
        assert_true(got[i] == -0.05f * (0.5f * ((const float *)(const void *)r.value)[i]));
    assert_int_equal(row_store_blocks(store), 3);
    free(got);
    row_store_destroy(store);
}

static void test_a_damaged_block_is_refused(void **state)
{
    (void)state;
    row_store *store = make_store("adagrad lr=1", 3, "zero"),
              *copy  = make_store("adagrad lr=1", 3, "zero");
    pen_error why;
    rows r;
    make_push(room, 50, 1, 1, 3, 0, &r);
    update(store, &r);
    const buf *block  = row_store_block(store, 0);
    const size_t used = row_store_used(block);
    uint32_t number   = 0;
    for (size_t at = 0; at < used; at += 4) { /* each number in turn */
        memcpy(other, block->data, used);
        memcpy(&number, (uint8_t *)other + at, sizeof number);
        number ^= 0x40000001;
        memcpy((uint8_t *)other + at, &number, sizeof number);
        row_store_clear(copy);
        const pen_status status = row_store_add_block(copy, other, used, &why);
        assert_true(status == PEN_OK || status == PEN_CORRUPT); /* values are anything */
        const bool is_structure = at < 8 || (at - 8) % 40 == 12;
        if (is_structure) assert_int_equal(status, PEN_CORRUPT);
    }
    row_store_clear(copy);
    assert_int_equal(row_store_add_block(copy, block->data, used, &why), PEN_OK);
    assert_int_equal(row_store_add_block(copy, block->data, used, &why), PEN_CORRUPT);
    assert_string_equal(why.text, "key 1 has two rows");
    assert_int_equal(row_store_add_block(copy, block->data, 5, &why), PEN_CORRUPT);
    row_store_destroy(store);
    row_store_destroy(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_laid_is_read_again_in_every_form),
        cmocka_unit_test(test_bytes_of_a_liar_are_refused_with_a_reason),
        cmocka_unit_test(test_every_key_has_a_part_and_parts_are_alike),
        cmocka_unit_test(test_a_row_trains_as_a_tensor_of_its_length_does_under_every_rule),
        cmocka_unit_test(test_first_values_depend_on_seed_and_key_and_a_read_makes_no_row),
        cmocka_unit_test(test_many_rows_are_found_again_and_blocks_make_an_equal_copy),
        cmocka_unit_test(test_a_block_that_is_held_is_copied_before_a_change),
        cmocka_unit_test(test_a_row_keeps_its_length),
        cmocka_unit_test(test_rows_larger_than_a_block_have_their_own),
        cmocka_unit_test(test_a_damaged_block_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
