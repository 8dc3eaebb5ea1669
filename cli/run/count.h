/* count.h - the workers of this machine, if --nproc-per-node counts its devices or cores. */
#ifndef CLI_RUN_COUNT_H
#define CLI_RUN_COUNT_H

#include "cli/run/options.h"

/* Finds the devices of this machine, and counts the workers of --nproc-per-node gpu, cpu and auto.
 * BAD_SETTING: the command line needs a device and there is none, or CUDA_VISIBLE_DEVICES is wrong. */
pen_status count_workers(run_options *o, pen_error *why);

#endif
