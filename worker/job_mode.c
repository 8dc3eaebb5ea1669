/* job_mode.c - chooses the mode, and checks settings against it. */
#include "worker/job_mode.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "worker/train/schedule/batch_plan.h"
#include "worker/train/schedule/precision.h"

#include <stdio.h>
#include <string.h>

enum { BUCKET_BYTES_MIN = 4096 };

static bool begins_with_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    return strncmp(text, word, n) == 0 && (text[n] == '\0' || text[n] == ' ');
}

static worker_mode mode_of_sync(const char *sync)
{
    if (begins_with_word(sync, "ssp")) return MODE_PS_SSP;
    if (begins_with_word(sync, "async")) return MODE_PS_ASYNC;
    return MODE_PS_BSP;
}

static bool is_without_servers(worker_mode mode)
{
    return mode == MODE_ALLREDUCE || worker_mode_stage((int)mode) > 0;
}

/* The ps mode with the same rule of waiting. */
static worker_mode mode_of_rule(worker_mode mode)
{
    return mode == MODE_PS_HIER || is_without_servers(mode) ? MODE_PS_BSP : mode;
}

/* zero3 over servers needs fixed workers and whole steps, because the values are with the servers. */
static pen_status check_moving(const worker_settings *s, pen_error *why)
{
    if (s->servers <= 0) return PEN_OK;
    if (s->on_worker_loss != LOSS_FAIL || s->workers_max > 0)
        return why_set(
            why, PEN_BAD_SETTING,
            "mode=%s and workers that come and go contradict each other: that a step counts is "
            "known by the values it ends with, and this mode leaves them with the servers; use "
            "mode=zero2, or on_worker_loss=fail and a fixed number of workers",
            worker_mode_name(s->mode));
    if (s->commit == COMMIT_EAGER)
        return why_set(
            why, PEN_BAD_SETTING,
            "mode=%s and commit=eager contradict each other: values that stay with the servers "
            "are those of a decided step",
            worker_mode_name(s->mode));
    return PEN_OK;
}

/* For a worker that is not alone. */
static pen_status choose_of_job(const worker_settings *s, job_place place, job_mode *chosen,
                                pen_error *why)
{
    worker_mode mode = (worker_mode)s->mode;
    if (mode == MODE_AUTO) mode = mode_of_sync(s->sync);
    if (s->mode == MODE_AUTO && mode == MODE_PS_BSP && s->servers <= 0) mode = MODE_ALLREDUCE;
    if (mode == MODE_LOCAL)
        return why_set(why, PEN_BAD_SETTING,
                       "mode=local and a world of %d worker%s contradict each other",
                       place.world_size, place.world_size == 1 ? "" : "s");
    if (s->servers <= 0 && !is_without_servers(mode))
        return why_set(why, PEN_BAD_SETTING,
                       "mode=%s needs servers, and none were given: start the job with "
                       "`penstock run --servers 1`, set PENSTOCK_SERVERS, or use "
                       "mode=allreduce",
                       worker_mode_name((int)mode));
    if (mode == MODE_ALLREDUCE && s->on_worker_loss == LOSS_WAIT)
        return why_set(why, PEN_UNSUPPORTED,
                       "on_worker_loss=wait needs servers, which hold what the worker comes "
                       "back to: start the job with `penstock run --servers 1`, or use "
                       "on_worker_loss=continue");
    if (s->servers > 0 && s->accum_reduce == ACCUM_REDUCE_EACH)
        return why_set(why, PEN_UNSUPPORTED,
                       "accum_reduce=each and servers=%lld: gradients are added up on the worker "
                       "and sent with the last micro-batch; use accum_reduce=last",
                       (long long)s->servers);
    chosen->stage = worker_mode_stage((int)mode);
    if (chosen->stage == 3 && check_moving(s, why) != PEN_OK) return why->status;
    if (chosen->stage > 0 && s->servers > 0) mode = MODE_PS_BSP;
    chosen->has_servers = s->servers > 0 && !is_without_servers(mode);
    chosen->mode        = mode;
    return PEN_OK;
}

static pen_status choose_alone(const worker_settings *s, job_mode *chosen, pen_error *why)
{
    worker_mode mode = (worker_mode)s->mode;
    if (s->servers > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "servers=%lld, but no RANK says who this worker is; `penstock run "
                       "--servers %lld` starts all",
                       (long long)s->servers, (long long)s->servers);
    if (mode == MODE_AUTO || is_without_servers(mode) || s->servers < 0) mode = MODE_LOCAL;
    chosen->mode = mode;
    return PEN_OK;
}

/* The sync rule of a mode; sharding does not change it. */
static const char *usual_sync(worker_mode mode)
{
    return mode == MODE_PS_SSP ? "ssp s=2" : mode == MODE_PS_ASYNC ? "async" : "bsp";
}

static pen_status check_sync(const worker_settings *s, const job_mode *chosen, pen_error *why)
{
    const worker_mode mode = chosen->mode;
    if (mode != MODE_LOCAL && mode_of_sync(chosen->sync) != mode_of_rule(mode))
        return why_set(why, PEN_BAD_SETTING, "mode=%s and sync=%s contradict each other",
                       worker_mode_name((int)mode), chosen->sync);
    if (mode_of_sync(chosen->sync) != MODE_PS_BSP && s->clip > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "sync=%s and clip=%g contradict each other: there is no moment at which all "
                       "gradients are known",
                       chosen->sync, s->clip);
    return PEN_OK;
}

pen_status job_mode_choose(const worker_settings *s, job_place place, job_mode *chosen,
                           pen_error *why)
{
    *chosen = (job_mode){.stage = 0};
    if ((place.is_alone ? choose_alone(s, chosen, why) : choose_of_job(s, place, chosen, why)) !=
        PEN_OK)
        return why->status;
    /* A program written for ssp or async keeps its meaning when it runs alone. */
    const worker_mode given = s->mode == MODE_AUTO ? chosen->mode : (worker_mode)s->mode;
    chosen->sync            = s->sync[0] != '\0' ? s->sync : usual_sync(given);
    return check_sync(s, chosen, why);
}

static pen_status check_values(const worker_settings *s, pen_error *why)
{
    if (s->log_level[0] != '\0' && log_level_find(s->log_level) < -1)
        return why_set(why, PEN_BAD_SETTING,
                       "log_level '%s' is none of silent, error, warning, notice, info, debug",
                       s->log_level);
    if (s->bucket_bytes > 0 && s->bucket_bytes < BUCKET_BYTES_MIN)
        return why_set(why, PEN_BAD_SETTING, "bucket_bytes is %llu, but must be 0 or at least %d",
                       (unsigned long long)s->bucket_bytes, BUCKET_BYTES_MIN);
    return simd_choose(s->simd, why);
}

pen_status job_settings_check(const worker_settings *s, job_place place, job_mode *chosen,
                              pen_error *why)
{
    batch_plan b = {.train = s->train_batch, .micro = s->micro_batch, .accum = s->accum};
    if (check_values(s, why) != PEN_OK || job_mode_choose(s, place, chosen, why) != PEN_OK ||
        precision_check(s, why) != PEN_OK)
        return why->status;
    return batch_plan_resolve(&b, (uint64_t)place.world_size, why);
}

/* ---- before a job starts --------------------------------------------------------------------- */
enum { PROGRAM_STRINGS = 8 };

typedef struct {
    const char *string[PROGRAM_STRINGS + 1];
    int n;
} program;

static bool is_said(const char *variable)
{
    const char *text = config_env(variable);
    return text != NULL && text[0] != '\0';
}

/* The most permissive program for these settings: it makes the promises that only a program can make, and supplies
 * missing settings. */
static void imagine(program *p, char optim[CONFIG_TEXT_BYTES])
{
    const char *rule = config_env("PENSTOCK_OPTIM"), *each = config_env("PENSTOCK_ACCUM_REDUCE");
    *p                     = (program){.n = 0};
    p->string[p->n++]      = "applies_loss_scale=yes";
    const bool scales      = is_said("PENSTOCK_LOSS_SCALE") || is_said("PENSTOCK_LOSS_SCALE_MIN");
    const bool is_each     = each != NULL && strcmp(each, "each") == 0;
    const size_t rule_size = rule != NULL ? strcspn(rule, " \t") : 0;
    if (scales) p->string[p->n++] = "precision=fp16";
    if (scales) p->string[p->n++] = "loss_scale_power=64";
    if (is_each && !is_said("PENSTOCK_MODE")) p->string[p->n++] = "mode=zero2";
    if (rule_size == 0 || rule_size > 64) return;
    snprintf(optim, CONFIG_TEXT_BYTES, "optim=%.*s lr=1", (int)rule_size, rule);
    p->string[p->n++] = optim;
}

pen_status job_settings_foretell(const char *const *launcher, int32_t world_size, pen_error *why)
{
    worker_settings s;
    job_mode chosen;
    program p;
    char optim[CONFIG_TEXT_BYTES];
    imagine(&p, optim);
    const pen_status status = worker_settings_load_after(&s, p.string, launcher, why);
    if (status != PEN_OK) return status;
    const bool is_alone = world_size == 1 && s.servers <= 0 && s.workers_max == 0;
    return job_settings_check(&s, (job_place){is_alone, world_size}, &chosen, why);
}
