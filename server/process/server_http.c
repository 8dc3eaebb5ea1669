/* server_http.c - a server over HTTP: its counters and readiness. */
#include "server/process/server_state.h"

#include "common/net/monitor.h"

static void write_metrics(void *user, FILE *out, bool is_open)
{
    const server *s = user;
    metrics_page page;
    metrics_begin(&page, out, is_open, "server", s->rank);
    metrics_process(&page);
    metrics_stats(&page, &s->stats);
    metrics_end(&page);
}

static bool is_making(const server *s)
{
    for (uint32_t i = 0; s->shard_presence != NULL && i < s->n_shards; i++)
        if (s->shard_presence[i] == SERVER_MAKING) return true;
    return false;
}

/* Ready: the scheduler knows it, and its shards are here. */
static bool is_ready(void *user, char *why, size_t size)
{
    const server *s = user;
    if (s->member.incarnation == 0)
        snprintf(why, size, "the scheduler has not answered yet");
    else if (!s->is_ready)
        snprintf(why, size, "server %d is waiting for the model or loading it", s->rank);
    else if (is_making(s))
        snprintf(why, size, "server %d is making room for a shard", s->rank);
    else
        return true;
    return false;
}

pen_status server_http_open(server *s, pen_error *why)
{
    if (s->settings.http[0] == '\0') return PEN_OK;
    const pen_status status =
        monitor_open(&(monitor_options){.address    = s->settings.http,
                                        .token_file = s->settings.http_token_file,
                                        .loop       = s->loop,
                                        .metrics    = write_metrics,
                                        .is_ready   = is_ready,
                                        .user       = s},
                     &s->monitor, why);
    if (status != PEN_OK) return status;
    atomic_store(&s->stats.is_watched, true);
    stat_store(&s->stats, STAT_HTTP_PORT, monitor_port(s->monitor));
    return PEN_OK;
}
