/* exchange_test.h - what only tests ask of an exchange. */
#ifndef WORKER_EXCHANGE_TEST_H
#define WORKER_EXCHANGE_TEST_H

#include "worker/ps/exchange.h"

uint64_t exchange_pending(const exchange *self); /* requests that have not completed */

#endif
