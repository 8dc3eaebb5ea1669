/* external.h - `penstock run` beside a scheduler and servers that others start: Kubernetes, Slurm, systemd. */
#ifndef CLI_RUN_EXTERNAL_H
#define CLI_RUN_EXTERNAL_H

#include "cli/run/options.h"

/* With scheduler=external: address and numbers that the flags leave open come from the variables that servers read, too.
 * BAD_SETTING: one of them is wrong. */
pen_status external_take(run_options *o, pen_error *why);

/* Once all options are known.  BAD_SETTING: they contradict an external scheduler, or its number of workers. */
pen_status external_check(const run_options *o, pen_error *why);

#endif
