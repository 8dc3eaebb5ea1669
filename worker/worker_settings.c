/* worker_settings.c - the table of a worker's settings, and the layers it is filled from. */
#include "worker/worker_settings.h"

#include "common/why.h"
#include "scheduler/scheduler_settings.h"

#include <string.h>

static const char *const worker_mode_choices[]      = {"auto",   "local",    "ps-bsp",
                                                       "ps-ssp", "ps-async", NULL};
static const char *const worker_wire_choices[]      = {"raw", "bf16", "f16", NULL};
static const char *const worker_commit_choices[]    = {"decide", "eager", NULL};
static const char *const worker_loss_choices[]      = {"fail", "continue", "wait", NULL};
static const char *const worker_scheduler_choices[] = {"auto", "external", "hosted", NULL};

const config_row worker_settings_rows[] = {
#define X(ctype, name, kind, dfl, min, max, choices, doc)                                          \
    {#name, CONFIG_##kind, offsetof(worker_settings, name), dfl, min, max, choices, doc},
    WORKER_SETTINGS(X)
#undef X
        {0},
};

#define FOREIGN(name)                                                                              \
    {                                                                                              \
        name, CONFIG_TEXT, 0, "", 0, 0, NULL, "Read by another process."                           \
    }
const config_row worker_settings_foreign[] = {
    FOREIGN("role"), FOREIGN("shards"), FOREIGN("store"), FOREIGN("io_threads"), {0}};

const char *worker_mode_name(int mode)
{
    return worker_mode_choices[mode];
}

const char *worker_wire_name(int wire)
{
    return worker_wire_choices[wire];
}

static pen_status check(const worker_settings *s, pen_error *why)
{
    if (s->on_worker_loss != LOSS_FAIL)
        return why_set(
            why, PEN_UNSUPPORTED,
            "on_worker_loss=%s is not in this version: the loss of a worker ends the job (fail)",
            worker_loss_choices[s->on_worker_loss]);
    if (s->mode >= MODE_PS_BSP && s->servers == 0)
        return why_set(why, PEN_BAD_SETTING, "--servers 0 and --mode %s contradict each other",
                       worker_mode_name(s->mode));
    if (s->mode == MODE_LOCAL && s->servers > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "--servers %lld and --mode local contradict each other",
                       (long long)s->servers);
    if (s->commit == COMMIT_EAGER && s->clip > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "commit=eager and clip=%g contradict each other: clipping needs all "
                       "gradients before any update",
                       s->clip);
    if (s->clip > 0 && (s->mode == MODE_PS_SSP || s->mode == MODE_PS_ASYNC))
        return why_set(why, PEN_BAD_SETTING,
                       "mode=%s and clip=%g contradict each other: there is no moment at which all "
                       "gradients are known",
                       worker_mode_name(s->mode), s->clip);
    if (s->resume && s->fresh)
        return why_set(why, PEN_BAD_SETTING, "resume and fresh contradict each other");
    return PEN_OK;
}

pen_status worker_settings_load(worker_settings *s, const char *const *strings, pen_error *why)
{
    const config_row *const known[] = {worker_settings_rows, scheduler_settings_rows,
                                       worker_settings_foreign, NULL};

    config_defaults(worker_settings_rows, s);
    pen_status status = config_from_strings(worker_settings_rows, s, strings, why);
    if (status != PEN_OK) return status;
    const char *file = config_env("PENSTOCK_CONFIG");
    if (file == NULL) file = s->config;
    if (file[0] != '\0') status = config_from_file(worker_settings_rows, s, file, why);
    if (status == PEN_OK) status = config_from_env(worker_settings_rows, s, known, why);
    return status == PEN_OK ? check(s, why) : status;
}
