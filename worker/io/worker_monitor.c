/* worker_monitor.c - answers for the HTTP pages of a worker. */
#include "worker/io/worker_monitor.h"

#include "common/base/why.h"
#include "common/net/http_gate.h"
#include "common/net/monitor.h"

#include <stdlib.h>
#include <string.h>

static void write_program_metrics(metrics_page *page, pen_ctx *ctx)
{
    static const stat_row row = {"metric", "", "What the program gave to pen_metric(), by name.",
                                 STAT_GAUGE};
    metrics_family(page, &row);
    pthread_mutex_lock(&ctx->monitor_lock);
    for (uint32_t i = 0; i < ctx->n_metrics; i++) {
        char labels[METRICS_LABELS_BYTES];
        snprintf(labels, sizeof labels, "%s", page->self);
        metrics_label(labels, "name", ctx->metric[i].name);
        metrics_sample(page, labels, ctx->metric[i].value);
    }
    pthread_mutex_unlock(&ctx->monitor_lock);
}

static void write_metrics(void *user, FILE *out, bool is_open)
{
    pen_ctx *ctx = user;
    metrics_page page;
    metrics_begin(&page, out, is_open, "worker", ctx->env.rank);
    metrics_process(&page);
    metrics_stats(&page, &ctx->stats);
    write_program_metrics(&page, ctx);
    metrics_end(&page);
}

static bool is_ready(void *user, char *why, size_t size)
{
    pen_ctx *ctx = user;
    if (atomic_load(&ctx->has_failed)) {
        snprintf(why, size, "the job has failed");
        return false;
    }
    snprintf(why, size, "worker %d has not returned from pen_commit", ctx->env.rank);
    return atomic_load(&ctx->step_index) >= 0;
}

/* All workers of a host have the same setting; each adds its local rank to the port. */
static pen_status own_address(const pen_ctx *ctx, char *address, size_t size, pen_error *why)
{
    char host[HTTP_HOST_BYTES], port[8];
    const pen_status status = http_address_cut(ctx->settings.http, host, port, why);
    if (status != PEN_OK) return status;
    const long first = atol(port), mine = first > 0 ? first + ctx->env.local_rank : 0;
    if (mine > 65535)
        return why_set(why, PEN_BAD_SETTING,
                       "invalid http %.80s: local rank %d would use port %ld; choose a lower port",
                       ctx->settings.http, ctx->env.local_rank, mine);
    snprintf(address, size, strchr(host, ':') ? "[%s]:%ld" : "%s:%ld", host, mine);
    return PEN_OK;
}

pen_status worker_monitor_open(pen_ctx *ctx, pen_error *why)
{
    char address[HTTP_HOST_BYTES + 16];
    if (ctx->settings.http[0] == '\0') return PEN_OK;
    pen_status status = own_address(ctx, address, sizeof address, why);
    if (status == PEN_OK)
        status = monitor_open(&(monitor_options){.address    = address,
                                                 .token_file = ctx->settings.http_token_file,
                                                 .loop       = ctx->io_loop,
                                                 .metrics    = write_metrics,
                                                 .is_ready   = is_ready,
                                                 .user       = ctx},
                              &ctx->monitor, why);
    if (status != PEN_OK) return status;
    atomic_store(&ctx->stats.is_watched, true);
    stat_store(&ctx->stats, STAT_HTTP_PORT, monitor_port(ctx->monitor));
    return PEN_OK;
}
