/* load.h - loads the configuration files of a job, named by flags of `penstock run`, variables, or strings of
 * pen_init().  One place reads, joins and resolves them, so that they always mean the same. */
#ifndef COMMON_CONFIG_FILES_LOAD_H
#define COMMON_CONFIG_FILES_LOAD_H

#include "common/config_files/document.h"
#include "common/config_files/resolve.h"

typedef struct {
    const char *config;    /* of accelerate; NULL or "": none */
    const char *ds_config; /* of DeepSpeed; NULL or "": the file that `config` names, or none */
    /* flags that set keys of accelerate's file and override it; NULL: none */
    const document *flags;
    resolve_flags autos;
} config_files;

/* Whether a name ends in .yml, .yaml or .json: accelerate's file.  Others are files of settings, name = value. */
bool config_files_is_yaml(const char *name);
bool config_files_is_accelerate(const char *name);

/* Whether a file is named, or a flag sets a key of one. */
bool config_files_is_any(const config_files *files);

/* Reads and resolves them.  Free with resolution_free(), also after an error.
 * Errors  NOT_FOUND    a file cannot be read.
 *         BAD_SETTING  those of resolve(); two DeepSpeed files; a value for auto without a file that uses it. */
pen_status config_files_load(const config_files *files, resolve_given given, resolution *out,
                             pen_error *why);

/* What a starting job reports once: one sentence with all keys without effect, then what was left open, then a
 * line for each auto that was filled in. */
void config_files_tell(const resolution *r, void (*tell)(const char *line, void *user), void *user);

/* Reads a file by its extension: .yml and .yaml as YAML, all others as JSON.
 * Errors  NOT_FOUND  cannot be read.   BAD_SETTING  invalid content; *d is then empty. */
pen_status document_read(document *d, const char *path, pen_error *why);

#endif
