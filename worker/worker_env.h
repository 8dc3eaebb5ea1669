/* worker_env.h - who this process is in its job, from whatever launcher started it.
 *
 * RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT come first; where RANK is
 * absent, Slurm's and OpenMPI's own names are understood.  Slurm counts only inside a job step of
 * several tasks that is not an interactive shell: there its variables are left over and describe
 * nobody.  With none of them the program is alone.  Pure: the environment is a function.
 */
#ifndef WORKER_WORKER_ENV_H
#define WORKER_WORKER_ENV_H

#include "penstock.h"
#include "worker/worker_settings.h"

#include <stdbool.h>

typedef const char *(*worker_env_get)(const char *name); /* NULL when not set */

typedef struct {
    bool alone;
    int32_t rank, world_size, local_rank, local_world_size, node, nodes;
    uint32_t port;   /* of the scheduler; 0 when alone */
    char addr[256];  /* of the scheduler */
    char source[32]; /* where rank came from: "RANK", "SLURM_PROCID", ... */
} worker_env;

/* BAD_SETTING names the variable that is missing or wrong: "RANK is set but WORLD_SIZE is not;
 * ...". */
pen_status worker_env_resolve(const worker_settings *s, worker_env_get get, worker_env *env,
                              pen_error *why);

/* "node[03-07,12],x" -> "node03"; false when it does not fit or is empty. */
bool worker_env_first_host(const char *nodelist, char *host, size_t size);

#endif
