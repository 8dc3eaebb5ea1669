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
    int (*pinned)(void **memory, size_t bytes, unsigned flags);
    int (*capture_begin)(void *stream, unsigned mode);
    int (*capture_end)(void *stream, void **graph);
    /* Of the fake driver (tests/gpu/driver/counts.cpp) only; NULL with a real one. */
    unsigned long long (*count)(const char *name);
    void (*interval)(const char *name);
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
    cuda_lite_find(&cuda_lite.pinned, driver, "cuMemHostAlloc");
    cuda_lite_find(&cuda_lite.capture_begin, driver, "cuStreamBeginCapture_v2");
    cuda_lite_find(&cuda_lite.capture_end, driver, "cuStreamEndCapture");
    *(void **)&cuda_lite.count    = dlsym(driver, "cuda_on_host_count");
    *(void **)&cuda_lite.interval = dlsym(driver, "cuda_on_host_interval");
    cuda_lite_must(cuda_lite.init(0), "cuInit");
    cuda_lite_must(cuda_lite.retain(&context, device), "cuDevicePrimaryCtxRetain");
    cuda_lite_must(cuda_lite.set(context), "cuCtxSetCurrent");
    cuda_lite_must(cuda_lite.stream_new(&stream, 1), "cuStreamCreate"); /* non-blocking */
    return stream;
}

/* Page-locked memory of the host, which copies in a stream do not wait for: until cuda_lite_reuse(). */
enum { CUDA_LITE_BLOCK = 4 << 20, CUDA_LITE_BLOCKS = 1024 };
static struct {
    char *memory;
    size_t bytes;
} cuda_lite_block[CUDA_LITE_BLOCKS];
static struct {
    int block;
    size_t used;
} cuda_lite_next;

static inline void *cuda_lite_pinned(size_t bytes)
{
    for (; cuda_lite_next.block < CUDA_LITE_BLOCKS;
         cuda_lite_next.block++, cuda_lite_next.used = 0) {
        const int i = cuda_lite_next.block;
        if (cuda_lite_block[i].memory == NULL) {
            void *memory             = NULL;
            cuda_lite_block[i].bytes = bytes > CUDA_LITE_BLOCK ? bytes : CUDA_LITE_BLOCK;
            cuda_lite_must(cuda_lite.pinned(&memory, cuda_lite_block[i].bytes, 0),
                           "cuMemHostAlloc");
            cuda_lite_block[i].memory = memory;
        }
        if (bytes > cuda_lite_block[i].bytes - cuda_lite_next.used) continue;
        char *memory = cuda_lite_block[i].memory + cuda_lite_next.used;
        cuda_lite_next.used += (bytes + 63) / 64 * 64;
        if (cuda_lite_next.used > cuda_lite_block[i].bytes)
            cuda_lite_next.used = cuda_lite_block[i].bytes;
        return memory;
    }
    cuda_lite_must(1, "page-locked memory");
    return NULL;
}

/* When the stream has ended all work on it. */
static inline void cuda_lite_reuse(void)
{
    cuda_lite_next.block = 0;
    cuda_lite_next.used  = 0;
}

/* Counts what follows under `name` as well; NULL: no more. */
static inline void cuda_lite_interval(const char *name)
{
    if (cuda_lite.interval != NULL) cuda_lite.interval(name);
}

static inline void cuda_lite_copy(void *to, const void *from, size_t bytes, void *stream)
{
    cuda_lite_must(cuda_lite.copy((uintptr_t)to, (uintptr_t)from, bytes, stream), "cuMemcpyAsync");
}

#endif
