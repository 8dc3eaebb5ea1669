/* recycler_test.c - returned buffers are reused, and none is lost. */
#include "server/shard/recycler_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 1 << 20 };

static void returned_buffers_are_reused(void **state)
{
    (void)state;
    recycler *r = recycler_create(4 * BYTES);
    buf *a = recycler_take(r, BYTES, false), *b = recycler_take(r, BYTES, true);
    const void *plain = a->data, *lent = b->data;
    buf_release(a);
    buf_release(b);
    assert_int_equal(recycler_kept(r), 2 * BYTES);
    b = recycler_take(r, BYTES, true);
    a = recycler_take(r, BYTES, false);
    assert_ptr_equal(a->data, plain);
    assert_ptr_equal(b->data, lent);
    assert_int_equal(recycler_kept(r), 0);
    buf_release(a);
    buf_release(b);
    recycler_destroy(r);
}

static void another_size_is_another_buffer(void **state)
{
    (void)state;
    recycler *r = recycler_create(4 * BYTES);
    buf_release(recycler_take(r, BYTES, false));
    buf *half = recycler_take(r, BYTES / 2, false);
    assert_int_equal(half->size, BYTES / 2);
    assert_int_equal(recycler_kept(r), BYTES);
    memset(half->data, 1, half->size);
    buf_release(half);
    recycler_destroy(r);
}

static void no_more_is_kept_than_allowed(void **state)
{
    (void)state;
    recycler *r = recycler_create(2 * BYTES);
    buf *all[5];
    for (int i = 0; i < 5; i++) all[i] = recycler_take(r, BYTES, i % 2 == 0);
    for (int i = 0; i < 5; i++) buf_release(all[i]);
    assert_int_equal(recycler_kept(r), 2 * BYTES);
    recycler_destroy(r);
}

static void buffers_may_outlive_their_recycler(void **state)
{
    (void)state;
    recycler *r = recycler_create(4 * BYTES);
    buf *a      = recycler_take(r, BYTES, true);
    recycler_destroy(r);
    memset(a->data, 7, a->size);
    assert_int_equal(((unsigned char *)a->data)[BYTES - 1], 7);
    buf_release(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(returned_buffers_are_reused),
        cmocka_unit_test(another_size_is_another_buffer),
        cmocka_unit_test(no_more_is_kept_than_allowed),
        cmocka_unit_test(buffers_may_outlive_their_recycler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
