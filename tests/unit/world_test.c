/* world_test.c - members that come and go as a program sees them: its world, its steps, its events. */
#include "worker/context.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static pen_ctx *begin(float *w, float *g, pen_step *step)
{
    pen_ctx *ctx               = NULL;
    pen_tensor *t              = NULL;
    const pen_tensor_desc desc = {.name = "w", .ndim = 1, .shape = {2}, .param = w, .grad = g};
    assert_int_equal(pen_init((const char *const[]){"optim=sgd lr=1", NULL}, &ctx), PEN_OK);
    assert_int_equal(pen_register(ctx, &desc, &t), PEN_OK);
    assert_int_equal(pen_commit(ctx), PEN_OK);
    assert_int_equal(pen_step_begin(ctx, step), PEN_OK);
    pen_ready(ctx, t, PEN_ALL);
    assert_int_equal(pen_step_end(ctx, step), PEN_OK);
    assert_int_equal(step->flags, 0);
    return ctx;
}

static void test_world_is_of_the_members_that_the_step_is_seen_with(void **state)
{
    (void)state;
    float w[2] = {1, 2}, g[2] = {0};
    pen_step step;
    pen_error why;
    int ranks[3];
    pen_ctx *ctx     = begin(w, g, &step);
    pen_group *alone = pen_world(ctx);
    assert_true(members_change(&ctx->members, 7, 1, (const int32_t[]){3, 0}, 2));
    assert_int_equal(pen_step_begin(ctx, &step), PEN_OK); /* step 1: the one in which it happened */
    assert_int_equal(step.flags, 0);
    assert_ptr_equal(pen_world(ctx), alone);
    pen_ready(ctx, NULL, PEN_ALL);
    assert_int_equal(pen_step_end(ctx, &step), PEN_OK);

    assert_int_equal(pen_step_begin(ctx, &step), PEN_OK);
    assert_int_equal(step.flags, PEN_STEP_MEMBERS);
    assert_int_equal(step.epoch, 7);
    assert_int_equal(pen_size(pen_world(ctx)), 2);
    assert_int_equal(pen_rank(pen_world(ctx)), 0);
    assert_int_equal(pen_group_ranks(pen_world(ctx), ranks, 3), 2);
    assert_int_equal(ranks[1], 3);
    assert_int_equal(pen_barrier(pen_world(ctx), NULL, NULL), PEN_UNSUPPORTED);
    pen_last_error(&why);
    assert_string_equal(why.text,
                        "collectives need fixed members, and the members of this job changed in "
                        "view 7; use pen_step_scalar(), pen_command() or pen_store_add()");
    assert_int_equal(pen_size(alone), 2); /* a handle kept from before sees the present members */
    pen_ready(ctx, NULL, PEN_ALL);
    assert_int_equal(pen_step_end(ctx, &step), PEN_OK);
    assert_int_equal(pen_step_begin(ctx, &step), PEN_OK);
    assert_int_equal(step.flags, 0);
    assert_int_equal(pen_finalize(ctx), PEN_OK);
}

static void test_world_a_worker_asked_to_leave_has_no_further_step(void **state)
{
    (void)state;
    float w[2] = {1, 2}, g[2] = {0};
    pen_step step;
    pen_ctx *ctx = begin(w, g, &step);
    atomic_store(&ctx->stop_wanted, true);
    assert_int_equal(pen_step_begin(ctx, &step), PEN_END);
    assert_int_equal(step.flags, PEN_STEP_STOPPING);
    pen_error why;
    assert_int_equal(pen_export(ctx, "/tmp/never", NULL, NULL), PEN_NOT_A_MEMBER);
    pen_last_error(&why);
    assert_string_equal(why.text,
                        "pen_export: this worker was asked to leave before step 1, and the "
                        "others go on; call it on one that stays (PEN_STEP_STOPPING tells "
                        "them apart)");
    assert_int_equal(pen_finalize(ctx), PEN_OK);
}

static void on_event(pen_ctx *ctx, const pen_event *event, void *user)
{
    (void)ctx, (void)event, (void)user;
}

static void test_world_keeps_the_function_for_events(void **state)
{
    (void)state;
    float w[2] = {1, 2}, g[2] = {0};
    pen_step step;
    pen_ctx *ctx = begin(w, g, &step);
    assert_int_equal(pen_on_event(ctx, on_event, &step), PEN_OK);
    assert_true(ctx->event == on_event && ctx->event_user == &step);
    assert_int_equal(pen_on_event(ctx, NULL, NULL), PEN_OK);
    assert_null(ctx->event);
    assert_int_equal(pen_on_event(NULL, on_event, NULL), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_finalize(ctx), PEN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_is_of_the_members_that_the_step_is_seen_with),
        cmocka_unit_test(test_world_a_worker_asked_to_leave_has_no_further_step),
        cmocka_unit_test(test_world_keeps_the_function_for_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
