/* device_cuda.h - the inside of the CUDA device, shared by device_cuda*.c only; the one file that includes CUDA. */
#ifndef COMMON_DEVICE_CUDA_H
#define COMMON_DEVICE_CUDA_H

#include "common/compute/device/device.h"

#ifdef PENSTOCK_CUDA

#include <cuda.h>

/* ---- the driver: device_cuda.c ------------------------------------------------------------------- */

/* clang-format off */
#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid) X(cuDeviceGetAttribute)        \
    X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuCtxGetCurrent)                        \
    X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetDevice) X(cuCtxEnablePeerAccess)              \
    X(cuPointerGetAttribute) X(cuMemGetAddressRange) X(cuMemAlloc) X(cuMemFree)                    \
    X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemcpyAsync) X(cuIpcGetMemHandle)                       \
    X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle)    \
    X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuStreamWaitEvent)       \
    X(cuStreamIsCapturing) X(cuThreadExchangeStreamCaptureMode) X(cuStreamSynchronize)             \
    X(cuStreamGetCtx) X(cuStreamCreate) X(cuStreamDestroy)                                         \
    X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemsetD8Async) X(cuModuleLoadData)             \
    X(cuModuleGetFunction) X(cuLaunchKernel) X(cuGetErrorString)                      \
    X(cuDeviceGetName) X(cuDeviceTotalMem) X(cuDeviceGetPCIBusId) X(cuDeviceGetP2PAttribute)
/* clang-format on */

#define POINTER(function) __typeof__(function) *function;

/* Call cuda_has_driver() before using it. */
extern struct cuda_driver {
    DRIVER_FUNCTIONS(POINTER)
} cuda_driver;

/* flags: RTLD_NOLOAD accepts only a loaded driver. */
bool cuda_has_driver(int flags);
/* Converts a driver result; what: the attempted operation. */
pen_status cuda_failed(CUresult result, const char *what, pen_error *why);
bool cuda_attribute(void *value, CUpointer_attribute name, const void *pointer);
bool cuda_owns(const void *pointer);
int cuda_device(const void *pointer);
int cuda_current(void);
bool cuda_available(char *note, size_t note_size);
int cuda_count(void);
void cuda_uuid(int device, uint8_t out[16]);

/* ---- contexts: device_cuda.c --------------------------------------------------------------------- */

pen_status cuda_primary_context(int device, CUcontext *context, pen_error *why);
/* Makes a context current until cuda_leave(), for calls that captures of other streams allow. */
pen_status cuda_push(CUcontext context, const char *what, pen_error *why);
pen_status cuda_enter(int wanted, pen_error *why);
void cuda_leave(void);
/* Streams 0, 1 and 2 are CUDA's own and belong to the current context. */
bool cuda_is_own_stream(device_stream stream);
/* Enters the context of work on `stream` and `pointer` (may be NULL); left with cuda_leave(). */
pen_status cuda_enter_for(device_stream stream, const void *pointer, pen_error *why);

/* ---- memory: device_cuda_memory.c ---------------------------------------------------------------- */

void *cuda_alloc(size_t bytes, int device, pen_error *why);
void cuda_free(void *data);
void *cuda_host_alloc(size_t bytes, pen_error *why);
void cuda_host_free(void *data);
pen_status cuda_pin(void *data, size_t bytes, pen_error *why);
void cuda_unpin(void *data);
pen_status cuda_share(const void *data, size_t bytes, device_ref *ref, pen_error *why);
pen_status cuda_map(const device_ref *ref, void **data, pen_error *why);
void cuda_unmap(const device_ref *ref);

/* ---- streams and events: device_cuda_stream.c ---------------------------------------------------- */

pen_status cuda_stream_new(int device, device_stream *stream, pen_error *why);
void cuda_stream_free(device_stream stream);
pen_status cuda_may_enqueue(const char *what, device_stream stream, pen_error *why);
device_event *cuda_event_new(void);
void cuda_event_free(device_event *event);
pen_status cuda_event_record(device_event *event, device_stream stream, pen_error *why);
pen_status cuda_event_done(device_event *event, pen_error *why);
pen_status cuda_stream_wait(device_stream stream, device_event *event, pen_error *why);
pen_status cuda_event_share(device_event *event, device_event_ref *ref, pen_error *why);
device_event *cuda_event_map(const device_event_ref *ref, pen_error *why);

/* ---- kernels: device_cuda_kernels.c -------------------------------------------------------------- */

enum {
    FOLD_ANY,                                 /* + pen_dtype */
    FOLD_TWO     = PEN_U64 + 1,               /* + pen_dtype */
    ACCUMULATE   = FOLD_TWO + PEN_U64 + 1,    /* + pen_dtype */
    NARROW       = ACCUMULATE + PEN_BF16 + 1, /* + pen_dtype */
    WEIGH        = NARROW + PEN_BF16 + 1,     /* + pen_dtype: of the same type */
    WEIGH_F32    = WEIGH + PEN_BF16 + 1,      /* + pen_dtype: of float32, rounded */
    UPDATE       = WEIGH_F32 + PEN_BF16 + 1,  /* + simd_formula */
    UPDATE_NORMS = UPDATE + SIMD_FORMULAS,
    WEIGH_NONE,
    NORM_BLOCKS,
    DECIDE,
    ROOTS,
    COPY_BYTES,
    FLAG_SET,
    FLAG_WAIT,
    CUDA_KERNELS
};

bool cuda_has_kernel(int which);
/* Runs a kernel on `blocks` of `threads` each, or on as many as the device runs at a time. */
pen_status cuda_launch(int which, void *arguments, uint64_t blocks, unsigned threads,
                       device_stream stream, pen_error *why);
/* work: number of threads with work. */
pen_status cuda_launch_work(int which, void *arguments, uint64_t work, device_stream stream,
                            pen_error *why);

/* ---- a step: device_cuda_step.c ------------------------------------------------------------------ */

pen_status cuda_weigh(const device_weigh *w, device_stream stream, pen_error *why);
pen_status cuda_norm(const device_norm_span *spans, size_t n, uint32_t *bad, device_stream stream,
                     pen_error *why);
pen_status cuda_decide(const device_decide *d, device_stream stream, pen_error *why);
pen_status cuda_update(const device_update *u, device_stream stream, pen_error *why);
pen_status cuda_roots(const double *param_sums, const double *update_sums, size_t n_blocks,
                      double *norms, device_stream stream, pen_error *why);
pen_status cuda_widen(float *to, const void *from, pen_dtype dtype, size_t n, device_stream stream,
                      pen_error *why);

/* ---- other work: device_cuda_work.c --------------------------------------------------------------- */

pen_status cuda_reduce(const reduce_args *args, size_t begin, size_t count, device_stream stream,
                       pen_error *why);
pen_status cuda_accumulate(float *sum, const void *in, pen_dtype dtype, size_t n, bool is_first,
                           device_stream stream, pen_error *why);
pen_status cuda_narrow(void *to, const float *sum, pen_dtype dtype, size_t n, device_stream stream,
                       pen_error *why);
pen_status cuda_zero(void *to, size_t bytes, device_stream stream, pen_error *why);
pen_status cuda_copy(void *to, const void *from, size_t bytes, device_stream stream,
                     pen_error *why);
pen_status cuda_flag_set(void *const *flags, int n, uint64_t value, device_stream stream,
                         pen_error *why);
pen_status cuda_flag_wait(const device_flag_wait *wait, device_stream stream, pen_error *why);

#endif
#endif
