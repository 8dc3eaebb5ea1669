/* device_cuda_about.c - names, places and links of CUDA devices. */
#include "common/compute/device/device_cuda.h"
#include "common/compute/device/gpu.h"

#ifdef PENSTOCK_CUDA

#include <ctype.h>
#include <string.h>

static bool find_device(int number, CUdevice *device)
{
    return cuda_has_driver(0) && cuda_driver.cuInit(0) == CUDA_SUCCESS &&
           cuda_driver.cuDeviceGet(device, number) == CUDA_SUCCESS;
}

bool gpu_about_device(int number, gpu_about *about)
{
    CUdevice device;
    CUuuid uuid  = {{0}};
    size_t bytes = 0;
    memset(about, 0, sizeof *about);
    if (!find_device(number, &device)) return false;
    if (cuda_driver.cuDeviceGetName(about->name, sizeof about->name - 1, device) != CUDA_SUCCESS)
        about->name[0] = '\0';
    if (cuda_driver.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS)
        memcpy(about->uuid, uuid.bytes, sizeof about->uuid);
    if (cuda_driver.cuDeviceTotalMem(&bytes, device) == CUDA_SUCCESS) about->bytes = bytes;
    if (cuda_driver.cuDeviceGetPCIBusId(about->pci, sizeof about->pci - 1, device) != CUDA_SUCCESS)
        about->pci[0] = '\0';
    for (char *c = about->pci; *c != '\0'; c++) *c = (char)tolower((unsigned char)*c);
    return true;
}

static bool has(CUdevice_P2PAttribute what, CUdevice from, CUdevice to)
{
    int value = 0;
    return cuda_driver.cuDeviceGetP2PAttribute(&value, what, from, to) == CUDA_SUCCESS && value > 0;
}

gpu_link gpu_link_between(int from, int to)
{
    CUdevice a, b;
    if (!find_device(from, &a) || !find_device(to, &b)) return GPU_LINK_HOST;
    if (!has(CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, a, b)) return GPU_LINK_HOST;
    return has(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, a, b) ? GPU_LINK_NVLINK
                                                                      : GPU_LINK_PCIE;
}

#else

bool gpu_about_device(int number, gpu_about *about)
{
    (void)number;
    *about = (gpu_about){0};
    return false;
}

gpu_link gpu_link_between(int from, int to)
{
    (void)from, (void)to;
    return GPU_LINK_HOST;
}

#endif
