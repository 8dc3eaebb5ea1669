/* request_values_test.c - a step whose values come tensor by tensor: who waits for which. */
#include "worker/context.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { TENSORS = 3 };

typedef struct {
    pen_ctx *ctx;
    pen_tensor tensor[TENSORS], *all[TENSORS];
    request *step;
    pen_req req;
    uint32_t index;      /* awaited by `thread` */
    bool has_come;       /* its answer */
    atomic_bool is_over; /* it has one */
    pthread_t thread;
} rig;

static rig *make_rig(void)
{
    pen_error why;
    rig *g = calloc(1, sizeof *g);
    g->ctx = calloc(1, sizeof *g->ctx);
    assert_int_equal(request_table_init(&g->ctx->requests, 4, &why), PEN_OK);
    assert_int_equal(request_begin(g->ctx, REQUEST_STEP, NULL, &g->req, &g->step), PEN_OK);
    for (uint32_t t = 0; t < TENSORS; t++) {
        g->all[t] = &g->tensor[t];
        request_values_begin(&g->ctx->requests, g->all[t]);
    }
    return g;
}

static void drop_rig(rig *g)
{
    request_table_fini(&g->ctx->requests);
    free(g->ctx);
    free(g);
}

static void *await(void *user)
{
    rig *g      = user;
    g->has_come = request_wait_values(&g->ctx->requests, &g->req, g->all, &g->index, 1);
    atomic_store(&g->is_over, true);
    return NULL;
}

/* Returns when the thread waits: request_wait_values() has marked the request then. */
static void start_awaiting(rig *g, uint32_t tensor)
{
    g->index            = tensor;
    g->step->is_awaited = false;
    atomic_store(&g->is_over, false);
    assert_int_equal(pthread_create(&g->thread, NULL, await, g), 0);
    for (bool waits = false; !waits;) {
        pthread_mutex_lock(&g->ctx->requests.lock);
        waits = g->step->is_awaited;
        pthread_mutex_unlock(&g->ctx->requests.lock);
        usleep(100);
    }
}

static void test_a_wait_for_one_tensor_ends_when_its_values_have_come(void **state)
{
    (void)state;
    rig *g = make_rig();
    start_awaiting(g, 1);
    request_values_come(&g->ctx->requests, g->all[0]);
    request_values_come(&g->ctx->requests, g->all[2]);
    usleep(1000);
    assert_false(atomic_load(&g->is_over));
    request_values_come(&g->ctx->requests, g->all[1]);
    pthread_join(g->thread, NULL);
    assert_true(g->has_come);
    request_end(g->step, PEN_OK, NULL);
    request_notify(&g->ctx->requests);
    assert_int_equal(request_wait(&g->ctx->requests, &g->req, NULL), PEN_OK);
    drop_rig(g);
}

static void test_a_wait_for_values_ends_with_the_step_that_failed(void **state)
{
    (void)state;
    rig *g              = make_rig();
    const pen_error why = {PEN_PEER_LOST, .rank = -1, .step = -1, .text = "server 1 is gone"};
    start_awaiting(g, 1);
    request_end(g->step, PEN_PEER_LOST, &why);
    request_notify(&g->ctx->requests);
    pthread_join(g->thread, NULL);
    assert_false(g->has_come);
    assert_int_equal(request_wait(&g->ctx->requests, &g->req, NULL), PEN_PEER_LOST);
    drop_rig(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wait_for_one_tensor_ends_when_its_values_have_come),
        cmocka_unit_test(test_a_wait_for_values_ends_with_the_step_that_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
