/* worker_env.c - who this process is: RANK and friends, Slurm, OpenMPI, or nobody. */
#include "worker/worker_env.h"

#include "common/why.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT_DEFAULT = 29500 }; /* torchrun's */

typedef struct { /* what one launcher calls things; NULL: it has no word for it */
    const char *rank, *world_size, *local_rank, *local_world_size, *node, *nodes;
} names;

static const names plain = {"RANK",       "WORLD_SIZE",      "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                            "GROUP_RANK", "GROUP_WORLD_SIZE"};
static const names slurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                            NULL,           "SLURM_NODEID",         "SLURM_STEP_NUM_NODES"};
static const names ompi  = {"OMPI_COMM_WORLD_RANK",       "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                            "OMPI_COMM_WORLD_NODE_RANK",  NULL};

static pen_status read_number(worker_env_get get, const char *name, int64_t max, int64_t *value,
                              pen_error *why)
{
    const char *text = name != NULL ? get(name) : NULL;
    if (text == NULL) return PEN_OK;
    char *end;
    errno            = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || number < 0 || number > max)
        return why_set(why, PEN_BAD_SETTING, "%s is '%.64s': not a number from 0 to %lld", name,
                       text, (long long)max);
    *value = number;
    return PEN_OK;
}

/* Slurm leaves SLURM_PROCID=0 behind in an interactive shell, where no other task will ever
 * come. */
static bool is_slurm_step(worker_env_get get)
{
    const char *tasks = get("SLURM_STEP_NUM_TASKS"), *name = get("SLURM_JOB_NAME");
    if (get("SLURM_PROCID") == NULL || tasks == NULL || atoi(tasks) < 2) return false;
    if (get("SLURM_STEP_ID") == NULL && get("SLURM_STEPID") == NULL) return false;
    if (get("SLURM_PTY_PORT") != NULL) return false;
    return name == NULL || (strcmp(name, "bash") != 0 && strcmp(name, "interactive") != 0);
}

bool worker_env_first_host(const char *nodelist, char *host, size_t size)
{
    size_t prefix = strcspn(nodelist, "[,");
    size_t digits = nodelist[prefix] == '[' ? strcspn(nodelist + prefix + 1, "-,]") : 0;
    if (prefix + digits == 0 || prefix + digits >= size) return false;
    memcpy(host, nodelist, prefix);
    memcpy(host + prefix, nodelist + prefix + 1, digits);
    host[prefix + digits] = '\0';
    return true;
}

static pen_status missing(const char *set, const char *unset, pen_error *why)
{
    return why_set(
        why, PEN_BAD_SETTING,
        "%s is set but %s is not; a job needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, "
        "a program on its own none of them",
        set, unset);
}

/* A half-written environment trains N separate models and says nothing: refuse it. */
static pen_status check_plain(worker_env_get get, bool has_world, pen_error *why)
{
    static const char *const set[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    for (int i = 0; i < 4; i++) {
        if (get(set[i]) == NULL) continue;
        if (get("RANK") == NULL) return missing(set[i], "RANK", why);
        if (!has_world) return missing(set[i], "WORLD_SIZE", why);
    }
    return PEN_OK;
}

typedef struct {
    int64_t rank, world_size, local_rank, local_world_size, node, nodes;
} numbers;

static pen_status read_all(worker_env_get get, const names *n, numbers *out, pen_error *why)
{
    const struct {
        const char *name;
        int64_t *value;
    } rows[] = {{n->rank, &out->rank},
                {n->world_size, &out->world_size},
                {n->local_rank, &out->local_rank},
                {n->local_world_size, &out->local_world_size},
                {n->node, &out->node},
                {n->nodes, &out->nodes}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        pen_status status = read_number(get, rows[i].name, 1048576, rows[i].value, why);
        if (status != PEN_OK) return status;
    }
    return PEN_OK;
}

/* PENSTOCK_RANK beats RANK, which beats pen_init("rank=..."). */
static void overlay(worker_env_get get, const char *variable, int64_t setting, int64_t *value)
{
    if (setting >= 0 && (*value < 0 || get(variable) != NULL)) *value = setting;
}

static pen_status find_numbers(const worker_settings *s, worker_env_get get, numbers *n,
                               char *source, size_t size, pen_error *why)
{
    const names *launcher = &plain;
    if (get("RANK") == NULL && s->rank < 0) {
        if (is_slurm_step(get))
            launcher = &slurm;
        else if (get("OMPI_COMM_WORLD_RANK") != NULL)
            launcher = &ompi;
    }
    pen_status status = read_all(get, launcher, n, why);
    if (status != PEN_OK) return status;
    overlay(get, "PENSTOCK_RANK", s->rank, &n->rank);
    overlay(get, "PENSTOCK_WORLD_SIZE", s->world_size, &n->world_size);
    overlay(get, "PENSTOCK_LOCAL_RANK", s->local_rank, &n->local_rank);
    overlay(get, "PENSTOCK_LOCAL_WORLD_SIZE", s->local_world_size, &n->local_world_size);
    snprintf(source, size, "%s",
             get(launcher->rank) != NULL ? launcher->rank
             : n->rank >= 0              ? "settings"
                                         : "nothing");
    if (launcher != &plain) return PEN_OK;
    if (n->rank < 0) return check_plain(get, n->world_size >= 0, why);
    return n->world_size < 0 ? missing("RANK", "WORLD_SIZE", why) : PEN_OK;
}

static pen_status find_address(const worker_settings *s, worker_env_get get, const numbers *n,
                               worker_env *env, pen_error *why)
{
    const char *addr = s->master_addr, *nodes = get("SLURM_STEP_NODELIST");
    if (get("PENSTOCK_MASTER_ADDR") == NULL && get("MASTER_ADDR") != NULL)
        addr = get("MASTER_ADDR");
    if (addr[0] != '\0') {
        if (strlen(addr) >= sizeof env->addr)
            return why_set(why, PEN_BAD_SETTING, "MASTER_ADDR is too long for a host name");
        memcpy(env->addr, addr, strlen(addr) + 1);
        return PEN_OK;
    }
    if (strcmp(env->source, slurm.rank) == 0) {
        if (nodes == NULL) nodes = get("SLURM_JOB_NODELIST");
        if (nodes != NULL && worker_env_first_host(nodes, env->addr, sizeof env->addr))
            return PEN_OK;
    }
    if (strcmp(env->source, ompi.rank) == 0 && n->local_world_size == n->world_size) {
        memcpy(env->addr, "127.0.0.1", sizeof "127.0.0.1");
        return PEN_OK;
    }
    return missing(env->source, "MASTER_ADDR", why);
}

static pen_status find_port(const worker_settings *s, worker_env_get get, worker_env *env,
                            pen_error *why)
{
    if (s->port != 0) {
        env->port = (uint32_t)s->port;
        return PEN_OK;
    }
    int64_t port      = s->master_port != 0 ? (int64_t)s->master_port : -1;
    pen_status status = get("PENSTOCK_MASTER_PORT") == NULL
                            ? read_number(get, "MASTER_PORT", 65535, &port, why)
                            : PEN_OK;
    if (status != PEN_OK) return status;
    if (port < 0) {
        const char *job = get("SLURM_JOB_ID");
        if (strcmp(env->source, plain.rank) == 0 || strcmp(env->source, "settings") == 0)
            return missing("MASTER_ADDR", "MASTER_PORT", why);
        /* Two jobs of one host must not meet, and all ranks must find the same number. */
        port = strcmp(env->source, slurm.rank) == 0 && job != NULL ? 15000 + atoll(job) % 10000
                                                                   : PORT_DEFAULT;
    }
    const char *agent = get("TORCHELASTIC_USE_AGENT_STORE");
    if (agent != NULL && strcmp(agent, "True") == 0) port++; /* that port is torchrun's own store */
    if (port == 0 || port > 65535)
        return why_set(why, PEN_BAD_SETTING, "MASTER_PORT is %lld: not a port", (long long)port);
    env->port = (uint32_t)port;
    return PEN_OK;
}

static int32_t or_else(int64_t value, int32_t otherwise)
{
    return value >= 0 ? (int32_t)value : otherwise;
}

pen_status worker_env_resolve(const worker_settings *s, worker_env_get get, worker_env *env,
                              pen_error *why)
{
    *env      = (worker_env){.world_size = 1, .local_world_size = 1, .nodes = 1};
    numbers n = {-1, -1, -1, -1, -1, -1};

    pen_status status = find_numbers(s, get, &n, env->source, sizeof env->source, why);
    if (status != PEN_OK) return status;
    if (n.rank < 0) {
        env->alone = true;
        return PEN_OK;
    }
    const int64_t most =
        (int64_t)s->workers_max > n.world_size ? (int64_t)s->workers_max : n.world_size;
    if (n.world_size < 1 || n.rank >= most)
        return why_set(why, PEN_BAD_SETTING,
                       "rank %lld is outside a world of %lld; ranks count from 0",
                       (long long)n.rank, (long long)most);
    env->rank             = (int32_t)n.rank;
    env->world_size       = (int32_t)n.world_size;
    env->local_rank       = or_else(n.local_rank, 0);
    env->local_world_size = or_else(n.local_world_size, 1);
    env->node             = or_else(n.node, 0);
    env->nodes            = or_else(n.nodes, 1);
    if (n.world_size == 1 && s->servers <= 0) {
        env->alone = true;
        return PEN_OK;
    }
    status = find_address(s, get, &n, env, why);
    return status == PEN_OK ? find_port(s, get, env, why) : status;
}
