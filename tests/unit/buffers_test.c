/* buffers_test.c - PEN_BUFFER in a program that runs alone: types, refusals, files and snapshots. */
#include "tests/unit/worker_api_rig.h"

#include <unistd.h>

enum { N = 4 };

typedef struct {
    pen_ctx *ctx;
    pen_tensor *w, *counted;
    float weight[N], grad[N];
    double mean[2];
    int64_t batches;
} program;

/* A weight, and buffers of three types, one of them in memory of the SDK. */
static void open_program(program *p, const char *const settings[])
{
    *p = (program){.mean = {1, 2}};
    ok(pen_init(settings, &p->ctx));
    ok(pen_register(p->ctx,
                    &(pen_tensor_desc){
                        .name = "w", .ndim = 1, .shape = {N}, .param = p->weight, .grad = p->grad},
                    &p->w));
    ok(pen_register(p->ctx,
                    &(pen_tensor_desc){.name  = "bn.running_mean",
                                       .dtype = PEN_F64,
                                       .ndim  = 1,
                                       .shape = {2},
                                       .flags = PEN_BUFFER,
                                       .param = p->mean},
                    NULL));
    ok(pen_register(p->ctx,
                    &(pen_tensor_desc){.name  = "bn.num_batches_tracked",
                                       .dtype = PEN_I64,
                                       .flags = PEN_BUFFER,
                                       .param = &p->batches},
                    NULL));
    ok(pen_register(p->ctx,
                    &(pen_tensor_desc){.name  = "seen.{}",
                                       .dtype = PEN_U8,
                                       .ndim  = 2,
                                       .shape = {2, 3},
                                       .flags = PEN_BUFFER | PEN_STACKED},
                    &p->counted));
}

static void train_steps(program *p, int steps)
{
    pen_step step;
    for (int s = 0; s < steps; s++) {
        ok(pen_step_begin(p->ctx, &step));
        p->mean[0] += 0.5;
        p->batches++;
        ((uint8_t *)pen_view(p->ctx, p->counted, 1, PEN_PARAM))[2]++;
        for (int i = 0; i < N; i++) p->grad[i] = 1;
        ok(pen_ready(p->ctx, p->w, PEN_ALL));
        ok(pen_step_end(p->ctx, &step));
    }
}

static void buffers_of_any_type_are_the_programs_and_no_part_of_training(void **state)
{
    (void)state;
    program p;
    pen_step step;
    open_program(&p, SETTINGS("optim=sgd lr=1", "clip=100"));
    ok(pen_commit(p.ctx));
    train_steps(&p, 3);
    assert_true(p.mean[0] == 2.5 && p.mean[1] == 2 && p.batches == 3);
    assert_int_equal(((uint8_t *)pen_view(p.ctx, p.counted, 1, PEN_PARAM))[2], 3);
    assert_true(p.weight[0] == -3);
    assert_null(pen_view(p.ctx, p.counted, 0, PEN_GRAD));
    ok(pen_step_begin(p.ctx, &step));
    assert_int_equal(pen_ready(p.ctx, p.counted, 0), PEN_INVALID_ARGUMENT);
    assert_int_equal(pen_bind(p.ctx, p.counted, p.mean, NULL), PEN_INVALID_ARGUMENT);
    ok(pen_finalize(p.ctx));
}

static void a_file_has_buffers_in_their_own_type_and_gives_them_back(void **state)
{
    (void)state;
    char path[] = "/tmp/pen-buffers-XXXXXX";
    program p, q;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    open_program(&p, SETTINGS("optim=sgd lr=1"));
    ok(pen_commit(p.ctx));
    p.mean[1] = 0.1; /* not a float32 */
    p.batches = (INT64_C(1) << 60) + 1;
    train_steps(&p, 2);
    ok(pen_export(p.ctx, path, "safetensors dtype=bf16", NULL));
    open_program(&q, SETTINGS("optim=sgd lr=1"));
    ok(pen_import(q.ctx, path, NULL));
    ok(pen_commit(q.ctx));
    assert_memory_equal(q.mean, p.mean, sizeof p.mean);
    assert_true(q.batches == (INT64_C(1) << 60) + 3);
    assert_int_equal(((uint8_t *)pen_view(q.ctx, q.counted, 1, PEN_PARAM))[2], 2);
    ok(pen_finalize(q.ctx));
    ok(pen_finalize(p.ctx));
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &q.ctx));
    float other[2];
    ok(pen_register(
        q.ctx, &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {N}, .param = q.weight}, NULL));
    ok(pen_register(q.ctx,
                    &(pen_tensor_desc){.name  = "bn.running_mean",
                                       .ndim  = 1,
                                       .shape = {2},
                                       .flags = PEN_BUFFER,
                                       .param = other},
                    NULL));
    assert_int_equal(pen_import(q.ctx, path, NULL), PEN_MISMATCH);
    ok(pen_finalize(q.ctx));
    close(fd);
    unlink(path);
}

static void a_snapshot_has_the_buffers(void **state)
{
    (void)state;
    char folder[] = "/tmp/pen-buffers-XXXXXX", store[64], remove[80];
    program p;
    assert_non_null(mkdtemp(folder));
    snprintf(store, sizeof store, "store=%s", folder);
    open_program(&p, SETTINGS("optim=sgd lr=1", store, "snapshot_every=2"));
    ok(pen_commit(p.ctx));
    train_steps(&p, 3);
    ok(pen_restore(p.ctx, -1, NULL));
    assert_true(p.mean[0] == 2 && p.batches == 2 && p.weight[0] == -2);
    ok(pen_finalize(p.ctx));
    open_program(&p, SETTINGS("optim=sgd lr=1", store, "resume=yes"));
    ok(pen_commit(p.ctx));
    assert_true(p.mean[0] == 2 && p.batches == 2 && p.weight[0] == -2);
    assert_int_equal(((uint8_t *)pen_view(p.ctx, p.counted, 1, PEN_PARAM))[2], 2);
    ok(pen_finalize(p.ctx));
    snprintf(remove, sizeof remove, "rm -r '%s'", folder);
    assert_int_equal(system(remove), 0);
}

static void what_a_buffer_cannot_have_is_refused(void **state)
{
    (void)state;
    static float own[N];
    static char large[70000];
    pen_ctx *ctx;
    pen_tensor *w;
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    ok(pen_register(ctx, &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {N}, .param = own},
                    &w));
    const struct {
        pen_tensor_desc d;
        const char *sentence;
    } bad[] = {
        {{.grad = own}, "'b' is a PEN_BUFFER: it is not trained; set grad to NULL"},
        {{.init = "zero"}, "'b' is a PEN_BUFFER: it starts with rank 0's values; set init to NULL"},
        {{.tied_to = w}, "'b' is a PEN_BUFFER: it has values of its own; set tied_to to NULL"},
        {{.flags = PEN_FROZEN}, "'b' is a PEN_BUFFER: it changes; leave out PEN_FROZEN"},
        {{.dtype = (pen_dtype)77}, "'b': invalid dtype 77"},
        {{.shape = {-1}}, "'b': invalid shape; it has no elements, or too many"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        pen_tensor_desc d = bad[i].d;
        d.name            = "b";
        d.ndim            = 1;
        d.flags |= PEN_BUFFER;
        if (d.shape[0] == 0) d.shape[0] = N;
        assert_int_equal(pen_register(ctx, &d, NULL), PEN_INVALID_ARGUMENT);
        assert_string_equal(pen_last_error(NULL), bad[i].sentence);
    }
    ok(pen_finalize(ctx));
    ok(pen_init(SETTINGS("optim=sgd lr=1"), &ctx));
    ok(pen_register(ctx, &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {N}, .param = own},
                    &w));
    const pen_tensor_desc too_large = {.name  = "b",
                                       .dtype = PEN_U8,
                                       .ndim  = 1,
                                       .shape = {sizeof large},
                                       .flags = PEN_BUFFER,
                                       .param = large};
    ok(pen_register(ctx, &too_large, NULL));
    assert_int_equal(pen_commit(ctx), PEN_INVALID_ARGUMENT);
    assert_non_null(strstr(pen_last_error(NULL), "the buffer 'b': "));
    ok(pen_finalize(ctx));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_of_any_type_are_the_programs_and_no_part_of_training),
        cmocka_unit_test(a_file_has_buffers_in_their_own_type_and_gives_them_back),
        cmocka_unit_test(a_snapshot_has_the_buffers),
        cmocka_unit_test(what_a_buffer_cannot_have_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
