/* config_source_test.c - every source of settings: strings, words, a file, the environment, flags. */
#include "tests/unit/config_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* clang-format on */
static const config_row *const known[] = {rows, other_rows, NULL};

/* ---- strings and words ---- */
static void test_config_from_strings_takes_name_value_pairs(void **state)
{
    (void)state;
    settings s                  = defaults();
    const char *const strings[] = {"lease_ms=4000", "store=a=b c", NULL};
    assert_int_equal(config_from_strings(rows, &s, strings, NULL), PEN_OK);
    assert_int_equal(s.lease_ms, 4000);
    assert_string_equal(s.store, "a=b c");
    assert_int_equal(config_from_strings(rows, &s, NULL, NULL), PEN_OK);
}

static void refused_string(const char *first, const char *second, const char *expected)
{
    settings s                  = defaults();
    const char *const strings[] = {first, second, NULL};
    pen_error why;
    assert_int_equal(config_from_strings(rows, &s, strings, &why), PEN_BAD_SETTING);
    assert_string_equal(why.text, expected);
}

static void test_config_from_strings_refuses_invalid_strings(void **state)
{
    (void)state;
    refused_string("lease_ms", NULL, "expected name=value, got 'lease_ms'");
    refused_string("=3", NULL, "expected name=value, got '=3'");
    refused_string("lease_ms=4000", "lease_ms=4000", "lease_ms is given twice");
    refused_string("lease_s=3", NULL, "unknown setting 'lease_s'; did you mean 'lease_ms'?");
    refused_string("lease_ms=5", NULL, "lease_ms is 5, but must be between 100 and 600000");
}

static void test_config_from_words_takes_quoted_values(void **state)
{
    (void)state;
    settings s = defaults();
    assert_int_equal(
        config_from_words(rows, &s, "  lr=3e-4\tstore='a b'  mode=ps-bsp clip='2' ", NULL), PEN_OK);
    assert_true(s.lr == 3e-4);
    assert_string_equal(s.store, "a b");
    assert_int_equal(s.mode, 1);
    assert_true(s.clip == 2);
    assert_int_equal(config_from_words(rows, &s, "", NULL), PEN_OK);
    assert_int_equal(config_from_words(rows, &s, "store=''", NULL), PEN_OK);
    assert_string_equal(s.store, "");
}

static void refused_words(const char *words, const char *expected)
{
    settings s = defaults();
    pen_error why;
    assert_int_equal(config_from_words(rows, &s, words, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(why.text, expected));
}

static void test_config_from_words_refuses_invalid_words(void **state)
{
    (void)state;
    char longer[600] = "store=";
    memset(longer + 6, 'x', 500);
    refused_words("lr=1 nesterov", "expected name=value, got 'nesterov'");
    refused_words("lr=1 lr=1", "lr is given twice");
    refused_words("lr=1 store='open",
                  "the value of store is longer than 255 bytes or has an open quote");
    refused_words("store='a'b", "the value of store");
    refused_words(longer, "the value of store");
    refused_words("beta3=1", "unknown setting 'beta3'");
    refused_words("lr mode=1", "expected name=value, got 'lr mode=1'");
}

/* ---- a file ---- */
static pen_status read_file(settings *s, const char *content, size_t size, pen_error *why)
{
    char path[]  = "/tmp/penstock-config-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, size), size);
    close(fd);
    const pen_status status = config_from_file(rows, s, path, why);
    unlink(path);
    return status;
}

static void test_config_from_file_reads_lines_and_comments(void **state)
{
    (void)state;
    settings s               = defaults();
    static const char text[] = "# a comment\n\n  lease_ms = 4000   # and why\r\n"
                               "store=/a#b c  \nmode = 'ps-bsp' # quoted\nlr=0.5";
    assert_int_equal(read_file(&s, text, strlen(text), NULL), PEN_OK);
    assert_int_equal(s.lease_ms, 4000);
    assert_string_equal(s.store, "/a#b c");
    assert_int_equal(s.mode, 1);
    assert_true(s.lr == 0.5); /* the last line needs no newline */
    assert_int_equal(read_file(&s, "store = 'a # b'\n", 16, NULL), PEN_OK);
    assert_string_equal(s.store, "a # b");
}

static void refused_file(const char *text, size_t size, const char *first, const char *last)
{
    settings s = defaults();
    pen_error why;
    assert_int_equal(read_file(&s, text, size, &why), PEN_BAD_SETTING);
    assert_int_equal(strncmp(why.text, first, strlen(first)), 0);
    assert_string_equal(why.text + strlen(why.text) - strlen(last), last);
    assert_non_null(strstr(why.text, "  (from /tmp/penstock-config-"));
}

static void test_config_from_file_refusal_names_file_and_line(void **state)
{
    (void)state;
    refused_file("lr=1\n\nlease_ms=5\n", 18, "lease_ms is 5, but must be between", ":3)");
    refused_file("lease_s=5\n", 10, "unknown setting 'lease_s'; did you mean 'lease_ms'?", ":1)");
    refused_file("lr=1\nlr=2\n", 10, "lr is given twice", ":2)");
    refused_file("nonsense\n", 9, "expected name=value, got 'nonsense'", ":1)");
    refused_file("= 3\n", 4, "expected name=value", ":1)");
    refused_file("store = 'open\n", 14, "the value of store", ":1)");
    refused_file("store = 'a' b\n", 14, "the value of store", ":1)");
}

static void test_config_from_file_refuses_binary_files(void **state)
{
    (void)state;
    static char noise[5000];
    memset(noise, 'x', sizeof noise);
    refused_file(noise, sizeof noise, "the line is longer than", ":1)");
    refused_file("lr=1\0\n lr=2\nlr=3\n", 17, "the line is longer than", ":1)");
}

static void test_config_from_file_reports_a_missing_file(void **state)
{
    (void)state;
    settings s = defaults();
    pen_error why;
    assert_int_equal(config_from_file(rows, &s, "/no/such.conf", &why), PEN_NOT_FOUND);
    assert_string_equal(why.text, "cannot open /no/such.conf: No such file or directory");
    assert_int_equal(config_from_file(rows, &s, "/tmp", &why), PEN_NOT_FOUND);
    assert_string_equal(why.text, "cannot read /tmp: Is a directory");
}

/* ---- environment ---- */
static void test_config_from_env_reads_upper_case_names(void **state)
{
    (void)state;
    settings s = defaults();
    setenv("PENSTOCK_LEASE_MS", "4000", 1);
    setenv("PENSTOCK_PORT", "99999999", 1); /* belongs to another table: not checked here */
    setenv("PENSTOCKING", "x", 1);
    const pen_status status = config_from_env(rows, &s, known, NULL);
    unsetenv("PENSTOCK_LEASE_MS");
    unsetenv("PENSTOCK_PORT");
    unsetenv("PENSTOCKING");
    assert_int_equal(status, PEN_OK);
    assert_int_equal(s.lease_ms, 4000);
}

static void refused_variable(const char *name, const char *value, const char *expected)
{
    settings s = defaults();
    pen_error why;
    setenv(name, value, 1);
    const pen_status status = config_from_env(rows, &s, known, &why);
    unsetenv(name);
    assert_int_equal(status, PEN_BAD_SETTING);
    assert_string_equal(why.text, expected);
}

static void test_config_from_env_refusal_names_the_variable(void **state)
{
    (void)state;
    refused_variable(
        "PENSTOCK_LEASE_S", "3",
        "unknown setting 'lease_s'; did you mean 'lease_ms'?  (from PENSTOCK_LEASE_S)");
    refused_variable("PENSTOCK_PROT", "3",
                     "unknown setting 'prot'; did you mean 'port'?  (from PENSTOCK_PROT)");
    refused_variable("PENSTOCK_LEASE_MS", "5",
                     "lease_ms is 5, but must be between 100 and 600000  (from PENSTOCK_LEASE_MS)");
    refused_variable("PENSTOCK_LR", "", "lr is '', which is not a number  (from PENSTOCK_LR)");
}

static void test_config_from_env_needs_no_other_tables(void **state)
{
    (void)state;
    settings s = defaults();
    setenv("PENSTOCK_PORT", "1", 1);
    const pen_status status = config_from_env(rows, &s, NULL, NULL);
    unsetenv("PENSTOCK_PORT");
    assert_int_equal(status, PEN_BAD_SETTING);
}

static void test_config_env_reads_a_foreign_variable(void **state)
{
    (void)state;
    setenv("SLURM_PROCID", "3", 1);
    assert_string_equal(config_env("SLURM_PROCID"), "3");
    unsetenv("SLURM_PROCID");
    assert_null(config_env("SLURM_PROCID"));
}

/* ---- flags ---- */
enum { WORDS_MAX = 8 };

/* Reads flags from a space-separated line; returns the error, "" if there is none. */
static const char *flags(settings *s, const char *line, int *rest)
{
    static char copy[256];
    static pen_error why;
    char *argv[WORDS_MAX + 1] = {(char *)"penstock"};
    int argc                  = 1;
    memset(&why, 0, sizeof why);
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL && argc < WORDS_MAX; word = strtok(NULL, " "))
        argv[argc++] = word;
    *rest                   = -1;
    const pen_status status = config_from_argv(rows, s, argc, argv, rest, &why);
    assert_int_equal(status, why.status);
    return why.text;
}

static void test_config_from_argv_takes_every_form_of_a_flag(void **state)
{
    (void)state;
    settings s = defaults();
    int rest;
    assert_string_equal(
        flags(&s, "--lease_ms=4000 --park-bytes-max 2k --nesterov --store=a=b", &rest), "");
    assert_int_equal(rest, 6);
    assert_int_equal(s.lease_ms, 4000);
    assert_int_equal(s.park_bytes_max, 2048);
    assert_true(s.nesterov);
    assert_string_equal(s.store, "a=b");
    assert_string_equal(flags(&s, "--no-nesterov --offset -3", &rest), "");
    assert_false(s.nesterov);
    assert_int_equal(s.offset, -3);
    assert_string_equal(flags(&s, "--nesterov=yes --mode ps-bsp", &rest), "");
    assert_true(s.nesterov);
    assert_int_equal(s.mode, 1);
    assert_string_equal(flags(&s, "--nesterov no --mode local", &rest), "");
    assert_false(s.nesterov);
    assert_int_equal(rest, 5);
    assert_string_equal(flags(&s, "--nesterov yes now", &rest), "");
    assert_true(s.nesterov);
    assert_int_equal(rest, 3);
    assert_string_equal(flags(&s, "--nesterov off now", &rest), "");
    assert_false(s.nesterov);
    assert_int_equal(rest, 3);
    assert_string_equal(flags(&s, "--nesterov on", &rest), "");
    assert_true(s.nesterov);
}

static void test_config_a_choice_that_begins_with_no_and_yes_is_a_switch(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        int order, rest;
    } rows_of[] = {{"--order", 1, 2},        {"--no-order", 0, 2},     {"--order node", 2, 3},
                   {"--order no", 0, 3},     {"--order train", 1, 2},  {"--order=node", 2, 2},
                   {"--order=off", 0, 2},    {"--order=TRUE", 1, 2},   {"--order true", 1, 2},
                   {"--order yes no", 1, 3}, {"--order off now", 0, 3}};
    for (size_t i = 0; i < sizeof rows_of / sizeof rows_of[0]; i++) {
        settings s = defaults();
        int rest;
        assert_string_equal(flags(&s, rows_of[i].words, &rest), "");
        assert_int_equal(s.order, rows_of[i].order);
        assert_int_equal(rest, rows_of[i].rest);
    }
    settings s = defaults();
    int rest;
    assert_string_equal(flags(&s, "--order=rank", &rest),
                        "order is 'rank'; choose one of no, yes, node");
}

static void test_config_from_argv_leaves_what_is_not_a_flag(void **state)
{
    (void)state;
    settings s = defaults();
    int rest;
    assert_string_equal(flags(&s, "--nesterov train --lease_ms=5", &rest), "");
    assert_int_equal(rest, 2);
    assert_string_equal(flags(&s, "--nesterov true", &rest), ""); /* a program name */
    assert_int_equal(rest, 2);
    assert_string_equal(flags(&s, "--lr 1 -- --lease_ms=5", &rest), "");
    assert_int_equal(rest, 3);
    assert_string_equal(flags(&s, "-n 3", &rest), "");
    assert_int_equal(rest, 1);
    assert_string_equal(flags(&s, "", &rest), "");
    assert_int_equal(rest, 1);
}

static void test_config_from_argv_refuses_invalid_arguments(void **state)
{
    (void)state;
    settings s = defaults();
    int rest;
    assert_string_equal(flags(&s, "--lease-s=3", &rest),
                        "unknown setting 'lease_s'; did you mean 'lease_ms'?");
    assert_int_equal(rest, -1);
    assert_string_equal(flags(&s, "--lease_ms", &rest),
                        "--lease_ms needs a value: --lease_ms=3000");
    assert_string_equal(flags(&s, "--lr=1 --lr=2", &rest), "lr is given twice");
    assert_string_equal(flags(&s, "--lease-ms=5", &rest),
                        "lease_ms is 5, but must be between 100 and 600000");
    assert_non_null(strstr(flags(&s, "--no-mode", &rest), "unknown setting 'no_mode'"));
    assert_non_null(strstr(flags(&s, "--no-nesterov=yes", &rest), "unknown setting 'no_nesterov'"));
    assert_non_null(strstr(flags(&s, "--=3", &rest), "unknown setting"));
}

static void test_config_later_source_wins(void **state)
{
    (void)state;
    settings s                  = defaults();
    const char *const strings[] = {"lease_ms=1000", "offset=1", "lr=1", "mode=ps-bsp", NULL};
    int rest;
    assert_int_equal(config_from_strings(rows, &s, strings, NULL), PEN_OK);
    assert_int_equal(read_file(&s, "lease_ms=2000\noffset=2\nlr=2\n", 28, NULL), PEN_OK);
    setenv("PENSTOCK_LEASE_MS", "4000", 1);
    setenv("PENSTOCK_OFFSET", "4", 1);
    const pen_status status = config_from_env(rows, &s, known, NULL);
    unsetenv("PENSTOCK_LEASE_MS");
    unsetenv("PENSTOCK_OFFSET");
    assert_int_equal(status, PEN_OK);
    assert_string_equal(flags(&s, "--lease_ms=5000", &rest), "");
    assert_int_equal(s.lease_ms, 5000);
    assert_int_equal(s.offset, 4);
    assert_true(s.lr == 2);
    assert_int_equal(s.mode, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_from_strings_takes_name_value_pairs),
        cmocka_unit_test(test_config_from_strings_refuses_invalid_strings),
        cmocka_unit_test(test_config_from_words_takes_quoted_values),
        cmocka_unit_test(test_config_from_words_refuses_invalid_words),
        cmocka_unit_test(test_config_from_file_reads_lines_and_comments),
        cmocka_unit_test(test_config_from_file_refusal_names_file_and_line),
        cmocka_unit_test(test_config_from_file_refuses_binary_files),
        cmocka_unit_test(test_config_from_file_reports_a_missing_file),
        cmocka_unit_test(test_config_from_env_reads_upper_case_names),
        cmocka_unit_test(test_config_from_env_refusal_names_the_variable),
        cmocka_unit_test(test_config_from_env_needs_no_other_tables),
        cmocka_unit_test(test_config_env_reads_a_foreign_variable),
        cmocka_unit_test(test_config_from_argv_takes_every_form_of_a_flag),
        cmocka_unit_test(test_config_a_choice_that_begins_with_no_and_yes_is_a_switch),
        cmocka_unit_test(test_config_from_argv_leaves_what_is_not_a_flag),
        cmocka_unit_test(test_config_from_argv_refuses_invalid_arguments),
        cmocka_unit_test(test_config_later_source_wins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
