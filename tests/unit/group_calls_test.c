/* group_calls_test.c - what follows a group call of the SDK that could not begin.  coll_submit() is this test's. */
#include "worker/train/group_calls.h"

#include "common/base/why.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static pen_ctx *ctx;
static group_calls t;
static pen_error why;
static int submitted;
static pen_status answer;

pen_status __wrap_coll_submit(pen_group *g, const coll_call *given, uint64_t patience_ms,
                              coll_done_fn done, void *user, pen_error *error);
pen_status __wrap_coll_submit(pen_group *g, const coll_call *given, uint64_t patience_ms,
                              coll_done_fn done, void *user, pen_error *error)
{
    (void)g, (void)given, (void)patience_ms, (void)done, (void)user;
    submitted++;
    return answer == PEN_OK ? PEN_OK : why_set(error, answer, "as the test says");
}

static const coll_call call = {.kind = COLL_BARRIER};

static int set_up(void **state)
{
    (void)state;
    ctx = calloc(1, sizeof *ctx);
    memset(&t, 0, sizeof t);
    group_calls_init(&t, ctx);
    submitted = 0;
    return ctx == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    group_calls_fini(&t);
    free(ctx);
    return 0;
}

/* The other members did begin it, and would take a next one for it. */
static void a_call_without_memory_is_the_last_one_of_its_group(void **state)
{
    (void)state;
    answer = PEN_NO_MEMORY;
    group_calls_begin(&t, &call);
    answer = PEN_OK;
    assert_int_equal(group_calls_submit(&t, &call, group_calls_end, &t, &why), PEN_NO_MEMORY);
    assert_non_null(strstr(why.text, "no memory for an earlier call"));
    assert_int_equal(group_calls_sum(&t, &call, group_calls_end, &t, &why), PEN_NO_MEMORY);
    assert_int_equal(submitted, 1);
    assert_int_equal(group_calls_wait(&t, &why), PEN_NO_MEMORY);
    assert_string_equal(why.text, "as the test says");
}

/* As when the group has changed: all members know. */
static void a_call_that_is_refused_leaves_the_next_one_to_the_group(void **state)
{
    (void)state;
    answer = PEN_PEER_LOST;
    assert_int_equal(group_calls_submit(&t, &call, group_calls_end, &t, &why), PEN_PEER_LOST);
    answer = PEN_OK;
    assert_int_equal(group_calls_submit(&t, &call, group_calls_end, &t, &why), PEN_OK);
    assert_int_equal(submitted, 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    alarm(20);
    const struct CMUnitTest tests[] = {
        TEST(a_call_without_memory_is_the_last_one_of_its_group),
        TEST(a_call_that_is_refused_leaves_the_next_one_to_the_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
