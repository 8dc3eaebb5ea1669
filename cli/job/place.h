/* place.h - rank and address of servers and schedulers, from the launcher's variables where no setting is given. */
#ifndef CLI_PLACE_H
#define CLI_PLACE_H

#include "common/launch/launch.h"
#include "scheduler/core/scheduler_settings.h"
#include "server/process/server_settings.h"

/* Passes the settings to launch_resolve(). */
void place_tell_server(const server_settings *s, launch_told *told);
void place_tell_scheduler(const scheduler_settings *s, launch_told *told);

/* Fills in rank, scheduler address and so on.  Errors  BAD_SETTING, with the variable's name. */
pen_status place_server(server_settings *s, pen_error *why);
pen_status place_scheduler(scheduler_settings *s, pen_error *why);

#endif
