/* log_test.c - lines to stderr and to the hook. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "penstock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- what arrives on stderr ---- */

static int saved_stderr, reader;

static void catch_stderr(void)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    saved_stderr = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    reader = ends[0];
}

/* Everything written since catch_stderr(). */
static const char *caught(void)
{
    static char text[8192];
    size_t used = 0;
    ssize_t got;
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    while ((got = read(reader, text + used, sizeof text - 1 - used)) > 0) used += (size_t)got;
    close(reader);
    text[used] = '\0';
    return text;
}

static int reset(void **state)
{
    (void)state;
    pen_log_set(NULL, NULL, LOG_NOTICE);
    log_format_set(LOG_TEXT);
    return 0;
}

static void test_log_shows_notice_and_above_at_first(void **state)
{
    (void)state;
    catch_stderr();
    log_error("a %d", 1);
    log_warning("b");
    log_notice("c");
    log_info("d");
    log_debug("e");
    assert_string_equal(caught(), "penstock: a 1\npenstock: b\npenstock: c\n");
}

static void test_log_stamps_info_and_debug_with_the_time(void **state)
{
    (void)state;
    log_level_set(LOG_DEBUG);
    catch_stderr();
    log_debug("x");
    int hour, minute, second, ms, end = 0;
    const char *line = caught();
    assert_int_equal(
        sscanf(line, "penstock: %2d:%2d:%2d.%3d x%n", &hour, &minute, &second, &ms, &end), 4);
    assert_string_equal(line + end, "\n");
}

static void test_log_silent_shows_nothing(void **state)
{
    (void)state;
    log_level_set(log_level_find("silent"));
    catch_stderr();
    log_error("x");
    assert_string_equal(caught(), "");
}

static void test_log_level_find_knows_its_names(void **state)
{
    (void)state;
    assert_int_equal(log_level_find("silent"), -1);
    assert_int_equal(log_level_find("error"), LOG_ERROR);
    assert_int_equal(log_level_find("warning"), LOG_WARNING);
    assert_int_equal(log_level_find("notice"), LOG_NOTICE);
    assert_int_equal(log_level_find("info"), LOG_INFO);
    assert_int_equal(log_level_find("debug"), LOG_DEBUG);
    assert_int_equal(log_level_find("loud"), -2);
    assert_int_equal(log_level_find(""), -2);
}

static void test_log_keeps_every_record_on_one_line(void **state)
{
    (void)state;
    catch_stderr();
    log_error("name '%s'", "a\nb\x1b[31m\tc");
    assert_string_equal(caught(), "penstock: name 'a?b?[31m?c'\n");
}

static void test_log_truncates_a_long_line_and_marks_it(void **state)
{
    (void)state;
    char longer[5000];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    catch_stderr();
    log_error("%s", longer);
    const char *line = caught();
    assert_true(strlen(line) < 4096);
    assert_string_equal(line + strlen(line) - 5, "a...\n");
}

static void test_log_knows_the_system_error_and_keeps_errno(void **state)
{
    (void)state;
    catch_stderr();
    errno = ENOSPC;
    log_error("cannot write: %m");
    const int after = errno;
    assert_string_equal(caught(), "penstock: cannot write: No space left on device\n");
    assert_int_equal(after, ENOSPC);
}

/* ---- JSON ---- */

/* The line without its time stamp, which is checked. */
static const char *after_time(const char *line)
{
    int year, month, day, hour, minute, second, ms, end = 0;
    assert_int_equal(sscanf(line, "{\"time\":\"%4d-%2d-%2dT%2d:%2d:%2d.%3dZ\",%n", &year, &month,
                            &day, &hour, &minute, &second, &ms, &end),
                     7);
    assert_true(end > 0);
    return line + end;
}

static void test_log_as_json_has_level_role_and_rank(void **state)
{
    (void)state;
    log_format_set(LOG_JSON);
    log_format_as("worker", 3);
    catch_stderr();
    log_warning("it is \"%s\"", "C:\\x");
    const char *line = caught();
    assert_string_equal(after_time(line), "\"level\":\"warning\",\"role\":\"worker\",\"rank\":3,"
                                          "\"text\":\"it is \\\"C:\\\\x\\\"\"}\n");
}

static void test_log_json_keeps_characters_and_replaces_invalid_bytes(void **state)
{
    (void)state;
    char line[256];
    const char *text = "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xff\xc3\xed\xa0\x80\t";
    assert_true(log_json(line, sizeof line, -1, "server", -1, "stdout", text) < sizeof line);
    assert_string_equal(after_time(line),
                        "\"stream\":\"stdout\",\"role\":\"server\",\"text\":"
                        "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80?\?\?\?\?\\u0009\"}\n");
}

static void test_log_json_truncates_between_characters_and_stays_an_object(void **state)
{
    (void)state;
    char line[128], text[400] = "";
    for (int i = 0; i < 100; i++) strcat(text, "\xe2\x82\xac");
    for (size_t size = 100; size <= sizeof line; size++) {
        const size_t n = log_json(line, size, LOG_ERROR, "worker", 0, NULL, text);
        assert_true(n < size);
        assert_int_equal(n, strlen(line));
        assert_string_equal(line + n - 3, "\"}\n");
        assert_int_equal((unsigned char)line[n - 4] == 0xac || line[n - 4] == '"', 1);
    }
    assert_int_equal(log_json(line, 40, LOG_ERROR, "worker", 0, NULL, text), 0);
}

/* ---- the hook ---- */

typedef struct {
    int count, level;
    char line[256];
} heard;

static void hear(int level, const char *line, void *user)
{
    heard *h = user;
    h->count++;
    h->level = level;
    snprintf(h->line, sizeof h->line, "%s", line);
}

static void test_log_hook_gets_the_bare_text_instead_of_stderr(void **state)
{
    (void)state;
    heard h = {0};
    pen_log_set(hear, &h, LOG_INFO);
    catch_stderr();
    log_info("hello %s", "there");
    log_debug("not this");
    assert_string_equal(caught(), "");
    assert_int_equal(h.count, 1);
    assert_int_equal(h.level, LOG_INFO);
    assert_string_equal(h.line, "hello there");
}

static void spoil_errno(int level, const char *line, void *user)
{
    (void)level;
    (void)line;
    (void)user;
    errno = EDOM;
}

static void test_log_hook_cannot_change_errno_of_the_caller(void **state)
{
    (void)state;
    pen_log_set(spoil_errno, NULL, LOG_NOTICE);
    errno = ENOSPC;
    log_error("x");
    assert_int_equal(errno, ENOSPC);
}

static void log_again(int level, const char *line, void *user)
{
    (void)level;
    ++*(int *)user;
    log_error("from the hook: %s", line);
}

static void test_log_from_inside_the_hook_goes_to_stderr(void **state)
{
    (void)state;
    int calls = 0;
    pen_log_set(log_again, &calls, LOG_NOTICE);
    catch_stderr();
    log_error("x");
    assert_string_equal(caught(), "penstock: from the hook: x\n");
    assert_int_equal(calls, 1);
}

static void replace_itself(int level, const char *line, void *user)
{
    (void)level;
    (void)line;
    pen_log_set(hear, user, LOG_NOTICE);
}

static void test_log_hook_may_replace_itself(void **state)
{
    (void)state;
    heard h = {0};
    pen_log_set(replace_itself, &h, LOG_NOTICE);
    log_error("x");
    assert_int_equal(h.count, 0);
    log_error("y");
    assert_int_equal(h.count, 1);
    assert_string_equal(h.line, "y");
}

enum { WRITERS = 3, SWAPS = 2000 };
static atomic_bool over;

typedef struct {
    atomic_bool is_alive;
    atomic_int calls;
} listener;

static void listen_alive(int level, const char *line, void *user)
{
    (void)level;
    (void)line;
    listener *l = user;
    if (!atomic_load(&l->is_alive)) atomic_store(&l->calls, -1000000);
    atomic_fetch_add(&l->calls, 1);
}

static void *keep_logging(void *user)
{
    (void)user;
    while (!atomic_load(&over)) log_error("x");
    return NULL;
}

/* After pen_log_set() has returned, no thread is inside the old hook. */
static void test_log_hook_is_not_called_after_it_was_replaced(void **state)
{
    (void)state;
    listener listeners[2] = {0};
    pthread_t threads[WRITERS];
    atomic_store(&listeners[0].is_alive, true);
    pen_log_set(listen_alive, &listeners[0], LOG_NOTICE);
    atomic_store(&over, false);
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, keep_logging, NULL), 0);
    for (int i = 1; i <= SWAPS; i++) {
        atomic_store(&listeners[i % 2].is_alive, true);
        pen_log_set(listen_alive, &listeners[i % 2], LOG_NOTICE);
        atomic_store(&listeners[(i + 1) % 2].is_alive, false);
    }
    atomic_store(&over, true);
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    assert_true(atomic_load(&listeners[0].calls) >= 0);
    assert_true(atomic_load(&listeners[1].calls) >= 0);
}

static void test_log_allowed_is_true_once_per_key(void **state)
{
    (void)state;
    assert_int_equal(log_allowed(71), 1);
    assert_int_equal(log_allowed(71), 0);
    assert_int_equal(log_allowed(72), 1);
    assert_int_equal(log_allowed(71), 0);
    assert_int_equal(log_allowed(72), 0);
}

static void test_log_allowed_does_not_reward_inventing_keys(void **state)
{
    (void)state;
    int lines = 0;
    for (uint64_t key = 1000; key < 101000; key++) lines += log_allowed(key);
    assert_in_range(lines, 1, 256);
    assert_int_equal(log_allowed(71), 0); /* and no other key was evicted */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_shows_notice_and_above_at_first),
        cmocka_unit_test_teardown(test_log_stamps_info_and_debug_with_the_time, reset),
        cmocka_unit_test_teardown(test_log_silent_shows_nothing, reset),
        cmocka_unit_test(test_log_level_find_knows_its_names),
        cmocka_unit_test(test_log_keeps_every_record_on_one_line),
        cmocka_unit_test(test_log_truncates_a_long_line_and_marks_it),
        cmocka_unit_test(test_log_knows_the_system_error_and_keeps_errno),
        cmocka_unit_test_teardown(test_log_as_json_has_level_role_and_rank, reset),
        cmocka_unit_test_teardown(test_log_json_keeps_characters_and_replaces_invalid_bytes, reset),
        cmocka_unit_test_teardown(test_log_json_truncates_between_characters_and_stays_an_object,
                                  reset),
        cmocka_unit_test_teardown(test_log_hook_gets_the_bare_text_instead_of_stderr, reset),
        cmocka_unit_test_teardown(test_log_hook_cannot_change_errno_of_the_caller, reset),
        cmocka_unit_test_teardown(test_log_from_inside_the_hook_goes_to_stderr, reset),
        cmocka_unit_test_teardown(test_log_hook_may_replace_itself, reset),
        cmocka_unit_test_teardown(test_log_hook_is_not_called_after_it_was_replaced, reset),
        cmocka_unit_test(test_log_allowed_is_true_once_per_key),
        cmocka_unit_test(test_log_allowed_does_not_reward_inventing_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
