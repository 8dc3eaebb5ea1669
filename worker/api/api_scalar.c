/* api_scalar.c - pen_step_scalar and pen_step_total: numbers of the program that a step sums over the ranks. */
#include "worker/api/api.h"

#include "common/base/why.h"
#include "common/system/fp_env.h"
#include "proto/scalars.h"

#include <string.h>

enum { NAME_LETTERS_MAX = 63 };

static pen_status check_name(const char *call, const char *name, pen_error *why)
{
    if (name == NULL || name[0] == '\0')
        return why_set(why, PEN_INVALID_ARGUMENT, "%s: the name is NULL or empty", call);
    if (strnlen(name, NAME_LETTERS_MAX + 1) > NAME_LETTERS_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT, "%s: the name is longer than %d bytes", call,
                       NAME_LETTERS_MAX);
    return PEN_OK;
}

static pen_status give(pen_ctx *ctx, const char *name, double value, pen_error *why)
{
    context_step *s = &ctx->step;
    if (!s->is_begun)
        return why_set(why, PEN_WRONG_STATE,
                       "pen_step_scalar('%s'): no step is begun; call pen_step_begin() first",
                       name);
    if (s->has_last_gradients)
        return why_set(why, PEN_WRONG_STATE,
                       "pen_step_scalar('%s'): gradients of step %lld were already sent; call it "
                       "before the first pen_ready() of the last micro-batch",
                       name, (long long)s->next_index);
    if (!scalars_set(&s->scalars, scalars_name(name), value))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_step_scalar('%s'): step %lld already has %d scalars, the most allowed",
                       name, (long long)s->next_index, WIRE_SCALARS_MAX);
    pthread_mutex_lock(&ctx->monitor_lock);
    context_metric *m = context_find_metric(ctx, name);
    if (m != NULL && !m->has_value) m->is_scalar = true;
    pthread_mutex_unlock(&ctx->monitor_lock);
    return PEN_OK;
}

pen_status pen_step_scalar(pen_ctx *ctx, const char *name, double value)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_step_scalar", false);
    if (status != PEN_OK) return status;
    status = api_lock_step(ctx, "pen_step_scalar");
    if (status != PEN_OK) return status;
    status = check_name("pen_step_scalar", name, &why);
    if (status == PEN_OK) status = give(ctx, name, value, &why);
    if (status != PEN_OK) {
        context_remember(&ctx->step.remembered, &why);
        last_error_set(&why);
    }
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

static pen_status find_total(pen_ctx *ctx, const char *name, pen_op op, double *value,
                             pen_error *why)
{
    double sum        = 0;
    uint32_t ranks    = 0;
    pen_status status = api_lock_step(ctx, "pen_step_total");
    if (status != PEN_OK) {
        pen_last_error(why);
        return status;
    }
    if (!scalars_find(&ctx->step.totals, scalars_name(name), &sum, &ranks))
        status = why_set(why, PEN_NOT_FOUND,
                         "pen_step_total('%s'): no rank set it in the last step; call "
                         "pen_step_scalar('%s', ...) between pen_step_begin() and pen_ready()",
                         name, name);
    if (status == PEN_OK) {
        *value = op == PEN_AVG ? sum / ranks : sum;
        /* What is shown of a scalar is what the program asks for.  Under the step's lock. */
        pthread_mutex_lock(&ctx->monitor_lock);
        context_metric *m  = context_find_metric(ctx, name);
        const bool changes = m != NULL && m->is_scalar && m->is_mean != (op == PEN_AVG);
        if (changes) m->is_mean = op == PEN_AVG;
        pthread_mutex_unlock(&ctx->monitor_lock);
        if (changes) context_note_scalars(ctx);
    }
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

pen_status pen_step_total(pen_ctx *ctx, const char *name, pen_op op, double *value)
{
    FP_ENV_OURS();
    pen_error why;
    pen_status status = context_enter(ctx, "pen_step_total", false);
    if (status != PEN_OK) return status;
    status = check_name("pen_step_total", name, &why);
    if (status == PEN_OK && (value == NULL || (op != PEN_SUM && op != PEN_AVG)))
        status =
            why_set(&why, PEN_INVALID_ARGUMENT, "pen_step_total('%s'): %s", name,
                    value == NULL ? "value is NULL" : "invalid op; expected PEN_SUM or PEN_AVG");
    if (status == PEN_OK) status = find_total(ctx, name, op, value, &why);
    return status == PEN_OK ? status : last_error_set(&why);
}
