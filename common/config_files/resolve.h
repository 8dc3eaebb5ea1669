/* resolve.h - configuration files of DeepSpeed and accelerate become settings of a job.
 *
 *   the keys of both files -> what each means (keys.h) -> contradictions -> "auto" -> settings, each with its source
 *
 * If two files, or two keys of one file, disagree about a setting, the error names both places.  The environment and
 * flags override both files, as they override every file of settings.  The environment is not read here.
 */
#ifndef COMMON_CONFIG_FILES_RESOLVE_H
#define COMMON_CONFIG_FILES_RESOLVE_H

#include "common/config_files/document.h"

enum { RESOLVED_SETTINGS_MAX = 64, RESOLVED_LINES_MAX = 256, RESOLVED_LINE_BYTES = 512 };

typedef struct {
    char name[64];
    char value[CONFIG_TEXT_BYTES];
    char source
        [RESOLVED_LINE_BYTES]; /* "ds.json:24", "flag", "environment", "auto (...), ds.json:9" */
} resolved_value;

typedef struct {
    resolved_value values[RESOLVED_SETTINGS_MAX];
    size_t n;
} resolved_list;

/* A key without effect, or a value left open. */
typedef struct {
    char text[RESOLVED_LINE_BYTES]; /* the whole sentence */
    char key[2 *
             CONFIG_TEXT_BYTES]; /* "fp16.hysteresis (ds.json:9)", without effect; "": left open */
} resolved_notice;

typedef struct {
    resolved_list settings; /* for the processes: PENSTOCK_<NAME> */
    resolved_list start;    /* for the launcher: num_processes, num_machines, machine_rank,
                             * main_process_ip, main_process_port, cuda_visible_devices */
    resolved_notice *notices;
    size_t n_notices;
    bool is_open; /* some auto is left to the program: its setting is absent */
} resolution;

/* Values for "auto"; NULL: not given. */
typedef struct {
    /* From flags of `penstock run` or variables.  They override a value in the file. */
    const char *hidden_size, *lr, *weight_decay, *warmup_steps, *total_steps;
    bool are_variables; /* error messages name PENSTOCK_LR instead of --lr */

    /* The program's own, from pen_init(): they fill in an auto that nothing above says. */
    const char *optim, *schedule, *steps;
    bool program_may_say; /* it has not been heard yet: what it may say is left open */
} resolve_flags;

/* The value of a setting given by a flag or the environment, and its source; NULL: not given. */
typedef struct {
    const char *(*find)(const void *user, const char *setting, const char **source);
    const void *user;
} resolve_given;

/* Resolves `yaml` of accelerate and `json` of DeepSpeed; either may be NULL.  Free with resolution_free() in any case.
 * Errors  BAD_SETTING  unknown key, value not accepted, contradiction, an auto without a value. */
pen_status resolve(const document *yaml, const document *json, const resolve_flags *flags,
                   resolve_given given, resolution *out, pen_error *why);

const resolved_value *resolved_find(const resolved_list *list,
                                    const char *name); /* NULL: not found */

void resolution_free(resolution *r);

/* The settings that keys and rules may set, NULL-terminated; a test compares them with the tables of settings. */
extern const char *const resolve_targets[];

#endif
