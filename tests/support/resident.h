/* resident.h - how much memory this process uses. */
#ifndef TESTS_SUPPORT_RESIDENT_H
#define TESTS_SUPPORT_RESIDENT_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

static inline long resident_mib(void)
{
    long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL || fscanf(f, "%ld %ld", &all, &resident) != 2) resident = 0;
    if (f != NULL) fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) >> 10) >> 10;
}

/* Whether that is what the program needs: a sanitizer keeps freed memory, and shadows of all memory. */
static inline bool resident_is_meant(void)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return false;
#else
    return true;
#endif
}

#endif
