/* place.h - where settings of servers and schedulers that nobody gave come from: the launcher's variables. */
#ifndef CLI_PLACE_H
#define CLI_PLACE_H

#include "common/launch/launch.h"
#include "scheduler/core/scheduler_settings.h"
#include "server/process/server_settings.h"

/* What the settings say, for launch_resolve(). */
void place_tell_server(const server_settings *s, launch_told *told);
void place_tell_scheduler(const scheduler_settings *s, launch_told *told);

/* Fills in rank, address of the scheduler and so on.  Errors  BAD_SETTING, with the variable's name. */
pen_status place_server(server_settings *s, pen_error *why);
pen_status place_scheduler(scheduler_settings *s, pen_error *why);

#endif
