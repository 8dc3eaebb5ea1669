/* place.c - servers and schedulers find their place in a job as workers do, by common/launch/. */
#include "cli/commands/place.h"

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

/* Takes what was found as the setting, which checks it once more. */
static pen_status take(const config_row *rows, void *settings, const launch_place *place,
                       launch_item item, const char *setting, pen_error *why)
{
    const char *text = place->value[item].text;
    return text[0] == '\0' ? PEN_OK : config_set(rows, settings, setting, text, why);
}

pen_status place_server(server_settings *s, pen_error *why)
{
    const config_row *rows = server_settings_rows;
    launch_told told;
    launch_place p;
    place_tell_server(s, &told);
    pen_status status = launch_resolve(&told, config_env, &p, why);
    if (status == PEN_OK) status = take(rows, s, &p, LAUNCH_RANK, "rank", why);
    if (status == PEN_OK) status = take(rows, s, &p, LAUNCH_ADDR, "master_addr", why);
    if (status == PEN_OK) status = take(rows, s, &p, LAUNCH_PORT, "master_port", why);
    if (status == PEN_OK) status = take(rows, s, &p, LAUNCH_HOST, "host", why);
    return status;
}

pen_status place_scheduler(scheduler_settings *s, pen_error *why)
{
    const config_row *rows = scheduler_settings_rows;
    launch_told told;
    launch_place p;
    place_tell_scheduler(s, &told);
    pen_status status = launch_resolve(&told, config_env, &p, why);
    if (status == PEN_OK) status = take(rows, s, &p, LAUNCH_WORLD_SIZE, "world_size", why);
    if (status == PEN_OK) status = take(rows, s, &p, LAUNCH_SERVERS, "servers", why);
    if (status == PEN_OK) status = take(rows, s, &p, LAUNCH_PORT, "port", why);
    if (status == PEN_OK) status = take(rows, s, &p, LAUNCH_HOST, "host", why);
    return status;
}
