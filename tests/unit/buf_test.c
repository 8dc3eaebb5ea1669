/* buf_test.c - reference-counted bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/containers/buf.h"

#include <pthread.h>
#include <string.h>

static void count(void *user)
{
    ++*(int *)user;
}

static void test_buf_new_gives_aligned_bytes_that_can_be_written(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 63, 64, 65, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        buf *b = buf_new(sizes[i]);
        assert_non_null(b);
        assert_non_null(b->data);
        assert_int_equal(b->size, sizes[i]);
        assert_int_equal((uintptr_t)b->data % 64, 0);
        memset(b->data, 0x5a, b->size);
        buf_release(b);
    }
}

static void test_buf_new_refuses_a_size_beyond_memory(void **state)
{
    (void)state;
    assert_null(buf_new(SIZE_MAX));
    assert_null(buf_new(SIZE_MAX - 64));
}

static void test_buf_wrap_gives_foreign_bytes_back_at_the_last_release(void **state)
{
    (void)state;
    char bytes[8];
    int done = 0;
    buf *b   = buf_wrap(bytes, sizeof bytes, count, &done);
    assert_ptr_equal(b->data, bytes);
    assert_int_equal(b->size, sizeof bytes);
    assert_ptr_equal(buf_acquire(b), b);
    buf_release(b);
    assert_int_equal(done, 0);
    buf_release(b);
    assert_int_equal(done, 1);
}

static void test_buf_wrap_of_static_bytes_needs_no_done(void **state)
{
    (void)state;
    static char bytes[4];
    buf *b = buf_wrap(bytes, sizeof bytes, NULL, NULL);
    assert_ptr_equal(b->data, bytes);
    buf_release(b);
}

static void test_buf_is_unshared_with_one_reference_only(void **state)
{
    (void)state;
    buf *b = buf_new(4);
    assert_true(buf_is_alone(b));
    buf_acquire(b);
    assert_false(buf_is_alone(b));
    buf_release(b);
    assert_true(buf_is_alone(b));
    buf_release(b);
}

/* Under sanitizers none is kept. */
static void test_buf_keeps_large_bytes_for_the_next_of_their_size(void **state)
{
    enum { N = 40, BYTES = 1 << 20, KEPT_AT_MOST = 8 << 20 };
    (void)state;
    buf *b[N];
    void *freed[N];
    int n_kept = 0;
    for (int i = 0; i < N; i++) assert_non_null(b[i] = buf_new(BYTES));
    for (int i = 0; i < N; i++) {
        freed[i] = b[i]->data;
        buf_release(b[i]);
    }
    for (int i = N; i-- > 0;) { /* the newest first */
        assert_non_null(b[i] = buf_new(BYTES));
        n_kept += b[i]->data == freed[i];
    }
    for (int i = 0; i < N; i++) buf_release(b[i]);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)n_kept;
#else
    assert_true(n_kept >= KEPT_AT_MOST / BYTES);
#endif
}

static void test_buf_null_is_fine(void **state)
{
    (void)state;
    assert_null(buf_acquire(NULL));
    buf_release(NULL);
}

typedef struct {
    buf base;
    int released;
} owner;

static void owner_release(buf *self)
{
    ((owner *)self)->released++;
}

static void test_buf_embedded_runs_the_release_of_its_owner(void **state)
{
    (void)state;
    char bytes[16];
    owner o = {.released = 0};
    buf_init(&o.base, bytes, sizeof bytes, owner_release);
    buf_acquire(&o.base);
    buf_release(&o.base);
    assert_int_equal(o.released, 0);
    buf_release(&o.base);
    assert_int_equal(o.released, 1);
}

enum { THREADS = 4, ROUNDS = 20000 };

static void *share(void *user)
{
    for (int i = 0; i < ROUNDS; i++) buf_acquire(user);
    for (int i = 0; i < ROUNDS + 1; i++) buf_release(user); /* plus the first reference */
    return NULL;
}

static void test_buf_is_released_once_by_many_threads(void **state)
{
    (void)state;
    int done = 0;
    char bytes[1];
    buf *b = buf_wrap(bytes, sizeof bytes, count, &done);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        buf_acquire(b);
        assert_int_equal(pthread_create(&threads[i], NULL, share, b), 0);
    }
    buf_release(b);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(done, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buf_new_gives_aligned_bytes_that_can_be_written),
        cmocka_unit_test(test_buf_new_refuses_a_size_beyond_memory),
        cmocka_unit_test(test_buf_wrap_gives_foreign_bytes_back_at_the_last_release),
        cmocka_unit_test(test_buf_wrap_of_static_bytes_needs_no_done),
        cmocka_unit_test(test_buf_is_unshared_with_one_reference_only),
        cmocka_unit_test(test_buf_keeps_large_bytes_for_the_next_of_their_size),
        cmocka_unit_test(test_buf_null_is_fine),
        cmocka_unit_test(test_buf_embedded_runs_the_release_of_its_owner),
        cmocka_unit_test(test_buf_is_released_once_by_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
