/* cuda_on_host_now.cpp - the runtime of cuda_on_host.h without a driver: host memory, and all work
 * is done at once. */
#include "cuda_on_host.h"

void host_enqueue(void *, std::function<void()> work)
{
    work();
}

cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}

cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

cudaError_t host_malloc(void **to, size_t bytes)
{
    *to = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (*to) memset(*to, 0xff, bytes);
    return *to ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **to, size_t bytes)
{
    return host_malloc(to, bytes);
}

cudaError_t cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t)
{
    return cudaMemset(to, value, bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = NULL;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = NULL;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t)
{
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return cudaSuccess;
}
