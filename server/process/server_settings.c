/* server_settings.c - checks that combine several settings. */
#include "server/process/server_state.h"

#include "common/base/utf8.h"
#include "common/base/why.h"

#define ROW(...) CONFIG_ROW(server_settings, __VA_ARGS__)
const config_row server_settings_rows[] = {SERVER_SETTINGS(ROW){0}};

void server_settings_tell(const server_settings *s, launch_told *told)
{
    *told = (launch_told){.role = LAUNCH_SERVER, .is_port_final = s->master_port != 0};
    launch_tell_number(told, LAUNCH_RANK, "rank", s->rank, -1);
    launch_tell(told, LAUNCH_ADDR, "master_addr", s->master_addr, config_env);
    launch_tell_number(told, LAUNCH_PORT, "master_port", (int64_t)s->master_port, 0);
    launch_tell(told, LAUNCH_HOST, "host", s->host, config_env);
}

pen_status server_settings_place(server_settings *s, pen_error *why)
{
    static const launch_setting all[] = {{LAUNCH_RANK, "rank"},
                                         {LAUNCH_ADDR, "master_addr"},
                                         {LAUNCH_PORT, "master_port"},
                                         {LAUNCH_HOST, "host"}};
    launch_told told;
    server_settings_tell(s, &told);
    return launch_settle(&told, all, 4, server_settings_rows, s, why);
}

static bool needs_files(const server_settings *s)
{
    return s->offload_optimizer == OFFLOAD_NVME || s->offload_param == OFFLOAD_NVME;
}

static const char *folder_of(const server_settings *s)
{
    return s->offload_path[0] != '\0' ? s->offload_path : s->store;
}

pen_status server_settings_check(const server_settings *s, pen_error *why)
{
    if (utf8_check("job", s->job, why) != PEN_OK) return PEN_BAD_SETTING;
    if (!needs_files(s) || folder_of(s)[0] != '\0') return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "%s=nvme needs a folder on a disk; set offload_path or store",
                   s->offload_optimizer == OFFLOAD_NVME ? "offload_optimizer" : "offload_param");
}

shard_offload server_settings_offload(const server_settings *s)
{
    if (!needs_files(s)) return (shard_offload){0};
    return (shard_offload){.ops        = offload_find("file"),
                           .dir        = folder_of(s),
                           .has_values = s->offload_param == OFFLOAD_NVME,
                           .has_slots  = s->offload_optimizer == OFFLOAD_NVME,
                           .sub_group  = s->sub_group};
}
