/* place.h - rank and address of schedulers, from the launcher's variables where no setting is given. */
#ifndef CLI_PLACE_H
#define CLI_PLACE_H

#include "common/launch/launch.h"
#include "scheduler/core/scheduler_settings.h"

/* Passes the settings to launch_resolve(). */
void place_tell_scheduler(const scheduler_settings *s, launch_told *told);

/* Fills in world size, address and so on.  Errors  BAD_SETTING, with the variable's name. */
pen_status place_scheduler(scheduler_settings *s, pen_error *why);

#endif
