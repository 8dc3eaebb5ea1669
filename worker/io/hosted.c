/* hosted.c - settings of a hosted scheduler, and the one that only says why rank 0 cannot start. */
#include "worker/io/hosted.h"

#include "common/base/config.h"
#include "common/base/why.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

job_host_settings hosted_settings(const worker_settings *s, const worker_env *env)
{
    return (job_host_settings){.host            = env->addr,
                               .secret_file     = s->secret_file,
                               .world_size      = (uint64_t)env->world_size,
                               .servers         = s->servers,
                               .port            = env->port,
                               .lease_ms        = s->lease_ms,
                               .init_timeout_ms = s->init_timeout_ms,
                               .on_worker_loss  = s->on_worker_loss,
                               .encryption      = s->encryption};
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
    pen_error told;
    char host[256] = "";
    on_place(&s, strings);
    if (worker_env_resolve(&s, config_env, &env, &told) != PEN_OK || env.alone) return;
    if (env.rank != 0 || env.world_size < 2 || s.scheduler == SCHEDULER_EXTERNAL) return;
    if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    why_set(&told, why->status, "worker 0 (%.60s) cannot start: %.500s", host, why->text);
    why_culprit(&told, PEN_WORKER, 0, -1, NULL);
    s.servers                      = env.servers;
    const job_host_settings hosted = hosted_settings(&s, &env);
    job_host_decline(&hosted, &told, HOSTED_DECLINE_MS);
}
