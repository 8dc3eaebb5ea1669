/* device_cuda.c - the CUDA device: its driver and its contexts.  Memory, streams and work are in device_cuda_*.c.
 *
 * DESIGN
 * Driver.    Found at run time, so that one binary runs with and without it; no CUDA runtime.  A CUDA pointer can only
 *            exist in a process that has loaded the driver, so queries look for a loaded driver (RTLD_NOLOAD) and never
 *            load one.  Once found it stays.
 * Contexts.  Work runs in the context of its stream; for stream 0 in the one that was entered, else in that of its
 *            pointer's device.  The caller's own context is preserved.  Without one the primary context is used, as in
 *            CUDA's own runtime.
 * Captures.  While a program captures a stream into a graph, CUDA forbids calls such as cuEventQuery and cuMemAlloc to
 *            all threads in mode GLOBAL, which is what threads begin in.  Ours touch no captured stream, so they are
 *            in mode RELAXED while they are in a context.
 */
#include "common/compute/device/device_cuda.h"

#include "common/base/why.h"
#include <stdio.h>

#ifdef PENSTOCK_CUDA

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#define DRIVER_NAME "libcuda.so.1"

/* ---- the driver ---------------------------------------------------------------------------------- */

/* cuda.h renames many functions to their newest version: use the name after that. */
#define NAME_OF(function) #function
#define NAME(function)    NAME_OF(function)
#define FIND(function)                                                                             \
    ok = find_function((void **)&cuda_driver.function, handle, NAME(function)) && ok;

struct cuda_driver cuda_driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all static variables here */
static bool is_found;
static const char *lacking; /* a function that the driver does not have; NULL: none, or no driver */

static bool find_function(void **function, void *handle, const char *name)
{
    *function = dlsym(handle, name);
    if (*function == NULL) lacking = name;
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

bool cuda_has_driver(int flags)
{
    pthread_mutex_lock(&lock);
    if (!is_found) is_found = find_all(flags);
    const bool found = is_found;
    pthread_mutex_unlock(&lock);
    return found;
}

static void note_no_driver(char *note, size_t note_size)
{
    const int major = CUDA_VERSION / 1000, minor = CUDA_VERSION % 1000 / 10;
    pthread_mutex_lock(&lock);
    const char *name = lacking;
    pthread_mutex_unlock(&lock);
    if (name == NULL)
        snprintf(note, note_size,
                 "built with CUDA %d.%d; no driver on this machine (" DRIVER_NAME " not found)",
                 major, minor);
    else
        snprintf(note, note_size,
                 "built with CUDA %d.%d; " DRIVER_NAME
                 " lacks %s: install a driver for CUDA %d.%d or newer",
                 major, minor, name, major, minor);
}

pen_status cuda_failed(CUresult result, const char *what, pen_error *why)
{
    const char *text = NULL;
    if (result == CUDA_SUCCESS) return PEN_OK;
    if (cuda_driver.cuGetErrorString(result, &text) != CUDA_SUCCESS) text = "unknown error";
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return why_set(why, PEN_NO_MEMORY, "CUDA has no memory left (%s)", what);
    if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        return why_set(why, PEN_UNSUPPORTED,
                       "%s: the stream is being captured into a CUDA graph; end the capture first, "
                       "or name a stream that is not captured",
                       what);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return why_set(
            why, PEN_UNSUPPORTED,
            "%s: the default stream cannot be used while another stream is captured into "
            "a CUDA graph; end the capture first, or name another stream",
            what);
    return why_set(why, PEN_DEVICE, "CUDA: %s: %s (%d)", what, text, result);
}

bool cuda_available(char *note, size_t note_size)
{
    int devices = 0;
    if (!cuda_has_driver(0)) {
        note_no_driver(note, note_size);
        return false;
    }
    if (cuda_driver.cuInit(0) != CUDA_SUCCESS ||
        cuda_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS) {
        snprintf(note, note_size, "built with CUDA %d.%d; the driver does not start (no device?)",
                 CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
        return false;
    }
    snprintf(note, note_size, "built with CUDA %d.%d; %d device%s", CUDA_VERSION / 1000,
             CUDA_VERSION % 1000 / 10, devices, devices == 1 ? "" : "s");
    return devices > 0;
}

bool cuda_attribute(void *value, CUpointer_attribute name, const void *pointer)
{
    return cuda_has_driver(RTLD_NOLOAD) && pointer != NULL &&
           cuda_driver.cuPointerGetAttribute(value, name, (CUdeviceptr)pointer) == CUDA_SUCCESS;
}

bool cuda_owns(const void *pointer)
{
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    return cuda_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) &&
           type == CU_MEMORYTYPE_DEVICE;
}

int cuda_device(const void *pointer)
{
    int device = -1;
    return cuda_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) ? device : -1;
}

int cuda_current(void)
{
    CUcontext context = NULL;
    CUdevice device   = -1;
    if (!cuda_has_driver(RTLD_NOLOAD) || cuda_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return -1;
    if (context == NULL || cuda_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS) return -1;
    return device;
}

int cuda_count(void)
{
    int devices = 0;
    if (!cuda_has_driver(0) || cuda_driver.cuInit(0) != CUDA_SUCCESS) return 0;
    return cuda_driver.cuDeviceGetCount(&devices) == CUDA_SUCCESS ? devices : 0;
}

void cuda_uuid(int device, uint8_t out[16])
{
    CUuuid uuid = {{0}};
    CUdevice handle;
    memset(out, 0, 16);
    if (!cuda_has_driver(0) || cuda_driver.cuInit(0) != CUDA_SUCCESS) return;
    if (cuda_driver.cuDeviceGet(&handle, device) != CUDA_SUCCESS) return;
    if (cuda_driver.cuDeviceGetUuid(&uuid, handle) == CUDA_SUCCESS) memcpy(out, uuid.bytes, 16);
}

/* ---- contexts ------------------------------------------------------------------------------------ */

enum { DEVICES_MAX = 32 };

static CUcontext primary[DEVICES_MAX]; /* retained once taken, as in the runtime */

pen_status cuda_primary_context(int device, CUcontext *context, pen_error *why)
{
    CUdevice handle;
    CUresult result;
    if (device < 0 || device >= DEVICES_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT, "there is no CUDA device %d", device);
    if (!cuda_has_driver(0))
        return why_set(why, PEN_UNSUPPORTED, "there is no CUDA driver on this machine");
    pthread_mutex_lock(&lock);
    result = cuda_driver.cuInit(0);
    if (result == CUDA_SUCCESS) result = cuda_driver.cuDeviceGet(&handle, device);
    if (result == CUDA_SUCCESS && primary[device] == NULL)
        result = cuda_driver.cuDevicePrimaryCtxRetain(&primary[device], handle);
    *context = primary[device];
    pthread_mutex_unlock(&lock);
    return cuda_failed(result, "taking the device's context", why);
}

static _Thread_local int entered; /* enter() and cuda_enter_for() calls not left yet */
static _Thread_local CUstreamCaptureMode mode_outside;

pen_status cuda_push(CUcontext context, const char *what, pen_error *why)
{
    pen_status status = cuda_failed(cuda_driver.cuCtxPushCurrent(context), what, why);
    if (status != PEN_OK) return status;
    if (entered++ == 0) {
        mode_outside = CU_STREAM_CAPTURE_MODE_RELAXED;
        cuda_driver.cuThreadExchangeStreamCaptureMode(&mode_outside);
    }
    return PEN_OK;
}

pen_status cuda_enter(int wanted, pen_error *why)
{
    CUcontext context = NULL;
    const int device  = wanted < 0 ? 0 : wanted; /* device 0 by default, as in the runtime */
    if (cuda_current() == device) {
        cuda_driver.cuCtxGetCurrent(&context);
    } else {
        pen_status status = cuda_primary_context(device, &context, why);
        if (status != PEN_OK) return status;
    }
    return cuda_push(context, "entering the device", why);
}

void cuda_leave(void)
{
    CUcontext context;
    if (--entered == 0) cuda_driver.cuThreadExchangeStreamCaptureMode(&mode_outside);
    cuda_driver.cuCtxPopCurrent(&context);
}

bool cuda_is_own_stream(device_stream stream)
{
    return (uintptr_t)stream > 2;
}

pen_status cuda_enter_for(device_stream stream, const void *pointer, pen_error *why)
{
    CUcontext context = NULL;
    const int device  = cuda_device(pointer);
    if (!cuda_has_driver(0))
        return why_set(why, PEN_UNSUPPORTED, "there is no CUDA driver on this machine");
    if (cuda_is_own_stream(stream)) {
        pen_status status = cuda_failed(cuda_driver.cuStreamGetCtx((CUstream)stream, &context),
                                        "asking for a stream", why);
        if (status != PEN_OK) return status;
        return cuda_push(context, "entering a stream's context", why);
    }
    /* Inside enter(), the default stream is the entered device's, also for memory of another. */
    if (cuda_current() >= 0 && (entered > 0 || device < 0)) return cuda_enter(cuda_current(), why);
    return cuda_enter(device, why);
}

#endif
