/* worker_files.h - configuration files of accelerate and DeepSpeed as a worker's settings: those that PENSTOCK_CONFIG or
 * PENSTOCK_DS_CONFIG names under any launcher, and those that `penstock run` was given. */
#ifndef WORKER_WORKER_FILES_H
#define WORKER_WORKER_FILES_H

#include "common/config_files/load.h"
#include "worker/worker_settings.h"

/* A value is one that the setting takes.  A rule's rate may still come from the program.  BAD_SETTING names the place. */
pen_status worker_files_check(const resolved_value *v, pen_error *why);

/* What the variables PENSTOCK_CONFIG, PENSTOCK_DS_CONFIG and those of auto say, or where there is none, `s` (NULL: nobody). */
config_files worker_files_named(const worker_settings *s);

/* Reads the files, with settings of the environment as what was given.  Free with resolution_free(), also after an error.
 * Errors  those of config_files_load() and worker_files_check(). */
pen_status worker_files_load(const config_files *files, resolution *out, pen_error *why);

/* The same into a worker's settings; what is to be told goes into s->notes. */
pen_status worker_files_apply(worker_settings *s, pen_error *why);

/* Logs s->notes, a notice a line. */
void worker_files_tell(const worker_settings *s);

#endif
