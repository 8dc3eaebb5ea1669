/* device_test.h - the host as a device for tests. */
#ifndef COMMON_DEVICE_DEVICE_TEST_H
#define COMMON_DEVICE_DEVICE_TEST_H

#include "common/compute/device/device.h"

/* Events complete after this many polls; 0: at once. */
void device_cpu_set_event_polls(int polls);

#endif
