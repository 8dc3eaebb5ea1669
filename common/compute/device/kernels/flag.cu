/* flag.cu - members on different devices signal progress to each other without the host.
 *
 * Every wait ends: when all flags have come, when the host sets the abort word, or at the deadline.  A single block
 * never blocks other kernels.  Never used between ranks that share a device.
 */
#include "common/compute/device/kernels/kernels.h"

#ifdef __CUDACC__ /* otherwise tests compile the kernels for the host and define these */
#define KERNEL_NOW_NS(ns) asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns))
#define KERNEL_LOAD_ACQUIRE(value, at)                                                             \
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory")
#define KERNEL_STORE_RELEASE(at, value)                                                            \
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory")
#endif

__device__ inline uint64_t now_ns()
{
    uint64_t ns;
    KERNEL_NOW_NS(ns);
    return ns;
}

__device__ inline uint64_t flag_load(const void *flag)
{
    uint64_t value;
    KERNEL_LOAD_ACQUIRE(value, flag);
    return value;
}

extern "C" __global__ void flag_set(const __grid_constant__ kernel_flag_set k)
{
    const int i = threadIdx.x;
    if (i >= k.n) return;
    __threadfence_system(); /* earlier writes of this stream become visible before the flag */
    KERNEL_STORE_RELEASE(k.flag[i], k.value);
}

extern "C" __global__ void flag_wait(const __grid_constant__ kernel_flag_wait k)
{
    const int i = threadIdx.x;
    if (i >= k.n) return;
    const char *flag     = (const char *)k.flags + (uint64_t)i * KERNEL_FLAG_BYTES;
    const uint64_t until = now_ns() + k.timeout_ns;
    for (uint32_t turn = 1; flag_load(flag) < k.value; turn++) {
        if (turn % 16 != 0) continue; /* the abort word is in host memory: slow to read */
        uint32_t end = KERNEL_WAITED;
        if (now_ns() > until) end = KERNEL_LATE;
        if (*(const volatile uint64_t *)k.abort != 0) end = KERNEL_ABORTED;
        if (end == KERNEL_WAITED) continue;
        *(volatile uint32_t *)k.result = end;
        break;
    }
    __threadfence_system();
}
