#include "scheduler/core/scheduler_settings.h"

#include "scheduler/core/membership/roster.h"

_Static_assert((int)ROSTER_WORKERS_MAX == SETTINGS_WORKERS_MAX &&
                   (int)ROSTER_SERVERS_MAX == SETTINGS_SERVERS_MAX,
               "a roster has room for as many as settings allow");

#define ROW(...) CONFIG_ROW(scheduler_settings, __VA_ARGS__)
const config_row scheduler_settings_rows[] = {SCHEDULER_SETTINGS(ROW){0}};
