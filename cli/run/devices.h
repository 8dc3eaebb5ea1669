/* devices.h - the CUDA devices that workers on this machine may use, and which worker sees which.
 *
 * DESIGN  Each worker sees one device, its own, as device 0: no worker can occupy another's by mistake, and no worker
 * pays for a context on all.  Workers still map each other's memory: cuIpcOpenMemHandle opens memory of devices that
 * its process cannot see, and NCCL uses the links between such devices since CUDA 10.1.  A program that selects its
 * device by LOCAL_RANK, as under torchrun, needs --visible-devices all.
 */
#ifndef CLI_RUN_DEVICES_H
#define CLI_RUN_DEVICES_H

#include "common/launch/device_list.h"

typedef struct {
    device_list list; /* in the order of CUDA_VISIBLE_DEVICES, or of the driver */
    char note[256];   /* what the driver said, if there is none */
} run_devices;

/* Asks the driver, in a child: this process never has CUDA, which does not survive its forks.
 * BAD_SETTING: CUDA_VISIBLE_DEVICES lists what is not there, or Slurm assigned fewer without saying which. */
pen_status run_devices_find(run_devices *d, pen_error *why);

/* The word of CUDA_VISIBLE_DEVICES for a worker; workers beyond the last device begin again at the first.  NULL: there
 * is none. */
const char *run_devices_of(const run_devices *d, int local_rank);

#endif
