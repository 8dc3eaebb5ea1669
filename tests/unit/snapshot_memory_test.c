/* snapshot_memory_test.c - copies for a snapshot are bounded, and no wait is without need. */
#include "server/process/snapshot_memory_test.h"
#include "common/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHUNK = 1000, CHUNKS = 200, BOUND = 5 * CHUNK };

static void note_most(void *user, uint64_t bytes)
{
    *(uint64_t *)user = bytes;
}

static void test_no_wait_when_no_snapshot_is_written(void **state)
{
    (void)state;
    snapshot_memory *m = snapshot_memory_create(BOUND, NULL, NULL);
    for (int i = 0; i < 100; i++) assert_true(snapshot_memory_take(m, CHUNK));
    assert_int_equal(snapshot_memory_copied(m), 0);
    snapshot_memory_destroy(m);
}

static void test_copies_up_to_the_bound_are_made_at_once(void **state)
{
    (void)state;
    uint64_t most      = 0;
    snapshot_memory *m = snapshot_memory_create(BOUND, note_most, &most);
    snapshot_memory_hold(m, CHUNKS * CHUNK);
    for (int i = 0; i < 5; i++) assert_true(snapshot_memory_take(m, CHUNK));
    assert_int_equal(snapshot_memory_copied(m), BOUND);
    assert_int_equal(most, BOUND);
    snapshot_memory_release(m, CHUNK, true);
    assert_int_equal(snapshot_memory_copied(m), BOUND - CHUNK);
    snapshot_memory_release(m, CHUNK, false); /* the shard still uses this one: nothing is freed */
    assert_int_equal(snapshot_memory_copied(m), BOUND - CHUNK);
    snapshot_memory_release(m, (CHUNKS - 2) * CHUNK, false);
    assert_int_equal(snapshot_memory_copied(m), 0);
    snapshot_memory_destroy(m);
}

static void test_a_chunk_larger_than_the_bound_is_copied_alone(void **state)
{
    (void)state;
    snapshot_memory *m = snapshot_memory_create(10, NULL, NULL);
    snapshot_memory_hold(m, 2 * CHUNK);
    assert_true(snapshot_memory_take(m, CHUNK));
    snapshot_memory_destroy(m);
}

static void *write_slowly(void *user)
{
    snapshot_memory *m = user;
    for (int i = 0; i < CHUNKS; i++) {
        usleep(300);
        snapshot_memory_release(m, CHUNK, true);
    }
    return NULL;
}

static void test_a_shard_that_would_exceed_the_bound_waits_for_the_writer(void **state)
{
    (void)state;
    uint64_t most = 0;
    pthread_t writer;
    snapshot_memory *m = snapshot_memory_create(BOUND, note_most, &most);
    snapshot_memory_hold(m, CHUNKS * CHUNK);
    const uint64_t start = clock_ms(&clock_real);
    assert_int_equal(pthread_create(&writer, NULL, write_slowly, m), 0);
    for (int i = 0; i < CHUNKS; i++) assert_true(snapshot_memory_take(m, CHUNK));
    assert_true(clock_ms(&clock_real) - start >= 40); /* (200 - 5) x 0.3 ms at least */
    pthread_join(writer, NULL);
    assert_int_equal(most, BOUND);
    assert_int_equal(snapshot_memory_copied(m), 0);
    snapshot_memory_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_wait_when_no_snapshot_is_written),
        cmocka_unit_test(test_copies_up_to_the_bound_are_made_at_once),
        cmocka_unit_test(test_a_chunk_larger_than_the_bound_is_copied_alone),
        cmocka_unit_test(test_a_shard_that_would_exceed_the_bound_waits_for_the_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
