/* device.c - the table of devices. */
#include "common/device/device.h"

extern const device_ops device_cuda, device_cpu;

const device_ops *const device_all[] = {&device_cuda, &device_cpu, NULL};

const device_ops *device_of(const void *pointer)
{
    int i = 0;
    while (device_all[i + 1] != NULL && !device_all[i]->owns(pointer)) i++;
    return device_all[i];
}
