/* device.h - where numbers may live: host memory, or a CUDA device.
 *
 * Asking never wakes a device: a process that has not used CUDA gets no CUDA context from us.
 * To add a device: write device_<name>.c and one line in the table of device.c.
 */
#ifndef COMMON_DEVICE_H
#define COMMON_DEVICE_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char *name; /* "cpu", "cuda" */
    const char *doc;

    /* Whether this build and this machine have it.  note: what was found, or why not, for `penstock doctor`. */
    bool (*available)(char *note, size_t note_size);

    /* Whether `pointer` is memory of this device.  Thread: any.  Cost: one driver query at most. */
    bool (*owns)(const void *pointer);
} device_ops;

extern const device_ops
    *const device_all[]; /* NULL-terminated; the host last, since it owns all the rest */

/* The device whose memory `pointer` is; never NULL. */
const device_ops *device_of(const void *pointer);

#endif
