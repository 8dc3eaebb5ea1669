/* residency_test.h - what only tests ask of residency. */
#ifndef WORKER_RESIDENCY_TEST_H
#define WORKER_RESIDENCY_TEST_H

#include "worker/tensor/residency/residency.h"

/* Elements that are here or on their way, without those that stay. */
uint64_t residency_live(const residency *self);
uint64_t residency_peak(const residency *self);

#endif
