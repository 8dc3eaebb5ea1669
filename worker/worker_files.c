/* worker_files.c - files of accelerate and DeepSpeed as settings, if `penstock run` has not read them. */
#include "worker/worker_files.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/compute/optim/optim.h"
#include "worker/train/schedule/lr_schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *find_given(const void *user, const char *setting, const char **source)
{
    (void)user;
    *source = "environment";
    return config_env_of(setting);
}

/* ---- one value ------------------------------------------------------------------------------- */
static const config_row *find_row(const char *setting)
{
    for (const config_row *row = worker_settings_rows; row->name != NULL; row++)
        if (strcmp(row->name, setting) == 0) return row;
    return NULL;
}

pen_status worker_files_check(const resolved_value *v, pen_error *why)
{
    static const worker_settings none;
    worker_settings scratch = none;
    lr_schedule schedule;
    if (find_row(v->name) == NULL)
        return why_set(why, PEN_INTERNAL, "no process has a setting '%s'", v->name);
    pen_status status = config_set(worker_settings_rows, &scratch, v->name, v->value, why);
    if (status == PEN_OK && strcmp(v->name, "optim") == 0) status = optim_check(v->value, why);
    if (status == PEN_OK && strcmp(v->name, "schedule") == 0)
        status = lr_schedule_parse(v->value, &schedule, why);
    if (status == PEN_OK) return PEN_OK;
    const pen_error said = *why;
    return why_set(why, status, "%s  (from %s)", said.text, v->source);
}

/* ---- the files ------------------------------------------------------------------------------- */
static const char *named(const char *setting, const char *otherwise)
{
    const char *given = config_env_of(setting);
    if (given == NULL) given = otherwise;
    return given != NULL && given[0] != '\0' ? given : NULL;
}

config_files worker_files_named(const worker_settings *s)
{
    config_files files = {
        .config    = named("config", s != NULL ? s->config : NULL),
        .ds_config = named("ds_config", s != NULL ? s->ds_config : NULL),
        .autos     = {.hidden_size   = named("hidden_size", s != NULL ? s->hidden_size : NULL),
                      .lr            = named("lr", s != NULL ? s->lr : NULL),
                      .weight_decay  = named("weight_decay", s != NULL ? s->weight_decay : NULL),
                      .warmup_steps  = named("warmup_steps", s != NULL ? s->warmup_steps : NULL),
                      .total_steps   = named("total_steps", s != NULL ? s->total_steps : NULL),
                      .optim         = s != NULL ? s->optim : NULL,
                      .schedule      = s != NULL ? s->schedule : NULL,
                      .are_variables = true}};
    if (files.config != NULL && !config_files_is_accelerate(files.config)) files.config = NULL;
    return files;
}

pen_status worker_files_load(const config_files *files, resolution *out, pen_error *why)
{
    pen_status status = config_files_load(files, (resolve_given){find_given, NULL}, out, why);
    for (size_t i = 0; i < out->settings.n && status == PEN_OK; i++)
        status = worker_files_check(&out->settings.values[i], why);
    return status;
}

/* ---- notices --------------------------------------------------------------------------------- */
static void note(const char *line, void *user)
{
    worker_settings *s = user;
    const size_t used = strlen(s->notes), n = strlen(line);
    if (used + n + 2 > sizeof s->notes) return;
    memcpy(s->notes + used, line, n);
    memcpy(s->notes + used + n, "\n", 2);
}

/* Only the launcher can choose GPUs, before it starts a process. */
static void note_devices(worker_settings *s, const resolution *r)
{
    char line[2 * RESOLVED_LINE_BYTES];
    const resolved_value *v = resolved_find(&r->start, "cuda_visible_devices");
    if (v == NULL || config_env("CUDA_VISIBLE_DEVICES") != NULL) return;
    snprintf(
        line, sizeof line,
        "%s chooses GPUs, which only `penstock run` does: set CUDA_VISIBLE_DEVICES=%s where the "
        "workers are started",
        v->source, v->value);
    note(line, s);
}

pen_status worker_files_apply(worker_settings *s, bool program_may_say, pen_error *why)
{
    char steps[24];
    config_files files = worker_files_named(s);
    snprintf(steps, sizeof steps, "%llu", (unsigned long long)s->steps);
    files.autos.steps           = steps;
    files.autos.program_may_say = program_may_say;
    resolution *r               = calloc(1, sizeof *r); /* too large for the stack of a thread */
    if (r == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the configuration");
    pen_status status = worker_files_load(&files, r, why);
    for (size_t i = 0; i < r->settings.n && status == PEN_OK; i++)
        status = config_set(worker_settings_rows, s, r->settings.values[i].name,
                            r->settings.values[i].value, why);
    if (status == PEN_OK) config_files_tell(r, note, s);
    if (status == PEN_OK) note_devices(s, r);
    resolution_free(r);
    free(r);
    return status;
}

void worker_files_tell(const worker_settings *s)
{
    for (const char *at = s->notes; *at != '\0'; at += strcspn(at, "\n") + 1)
        log_notice("%.*s", (int)strcspn(at, "\n"), at);
}
