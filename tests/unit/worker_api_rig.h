/* worker_api_rig.h - a program of one rank that trains a line through the public interface. */
#ifndef TESTS_UNIT_WORKER_API_RIG_H
#define TESTS_UNIT_WORKER_API_RIG_H

#include "common/compute/device/device.h"
#include "penstock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SETTINGS(...)                                                                              \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static char log_text[4096];

static inline void catch_log(int level, const char *line, void *user)
{
    (void)level, (void)user;
    size_t at = strlen(log_text);
    snprintf(log_text + at, sizeof log_text - at, "%s\n", line);
}

static inline int set_up(void **state)
{
    (void)state;
    static const char *const cleared[] = {
        "RANK",         "WORLD_SIZE",           "MASTER_ADDR",      "MASTER_PORT",
        "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PENSTOCK_SERVERS", "PENSTOCK_MODE"};
    for (size_t i = 0; i < sizeof cleared / sizeof cleared[0]; i++) unsetenv(cleared[i]);
    log_text[0] = '\0';
    pen_log_set(catch_log, NULL, 2);
    return 0;
}

static inline void expect(pen_status got, pen_status want, const char *sentence)
{
    if (got != want) fprintf(stderr, "last error: %s\n", pen_last_error(NULL));
    assert_int_equal(got, want);
    assert_string_equal(pen_last_error(NULL), sentence);
}

static inline void ok(pen_status got)
{
    if (got != PEN_OK) fprintf(stderr, "last error: %s\n", pen_last_error(NULL));
    assert_int_equal(got, PEN_OK);
}

/* One tensor 'w' of n elements, committed. */
typedef struct {
    pen_ctx *ctx;
    pen_tensor *w;
    float *param, *grad;
} trained;

static inline trained train(const char *const *settings, int64_t n, uint32_t flags)
{
    trained t;
    ok(pen_init(settings, &t.ctx));
    t.param = pen_alloc(t.ctx, (size_t)n * sizeof(float), PEN_HOST);
    t.grad  = pen_alloc(t.ctx, (size_t)n * sizeof(float), PEN_HOST);
    ok(pen_register(
        t.ctx,
        &(pen_tensor_desc){
            .name = "w", .ndim = 1, .shape = {n}, .flags = flags, .param = t.param, .grad = t.grad},
        &t.w));
    ok(pen_commit(t.ctx));
    return t;
}

static inline void finish(trained *t)
{
    ok(pen_finalize(t->ctx));
    pen_free(t->param);
    pen_free(t->grad);
}

#endif
