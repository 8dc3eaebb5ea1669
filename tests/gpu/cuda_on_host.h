/* cuda_on_host.h - the part of CUDA that kernels need to run on the host: every thread of a block
 * is a fiber of one thread.
 *
 * Passed to a C++ compiler before a .cu file (-include). Blocks run one after another, the threads
 * of a block by turns: one runs until it waits for the others (__syncthreads, a shuffle, a product
 * of tensor cores) or ends. A thread that has ended counts as arrived, as on the device. The linked
 * runtime decides where memory is and when work is done: cuda_on_host_now.cpp (the host's memory;
 * at once) or cuda_on_host_driver.cpp (both as in the driver).
 * It cannot show speed, races between threads without a barrier, and PTX.
 */
#ifndef TESTS_GPU_CUDA_ON_HOST_H
#define TESTS_GPU_CUDA_ON_HOST_H

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>

/* ---- keywords ---------------------------------------------------------------------------------- */
#define __device__
#define __global__
#define __grid_constant__
#define __shared__   static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
#define LAUNCH(kernel, grid, block, stream, ...)                                                   \
    host_enqueue(stream, [=] { host_launch(grid, block, [&] { kernel(__VA_ARGS__); }); })

struct dim3 {
    unsigned x, y;
    dim3(unsigned columns = 1, unsigned rows = 1) : x(columns), y(rows) {}
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct alignas(8) uint2 {
    unsigned x, y;
};

/* ---- the current thread ------------------------------------------------------------------------ */
struct host_thread {
    dim3 thread, block, threads, grid;
};
inline host_thread host_now;

#define threadIdx (host_now.thread)
#define blockIdx  (host_now.block)
#define blockDim  (host_now.threads)
#define gridDim   (host_now.grid)

/* For kernels whose threads do not wait for each other; in one dimension. */
template <typename F> void host_each(dim3 grid, dim3 threads, const F &kernel)
{
    host_now = {dim3(), dim3(), threads, grid};
    for (unsigned block = 0; block < grid.x; block++)
        for (unsigned thread = 0; thread < threads.x; thread++) {
            host_now.block.x  = block;
            host_now.thread.x = thread;
            kernel();
        }
}

/* ---- fibers: cuda_on_host.cpp ------------------------------------------------------------------ */
void host_launch(dim3 grid, dim3 block, const std::function<void()> &kernel);
void host_sync_block();
void host_sync_warp();

/* 64 bytes of each lane of this warp, which the others read after a wait. There are two of each,
 * used by turns: a lane that is one wait ahead writes to the one that is no longer read. */
uint32_t *host_slot(unsigned lane);
void host_next_slots();

/* ---- called by kernels ------------------------------------------------------------------------- */
static inline void __syncthreads()
{
    host_sync_block();
}

static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline uint4 __ldcs(const uint4 *from)
{
    return *from;
}

static inline void __stcs(uint4 *to, uint4 value)
{
    *to = value;
}

/* An error that ends all work on the device ends the process here. */
static inline void __trap()
{
    fprintf(stderr, "a kernel has trapped\n");
    abort();
}

static inline unsigned atomicMin(unsigned *at, unsigned x)
{
    const unsigned old = *at;
    if (x < old) *at = x;
    return old;
}

static inline uint64_t host_now_ns()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

template <typename To, typename From> static To host_bits(From x)
{
    static_assert(sizeof(To) == sizeof x, "as wide");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

/* The parts of common/compute/device/kernels that are PTX. */
#define KERNEL_F32_OF_F16(y, bits) ((y) = (float)host_bits<_Float16>(bits))
#define KERNEL_F16_OF_F32(bits, x) ((bits) = host_bits<uint16_t>((_Float16)(x)))
#define KERNEL_NOW_NS(ns)          ((ns) = host_now_ns())
#define KERNEL_LOAD_ACQUIRE(value, at)                                                             \
    ((value) = __atomic_load_n((const uint64_t *)(at), __ATOMIC_ACQUIRE))
#define KERNEL_STORE_RELEASE(at, value) __atomic_store_n((uint64_t *)(at), value, __ATOMIC_RELEASE)

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
    host_next_slots();
    return other;
}

/* One number of a fragment: PTX ISA, "Matrix Fragments for mma.m16n8k16", defines which lane has
 * it. */
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
    host_next_slots();
}

/* ---- called by the host ------------------------------------------------------------------------ */
typedef struct host_stream *cudaStream_t;
typedef struct host_event *cudaEvent_t;
typedef enum { cudaSuccess, cudaErrorMemoryAllocation = 2, cudaErrorUnknown = 999 } cudaError_t;
typedef enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost } cudaMemcpyKind;
enum { cudaStreamNonBlocking = 1, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };

/* Work of a stream: captured by value, because the caller may have returned by then. */
void host_enqueue(void *stream, std::function<void()> work);

cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetLastError();
cudaError_t host_malloc(void **to, size_t bytes); /* NaN, to expose reads before writes */
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **to, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);

template <typename T> static inline cudaError_t cudaMalloc(T **to, size_t bytes)
{
    return host_malloc((void **)to, bytes);
}

#endif
