/* transport_test.h - transports of tests. */
#ifndef COMMON_TRANSPORT_TRANSPORT_TEST_H
#define COMMON_TRANSPORT_TRANSPORT_TEST_H

#include "common/net/transport/transport.h"

/* Registers a transport of tests; before any thread uses transports.  Idempotent. */
void transport_add(const transport_ops *ops);

#endif
