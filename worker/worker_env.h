/* worker_env.h - who this worker is in its job: common/launch/launch.h, with what its settings say. */
#ifndef WORKER_WORKER_ENV_H
#define WORKER_WORKER_ENV_H

#include "common/launch/launch.h"
#include "worker/worker_settings.h"

#include <stdbool.h>

typedef struct {
    bool alone;
    int32_t rank, world_size;
    int32_t local_rank, local_world_size, node,
        nodes;          /* -1: the launcher does not say; the job does */
    int32_t servers;    /* -1: not said */
    bool has_come_back; /* its launcher has started it again, and runs the scheduler by itself */
    uint32_t port;      /* of the scheduler; 0 when alone */
    char addr[256];     /* of the scheduler */
    char host[256];     /* by which others reach this worker; "": not said */
    char source[40];    /* where rank came from: "RANK", "SLURM_PROCID", ... */
} worker_env;

/* What the settings say, for launch_resolve(); `get` is asked which of them came from the environment. */
void worker_env_tell(const worker_settings *s, launch_get get, launch_told *told);

/* Errors  those of launch_resolve(). */
pen_status worker_env_resolve(const worker_settings *s, launch_get get, worker_env *env,
                              pen_error *why);

#endif
