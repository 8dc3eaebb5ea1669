/* loop_events.h - a loop for each test, and its events as a word. */
#ifndef TESTS_UNIT_LOOP_EVENTS_H
#define TESTS_UNIT_LOOP_EVENTS_H

#include "common/base/loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t FOR_EVER =
    UINT64_MAX; /* a test that sleeps this long without a wake-up hits ctest's limit */

static bool events_spin; /* loops look a little longer before they sleep */

static inline int make_loop(void **state)
{
    pen_error why;
    *state = loop_create(&why);
    if (events_spin && *state != NULL) loop_spin(*state, 0);
    return *state == NULL;
}

static inline int drop_loop(void **state)
{
    loop_destroy(*state);
    return 0;
}

/* ---- events, as a word ---- */
static char events[256];

static inline void note(char c)
{
    const size_t used = strlen(events);
    assert_true(used + 1 < sizeof events);
    events[used]     = c;
    events[used + 1] = '\0';
}

static inline void note_user(void *user)
{
    note(*(const char *)user);
}

/* ---- adding and removing inside a turn ---- */
static inline bool must_not_run(void *user)
{
    (void)user;
    fail_msg("a removed source was drained");
    return false;
}

static inline void must_not_run_hook(void *user)
{
    must_not_run(user);
}

/* ---- stopping ---- */
#define test(name) cmocka_unit_test_setup_teardown(name, make_loop, drop_loop)

#endif
