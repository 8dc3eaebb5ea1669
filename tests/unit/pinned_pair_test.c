/* pinned_pair_test.c - pairs of memory, with the host as the device and events of any chosen length. */
#include "worker/tensor/device_copy/pinned_pair.h"

#include "common/compute/device/device_test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

extern const device_ops device_cpu;

enum { BYTES = 100000, NEVER = 1 << 30 };

static pinned_pair_set set;
static pen_error why;

static int begin(void **state)
{
    (void)state;
    device_cpu_set_event_polls(0);
    return pinned_pairs_open(&set, &device_cpu, -1, NULL, &why) == PEN_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    device_cpu_set_event_polls(0);
    pinned_pairs_close(&set);
    return 0;
}

static void end_copies(pinned_pair *t)
{
    while (set.ops->event_done(t->moved, &why) == PEN_AGAIN) {}
}

static void bytes_are_copied_from_the_device_and_back(void **state)
{
    (void)state;
    static char program[BYTES];
    pinned_pair *t = pinned_pair_new(&set, program, BYTES, &why);
    assert_non_null(t);
    assert_ptr_equal(t->device, program);
    memset(program, 1, BYTES);
    assert_int_equal(pinned_pair_down(&set, t, program, TRAFFIC_GRAD, NULL, &why), PEN_OK);
    assert_int_equal(pinned_pair_wait(&set, t->moved, 1000, &why), PEN_OK);
    assert_memory_equal(t->host, program, BYTES);
    memset(t->host, 2, BYTES);
    t->is_old = true;
    assert_int_equal(pinned_pair_up(&set, t, &why), PEN_OK);
    assert_false(t->is_old);
    assert_int_equal(pinned_pair_see(&set, t, NULL, &why), PEN_OK);
    assert_memory_equal(t->host, program, BYTES);
    pinned_pair_free(&set, t);
    assert_int_equal(program[BYTES - 1], 2);
}

static void a_freed_block_serves_the_next_of_its_size(void **state)
{
    (void)state;
    pinned_pair *large = pinned_pair_take(&set, BYTES, &why),
                *small = pinned_pair_take(&set, 64, &why);
    assert_non_null(large);
    assert_non_null(small);
    large->is_old = small->is_old = false;
    pinned_pair_put(&set, large);
    pinned_pair_put(&set, small);
    assert_ptr_equal(pinned_pair_take(&set, 64, &why), small);
    pinned_pair *other = pinned_pair_take(&set, BYTES + 1, &why);
    assert_ptr_not_equal(other, large);
    assert_ptr_equal(pinned_pair_take(&set, BYTES, &why), large);
    assert_true(large->is_old && small->is_old);
    pinned_pair_put(&set, large);
    pinned_pair_put(&set, small);
    pinned_pair_put(&set, other);
}

static void a_buffer_being_copied_is_not_handed_on(void **state)
{
    (void)state;
    pinned_pair *busy = pinned_pair_take(&set, BYTES, &why);
    device_cpu_set_event_polls(3);
    assert_int_equal(pinned_pair_up(&set, busy, &why), PEN_OK);
    pinned_pair_put(&set, busy);
    pinned_pair *next = pinned_pair_take(&set, BYTES, &why);
    assert_ptr_not_equal(next, busy);
    end_copies(busy);
    assert_ptr_equal(pinned_pair_take(&set, BYTES, &why), busy);
    pinned_pair_put(&set, busy);
    pinned_pair_put(&set, next);
}

static void a_wait_ends_at_its_deadline_and_names_the_device(void **state)
{
    (void)state;
    pinned_pair *t = pinned_pair_take(&set, BYTES, &why);
    device_cpu_set_event_polls(NEVER);
    assert_int_equal(pinned_pair_up(&set, t, &why), PEN_OK);
    assert_int_equal(pinned_pair_wait(&set, t->moved, 10, &why), PEN_TIMED_OUT);
    assert_string_equal(why.text, "waited 0.01 s for cpu device -1 to finish its queue; look for a "
                                  "kernel that does not end, or raise deadline_ms");
    pinned_pairs_hurry(&set);
    assert_int_equal(pinned_pair_wait(&set, t->moved, -1, &why), PEN_ABORTED);
    device_cpu_set_event_polls(0);
    assert_int_equal(pinned_pair_up(&set, t, &why), PEN_OK); /* and this one has ended */
    pinned_pair_put(&set, t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_are_copied_from_the_device_and_back, begin, end),
        cmocka_unit_test_setup_teardown(a_freed_block_serves_the_next_of_its_size, begin, end),
        cmocka_unit_test_setup_teardown(a_buffer_being_copied_is_not_handed_on, begin, end),
        cmocka_unit_test_setup_teardown(a_wait_ends_at_its_deadline_and_names_the_device, begin,
                                        end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
