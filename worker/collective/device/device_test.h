/* device_test.h - what only tests ask of a team of devices. */
#ifndef WORKER_COLL_DEVICE_TEST_H
#define WORKER_COLL_DEVICE_TEST_H

#include "worker/collective/device/device.h"

/* What was chosen and measured by the first call: "hostflag, 4 members on 1 device, barrier 12.3 us, ...". */
const char *device_team_text(const device_team *team);

#endif
