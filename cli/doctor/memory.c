/* memory.c - memory, container limits, shared memory, huge pages, NUMA nodes. */
#include "cli/doctor/doctor.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

static void look_at_memory(doctor *d)
{
    const int64_t total = doctor_key(d, "/proc/meminfo", "MemTotal"),
                  free  = doctor_key(d, "/proc/meminfo", "MemAvailable");
    if (total <= 0 || free < 0) return;
    const bool is_low = free < total / 10;
    finding_add(d, is_low ? FINDING_LOOK : FINDING_OK,
                is_low ? "stop what uses it; `penstock memory` estimates what a job needs" : NULL,
                "%.1f GB of %.1f GB are available", (double)free * 1024 / 1e9,
                (double)total * 1024 / 1e9);
}

static void look_at_limit(doctor *d)
{
    const int64_t most  = doctor_number(d, "/sys/fs/cgroup/memory.max"),
                  used  = doctor_number(d, "/sys/fs/cgroup/memory.current");
    const int64_t total = doctor_key(d, "/proc/meminfo", "MemTotal") * 1024;
    if (most < 0 || (total > 0 && most >= total)) {
        finding_add(d, FINDING_OK, NULL, "no limit below the machine's memory");
        return;
    }
    const bool is_low = used > most / 10 * 8;
    finding_add(d, is_low ? FINDING_LOOK : FINDING_NOTE,
                is_low ? "raise the limit; at the limit the kernel kills a process of the container"
                       : NULL,
                "this container may use %.2f GB including /dev/shm, and uses %.2f GB",
                (double)most / 1e9, used < 0 ? 0. : (double)used / 1e9);
}

/* Workers and servers of a host share gradients there: those of a step, twice. */
static void look_at_shared(doctor *d)
{
    enum { DOCKER_BYTES = 64 << 20 };
    char path[1024];
    struct statvfs shm;
    snprintf(path, sizeof path, "%s/dev/shm", d->root);
    if (statvfs(path, &shm) != 0) {
        finding_add(d, FINDING_BAD, "mount a tmpfs there, or set shared_memory=no",
                    "missing /dev/shm: %s", path);
        return;
    }
    const double free   = (double)shm.f_bavail * (double)shm.f_frsize,
                 size   = (double)shm.f_blocks * (double)shm.f_frsize;
    const bool is_small = size <= DOCKER_BYTES || free < DOCKER_BYTES;
    finding_add(d, is_small ? FINDING_LOOK : FINDING_OK,
                is_small ? "docker run --shm-size 2g, in Kubernetes an emptyDir of medium Memory "
                           "on /dev/shm; or delete files there"
                         : NULL,
                "%.2f GB of %.2f GB are free for shared memory between workers of this host",
                free / 1e9, size / 1e9);
}

static void look_at_huge_pages(doctor *d)
{
    char line[128];
    if (!doctor_line(d, "/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line)) {
        finding_add(d, FINDING_NOTE, NULL, "the kernel does not report transparent huge pages");
        return;
    }
    const bool never = strstr(line, "[never]") != NULL;
    finding_add(d, never ? FINDING_NOTE : FINDING_OK,
                never ? "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" : NULL,
                "transparent huge pages: %.100s", line);
}

static void look_at_nodes(doctor *d)
{
    char path[1024];
    int n = 0, number;
    snprintf(path, sizeof path, "%s/sys/devices/system/node", d->root);
    DIR *folder = opendir(path);
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;)
        n += sscanf(e->d_name, "node%d", &number) == 1;
    if (folder != NULL) closedir(folder);
    if (n <= 1)
        finding_add(d, FINDING_OK, NULL, "one NUMA node");
    else
        finding_add(
            d, FINDING_NOTE,
            "start at least one worker per node, with numactl --cpunodebind=N --membind=N",
            "%d NUMA nodes: a process that migrates between them reads remote memory at about half "
            "speed",
            n);
}

const doctor_check doctor_memory[] = {
    {"memory", "memory", look_at_memory, "available memory"},
    {"memory", "memory limit", look_at_limit, "memory limit of a container"},
    {"memory", "/dev/shm", look_at_shared, "shared memory between workers of one host"},
    {"memory", "huge pages", look_at_huge_pages, "transparent huge pages"},
    {"memory", "numa", look_at_nodes, "NUMA nodes"},
    {0},
};
