/* transport_test.h - what only tests ask of transports. */
#ifndef COMMON_TRANSPORT_TRANSPORT_TEST_H
#define COMMON_TRANSPORT_TRANSPORT_TEST_H

#include "common/net/transport/transport.h"

/* One more, which only tests have; before any thread uses transports.  Again is fine. */
void transport_add(const transport_ops *ops);

#endif
