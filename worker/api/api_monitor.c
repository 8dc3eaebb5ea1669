/* api_monitor.c - counters, metrics, marks and events. */
#include "worker/api/api.h"

#include "common/base/clock.h"
#include "common/base/utf8.h"
#include "common/system/fp_env.h"
#include "common/trace/trace.h"

#include <stdio.h>
#include <string.h>

pen_status pen_metric(pen_ctx *ctx, const char *name, double value)
{
    FP_ENV_OURS();
    pen_status status = context_enter(ctx, "pen_metric", false);
    if (status != PEN_OK) return status;
    if (name == NULL || name[0] == '\0' || strlen(name) >= sizeof ctx->metric[0].name)
        return last_error_report(PEN_INVALID_ARGUMENT,
                                 "pen_metric: invalid name; expected 1 to 63 bytes");
    if (!utf8_is_clean(name))
        return last_error_report(
            PEN_INVALID_ARGUMENT,
            "pen_metric: invalid name; expected UTF-8 without control characters");
    pthread_mutex_lock(&ctx->monitor_lock);
    context_metric *m = context_find_metric(ctx, name);
    if (m != NULL) {
        m->value     = value;
        m->is_scalar = false;
        m->has_value = m->is_fresh = true;
    } else {
        stat_add(&ctx->stats, STAT_METRICS_REFUSED, 1);
        status = last_error_report(PEN_TOO_SMALL,
                                   "pen_metric('%s'): too many names; at most %d are allowed", name,
                                   CONTEXT_METRICS_MAX);
    }
    pthread_mutex_unlock(&ctx->monitor_lock);
    return status;
}

pen_status pen_mark(pen_ctx *ctx, const char *name, int begin)
{
    FP_ENV_OURS();
    pen_error why;
    const pen_status status = context_check(ctx, "pen_mark");
    if (status != PEN_OK) return status;
    if (name == NULL || name[0] == '\0')
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_mark: name is NULL or empty");
    if (!trace_on() || trace_mark(name, begin != 0, &why) == PEN_OK) return PEN_OK;
    return last_error_set(&why);
}

/* The mean since pen_commit(). */
static double rate_of(const pen_ctx *ctx, stat_id bytes)
{
    if (ctx->committed_ms == 0) return 0;
    double seconds = (double)(clock_ms(&clock_real) - ctx->committed_ms) / 1000;
    return seconds > 0 ? (double)stat_get(&ctx->stats, bytes) / seconds / 1e9 : 0;
}

pen_status pen_stat(pen_ctx *ctx, const char *name, double *value)
{
    FP_ENV_OURS();
    /* Also after a failure, when counters matter most. */
    if (ctx == NULL || name == NULL || value == NULL)
        return last_error_report(PEN_INVALID_ARGUMENT, "pen_stat: an argument is NULL");
    int id = stat_find(name);
    if (strcmp(name, "push.GBps") == 0)
        *value = rate_of(ctx, STAT_PUSH_BYTES);
    else if (strcmp(name, "pull.GBps") == 0)
        *value = rate_of(ctx, STAT_PULL_BYTES);
    else if (id >= 0)
        *value = (double)stat_get(&ctx->stats, (stat_id)id);
    else
        return last_error_report(PEN_NOT_FOUND,
                                 "pen_stat: unknown counter '%.64s'; see docs/stats.md", name);
    return PEN_OK;
}

pen_status pen_on_event(pen_ctx *ctx, void (*fn)(pen_ctx *, const pen_event *, void *), void *user)
{
    FP_ENV_OURS();
    pen_status status = context_check(ctx, "pen_on_event");
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&ctx->monitor_lock);
    ctx->event      = fn;
    ctx->event_user = user;
    pthread_mutex_unlock(&ctx->monitor_lock);
    return PEN_OK;
}
