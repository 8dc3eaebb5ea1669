/* device_cuda_memory.c - memory of CUDA devices, pinned memory of the host, and allocations of other processes.
 *
 * Legacy IPC handles name whole allocations; a pointer's offset is sent with it.  A handle can be opened once per
 * context, so opens are counted.
 */
#include "common/compute/device/device_cuda.h"

#ifdef PENSTOCK_CUDA

#include "common/base/why.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects handles and mappings */

/* ---- memory -------------------------------------------------------------------------------------- */

/* On a stream of its own: the default one would wait for the program's work, and refuses while a stream is captured. */
static CUresult zero_now(CUdeviceptr data, size_t bytes)
{
    CUstream stream = NULL;
    CUresult result = cuda_driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) return result;
    result = cuda_driver.cuMemsetD8Async(data, 0, bytes, stream);
    if (result == CUDA_SUCCESS) result = cuda_driver.cuStreamSynchronize(stream);
    cuda_driver.cuStreamDestroy(stream);
    return result;
}

void *cuda_alloc(size_t bytes, int device, pen_error *why)
{
    CUdeviceptr data  = 0;
    const size_t size = bytes > 0 ? bytes : 1;
    if (cuda_enter(device, why) != PEN_OK) return NULL;
    CUresult result = cuda_driver.cuMemAlloc(&data, size);
    if (result == CUDA_SUCCESS) {
        result = zero_now(data, size);
        if (result != CUDA_SUCCESS) cuda_driver.cuMemFree(data);
    }
    cuda_leave();
    return cuda_failed(result, "allocating memory", why) == PEN_OK ? (void *)(uintptr_t)data : NULL;
}

void cuda_free(void *data)
{
    if (data == NULL || cuda_enter_for(NULL, data, NULL) != PEN_OK) return;
    cuda_driver.cuMemFree((CUdeviceptr)data);
    cuda_leave();
}

void *cuda_host_alloc(size_t bytes, pen_error *why)
{
    void *data = NULL;
    if (cuda_enter_for(NULL, NULL, why) != PEN_OK) return NULL;
    CUresult result = cuda_driver.cuMemHostAlloc(
        &data, bytes > 0 ? bytes : 1, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    cuda_leave();
    if (cuda_failed(result, "allocating host memory", why) != PEN_OK) return NULL;
    return memset(data, 0, bytes);
}

void cuda_host_free(void *data)
{
    if (data == NULL || cuda_enter_for(NULL, NULL, NULL) != PEN_OK) return;
    cuda_driver.cuMemFreeHost(data);
    cuda_leave();
}

pen_status cuda_pin(void *data, size_t bytes, pen_error *why)
{
    if (bytes == 0) return PEN_OK;
    pen_status status = cuda_enter_for(NULL, NULL, why);
    if (status != PEN_OK) return status;
    CUresult result = cuda_driver.cuMemHostRegister(data, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    cuda_leave();
    return cuda_failed(result, "pinning host memory", why);
}

/* Memory of 0 bytes was never pinned; the driver reports that, and it is ignored. */
void cuda_unpin(void *data)
{
    if (data == NULL || cuda_enter_for(NULL, NULL, NULL) != PEN_OK) return;
    cuda_driver.cuMemHostUnregister(data);
    cuda_leave();
}

/* ---- memory that other processes map --------------------------------------------------------------- */

/* Getting a handle is a system call; an allocation's handle never changes. */
enum { HANDLES = 64 };
static struct {
    uint64_t id;
    CUipcMemHandle handle;
} known_handle[HANDLES];

static CUresult handle_of(CUdeviceptr base, uint64_t id, CUipcMemHandle *handle)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (known_handle[id % HANDLES].id != id) {
        result = cuda_driver.cuIpcGetMemHandle(&known_handle[id % HANDLES].handle, base);
        known_handle[id % HANDLES].id = result == CUDA_SUCCESS ? id : 0;
    }
    *handle = known_handle[id % HANDLES].handle;
    pthread_mutex_unlock(&lock);
    return result;
}

pen_status cuda_share(const void *data, size_t bytes, device_ref *ref, pen_error *why)
{
    CUdeviceptr base      = 0;
    size_t size           = 0;
    uint64_t id           = 0;
    unsigned char is_able = 0,
                  room[8] = {0}; /* the attribute is a bool; room in case it is an int */
    CUipcMemHandle handle;
    if (!cuda_attribute(room, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, data) ||
        !cuda_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, data))
        return why_set(why, PEN_UNSUPPORTED, "this is not memory of a CUDA device");
    is_able = room[0];
    if (!is_able)
        return why_set(why, PEN_UNSUPPORTED,
                       "this CUDA memory cannot be shared with other processes (a pool or virtual "
                       "memory); allocate it with cudaMalloc or pen_alloc()");
    pen_status status = cuda_enter_for(NULL, data, why);
    if (status != PEN_OK) return status;
    CUresult result = cuda_driver.cuMemGetAddressRange(&base, &size, (CUdeviceptr)data);
    if (result == CUDA_SUCCESS) result = handle_of(base, id, &handle);
    cuda_leave();
    if (result != CUDA_SUCCESS) {
        cuda_failed(result, "sharing memory", why);
        return why_set(why, PEN_UNSUPPORTED, "this CUDA memory cannot be shared (%.200s)",
                       why != NULL ? why->text : "");
    }
    if ((CUdeviceptr)data + bytes > base + size)
        return why_set(why, PEN_INVALID_ARGUMENT, "%zu bytes go beyond the end of the allocation",
                       bytes);
    *ref = (device_ref){.id      = id,
                        .offset  = (CUdeviceptr)data - base,
                        .process = device_process(),
                        .base    = base,
                        .bytes   = size,
                        .pid     = getpid(),
                        .device  = cuda_device(data)};
    memcpy(ref->handle, &handle, sizeof handle);
    return PEN_OK;
}

typedef struct mapping {
    struct mapping *next;
    uint64_t process, id, there, bytes; /* there: in that process */
    int32_t pid;
    CUcontext context;
    CUdeviceptr base; /* 0: closed, since its owner has freed it */
    int count;
} mapping;

static mapping *mappings;

static mapping **find_mapping(const device_ref *ref, CUcontext context)
{
    mapping **at = &mappings;
    while (*at != NULL && ((*at)->process != ref->process || (*at)->pid != ref->pid ||
                           (*at)->id != ref->id || (*at)->context != context))
        at = &(*at)->next;
    return at;
}

static void close_mapping(mapping *m)
{
    if (m->base != 0) cuda_driver.cuIpcCloseMemHandle(m->base);
    m->base = 0;
}

/* A process has no two allocations at one address: it has freed the older one, without waiting for anyone.  The driver
 * would map the new one to what is left of that, or not at all (error 208). */
static void close_older(const device_ref *ref, CUcontext context)
{
    for (mapping *m = mappings; m != NULL; m = m->next)
        if (m->process == ref->process && m->pid == ref->pid && m->context == context &&
            m->id != ref->id && m->there < ref->base + ref->bytes &&
            ref->base < m->there + m->bytes)
            close_mapping(m);
}

/* With the lock held. */
static CUresult open_mapping(const device_ref *ref, CUcontext context, mapping **at)
{
    CUipcMemHandle handle;
    mapping *m = calloc(1, sizeof *m);
    if (m == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *m = (mapping){.process = ref->process,
                   .id      = ref->id,
                   .there   = ref->base,
                   .bytes   = ref->bytes,
                   .pid     = ref->pid,
                   .context = context};
    memcpy(&handle, ref->handle, sizeof handle);
    close_older(ref, context);
    CUresult result =
        cuda_driver.cuIpcOpenMemHandle(&m->base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS)
        *at = m;
    else
        free(m);
    return result;
}

/* Memory of another device of this process is mapped already, but this device may lack access. */
static pen_status map_own(const device_ref *ref, void **data, pen_error *why)
{
    CUcontext context = NULL;
    const int own     = cuda_current();
    int can           = 1;
    *data             = (void *)(uintptr_t)(ref->base + ref->offset);
    if (own < 0 || own == ref->device) return PEN_OK;
    if (cuda_driver.cuDeviceCanAccessPeer(&can, own, ref->device) != CUDA_SUCCESS || !can)
        return why_set(why, PEN_UNREACHABLE, "CUDA device %d cannot reach memory of device %d", own,
                       ref->device);
    pen_status status = cuda_primary_context(ref->device, &context, why);
    if (status != PEN_OK) return status;
    CUresult result = cuda_driver.cuCtxEnablePeerAccess(context, 0);
    if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return PEN_OK;
    return cuda_failed(result, "reaching another device", why);
}

pen_status cuda_map(const device_ref *ref, void **data, pen_error *why)
{
    CUcontext context = NULL;
    pen_status status = cuda_enter_for(NULL, NULL, why);
    if (status != PEN_OK) return status;
    if (ref->process == device_process()) {
        status = map_own(ref, data, why);
        cuda_leave();
        return status;
    }
    cuda_driver.cuCtxGetCurrent(&context);
    pthread_mutex_lock(&lock);
    mapping **at    = find_mapping(ref, context);
    CUresult result = *at == NULL ? open_mapping(ref, context, at) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        (*at)->count++;
        *data = (void *)(uintptr_t)((*at)->base + ref->offset);
    }
    pthread_mutex_unlock(&lock);
    cuda_leave();
    if (cuda_failed(result, "mapping memory", why) == PEN_OK) return PEN_OK;
    return why_set(why, PEN_UNREACHABLE, "CUDA memory of process %d cannot be mapped (%.200s)",
                   ref->pid, why != NULL ? why->text : "");
}

void cuda_unmap(const device_ref *ref)
{
    CUcontext context = NULL;
    if (ref->process == device_process() || cuda_enter_for(NULL, NULL, NULL) != PEN_OK) return;
    cuda_driver.cuCtxGetCurrent(&context);
    pthread_mutex_lock(&lock);
    mapping **at = find_mapping(ref, context), *m = *at;
    if (m != NULL && --m->count == 0) {
        *at = m->next;
        close_mapping(m);
        free(m);
    }
    pthread_mutex_unlock(&lock);
    cuda_leave();
}

#endif
