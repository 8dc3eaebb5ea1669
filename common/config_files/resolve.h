/* resolve.h - configuration files of DeepSpeed and accelerate become settings of a job.
 *
 *   the keys of both files -> what each means (keys.h) -> contradictions -> "auto" -> settings, each with its source
 *
 * Two files, or two keys of one, that say different things of one setting are an error that names both places.  The
 * environment and flags come later and win, as over every file of settings.  Nothing here touches the environment.
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

/* A key without effect, or something that was left open. */
typedef struct {
    char text[RESOLVED_LINE_BYTES]; /* the whole sentence */
    char key[2 *
             CONFIG_TEXT_BYTES]; /* "fp16.hysteresis (ds.json:9)", without effect; "": left open */
} resolved_notice;

typedef struct {
    resolved_list settings; /* for the processes: PENSTOCK_<NAME>                              */
    resolved_list start;    /* for the launcher: num_processes, num_machines, machine_rank,
                             * main_process_ip, main_process_port, cuda_visible_devices         */
    resolved_notice *notices;
    size_t n_notices;
} resolution;

/* What flags of `penstock run`, or variables, say of "auto"; NULL: not given.  They also win over a value in the file.
 */
typedef struct {
    const char *hidden_size, *lr, *weight_decay, *warmup_steps, *total_steps;
    bool are_variables; /* a sentence asks for PENSTOCK_LR, and not for --lr */
} resolve_flags;

/* The value of a setting that a flag or the environment gives, and which of them; NULL: neither does. */
typedef struct {
    const char *(*find)(const void *user, const char *setting, const char **source);
    const void *user;
} resolve_given;

/* `yaml` of accelerate and `json` of DeepSpeed; either may be NULL.  Free with resolution_free(), also after an error.
 * Errors  BAD_SETTING  a key that is unknown, a value that is not accepted, a contradiction, an auto nothing resolves. */
pen_status resolve(const document *yaml, const document *json, const resolve_flags *flags,
                   resolve_given given, resolution *out, pen_error *why);

const resolved_value *resolved_find(const resolved_list *list,
                                    const char *name); /* NULL: not there */

void resolution_free(resolution *r);

/* The setting each key and rule may set, NULL-terminated; a test compares them with the tables of settings. */
extern const char *const resolve_targets[];

#endif
