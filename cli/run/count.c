/* count.c - counts devices or cores. */
#include "cli/run/count.h"
#include "common/base/config.h"
#include "common/base/why.h"

#include <string.h>
#include <unistd.h>

static bool wants_cuda(void)
{
    const char *device = config_env("PENSTOCK_DEVICE");
    return device != NULL && strcmp(device, "cuda") == 0;
}

static pen_status find_devices(run_options *o, pen_error *why)
{
    const pen_status status = run_devices_find(&o->devices, why);
    if (status != PEN_OK || o->devices.list.n > 0) return status;
    if (o->nproc_unit == NPROC_GPU)
        return why_set(why, PEN_BAD_SETTING,
                       "%s is gpu, but there is no CUDA device (%s); use a number, cpu or auto",
                       o->nproc_name, o->devices.note);
    if (wants_cuda())
        return why_set(why, PEN_BAD_SETTING,
                       "--device is cuda, but there is no CUDA device (%s); use --device host or "
                       "auto",
                       o->devices.note);
    return PEN_OK;
}

pen_status count_workers(run_options *o, pen_error *why)
{
    const bool by_device = o->nproc_unit == NPROC_GPU || o->nproc_unit == NPROC_AUTO;
    if (o->emits && by_device)
        return why_set(why, PEN_BAD_SETTING,
                       "--emit k8s cannot count the devices of another machine; set "
                       "--nproc-per-node N");
    const pen_status status = o->emits ? PEN_OK : find_devices(o, why);
    if (status != PEN_OK || o->nproc_unit == NPROC_NUMBER) return status;
    const int devices = by_device ? o->devices.list.n : 0;
    const int n       = devices > 0 ? devices : (int)sysconf(_SC_NPROCESSORS_ONLN);
    o->nproc = o->nproc_min = o->nproc_max = n < RUN_LOCAL_MAX ? n : RUN_LOCAL_MAX;
    return PEN_OK;
}
