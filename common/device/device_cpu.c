/* device_cpu.c - host memory. */
#include "common/device/device.h"

#include <stdio.h>
#include <unistd.h>

static bool available(char *note, size_t note_size)
{
    snprintf(note, note_size, "%ld cores", sysconf(_SC_NPROCESSORS_ONLN));
    return true;
}

static bool owns(const void *pointer)
{
    (void)pointer;
    return true;
}

const device_ops device_cpu = {
    .name      = "cpu",
    .doc       = "Host memory.",
    .available = available,
    .owns      = owns,
};
