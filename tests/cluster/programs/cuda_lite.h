/* cuda_lite.h - the part of the CUDA driver that a test program needs to compute on a device
 * without a kernel: copies, and host functions that run in stream order. Found at run time, as the
 * SDK finds it. */
#ifndef TESTS_CLUSTER_PROGRAMS_CUDA_LITE_H
#define TESTS_CLUSTER_PROGRAMS_CUDA_LITE_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    int (*init)(unsigned);
    int (*retain)(void **context, int device);
    int (*set)(void *context);
    int (*stream_new)(void **stream, unsigned flags);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes, void *stream);
    int (*call)(void *stream, void (*fn)(void *user), void *user);
    int (*wait)(void *stream);
} cuda_lite;

static inline void cuda_lite_must(int result, const char *what)
{
    if (result == 0) return;
    fprintf(stderr, "CUDA: %s: error %d\n", what, result);
    exit(1);
}

static inline void cuda_lite_find(void *function, void *driver, const char *name)
{
    *(void **)function = dlsym(driver, name);
    cuda_lite_must(*(void **)function == NULL, name);
}

/* A separate stream on this device, in the context that the runtime would use. */
static inline void *cuda_lite_open(int device)
{
    void *driver  = dlopen("libcuda.so.1", RTLD_NOW);
    void *context = NULL, *stream = NULL;
    cuda_lite_must(driver == NULL, "libcuda.so.1 is not found");
    cuda_lite_find(&cuda_lite.init, driver, "cuInit");
    cuda_lite_find(&cuda_lite.retain, driver, "cuDevicePrimaryCtxRetain");
    cuda_lite_find(&cuda_lite.set, driver, "cuCtxSetCurrent");
    cuda_lite_find(&cuda_lite.stream_new, driver, "cuStreamCreate");
    cuda_lite_find(&cuda_lite.copy, driver, "cuMemcpyAsync");
    cuda_lite_find(&cuda_lite.call, driver, "cuLaunchHostFunc");
    cuda_lite_find(&cuda_lite.wait, driver, "cuStreamSynchronize");
    cuda_lite_must(cuda_lite.init(0), "cuInit");
    cuda_lite_must(cuda_lite.retain(&context, device), "cuDevicePrimaryCtxRetain");
    cuda_lite_must(cuda_lite.set(context), "cuCtxSetCurrent");
    cuda_lite_must(cuda_lite.stream_new(&stream, 1), "cuStreamCreate"); /* non-blocking */
    return stream;
}

static inline void cuda_lite_copy(void *to, const void *from, size_t bytes, void *stream)
{
    cuda_lite_must(cuda_lite.copy((uintptr_t)to, (uintptr_t)from, bytes, stream), "cuMemcpyAsync");
}

#endif
