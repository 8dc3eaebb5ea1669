/* cuda_on_host_driver.cpp - the runtime of cuda_on_host.h on the fake driver (driver/).
 *
 * Kernels are host functions in stream order. A real driver's host functions cannot reach device
 * memory; those of the fake driver can, and while none runs, no host code can.
 */
#include "cuda_on_host.h"

#include <dlfcn.h>

typedef unsigned long long address;

/* ---- the driver -------------------------------------------------------------------------------- */
/* clang-format off */
#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit, (unsigned))                                                                          \
    X(cuDeviceGet, (int *, int))                                                                   \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                    \
    X(cuCtxPushCurrent_v2, (void *))                                                               \
    X(cuMemAlloc_v2, (address *, size_t))                                                          \
    X(cuMemFree_v2, (address))                                                                     \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                                 \
    X(cuMemFreeHost, (void *))                                                                     \
    X(cuMemsetD8_v2, (address, unsigned char, size_t))                                             \
    X(cuMemsetD8Async, (address, unsigned char, size_t, cudaStream_t))                             \
    X(cuMemcpyAsync, (address, address, size_t, cudaStream_t))                                     \
    X(cuStreamCreate, (cudaStream_t *, unsigned))                                                  \
    X(cuStreamDestroy_v2, (cudaStream_t))                                                          \
    X(cuStreamSynchronize, (cudaStream_t))                                                         \
    X(cuEventCreate, (cudaEvent_t *, unsigned))                                                    \
    X(cuEventDestroy_v2, (cudaEvent_t))                                                            \
    X(cuEventRecord, (cudaEvent_t, cudaStream_t))                                                  \
    X(cuEventSynchronize, (cudaEvent_t))                                                           \
    X(played_kernel, (cudaStream_t, void (*)(void *), void *))
/* clang-format on */

#define POINTER(name, arguments) int(*name) arguments;
#define FIND(name, arguments)    ok = find((void **)&driver.name, library, #name) && ok;

static struct {
    DRIVER_FUNCTIONS(POINTER)
} driver;

static cudaError_t last;

static bool find(void **to, void *library, const char *name)
{
    *to = dlsym(library, name);
    return *to != NULL;
}

static bool find_driver()
{
    bool ok       = true;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return false;
    DRIVER_FUNCTIONS(FIND)
    return ok;
}

/* The codes have the same meaning in both, as far as they are read here. */
static cudaError_t told(int result)
{
    if (result != 0) last = (cudaError_t)result;
    return (cudaError_t)result;
}

cudaError_t cudaSetDevice(int number)
{
    static const bool is_found = find_driver();
    int device;
    void *context;
    if (!is_found || driver.cuInit(0) != 0 || driver.cuDeviceGet(&device, number) != 0 ||
        driver.cuDevicePrimaryCtxRetain(&context, device) != 0)
        return cudaErrorUnknown;
    return told(driver.cuCtxPushCurrent_v2(context));
}

cudaError_t cudaGetLastError()
{
    const cudaError_t was = last;
    last                  = cudaSuccess;
    return was;
}

/* ---- work -------------------------------------------------------------------------------------- */
static void run(void *closure)
{
    std::function<void()> *work = (std::function<void()> *)closure;
    (*work)();
    delete work;
}

void host_enqueue(void *stream, std::function<void()> work)
{
    told(driver.played_kernel((cudaStream_t)stream, run,
                              new std::function<void()>(std::move(work))));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return told(driver.cuMemsetD8_v2((address)to, (unsigned char)value, bytes));
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return told(driver.cuMemsetD8Async((address)to, (unsigned char)value, bytes, stream));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream)
{
    return told(driver.cuMemcpyAsync((address)to, (address)from, bytes, stream));
}

/* ---- memory ------------------------------------------------------------------------------------ */
cudaError_t host_malloc(void **to, size_t bytes)
{
    const cudaError_t result = told(driver.cuMemAlloc_v2((address *)to, bytes));
    return result == cudaSuccess ? cudaMemset(*to, 0xff, bytes) : result;
}

cudaError_t cudaFree(void *memory)
{
    return memory ? told(driver.cuMemFree_v2((address)memory)) : cudaSuccess;
}

cudaError_t cudaMallocHost(void **to, size_t bytes)
{
    return told(driver.cuMemHostAlloc(to, bytes, 0));
}

cudaError_t cudaFreeHost(void *memory)
{
    return memory ? told(driver.cuMemFreeHost(memory)) : cudaSuccess;
}

/* ---- streams and events ------------------------------------------------------------------------ */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return told(driver.cuStreamCreate(stream, flags));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return told(driver.cuStreamDestroy_v2(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return told(driver.cuStreamSynchronize(stream));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    return told(driver.cuEventCreate(event, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return told(driver.cuEventDestroy_v2(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return told(driver.cuEventRecord(event, stream));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return told(driver.cuEventSynchronize(event));
}
