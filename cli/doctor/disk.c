/* disk.c - the snapshot directory: free space and file system. */
#include "cli/doctor/doctor.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const struct {
    const char *type, *trouble, *remedy;
    finding_level level;
} kinds[] = {
    {"nfs", "a network file system: LMDB's locks are not safe on it between machines",
     "give each server a folder of its own, or keep the store on a local disk", FINDING_LOOK},
    {"nfs4", "a network file system: LMDB's locks are not safe on it between machines",
     "give each server a folder of its own, or keep the store on a local disk", FINDING_LOOK},
    {"cifs", "a network file system: LMDB's locks and maps are not safe on it",
     "keep the store on a local disk", FINDING_LOOK},
    {"9p", "a directory shared with another machine: memory maps may not be coherent",
     "keep the store on a local disk", FINDING_LOOK},
    {"overlay", "a container layer: it is deleted with the container, and writes are slow",
     "mount a volume for the store (--store)", FINDING_LOOK},
    {"tmpfs", "memory: its content is lost when the machine stops",
     "keep the store on a disk, unless this is intended", FINDING_NOTE},
    {NULL, NULL, NULL, FINDING_OK},
};

/* The nearest existing directory; the store itself may not exist yet. */
static bool resolve_store(const doctor *d, char whole[PATH_MAX])
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", d->store[0] != '\0' ? d->store : ".");
    while (realpath(path, whole) == NULL) {
        char *slash = strrchr(path, '/');
        if (errno != ENOENT) return false;
        if (slash == NULL)
            snprintf(path, sizeof path, ".");
        else if (slash == path)
            path[1] = '\0';
        else
            *slash = '\0';
    }
    return true;
}

/* The type of the longest mount point in /proc/self/mounts that contains `whole`. */
static bool type_of(const doctor *d, const char *whole, char type[64])
{
    char path[1024], line[4096], at[1024], kind[64];
    size_t longest = 0;
    snprintf(path, sizeof path, "%s/proc/self/mounts", d->root);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%*s %1023s %63s", at, kind) != 2) continue;
        const size_t n = strcmp(at, "/") == 0 ? 0 : strlen(at);
        const bool lies =
            strncmp(whole, at, n) == 0 && (whole[n] == '/' || whole[n] == '\0' || n == 0);
        if (!lies || n + 1 < longest) continue;
        longest = n + 1;
        snprintf(type, 64, "%s", kind);
    }
    if (file != NULL) fclose(file);
    return longest > 0;
}

static void look_at_kind(doctor *d)
{
    char whole[PATH_MAX], type[64];
    if (!resolve_store(d, whole) || !type_of(d, whole, type)) return;
    for (int i = 0; kinds[i].type != NULL; i++)
        if (strcmp(kinds[i].type, type) == 0) {
            finding_add(d, kinds[i].level, kinds[i].remedy, "%.150s is on %s, %s", whole, type,
                        kinds[i].trouble);
            return;
        }
    finding_add(d, FINDING_OK, NULL, "%.200s is on %s", whole, type);
}

static void look_at_room(doctor *d)
{
    char whole[PATH_MAX];
    struct statvfs disk;
    if (!resolve_store(d, whole) || statvfs(whole, &disk) != 0) {
        finding_add(d, FINDING_BAD, "choose another with --store DIR", "cannot examine %.200s: %m",
                    d->store);
        return;
    }
    const double free = (double)disk.f_bavail * (double)disk.f_frsize,
                 size = (double)disk.f_blocks * (double)disk.f_frsize;
    const bool is_low = free < 2e9 || free < size / 50;
    finding_add(d, is_low ? FINDING_LOOK : FINDING_OK,
                is_low ? "free some space: a snapshot of N parameters with Adam takes about 12 N "
                         "bytes, and at least two are kept for a while"
                       : NULL,
                "%.1f GB of %.1f GB are free for snapshots in %.150s", free / 1e9, size / 1e9,
                whole);
    if (access(whole, W_OK) != 0)
        finding_add(d, d->store[0] != '\0' ? FINDING_BAD : FINDING_NOTE,
                    "chown it, or choose another with --store DIR",
                    "this user cannot write to %.200s: %m", whole);
}

const doctor_check doctor_disk[] = {
    {"disk", "file system", look_at_kind, "whether LMDB works safely on it"},
    {"disk", "room", look_at_room, "free space for snapshots"},
    {0},
};
