/* host.c - processors, container quotas, threads and load. */
#include "cli/doctor/doctor.h"
#include "common/base/config.h"
#include "common/compute/simd/simd.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int cores(const doctor *d)
{
    char line[256];
    int n = 0, from, to, used;
    if (!doctor_line(d, "/sys/devices/system/cpu/online", line, sizeof line))
        return (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (const char *at = line; *at != '\0'; at += used + (at[used] == ',')) {
        used = 0;
        if (sscanf(at, "%d-%d%n", &from, &to, &used) == 2 && used > 0)
            n += to - from + 1;
        else if (sscanf(at, "%d%n", &from, &used) == 1 && used > 0)
            n++;
        else
            break;
    }
    return n > 0 ? n : 1;
}

static void look_at_processor(doctor *d)
{
    char usable[128] = "";
    for (int i = 0; simd_all[i] != NULL; i++) {
        if (!simd_all[i]->usable()) continue;
        snprintf(usable + strlen(usable), sizeof usable - strlen(usable), "%s%s",
                 usable[0] == '\0' ? "" : ", ", simd_all[i]->name);
    }
    const int n = cores(d);
    finding_add(d, FINDING_OK, NULL, "%d core%s; inner loops: %s", n, n == 1 ? "" : "s", usable);
}

/* "200000 100000": quota and period in microseconds. */
static void look_at_quota(doctor *d)
{
    char line[64];
    double quota, period;
    if (!doctor_line(d, "/sys/fs/cgroup/cpu.max", line, sizeof line) ||
        sscanf(line, "%lf %lf", &quota, &period) != 2 || period <= 0) {
        finding_add(d, FINDING_OK, NULL, "no limit on CPU time");
        return;
    }
    const bool is_low = quota / period < cores(d);
    finding_add(d, is_low ? FINDING_LOOK : FINDING_OK,
                is_low
                    ? "start at most as many workers as the quota has cores (--nproc-per-node), or "
                      "raise the quota"
                    : NULL,
                "this container may use %.1f of %d cores; beyond that its processes are throttled",
                quota / period, cores(d));
}

/* By default BLAS starts one thread per core in each worker. */
static void look_at_threads(doctor *d)
{
    const char *openblas = config_env("OPENBLAS_NUM_THREADS"),
               *openmp   = config_env("OMP_NUM_THREADS");
    const char *said     = openblas != NULL ? openblas : openmp;
    const int n          = cores(d);
    if (said == NULL) {
        finding_add(
            d, FINDING_NOTE, NULL,
            "OMP_NUM_THREADS is not set: `penstock run` divides the cores among its workers; "
            "with other launchers OpenBLAS starts %d threads in every worker",
            n);
        return;
    }
    const bool is_many = atoi(said) > n;
    finding_add(d, is_many ? FINDING_LOOK : FINDING_OK,
                is_many ? "lower it: workers times threads should not exceed the cores" : NULL,
                "%s is %.20s in every worker, on %d cores",
                openblas != NULL ? "OPENBLAS_NUM_THREADS" : "OMP_NUM_THREADS", said, n);
}

static void look_at_load(doctor *d)
{
    char line[128];
    double load;
    if (!doctor_line(d, "/proc/loadavg", line, sizeof line) || sscanf(line, "%lf", &load) != 1)
        return;
    const bool is_busy = load > cores(d) * 0.5 + 0.5;
    finding_add(d, is_busy ? FINDING_NOTE : FINDING_OK,
                is_busy ? "wait until the machine is idle before benchmarking" : NULL,
                "load average %.1f on %d cores", load, cores(d));
}

const doctor_check doctor_host[] = {
    {"host", "processor", look_at_processor, "cores and instruction sets"},
    {"host", "cpu quota", look_at_quota, "CPU time of a container"},
    {"host", "threads", look_at_threads, "OpenBLAS and OpenMP threads per worker"},
    {"host", "load", look_at_load, "load from other processes"},
    {0},
};
