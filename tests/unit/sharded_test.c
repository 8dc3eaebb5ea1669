/* sharded_test.c - state sharded over the workers: owners, and jobs of 1 to 8 workers as threads, whose
 * values, norms, memory and bytes on the wire are compared with every other mode and with formulas. */
#include "common/base/why.h"
#include "penstock.h"
#include "proto/plan.h"
#include "scheduler/shell/scheduler.h"
#include "worker/train/sharded/sharded_ranges.h"
#include "worker/worker_settings.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- owners ---------------------------------------------------------------------------------- */
enum { CUT_TENSORS = 60, WORLD_MAX = 8 };

static uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t x = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9u;
    x          = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Every element has one owner, owners are in order, and borders are block borders. */
static void check_ranges(const sharded_range *range, uint64_t elements, int size, uint64_t *have)
{
    uint64_t at = 0;
    for (int m = 0; m < size; m++) {
        assert_int_equal(range[m].start, at);
        at += range[m].count;
        have[m] += range[m].count;
        if (at != elements) assert_int_equal(at % PLAN_BLOCK, 0);
    }
    assert_int_equal(at, elements);
}

static void check_balance(const uint64_t *have, int size, double *worst)
{
    uint64_t total = 0;
    for (int m = 0; m < size; m++) total += have[m];
    for (int m = 0; m < size; m++) {
        const double off = fabs((double)have[m] - (double)total / size) / PLAN_BLOCK;
        if (off > *worst) *worst = off;
    }
}

static void test_sharded_partition_gives_every_element_one_owner_and_equal_shares(void **state)
{
    (void)state;
    static sharded_range range[CUT_TENSORS * WORLD_MAX];
    uint64_t seed = 4711;
    double worst  = 0;
    pen_error why;
    for (int round = 0; round < 400; round++) {
        const int size        = 1 + (int)(next_random(&seed) % WORLD_MAX);
        const uint32_t n      = 1 + (uint32_t)(next_random(&seed) % CUT_TENSORS);
        const unsigned spread = (unsigned)(next_random(&seed) % 20); /* up to 2^20 elements */
        uint64_t elements[CUT_TENSORS], have[WORLD_MAX] = {0}, frozen[WORLD_MAX] = {0};
        bool trained[CUT_TENSORS];
        for (uint32_t t = 0; t < n; t++) {
            elements[t] = 1 + next_random(&seed) % ((uint64_t)1 << (1 + spread));
            trained[t]  = next_random(&seed) % 4 != 0;
        }
        assert_int_equal(sharded_ranges(n, elements, trained, size, range, &why), PEN_OK);
        for (uint32_t t = 0; t < n; t++)
            check_ranges(range + t * (uint32_t)size, elements[t], size, trained[t] ? have : frozen);
        check_balance(have, size, &worst);
        check_balance(frozen, size, &worst);
    }
    print_message("400 models: at most %.2f blocks off an equal share, of 1.5 allowed\n", worst);
    assert_true(worst <= 1.5);
}

static void test_sharded_partition_gives_every_rank_a_part_of_a_large_tensor(void **state)
{
    (void)state;
    sharded_range range[WORLD_MAX];
    const uint64_t elements = 100 * PLAN_BLOCK + 1;
    const bool trained      = true;
    pen_error why;
    assert_int_equal(sharded_ranges(1, &elements, &trained, 7, range, &why), PEN_OK);
    for (int m = 0; m < 7; m++) {
        assert_true(range[m].count >= 14 * PLAN_BLOCK);
        assert_true(range[m].count <= 15 * PLAN_BLOCK);
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */
enum { LAYERS = 4, PER_LAYER = 3, TENSORS = LAYERS * PER_LAYER + 1, STEPS = 4, SETTINGS_MAX = 32 };

typedef struct job job;
typedef struct {
    job *job;
    int rank;
    bool has_failed;
    char said[700];
    uint32_t digest;
    double norm[STEPS], clip[STEPS];
    int outcome[STEPS], bad_rank[STEPS];
    char bad_tensor[64];
    double peak, wire, param;
    float *last; /* of the first tensor of the first layer */
    pthread_t thread;
} member;

struct job {
    const char *mode;
    int ranks, accum, steps; /* steps: 0 is STEPS */
    pen_dtype dtype;
    const char *optim;
    const char *setting[6]; /* ended by NULL */
    int nodes;              /* 0 is 1 */
    bool is_exact;          /* gradients whose sums are exact in any order */
    bool is_program_owned;
    int nan_rank, nan_step; /* -1: none */
    member member[WORLD_MAX];
    scheduler *scheduler;
};

static const int64_t shapes[PER_LAYER] = {150 * 300, 70 * 500, 300};
enum { OUTER = 5000 };

static int64_t elements_of(int t)
{
    return t < LAYERS * PER_LAYER ? shapes[t % PER_LAYER] : OUTER;
}

/* Gathered like the others, never changed. */
static bool is_frozen(int t)
{
    return t == 2;
}

static int64_t elements_of_all(void)
{
    int64_t all = 0;
    for (int t = 0; t < TENSORS; t++) all += elements_of(t);
    return all;
}

static float half_to_float(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t float_to_half(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Depends on the values, so that an incomplete or stale unit would change everything after it. */
static float gradient(const job *j, int rank, int64_t step, int t, int64_t i, float value)
{
    const int64_t x = (i * 31 + t * 7 + step * 13 + rank * 5) % 1021 - 510;
    if (j->is_exact) return (float)x / 1024;
    return (float)x / 1021 / (float)(1 + step) + value / 16;
}

static void fill(const member *m, int64_t step, int t, const void *param, void *grad)
{
    const job *j = m->job;
    for (int64_t i = 0; i < elements_of(t); i++) {
        const float value = j->dtype == PEN_F32 ? ((const float *)param)[i]
                                                : half_to_float(((const uint16_t *)param)[i]);
        float g           = gradient(j, m->rank, step, t, i, value);
        if (m->rank == j->nan_rank && step == j->nan_step && t == 4 && i == 34999) g = NAN;
        if (j->dtype == PEN_F32)
            ((float *)grad)[i] = g;
        else
            ((uint16_t *)grad)[i] = isnan(g) ? 0x7fc0 : float_to_half(g);
    }
}

static bool note(member *m, pen_status status)
{
    if (status == PEN_OK || m->has_failed) return status == PEN_OK;
    m->has_failed = true;
    snprintf(m->said, sizeof m->said, "%s", pen_last_error(NULL));
    return false;
}

static void backward_of(pen_ctx *ctx, member *m, pen_tensor **tensor, int t, int64_t step)
{
    void *param = pen_view(ctx, tensor[t], PEN_ALL, PEN_PARAM);
    void *grad  = pen_view(ctx, tensor[t], PEN_ALL, PEN_GRAD);
    if (param == NULL || grad == NULL)
        note(m, PEN_INTERNAL);
    else
        fill(m, step, t, param, grad);
}

static void pass(pen_ctx *ctx, member *m, pen_tensor **tensor, int64_t step)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        pen_unit *u = pen_unit_get(ctx, "h", layer);
        if (!note(m, pen_use(ctx, u, PEN_FORWARD, NULL))) return;
        note(m, pen_release(ctx, u, PEN_FORWARD, NULL));
    }
    if (!note(m, pen_use(ctx, NULL, PEN_BACKWARD, NULL))) return;
    backward_of(ctx, m, tensor, TENSORS - 1, step);
    note(m, pen_ready(ctx, tensor[TENSORS - 1], PEN_ALL));
    for (int layer = LAYERS - 1; layer >= 0 && !m->has_failed; layer--) {
        pen_unit *u = pen_unit_get(ctx, "h", layer);
        if (!note(m, pen_use(ctx, u, PEN_BACKWARD, NULL))) return;
        for (int k = PER_LAYER - 1; k >= 0; k--)
            if (!is_frozen(layer * PER_LAYER + k))
                backward_of(ctx, m, tensor, layer * PER_LAYER + k, step);
        note(m, pen_release(ctx, u, PEN_BACKWARD, NULL));
    }
    note(m, pen_release(ctx, NULL, PEN_BACKWARD, NULL));
}

static void register_all(pen_ctx *ctx, const job *j, pen_tensor **tensor, void **own)
{
    for (int t = 0; t < TENSORS; t++) {
        char name[64], unit[16];
        snprintf(unit, sizeof unit, "h.%d", t / PER_LAYER);
        snprintf(name, sizeof name, t < LAYERS * PER_LAYER ? "h.%d.w%d" : "outer.%d.%d",
                 t / PER_LAYER, t % PER_LAYER);
        pen_tensor_desc d = {.name  = name,
                             .dtype = j->dtype,
                             .ndim  = 1,
                             .flags = is_frozen(t) ? PEN_FROZEN : 0,
                             .shape = {elements_of(t)},
                             .unit  = t < LAYERS * PER_LAYER ? unit : NULL};
        if (j->is_program_owned) {
            d.param = own[2 * t] = pen_alloc(ctx, (size_t)elements_of(t) * 4, PEN_HOST);
            d.grad = own[2 * t + 1] = pen_alloc(ctx, (size_t)elements_of(t) * 4, PEN_HOST);
        } else {
            d.init = "normal mean=0 std=0.02";
        }
        pen_register(ctx, &d, &tensor[t]);
    }
}

static void train(pen_ctx *ctx, member *m)
{
    pen_tensor *tensor[TENSORS];
    void *own[2 * TENSORS] = {NULL};
    pen_step step;
    register_all(ctx, m->job, tensor, own);
    if (note(m, pen_commit(ctx))) {
        while (!m->has_failed && pen_step_begin(ctx, &step) == PEN_OK) {
            const int64_t at = step.index;
            for (int micro = 0; micro < step.accum && !m->has_failed; micro++) {
                pen_step_micro(ctx, micro);
                pass(ctx, m, tensor, at * 10 + micro);
            }
            if (m->has_failed || !note(m, pen_step_end(ctx, &step))) break;
            m->norm[at]     = step.grad_norm;
            m->clip[at]     = step.clip;
            m->outcome[at]  = step.outcome;
            m->bad_rank[at] = step.bad_rank;
            if (step.bad_tensor == tensor[4])
                snprintf(m->bad_tensor, sizeof m->bad_tensor, "h.1.w1");
        }
        note(m, pen_stat(ctx, "mem.peak.bytes", &m->peak));
        note(m, pen_stat(ctx, "coll.bytes", &m->wire));
        note(m, pen_stat(ctx, "mem.param.bytes", &m->param));
        if (!m->has_failed) note(m, pen_digest(ctx, &m->digest));
        if (!m->has_failed && note(m, pen_use(ctx, pen_unit_get(ctx, "h", 0), PEN_FORWARD, NULL))) {
            m->last = malloc((size_t)shapes[0] * sizeof(float));
            memcpy(m->last, pen_view(ctx, tensor[0], PEN_ALL, PEN_PARAM),
                   (size_t)shapes[0] * (m->job->dtype == PEN_F32 ? 4 : 2));
            note(m, pen_release(ctx, pen_unit_get(ctx, "h", 0), PEN_FORWARD, NULL));
        }
    }
    note(m, pen_finalize(ctx));
    for (int i = 0; i < 2 * TENSORS; i++) pen_free(own[i]);
}

static void *work(void *user)
{
    member *m    = user;
    const job *j = m->job;
    char own[10][64];
    const char *settings[SETTINGS_MAX] = {"scheduler=external", "master_addr=127.0.0.1",
                                          "servers=0",          "persistence_threshold=0",
                                          "max_reuse=0",        "reduce_bucket=16384",
                                          "deadline_ms=60000",  "lease_ms=60000"};
    int n                              = 8;
    snprintf(own[0], 64, "rank=%d", m->rank);
    snprintf(own[1], 64, "world_size=%d", j->ranks);
    snprintf(own[2], 64, "master_port=%s", strrchr(scheduler_address(j->scheduler), ':') + 1);
    snprintf(own[3], 64, "mode=%s", j->mode);
    snprintf(own[4], 64, "optim=%s", j->optim != NULL ? j->optim : "adamw lr=0.01");
    snprintf(own[5], 64, "accum=%d", j->accum > 0 ? j->accum : 1);
    snprintf(own[6], 64, "steps=%d", j->steps > 0 ? j->steps : STEPS);
    for (int i = 0; i < 7; i++) settings[n++] = own[i];
    if (j->nodes > 0) {
        const int each = j->ranks / j->nodes;
        snprintf(own[7], 64, "host_id=node%d", m->rank / each);
        snprintf(own[8], 64, "local_rank=%d", m->rank % each);
        snprintf(own[9], 64, "local_world_size=%d", each);
        for (int i = 7; i < 10; i++) settings[n++] = own[i];
    }
    for (int i = 0; i < 6 && j->setting[i] != NULL; i++) settings[n++] = j->setting[i];
    pen_ctx *ctx = NULL;
    if (note(m, pen_init(settings, &ctx))) train(ctx, m);
    return NULL;
}

static job *run(const job *plan_of)
{
    pen_error why;
    scheduler_settings s;
    job *j = malloc(sizeof *j);
    memcpy(j, plan_of, sizeof *j);
    config_defaults(scheduler_settings_rows, &s);
    s.lease_ms = 60000; /* eight workers on few cores, perhaps with a sanitizer */
    if (scheduler_start(&s, &j->scheduler, &why) != PEN_OK) fail_msg("%s", why.text);
    for (int r = 0; r < j->ranks; r++) {
        j->member[r] = (member){.job = j, .rank = r};
        assert_int_equal(pthread_create(&j->member[r].thread, NULL, work, &j->member[r]), 0);
    }
    bool has_failed = false;
    for (int r = 0; r < j->ranks; r++) {
        pthread_join(j->member[r].thread, NULL);
        has_failed |= j->member[r].has_failed;
    }
    if (has_failed || j->ranks == 1) scheduler_stop(j->scheduler); /* none joined, or none leaves */
    (void)scheduler_join(j->scheduler, NULL);
    return j;
}

static void forget(job *j)
{
    for (int r = 0; r < j->ranks; r++) free(j->member[r].last);
    free(j);
}

static job *run_well(const job *wanted)
{
    job *j = run(wanted);
    for (int r = 0; r < j->ranks; r++)
        if (j->member[r].has_failed)
            fail_msg("mode=%s, %d workers, rank %d: %s", j->mode, j->ranks, r, j->member[r].said);
    for (int r = 1; r < j->ranks; r++) assert_int_equal(j->member[r].digest, j->member[0].digest);
    return j;
}

static job *run_mode(job wanted, int mode, int ranks)
{
    wanted.mode  = worker_mode_name(mode);
    wanted.ranks = ranks;
    return run_well(&wanted);
}

static const job usual = {.nan_rank = -1, .nan_step = -1, .dtype = PEN_F32};

/* ---- the same bits --------------------------------------------------------------------------- */
static void same_in_every_mode(const job *wanted, int ranks)
{
    job *ddp    = run_mode(*wanted, MODE_ALLREDUCE, ranks);
    int clipped = 0;
    for (int s = 0; s < STEPS; s++) clipped += ddp->member[0].clip[s] < 1;
    for (int mode = MODE_ALLREDUCE + 1; mode < MODE_COUNT; mode++) {
        job *other = run_mode(*wanted, mode, ranks);
        if (other->member[0].digest != ddp->member[0].digest)
            fail_msg("mode=%s gives other bits than ddp with %d workers", other->mode, ranks);
        for (int s = 0; s < STEPS; s++) {
            assert_memory_equal(&other->member[0].norm[s], &ddp->member[0].norm[s], sizeof(double));
            assert_int_equal(other->member[0].outcome[s], ddp->member[0].outcome[s]);
            assert_int_equal(other->member[ranks - 1].bad_rank[s], ddp->member[0].bad_rank[s]);
        }
        assert_string_equal(other->member[0].bad_tensor, ddp->member[0].bad_tensor);
        forget(other);
    }
    print_message("%d workers: clipped in %d of %d steps\n", ranks, clipped, STEPS);
    forget(ddp);
}

static void test_sharded_modes_give_the_bits_of_ddp_clipped_with_1_2_and_4_workers(void **state)
{
    (void)state;
    job wanted        = usual;
    wanted.setting[0] = "clip=25";
    for (int ranks = 1; ranks <= 4; ranks *= 2) same_in_every_mode(&wanted, ranks);
}

static void test_sharded_modes_give_the_bits_of_ddp_with_tensors_of_16_bits(void **state)
{
    (void)state;
    job wanted        = usual;
    wanted.dtype      = PEN_BF16;
    wanted.setting[0] = "clip=25";
    same_in_every_mode(&wanted, 3);
}

static void test_sharded_modes_give_the_bits_of_ddp_with_a_rule_of_whole_tensors(void **state)
{
    (void)state;
    job wanted        = usual;
    wanted.optim      = "lamb lr=0.01";
    wanted.setting[0] = "prefetch_backward=post";
    same_in_every_mode(&wanted, 3);
}

static void test_sharded_modes_skip_a_step_and_name_the_tensor_and_the_rank(void **state)
{
    (void)state;
    job wanted              = usual;
    wanted.nan_rank         = 2;
    wanted.nan_step         = 10;
    wanted.is_program_owned = true;
    same_in_every_mode(&wanted, 3);
    job *j = run_mode(wanted, MODE_ZERO3, 3);
    assert_int_equal(j->member[0].outcome[1], PEN_SKIPPED_NONFINITE);
    assert_int_equal(j->member[0].bad_rank[1], 2);
    assert_string_equal(j->member[0].bad_tensor, "h.1.w1");
    forget(j);
}

/* Exact sums are equal in any order. */
static void test_sharded_shards_of_a_node_add_up_across_nodes(void **state)
{
    (void)state;
    job wanted      = usual;
    wanted.is_exact = true;
    job *ddp        = run_mode(wanted, MODE_ALLREDUCE, 4);
    wanted.nodes    = 2;
    for (int mode = MODE_ALLREDUCE + 1; mode < MODE_COUNT; mode++) {
        if (!worker_mode_is_hybrid(mode)) continue;
        job *j = run_mode(wanted, mode, 4);
        assert_int_equal(j->member[0].digest, ddp->member[0].digest);
        forget(j);
    }
    forget(ddp);
}

/* Rank order inside each micro-batch, micro-batches one after the other: equal in all modes, and by rounding only
 * different from one sum over all micro-batches. */
static void test_sharded_sums_of_each_micro_batch_are_added_in_their_order(void **state)
{
    (void)state;
    job wanted        = usual;
    wanted.accum      = 3;
    wanted.optim      = "sgd lr=1";
    wanted.setting[0] = "init_timeout_ms=20000";
    job *first        = run_mode(wanted, MODE_ZERO2, 2);
    job *second       = run_mode(wanted, MODE_ZERO3, 2);
    assert_int_equal(first->member[0].digest, second->member[0].digest);
    wanted.setting[0] = "accum_reduce=last";
    job *last         = run_mode(wanted, MODE_ZERO2, 2);
    double most       = 0;
    for (int64_t i = 0; i < shapes[0]; i++) {
        const double a = first->member[0].last[i], b = last->member[0].last[i];
        if (fabs(a - b) > most) most = fabs(a - b);
    }
    print_message("each and last differ by at most %.3g of 1e-5\n", most);
    assert_true(most > 0); /* another order of additions */
    assert_true(most <= 1e-5);
    forget(first);
    forget(second);
    forget(last);
}

/* ---- memory and bytes ------------------------------------------------------------------------ */
typedef struct { /* bytes per element that each worker holds, and that are divided among all */
    int mode;
    pen_dtype dtype;
    double all, shared;
} formula;

/* research: 4P + 12P/N, 2P + 14P/N, 16P/N for tensors of 16 bits; sums of gradients are float32 here. */
static const formula formulas[] = {{MODE_ZERO1, PEN_F32, 8, 8},   {MODE_ZERO2, PEN_F32, 4, 12},
                                   {MODE_ZERO3, PEN_F32, 0, 16},  {MODE_ZERO1, PEN_BF16, 4, 16},
                                   {MODE_ZERO2, PEN_BF16, 2, 16}, {MODE_ZERO3, PEN_BF16, 0, 16}};

/* Memory beyond the formula: three buckets with a sum each, the gradients of a layer before they
 * are in them (zero2, zero3), values of two layers (zero3: one in use, one prefetched), packed small
 * tensors, and a block and a half per member because borders lie on blocks. */
static double beyond(const formula *f)
{
    const double width = f->dtype == PEN_F32 ? 4 : 2, layer = 45000 + 35000 + 300;
    double bytes = 3 * 16384 * 4 * 2 + 4096 * 16 * 1.5 + 2 * width * (LAYERS * 300 + OUTER);
    if (f->mode != MODE_ZERO1) bytes += width * layer;
    if (f->mode == MODE_ZERO3) bytes += width * (2 * layer + OUTER);
    return bytes;
}

static void test_sharded_modes_use_the_memory_of_the_formulas(void **state)
{
    (void)state;
    const double elements = (double)elements_of_all();
    for (size_t i = 0; i < sizeof formulas / sizeof formulas[0]; i++)
        for (int ranks = 1; ranks <= (formulas[i].dtype == PEN_F32 ? WORLD_MAX : 2); ranks *= 2) {
            const formula *f = &formulas[i];
            job wanted       = usual;
            wanted.dtype     = f->dtype;
            wanted.steps     = 2; /* the second has all that any has */
            job *j           = run_mode(wanted, f->mode, ranks);
            const double alone =
                f->dtype == PEN_F32 ? 16 : 20; /* one process: no buckets, all sums */
            const double want = elements * (ranks == 1 ? alone : f->all + f->shared / ranks);
            double least = 1e18, most = 0;
            for (int r = 0; r < ranks; r++) {
                least = fmin(least, j->member[r].peak);
                most  = fmax(most, j->member[r].peak);
            }
            print_message("%s %s %d workers: %.0f to %.0f bytes, formula %.0f, %.0f%% of what may "
                          "be beyond\n",
                          j->mode, f->dtype == PEN_F32 ? "f32" : "bf16", ranks, least, most, want,
                          100 * (most - want) / beyond(f));
            assert_true(least >= want - 4096 * 20);
            assert_true(most <= want + beyond(f));
            forget(j);
        }
}

static void test_sharded_modes_send_the_bytes_of_the_formulas(void **state)
{
    (void)state;
    const double elements = (double)elements_of_all();
    for (int mode = MODE_ALLREDUCE; mode <= MODE_ZERO3; mode++)
        for (int ranks = 2; ranks <= 4; ranks *= 2) {
            job wanted        = usual;
            wanted.setting[0] = "shared_memory=no";
            job *j            = run_mode(wanted, mode, ranks);
            const double part = elements * 4 * (ranks - 1) / ranks * STEPS;
            const double want = part * (mode == MODE_ZERO3 ? 3 : 2);
            double sum        = 0;
            for (int r = 0; r < ranks; r++) sum += j->member[r].wire / ranks;
            print_message("%s %d workers: %.0f bytes sent by each, formula %.0f: %+.2f%% of 5%%\n",
                          j->mode, ranks, sum, want, 100 * (sum / want - 1));
            assert_true(fabs(sum / want - 1) <= 0.05);
            forget(j);
        }
}

/* ---- sentences ------------------------------------------------------------------------------- */
static void test_sharded_modes_name_what_they_do_not_support(void **state)
{
    (void)state;
    static const struct {
        const char *setting, *sentence;
    } bad[] = {{"on_worker_loss=continue", "takes its part of the optimizer state with it"},
               {"sync=async", "contradict each other"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        job wanted        = usual;
        wanted.mode       = "zero2";
        wanted.ranks      = 2;
        wanted.setting[0] = bad[i].setting;
        job *j            = run(&wanted);
        assert_true(j->member[0].has_failed);
        if (strstr(j->member[0].said, bad[i].sentence) == NULL) fail_msg("%s", j->member[0].said);
        forget(j);
    }
}

static int be_quiet(void **state)
{
    (void)state;
    pen_log_set(NULL, NULL, -1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sharded_partition_gives_every_element_one_owner_and_equal_shares),
        cmocka_unit_test(test_sharded_partition_gives_every_rank_a_part_of_a_large_tensor),
        cmocka_unit_test(test_sharded_modes_give_the_bits_of_ddp_clipped_with_1_2_and_4_workers),
        cmocka_unit_test(test_sharded_modes_give_the_bits_of_ddp_with_tensors_of_16_bits),
        cmocka_unit_test(test_sharded_modes_give_the_bits_of_ddp_with_a_rule_of_whole_tensors),
        cmocka_unit_test(test_sharded_modes_skip_a_step_and_name_the_tensor_and_the_rank),
        cmocka_unit_test(test_sharded_shards_of_a_node_add_up_across_nodes),
        cmocka_unit_test(test_sharded_sums_of_each_micro_batch_are_added_in_their_order),
        cmocka_unit_test(test_sharded_modes_use_the_memory_of_the_formulas),
        cmocka_unit_test(test_sharded_modes_send_the_bytes_of_the_formulas),
        cmocka_unit_test(test_sharded_modes_name_what_they_do_not_support),
    };
    return cmocka_run_group_tests(tests, be_quiet, NULL);
}
