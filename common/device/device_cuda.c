/* device_cuda.c - the one C file that includes CUDA.
 *
 * DESIGN
 * Driver.    Found at run time, so that one binary runs with and without it; only the driver, no runtime.  A CUDA
 *            pointer can only exist in a process that has already loaded the driver; so what merely asks looks for a
 *            loaded driver (RTLD_NOLOAD) and never loads one.  Once found it stays.
 * Kernels.   kernels/<name>.cu are compiled to one image each, which lies in this library as bytes and is loaded into
 *            a context when its first kernel is launched there.
 * Contexts.  Work is done in the context of its stream; for stream 0 in the one that was entered, or else in that of
 *            its pointer's device.  A context that the caller's thread has is left as it was.  Without one the primary context is used, as CUDA's own
 *            runtime does.
 * Sharing.   Legacy IPC handles name whole allocations; the offset of a pointer in it travels beside it.  A handle can
 *            be opened once per context: openings are counted.
 */
#include "common/device/device.h"

#include "common/why.h"
#include <stdio.h>

#ifdef PENSTOCK_CUDA

#include "common/device/kernels/kernels.h"
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRIVER_NAME "libcuda.so.1"

/* ---- the driver ---------------------------------------------------------------------------------- */

/* clang-format off */
#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetUuid) X(cuDeviceGetAttribute)        \
    X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) X(cuCtxGetCurrent)                        \
    X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxGetDevice) X(cuCtxEnablePeerAccess)              \
    X(cuPointerGetAttribute) X(cuMemGetAddressRange) X(cuMemAlloc) X(cuMemFree) X(cuMemsetD8)      \
    X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemcpyAsync) X(cuIpcGetMemHandle)                       \
    X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuIpcGetEventHandle) X(cuIpcOpenEventHandle)    \
    X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventQuery) X(cuStreamWaitEvent)       \
    X(cuStreamSynchronize) X(cuStreamGetCtx) X(cuStreamCreate) X(cuStreamDestroy)                  \
    X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemsetD8Async) X(cuModuleLoadData)             \
    X(cuModuleGetFunction) X(cuLaunchKernel) X(cuGetErrorString)
/* clang-format on */

/* cuda.h gives many functions the name of their newest version: the name is taken after that. */
#define NAME_OF(function) #function
#define NAME(function)    NAME_OF(function)
#define POINTER(function) __typeof__(function) *function;
#define FIND(function)    ok = find((void **)&driver.function, handle, NAME(function)) && ok;

static struct {
    DRIVER_FUNCTIONS(POINTER)
} driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything static here */
static bool is_found;

static bool find(void **function, void *handle, const char *name)
{
    *function = dlsym(handle, name);
    return *function != NULL;
}

static bool find_all(int flags)
{
    bool ok      = true;
    void *handle = dlopen(DRIVER_NAME, RTLD_LAZY | flags);
    if (handle == NULL) return false;
    DRIVER_FUNCTIONS(FIND)
    if (!ok) dlclose(handle);
    return ok;
}

static bool has_driver(int flags)
{
    pthread_mutex_lock(&lock);
    if (!is_found) is_found = find_all(flags);
    const bool found = is_found;
    pthread_mutex_unlock(&lock);
    return found;
}

static pen_status failed(CUresult result, const char *what, pen_error *why)
{
    const char *text = NULL;
    if (result == CUDA_SUCCESS) return PEN_OK;
    if (driver.cuGetErrorString(result, &text) != CUDA_SUCCESS) text = "unknown error";
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return why_set(why, PEN_NO_MEMORY, "CUDA has no memory left (%s)", what);
    return why_set(why, PEN_DEVICE, "CUDA: %s: %s (%d)", what, text, result);
}

static bool cuda_available(char *note, size_t note_size)
{
    int devices = 0;
    if (!has_driver(0)) {
        snprintf(note, note_size,
                 "built with CUDA %d.%d; no driver on this machine (" DRIVER_NAME " not found)",
                 CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
        return false;
    }
    if (driver.cuInit(0) != CUDA_SUCCESS || driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS) {
        snprintf(note, note_size, "built with CUDA %d.%d; the driver does not start (no device?)",
                 CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
        return false;
    }
    snprintf(note, note_size, "built with CUDA %d.%d; %d device%s", CUDA_VERSION / 1000,
             CUDA_VERSION % 1000 / 10, devices, devices == 1 ? "" : "s");
    return devices > 0;
}

static bool attribute(void *value, CUpointer_attribute name, const void *pointer)
{
    return has_driver(RTLD_NOLOAD) && pointer != NULL &&
           driver.cuPointerGetAttribute(value, name, (CUdeviceptr)pointer) == CUDA_SUCCESS;
}

static bool cuda_owns(const void *pointer)
{
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    return attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) &&
           type == CU_MEMORYTYPE_DEVICE;
}

static int cuda_device(const void *pointer)
{
    int device = -1;
    return attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) ? device : -1;
}

static int cuda_current(void)
{
    CUcontext context = NULL;
    CUdevice device   = -1;
    if (!has_driver(RTLD_NOLOAD) || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS) return -1;
    if (context == NULL || driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) return -1;
    return device;
}

static int cuda_count(void)
{
    int devices = 0;
    if (!has_driver(0) || driver.cuInit(0) != CUDA_SUCCESS) return 0;
    return driver.cuDeviceGetCount(&devices) == CUDA_SUCCESS ? devices : 0;
}

static void cuda_uuid(int device, uint8_t out[16])
{
    CUuuid uuid = {{0}};
    CUdevice handle;
    memset(out, 0, 16);
    if (!has_driver(0) || driver.cuInit(0) != CUDA_SUCCESS) return;
    if (driver.cuDeviceGet(&handle, device) != CUDA_SUCCESS) return;
    if (driver.cuDeviceGetUuid(&uuid, handle) == CUDA_SUCCESS) memcpy(out, uuid.bytes, 16);
}

/* ---- contexts ------------------------------------------------------------------------------------ */

enum { DEVICES_MAX = 32, CONTEXTS_MAX = 64 };

static CUcontext primary[DEVICES_MAX]; /* kept once taken, as the runtime keeps it */

static pen_status primary_context(int device, CUcontext *context, pen_error *why)
{
    CUdevice handle;
    CUresult result;
    if (device < 0 || device >= DEVICES_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT, "there is no CUDA device %d", device);
    if (!has_driver(0))
        return why_set(why, PEN_UNSUPPORTED, "there is no CUDA driver on this machine");
    pthread_mutex_lock(&lock);
    result = driver.cuInit(0);
    if (result == CUDA_SUCCESS) result = driver.cuDeviceGet(&handle, device);
    if (result == CUDA_SUCCESS && primary[device] == NULL)
        result = driver.cuDevicePrimaryCtxRetain(&primary[device], handle);
    *context = primary[device];
    pthread_mutex_unlock(&lock);
    return failed(result, "taking the device's context", why);
}

static _Thread_local int entered; /* enter() and enter_for() that are not left yet */

static pen_status push(CUcontext context, const char *what, pen_error *why)
{
    pen_status status = failed(driver.cuCtxPushCurrent(context), what, why);
    if (status == PEN_OK) entered++;
    return status;
}

static pen_status cuda_enter(int wanted, pen_error *why)
{
    CUcontext context = NULL;
    const int device  = wanted < 0 ? 0 : wanted; /* as the runtime does, for who has not said */
    if (cuda_current() == device) {
        driver.cuCtxGetCurrent(&context);
    } else {
        pen_status status = primary_context(device, &context, why);
        if (status != PEN_OK) return status;
    }
    return push(context, "entering the device", why);
}

static void cuda_leave(void)
{
    CUcontext context;
    driver.cuCtxPopCurrent(&context);
    entered--;
}

/* Streams 0, 1 and 2 are CUDA's own and belong to whatever context is current. */
static bool is_own_stream(device_stream stream)
{
    return (uintptr_t)stream > 2;
}

/* Enters the context that work on `stream` and `pointer` (may be NULL) belongs to; left with cuda_leave(). */
static pen_status enter_for(device_stream stream, const void *pointer, pen_error *why)
{
    CUcontext context = NULL;
    const int device  = cuda_device(pointer);
    if (!has_driver(0))
        return why_set(why, PEN_UNSUPPORTED, "there is no CUDA driver on this machine");
    if (is_own_stream(stream)) {
        pen_status status =
            failed(driver.cuStreamGetCtx((CUstream)stream, &context), "asking for a stream", why);
        if (status != PEN_OK) return status;
        return push(context, "entering a stream's context", why);
    }
    /* Inside of enter() the default stream is that of the device entered, also for memory of another. */
    if (cuda_current() >= 0 && (entered > 0 || device < 0)) return cuda_enter(cuda_current(), why);
    return cuda_enter(device, why);
}

/* ---- memory -------------------------------------------------------------------------------------- */

static void *cuda_alloc(size_t bytes, int device, pen_error *why)
{
    CUdeviceptr data  = 0;
    const size_t size = bytes > 0 ? bytes : 1;
    if (cuda_enter(device, why) != PEN_OK) return NULL;
    CUresult result = driver.cuMemAlloc(&data, size);
    if (result == CUDA_SUCCESS) {
        result = driver.cuMemsetD8(data, 0, size);
        if (result == CUDA_SUCCESS) result = driver.cuStreamSynchronize(NULL);
        if (result != CUDA_SUCCESS) driver.cuMemFree(data);
    }
    cuda_leave();
    return failed(result, "allocating memory", why) == PEN_OK ? (void *)(uintptr_t)data : NULL;
}

static void cuda_free(void *data)
{
    if (data == NULL || enter_for(NULL, data, NULL) != PEN_OK) return;
    driver.cuMemFree((CUdeviceptr)data);
    cuda_leave();
}

static void *cuda_host_alloc(size_t bytes, pen_error *why)
{
    void *data = NULL;
    if (enter_for(NULL, NULL, why) != PEN_OK) return NULL;
    CUresult result = driver.cuMemHostAlloc(&data, bytes > 0 ? bytes : 1,
                                            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    cuda_leave();
    if (failed(result, "allocating host memory", why) != PEN_OK) return NULL;
    return memset(data, 0, bytes);
}

static void cuda_host_free(void *data)
{
    if (data == NULL || enter_for(NULL, NULL, NULL) != PEN_OK) return;
    driver.cuMemFreeHost(data);
    cuda_leave();
}

static pen_status cuda_pin(void *data, size_t bytes, pen_error *why)
{
    if (bytes == 0) return PEN_OK;
    pen_status status = enter_for(NULL, NULL, why);
    if (status != PEN_OK) return status;
    CUresult result = driver.cuMemHostRegister(data, bytes, CU_MEMHOSTREGISTER_PORTABLE);
    cuda_leave();
    return failed(result, "pinning host memory", why);
}

/* What was of no bytes was never pinned: the driver says so, and nothing is done. */
static void cuda_unpin(void *data)
{
    if (data == NULL || enter_for(NULL, NULL, NULL) != PEN_OK) return;
    driver.cuMemHostUnregister(data);
    cuda_leave();
}

/* ---- streams ------------------------------------------------------------------------------------- */

static pen_status cuda_stream_new(int device, device_stream *stream, pen_error *why)
{
    CUstream made     = NULL;
    pen_status status = cuda_enter(device, why);
    if (status != PEN_OK) return status;
    CUresult result = driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    cuda_leave();
    *stream = made;
    return failed(result, "making a stream", why);
}

static void cuda_stream_free(device_stream stream)
{
    if (!is_own_stream(stream) || enter_for(stream, NULL, NULL) != PEN_OK) return;
    driver.cuStreamDestroy((CUstream)stream);
    cuda_leave();
}

/* ---- memory that other processes map --------------------------------------------------------------- */

/* Asking for a handle enters the kernel; the answer for an allocation never changes. */
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
        result = driver.cuIpcGetMemHandle(&known_handle[id % HANDLES].handle, base);
        known_handle[id % HANDLES].id = result == CUDA_SUCCESS ? id : 0;
    }
    *handle = known_handle[id % HANDLES].handle;
    pthread_mutex_unlock(&lock);
    return result;
}

static pen_status cuda_share(const void *data, size_t bytes, device_ref *ref, pen_error *why)
{
    CUdeviceptr base      = 0;
    size_t size           = 0;
    uint64_t id           = 0;
    unsigned char is_able = 0,
                  room[8] = {0}; /* the attribute is a bool; room, should it be an int */
    CUipcMemHandle handle;
    if (!attribute(room, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, data) ||
        !attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, data))
        return why_set(why, PEN_UNSUPPORTED, "this is no memory of a CUDA device");
    is_able = room[0];
    if (!is_able)
        return why_set(why, PEN_UNSUPPORTED,
                       "this CUDA memory cannot be shared with other processes (a pool or virtual "
                       "memory); allocate it with cudaMalloc or pen_alloc()");
    pen_status status = enter_for(NULL, data, why);
    if (status != PEN_OK) return status;
    CUresult result = driver.cuMemGetAddressRange(&base, &size, (CUdeviceptr)data);
    if (result == CUDA_SUCCESS) result = handle_of(base, id, &handle);
    cuda_leave();
    if (result != CUDA_SUCCESS) {
        failed(result, "sharing memory", why);
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
                        .pid     = getpid(),
                        .device  = cuda_device(data)};
    memcpy(ref->handle, &handle, sizeof handle);
    return PEN_OK;
}

typedef struct mapping {
    struct mapping *next;
    uint64_t process, id;
    CUcontext context;
    CUdeviceptr base;
    int count;
} mapping;

static mapping *mappings;

static mapping **find_mapping(const device_ref *ref, CUcontext context)
{
    mapping **at = &mappings;
    while (*at != NULL &&
           ((*at)->process != ref->process || (*at)->id != ref->id || (*at)->context != context))
        at = &(*at)->next;
    return at;
}

/* With the lock held. */
static CUresult open_mapping(const device_ref *ref, CUcontext context, mapping **at)
{
    CUipcMemHandle handle;
    mapping *m = calloc(1, sizeof *m);
    if (m == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *m = (mapping){.process = ref->process, .id = ref->id, .context = context};
    memcpy(&handle, ref->handle, sizeof handle);
    CUresult result =
        driver.cuIpcOpenMemHandle(&m->base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS)
        *at = m;
    else
        free(m);
    return result;
}

/* Another device of this process: its memory has an address here, which this device may not use yet. */
static pen_status map_own(const device_ref *ref, void **data, pen_error *why)
{
    CUcontext context = NULL;
    const int own     = cuda_current();
    int can           = 1;
    *data             = (void *)(uintptr_t)(ref->base + ref->offset);
    if (own < 0 || own == ref->device) return PEN_OK;
    if (driver.cuDeviceCanAccessPeer(&can, own, ref->device) != CUDA_SUCCESS || !can)
        return why_set(why, PEN_UNREACHABLE, "CUDA device %d cannot reach memory of device %d", own,
                       ref->device);
    pen_status status = primary_context(ref->device, &context, why);
    if (status != PEN_OK) return status;
    CUresult result = driver.cuCtxEnablePeerAccess(context, 0);
    if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return PEN_OK;
    return failed(result, "reaching another device", why);
}

static pen_status cuda_map(const device_ref *ref, void **data, pen_error *why)
{
    CUcontext context = NULL;
    pen_status status = enter_for(NULL, NULL, why);
    if (status != PEN_OK) return status;
    if (ref->process == device_process()) {
        status = map_own(ref, data, why);
        cuda_leave();
        return status;
    }
    driver.cuCtxGetCurrent(&context);
    pthread_mutex_lock(&lock);
    mapping **at    = find_mapping(ref, context);
    CUresult result = *at == NULL ? open_mapping(ref, context, at) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        (*at)->count++;
        *data = (void *)(uintptr_t)((*at)->base + ref->offset);
    }
    pthread_mutex_unlock(&lock);
    cuda_leave();
    if (failed(result, "mapping memory", why) == PEN_OK) return PEN_OK;
    return why_set(why, PEN_UNREACHABLE, "CUDA memory of process %d cannot be mapped (%.200s)",
                   ref->pid, why != NULL ? why->text : "");
}

static void cuda_unmap(const device_ref *ref)
{
    CUcontext context = NULL;
    if (ref->process == device_process() || enter_for(NULL, NULL, NULL) != PEN_OK) return;
    driver.cuCtxGetCurrent(&context);
    pthread_mutex_lock(&lock);
    mapping **at = find_mapping(ref, context), *m = *at;
    if (m != NULL && --m->count == 0) {
        *at = m->next;
        driver.cuIpcCloseMemHandle(m->base);
        free(m);
    }
    pthread_mutex_unlock(&lock);
    cuda_leave();
}

/* ---- kernels ------------------------------------------------------------------------------------- */

#define IMAGE(name)                                                                                \
    __asm__(".pushsection .rodata\n.balign 16\n.local device_image_" #name "\ndevice_image_" #name \
            ":\n.incbin \"" PENSTOCK_KERNELS "/" #name ".fatbin\"\n.popsection\n");                \
    extern const unsigned char device_image_##name[] __attribute__((visibility("hidden")))

IMAGE(fold);
IMAGE(copy);
IMAGE(flag);
IMAGE(sum);

enum { IMAGES = 4 };
enum {
    FOLD_ANY,
    FOLD_TWO   = PEN_U64 + 1,
    ACCUMULATE = FOLD_TWO + PEN_U64 + 1,
    NARROW     = ACCUMULATE + PEN_BF16 + 1,
    COPY_BYTES = NARROW + PEN_BF16 + 1,
    FLAG_SET,
    FLAG_WAIT,
    KERNELS
};

static const struct {
    const unsigned char *image;
    const char *name;
} kernel_table[KERNELS] = {
    [FOLD_ANY + PEN_F32]    = {device_image_fold, "fold_f32_0"},
    [FOLD_ANY + PEN_F16]    = {device_image_fold, "fold_f16_0"},
    [FOLD_ANY + PEN_BF16]   = {device_image_fold, "fold_bf16_0"},
    [FOLD_ANY + PEN_F64]    = {device_image_fold, "fold_f64_0"},
    [FOLD_ANY + PEN_I8]     = {device_image_fold, "fold_i8_0"},
    [FOLD_ANY + PEN_U8]     = {device_image_fold, "fold_u8_0"},
    [FOLD_ANY + PEN_I32]    = {device_image_fold, "fold_i32_0"},
    [FOLD_ANY + PEN_U32]    = {device_image_fold, "fold_u32_0"},
    [FOLD_ANY + PEN_I64]    = {device_image_fold, "fold_i64_0"},
    [FOLD_ANY + PEN_U64]    = {device_image_fold, "fold_u64_0"},
    [FOLD_TWO + PEN_F32]    = {device_image_fold, "fold_f32_2"},
    [FOLD_TWO + PEN_F16]    = {device_image_fold, "fold_f16_2"},
    [FOLD_TWO + PEN_BF16]   = {device_image_fold, "fold_bf16_2"},
    [ACCUMULATE + PEN_F32]  = {device_image_sum, "accumulate_f32"},
    [ACCUMULATE + PEN_F16]  = {device_image_sum, "accumulate_f16"},
    [ACCUMULATE + PEN_BF16] = {device_image_sum, "accumulate_bf16"},
    [NARROW + PEN_F16]      = {device_image_sum, "narrow_f16"},
    [NARROW + PEN_BF16]     = {device_image_sum, "narrow_bf16"},
    [COPY_BYTES]            = {device_image_copy, "copy_bytes"},
    [FLAG_SET]              = {device_image_flag, "flag_set"},
    [FLAG_WAIT]             = {device_image_flag, "flag_wait"},
};

static struct loaded {
    CUcontext context;
    int processors;
    struct {
        const unsigned char *image;
        CUmodule module;
    } modules[IMAGES];
    CUfunction kernel[KERNELS];
} contexts[CONTEXTS_MAX];

static CUresult load_module(struct loaded *l, const unsigned char *image, CUmodule *module)
{
    int i = 0;
    while (l->modules[i].image != NULL && l->modules[i].image != image) i++; /* at most IMAGES */
    if (l->modules[i].image == NULL) {
        CUresult result = driver.cuModuleLoadData(&l->modules[i].module, image);
        if (result != CUDA_SUCCESS) return result;
        l->modules[i].image = image;
    }
    *module = l->modules[i].module;
    return CUDA_SUCCESS;
}

static struct loaded *context_entry(CUcontext context)
{
    int i = 0;
    while (i < CONTEXTS_MAX && contexts[i].context != NULL && contexts[i].context != context) i++;
    return i < CONTEXTS_MAX ? &contexts[i] : NULL;
}

/* Of the current context.  With the lock held. */
static CUresult load_kernel(int which, CUfunction *kernel, int *processors)
{
    CUcontext context = NULL;
    CUmodule module   = NULL;
    CUdevice device   = 0;
    CUresult result   = driver.cuCtxGetCurrent(&context);
    struct loaded *l  = context_entry(context);
    if (result != CUDA_SUCCESS || l == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (l->context == NULL) {
        driver.cuCtxGetDevice(&device);
        result = driver.cuDeviceGetAttribute(&l->processors,
                                             CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
        if (result != CUDA_SUCCESS) return result;
        l->context = context;
    }
    if (l->kernel[which] == NULL) {
        result = load_module(l, kernel_table[which].image, &module);
        if (result == CUDA_SUCCESS)
            result =
                driver.cuModuleGetFunction(&l->kernel[which], module, kernel_table[which].name);
    }
    *kernel     = l->kernel[which];
    *processors = l->processors;
    return result;
}

/* work: how many threads have something to do; 0: one block is wanted. */
static pen_status launch(int which, void *arguments, uint64_t work, device_stream stream,
                         pen_error *why)
{
    CUfunction kernel = NULL;
    int processors    = 0;
    void *list[]      = {arguments};
    pthread_mutex_lock(&lock);
    CUresult result = load_kernel(which, &kernel, &processors);
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS) return failed(result, "loading a kernel", why);
    const uint64_t full    = (uint64_t)processors * 4,
                   wanted  = (work + KERNEL_THREADS - 1) / KERNEL_THREADS;
    const unsigned blocks  = (unsigned)(wanted < 1 ? 1 : wanted < full ? wanted : full);
    const unsigned threads = work > 0 ? KERNEL_THREADS : KERNEL_ARRAYS_MAX;
    result =
        driver.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, (CUstream)stream, list, NULL);
    return failed(result, kernel_table[which].name, why);
}

static size_t element_bytes(pen_dtype dtype)
{
    static const uint8_t bytes[] = {
        [PEN_F32] = 4, [PEN_F16] = 2, [PEN_BF16] = 2, [PEN_F64] = 8, [PEN_I8] = 1,
        [PEN_U8] = 1,  [PEN_I32] = 4, [PEN_U32] = 4,  [PEN_I64] = 8, [PEN_U64] = 8,
    };
    return bytes[dtype];
}

/* How all arrays lie together, and with what their first whole 16 bytes begin. */
static void set_lie(kernel_fold *k, size_t width)
{
    const uintptr_t first = (uintptr_t)k->in[0];
    bool is_alike = true, is_whole = true;
    for (int i = 0; i < k->n_in + k->n_out; i++) {
        const uintptr_t at = (uintptr_t)(i < k->n_in ? k->in[i] : k->out[i - k->n_in]);
        is_alike           = is_alike && (at - first) % 16 == 0;
        is_whole           = is_whole && at % width == 0;
    }
    k->lie  = !is_whole ? KERNEL_BYTES : is_alike ? KERNEL_WIDE : KERNEL_ELEMENTS;
    k->head = (16 - first % 16) % 16 / width;
    if (k->head > k->count) k->head = k->count;
}

static pen_status fill_fold(kernel_fold *k, const reduce_args *args, size_t begin, size_t count,
                            pen_error *why)
{
    if (!reduce_is_legal(args->op, args->dtype))
        return why_set(why, PEN_INVALID_ARGUMENT, "there is no reduction %d of type %d", args->op,
                       args->dtype);
    if (args->n_in > KERNEL_ARRAYS_MAX || args->n_out > KERNEL_ARRAYS_MAX)
        return why_set(why, PEN_UNSUPPORTED,
                       "a CUDA device folds at most %d arrays at a time, not %d", KERNEL_ARRAYS_MAX,
                       args->n_in > args->n_out ? args->n_in : args->n_out);
    const size_t width = element_bytes(args->dtype);
    for (int i = 0; i < args->n_in; i++) {
        k->in[i]    = (const char *)args->in[i] + begin * width;
        k->scale[i] = args->scale != NULL ? args->scale[i] : 1.0;
    }
    for (int i = 0; i < args->n_out; i++) k->out[i] = (char *)args->out[i] + begin * width;
    k->count     = count;
    k->n_in      = args->n_in;
    k->n_out     = args->n_out;
    k->op        = (int32_t)args->op;
    k->divide_by = args->divide_by > 0 ? args->divide_by : args->n_in;
    k->has_scale = args->scale != NULL;
    set_lie(k, width);
    return PEN_OK;
}

static pen_status cuda_reduce(const reduce_args *args, size_t begin, size_t count,
                              device_stream stream, pen_error *why)
{
    kernel_fold k     = {0};
    pen_status status = fill_fold(&k, args, begin, count, why);
    if (status != PEN_OK || count == 0) return status;
    const int two     = FOLD_TWO + (int)args->dtype;
    const bool is_two = args->n_in == 2 && kernel_table[two].name != NULL;
    const uint64_t work =
        k.lie == KERNEL_WIDE ? (count * element_bytes(args->dtype) + 15) / 16 : count;
    status = enter_for(stream, k.out[0], why);
    if (status != PEN_OK) return status;
    status = launch(is_two ? two : FOLD_ANY + (int)args->dtype, &k, work, stream, why);
    cuda_leave();
    return status;
}

/* ---- sums ---------------------------------------------------------------------------------------- */

/* Both arrays come to whole 16 bytes after the same elements, or go element by element. */
static void set_sum_lie(kernel_sum *k, size_t width)
{
    const uintptr_t sum = (uintptr_t)k->sum, numbers = (uintptr_t)k->numbers;
    k->head             = (16 - numbers % 16) % 16 / width;
    const bool is_wide  = (sum + k->head * sizeof(float)) % 16 == 0;
    const bool is_whole = sum % sizeof(float) == 0 && numbers % width == 0;
    k->lie              = !is_whole ? KERNEL_BYTES : is_wide ? KERNEL_WIDE : KERNEL_ELEMENTS;
    if (k->head > k->count) k->head = k->count;
}

static pen_status launch_sum(int first, kernel_sum *k, pen_dtype dtype, device_stream stream,
                             pen_error *why)
{
    if (dtype < PEN_F32 || dtype > PEN_BF16 || kernel_table[first + (int)dtype].name == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT, "sums are not made of, or rounded to, type %d",
                       dtype);
    if (k->count == 0) return PEN_OK;
    const size_t width = element_bytes(dtype);
    set_sum_lie(k, width);
    const uint64_t work = k->lie == KERNEL_WIDE ? (k->count * width + 15) / 16 : k->count;
    pen_status status   = enter_for(stream, k->sum, why);
    if (status != PEN_OK) return status;
    status = launch(first + (int)dtype, k, work, stream, why);
    cuda_leave();
    return status;
}

static pen_status cuda_accumulate(float *sum, const void *in, pen_dtype dtype, size_t n,
                                  bool is_first, device_stream stream, pen_error *why)
{
    kernel_sum k = {.sum = sum, .numbers = (void *)in, .count = n, .is_first = is_first};
    return launch_sum(ACCUMULATE, &k, dtype, stream, why);
}

static pen_status cuda_narrow(void *to, const float *sum, pen_dtype dtype, size_t n,
                              device_stream stream, pen_error *why)
{
    kernel_sum k = {.sum = (float *)sum, .numbers = to, .count = n};
    return launch_sum(NARROW, &k, dtype, stream, why);
}

static pen_status cuda_zero(void *to, size_t bytes, device_stream stream, pen_error *why)
{
    if (bytes == 0) return PEN_OK;
    pen_status status = enter_for(stream, to, why);
    if (status != PEN_OK) return status;
    status =
        failed(driver.cuMemsetD8Async((CUdeviceptr)to, 0, bytes, (CUstream)stream), "zeroing", why);
    cuda_leave();
    return status;
}

/* ---- copies -------------------------------------------------------------------------------------- */

/* Inside of one device our own kernel: it runs while the copy engines are busy with the host, and does not change
 * between drivers.  Everything else is the driver's, which knows the way. */
static pen_status cuda_copy(void *to, const void *from, size_t bytes, device_stream stream,
                            pen_error *why)
{
    kernel_copy k    = {.in = from, .out = to, .bytes = bytes};
    const int device = cuda_device(to);
    if (bytes == 0 || to == from) return PEN_OK;
    pen_status status = enter_for(stream, device >= 0 ? to : from, why);
    if (status != PEN_OK) return status;
    if (device >= 0 && cuda_owns(to) && cuda_owns(from) && cuda_device(from) == device)
        status = launch(COPY_BYTES, &k, (bytes + 15) / 16, stream, why);
    else
        status = failed(
            driver.cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, (CUstream)stream),
            "copying", why);
    cuda_leave();
    return status;
}

/* ---- events -------------------------------------------------------------------------------------- */

struct device_event {
    CUevent handle; /* NULL until it is first used */
    CUcontext context;
    bool is_shared, is_borrowed;
};

static device_event *cuda_event_new(void)
{
    return calloc(1, sizeof(device_event));
}

static void event_close(device_event *event)
{
    if (event->handle != NULL && !event->is_borrowed) driver.cuEventDestroy(event->handle);
    event->handle = NULL;
}

static void cuda_event_free(device_event *event)
{
    if (event == NULL) return;
    event_close(event);
    free(event);
}

/* In the current context. */
static pen_status event_open(device_event *event, pen_error *why)
{
    CUcontext context = NULL;
    driver.cuCtxGetCurrent(&context);
    if (event->handle != NULL && event->context == context) return PEN_OK;
    event_close(event);
    event->context     = context;
    const unsigned how = CU_EVENT_DISABLE_TIMING | (event->is_shared ? CU_EVENT_INTERPROCESS : 0);
    return failed(driver.cuEventCreate(&event->handle, how), "making an event", why);
}

static pen_status cuda_event_record(device_event *event, device_stream stream, pen_error *why)
{
    pen_status status = enter_for(stream, NULL, why);
    if (status != PEN_OK) return status;
    status = event_open(event, why);
    if (status == PEN_OK)
        status = failed(driver.cuEventRecord(event->handle, (CUstream)stream), "recording an event",
                        why);
    cuda_leave();
    return status;
}

static pen_status cuda_event_done(device_event *event, pen_error *why)
{
    if (event->handle == NULL) return PEN_OK; /* nothing was recorded */
    pen_status status = push(event->context, "entering an event's context", why);
    if (status != PEN_OK) return status;
    CUresult result = driver.cuEventQuery(event->handle);
    cuda_leave();
    return result == CUDA_ERROR_NOT_READY ? PEN_AGAIN : failed(result, "work of the device", why);
}

static pen_status cuda_stream_wait(device_stream stream, device_event *event, pen_error *why)
{
    if (event->handle == NULL) return PEN_OK;
    pen_status status = enter_for(stream, NULL, why);
    if (status != PEN_OK) return status;
    status = failed(driver.cuStreamWaitEvent((CUstream)stream, event->handle, 0),
                    "waiting for an event", why);
    cuda_leave();
    return status;
}

static pen_status cuda_event_share(device_event *event, device_event_ref *ref, pen_error *why)
{
    CUipcEventHandle handle;
    pen_status status = enter_for(NULL, NULL, why);
    if (status != PEN_OK) return status;
    event_close(event);
    event->is_shared = true;
    status           = event_open(event, why);
    if (status == PEN_OK)
        status =
            failed(driver.cuIpcGetEventHandle(&handle, event->handle), "sharing an event", why);
    cuda_leave();
    if (status != PEN_OK) return status;
    *ref = (device_event_ref){.process = device_process(), .event = (uintptr_t)event};
    memcpy(ref->handle, &handle, sizeof handle);
    return PEN_OK;
}

static device_event *cuda_event_map(const device_event_ref *ref, pen_error *why)
{
    CUipcEventHandle handle;
    device_event *event = cuda_event_new();
    if (event == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for an event");
        return NULL;
    }
    if (ref->process == device_process()) {
        *event             = *(const device_event *)(uintptr_t)ref->event;
        event->is_borrowed = true;
        return event;
    }
    pen_status status = enter_for(NULL, NULL, why);
    if (status == PEN_OK) {
        driver.cuCtxGetCurrent(&event->context);
        memcpy(&handle, ref->handle, sizeof handle);
        status =
            failed(driver.cuIpcOpenEventHandle(&event->handle, handle), "mapping an event", why);
        cuda_leave();
    }
    if (status == PEN_OK) return event;
    free(event);
    return NULL;
}

/* ---- flags --------------------------------------------------------------------------------------- */

_Static_assert((int)DEVICE_FLAG_BYTES == (int)KERNEL_FLAG_BYTES &&
                   (int)DEVICE_ARRAYS_MAX == (int)KERNEL_ARRAYS_MAX &&
                   (int)DEVICE_FLAG_ABORTED == (int)KERNEL_ABORTED &&
                   (int)DEVICE_FLAG_LATE == (int)KERNEL_LATE,
               "device.h and kernels.h say the same");

static pen_status too_many(int n, pen_error *why)
{
    return why_set(why, PEN_UNSUPPORTED, "a CUDA device waits for at most %d members, not %d",
                   KERNEL_ARRAYS_MAX, n);
}

static pen_status cuda_flag_set(void *const *flags, int n, uint64_t value, device_stream stream,
                                pen_error *why)
{
    kernel_flag_set k = {.value = value, .n = n};
    if (n > KERNEL_ARRAYS_MAX) return too_many(n, why);
    for (int i = 0; i < n; i++) k.flag[i] = flags[i];
    pen_status status = enter_for(stream, NULL, why);
    if (status != PEN_OK) return status;
    status = launch(FLAG_SET, &k, 0, stream, why);
    cuda_leave();
    return status;
}

static pen_status cuda_flag_wait(const device_flag_wait *wait, device_stream stream, pen_error *why)
{
    kernel_flag_wait k = {.flags      = wait->flags,
                          .abort      = wait->abort,
                          .result     = wait->result,
                          .value      = wait->value,
                          .timeout_ns = wait->timeout_ns,
                          .n          = wait->n};
    if (wait->n > KERNEL_ARRAYS_MAX) return too_many(wait->n, why);
    pen_status status = enter_for(stream, wait->flags, why);
    if (status != PEN_OK) return status;
    status = launch(FLAG_WAIT, &k, 0, stream, why);
    cuda_leave();
    return status;
}

const device_ops device_cuda = {
    .name         = "cuda",
    .doc          = "Memory of an NVIDIA GPU.",
    .available    = cuda_available,
    .owns         = cuda_owns,
    .enter        = cuda_enter,
    .leave        = cuda_leave,
    .alloc        = cuda_alloc,
    .free         = cuda_free,
    .share        = cuda_share,
    .map          = cuda_map,
    .unmap        = cuda_unmap,
    .host_alloc   = cuda_host_alloc,
    .host_free    = cuda_host_free,
    .pin          = cuda_pin,
    .unpin        = cuda_unpin,
    .stream_new   = cuda_stream_new,
    .stream_free  = cuda_stream_free,
    .copy         = cuda_copy,
    .reduce       = cuda_reduce,
    .accumulate   = cuda_accumulate,
    .narrow       = cuda_narrow,
    .zero         = cuda_zero,
    .event_new    = cuda_event_new,
    .event_free   = cuda_event_free,
    .event_record = cuda_event_record,
    .event_done   = cuda_event_done,
    .stream_wait  = cuda_stream_wait,
    .event_share  = cuda_event_share,
    .event_map    = cuda_event_map,
    .flag_set     = cuda_flag_set,
    .flag_wait    = cuda_flag_wait,
    .uuid         = cuda_uuid,
    .count        = cuda_count,
    .current      = cuda_current,
    .device       = cuda_device,
};

#else

static bool cuda_available(char *note, size_t note_size)
{
    snprintf(note, note_size,
             "built off (PENSTOCK_CUDA=OFF, or no CUDA toolkit at configure time)");
    return false;
}

static bool cuda_owns(const void *pointer)
{
    (void)pointer;
    return false;
}

static pen_status off(pen_error *why)
{
    return why_set(why, PEN_UNSUPPORTED,
                   "this library was built without CUDA; configure with PENSTOCK_CUDA=ON");
}

static void *cuda_alloc(size_t bytes, int device, pen_error *why)
{
    (void)bytes, (void)device;
    off(why);
    return NULL;
}

static void *cuda_host_alloc(size_t bytes, pen_error *why)
{
    return cuda_alloc(bytes, 0, why);
}

static pen_status cuda_enter(int device, pen_error *why)
{
    (void)device;
    return off(why);
}

static pen_status cuda_pin(void *data, size_t bytes, pen_error *why)
{
    (void)data, (void)bytes;
    return off(why);
}

static pen_status cuda_stream_new(int device, device_stream *stream, pen_error *why)
{
    (void)device, (void)stream;
    return off(why);
}

static int cuda_count(void)
{
    return 0;
}

static int cuda_current(void)
{
    return -1;
}

static int cuda_device(const void *pointer)
{
    (void)pointer;
    return -1;
}

/* What works on memory or events of this device is never reached: nothing is its memory. */
const device_ops device_cuda = {
    .name       = "cuda",
    .doc        = "Memory of an NVIDIA GPU.",
    .available  = cuda_available,
    .owns       = cuda_owns,
    .enter      = cuda_enter,
    .alloc      = cuda_alloc,
    .host_alloc = cuda_host_alloc,
    .pin        = cuda_pin,
    .stream_new = cuda_stream_new,
    .count      = cuda_count,
    .current    = cuda_current,
    .device     = cuda_device,
};

#endif
