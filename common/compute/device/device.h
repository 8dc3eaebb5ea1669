/* device.h - where numbers may live: host memory, or a CUDA device.
 *
 * Queries never initialise a device: a process that has not used CUDA gets no CUDA context from us.
 * To add a device: write device_<name>.c and one line in the table of device.c.
 */
#ifndef COMMON_DEVICE_H
#define COMMON_DEVICE_H

#include "common/base/stat.h"
#include "common/compute/device/device_step.h"
#include "common/compute/simd/reduce.h"
#include "penstock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names an allocation for another process of this host: plain bytes, may lie in shared memory. */
typedef struct {
    /* unique among all allocations of the process, also after a free */
    uint64_t id;
    uint64_t offset; /* of the pointer within the allocation */
    /* random per process: distinguishes equal pids in two containers */
    uint64_t process;
    uint64_t base, bytes; /* of the allocation, in that process */
    int32_t pid, device;
    uint8_t handle[64]; /* cudaIpcMemHandle_t, or a segment_ref */
} device_ref;

/* Names an event for another process of this host. */
typedef struct {
    uint64_t process;
    uint64_t event; /* device_event in that process */
    uint8_t handle[64];
} device_event_ref;

/* A device-side wait for flags in its memory; see flag_wait(). */
typedef struct {
    /* [n] 64-bit numbers, DEVICE_FLAG_BYTES apart, in the memory of this device */
    const void *flags;
    const uint64_t *abort; /* of host_alloc(): nonzero ends the wait */
    /* of host_alloc(): why a wait ended early, a device_flag_result; else unchanged */
    uint32_t *result;
    uint64_t value, timeout_ns;
    int n;
} device_flag_wait;

typedef enum { DEVICE_FLAG_CAME, DEVICE_FLAG_ABORTED, DEVICE_FLAG_LATE } device_flag_result;
enum { DEVICE_FLAG_BYTES = 64, DEVICE_ARRAYS_MAX = 64, DEVICE_HANDLE_BYTES = 64 };

/* Where work is enqueued: a cudaStream_t.  The host has none; it works synchronously. */
typedef void *device_stream;
typedef struct device_event device_event;

typedef struct {
    const char *name; /* "cpu", "cuda" */
    const char *doc;

    /* Whether this build and this machine have it.  note: what was found or is missing, for `penstock doctor`. */
    bool (*available)(char *note, size_t note_size);

    /* Whether `pointer` is memory of this device.  Thread: any.  Cost: one driver query at most. */
    bool (*owns)(const void *pointer);

    /* Sets this thread's device until leave(): events and stream 0, which have no pointer, belong to it.  Initialises
     * the device.  Calls outside of enter() work on the device of their pointer. */
    pen_status (*enter)(int device, pen_error *why);
    void (*leave)(void);

    /* ---- memory that other processes can map; any thread ---- */
    void *(*alloc)(size_t bytes, int device,
                   pen_error *why); /* zeroed, 256-byte aligned; NULL + why */
    void (*free)(void *data);
    /* UNSUPPORTED: this allocation cannot be shared (memory pool, virtual memory, foreign host memory): copy it to one
     * from alloc(). */
    pen_status (*share)(const void *data, size_t bytes, device_ref *ref, pen_error *why);
    /* Counted: a second map of an allocation returns the same mapping.  A ref of this process gives the pointer itself.
     * Ends mappings of allocations that must have been freed, since this one is where they were.
     * UNREACHABLE: the process or the allocation is gone. */
    pen_status (*map)(const device_ref *ref, void **data, pen_error *why);
    void (*unmap)(const device_ref *ref);
    /* Bytes from the start of a mapped allocation to its end, as checked when it was mapped; SIZE_MAX: only the driver
     * knows.  NULL: always SIZE_MAX. */
    size_t (*room)(const device_ref *ref);
    /* Host memory that the device reads and writes without a copy through the host's caches; zeroed. */
    void *(*host_alloc)(size_t bytes, pen_error *why);
    void (*host_free)(void *data);
    /* Makes any host memory equivalent to host_alloc()'s, until unpin(), which must precede its free. */
    pen_status (*pin)(void *data, size_t bytes, pen_error *why);
    void (*unpin)(void *data);

    /* ---- streams: they run concurrently; any thread ---- */
    /* *stream is OWNED by the caller; it does not synchronise with the default stream. */
    pen_status (*stream_new)(int device, device_stream *stream, pen_error *why);
    void (*stream_free)(device_stream stream); /* enqueued work still completes */
    /* UNSUPPORTED: the stream is being captured into a graph, or it is the default stream while another is captured.
     * what: begins the sentence.  NULL: always OK. */
    pen_status (*may_enqueue)(const char *what, device_stream stream, pen_error *why);

    /* ---- work, in stream order; the host does it at once ---- */
    pen_status (*copy)(void *to, const void *from, size_t bytes, device_stream stream,
                       pen_error *why); /* either may be host memory */
    /* At most DEVICE_ARRAYS_MAX inputs and outputs. */
    pen_status (*reduce)(const reduce_args *args, size_t begin, size_t count, device_stream stream,
                         pen_error *why);
    /* Sums of micro-batches: sum[i] = in[i] (is_first), or sum[i] + in[i], in float32; f32, f16 and bf16. */
    pen_status (*accumulate)(float *sum, const void *in, pen_dtype dtype, size_t n, bool is_first,
                             device_stream stream, pen_error *why);
    /* to[i] = sum[i] rounded to nearest even; f16 and bf16. */
    pen_status (*narrow)(void *to, const float *sum, pen_dtype dtype, size_t n,
                         device_stream stream, pen_error *why);
    pen_status (*zero)(void *to, size_t bytes, device_stream stream, pen_error *why);

    /* ---- the arithmetic of a step: device_step.h; in stream order ---- */
    pen_status (*weigh)(const device_weigh *w, device_stream stream, pen_error *why);
    pen_status (*norm)(const device_norm_span *spans, size_t n, uint32_t *bad, device_stream stream,
                       pen_error *why);
    pen_status (*decide)(const device_decide *d, device_stream stream, pen_error *why);
    pen_status (*update)(const device_update *u, device_stream stream, pen_error *why);
    /* LAMB between its passes: norms[0] and norms[1] are the square roots of both lists of sums, added in order. */
    pen_status (*roots)(const double *param_sums, const double *update_sums, size_t n_blocks,
                        double *norms, device_stream stream, pen_error *why);
    /* float32 of f32, f16 or bf16. */
    pen_status (*widen)(float *to, const void *from, pen_dtype dtype, size_t n,
                        device_stream stream, pen_error *why);

    /* ---- events ---- */
    device_event *(*event_new)(void); /* NULL: no memory */
    void (*event_free)(device_event *event);
    pen_status (*event_record)(device_event *event, device_stream stream, pen_error *why);
    pen_status (*event_done)(device_event *event,
                             pen_error *why); /* OK, AGAIN, or DEVICE: the error */
    pen_status (*stream_wait)(device_stream stream, device_event *event, pen_error *why);

    /* ---- waiting for the streams of other members on this host ---- */
    pen_status (*event_share)(device_event *event, device_event_ref *ref, pen_error *why);
    /* Waits for the last recorded event; the peer must have called event_record() before stream_wait() here. */
    device_event *(*event_map)(const device_event_ref *ref,
                               pen_error *why); /* freed by event_free() */
    pen_status (*flag_set)(void *const *flags, int n, uint64_t value, device_stream stream,
                           pen_error *why);
    /* OK: the stream waits.  AGAIN (host): nothing waits, poll again. */
    pen_status (*flag_wait)(const device_flag_wait *wait, device_stream stream, pen_error *why);

    /* 16 bytes that are equal in two processes exactly if they use the same device. */
    void (*uuid)(int device, uint8_t out[16]);
    int (*count)(void);                 /* number of devices; initialises the driver */
    int (*current)(void);               /* device of the calling thread; -1: host */
    int (*device)(const void *pointer); /* of the memory; -1: host */
} device_ops;

extern const device_ops
    *const device_all[]; /* NULL-terminated; the host last, since it owns all other memory */

/* Whether this process has loaded a driver: without one, no pointer belongs to a device.  Loading a library changes a
 * counter, so this costs one look at it; querying a device would search for its driver. */
bool device_is_loaded(void);

/* The device that owns `pointer`; never NULL. */
const device_ops *device_of(const void *pointer);

const device_ops *device_host(void);
/* Whether it is the host itself. */
bool device_is_host(const device_ops *ops);
/* The first usable device other than the host; NULL: none, and note says whether build, driver or device is missing. */
const device_ops *device_beside_host(char *note, size_t note_size);

/* Identifies this process in a device_ref. */
uint64_t device_process(void);

/* ---- what every device checks in the arguments of device_step.h ------------------------------ */
/* INVALID_ARGUMENT: a type, formula, pass or number of rows that does not exist. */
pen_status device_check_weigh(const device_weigh *w, pen_error *why);
pen_status device_check_update(const device_update *u, pen_error *why);
pen_status device_check_float(pen_dtype dtype, pen_error *why);

/* ---- copies between memories, counted where they cross from a device to the host or back ----- */
/* The worker copies by device_copy() only, so that its counters (stat.h, device.*.bytes) miss nothing. */
/* ops->copy(), counted in `stats` when it is enqueued.  stats NULL: not counted. */
pen_status device_copy(const device_ops *ops, stat_traffic what, stat_set *stats, void *to,
                       const void *from, size_t bytes, device_stream stream, pen_error *why);

#endif
