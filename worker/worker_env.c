/* worker_env.c - numbers from settings and launcher. */
#include "worker/worker_env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void tell_number(launch_told *told, launch_item item, const char *setting, int64_t value,
                        launch_get get)
{
    char text[24] = "";
    if (value >= 0) snprintf(text, sizeof text, "%lld", (long long)value);
    launch_tell(told, item, setting, text, get);
}

void worker_env_tell(const worker_settings *s, launch_get get, launch_told *told)
{
    *told = (launch_told){.role          = LAUNCH_WORKER,
                          .is_external   = s->scheduler == SCHEDULER_EXTERNAL,
                          .is_port_final = s->port != 0,
                          .ranks_max     = (int64_t)s->workers_max};
    tell_number(told, LAUNCH_RANK, "rank", s->rank, get);
    tell_number(told, LAUNCH_WORLD_SIZE, "world_size", s->world_size, get);
    tell_number(told, LAUNCH_LOCAL_RANK, "local_rank", s->local_rank, get);
    tell_number(told, LAUNCH_LOCAL_WORLD_SIZE, "local_world_size", s->local_world_size, get);
    tell_number(told, LAUNCH_SERVERS, "servers", s->servers, get);
    launch_tell(told, LAUNCH_ADDR, "master_addr", s->master_addr, get);
    launch_tell(told, LAUNCH_HOST, "host", s->host, get);
    if (s->port != 0)
        tell_number(told, LAUNCH_PORT, "port", (int64_t)s->port, get);
    else if (s->master_port != 0)
        tell_number(told, LAUNCH_PORT, "master_port", (int64_t)s->master_port, get);
    if (s->port != 0) told->is_firm[LAUNCH_PORT] = true;
}

static bool has_come_back(const worker_settings *s, launch_get get)
{
    const char *restarts = get("TORCHELASTIC_RESTART_COUNT");
    return s->scheduler == SCHEDULER_EXTERNAL && restarts != NULL && atoi(restarts) > 0;
}

pen_status worker_env_resolve(const worker_settings *s, launch_get get, worker_env *env,
                              pen_error *why)
{
    launch_told told;
    launch_place place;
    *env = (worker_env){.world_size = 1, .local_world_size = 1, .nodes = 1, .servers = -1};
    worker_env_tell(s, get, &told);
    const pen_status status = launch_resolve(&told, get, &place, why);
    if (status != PEN_OK) return status;
    env->alone   = place.is_alone;
    env->servers = (int32_t)launch_number(&place, LAUNCH_SERVERS, -1);
    if (place.value[LAUNCH_RANK].text[0] == '\0') return PEN_OK;
    env->rank       = (int32_t)launch_number(&place, LAUNCH_RANK, 0);
    env->world_size = (int32_t)launch_number(&place, LAUNCH_WORLD_SIZE, 1);
    /* The only worker of a host has local rank 0. */
    const int64_t here    = launch_number(&place, LAUNCH_LOCAL_WORLD_SIZE, env->alone ? 1 : -1);
    env->local_world_size = (int32_t)here;
    env->local_rank       = (int32_t)launch_number(&place, LAUNCH_LOCAL_RANK, here == 1 ? 0 : -1);
    env->node             = (int32_t)launch_number(&place, LAUNCH_NODE, env->alone ? 0 : -1);
    env->nodes            = (int32_t)launch_number(&place, LAUNCH_NODES, env->alone ? 1 : -1);
    env->has_come_back    = has_come_back(s, get);
    snprintf(env->source, sizeof env->source, "%s", place.value[LAUNCH_RANK].from);
    if (env->alone) return PEN_OK;
    env->port = (uint32_t)launch_number(&place, LAUNCH_PORT, 0);
    memcpy(env->addr, place.value[LAUNCH_ADDR].text, sizeof env->addr);
    memcpy(env->host, place.value[LAUNCH_HOST].text, sizeof env->host);
    return PEN_OK;
}
