/* job_host.c - a scheduler for the worker of rank 0, in a thread of its own. */
#include "proto/job_host.h"
#include "scheduler/shell/scheduler.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

/* A job_host is a scheduler. */
static scheduler_settings settings_of(const job_host_settings *s)
{
    scheduler_settings all;
    config_defaults(scheduler_settings_rows, &all);
    all.world_size      = s->world_size;
    all.servers         = s->servers;
    all.port            = s->port;
    all.lease_ms        = s->lease_ms;
    all.init_timeout_ms = s->init_timeout_ms;
    all.on_worker_loss  = s->on_worker_loss;
    all.encryption      = s->encryption;
    snprintf(all.secret_file, sizeof all.secret_file, "%s", s->secret_file);
    snprintf(all.host, sizeof all.host, "%s", s->host);
    return all;
}

pen_status job_host_start(const job_host_settings *settings, job_host **h, pen_error *why)
{
    const scheduler_settings all = settings_of(settings);
    scheduler *s                 = NULL;
    const pen_status status      = scheduler_start(&all, &s, why);
    *h                           = (job_host *)s;
    return status;
}

void job_host_decline(const job_host_settings *settings, const pen_error *why, uint64_t ms)
{
    const scheduler_settings all = settings_of(settings);
    scheduler_decline(&all, why, ms);
}

static void *join_scheduler(void *user)
{
    pen_error why;
    (void)scheduler_join(user, &why); /* rank 0 has its own verdict already */
    return NULL;
}

void job_host_close(job_host *h, int64_t patience_ms)
{
    scheduler *s = (scheduler *)h;
    pthread_t thread;
    if (!s) return;
    if (pthread_create(&thread, NULL, join_scheduler, s) != 0) {
        scheduler_stop(s);
        join_scheduler(s);
        return;
    }
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += patience_ms / 1000 + 1;
    if (patience_ms < 0 || pthread_timedjoin_np(thread, NULL, &until) != 0) {
        if (patience_ms >= 0) scheduler_stop(s);
        pthread_join(thread, NULL);
    }
}
