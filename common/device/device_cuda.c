/* device_cuda.c - the one C file that includes CUDA.
 *
 * The driver is found at run time, so that one binary runs with and without it.  A CUDA pointer can
 * only exist in a process that has already loaded the driver; so owns() looks for a loaded driver
 * (RTLD_NOLOAD) and never loads one.
 */
#include "common/device/device.h"

#include <stdio.h>

#ifdef PENSTOCK_CUDA

#include <cuda.h>
#include <dlfcn.h>

#define DRIVER_NAME "libcuda.so.1"

/* A function of the driver, by its exported name; NULL when the driver is absent. */
static void *driver_symbol(int flags, const char *name)
{
    void *driver = dlopen(DRIVER_NAME, RTLD_LAZY | flags);
    if (driver == NULL) return NULL;
    void *symbol = dlsym(driver, name);
    dlclose(driver);
    return symbol;
}

static bool available(char *note, size_t note_size)
{
    CUresult (*init)(unsigned) = (CUresult(*)(unsigned))driver_symbol(0, "cuInit");
    CUresult (*count)(int *)   = (CUresult(*)(int *))driver_symbol(0, "cuDeviceGetCount");
    int devices                = 0;

    if (init == NULL || count == NULL) {
        snprintf(note, note_size,
                 "built with CUDA %d.%d; no driver on this machine (" DRIVER_NAME " not found)",
                 CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
        return false;
    }
    if (init(0) != CUDA_SUCCESS || count(&devices) != CUDA_SUCCESS) {
        snprintf(note, note_size, "built with CUDA %d.%d; the driver does not start (no device?)",
                 CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
        return false;
    }
    snprintf(note, note_size, "built with CUDA %d.%d; %d device%s", CUDA_VERSION / 1000,
             CUDA_VERSION % 1000 / 10, devices, devices == 1 ? "" : "s");
    return devices > 0;
}

static bool owns(const void *pointer)
{
    typedef CUresult (*get_attribute)(void *, CUpointer_attribute, CUdeviceptr);
    get_attribute get = (get_attribute)driver_symbol(RTLD_NOLOAD, "cuPointerGetAttribute");
    CUmemorytype type = CU_MEMORYTYPE_HOST;

    if (get == NULL) return false;
    return get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pointer) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
}

#else

static bool available(char *note, size_t note_size)
{
    snprintf(note, note_size,
             "built off (PENSTOCK_CUDA=OFF, or no CUDA toolkit at configure time)");
    return false;
}

static bool owns(const void *pointer)
{
    (void)pointer;
    return false;
}

#endif

const device_ops device_cuda = {
    .name      = "cuda",
    .doc       = "Memory of an NVIDIA GPU.",
    .available = available,
    .owns      = owns,
};
