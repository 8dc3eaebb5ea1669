/* worker_train_test.c - whole jobs in one process: scheduler, servers and workers as threads, with
 * the public functions on one side and real sockets between. */
#include "penstock.h"
#include "scheduler/shell/scheduler.h"
#include "worker/worker_settings.h"
#include "tests/support/server_thread.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    RANKS_MAX   = 2,
    SERVERS_MAX = 3,
    SPECS_MAX   = 4,
    TENSORS_MAX = 400,
    STEPS       = 5,
    LARGE       = 2700000
};

/* ---- what is trained ------------------------------------------------------------------------- */
typedef struct {
    const char *name, *optim, *sync, *wire;
    pen_dtype dtype, grad_dtype;
    int64_t n;
} tensor_spec;

typedef struct job job;
typedef struct {
    job *job;
    int rank;
    bool failed;
    char said[700]; /* the sentence of what failed */
    pen_error error;
    int64_t started_at, snapshot;
    pen_step step; /* the last one */
    uint32_t digest;
    void *param[TENSORS_MAX];
    pthread_t thread;
} member;

struct job {
    tensor_spec tensor[SPECS_MAX];
    int copies;         /* of these, one after the other; 0 is 1 */
    int ranks, servers; /* ranks 0: alone */
    int64_t nan_step, nan_tensor, snapshot_step;
    const char *store, *setting;
    const char *mode;  /* NULL: as the number of servers says */
    int accum;         /* micro-batches per step; 0 is 1 */
    int idle;          /* 1 + the rank that has weight 0, and NaN everywhere; 0: none */
    bool skips_unused; /* rank 1 makes no gradient of tensor 0 ready */
    pen_status (*instead)(pen_ctx *ctx, member *m); /* of training */
    member member[RANKS_MAX];
    atomic_bool gave_up;
    scheduler *scheduler;
    server_thread server[SERVERS_MAX];
};

static int count_tensors(const job *j)
{
    int specs = 0;
    while (specs < SPECS_MAX && j->tensor[specs].name != NULL) specs++;
    return specs * (j->copies > 0 ? j->copies : 1);
}

static const tensor_spec *spec_of(const job *j, int t)
{
    return &j->tensor[j->copies > 0 ? t % (count_tensors(j) / j->copies) : t];
}

/* Not representable in 16 bits, and different on each rank, step and element. */
static float gradient(int rank, int64_t step, int64_t i)
{
    return (float)(1 + rank) / 3 + (float)step / 7 + (float)(i % 1013) / 1024;
}

static uint16_t half_of(float x) /* bf16, rounded to nearest even */
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float whole_of(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float rounded(float x)
{
    return whole_of(half_of(x));
}

/* ---- a worker -------------------------------------------------------------------------------- */
static pen_status note(member *m, pen_status status)
{
    if (status == PEN_OK || m->failed) return status;
    m->failed = true;
    snprintf(m->said, sizeof m->said, "%s", pen_last_error(&m->error));
    return status;
}

static size_t size_of(pen_dtype t)
{
    return t == PEN_F32 || t == PEN_DTYPE_DEFAULT ? 4 : 2;
}

static void *make_values(pen_dtype t, int64_t n)
{
    void *all = calloc((size_t)n, size_of(t));
    for (int64_t i = 0; i < n && t == PEN_BF16; i++) ((uint16_t *)all)[i] = half_of(1);
    return all;
}

static void fill_gradient(void *to, pen_dtype t, int64_t n, const member *m, int64_t step)
{
    for (int64_t i = 0; i < n; i++) {
        float g = gradient(m->rank, step, i);
        if (size_of(t) == 4)
            ((float *)to)[i] = g;
        else /* any pattern of f16 will do, as long as it is small */
            ((uint16_t *)to)[i] = t == PEN_BF16 ? half_of(g) : (uint16_t)(0x3000 + i % 1013 + step);
    }
}

static void train_micro(pen_ctx *ctx, member *m, pen_tensor **handle, void **grad, int micro)
{
    const job *j  = m->job;
    int64_t index = m->step.index + 10 * micro;
    for (int t = 0; t < count_tensors(j); t++) {
        const tensor_spec *spec = spec_of(j, t);
        pen_dtype as = spec->grad_dtype != PEN_DTYPE_DEFAULT ? spec->grad_dtype : spec->dtype;
        fill_gradient(grad[t], as, spec->n, m, index);
        if (t == j->nan_tensor && index == j->nan_step && m->rank == 0) *(float *)grad[t] = NAN;
        if (m->rank + 1 == j->idle) memset(grad[t], 0xff, (size_t)spec->n * size_of(as));
        if (j->skips_unused && t == 0 && m->rank == 1) continue;
        pen_ready(ctx, handle[t], PEN_ALL);
    }
}

static pen_status train_step(pen_ctx *ctx, member *m, pen_tensor **handle, void **grad)
{
    if (m->rank + 1 == m->job->idle) m->step.weight = 0;
    for (int micro = 0; micro < m->step.accum; micro++) {
        pen_step_micro(ctx, micro);
        train_micro(ctx, m, handle, grad, micro);
    }
    return note(m, pen_step_end(ctx, &m->step));
}

static void train(pen_ctx *ctx, member *m)
{
    const job *j = m->job;
    pen_tensor *handle[TENSORS_MAX];
    void *grad[TENSORS_MAX] = {NULL};
    pen_info info;
    pen_req saving = {0};
    pen_result result;
    for (int t = 0; t < count_tensors(j); t++) {
        const tensor_spec *s = spec_of(j, t);
        pen_params *group    = NULL;
        char name[64];
        m->param[t] = make_values(s->dtype, s->n);
        grad[t]     = calloc((size_t)s->n, 4);
        snprintf(name, sizeof name, "%s.%d", s->name, t);
        pen_params_new(ctx,
                       &(pen_params_desc){
                           .name = s->name, .optim = s->optim, .sync = s->sync, .wire = s->wire},
                       &group);
        pen_register(ctx,
                     &(pen_tensor_desc){.name       = name,
                                        .dtype      = s->dtype,
                                        .grad_dtype = s->grad_dtype,
                                        .ndim       = 1,
                                        .flags      = j->skips_unused ? PEN_ZERO_IF_UNUSED : 0,
                                        .shape      = {s->n},
                                        .param      = m->param[t],
                                        .grad       = grad[t],
                                        .params     = group},
                     &handle[t]);
    }
    if (note(m, pen_commit(ctx)) == PEN_OK) {
        note(m, pen_info_get(ctx, &info));
        m->started_at = info.step;
        while (!m->failed && pen_step_begin(ctx, &m->step) == PEN_OK) {
            if (m->rank == 0 && m->step.index == j->snapshot_step) {
                note(m, pen_snapshot(ctx, NULL, &saving));
                usleep(200000); /* so that the wish is back from the scheduler before the step */
            }
            train_step(ctx, m, handle, grad);
        }
        if (!m->failed && note(m, pen_wait(&saving, &result)) == PEN_OK) m->snapshot = result.step;
        if (!m->failed) note(m, pen_digest(ctx, &m->digest));
    }
    for (int t = 0; t < TENSORS_MAX; t++) free(grad[t]);
}

static void *work(void *user)
{
    member *m = user;
    job *j    = m->job;
    char own[8][64];
    const char *settings[14] = {"steps=5"};
    int n                    = 1;
    if (j->setting != NULL) settings[n++] = j->setting;
    snprintf(own[6], sizeof own[6], "mode=%s", j->mode != NULL ? j->mode : "auto");
    snprintf(own[7], sizeof own[7], "accum=%d", j->accum > 0 ? j->accum : 1);
    settings[n++] = own[6];
    settings[n++] = own[7];
    settings[n++] = "accum_reduce=last"; /* so that modes add in the same order */
    if (j->ranks > 0) {
        const char *port = strrchr(scheduler_address(j->scheduler), ':') + 1;
        snprintf(own[0], sizeof own[0], "rank=%d", m->rank);
        snprintf(own[1], sizeof own[1], "world_size=%d", j->ranks);
        snprintf(own[2], sizeof own[2], "servers=%d", j->servers);
        snprintf(own[3], sizeof own[3], "master_port=%s", port);
        snprintf(own[4], sizeof own[4], "deadline_ms=20000");
        snprintf(own[5], sizeof own[5], "master_addr=127.0.0.1");
        for (int i = 0; i < 6; i++) settings[n++] = own[i];
        settings[n++] = "scheduler=external";
    }
    pen_ctx *ctx = NULL;
    if (note(m, pen_init(settings, &ctx)) != PEN_OK) return NULL;
    if (j->instead != NULL)
        note(m, j->instead(ctx, m));
    else
        train(ctx, m);
    note(m, pen_finalize(ctx));
    return NULL;
}

/* ---- a job ----------------------------------------------------------------------------------- */
static void start_others(job *j)
{
    pen_error why;
    scheduler_settings s;
    config_defaults(scheduler_settings_rows, &s);
    if (scheduler_start(&s, &j->scheduler, &why) != PEN_OK) fail_msg("%s", why.text);
    for (int i = 0; i < j->servers; i++) {
        server_settings o;
        config_defaults(server_settings_rows, &o);
        snprintf(o.master_addr, sizeof o.master_addr, "%s", scheduler_address(j->scheduler));
        snprintf(o.store, sizeof o.store, "%s", j->store != NULL ? j->store : "");
        if (server_thread_start(&o, &j->server[i], &why) != PEN_OK) fail_msg("%s", why.text);
    }
}

static job *run(const job *plan)
{
    job *j = malloc(sizeof *j);
    memcpy(j, plan, sizeof *j);
    int ranks = j->ranks > 0 ? j->ranks : 1;
    if (j->ranks > 0) start_others(j);
    for (int r = 0; r < ranks; r++) {
        j->member[r] = (member){.job = j, .rank = r, .snapshot = -1};
        assert_int_equal(pthread_create(&j->member[r].thread, NULL, work, &j->member[r]), 0);
    }
    for (int r = 0; r < ranks; r++) pthread_join(j->member[r].thread, NULL);
    for (int i = 0; i < j->servers && j->ranks > 0; i++)
        (void)server_thread_join(&j->server[i], NULL);
    if (j->ranks > 0) (void)scheduler_join(j->scheduler, NULL);
    return j;
}

static job *run_well(const job *plan)
{
    job *j = run(plan);
    for (int r = 0; r < RANKS_MAX; r++)
        if (j->member[r].failed) fail_msg("rank %d: %s", r, j->member[r].said);
    return j;
}

static void forget(job *j)
{
    for (int r = 0; r < RANKS_MAX; r++)
        for (int t = 0; t < TENSORS_MAX; t++) free(j->member[r].param[t]);
    free(j);
}

static float value(const job *j, int rank, int tensor, int64_t i)
{
    return ((const float *)j->member[rank].param[tensor])[i];
}

static uint32_t digest_of(job plan, int ranks)
{
    plan.ranks      = ranks;
    job *j          = run_well(&plan);
    uint32_t digest = j->member[0].digest;
    for (int r = 1; r < ranks; r++) assert_int_equal(j->member[r].digest, digest);
    forget(j);
    return digest;
}

static void same_alone_as_with_servers(const job *plan)
{
    assert_int_equal(digest_of(*plan, 0), digest_of(*plan, 1));
    (void)digest_of(*plan, 2);
}

static int set_up(void **state)
{
    (void)state;
    pen_log_set(NULL, NULL, -1);
    return 0;
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

/* The norm is that of the groups that average, and only they are skipped. */
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

static void test_train_groups_of_one_model_may_all_be_free(void **state)
{
    (void)state;
    const job plan = {.tensor        = {{"a", "sgd lr=1", "async", "raw", PEN_F32, PEN_F32, 50},
                                        {"s", "sgd lr=1", "ssp s=0", "raw", PEN_F32, PEN_F32, 9000}},
                      .servers       = 2,
                      .nan_step      = -1,
                      .snapshot_step = -1};
    same_alone_as_with_servers(&plan);
}

static void test_train_words_that_are_no_rule_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *sync, *wire, *sentence;
    } bad[] = {
        {"bsq", NULL, "there is no consistency rule 'bsq'; known are bsp, \"ssp s=N\" and async"},
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
    plan.nan_step      = 0; /* so that updates and steps are not the same number */
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
    /* Pushes of the free group come in any order, which may round differently: its rate is 0. */
    snapshot_and_resume(
        (job){.tensor  = {{"b", "sgd lr=1 momentum=0.5", "bsp", "raw", PEN_F32, PEN_F32, 100},
                          {"a", "sgd lr=0", "async", "raw", PEN_F32, PEN_F32, 200}},
              .servers = 2});
}

/* ---- without servers, and with sums of nodes ------------------------------------------------- */
static uint32_t digest_of_mode(job plan, const char *mode, int servers)
{
    plan.mode    = mode;
    plan.servers = servers;
    return digest_of(plan, 2);
}

/* All words of the setting that are no modes of servers, nor what they choose by themselves, and each once. */
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

static void test_train_a_rank_of_weight_0_adds_nothing_whatever_its_bytes(void **state)
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

static void test_train_a_mode_says_which_rules_it_lacks(void **state)
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
    const pen_status early = pen_step_end(ctx, &m->step); /* 3 micro-batches are to come */
    const pen_status far   = pen_step_micro(ctx, 3);
    const pen_status first = pen_step_end(ctx, &m->step); /* tells of it */
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

/* ---- who is missing -------------------------------------------------------------------------- */
static pen_status meet_alone(pen_ctx *ctx, member *m)
{
    pen_group *all      = pen_group_get(ctx, PEN_GROUP_WORLD);
    const pen_opts soon = {.deadline_ms = m->rank == 0 ? 1200 : 5000, .label = "epoch end"};
    while (m->rank == 1 && !atomic_load(&m->job->gave_up)) usleep(1000);
    pen_status status = note(m, pen_barrier(all, &soon, NULL));
    atomic_store(&m->job->gave_up, true);
    return status;
}

static void test_train_a_barrier_that_timed_out_lists_who_did_not_come(void **state)
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
        cmocka_unit_test(test_train_groups_of_one_model_may_all_be_free),
        cmocka_unit_test(test_train_words_that_are_no_rule_are_refused),
        cmocka_unit_test(test_train_snapshot_of_a_model_smaller_than_the_job),
        cmocka_unit_test(test_train_snapshot_of_groups_of_different_consistency),
        cmocka_unit_test(test_train_a_barrier_that_timed_out_lists_who_did_not_come),
        cmocka_unit_test(test_train_every_mode_gives_the_same_bits),
        cmocka_unit_test(test_train_every_mode_gives_the_same_bits_with_micro_batches),
        cmocka_unit_test(test_train_a_rank_of_weight_0_adds_nothing_whatever_its_bytes),
        cmocka_unit_test(test_train_every_mode_skips_the_same_step),
        cmocka_unit_test(test_train_unused_gradients_count_as_zeros_in_every_mode),
        cmocka_unit_test(test_train_gradients_of_16_bits_are_summed_in_float32_without_servers),
        cmocka_unit_test(test_train_a_mode_says_which_rules_it_lacks),
        cmocka_unit_test(test_train_explicit_pushes_need_servers),
        cmocka_unit_test(test_train_micro_batches_out_of_order_are_refused),
        cmocka_unit_test(test_train_micro_batches_put_no_more_bytes_on_the_wire),
        cmocka_unit_test(test_train_a_rank_may_have_no_chunk_to_push_for_its_node),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
