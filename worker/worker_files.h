/* worker_files.h - configuration files of accelerate and DeepSpeed as a worker's settings: those named by
 * PENSTOCK_CONFIG or PENSTOCK_DS_CONFIG under any launcher, and those given to `penstock run`. */
#ifndef WORKER_WORKER_FILES_H
#define WORKER_WORKER_FILES_H

#include "common/config_files/load.h"
#include "worker/worker_settings.h"

/* The setting accepts the value; a rule's rate may come later, from the program.  BAD_SETTING names the place. */
pen_status worker_files_check(const resolved_value *v, pen_error *why);

/* Files and auto values from the environment; *s has those that are not set there (NULL: none). */
config_files worker_files_named(const worker_settings *s);

/* Reads the files; settings of the environment take precedence.  Free with resolution_free(), also after an error.
 * Errors  those of config_files_load() and worker_files_check(). */
pen_status worker_files_load(const config_files *files, resolution *out, pen_error *why);

/* Reads the files into a worker's settings, which hold the program's own; notices go into s->notes.  program_may_say:
 * before a job starts. */
pen_status worker_files_apply(worker_settings *s, bool program_may_say, pen_error *why);

/* Logs s->notes, one notice per line. */
void worker_files_tell(const worker_settings *s);

#endif
