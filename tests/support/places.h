/* places.h - the memory that a process lends to others: the segments behind its descriptors. */
#ifndef TESTS_SUPPORT_PLACES_H
#define TESTS_SUPPORT_PLACES_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLACES_MAX = 64 };

typedef struct { /* as the lending layer writes it */
    uint64_t id, size, offset, closed;
    int32_t pid, fd;
} place;

static place places[PLACES_MAX];
static int n_places;

/* Adds those of a process; only its user and root can see them. */
static void find_places(int pid)
{
    char folder[64], path[400], link[200];
    snprintf(folder, sizeof folder, "/proc/%d/fd", pid);
    DIR *all = opendir(folder);
    struct dirent *one;
    while (all != NULL && (one = readdir(all)) != NULL && n_places < PLACES_MAX) {
        struct stat is;
        unsigned long long id;
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        const ssize_t n = readlink(path, link, sizeof link - 1);
        if (n < 0) continue;
        link[n] = '\0';
        if (sscanf(link, "/memfd:penstock-%llx", &id) != 1 || stat(path, &is) != 0) continue;
        places[n_places++] = (place){
            .id = id, .size = (uint64_t)is.st_size, .pid = pid, .fd = (int32_t)atoi(one->d_name)};
    }
    if (all != NULL) closedir(all);
}

#endif
