/* device_test.h - accessors of a device team for tests only. */
#ifndef WORKER_COLL_DEVICE_TEST_H
#define WORKER_COLL_DEVICE_TEST_H

#include "worker/collective/device/device.h"

/* What the first call chose and measured: "cuda hostflag, 4 members on 1 device, barrier 12.3 us, ...". */
const char *device_team_text(const device_team *team);

#endif
