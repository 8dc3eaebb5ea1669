/* nccl.h - NCCL, if installed: found at run time, like the driver.
 *
 * Its order of additions is its own, so it serves sums where that is allowed (deterministic=no) and integers, where
 * order does not matter.  Copies have no order.  A table, so that tests can replace it.
 *
 * Nothing here waits: start() and open() begin, ready() tells when it is done.
 */
#ifndef COMMON_DEVICE_NCCL_H
#define COMMON_DEVICE_NCCL_H

#include "common/compute/device/device.h"

enum { NCCL_NAME_BYTES = 128 };

typedef enum {
    NCCL_ALL_REDUCE,
    NCCL_REDUCE,
    NCCL_REDUCE_SCATTER,
    NCCL_ALL_GATHER,
    NCCL_BROADCAST
} nccl_kind;

/* The same on every member, except in and out.  in and out overlap only if NCCL calls that "in place". */
typedef struct {
    nccl_kind kind;
    pen_dtype dtype;
    pen_op op; /* of kinds that reduce; nccl_fits() allows it */
    int root;
    size_t n;             /* elements; of reduce_scatter and all_gather: of each part */
    const size_t *counts; /* all_gather: elements of each part; NULL: n each.  Not kept. */
    const void *in;       /* broadcast: NULL except on the root */
    void *out;            /* reduce: NULL except on the root; broadcast: NULL on the root */
} nccl_call;

typedef struct {
    /* Generates the name under which members connect; one member calls this and sends it to the others. */
    pen_status (*name)(uint8_t name[NCCL_NAME_BYTES], pen_error *why);
    /* Starts connecting, on the entered device. */
    pen_status (*open)(const uint8_t name[NCCL_NAME_BYTES], int size, int rank, void **link,
                       pen_error *why);
    /* Begins to enqueue a call.  AGAIN: until ready() returns OK, nothing may be enqueued behind it. */
    pen_status (*start)(void *link, const nccl_call *call, device_stream stream, pen_error *why);
    /* OK: all have joined, and the call is enqueued.  AGAIN: not yet.  Else the error of the link. */
    pen_status (*ready)(void *link, pen_error *why);
    void (*abort)(void *link); /* ends kernels that wait for others; only close() may follow */
    /* After all work on it is done.  Waits for the other members to close theirs, at most NCCL_CLOSE_MS. */
    void (*close)(void *link);
} nccl_table;

enum { NCCL_CLOSE_MS = 2000 };

/* NULL: not installed. */
const nccl_table *nccl_find(void);

/* Whether its result is what reduce.h promises, or may differ with the same accuracy. */
bool nccl_fits(pen_op op, pen_dtype dtype, bool is_deterministic);

#endif
