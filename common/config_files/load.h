/* load.h - the configuration files of a job, wherever they are named: flags of `penstock run`, variables, or strings of
 * pen_init().  Read, joined and resolved here, so that all of them mean the same. */
#ifndef COMMON_CONFIG_FILES_LOAD_H
#define COMMON_CONFIG_FILES_LOAD_H

#include "common/config_files/resolve.h"

typedef struct {
    const char *config;    /* of accelerate; NULL or "": none */
    const char *ds_config; /* of DeepSpeed; NULL or "": the one that `config` names, or none */
    /* keys of accelerate's file that flags say, which come before it; NULL: none */
    const document *flags;
    resolve_flags autos;
} config_files;

/* The name of a file of accelerate ends in .yml, .yaml or .json; any other is a file of settings, name = value. */
bool config_files_is_yaml(const char *name);
bool config_files_is_accelerate(const char *name);

/* One of the two files is named, or a flag says a key of one. */
bool config_files_is_any(const config_files *files);

/* Reads and resolves them.  Free with resolution_free(), also after an error.
 * Errors  NOT_FOUND    a file that cannot be read.
 *         BAD_SETTING  those of resolve(); two DeepSpeed files; what auto stands for, and no file to have it. */
pen_status config_files_load(const config_files *files, resolve_given given, resolution *out,
                             pen_error *why);

/* What is told once, when a job starts: one sentence with all keys without effect, then what was left open, then a line
 * for each auto that was filled in. */
void config_files_tell(const resolution *r, void (*tell)(const char *line, void *user), void *user);

#endif
