/* coll_settings.h - settings of a group of one host or of several. */
#ifndef TESTS_UNIT_COLL_SETTINGS_H
#define TESTS_UNIT_COLL_SETTINGS_H

#include "../support/coll_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SETTINGS(...)                                                                              \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

#endif
