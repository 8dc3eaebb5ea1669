/* transports.h - the transports of tests: within one process, and the simulated network. */
#ifndef TESTS_SUPPORT_TRANSPORTS_H
#define TESTS_SUPPORT_TRANSPORTS_H

#include "common/net/transport/transport_test.h"

extern const transport_ops transport_inproc, transport_sim;

static inline void add_test_transports(void) /* may be called again */
{
    transport_add(&transport_inproc);
    transport_add(&transport_sim);
}

#endif
