/* worker_env.h - a worker's place in its job, from its settings and common/launch/launch.h. */
#ifndef WORKER_WORKER_ENV_H
#define WORKER_WORKER_ENV_H

#include "common/launch/launch.h"
#include "worker/worker_settings.h"

#include <stdbool.h>

typedef struct {
    bool alone;
    int32_t rank, world_size;
    /* -1: not known from the launcher; the job assigns them */
    int32_t local_rank, local_world_size, node, nodes;
    int32_t servers;    /* -1: unknown */
    bool has_come_back; /* restarted by its launcher, which runs the scheduler */
    uint32_t port;      /* of the scheduler; 0 when alone */
    char addr[256];     /* of the scheduler */
    char host[256];     /* where others reach this worker; "": unknown */
    char source[40];    /* variable or setting of the rank: "RANK", "SLURM_PROCID", ... */
} worker_env;

/* Copies settings into *told, for launch_resolve(); `get` tells which of them came from the environment. */
void worker_env_tell(const worker_settings *s, launch_get get, launch_told *told);

/* Errors  those of launch_resolve(). */
pen_status worker_env_resolve(const worker_settings *s, launch_get get, worker_env *env,
                              pen_error *why);

#endif
