/* residency_test.h - functions of residency that only tests call. */
#ifndef WORKER_RESIDENCY_TEST_H
#define WORKER_RESIDENCY_TEST_H

#include "worker/tensor/residency/residency.h"

/* Elements that are here or being fetched, without those that stay. */
uint64_t residency_live(const residency *self);
uint64_t residency_peak(const residency *self);

#endif
