/* membership_client_pass.h - lets time pass for a membership client under test. */
#ifndef TESTS_UNIT_MEMBERSHIP_CLIENT_PASS_H
#define TESTS_UNIT_MEMBERSHIP_CLIENT_PASS_H

#include "worker/io/membership_client.h"

/* Lets time pass as a shell would; the scheduler answers beats, which the test counts, or is silent. */
static inline void membership_client_pass(membership_client *l, uint64_t *now, const int *beats,
                                          uint64_t ms, bool answers)
{
    const uint64_t until = *now + ms;
    while (*now < until) {
        const uint64_t due = membership_due(membership_client_core(l));
        const int before   = *beats;
        *now               = due > until ? until : due > *now ? due : *now + 1;
        membership_tick(membership_client_core(l), *now);
        if (answers && *beats > before)
            membership_client_receive(l, &(wire_control){.kind = WIRE_BEAT_ACK}, *now);
    }
}

#endif
