/* worker_train_test.c - whole jobs in one process: 16 bits on the wire, groups of different consistency, snapshots. */
#include "tests/unit/worker_train_rig.h"

/* ---- a job ----------------------------------------------------------------------------------- */
static void same_alone_as_with_servers(const job *plan)
{
    assert_int_equal(digest_of(*plan, 0), digest_of(*plan, 1));
    (void)digest_of(*plan, 2);
}

/* ---- fewer bits on the wire ------------------------------------------------------------------ */
static void test_train_wire_of_16_bits_rounds_each_gradient_once(void **state)
{
    (void)state;
    const job plan = {.tensor        = {{"w", "sgd lr=1", "bsp", "bf16", PEN_F32, PEN_F32, 9000}},
                      .ranks         = 2,
                      .servers       = 2,
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

static void test_train_wire_of_16_bits_is_the_same_alone_and_with_servers(void **state)
{
    (void)state;
    const job plan = {.tensor   = {{"small", "adamw lr=0.01", "bsp", "f16", PEN_F32, PEN_F32, 900},
                                   {"large", "sgd lr=0.1", "bsp", "bf16", PEN_F32, PEN_F32, LARGE},
                                   {"raw", "sgd lr=0.1", "bsp", "raw", PEN_F32, PEN_F32, 700},
                                   {"async", "sgd lr=0.1", "async", "bf16", PEN_F32, PEN_F32, 9000}},
                      .servers  = 2,
                      .nan_step = -1,
                      .snapshot_step = -1};
    assert_int_equal(digest_of(plan, 0), digest_of(plan, 1));
}

static void test_train_wire_is_a_setting_too(void **state)
{
    (void)state;
    job plan        = {.tensor        = {{"w", "sgd lr=0.1", "bsp", NULL, PEN_F32, PEN_F32, 9000}},
                       .servers       = 1,
                       .nan_step      = -1,
                       .snapshot_step = -1};
    plan.setting    = "wire=raw";
    uint32_t raw    = digest_of(plan, 1);
    plan.setting    = "wire=bf16";
    uint32_t halved = digest_of(plan, 1);
    assert_int_not_equal(raw, halved);
    assert_int_equal(digest_of(plan, 0), halved);
    same_alone_as_with_servers(&plan);
}

static void test_train_tensors_of_16_bits_are_the_same_alone_and_with_servers(void **state)
{
    (void)state;
    const job plan = {.tensor   = {{"bf", "adamw lr=0.01", "bsp", "raw", PEN_BF16, PEN_BF16, 9000},
                                   {"half", "sgd lr=0.1", "bsp", "raw", PEN_F16, PEN_F16, 5000},
                                   {"both", "sgd lr=0.001", "bsp", "f16", PEN_BF16, PEN_F32, 5000},
                                   {"asis", "sgd lr=0.1", "bsp", "bf16", PEN_F32, PEN_F16, 5000}},
                      .servers  = 2,
                      .nan_step = -1,
                      .snapshot_step = -1};
    same_alone_as_with_servers(&plan);
}

/* Updates that are lost in bf16 one by one add up in the servers' float32. */
static void test_train_tensors_of_16_bits_have_a_master_of_32(void **state)
{
    (void)state;
    const job plan = {.tensor   = {{"w", "sgd lr=0.001", "bsp", "raw", PEN_BF16, PEN_F32, 1013}},
                      .ranks    = 2,
                      .servers  = 1,
                      .nan_step = -1,
                      .snapshot_step = -1};
    job *j         = run_well(&plan);
    for (int64_t i = 0; i < 1013; i += 7) {
        double want = 1;
        for (int64_t s = 0; s < STEPS; s++)
            want -= 0.001 * (double)(gradient(0, s, i) + gradient(1, s, i)) / 2;
        uint16_t got = ((const uint16_t *)j->member[1].param[0])[i];
        assert_true(fabs((double)whole_of(got) - want) <=
                    1.0 / 512); /* half a unit of bf16 below 1 */
    }
    forget(j);
}

/* ---- groups of different consistency --------------------------------------------------------- */
static job mixed(const char *other)
{
    return (job){.tensor        = {{"other", "sgd lr=0.5", other, "raw", PEN_F32, PEN_F32, 9000},
                                   {"bsp", "sgd lr=1 momentum=0.5", "bsp", "raw", PEN_F32, PEN_F32, 9000},
                                   {"bsp too", "adamw lr=0.01", NULL, "raw", PEN_F32, PEN_F32, 50},
                                   {"alone", "sgd lr=0.5", other, "raw", PEN_F32, PEN_F32, 20000}},
                 .servers       = 2,
                 .nan_step      = -1,
                 .nan_tensor    = 1,
                 .snapshot_step = -1};
}

static void one_step_drives_both(const char *other)
{
    job plan   = mixed(other);
    plan.ranks = 2;
    job *j     = run_well(&plan);
    for (int64_t i = 0; i < 9000; i += 97) {
        float want = 0, momentum = 0;
        double free = 0;
        for (int64_t s = 0; s < STEPS; s++) {
            float mean = (gradient(0, s, i) + gradient(1, s, i)) * 0.5f;
            momentum   = momentum * 0.5f + mean;
            want -= momentum;
            free -= 0.5 * (double)(gradient(0, s, i) + gradient(1, s, i));
        }
        assert_float_equal(value(j, 0, 0, i), free, 1e-4); /* each push by itself, in any order */
        assert_float_equal(value(j, 0, 1, i), want, 1e-5);
        for (int t = 0; t < 2; t++) assert_true(value(j, 0, t, i) == value(j, 1, t, i));
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(j->member[r].step.outcome, PEN_APPLIED);
        assert_int_equal(j->member[r].step.applied, STEPS);
        assert_true(j->member[r].step.grad_norm > 0);
    }
    forget(j);
}

static void test_train_one_step_drives_bsp_and_async_groups(void **state)
{
    (void)state;
    one_step_drives_both("async");
}

static void test_train_one_step_drives_bsp_and_ssp_groups(void **state)
{
    (void)state;
    one_step_drives_both("ssp s=1");
}

static void test_train_mixed_groups_are_the_same_alone_and_with_one_worker(void **state)
{
    (void)state;
    job plan = mixed("async");
    assert_int_equal(digest_of(plan, 0), digest_of(plan, 1));
    plan.setting = "commit=eager";
    assert_int_equal(digest_of(plan, 0), digest_of(plan, 1));
}

/* The norm covers the groups that average, and only they are skipped. */
static void test_train_a_skipped_step_skips_bsp_groups_only(void **state)
{
    (void)state;
    job plan      = mixed("async");
    plan.nan_step = STEPS - 1;
    for (plan.ranks = 0; plan.ranks <= 2; plan.ranks++) {
        job *j      = run_well(&plan);
        double free = 0, want = 0, momentum = 0;
        int ranks = plan.ranks > 0 ? plan.ranks : 1;
        for (int64_t s = 0; s < STEPS; s++) {
            double sum = 0;
            for (int r = 0; r < ranks; r++) sum += (double)gradient(r, s, 5);
            free -= 0.5 * sum;
            momentum = momentum * 0.5 + sum / ranks;
            if (s < STEPS - 1) want -= momentum;
        }
        for (int r = 0; r < ranks; r++) {
            assert_int_equal(j->member[r].step.outcome, PEN_SKIPPED_NONFINITE);
            assert_int_equal(j->member[r].step.applied, STEPS - 1);
            assert_float_equal(value(j, r, 0, 5), free, 1e-4);
            assert_float_equal(value(j, r, 1, 5), want, 1e-5);
        }
        forget(j);
    }
}

/* More chunks than partitions: one partition then has chunks of both kinds. */
static void test_train_groups_of_different_consistency_share_partitions(void **state)
{
    (void)state;
    job plan    = {.tensor   = {{"b", "sgd lr=1 momentum=0.5", "bsp", "bf16", PEN_F32, PEN_F32, 40},
                                {"a", "sgd lr=0.5", "async", "raw", PEN_F32, PEN_F32, 30},
                                {"c", "adamw lr=0.01", "bsp", "raw", PEN_F32, PEN_F32, 20}},
                   .copies   = 120,
                   .servers  = 2,
                   .nan_step = 3,
                   .snapshot_step = -1};
    plan.ranks  = 2;
    job *j      = run_well(&plan);
    double free = 0;
    for (int64_t s = 0; s < STEPS; s++)
        free -= 0.5 * (double)(gradient(0, s, 7) + gradient(1, s, 7));
    for (int t = 1; t < 360; t += 3) assert_float_equal(value(j, 1, t, 7), free, 1e-4);
    for (int t = 3; t < 360; t += 3) assert_true(value(j, 1, t, 7) == value(j, 0, 0, 7));
    assert_int_equal(j->member[1].step.applied, STEPS - 1);
    forget(j);
    assert_int_equal(digest_of(plan, 0), digest_of(plan, 1));
    plan.setting = "commit=eager";
    assert_int_equal(digest_of(plan, 0), digest_of(plan, 1));
}

static void test_train_all_groups_of_a_model_may_be_async(void **state)
{
    (void)state;
    const job plan = {.tensor        = {{"a", "sgd lr=1", "async", "raw", PEN_F32, PEN_F32, 50},
                                        {"s", "sgd lr=1", "ssp s=0", "raw", PEN_F32, PEN_F32, 9000}},
                      .servers       = 2,
                      .nan_step      = -1,
                      .snapshot_step = -1};
    same_alone_as_with_servers(&plan);
}

static void test_train_unknown_rules_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *sync, *wire, *sentence;
    } bad[] = {{"bsq", NULL, "unknown consistency rule 'bsq'; expected bsp, \"ssp s=N\" or async"},
               {"ssp t=1", NULL, "unknown setting 't'; did you mean 's'?"},
               {NULL, "bf8", "group 'w': unknown wire 'bf8'; expected raw, bf16 or f16"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const job plan = {
            .tensor        = {{"w", "sgd lr=1", bad[i].sync, bad[i].wire, PEN_F32, PEN_F32, 5}},
            .nan_step      = -1,
            .snapshot_step = -1};
        job *j = run(&plan);
        assert_true(j->member[0].failed);
        assert_int_equal(j->member[0].error.status, PEN_BAD_SETTING);
        assert_string_equal(j->member[0].said, bad[i].sentence);
        forget(j);
    }
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static void snapshot_and_resume(job plan)
{
    char store[] = "/tmp/penstock-train-test-XXXXXX", command[128];
    assert_non_null(mkdtemp(store));
    plan.store         = store;
    plan.ranks         = 2;
    plan.snapshot_step = 2;
    plan.nan_step      = 0; /* so that updates and steps have different numbers */
    job *whole         = run_well(&plan);
    assert_int_equal(whole->member[0].snapshot, 3);

    plan.setting       = "resume=yes";
    plan.snapshot_step = -1;
    job *rest          = run_well(&plan);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(rest->member[r].started_at, 3);
        assert_int_equal(rest->member[r].step.applied, whole->member[r].step.applied);
        assert_int_equal(rest->member[r].digest, whole->member[r].digest);
    }
    forget(whole);
    forget(rest);
    snprintf(command, sizeof command, "rm -r %s", store);
    assert_int_equal(system(command), 0);
}

static void test_train_snapshot_of_a_model_smaller_than_the_job(void **state)
{
    (void)state;
    snapshot_and_resume(
        (job){.tensor  = {{"w", "sgd lr=1 momentum=0.5", "bsp", "raw", PEN_F32, PEN_F32, 100}},
              .servers = 3});
}

static void test_train_snapshot_of_groups_of_different_consistency(void **state)
{
    (void)state;
    /* Pushes of the async group come in any order, which may round differently: its rate is 0. */
    snapshot_and_resume(
        (job){.tensor  = {{"b", "sgd lr=1 momentum=0.5", "bsp", "raw", PEN_F32, PEN_F32, 100},
                          {"a", "sgd lr=0", "async", "raw", PEN_F32, PEN_F32, 200}},
              .servers = 2});
}

/* ---- missing ranks --------------------------------------------------------------------------- */
static pen_status meet_alone(pen_ctx *ctx, member *m)
{
    pen_group *all      = pen_group_get(ctx, PEN_GROUP_WORLD);
    const pen_opts soon = {.deadline_ms = m->rank == 0 ? 1200 : 5000, .label = "epoch end"};
    while (m->rank == 1 && !atomic_load(&m->job->gave_up)) usleep(1000);
    pen_status status = note(m, pen_barrier(all, &soon, NULL));
    atomic_store(&m->job->gave_up, true);
    return status;
}

static void test_train_a_barrier_timeout_lists_the_missing_ranks(void **state)
{
    (void)state;
    const job plan     = {.ranks = 2, .servers = 1, .instead = meet_alone};
    job *j             = run(&plan);
    const pen_error *e = &j->member[0].error;
    assert_true(j->member[0].failed);
    assert_int_equal(e->status, PEN_TIMED_OUT);
    assert_int_equal(e->missing_n, 1);
    assert_int_equal(e->missing[0], 1);
    assert_int_equal(e->rank, 1);
    if (strstr(e->text, "barrier 'epoch end' (call 1)") == NULL ||
        strstr(e->text, "s for rank 1") == NULL || strstr(e->text, "t is alive") == NULL)
        fail_msg("%s", e->text);
    forget(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_wire_of_16_bits_rounds_each_gradient_once),
        cmocka_unit_test(test_train_wire_of_16_bits_is_the_same_alone_and_with_servers),
        cmocka_unit_test(test_train_wire_is_a_setting_too),
        cmocka_unit_test(test_train_tensors_of_16_bits_are_the_same_alone_and_with_servers),
        cmocka_unit_test(test_train_tensors_of_16_bits_have_a_master_of_32),
        cmocka_unit_test(test_train_one_step_drives_bsp_and_async_groups),
        cmocka_unit_test(test_train_one_step_drives_bsp_and_ssp_groups),
        cmocka_unit_test(test_train_mixed_groups_are_the_same_alone_and_with_one_worker),
        cmocka_unit_test(test_train_a_skipped_step_skips_bsp_groups_only),
        cmocka_unit_test(test_train_groups_of_different_consistency_share_partitions),
        cmocka_unit_test(test_train_all_groups_of_a_model_may_be_async),
        cmocka_unit_test(test_train_unknown_rules_are_refused),
        cmocka_unit_test(test_train_snapshot_of_a_model_smaller_than_the_job),
        cmocka_unit_test(test_train_snapshot_of_groups_of_different_consistency),
        cmocka_unit_test(test_train_a_barrier_timeout_lists_the_missing_ranks),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
