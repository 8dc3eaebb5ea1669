/* wire_difference.h - are two messages equal?  For tests and fuzzers. */
#ifndef TESTS_SUPPORT_WIRE_DIFFERENCE_H
#define TESTS_SUPPORT_WIRE_DIFFERENCE_H

#include "proto/wire/wire.h"

/* The name of the first field that differs, NULL: none.  Numbers are equal when their bits are. */
const char *wire_difference_data(const wire_data *a, const wire_data *b);
const char *wire_difference_control(const wire_control *a, const wire_control *b);

#endif
