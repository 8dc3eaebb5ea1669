/* transports.h - the transports that only tests have: within one process, and the network that is played. */
#ifndef TESTS_SUPPORT_TRANSPORTS_H
#define TESTS_SUPPORT_TRANSPORTS_H

#include "common/net/transport/transport_test.h"

extern const transport_ops transport_inproc, transport_sim;

static inline void add_test_transports(void) /* again is fine */
{
    transport_add(&transport_inproc);
    transport_add(&transport_sim);
}

#endif
