/* gpu.h - what the CUDA driver says about its devices and the links between them, for `penstock doctor`. */
#ifndef COMMON_DEVICE_GPU_H
#define COMMON_DEVICE_GPU_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    char name[96];
    uint8_t uuid[16];
    uint64_t bytes; /* of memory */
    char pci[32];   /* "0000:17:00.0", as /sys/bus/pci names it; "": unknown */
} gpu_about;

/* How one device reaches memory of another. */
typedef enum {
    GPU_LINK_HOST, /* not at all: copies go through host memory */
    GPU_LINK_PCIE,
    GPU_LINK_NVLINK /* or any other link with native atomics, which PCIe lacks */
} gpu_link;

/* Devices are numbered as the driver shows them to this process.  Initialises the driver.  false: there is none, or no
 * such device. */
bool gpu_about_device(int device, gpu_about *about);
gpu_link gpu_link_between(int from, int to);

#endif
