/* worker_train_rig.h - a scheduler, servers and workers in one process that train a model, step by step. */
#ifndef TESTS_UNIT_WORKER_TRAIN_RIG_H
#define TESTS_UNIT_WORKER_TRAIN_RIG_H

#include "penstock.h"
#include "scheduler/shell/scheduler.h"
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
    LARGE       = 700000 /* 57 chunks, and more than any buffer on the way */
};

/* ---- the model ------------------------------------------------------------------------------- */
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
    char said[700]; /* the sentence of the failure */
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
    const char *mode;  /* NULL: the number of servers decides */
    int accum;         /* micro-batches per step; 0 is 1 */
    int idle;          /* 1 + the rank that has weight 0, and NaN everywhere; 0: none */
    bool skips_unused; /* rank 1 makes no gradient of tensor 0 ready */
    pen_status (*instead)(pen_ctx *ctx, member *m); /* of training */
    member member[RANKS_MAX];
    atomic_bool gave_up;
    scheduler *scheduler;
    server_thread server[SERVERS_MAX];
};

static inline int count_tensors(const job *j)
{
    int specs = 0;
    while (specs < SPECS_MAX && j->tensor[specs].name != NULL) specs++;
    return specs * (j->copies > 0 ? j->copies : 1);
}

static inline const tensor_spec *spec_of(const job *j, int t)
{
    return &j->tensor[j->copies > 0 ? t % (count_tensors(j) / j->copies) : t];
}

/* Not representable in 16 bits, and different on each rank, step and element. */
static inline float gradient(int rank, int64_t step, int64_t i)
{
    return (float)(1 + rank) / 3 + (float)step / 7 + (float)(i % 1013) / 1024;
}

static inline uint16_t half_of(float x) /* bf16, rounded to nearest even */
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float whole_of(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float rounded(float x)
{
    return whole_of(half_of(x));
}

/* ---- a worker -------------------------------------------------------------------------------- */
static inline pen_status note(member *m, pen_status status)
{
    if (status == PEN_OK || m->failed) return status;
    m->failed = true;
    snprintf(m->said, sizeof m->said, "%s", pen_last_error(&m->error));
    return status;
}

static inline size_t size_of(pen_dtype t)
{
    return t == PEN_F32 || t == PEN_DTYPE_DEFAULT ? 4 : 2;
}

static inline void *make_values(pen_dtype t, int64_t n)
{
    void *all = calloc((size_t)n, size_of(t));
    for (int64_t i = 0; i < n && t == PEN_BF16; i++) ((uint16_t *)all)[i] = half_of(1);
    return all;
}

static inline void fill_gradient(void *to, pen_dtype t, int64_t n, const member *m, int64_t step)
{
    for (int64_t i = 0; i < n; i++) {
        float g = gradient(m->rank, step, i);
        if (size_of(t) == 4)
            ((float *)to)[i] = g;
        else /* any pattern of f16 works if it is small */
            ((uint16_t *)to)[i] = t == PEN_BF16 ? half_of(g) : (uint16_t)(0x3000 + i % 1013 + step);
    }
}

static inline void train_micro(pen_ctx *ctx, member *m, pen_tensor **handle, void **grad, int micro)
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

static inline pen_status train_step(pen_ctx *ctx, member *m, pen_tensor **handle, void **grad)
{
    if (m->rank + 1 == m->job->idle) m->step.weight = 0;
    for (int micro = 0; micro < m->step.accum; micro++) {
        pen_step_micro(ctx, micro);
        train_micro(ctx, m, handle, grad, micro);
    }
    return note(m, pen_step_end(ctx, &m->step));
}

static inline void train(pen_ctx *ctx, member *m)
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
                usleep(200000); /* so that the request is back from the scheduler before the step */
            }
            train_step(ctx, m, handle, grad);
        }
        if (!m->failed && note(m, pen_wait(&saving, &result)) == PEN_OK) m->snapshot = result.step;
        if (!m->failed) note(m, pen_digest(ctx, &m->digest));
    }
    for (int t = 0; t < TENSORS_MAX; t++) free(grad[t]);
}

static inline void *work(void *user)
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
static inline void start_others(job *j)
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

static inline job *run(const job *plan)
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

static inline job *run_well(const job *plan)
{
    job *j = run(plan);
    for (int r = 0; r < RANKS_MAX; r++)
        if (j->member[r].failed) fail_msg("rank %d: %s", r, j->member[r].said);
    return j;
}

static inline void forget(job *j)
{
    for (int r = 0; r < RANKS_MAX; r++)
        for (int t = 0; t < TENSORS_MAX; t++) free(j->member[r].param[t]);
    free(j);
}

static inline float value(const job *j, int rank, int tensor, int64_t i)
{
    return ((const float *)j->member[rank].param[tensor])[i];
}

static inline uint32_t digest_of(job plan, int ranks)
{
    plan.ranks      = ranks;
    job *j          = run_well(&plan);
    uint32_t digest = j->member[0].digest;
    for (int r = 1; r < ranks; r++) assert_int_equal(j->member[r].digest, digest);
    forget(j);
    return digest;
}

static inline int set_up(void **state)
{
    (void)state;
    pen_log_set(NULL, NULL, -1);
    return 0;
}

#endif
