/* api_state_test.c - what outlives a job that runs alone: snapshots, states, files; and their error sentences. */
#include "penstock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SETTINGS(...) ((const char *const[]){__VA_ARGS__, NULL})

enum { N = 3000 };

static char dir[200], store[256], file[256];

static int setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    pen_log_set(NULL, NULL, -1);
    unsetenv("RANK");
    snprintf(dir, sizeof dir, "%s/state-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(store, sizeof store, "store=%s/store", dir);
    snprintf(file, sizeof file, "%s/file.safetensors", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static void ok(pen_status status)
{
    if (status != PEN_OK) fail_msg("%s", pen_last_error(NULL));
}

/* `said` may be only the beginning of the sentence, because paths differ. */
static void expect(pen_status status, pen_status wanted, const char *said)
{
    const char *sentence = pen_last_error(NULL);
    assert_int_equal(status, wanted);
    if (strstr(sentence, said) == NULL) fail_msg("'%s' is not in '%s'", said, sentence);
}

typedef struct {
    pen_ctx *ctx;
    float w[N], grad[N];
    uint16_t half[N]; /* bf16 */
    uint64_t counter;
} job;

static void begin(job *j, const char *const *settings)
{
    memset(j, 0, sizeof *j);
    for (int i = 0; i < N; i++) j->w[i] = (float)(i % 50) / 4;
    for (int i = 0; i < N; i++) j->half[i] = 0x3f80;
    ok(pen_init(settings, &j->ctx));
    ok(pen_register(
        j->ctx,
        &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {N}, .param = j->w, .grad = j->grad},
        NULL));
    ok(pen_register(j->ctx,
                    &(pen_tensor_desc){.name       = "half",
                                       .dtype      = PEN_BF16,
                                       .grad_dtype = PEN_F32,
                                       .ndim       = 2,
                                       .shape      = {N / 10, 10},
                                       .param      = j->half,
                                       .grad       = j->grad},
                    NULL));
    ok(pen_state_add(j->ctx, "counter", &j->counter, sizeof j->counter, 0));
}

static void step(job *j)
{
    pen_step s;
    ok(pen_step_begin(j->ctx, &s));
    j->counter += 5;
    for (int i = 0; i < N; i++)
        j->grad[i] = (float)((i * 7 + (int)j->counter + (int)s.index) % 31) / 31;
    ok(pen_step_end(j->ctx, (pen_ready(j->ctx, NULL, PEN_ALL), &s)));
}

static uint32_t end(job *j)
{
    uint32_t crc;
    ok(pen_digest(j->ctx, &crc));
    ok(pen_finalize(j->ctx));
    return crc;
}

#define OPTIM "optim=adamw lr=0.01"

static void test_state_alone_resumes_from_any_snapshot_bit_for_bit(void **state)
{
    (void)state;
    job j;
    pen_info info;
    pen_req saving;
    pen_result result;
    begin(&j, SETTINGS(OPTIM));
    ok(pen_commit(j.ctx));
    for (int i = 0; i < 6; i++) step(&j);
    const uint32_t whole = end(&j);

    begin(&j, SETTINGS(OPTIM, store));
    ok(pen_commit(j.ctx));
    for (int i = 0; i < 3; i++) step(&j);
    ok(pen_snapshot(j.ctx, NULL, &saving)); /* alone: at once */
    ok(pen_wait(&saving, &result));
    assert_int_equal(result.step, 3);
    end(&j);

    begin(&j, SETTINGS(OPTIM, store, "resume=yes"));
    ok(pen_commit(j.ctx));
    ok(pen_info_get(j.ctx, &info));
    assert_int_equal(info.step, 3);
    assert_int_equal(j.counter, 15);
    for (int i = 0; i < 3; i++) step(&j);
    assert_int_equal(end(&j), whole);
}

static void test_slots_are_read_and_set_and_train_the_same_again(void **state)
{
    (void)state;
    job j;
    pen_step s;
    int64_t applied = 0;
    static float param[N], average[N], half[N];
    begin(&j, SETTINGS(OPTIM));
    pen_tensor *tensor[3] = {NULL};
    float scalar = 0, frozen = 3, grad = 1, no_grad = 0;
    pen_register(j.ctx, &(pen_tensor_desc){.name = "s", .param = &scalar, .grad = &grad},
                 &tensor[0]);
    pen_register(j.ctx, &(pen_tensor_desc){.name = "f", .flags = PEN_FROZEN, .param = &frozen},
                 &tensor[1]);
    pen_register(j.ctx, &(pen_tensor_desc){.name = "t", .tied_to = tensor[0], .grad = &no_grad},
                 &tensor[2]);
    pen_slot slot = {.tensor = tensor[0], .slot = "exp_avg", .data = average};
    expect(pen_slots_get(j.ctx, &slot, 1, &applied, NULL), PEN_WRONG_STATE, "pen_commit");
    ok(pen_commit(j.ctx));
    for (int i = 0; i < 3; i++) step(&j);
    ok(pen_slots_get(j.ctx, &slot, 1, &applied, NULL));
    assert_int_equal(applied, 3);
    assert_true(average[0] > 0.27f && average[0] < 0.28f); /* 1 - 0.9^3, of gradients of 1 */
    const pen_slot both[] = {slot, {.tensor = tensor[2], .slot = "param", .data = param}};
    ok(pen_slots_get(j.ctx, both, 2, NULL, NULL)); /* a tied name means the same values */
    const float was = scalar;
    assert_true(param[0] == was);
    for (int i = 0; i < 2; i++) step(&j);
    const float then = scalar;
    half[0]          = average[0];
    ok(pen_slots_set(j.ctx,
                     (const pen_slot[]){{.tensor = tensor[0], .slot = "param", .data = param},
                                        {.tensor = tensor[0], .slot = "exp_avg", .data = half}},
                     2, 3, NULL));
    assert_true(scalar == was);
    ok(pen_slots_get(j.ctx, NULL, 0, &applied, NULL));
    assert_int_equal(applied, 3);
    for (int i = 0; i < 2; i++) step(&j);
    assert_true(scalar != then); /* exp_avg_sq was not set back */

    expect(pen_slots_get(j.ctx, &(pen_slot){.tensor = tensor[0], .slot = "sum", .data = param}, 1,
                         NULL, NULL),
           PEN_NOT_FOUND,
           "the rule adamw of 's' has no slot 'sum'; known: param, exp_avg, exp_avg_sq");
    expect(pen_slots_get(j.ctx, &(pen_slot){.tensor = tensor[1], .slot = "param", .data = param}, 1,
                         NULL, NULL),
           PEN_INVALID_ARGUMENT, "'f' is not trained");
    expect(pen_slots_set(j.ctx, &(pen_slot){.tensor = tensor[0], .slot = "param"}, 1, 3, NULL),
           PEN_INVALID_ARGUMENT, "data of 's' is NULL on rank 0");
    expect(pen_slots_set(j.ctx, both, 1, -1, NULL), PEN_INVALID_ARGUMENT, "applied is below 0");
    expect(pen_slots_get(j.ctx, &(pen_slot){.slot = "param"}, 1, NULL, NULL), PEN_INVALID_ARGUMENT,
           "NULL");
    expect(pen_slots_get(j.ctx, &(pen_slot){.tensor = tensor[0], .slot = "param", .reserved = {1}},
                         1, NULL, NULL),
           PEN_INVALID_ARGUMENT, "reserved");
    ok(pen_step_begin(j.ctx, &s));
    expect(pen_slots_get(j.ctx, &slot, 1, NULL, NULL), PEN_WRONG_STATE, "step 7 is in progress");
    pen_ready(j.ctx, NULL, PEN_ALL);
    ok(pen_step_end(j.ctx, &s));
    end(&j);
}

static void test_state_is_restored_between_steps_and_trains_the_same_again(void **state)
{
    (void)state;
    job j;
    pen_step s;
    uint32_t first, again;
    begin(&j, SETTINGS(OPTIM, store, "snapshot_every=2", "snapshot_keep=9"));
    ok(pen_commit(j.ctx));
    expect(pen_restore(j.ctx, -1, NULL), PEN_NOT_FOUND, "has no complete snapshot");
    for (int i = 0; i < 7; i++) step(&j);
    ok(pen_digest(j.ctx, &first));
    expect(pen_restore(j.ctx, 3, NULL), PEN_NOT_FOUND, "no complete snapshot of step 3");
    expect(pen_restore(j.ctx, -2, NULL), PEN_INVALID_ARGUMENT, "use -1 for the newest");
    ok(pen_restore(j.ctx, 2, NULL));
    assert_int_equal(j.counter, 10);
    ok(pen_step_begin(j.ctx, &s));
    assert_int_equal(s.index, 2);
    assert_true(s.flags & PEN_STEP_REWOUND);
    expect(pen_restore(j.ctx, -1, NULL), PEN_WRONG_STATE, "step 2 is in progress");
    for (int i = 0; i < 5; i++) step(&j); /* begins step 6 again */
    ok(pen_digest(j.ctx, &again));
    assert_int_equal(again, first);
    ok(pen_restore(j.ctx, -1, NULL)); /* of step 6, which was written again */
    assert_int_equal(j.counter, 30);
    step(&j);
    assert_int_equal(end(&j), first);
}

static void test_state_keeps_as_many_snapshots_as_asked(void **state)
{
    (void)state;
    job j;
    char command[600];
    begin(&j, SETTINGS(OPTIM, store, "snapshot_every=2", "snapshot_keep=3"));
    ok(pen_commit(j.ctx));
    for (int i = 0; i < 11; i++) step(&j);
    end(&j);
    snprintf(command, sizeof command, "[ \"$(ls %s/store/part-0 | grep -c mdb)\" = 3 ]", dir);
    assert_int_equal(system(command), 0);
}

static void test_state_a_disk_that_fails_costs_the_snapshot_and_not_the_training(void **state)
{
    (void)state;
    job j;
    double failed;
    pen_req saving;
    char path[600];
    begin(&j, SETTINGS(OPTIM));
    ok(pen_commit(j.ctx));
    for (int i = 0; i < 4; i++) step(&j);
    const uint32_t whole = end(&j);

    snprintf(path, sizeof path, "%s/store", dir);
    begin(&j, SETTINGS(OPTIM, store, "snapshot_every=1"));
    ok(pen_commit(j.ctx));
    step(&j);
    snprintf(path, sizeof path, "rm -rf %s/store && touch %s/store", dir, dir);
    assert_int_equal(system(path), 0);
    for (int i = 0; i < 2; i++) step(&j);
    ok(pen_stat(j.ctx, "snapshots.failed", &failed));
    assert_true(failed == 2);
    ok(pen_snapshot(j.ctx, NULL, &saving));
    expect(pen_wait(&saving, NULL), PEN_STORE, "/store");
    step(&j);
    assert_int_equal(end(&j), whole);
}

static void test_state_files_are_by_name_and_of_the_asked_type(void **state)
{
    (void)state;
    job j, k;
    struct stat found;
    begin(&j, SETTINGS(OPTIM));
    ok(pen_commit(j.ctx));
    step(&j);
    expect(pen_export(j.ctx, file, "onnx", NULL), PEN_BAD_SETTING,
           "there is no format 'onnx'; known is \"safetensors\"");
    expect(pen_export(j.ctx, file, "safetensors dtype=f64", NULL), PEN_BAD_SETTING, "f64");
    expect(pen_export(j.ctx, "", NULL, NULL), PEN_INVALID_ARGUMENT, "path is empty");
    expect(pen_export(j.ctx, "/nowhere/at/all", NULL, NULL), PEN_STORE,
           "cannot write /nowhere/at/all");
    expect(pen_import(j.ctx, file, NULL), PEN_WRONG_STATE,
           "import between pen_register and pen_commit");
    ok(pen_export(j.ctx, file, NULL, NULL));
    assert_int_equal(stat(file, &found), 0);
    begin(&k, SETTINGS(OPTIM));
    ok(pen_import(k.ctx, file, NULL));
    assert_memory_equal(k.w, j.w, sizeof j.w);
    assert_memory_equal(k.half, j.half, sizeof j.half);
    ok(pen_finalize(k.ctx));

    const off_t as_is = found.st_size;
    ok(pen_export(j.ctx, file, "safetensors dtype=bf16", NULL));
    assert_int_equal(stat(file, &found), 0);
    assert_in_range(as_is - found.st_size, 2 * N - 16, 2 * N + 16);
    begin(&k, SETTINGS(OPTIM));
    ok(pen_import(k.ctx, file, NULL));
    assert_memory_equal(k.half, j.half, sizeof j.half);
    for (int i = 0; i < N; i++) /* 8 bits of mantissa, rounded to nearest */
        assert_true(k.w[i] >= j.w[i] - (j.w[i] < 0 ? -j.w[i] : j.w[i]) / 256 &&
                    k.w[i] <= j.w[i] + (j.w[i] < 0 ? -j.w[i] : j.w[i]) / 256);
    ok(pen_finalize(k.ctx));
    ok(pen_finalize(j.ctx));
}

static void test_state_an_import_that_does_not_fit_is_named_and_changes_nothing(void **state)
{
    (void)state;
    static float w[N], more[10];
    job j;
    pen_ctx *ctx;
    begin(&j, SETTINGS(OPTIM));
    ok(pen_commit(j.ctx));
    ok(pen_export(j.ctx, file, NULL, NULL));
    ok(pen_finalize(j.ctx));

    ok(pen_init(SETTINGS(OPTIM), &ctx));
    expect(pen_import(ctx, file, NULL), PEN_WRONG_STATE, "no tensor is registered");
    ok(pen_register(ctx, &(pen_tensor_desc){.name = "w", .ndim = 1, .shape = {N}, .param = w},
                    NULL));
    ok(pen_import(ctx, file, NULL)); /* 'half' is skipped */
    memset(w, 0, sizeof w);
    ok(pen_register(
        ctx, &(pen_tensor_desc){.name = "more", .ndim = 1, .shape = {10}, .param = more}, NULL));
    expect(pen_import(ctx, file, NULL), PEN_NOT_FOUND,
           "lacks 1 of 2 tensors: 'more'; it has 1 that the program does not register: 'half'; "
           "nothing was imported");
    assert_true(w[5] == 0);
    expect(pen_import(ctx, "/nowhere/at/all", NULL), PEN_NOT_FOUND, "cannot read /nowhere/at/all");
    ok(pen_finalize(ctx));

    ok(pen_init(SETTINGS(OPTIM), &ctx));
    ok(pen_register(
        ctx, &(pen_tensor_desc){.name = "w", .ndim = 2, .shape = {N / 2, 2}, .param = w}, NULL));
    expect(pen_import(ctx, file, NULL), PEN_MISMATCH,
           "3000 elements in 1 dimensions there, 3000 in 2 here; nothing was imported");
    ok(pen_finalize(ctx));
}

static void test_state_impossible_calls_are_refused_with_a_sentence(void **state)
{
    (void)state;
    job j;
    pen_ctx *ctx;
    pen_req saving;
    char byte = 0;
    expect(pen_init(SETTINGS("snapshot_every=3"), &ctx), PEN_BAD_SETTING,
           "snapshot_every=3 needs a store");
    begin(&j, SETTINGS(OPTIM));
    expect(pen_state_add(j.ctx, "counter", &byte, 1, 0), PEN_INVALID_ARGUMENT,
           "the state 'counter' was already added");
    expect(pen_state_add(j.ctx, "penstock.x", &byte, 1, 0), PEN_INVALID_ARGUMENT, "are reserved");
    expect(pen_state_add(j.ctx, NULL, &byte, 1, 0), PEN_INVALID_ARGUMENT, "invalid state name");
    ok(pen_commit(j.ctx));
    ok(pen_snapshot(j.ctx, NULL, &saving));
    expect(pen_wait(&saving, NULL), PEN_STORE, "missing store for the snapshot");
    ok(pen_finalize(j.ctx));
    begin(&j, SETTINGS(OPTIM, "resume=yes"));
    expect(pen_commit(j.ctx), PEN_BAD_SETTING, "--resume needs a store");
    (void)pen_finalize(j.ctx);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_slots_are_read_and_set_and_train_the_same_again),
        TEST(test_state_alone_resumes_from_any_snapshot_bit_for_bit),
        TEST(test_state_is_restored_between_steps_and_trains_the_same_again),
        TEST(test_state_keeps_as_many_snapshots_as_asked),
        TEST(test_state_a_disk_that_fails_costs_the_snapshot_and_not_the_training),
        TEST(test_state_files_are_by_name_and_of_the_asked_type),
        TEST(test_state_an_import_that_does_not_fit_is_named_and_changes_nothing),
        TEST(test_state_impossible_calls_are_refused_with_a_sentence),
    };
    return cmocka_run_group_tests_name("api_state", tests, NULL, NULL);
}
