/* cuda_on_host.h - enough of CUDA for kernels to run on the host: every thread of a block is a fiber of one thread.
 *
 * Given to a C++ compiler before a .cu file (-include).  Blocks run one after the other, the threads of a block in
 * turns: one runs until it waits for the others (__syncthreads, a shuffle, a product of tensor cores) or ends.  A thread
 * that has ended counts as arrived, as on the device.  Memory of the device is memory of the host.
 * What it cannot show: speed, races between threads that forgot to wait, and PTX.
 */
#ifndef TESTS_GPU_CUDA_ON_HOST_H
#define TESTS_GPU_CUDA_ON_HOST_H

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

/* ---- words ------------------------------------------------------------------------------------- */
#define __device__
#define __global__
#define __shared__   static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
#define LAUNCH(kernel, grid, block, stream, ...)                                                   \
    ((void)(stream), host_launch(grid, block, [&] { kernel(__VA_ARGS__); }))

struct dim3 {
    unsigned x, y;
    dim3(unsigned columns = 1, unsigned rows = 1) : x(columns), y(rows) {}
};

/* ---- fibers: cuda_on_host.cpp ------------------------------------------------------------------ */
struct host_thread {
    dim3 thread, block, threads, grid;
};
const host_thread &host_self(); /* who is running */
void host_launch(dim3 grid, dim3 block, const std::function<void()> &kernel);
void host_sync_block();
void host_sync_warp();

/* 64 bytes of each lane of this warp, for the others to read between two waits. */
uint32_t *host_slot(unsigned lane);

#define threadIdx (host_self().thread)
#define blockIdx  (host_self().block)
#define blockDim  (host_self().threads)

/* ---- what kernels call ------------------------------------------------------------------------- */
static inline void __syncthreads()
{
    host_sync_block();
}

static inline float __uint_as_float(uint32_t x)
{
    float f;
    memcpy(&f, &x, sizeof f);
    return f;
}

static inline uint32_t __float_as_uint(float f)
{
    uint32_t x;
    memcpy(&x, &f, sizeof x);
    return x;
}

static inline float host_expf(float x)
{
    return expf(x);
}

#define __expf host_expf /* the C library has a function of this name */

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

static inline float __shfl_xor_sync(unsigned, float x, int mask)
{
    const unsigned lane = threadIdx.x % 32;
    host_slot(lane)[0]  = __float_as_uint(x);
    host_sync_warp();
    const float other = __uint_as_float(host_slot(lane ^ (unsigned)mask)[0]);
    host_sync_warp();
    return other;
}

/* One number of a fragment: which lane has it is written in PTX ISA, "Matrix Fragments for mma.m16n8k16". */
static inline float host_half(unsigned lane, unsigned reg, unsigned upper)
{
    return __uint_as_float((host_slot(lane)[reg] >> (upper ? 16 : 0)) << 16);
}

/* mma.m16n8k16 on bf16 with float32 sums. */
static inline void mma_on_host(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    const unsigned lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++) host_slot(lane)[i] = a[i];
    for (int i = 0; i < 2; i++) host_slot(lane)[4 + i] = b[i];
    host_sync_warp();
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++)
            c[i] += host_half(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) *
                    host_half(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
    }
    host_sync_warp();
}

/* ---- what the host calls ----------------------------------------------------------------------- */
typedef struct host_stream *cudaStream_t;
typedef enum { cudaSuccess, cudaErrorMemoryAllocation } cudaError_t;
typedef enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost } cudaMemcpyKind;

template <typename T> static inline cudaError_t cudaMalloc(T **to, size_t bytes)
{
    *to = (T *)aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*to)
        memset((void *)*to, 0xff, bytes); /* NaN, so that nothing is read before it was written */
    return *to ? cudaSuccess : cudaErrorMemoryAllocation;
}

static inline cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

static inline cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    memset(to, value, bytes);
    return cudaSuccess;
}

static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t)
{
    return cudaMemset(to, value, bytes);
}

static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                          cudaStream_t)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

static inline cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    *stream = NULL;
    return cudaSuccess;
}

static inline cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}

static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}

static inline cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

#endif
