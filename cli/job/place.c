/* place.c - schedulers find their address as workers do, with common/launch/. */
#include "cli/job/place.h"

#include <string.h>

void place_tell_scheduler(const scheduler_settings *s, launch_told *told)
{
    *told = (launch_told){.role = LAUNCH_SCHEDULER};
    launch_tell_number(told, LAUNCH_WORLD_SIZE, "world_size",
                       s->world_size > 0 ? s->world_size : -1, -1);
    launch_tell_number(told, LAUNCH_SERVERS, "servers", s->servers > 0 ? s->servers : -1, -1);
    launch_tell_number(told, LAUNCH_PORT, "port", (int64_t)s->port, 0);
    if (strcmp(s->host, "127.0.0.1") != 0)
        launch_tell(told, LAUNCH_HOST, "host", s->host, config_env);
}

pen_status place_scheduler(scheduler_settings *s, pen_error *why)
{
    static const launch_setting all[] = {{LAUNCH_WORLD_SIZE, "world_size"},
                                         {LAUNCH_SERVERS, "servers"},
                                         {LAUNCH_PORT, "port"},
                                         {LAUNCH_HOST, "host"}};
    launch_told told;
    place_tell_scheduler(s, &told);
    return launch_settle(&told, all, 4, scheduler_settings_rows, s, why);
}
