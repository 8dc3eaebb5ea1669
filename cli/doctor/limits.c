/* limits.c - resource limits of a process or user. */
#include "cli/doctor/doctor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The soft and the hard limit of /proc/self/limits; -1 is unlimited. */
static bool limit_of(const doctor *d, const char *name, int64_t *soft, int64_t *hard)
{
    char path[1024], line[256], a[32], b[32];
    bool found = false;
    snprintf(path, sizeof path, "%s/proc/self/limits", d->root);
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, name, strlen(name)) == 0 &&
                sscanf(line + strlen(name), " %31s %31s", a, b) == 2;
    if (file != NULL) fclose(file);
    if (!found) return false;
    if (sscanf(a, "%" SCNd64, soft) != 1) *soft = -1;
    if (sscanf(b, "%" SCNd64, hard) != 1) *hard = -1;
    return true;
}

/* Penstock raises the soft limit to the hard limit itself. */
static void look_at_files(doctor *d)
{
    int64_t soft, hard;
    if (!limit_of(d, "Max open files", &soft, &hard)) return;
    const bool is_low = hard >= 0 && hard < 4096;
    finding_add(d, is_low ? FINDING_LOOK : FINDING_OK,
                is_low
                    ? "raise it: LimitNOFILE=65536 in a systemd unit, --ulimit nofile=65536 for a "
                      "container"
                    : NULL,
                "a process may open %" PRId64 " files; Penstock raises that to %" PRId64 "%s", soft,
                hard, hard < 0 ? " (no limit)" : "; each peer takes a few");
}

static void look_at_processes(doctor *d)
{
    int64_t soft, hard;
    const int64_t pids = doctor_number(d, "/sys/fs/cgroup/pids.max");
    if (!limit_of(d, "Max processes", &soft, &hard)) return;
    if (pids >= 0 && (soft < 0 || pids < soft)) soft = pids;
    const bool is_low = soft >= 0 && soft < 512;
    finding_add(d, is_low ? FINDING_LOOK : FINDING_OK,
                is_low ? "raise ulimit -u, or pids.max of the container" : NULL,
                soft < 0 ? "no limit on threads"
                         : "%" PRId64
                           " threads; a worker or server needs about 10, plus those of the program",
                soft);
}

static void look_at_locked(doctor *d)
{
    int64_t soft, hard;
    if (!limit_of(d, "Max locked memory", &soft, &hard)) return;
    const bool is_low = soft >= 0 && soft < 64 << 20;
    finding_add(d, is_low ? FINDING_NOTE : FINDING_OK,
                is_low ? "ulimit -l unlimited, if the program uses RDMA or pinned host memory"
                       : NULL,
                soft < 0 ? "no limit on locked memory" : "%.1f MB of memory may be locked",
                (double)soft / 1e6);
}

static void look_at_core(doctor *d)
{
    int64_t soft, hard;
    if (!limit_of(d, "Max core file size", &soft, &hard)) return;
    finding_add(d, soft == 0 ? FINDING_NOTE : FINDING_OK,
                soft == 0 ? "ulimit -c unlimited, to debug a crash of your program" : NULL,
                soft == 0 ? "a crash leaves no core file" : "a crash leaves a core file");
}

const doctor_check doctor_limits[] = {
    {"limits", "open files", look_at_files, "including sockets: ulimit -n"},
    {"limits", "processes", look_at_processes, "including threads: ulimit -u, pids.max"},
    {"limits", "locked memory", look_at_locked, "ulimit -l"},
    {"limits", "core files", look_at_core, "ulimit -c"},
    {0},
};
