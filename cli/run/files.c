/* files.c - configuration files of accelerate and DeepSpeed, as `penstock run` uses them. */
#include "cli/run/files.h"
#include "cli/command.h"
#include "common/base/why.h"
#include "worker/train/schedule/batch_plan.h"
#include "worker/worker_files.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of this process's command line. */
static resolution resolved;
static resolved_list started; /* the launcher's final values */

/* ---- flags ----------------------------------------------------------------------------------------------- */

static const char *check_number(struct argp_state *state, const char *flag, const char *text,
                                bool whole)
{
    char *end;
    const double value = strtod(text, &end);
    const double most  = whole ? INT_MAX : 1e30;
    if (end == text || *end != '\0' || !(value >= 0 && value <= most) ||
        (whole && value != (double)(int)value))
        argp_failure(state, EXIT_USAGE, 0, "--%s is '%s', but must be a %snumber of at least 0",
                     flag, text, whole ? "whole " : "");
    return text;
}

error_t run_files_flag(int key, char *text, struct argp_state *state)
{
    run_options *o = state->input;
    switch (key) {
    case FILES_CONFIG:
        if (config_files_is_accelerate(text))
            o->files.config = text;
        else
            run_files_put(o, "config", text);
        break;
    case FILES_DS_CONFIG: o->files.ds_config = text; break;
    case FILES_PRINT_CONFIG: o->print_config = true; break;
    case FILES_HIDDEN_SIZE:
        o->files.autos.hidden_size = check_number(state, "hidden-size", text, true);
        break;
    case FILES_LR: o->files.autos.lr = check_number(state, "lr", text, false); break;
    case FILES_WEIGHT_DECAY:
        o->files.autos.weight_decay = check_number(state, "weight-decay", text, false);
        break;
    case FILES_WARMUP_STEPS:
        o->files.autos.warmup_steps = check_number(state, "warmup-steps", text, true);
        break;
    case FILES_TOTAL_STEPS:
        o->files.autos.total_steps = check_number(state, "total-steps", text, true);
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void put_variable(const char *setting, const char *value)
{
    char variable[CONFIG_VARIABLE_BYTES];
    config_variable(setting, variable);
    setenv(variable, value, 1);
}

void run_files_put(run_options *o, const char *setting, const char *value)
{
    if (o->n_flags < RUN_FLAGS_MAX) o->flags[o->n_flags++] = setting;
    put_variable(setting, value);
}

static const char *find_given(const void *user, const char *setting, const char **source)
{
    const run_options *o = user;
    char variable[CONFIG_VARIABLE_BYTES];
    config_variable(setting, variable);
    *source = "environment";
    for (int i = 0; i < o->n_flags; i++)
        if (strcmp(o->flags[i], setting) == 0) *source = "flag";
    if (strcmp(setting, "mode") == 0 && o->mode != NULL) {
        *source = "flag";
        return o->mode;
    }
    return config_env(variable);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

/* The files and the values of auto: flags, each with a variable of the same name. */
static const struct {
    const char *setting;
    size_t at; /* of a const char * in config_files */
} sayings[] = {{"config", offsetof(config_files, config)},
               {"ds_config", offsetof(config_files, ds_config)},
               {"hidden_size", offsetof(config_files, autos.hidden_size)},
               {"lr", offsetof(config_files, autos.lr)},
               {"weight_decay", offsetof(config_files, autos.weight_decay)},
               {"warmup_steps", offsetof(config_files, autos.warmup_steps)},
               {"total_steps", offsetof(config_files, autos.total_steps)}};
enum { SAYINGS = sizeof sayings / sizeof *sayings };

static const char **saying(config_files *files, int i)
{
    return (const char **)((char *)files + sayings[i].at);
}

/* The program may say what is still auto: its workers read the files once more, with what it says. */
static void leave_open(run_options *o)
{
    for (int i = 0; i < SAYINGS; i++)
        if (*saying(&o->files, i) != NULL) put_variable(sayings[i].setting, *saying(&o->files, i));
}

static uint64_t whole_of(const char *setting)
{
    const resolved_value *v = resolved_find(&resolved.settings, setting);
    return v != NULL ? strtoull(v->value, NULL, 10) : 0;
}

/* Derives the third value from the other two. */
static pen_status plan_batch(const run_options *o, pen_error *why)
{
    static const char *const names[] = {"train_batch", "micro_batch", "accum"};
    batch_plan b            = {whole_of("train_batch"), whole_of("micro_batch"), whole_of("accum")};
    const uint64_t before[] = {b.train, b.micro, b.accum};
    const pen_status status = batch_plan_resolve(&b, (uint64_t)o->nproc * (uint64_t)o->nnodes, why);
    const uint64_t after[]  = {b.train, b.micro, b.accum};
    const resolved_value *by = NULL;
    for (int i = 0; i < 3 && by == NULL; i++) by = resolved_find(&resolved.settings, names[i]);
    if (by == NULL) return PEN_OK;
    if (status != PEN_OK) {
        const pen_error said = *why;
        return why_set(why, status, "%s  (from %s)", said.text, by->source);
    }
    for (int i = 0; i < 3; i++) {
        resolved_value *v = &resolved.settings.values[resolved.settings.n];
        if (after[i] == before[i] || resolved.settings.n == RESOLVED_SETTINGS_MAX) continue;
        snprintf(v->name, sizeof v->name, "%s", names[i]);
        snprintf(v->value, sizeof v->value, "%llu", (unsigned long long)after[i]);
        snprintf(v->source, sizeof v->source, "auto: micro-batch x accumulation x %d workers",
                 o->nproc * o->nnodes);
        resolved.settings.n++;
    }
    return PEN_OK;
}

/* ---- the launcher's own ---------------------------------------------------------------------------------- */

static void note_start(const char *name, const char *value, const char *source)
{
    resolved_value *v = &started.values[started.n++];
    snprintf(v->name, sizeof v->name, "%s", name);
    snprintf(v->value, sizeof v->value, "%s", value);
    snprintf(v->source, sizeof v->source, "%s", source);
}

static void note_number(const char *name, int value, const char *source)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    note_start(name, text, source);
}

/* A number from the file, unless a flag gave one (*field is not `unsaid`). */
static pen_status take_number(int *field, int unsaid, const char *name, int min, int max, int dfl,
                              pen_error *why)
{
    const resolved_value *v = resolved_find(&resolved.start, name);
    if (*field != unsaid) {
        note_number(name, *field, "flag");
        return PEN_OK;
    }
    const double value = v != NULL ? strtod(v->value, NULL) : dfl;
    if (v != NULL && (value < min || value > max))
        return why_set(why, PEN_BAD_SETTING, "%s is %s, but must be from %d to %d  (from %s)", name,
                       v->value, min, max, v->source);
    *field = (int)value;
    note_number(name, *field, v != NULL ? v->source : "default");
    return PEN_OK;
}

static pen_status share_processes(run_options *o, pen_error *why)
{
    const resolved_value *v = resolved_find(&resolved.start, "num_processes");
    int all                 = o->nproc * o->nnodes;
    pen_status status =
        take_number(&all, 0, "num_processes", 1, RUN_LOCAL_MAX * o->nnodes, o->nnodes, why);
    if (status != PEN_OK || o->nproc > 0) return status;
    if (all % o->nnodes != 0)
        return why_set(why, PEN_BAD_SETTING,
                       "num_processes %d is not a multiple of %d machines; each needs the same "
                       "number of workers  (from %s)",
                       all, o->nnodes, v->source);
    o->nproc = o->nproc_min = o->nproc_max = all / o->nnodes;
    return PEN_OK;
}

static bool wants_cuda(void)
{
    const char *device = config_env("PENSTOCK_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0;
}

static pen_status find_devices(run_options *o, pen_error *why)
{
    const pen_status status = run_devices_find(&o->devices, why);
    if (status != PEN_OK || o->devices.list.n > 0) return status;
    if (o->nproc_unit == NPROC_GPU)
        return why_set(why, PEN_BAD_SETTING,
                       "%s is gpu, but there is no CUDA device (%s); use a number, cpu or auto",
                       o->nproc_name, o->devices.note);
    if (wants_cuda())
        return why_set(why, PEN_BAD_SETTING,
                       "--device is cuda, but there is no CUDA device (%s); use --device host or "
                       "auto",
                       o->devices.note);
    return PEN_OK;
}

/* Finds the devices of this machine, and counts the workers of --nproc-per-node gpu, cpu and auto. */
static pen_status count_workers(run_options *o, pen_error *why)
{
    const bool by_device = o->nproc_unit == NPROC_GPU || o->nproc_unit == NPROC_AUTO;
    if (o->emits && by_device)
        return why_set(why, PEN_BAD_SETTING,
                       "--emit k8s cannot count the devices of another machine; set "
                       "--nproc-per-node N");
    const pen_status status = o->emits ? PEN_OK : find_devices(o, why);
    if (status != PEN_OK || o->nproc_unit == NPROC_NUMBER) return status;
    const int devices = by_device ? o->devices.list.n : 0;
    const int n       = devices > 0 ? devices : (int)sysconf(_SC_NPROCESSORS_ONLN);
    o->nproc = o->nproc_min = o->nproc_max = n < RUN_LOCAL_MAX ? n : RUN_LOCAL_MAX;
    return PEN_OK;
}

static pen_status take_start(run_options *o, pen_error *why)
{
    const resolved_value *ip   = resolved_find(&resolved.start, "main_process_ip");
    const resolved_value *cuda = resolved_find(&resolved.start, "cuda_visible_devices");
    const bool one_machine     = o->nnodes == 0;
    pen_status status          = take_number(&o->nnodes, 0, "num_machines", 1, 100000, 1, why);
    if (status == PEN_OK) status = take_number(&o->node_rank, -1, "machine_rank", 0, 99999, 0, why);
    if (status == PEN_OK)
        status = take_number(&o->master_port, -1, "main_process_port", 0, 65535, -1, why);
    if (status != PEN_OK) return status;
    if (one_machine) o->nnodes_max = o->nnodes;
    const bool is_said = o->master_addr[0] != '\0';
    if (!is_said)
        snprintf(o->master_addr, sizeof o->master_addr, "%s", ip != NULL ? ip->value : "127.0.0.1");
    note_start("main_process_ip", o->master_addr,
               is_said      ? "flag"
               : ip != NULL ? ip->source
                            : "default");
    note_number("servers", o->servers, o->servers > 0 ? "flag" : "default");
    const char *seen = config_env("CUDA_VISIBLE_DEVICES");
    if (cuda != NULL) {
        note_start(cuda->name, seen != NULL ? seen : cuda->value,
                   seen != NULL ? "environment" : cuda->source);
        setenv("CUDA_VISIBLE_DEVICES", cuda->value, 0);
    }
    status = count_workers(o, why);
    return status == PEN_OK ? share_processes(o, why) : status;
}

static void print_line(const char *line, void *user)
{
    (void)user;
    fprintf(stderr, "penstock: %s\n", line);
}

static pen_status put_settings(run_options *o, pen_error *why)
{
    const char *source;
    const resolved_value *mode = resolved_find(&resolved.settings, "mode");
    for (size_t i = 0; i < resolved.settings.n; i++) {
        const resolved_value *v = &resolved.settings.values[i];
        const pen_status status = worker_files_check(v, why);
        if (status != PEN_OK) return status;
        const bool is_joined = strcmp(v->name, "optim") == 0;
        if (is_joined || find_given(o, v->name, &source) == NULL) put_variable(v->name, v->value);
    }
    if (o->mode == NULL && mode != NULL) o->mode = mode->value;
    return PEN_OK;
}

int run_files_apply(run_options *o)
{
    pen_error why;
    /* A variable replaces a missing flag.  The processes get the resolved value instead of the variable
     * (leave_open()). */
    config_files named = worker_files_named(NULL);
    for (int i = 0; i < SAYINGS; i++) {
        char variable[CONFIG_VARIABLE_BYTES];
        const char *given = *saying(&named, i), **said = saying(&o->files, i);
        if (given == NULL) continue;
        if (*said == NULL) *said = strdup(given); /* lives as long as the process */
        config_variable(sayings[i].setting, variable);
        unsetenv(variable);
    }
    o->files.flags                 = &o->keys;
    o->files.autos.program_may_say = o->keys.n == 0; /* workers read files, not flags */
    const bool has_files           = config_files_is_any(&o->files);
    pen_status status =
        config_files_load(&o->files, (resolve_given){find_given, o}, &resolved, &why);
    if (status == PEN_OK) status = take_start(o, &why);
    if (status == PEN_OK && has_files) status = plan_batch(o, &why);
    if (status == PEN_OK && has_files) status = put_settings(o, &why);
    if (status == PEN_OK && resolved.is_open) leave_open(o);
    if (status == PEN_OK && o->node_rank == 0 && !o->print_config && !resolved.is_open)
        config_files_tell(&resolved, print_line, NULL);
    if (status != PEN_OK || !o->print_config) resolution_free(&resolved);
    return status == PEN_OK ? -1 : command_fail(EXIT_USAGE, "%s", why.text);
}

/* ---- --print-config -------------------------------------------------------------------------------------- */

static void add(json_t *into, const char *name, json_t *value, const char *source)
{
    json_object_set_new(into, name, json_pack("{s:o, s:s}", "value", value, "source", source));
}

/* A free port is known only now. */
static json_t *launch_of(const run_options *o)
{
    json_t *launch = json_object();
    for (size_t i = 0; i < started.n; i++) {
        const resolved_value *v = &started.values[i];
        char *end;
        const long number    = strtol(v->value, &end, 10);
        const bool is_number = end != v->value && *end == '\0';
        if (strcmp(v->name, "main_process_port") == 0)
            add(launch, v->name, json_integer(o->master_port), v->source);
        else
            add(launch, v->name, is_number ? json_integer(number) : json_string(v->value),
                v->source);
    }
    return launch;
}

/* Number, boolean or string, as the setting's type reads it: 64m is 67108864, off is false. */
static json_t *value_of(const resolved_value *v)
{
    union {
        uint64_t u64;
        int64_t i64;
        double f64;
        bool is_on;
        int choice;
        config_text text;
    } read;
    pen_error why;
    config_row row[2] = {*command_setting(v->name)}; /* a table of this one */
    row->offset       = 0;
    if (config_set(row, &read, row->name, v->value, &why) != PEN_OK) return json_string(v->value);
    switch (row->type) {
    case CONFIG_U64: return json_integer((json_int_t)read.u64);
    case CONFIG_I64: return json_integer(read.i64);
    case CONFIG_F64: return isfinite(read.f64) ? json_real(read.f64) : json_string(v->value);
    case CONFIG_BOOL: return json_boolean(read.is_on);
    case CONFIG_ENUM:
        if (config_is_switch(row) && read.choice <= 1) return json_boolean(read.choice == 1);
        return json_string(row->choices[read.choice]);
    default: return json_string(v->value);
    }
}

int run_files_print(const run_options *o, FILE *out)
{
    json_t *settings = json_object(), *notices = json_array(), *launch = launch_of(o);
    const char *source;
    for (size_t i = 0; i < resolved.settings.n; i++) {
        const resolved_value *v = &resolved.settings.values[i];
        add(settings, v->name, value_of(v), v->source);
    }
    for (int i = 0; command_tables[i] != NULL; i++)
        for (const config_row *row = command_tables[i]; row->name != NULL; row++) {
            resolved_value v  = {.name = ""};
            const char *given = find_given(o, row->name, &source);
            if (given == NULL || json_object_get(settings, row->name) != NULL) continue;
            snprintf(v.name, sizeof v.name, "%s", row->name);
            snprintf(v.value, sizeof v.value, "%s", given);
            add(settings, row->name, value_of(&v), source);
        }
    for (size_t i = 0; i < resolved.n_notices; i++)
        json_array_append_new(notices, json_string(resolved.notices[i].text));
    json_t *all =
        json_pack("{s:o, s:o, s:o}", "launch", launch, "settings", settings, "notices", notices);
    json_dumpf(all, out, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(6));
    fputc('\n', out);
    json_decref(all);
    resolution_free(&resolved);
    return 0;
}
