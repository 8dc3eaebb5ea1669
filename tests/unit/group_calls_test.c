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

static int submitted;
static pen_status answer;

pen_status __wrap_coll_submit(pen_group *g, const coll_call *call, uint64_t deadline_ms,
                              coll_done_fn done, void *user, pen_error *why);
pen_status __wrap_coll_submit(pen_group *g, const coll_call *call, uint64_t deadline_ms,
                              coll_done_fn done, void *user, pen_error *why)
{
    (void)g, (void)call, (void)deadline_ms, (void)done, (void)user;
    submitted++;
    return answer == PEN_OK ? PEN_OK : why_set(why, answer, "as the test says");
}

static void begin(group_calls *t, pen_ctx *ctx)
{
    memset(t, 0, sizeof *t);
    group_calls_init(t, ctx);
    submitted = 0;
}

/* The other members did begin it, and would take a next one for it. */
static void a_call_without_memory_is_the_last_one_of_its_group(void **state)
{
    (void)state;
    pen_ctx *ctx         = calloc(1, sizeof *ctx);
    const coll_call call = {.kind = COLL_BARRIER};
    group_calls t;
    pen_error why;
    begin(&t, ctx);
    answer = PEN_NO_MEMORY;
    group_calls_begin(&t, &call);
    answer = PEN_OK;
    assert_int_equal(group_calls_submit(&t, &call, group_calls_end, &t, &why), PEN_NO_MEMORY);
    assert_non_null(strstr(why.text, "no memory for an earlier call"));
    assert_int_equal(group_calls_sum(&t, &call, group_calls_end, &t, &why), PEN_NO_MEMORY);
    assert_int_equal(submitted, 1);
    assert_int_equal(group_calls_wait(&t, &why), PEN_NO_MEMORY);
    assert_string_equal(why.text, "as the test says");
    group_calls_fini(&t);
    free(ctx);
}

/* As when the group has changed: all members know. */
static void a_call_that_is_refused_leaves_the_next_one_to_the_group(void **state)
{
    (void)state;
    pen_ctx *ctx         = calloc(1, sizeof *ctx);
    const coll_call call = {.kind = COLL_BARRIER};
    group_calls t;
    pen_error why;
    begin(&t, ctx);
    answer = PEN_PEER_LOST;
    assert_int_equal(group_calls_submit(&t, &call, group_calls_end, &t, &why), PEN_PEER_LOST);
    answer = PEN_OK;
    assert_int_equal(group_calls_submit(&t, &call, group_calls_end, &t, &why), PEN_OK);
    assert_int_equal(submitted, 2);
    group_calls_fini(&t);
    free(ctx);
}

int main(void)
{
    alarm(20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_without_memory_is_the_last_one_of_its_group),
        cmocka_unit_test(a_call_that_is_refused_leaves_the_next_one_to_the_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
