/* worker_settings.c - the table of a worker's settings, and the sources that fill it. */
#include "worker/worker_settings.h"

#include "common/base/utf8.h"
#include "common/base/why.h"
#include "common/compute/optim/optim.h"
#include "worker/collective/schedule/schedule.h"
#include "worker/train/schedule/lr_schedule.h"
#include "worker/worker_files.h"

#include <stdio.h>
#include <string.h>

/* In the order of worker_mode; from MODE_COUNT on in the order of synonyms. */
static const char *const worker_mode_choices[] = {"auto",
                                                  "local",
                                                  "ps-bsp",
                                                  "ps-ssp",
                                                  "ps-async",
                                                  "ps-hier",
                                                  "allreduce",
                                                  "zero1",
                                                  "zero2",
                                                  "zero3",
                                                  "hybrid_shard",
                                                  "hybrid_shard_zero2",
                                                  "ddp",
                                                  "ps",
                                                  "no_shard",
                                                  "shard_grad_op",
                                                  "full_shard",
                                                  "NO_SHARD",
                                                  "SHARD_GRAD_OP",
                                                  "FULL_SHARD",
                                                  "HYBRID_SHARD",
                                                  "HYBRID_SHARD_ZERO2",
                                                  NULL};
static const worker_mode synonyms[]            = {
               MODE_ALLREDUCE, MODE_PS_BSP, MODE_ALLREDUCE, MODE_ZERO2,        MODE_ZERO3,
               MODE_ALLREDUCE, MODE_ZERO2,  MODE_ZERO3,     MODE_HYBRID_SHARD, MODE_HYBRID_SHARD_ZERO2};
_Static_assert(sizeof worker_mode_choices / sizeof worker_mode_choices[0] ==
                   MODE_COUNT + sizeof synonyms / sizeof synonyms[0] + 1,
               "every word says what it stands for");
static const char *const worker_accum_reduce_choices[] = {"auto", "last", "each", NULL};
static const char *const worker_precision_choices[]    = {"fp32", "bf16", "fp16", NULL};
static const char *const worker_wire_choices[]         = {"raw", "bf16", "f16", NULL};
static const char *const worker_commit_choices[]       = {"decide", "eager", NULL};
static const char *const worker_wrap_choices[]         = {"unit", "layer", "size", "none", NULL};
static const char *const worker_prefetch_choices[]     = {"pre", "post", "none", NULL};
static const char *const worker_log_choices[]          = {"all", "first", NULL};
static const char *const worker_two_level_choices[]    = {"auto", "yes", "no", NULL};
static const char *const worker_buffers_choices[]      = {"first", "mean", "own", NULL};
static const char *const worker_device_choices[]       = {"host", "cuda", "auto", NULL};
/* In the order of device_sync_choice. */
static const char *const worker_device_backend_choices[] = {"auto", "hostflag", "stream",
                                                            "spin", "nccl",     NULL};
static const char *const worker_scheduler_choices[]      = {"auto", "external", "hosted", NULL};

#define ROW(...) CONFIG_ROW(worker_settings, __VA_ARGS__)
const config_row worker_settings_rows[] = {WORKER_SETTINGS(ROW){0}};
const config_row worker_promises_rows[] = {WORKER_PROMISES(ROW){0}};

/* Settings that strings of pen_init() may name. */
static const config_row program_rows[] = {WORKER_SETTINGS(ROW) WORKER_PROMISES(ROW){0}};
#undef ROW

const char *worker_mode_name(int mode)
{
    return worker_mode_choices[mode];
}

int worker_mode_stage(int mode)
{
    static const int stage[MODE_COUNT] = {[MODE_ZERO1]              = 1,
                                          [MODE_ZERO2]              = 2,
                                          [MODE_ZERO3]              = 3,
                                          [MODE_HYBRID_SHARD]       = 3,
                                          [MODE_HYBRID_SHARD_ZERO2] = 2};
    return mode < MODE_COUNT ? stage[mode] : 0;
}

bool worker_mode_is_hybrid(int mode)
{
    return mode == MODE_HYBRID_SHARD || mode == MODE_HYBRID_SHARD_ZERO2;
}

const char *worker_precision_name(int precision)
{
    return worker_precision_choices[precision];
}

const char *worker_wire_name(int wire)
{
    return worker_wire_choices[wire];
}

static pen_status check_sharded(const worker_settings *s, pen_error *why)
{
    if (worker_mode_is_hybrid(s->mode) && s->servers > 0)
        return why_set(why, PEN_UNSUPPORTED,
                       "--servers %lld and --mode %s contradict each other: its shards are the "
                       "workers' own; use --servers 0, or mode=zero3",
                       (long long)s->servers, worker_mode_name(s->mode));
    if (worker_mode_stage(s->mode) > 0 && s->on_worker_loss != LOSS_FAIL && s->servers <= 0)
        return why_set(why, PEN_UNSUPPORTED,
                       "on_worker_loss=%s and mode=%s without servers contradict each other: a "
                       "worker that is lost takes its part of the optimizer state with it; use "
                       "--servers 1, mode=allreduce, or on_worker_loss=fail",
                       settings_loss_rules[s->on_worker_loss], worker_mode_name(s->mode));
    if (s->accum_reduce == ACCUM_REDUCE_EACH && worker_mode_stage(s->mode) == 0)
        return why_set(why, PEN_UNSUPPORTED,
                       "accum_reduce=each is for modes that shard gradients over the workers, and "
                       "mode=%s does not; use accum_reduce=last, or mode=zero2",
                       worker_mode_name(s->mode));
    return PEN_OK;
}

static pen_status check_place(const worker_settings *s, const char *setting, int place,
                              pen_error *why)
{
    if (s->servers > 0 || place == OFFLOAD_NONE || place == OFFLOAD_CPU) return PEN_OK;
    return why_set(why, PEN_UNSUPPORTED,
                   "%s=%s needs servers, which hold that state and its files: start the job with "
                   "--servers 1, or use %s=cpu",
                   setting, settings_offload[place], setting);
}

static pen_status check(const worker_settings *s, pen_error *why)
{
    pen_status status = utf8_check("job", s->job, why);
    if (status == PEN_OK) status = check_place(s, "offload_optimizer", s->offload_optimizer, why);
    if (status == PEN_OK) status = check_place(s, "offload_param", s->offload_param, why);
    if (status != PEN_OK) return status;
    if (check_sharded(s, why) != PEN_OK) return why->status;
    if (s->on_worker_loss == LOSS_WAIT && s->servers == 0)
        return why_set(
            why, PEN_UNSUPPORTED,
            "on_worker_loss=wait needs servers, which hold what the worker comes back to: "
            "start the job with --servers 1, or use continue");
    if (s->on_worker_loss != LOSS_FAIL && s->two_level == TWO_LEVEL_YES && s->servers > 0)
        return why_set(
            why, PEN_UNSUPPORTED,
            "on_worker_loss=%s and two_level=yes contradict each other with servers: the "
            "sum of a node needs all its workers",
            settings_loss_rules[s->on_worker_loss]);
    if ((s->on_worker_loss != LOSS_FAIL || s->workers_max > 0) && s->mode == MODE_PS_HIER)
        return why_set(why, PEN_UNSUPPORTED,
                       "mode=ps-hier needs workers that stay: the sum of a node needs all of them; "
                       "use mode=ps-bsp, or on_worker_loss=fail and a fixed number of workers");
    if (s->mode >= MODE_PS_BSP && s->mode <= MODE_PS_HIER && s->servers == 0)
        return why_set(
            why, PEN_BAD_SETTING,
            "mode=%s needs servers, and there are none: start the job with --servers 1, or "
            "use mode=allreduce",
            worker_mode_name(s->mode));
    if ((s->mode == MODE_LOCAL || s->mode == MODE_ALLREDUCE) && s->servers > 0)
        return why_set(why, PEN_BAD_SETTING, "--servers %lld and --mode %s contradict each other",
                       (long long)s->servers, worker_mode_name(s->mode));
    if (s->commit == COMMIT_EAGER && s->mode == MODE_PS_HIER)
        return why_set(why, PEN_BAD_SETTING,
                       "commit=eager and mode=ps-hier contradict each other: sums of nodes are "
                       "applied by whole steps");
    if (s->two_level == TWO_LEVEL_NO && s->mode == MODE_PS_HIER)
        return why_set(why, PEN_BAD_SETTING,
                       "two_level=no and mode=ps-hier contradict each other: that mode is ps-bsp "
                       "with two_level=yes");
    if (s->two_level == TWO_LEVEL_YES && s->commit == COMMIT_EAGER && s->servers > 0)
        return why_set(why, PEN_BAD_SETTING,
                       "commit=eager and two_level=yes contradict each other with servers: sums of "
                       "nodes are applied by whole steps");
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

/* A later source overrides single numbers of the rule, by name. */
static pen_status override_optim(worker_settings *s, char usual[CONFIG_TEXT_BYTES], pen_error *why)
{
    char given[CONFIG_TEXT_BYTES];
    memcpy(given, s->optim, sizeof given);
    const pen_status status = optim_override(usual, given, s->optim, sizeof s->optim, why);
    memcpy(usual, s->optim, sizeof given);
    return status;
}

static pen_status check_texts(const worker_settings *s, pen_error *why)
{
    const optim_ops *ops;
    optim_hyper hyper;
    lr_schedule rates;
    schedule_table *table = NULL;
    pen_status status     = PEN_OK;
    if (s->optim[0] != '\0') status = optim_parse(s->optim, &ops, &hyper, why);
    if (status == PEN_OK) status = lr_schedule_parse(s->schedule, &rates, why);
    if (status == PEN_OK && s->coll_algorithm[0] != '\0')
        status = schedule_table_parse(s->coll_algorithm, &table, why);
    schedule_table_free(table);
    return status;
}

/* A file of settings may name a DeepSpeed file. */
static pen_status load_files(worker_settings *s, bool program_may_say, pen_error *why)
{
    char file[CONFIG_TEXT_BYTES];
    const char *named = config_env("PENSTOCK_CONFIG");
    if (named != NULL && strlen(named) >= sizeof file)
        return why_set(why, PEN_BAD_SETTING, "the name of the file config is longer than %zu bytes",
                       sizeof file - 1);
    snprintf(file, sizeof file, "%s", named != NULL ? named : s->config);
    if (file[0] != '\0' && !config_files_is_accelerate(file) &&
        config_from_file(worker_settings_rows, s, file, why) != PEN_OK)
        return why->status;
    return worker_files_apply(s, program_may_say, why);
}

pen_status worker_settings_load(worker_settings *s, const char *const *strings, pen_error *why)
{
    return worker_settings_load_after(s, strings, NULL, why);
}

pen_status worker_settings_load_after(worker_settings *s, const char *const *strings,
                                      const char *const *launcher, pen_error *why)
{
    const config_row *const known[] = {worker_settings_rows, settings_foreign, NULL};

    config_defaults(program_rows, s);
    s->notes[0]       = '\0';
    pen_status status = config_from_strings(program_rows, s, strings, why);
    if (status != PEN_OK) return status;
    char usual[CONFIG_TEXT_BYTES];
    memcpy(usual, s->optim, sizeof usual);
    status = load_files(s, launcher != NULL, why);
    if (status == PEN_OK) status = override_optim(s, usual, why);
    if (status == PEN_OK) status = config_from_env(worker_settings_rows, s, known, why);
    if (status == PEN_OK) status = override_optim(s, usual, why);
    if (status == PEN_OK) status = config_from_strings(worker_settings_rows, s, launcher, why);
    if (status == PEN_OK) status = check_texts(s, why);
    if (status != PEN_OK) return status;
    if (s->mode >= MODE_COUNT) s->mode = (int)synonyms[s->mode - MODE_COUNT];
    return check(s, why);
}
