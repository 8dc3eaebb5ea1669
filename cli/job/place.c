/* place.c - servers and schedulers find their rank and address as workers do, with common/launch/. */
#include "cli/job/place.h"

#include <inttypes.h>
#include <string.h>

static void tell(launch_told *told, launch_item item, const char *setting, int64_t value,
                 int64_t unsaid)
{
    char text[24] = "";
    if (value != unsaid) snprintf(text, sizeof text, "%" PRId64, value);
    launch_tell(told, item, setting, text, config_env);
}

void place_tell_server(const server_settings *s, launch_told *told)
{
    *told = (launch_told){.role = LAUNCH_SERVER, .is_port_final = s->master_port != 0};
    tell(told, LAUNCH_RANK, "rank", s->rank, -1);
    launch_tell(told, LAUNCH_ADDR, "master_addr", s->master_addr, config_env);
    tell(told, LAUNCH_PORT, "master_port", (int64_t)s->master_port, 0);
    launch_tell(told, LAUNCH_HOST, "host", s->host, config_env);
}

void place_tell_scheduler(const scheduler_settings *s, launch_told *told)
{
    *told = (launch_told){.role = LAUNCH_SCHEDULER};
    tell(told, LAUNCH_WORLD_SIZE, "world_size", s->world_size > 0 ? s->world_size : -1, -1);
    tell(told, LAUNCH_SERVERS, "servers", s->servers > 0 ? s->servers : -1, -1);
    tell(told, LAUNCH_PORT, "port", (int64_t)s->port, 0);
    if (strcmp(s->host, "127.0.0.1") != 0)
        launch_tell(told, LAUNCH_HOST, "host", s->host, config_env);
}

typedef struct {
    launch_item item;
    const char *setting;
} placed;

/* Stores the resolved values as settings, which checks them again. */
static pen_status place(const config_row *rows, void *settings, const launch_told *told,
                        const placed all[4], pen_error *why)
{
    launch_place p;
    pen_status status = launch_resolve(told, config_env, &p, why);
    for (int i = 0; i < 4 && status == PEN_OK; i++) {
        const char *text = p.value[all[i].item].text;
        if (text[0] != '\0') status = config_set(rows, settings, all[i].setting, text, why);
    }
    return status;
}

pen_status place_server(server_settings *s, pen_error *why)
{
    static const placed all[] = {{LAUNCH_RANK, "rank"},
                                 {LAUNCH_ADDR, "master_addr"},
                                 {LAUNCH_PORT, "master_port"},
                                 {LAUNCH_HOST, "host"}};
    launch_told told;
    place_tell_server(s, &told);
    return place(server_settings_rows, s, &told, all, why);
}

pen_status place_scheduler(scheduler_settings *s, pen_error *why)
{
    static const placed all[] = {{LAUNCH_WORLD_SIZE, "world_size"},
                                 {LAUNCH_SERVERS, "servers"},
                                 {LAUNCH_PORT, "port"},
                                 {LAUNCH_HOST, "host"}};
    launch_told told;
    place_tell_scheduler(s, &told);
    return place(scheduler_settings_rows, s, &told, all, why);
}
