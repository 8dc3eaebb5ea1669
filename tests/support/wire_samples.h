/* wire_samples.h - one message of every kind with every field set; for tests and fuzzers. */
#ifndef TESTS_SUPPORT_WIRE_SAMPLES_H
#define TESTS_SUPPORT_WIRE_SAMPLES_H

#include "proto/wire/wire.h"

wire_data wire_sample_data(wire_kind kind);
wire_control wire_sample_control(wire_control_kind kind);

#endif
