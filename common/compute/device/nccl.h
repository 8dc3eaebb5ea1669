/* nccl.h - NCCL, if installed: found at run time, like the driver.
 *
 * Its order of additions is its own, so it serves sums where that is allowed (deterministic=no) and integers, where
 * order does not matter.  A table, so that tests can replace it.
 */
#ifndef COMMON_DEVICE_NCCL_H
#define COMMON_DEVICE_NCCL_H

#include "common/compute/device/device.h"

enum { NCCL_NAME_BYTES = 128 };

typedef struct {
    /* Generates the name under which members connect; one member calls this and sends it to the others. */
    pen_status (*name)(uint8_t name[NCCL_NAME_BYTES], pen_error *why);
    /* Starts connecting, on the entered device.  ready() returns OK when all have joined, AGAIN, or the error. */
    pen_status (*open)(const uint8_t name[NCCL_NAME_BYTES], int size, int rank, void **link,
                       pen_error *why);
    pen_status (*ready)(void *link, pen_error *why);
    /* Enqueues; for cases that nccl_fits() allows. */
    pen_status (*all_reduce)(void *link, const void *in, void *out, size_t n, pen_dtype dtype,
                             pen_op op, device_stream stream, pen_error *why);
    void (*abort)(void *link); /* ends kernels that wait for others; only close() may follow */
    void (*close)(void *link);
} nccl_table;

/* NULL: built without NCCL, or not installed. */
const nccl_table *nccl_find(void);

/* Whether its result is what reduce.h promises, or may differ with the same accuracy. */
bool nccl_fits(pen_op op, pen_dtype dtype, bool is_deterministic);

#endif
