/* nccl.h - NCCL, where it is installed: found at run time, like the driver.
 *
 * It adds in an order of its own, so it is for sums that may (deterministic=no) and for integers, where order does not
 * matter.  A table, so that tests can put something in its place.
 */
#ifndef COMMON_DEVICE_NCCL_H
#define COMMON_DEVICE_NCCL_H

#include "common/compute/device/device.h"

enum { NCCL_NAME_BYTES = 128 };

typedef struct {
    /* Draws the name under which members meet; one of them does so and tells the others. */
    pen_status (*name)(uint8_t name[NCCL_NAME_BYTES], pen_error *why);
    /* Begins to meet, on the device that was entered; ready() says when all have come: OK, AGAIN, or what went wrong. */
    pen_status (*open)(const uint8_t name[NCCL_NAME_BYTES], int size, int rank, void **link,
                       pen_error *why);
    pen_status (*ready)(void *link, pen_error *why);
    /* Enqueues.  Only what nccl_fits() allows. */
    pen_status (*all_reduce)(void *link, const void *in, void *out, size_t n, pen_dtype dtype,
                             pen_op op, device_stream stream, pen_error *why);
    void (*abort)(void *link); /* ends kernels that wait for others; only close() may follow */
    void (*close)(void *link);
} nccl_table;

/* NULL: built without it, or not installed here. */
const nccl_table *nccl_find(void);

/* Whether its result is what reduce.h promises, or may be another one of the same accuracy. */
bool nccl_fits(pen_op op, pen_dtype dtype, bool is_deterministic);

#endif
