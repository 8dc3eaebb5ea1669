/* hosted.c - see hosted.h. */
#include "worker/io/hosted.h"

#include "common/base/config.h"
#include "common/base/why.h"
#include "scheduler/shell/scheduler.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void hosted_settings(const worker_settings *s, const worker_env *env, scheduler_settings *hosted)
{
    config_defaults(scheduler_settings_rows, hosted);
    hosted->world_size      = env->world_size;
    hosted->servers         = s->servers;
    hosted->port            = env->port;
    hosted->lease_ms        = s->lease_ms;
    hosted->init_timeout_ms = s->init_timeout_ms;
    hosted->on_worker_loss  = s->on_worker_loss;
    hosted->encryption      = s->encryption;
    memcpy(hosted->secret_file, s->secret_file, sizeof hosted->secret_file);
    memcpy(hosted->host, env->addr, sizeof hosted->host);
}

/* Reads the settings that lead to the scheduler, one by one, so that a mistake in one does not hide another. */
static void on_place(worker_settings *s, const char *const *strings)
{
    static const char *const wanted[][2] = {{"scheduler", "PENSTOCK_SCHEDULER"},
                                            {"encryption", "PENSTOCK_ENCRYPTION"},
                                            {"secret_file", "PENSTOCK_SECRET_FILE"},
                                            {"servers", "PENSTOCK_SERVERS"}};
    pen_error unsaid;
    config_defaults(worker_settings_rows, s);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const size_t n     = strlen(wanted[i][0]);
        const char *of_env = config_env(wanted[i][1]);
        for (const char *const *at = strings; at != NULL && *at != NULL; at++)
            if (strncmp(*at, wanted[i][0], n) == 0 && (*at)[n] == '=')
                (void)config_set(worker_settings_rows, s, wanted[i][0], *at + n + 1, &unsaid);
        if (of_env != NULL)
            (void)config_set(worker_settings_rows, s, wanted[i][0], of_env, &unsaid);
    }
}

void hosted_decline(const char *const *strings, const pen_error *why)
{
    worker_settings s;
    worker_env env;
    scheduler_settings hosted;
    pen_error told;
    char host[256] = "";
    on_place(&s, strings);
    if (worker_env_resolve(&s, config_env, &env, &told) != PEN_OK || env.alone) return;
    if (env.rank != 0 || env.world_size < 2 || s.scheduler == SCHEDULER_EXTERNAL) return;
    if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    why_set(&told, why->status, "worker 0 (%.60s) cannot start: %.500s", host, why->text);
    why_culprit(&told, PEN_WORKER, 0, -1, NULL);
    s.servers = env.servers;
    hosted_settings(&s, &env, &hosted);
    scheduler_decline(&hosted, &told, HOSTED_DECLINE_MS);
}
