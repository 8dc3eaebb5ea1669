/* job_mode.h - who holds the state and who waits for whom: what settings and launcher come to together.  And all that
 * pen_init() refuses of them, which `penstock run` asks before it starts anything.
 * Pure, but for files that settings name. */
#ifndef WORKER_JOB_MODE_H
#define WORKER_JOB_MODE_H

#include "worker/worker_settings.h"

/* Who this worker is, as far as its settings depend on it. */
typedef struct {
    bool is_alone;
    int32_t world_size;
} job_place;

typedef struct {
    worker_mode mode; /* never MODE_AUTO */
    int stage;        /* how much is sharded; over servers `mode` is then MODE_PS_BSP */
    bool has_servers; /* false: servers that were given are not used */
    const char *sync; /* of the settings, or a constant */
} job_mode;

/* Errors  BAD_SETTING, UNSUPPORTED  what contradicts what, or what is missing. */
pen_status job_mode_choose(const worker_settings *s, job_place place, job_mode *chosen,
                           pen_error *why);

/* What pen_init() refuses of settings that worker_settings_load() takes: mode, precision, batches, words that name
 * something.  *chosen is the mode. */
pen_status job_settings_check(const worker_settings *s, job_place place, job_mode *chosen,
                              pen_error *why);

/* Whether workers of a job that is about to start would refuse what the environment says, and `launcher`, strings
 * "name=value" that come after it.  What a program itself may say is taken as said well. */
pen_status job_settings_foretell(const char *const *launcher, int32_t world_size, pen_error *why);

#endif
