/* job_mode.h - the mode of a job, from settings and launcher together: who holds the state, and who waits for whom.
 * Also all checks of pen_init(), which `penstock run` makes before it starts a process.
 * Pure, except that it reads files named by settings. */
#ifndef WORKER_JOB_MODE_H
#define WORKER_JOB_MODE_H

#include "worker/worker_settings.h"

/* What the mode depends on besides the settings. */
typedef struct {
    bool is_alone;
    int32_t world_size;
} job_place;

typedef struct {
    worker_mode mode; /* never MODE_AUTO */
    int stage;        /* how much is sharded; with servers `mode` is MODE_PS_BSP then */
    bool has_servers; /* false: servers are not used, even if they were given */
    const char *sync; /* points into the settings, or to a constant */
} job_mode;

/* Errors  BAD_SETTING, UNSUPPORTED  name the contradiction, or what is missing. */
pen_status job_mode_choose(const worker_settings *s, job_place place, job_mode *chosen,
                           pen_error *why);

/* The checks of pen_init() beyond worker_settings_load(): mode, precision, batches, names.  *chosen is the mode. */
pen_status job_settings_check(const worker_settings *s, job_place place, job_mode *chosen,
                              pen_error *why);

/* The error that workers of a new job would return for this environment and then `launcher`, strings "name=value".
 * Strings of the program are unknown and assumed to be right. */
pen_status job_settings_foretell(const char *const *launcher, int32_t world_size, pen_error *why);

#endif
