/* utf8_test.c - texts shown to others, and how invalid bytes are replaced. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/utf8.h"
#include "proto/json_text.h"
#include "proto/status_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_utf8_invalid_bytes_and_terminal_controls_become_question_marks(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"plain", "plain"},
        {"h\xc3\xb6he \xe2\x82\xac \xf0\x9f\x8c\x8a", "h\xc3\xb6he \xe2\x82\xac \xf0\x9f\x8c\x8a"},
        {"\xff\xfe", "??"},
        {"a\x80", "a?"},
        {"cut \xe2\x82", "cut ??"},
        {"long \xc0\xaf", "long ??"},
        {"half \xed\xa0\x80", "half ???"},
        {"far \xf4\x90\x80\x80", "far ????"},
        {"\x1b[2J\n", "?[2J?"},
        {"\xc2\x9b", "??"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s", rows[i][0]);
        assert_int_equal(utf8_clean(text, sizeof text), strlen(rows[i][0]));
        assert_string_equal(text, rows[i][1]);
        assert_int_equal(utf8_is_clean(rows[i][0]), strcmp(rows[i][0], rows[i][1]) == 0);
        assert_true(utf8_is_clean(text));
    }
}

static void test_utf8_every_byte_string_is_clean_after_cleaning(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        char text[24];
        for (size_t i = 0; i + 1 < sizeof text; i++) {
            seed    = seed * 6364136223846793005u + 1442695040888963407u;
            text[i] = (char)(seed >> 56);
        }
        text[sizeof text - 1] = '\0';
        utf8_clean(text, sizeof text);
        assert_true(utf8_is_clean(text));
        json_t *made = json_string(text);
        assert_non_null(made);
        json_decref(made);
    }
}

/* Also a partial character, where a long name was truncated. */
static void test_status_in_json_is_valid_for_any_bytes_in_names(void **state)
{
    (void)state;
    static const wire_stat stat[]             = {{"los\xc3", 1}, {"__proto__", 2}};
    static const wire_member_status members[] = {{.member = {.role = PEN_WORKER, .host = "dev\xff"},
                                                  .state  = "active",
                                                  .call   = "\xc3",
                                                  .stat   = stat,
                                                  .n_stats = 2}};
    static const char *const waiting[]        = {"for \xe2\x82"};
    const wire_control status                 = {.kind     = WIRE_STATUS,
                                                 .u.status = {.job       = "j\xffob",
                                                              .phase     = "training",
                                                              .mode      = "ddp",
                                                              .scheduler = {.host = "\x80"},
                                                              .member    = members,
                                                              .n_members = 1,
                                                              .waiting   = waiting,
                                                              .n_waiting = 1}};
    char *text                                = status_json(&status);
    assert_non_null(text);
    static const char *const parts[] = {"\"job\":\"j?ob\"", "\"host\":\"dev?\"", "\"call\":\"?\"",
                                        "\"metrics\":{\"los?\":1.0,\"__proto__\":2.0}",
                                        "\"waiting\":[\"for ??\"]"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(text, parts[i]) == NULL) fail_msg("no %s in %s", parts[i], text);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_invalid_bytes_and_terminal_controls_become_question_marks),
        cmocka_unit_test(test_utf8_every_byte_string_is_clean_after_cleaning),
        cmocka_unit_test(test_status_in_json_is_valid_for_any_bytes_in_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
