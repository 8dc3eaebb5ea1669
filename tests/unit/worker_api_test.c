/* worker_api_test.c - the public functions, in a program alone: sentences, requests, errors, nothing left behind. */
#include "tests/unit/worker_api_rig.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- sentences ------------------------------------------------------------------------------- */
static void test_api_settings_errors_are_sentences(void **state)
{
    (void)state;
    pen_ctx *ctx = NULL;
    expect(pen_init(SETTINGS("lease_s=3"), &ctx), PEN_BAD_SETTING,
           "unknown setting 'lease_s'; did you mean 'lease_ms'?");
    expect(pen_init(SETTINGS("servers=0", "mode=ps-bsp"), &ctx), PEN_BAD_SETTING,
           "mode=ps-bsp needs servers, and there are none: start the job with --servers 1, or use "
           "mode=allreduce");
    expect(pen_init(SETTINGS("commit=eager", "clip=0.1"), &ctx), PEN_BAD_SETTING,
           "commit=eager and clip=0.1 contradict each other: clipping needs all gradients before "
           "any update");
    expect(pen_init(SETTINGS("on_worker_loss=wait", "servers=0"), &ctx), PEN_UNSUPPORTED,
           "on_worker_loss=wait needs servers, which hold what the worker comes back to: start the "
           "job with --servers 1, or use continue");
    setenv("PENSTOCK_LEASE_S", "3", 1);
    expect(pen_init(NULL, &ctx), PEN_BAD_SETTING,
           "unknown setting 'lease_s'; did you mean 'lease_ms'?  (from PENSTOCK_LEASE_S)");
    unsetenv("PENSTOCK_LEASE_S");
    assert_null(ctx);
}

static void test_api_environment_beats_the_program(void **state)
{
    (void)state;
    setenv("PENSTOCK_STEPS", "3", 1);
    trained t = train(SETTINGS("optim=sgd lr=1", "steps=100"), 2, 0);
    unsetenv("PENSTOCK_STEPS");
    pen_step step;
    int steps = 0;
    while (pen_step_begin(t.ctx, &step) == PEN_OK) {
        pen_ready(t.ctx, t.w, PEN_ALL);
        ok(pen_step_end(t.ctx, &step));
        steps++;
    }
    assert_int_equal(steps, 3);
    finish(&t);
}

static void test_api_garbage_in_reserved_words_is_found(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_ctx *other;
    pen_step step;
    pen_opts opts = {.reserved = {[5] = 1}};
    float a[2];
    expect(pen_barrier(pen_world(t.ctx), &opts, NULL), PEN_INVALID_ARGUMENT,
           "pen_opts has garbage in reserved[5]; initialise it with {0}");
    ok(pen_step_begin(t.ctx, &step));
    pen_ready(t.ctx, t.w, PEN_ALL);
    step.reserved[11] = 9;
    expect(pen_step_end(t.ctx, &step), PEN_INVALID_ARGUMENT,
           "pen_step has garbage in reserved[11]; initialise it with {0}");
    step.reserved[11] = 0;
    ok(pen_step_end(t.ctx, &step));
    finish(&t);
    ok(pen_init(NULL, &other));
    pen_tensor_desc d = {
        .name = "w", .ndim = 1, .shape = {2}, .param = a, .grad = a, .reserved = {[2] = 7}};
    expect(pen_register(other, &d, NULL), PEN_INVALID_ARGUMENT,
           "pen_tensor_desc has garbage in reserved[2]; initialise it with {0}");
    ok(pen_finalize(other));
}

static void test_api_explicit_verbs_point_at_the_step_where_it_is_decided(void **state)
{
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        pen_ctx *ctx;
        pen_tensor *w;
        float a[2] = {0};
        ok(pen_init(clip ? SETTINGS("optim=sgd lr=1", "clip=1") : SETTINGS("optim=sgd lr=1"),
                    &ctx));
        ok(pen_register(ctx,
                        &(pen_tensor_desc){
                            .name = "fc1.weight", .ndim = 1, .shape = {2}, .param = a, .grad = a},
                        &w));
        ok(pen_commit(ctx));
        expect(pen_push_pull(ctx, w, PEN_ALL, NULL, NULL, NULL, NULL), PEN_WRONG_STATE,
               clip ? "pen_push_pull('fc1.weight'): clipping needs all gradients before any "
                      "update; use pen_ready() and pen_step_end()"
                    : "pen_push_pull('fc1.weight'): commit=decide applies or skips whole steps; "
                      "use pen_ready() and pen_step_end(), or commit=eager");
        ok(pen_finalize(ctx));
    }
}

static void test_api_a_rule_without_a_rate_is_found_at_commit(void **state)
{
    (void)state;
    pen_ctx *ctx;
    float a[2] = {0};
    ok(pen_init(NULL, &ctx));
    ok(pen_register(ctx,
                    &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {2}, .param = a, .grad = a},
                    NULL));
    expect(pen_commit(ctx), PEN_BAD_SETTING, "sgd needs a rate: say optim=\"sgd lr=0.1\"");
    ok(pen_finalize(ctx));
}

static void test_api_what_comes_later_says_so(void **state)
{
    (void)state;
    pen_ctx *ctx;
    ok(pen_init(NULL, &ctx));
    ok(pen_serve(NULL, NULL, 0)); /* not a server */
    expect(pen_serve(NULL, NULL, 2), PEN_INVALID_ARGUMENT,
           "pen_serve: n is 2, but handlers is NULL");
    assert_null(pen_view(ctx, NULL, 0, PEN_PARAM));
    char note[256], want[512];
    if (device_beside_host(note, sizeof note) ==
        NULL) { /* build, driver or device: it says which */
        assert_true(note[0] != '\0');
        snprintf(want, sizeof want, "pen_alloc: no CUDA device: %s", note);
        assert_null(pen_alloc(ctx, 8, PEN_CUDA));
        assert_string_equal(pen_last_error(NULL), want);
    }
    ok(pen_finalize(ctx));
}

/* ---- requests -------------------------------------------------------------------------------- */
static void test_api_explicit_verbs_end_as_requests(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1", "mode=ps-async"), 2, 0);
    pen_req reqs[3];
    pen_result result;
    size_t index;
    float copy[2] = {9, 9};
    t.grad[0]     = 1;
    ok(pen_push(t.ctx, t.w, PEN_ALL, NULL, NULL, &reqs[0]));
    ok(pen_push_pull(t.ctx, t.w, PEN_ALL, NULL, NULL, NULL, &reqs[1]));
    ok(pen_pull(t.ctx, t.w, PEN_ALL, copy, NULL, &reqs[2]));
    ok(pen_wait(&reqs[1], &result));
    assert_int_equal(result.version, 2);
    assert_null(reqs[1].ctx);
    ok(pen_wait(&reqs[1], NULL)); /* {0} is not a request */
    ok(pen_wait_any(reqs, 3, -1, &index, &result));
    assert_int_equal(index, 0);
    ok(pen_wait_any(reqs, 3, 0, &index, &result));
    assert_int_equal(index, 2);
    assert_int_equal(pen_wait_any(reqs, 3, 0, &index, &result), PEN_END);
    assert_true(copy[0] == -2 && t.param[0] == -2);
    finish(&t);
}

static void test_api_a_request_is_waited_for_once(void **state)
{
    (void)state;
    pen_ctx *ctx;
    pen_req req, copy;
    ok(pen_init(NULL, &ctx));
    ok(pen_barrier(pen_world(ctx), NULL, &req));
    copy = req;
    ok(pen_wait(&req, NULL));
    expect(pen_wait(&copy, NULL), PEN_INVALID_ARGUMENT,
           "pen_wait: the request was already waited for");
    ok(pen_finalize(ctx));
}

typedef struct {
    pen_ctx *ctx;
    int calls;
    pen_status waiting, begun;
    char text[256];
} callback;

static void on_done(const pen_result *result, void *user)
{
    callback *c = user;
    assert_int_equal(result->status, PEN_OK);
    if (c->calls++ > 0) return;
    c->waiting = pen_barrier(pen_world(c->ctx), NULL, NULL);
    snprintf(c->text, sizeof c->text, "%s", pen_last_error(NULL));
    pen_req req;
    c->begun = pen_barrier(pen_world(c->ctx), &(pen_opts){.done = on_done, .user = c}, &req);
}

static void test_api_waiting_in_a_callback_is_refused_and_beginning_is_not(void **state)
{
    (void)state;
    callback c = {0};
    pen_req req;
    ok(pen_init(NULL, &c.ctx));
    ok(pen_barrier(pen_world(c.ctx), &(pen_opts){.done = on_done, .user = &c}, &req));
    assert_null(req.ctx);
    assert_int_equal(c.calls, 2);
    assert_int_equal(c.waiting, PEN_WRONG_STATE);
    assert_string_equal(c.text,
                        "pen_barrier: called from a callback, where waiting would wait for itself");
    assert_int_equal(c.begun, PEN_OK);
    ok(pen_finalize(c.ctx));
}

static void test_api_all_reduce_alone_returns_its_input(void **state)
{
    (void)state;
    pen_ctx *ctx;
    double in[3] = {1, 2, 3}, out[3] = {0};
    ok(pen_init(NULL, &ctx));
    assert_int_equal(pen_rank(pen_world(ctx)), 0);
    assert_int_equal(pen_size(pen_world(ctx)), 1);
    ok(pen_all_reduce(pen_world(ctx), in, out, 3, PEN_F64, PEN_SUM,
                      &(pen_opts){.flags = PEN_SCALED, .scale = 0.5}, NULL));
    assert_true(out[0] == 0.5 && out[2] == 1.5 && in[0] == 1);
    ok(pen_finalize(ctx));
}

static void test_api_a_flag_that_this_version_does_not_know_is_refused(void **state)
{
    (void)state;
    pen_ctx *ctx;
    float x[2] = {1, 2};
    ok(pen_init(NULL, &ctx));
    ok(pen_all_reduce(pen_world(ctx), x, x, 2, PEN_F32, PEN_SUM,
                      &(pen_opts){.flags = PEN_OVERWRITE}, NULL));
    assert_int_equal(pen_all_reduce(pen_world(ctx), x, x, 2, PEN_F32, PEN_SUM,
                                    &(pen_opts){.flags = PEN_OVERWRITE << 1}, NULL),
                     PEN_INVALID_ARGUMENT);
    assert_string_equal(pen_last_error(NULL), "pen_opts: unknown flags 0x8");
    ok(pen_finalize(ctx));
}

/* ---- errors of this thread, forks, abort ----------------------------------------------------- */
static void *look(void *user)
{
    snprintf(user, 64, "%s", pen_last_error(NULL));
    return NULL;
}

static void test_api_last_error_belongs_to_its_thread(void **state)
{
    (void)state;
    pthread_t thread;
    char other[64] = "?";
    assert_int_equal(pen_info_get(NULL, NULL), PEN_INVALID_ARGUMENT);
    assert_int_equal(pthread_create(&thread, NULL, look, other), 0);
    pthread_join(thread, NULL);
    assert_string_equal(other, "");
    assert_string_equal(pen_last_error(NULL), "pen_info_get: ctx is NULL");
}

static void test_api_forked_child_owns_nothing(void **state)
{
    (void)state;
    trained t        = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_group *group = pen_world(t.ctx);
    pid_t pid        = fork();
    if (pid == 0) {
        pen_step step;
        int good = pen_step_begin(t.ctx, &step) == PEN_WRONG_STATE &&
                   pen_barrier(group, NULL, NULL) == PEN_WRONG_STATE &&
                   pen_finalize(t.ctx) == PEN_OK;
        _exit(good ? 0 : 1);
    }
    int code;
    waitpid(pid, &code, 0);
    assert_int_equal(code, 0);
    finish(&t);
}

static void test_api_abort_ends_the_loop(void **state)
{
    (void)state;
    trained t = train(SETTINGS("optim=sgd lr=1"), 2, 0);
    pen_step step;
    pen_abort(t.ctx, "the disk is on fire");
    expect(pen_step_begin(t.ctx, &step), PEN_ABORTED, "pen_abort: the disk is on fire");
    ok(pen_finalize(t.ctx));
    pen_free(t.param);
    pen_free(t.grad);
}

/* ---- nothing is left behind ------------------------------------------------------------------ */
static int count(const char *folder)
{
    DIR *dir = opendir(folder);
    int n    = 0;
    while (readdir(dir) != NULL) n++;
    closedir(dir);
    return n;
}

static void test_api_finalize_leaves_no_thread_and_no_descriptor(void **state)
{
    (void)state;
    int fds = count("/proc/self/fd"), threads = count("/proc/self/task");
    for (int i = 0; i < 3; i++) {
        trained t = train(SETTINGS("optim=adamw lr=0.1"), 10000, 0);
        finish(&t);
    }
    assert_int_equal(count("/proc/self/fd"), fds);
    assert_int_equal(count("/proc/self/task"), threads);
    ok(pen_finalize(NULL));
}

/* A job whose scheduler cannot be reached: everything that was started is undone. */
static void test_api_init_that_fails_leaves_nothing(void **state)
{
    (void)state;
    pen_ctx *ctx                 = NULL;
    const char *const settings[] = {
        "rank=1",        "world_size=2",        "servers=1", "master_addr=127.0.0.1",
        "master_port=9", "init_timeout_ms=300", NULL};
    assert_int_equal(pen_init(settings, &ctx),
                     PEN_UNREACHABLE); /* also starts what the process keeps: ZeroMQ's context */
    int fds = count("/proc/self/fd"), threads = count("/proc/self/task");
    expect(pen_init(settings, &ctx), PEN_UNREACHABLE,
           "nothing answers as a Penstock scheduler at 127.0.0.1:9 (connection refused: nothing "
           "listens there)");
    assert_null(ctx);
    assert_int_equal(count("/proc/self/fd"), fds);
    assert_int_equal(count("/proc/self/task"), threads);
}

static void test_api_memory_is_aligned_zeroed_and_outlives_its_context(void **state)
{
    (void)state;
    pen_ctx *ctx;
    ok(pen_init(NULL, &ctx));
    unsigned char *data = pen_alloc(ctx, 1000, PEN_HOST);
    assert_non_null(data);
    assert_int_equal((uintptr_t)data % 64, 0);
    for (int i = 0; i < 1000; i++) assert_int_equal(data[i], 0);
    ok(pen_finalize(ctx));
    data[999] = 1;
    pen_free(data);
    pen_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_api_settings_errors_are_sentences, set_up),
        cmocka_unit_test_setup(test_api_environment_beats_the_program, set_up),
        cmocka_unit_test_setup(test_api_garbage_in_reserved_words_is_found, set_up),
        cmocka_unit_test_setup(test_api_explicit_verbs_point_at_the_step_where_it_is_decided,
                               set_up),
        cmocka_unit_test_setup(test_api_a_rule_without_a_rate_is_found_at_commit, set_up),
        cmocka_unit_test_setup(test_api_what_comes_later_says_so, set_up),
        cmocka_unit_test_setup(test_api_explicit_verbs_end_as_requests, set_up),
        cmocka_unit_test_setup(test_api_a_request_is_waited_for_once, set_up),
        cmocka_unit_test_setup(test_api_waiting_in_a_callback_is_refused_and_beginning_is_not,
                               set_up),
        cmocka_unit_test_setup(test_api_all_reduce_alone_returns_its_input, set_up),
        cmocka_unit_test_setup(test_api_a_flag_that_this_version_does_not_know_is_refused, set_up),
        cmocka_unit_test_setup(test_api_last_error_belongs_to_its_thread, set_up),
        cmocka_unit_test_setup(test_api_forked_child_owns_nothing, set_up),
        cmocka_unit_test_setup(test_api_abort_ends_the_loop, set_up),
        cmocka_unit_test_setup(test_api_finalize_leaves_no_thread_and_no_descriptor, set_up),
        cmocka_unit_test_setup(test_api_init_that_fails_leaves_nothing, set_up),
        cmocka_unit_test_setup(test_api_memory_is_aligned_zeroed_and_outlives_its_context, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
