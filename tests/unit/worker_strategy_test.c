/* worker_strategy_test.c - every strategy trains to the same bits; micro-batches. */
#include "tests/unit/worker_train_rig.h"

#include "worker/worker_settings.h"

/* ---- without servers, and with node sums ----------------------------------------------------- */
static uint32_t digest_of_mode(job plan, const char *mode, int servers)
{
    plan.mode    = mode;
    plan.servers = servers;
    return digest_of(plan, 2);
}

/* All words of the setting that are neither modes with servers nor automatic, each once. */
static const char *const *modes_without_servers(void)
{
    static const char *found[MODE_COUNT + 1];
    int n = 0;
    for (int mode = MODE_ALLREDUCE; mode < MODE_COUNT; mode++) found[n++] = worker_mode_name(mode);
    found[n] = NULL;
    return found;
}

static void same_in_every_mode(job plan)
{
    plan.snapshot_step      = -1;
    const uint32_t expected = digest_of_mode(plan, "ps-bsp", 2);
    assert_int_equal(digest_of_mode(plan, "ps-hier", 2), expected);
    for (const char *const *mode = modes_without_servers(); *mode != NULL; mode++)
        if (digest_of_mode(plan, *mode, 0) != expected)
            fail_msg("mode=%s gives other bits than ps-bsp", *mode);
}

static void test_train_every_mode_gives_the_same_bits(void **state)
{
    (void)state;
    same_in_every_mode((job){
        .tensor   = {{"small", "adamw lr=0.01", "bsp", "raw", PEN_F32, PEN_F32, 900},
                     {"large", "sgd lr=0.1 momentum=0.9", "bsp", "raw", PEN_F32, PEN_F32, LARGE},
                     {"lamb", "lamb lr=0.01", "bsp", "raw", PEN_F32, PEN_F32, 30000}},
        .nan_step = -1,
        .setting  = "clip=0.5"});
}

static void test_train_every_mode_gives_the_same_bits_with_micro_batches(void **state)
{
    (void)state;
    same_in_every_mode(
        (job){.tensor   = {{"a", "adamw lr=0.01", "bsp", "raw", PEN_F32, PEN_F32, 9001},
                           {"b", "sgd lr=0.1", "bsp", "raw", PEN_F32, PEN_F32, 77}},
              .copies   = 6,
              .accum    = 4,
              .nan_step = -1,
              .setting  = "clip=0.5"});
}

static void test_train_a_rank_of_weight_0_adds_nothing_for_any_bytes(void **state)
{
    (void)state;
    for (int idle = 1; idle <= 2; idle++)
        same_in_every_mode(
            (job){.tensor   = {{"a", "adamw lr=0.01", "bsp", "raw", PEN_F32, PEN_F32, 9001},
                               {"b", "adamw lr=0.01", "bsp", "raw", PEN_BF16, PEN_BF16, 5000}},
                  .idle     = idle,
                  .nan_step = -1});
}

static void test_train_a_rank_may_have_no_chunk_to_push_for_its_node(void **state)
{
    (void)state;
    same_in_every_mode(
        (job){.tensor = {{"w", "sgd lr=0.1", "bsp", "raw", PEN_F32, PEN_F32, 5}}, .nan_step = -1});
}

static void test_train_every_mode_skips_the_same_step(void **state)
{
    (void)state;
    same_in_every_mode(
        (job){.tensor   = {{"a", "adamw lr=0.01", "bsp", "raw", PEN_F32, PEN_F32, 9001},
                           {"b", "sgd lr=0.1", "bsp", "raw", PEN_F32, PEN_F32, 77}},
              .nan_step = 2});
}

static void test_train_unused_gradients_count_as_zeros_in_every_mode(void **state)
{
    (void)state;
    same_in_every_mode(
        (job){.tensor       = {{"a", "adamw lr=0.01", "bsp", "raw", PEN_F32, PEN_F32, 9001},
                               {"b", "sgd lr=0.1", "bsp", "raw", PEN_F32, PEN_F32, 77}},
              .skips_unused = true,
              .nan_step     = -1});
}

/* The reference: rank order, float32, each gradient rounded once on its way. */
static void test_train_gradients_of_16_bits_are_summed_in_float32_without_servers(void **state)
{
    (void)state;
    const job plan = {.tensor        = {{"w", "sgd lr=1", "bsp", "bf16", PEN_F32, PEN_F32, 9000}},
                      .ranks         = 2,
                      .mode          = "allreduce",
                      .nan_step      = -1,
                      .snapshot_step = -1};
    job *j         = run_well(&plan);
    for (int64_t i = 0; i < 9000; i += 97) {
        float want = 0;
        for (int64_t s = 0; s < STEPS; s++)
            want -= (rounded(gradient(0, s, i)) + rounded(gradient(1, s, i))) * 0.5f;
        assert_true(value(j, 0, 0, i) == want);
        assert_true(value(j, 1, 0, i) == want);
    }
    forget(j);
}

static void test_train_a_mode_names_the_rules_it_does_not_support(void **state)
{
    (void)state;
    static const struct {
        const char *mode;
        int servers;
    } modes[] = {{"allreduce", 0}, {"ps-hier", 1}};
    for (int i = 0; i < 2; i++) {
        const job plan = {.tensor   = {{"w", "sgd lr=1", "async", "raw", PEN_F32, PEN_F32, 100}},
                          .ranks    = 2,
                          .servers  = modes[i].servers,
                          .mode     = modes[i].mode,
                          .nan_step = -1,
                          .snapshot_step = -1};
        job *j         = run(&plan);
        assert_true(j->member[0].failed && j->member[1].failed);
        assert_int_equal(j->member[0].error.status, PEN_UNSUPPORTED);
        assert_non_null(strstr(j->member[0].said, "sync=async"));
        forget(j);
    }
}

/* ---- micro-batches --------------------------------------------------------------------------- */
static pen_status count_bytes(pen_ctx *ctx, member *m)
{
    static float param[2][5000], grad[2][5000];
    pen_tensor *t;
    pen_params *rule;
    double bytes = 0;
    pen_params_new(ctx, &(pen_params_desc){.name = "all", .optim = "sgd lr=1"}, &rule);
    const pen_tensor_desc desc = {.name   = "w",
                                  .ndim   = 1,
                                  .shape  = {5000},
                                  .param  = param[m->rank],
                                  .grad   = grad[m->rank],
                                  .params = rule};
    pen_register(ctx, &desc, &t);
    if (note(m, pen_commit(ctx)) != PEN_OK) return PEN_OK;
    while (!m->failed && pen_step_begin(ctx, &m->step) == PEN_OK)
        (void)train_step(ctx, m, &t, (void *[]){grad[m->rank]});
    note(m, pen_stat(ctx, "push.bytes", &bytes));
    m->snapshot = (int64_t)bytes;
    return PEN_OK;
}

static void test_train_micro_batches_put_no_more_bytes_on_the_wire(void **state)
{
    (void)state;
    for (int accum = 1; accum <= 4; accum += 3) {
        const job plan = {.tensor   = {{"w", "sgd lr=1", "bsp", "raw", PEN_F32, PEN_F32, 5000}},
                          .ranks    = 2,
                          .servers  = 1,
                          .accum    = accum,
                          .nan_step = -1,
                          .snapshot_step = -1,
                          .instead       = count_bytes};
        job *j         = run_well(&plan);
        assert_int_equal(j->member[0].snapshot, STEPS * 5000 * sizeof(float));
        forget(j);
    }
}

static pen_status mistake_micro_batches(pen_ctx *ctx, member *m)
{
    static float param[8], grad[8];
    pen_tensor *t;
    pen_params *rule;
    pen_params_new(ctx, &(pen_params_desc){.name = "all", .optim = "sgd lr=1"}, &rule);
    const pen_tensor_desc desc = {
        .name = "w", .ndim = 1, .shape = {8}, .param = param, .grad = grad, .params = rule};
    pen_register(ctx, &desc, &t);
    if (note(m, pen_commit(ctx)) != PEN_OK) return PEN_OK;
    if (note(m, pen_step_begin(ctx, &m->step)) != PEN_OK) return PEN_OK;
    pen_ready(ctx, t, PEN_ALL);
    const pen_status early = pen_step_end(ctx, &m->step); /* 3 micro-batches are missing */
    const pen_status far   = pen_step_micro(ctx, 3);
    const pen_status first = pen_step_end(ctx, &m->step); /* reports it */
    const pen_status none  = pen_step_micro(ctx, 4);
    return early == PEN_WRONG_STATE && far == PEN_WRONG_STATE && first == PEN_WRONG_STATE
               ? note(m, none)
               : PEN_OK;
}

static void test_train_micro_batches_out_of_order_are_refused(void **state)
{
    (void)state;
    const job plan = {.accum = 4, .instead = mistake_micro_batches};
    job *j         = run(&plan);
    assert_true(j->member[0].failed);
    assert_int_equal(j->member[0].error.status, PEN_INVALID_ARGUMENT);
    assert_non_null(strstr(j->member[0].said, "4 micro-batches"));
    forget(j);
}

static pen_status push_without_servers(pen_ctx *ctx, member *m)
{
    static float param[2][8], grad[2][8];
    pen_params *rule;
    pen_tensor *t;
    pen_params_new(ctx, &(pen_params_desc){.name = "all", .optim = "sgd lr=1"}, &rule);
    const pen_tensor_desc desc = {.name   = "w",
                                  .ndim   = 1,
                                  .shape  = {8},
                                  .param  = param[m->rank],
                                  .grad   = grad[m->rank],
                                  .params = rule};
    pen_register(ctx, &desc, &t);
    if (note(m, pen_commit(ctx)) != PEN_OK) return PEN_OK;
    if (note(m, pen_pull(ctx, t, PEN_ALL, NULL, NULL, NULL)) != PEN_OK) return PEN_OK;
    return note(m, pen_push(ctx, t, PEN_ALL, NULL, NULL, NULL));
}

static void test_train_explicit_pushes_need_servers(void **state)
{
    (void)state;
    const job plan = {.ranks = 2, .mode = "allreduce", .instead = push_without_servers};
    job *j         = run(&plan);
    assert_true(j->member[0].failed);
    if (strstr(j->member[0].said, "pen_ready()") == NULL) fail_msg("%s", j->member[0].said);
    forget(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_every_mode_gives_the_same_bits),
        cmocka_unit_test(test_train_every_mode_gives_the_same_bits_with_micro_batches),
        cmocka_unit_test(test_train_a_rank_of_weight_0_adds_nothing_for_any_bytes),
        cmocka_unit_test(test_train_every_mode_skips_the_same_step),
        cmocka_unit_test(test_train_unused_gradients_count_as_zeros_in_every_mode),
        cmocka_unit_test(test_train_gradients_of_16_bits_are_summed_in_float32_without_servers),
        cmocka_unit_test(test_train_a_mode_names_the_rules_it_does_not_support),
        cmocka_unit_test(test_train_explicit_pushes_need_servers),
        cmocka_unit_test(test_train_micro_batches_out_of_order_are_refused),
        cmocka_unit_test(test_train_micro_batches_put_no_more_bytes_on_the_wire),
        cmocka_unit_test(test_train_a_rank_may_have_no_chunk_to_push_for_its_node),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
