/* device_list.h - the list in CUDA_VISIBLE_DEVICES: which devices a process may use, in which order.
 *
 *   0,2                 numbers, as the driver counts
 *   GPU-8932f937,GPU-5  UUIDs, or their beginnings
 *   MIG-3b2e...         parts of a device
 *
 * Pure; the input comes from an environment and is not trusted.
 */
#ifndef COMMON_LAUNCH_DEVICE_LIST_H
#define COMMON_LAUNCH_DEVICE_LIST_H

#include "penstock.h"

#include <stdbool.h>

enum { DEVICE_LIST_MAX = 128, DEVICE_WORD_BYTES = 80 };

typedef struct {
    int n;
    bool has_parts; /* a MIG word: a process sees only one of these, whatever it lists */
    char word[DEVICE_LIST_MAX][DEVICE_WORD_BYTES];
} device_list;

/* The words of `text`, without spaces.  As for the driver, "", a negative number and Slurm's NoDevFiles end the list.
 * BAD_SETTING: a word that no device can have, one that is there twice, or too many. */
pen_status device_list_parse(const char *text, device_list *list, pen_error *why);

#endif
