/* config_test.c - one table row per setting, and every way a value comes in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/config.h"
#include "tests/support/settings_walk.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    uint64_t lease_ms, park_bytes_max;
    int64_t offset;
    double lr, clip;
    bool nesterov;
    int mode;
    char store[CONFIG_TEXT_BYTES];
} settings;

static const char *const modes[] = {"local", "ps-bsp", "ps-ssp", NULL};

/* clang-format off */
#define ROW(field, type, dfl, min, max, choices, doc) \
    {#field, CONFIG_##type, offsetof(settings, field), dfl, min, max, choices, doc}
static const config_row rows[] = {
    ROW(lease_ms,       U64,  "3000",  100, 600000,             NULL,  "Time without a heartbeat before a worker is removed; lower finds failures sooner but mistakes a long stall for a death."),
    ROW(park_bytes_max, U64,  "64m",   0,   9007199254740992.0, NULL,  "Room for contributions that came early."),
    ROW(offset,         I64,  "0",     -10, 10,                 NULL,  "Where to begin | or to end."),
    ROW(lr,             F64,  "nan",   0,   1e6,                NULL,  "Rate."),
    ROW(clip,           F64,  "inf",   0,   INFINITY,           NULL,  "Largest norm."),
    ROW(nesterov,       BOOL, "no",    0,   0,                  NULL,  "Look ahead."),
    ROW(mode,           ENUM, "local", 0,   0,                  modes, "Who adds gradients up."),
    ROW(store,          TEXT, "",      0,   0,                  NULL,  "Folder of snapshots."),
    {0},
};
static const config_row other_rows[] = {
    {"port", CONFIG_U64, 0, "1", 1, 65535, NULL, "Port."},
    {0},
};
/* clang-format on */
static const config_row *const known[] = {rows, other_rows, NULL};

static settings defaults(void)
{
    settings s;
    memset(&s, 0, sizeof s);
    config_defaults(rows, &s);
    return s;
}

/* Sets one field and returns the refusal, "" when there was none. */
static const char *set(settings *s, const char *key, const char *text)
{
    static pen_error why;
    memset(&why, 0, sizeof why);
    const pen_status status = config_set(rows, s, key, text, &why);
    assert_true(status == PEN_OK || (status == PEN_BAD_SETTING && why.status == PEN_BAD_SETTING));
    return why.text;
}

static void test_config_every_row_keeps_its_promises(void **state)
{
    (void)state;
    settings_walk(rows, sizeof(settings));
    settings_walk(other_rows, sizeof(uint64_t));
}

static void test_config_defaults_are_what_the_table_says(void **state)
{
    (void)state;
    const settings s = defaults();
    assert_int_equal(s.lease_ms, 3000);
    assert_int_equal(s.park_bytes_max, 64 << 20);
    assert_int_equal(s.offset, 0);
    assert_true(isnan(s.lr)); /* not given */
    assert_true(isinf(s.clip));
    assert_false(s.nesterov);
    assert_int_equal(s.mode, 0);
    assert_string_equal(s.store, "");
}

/* ---- one value ---- */

static void test_config_rejects_out_of_range_and_keeps_old_value(void **state)
{
    (void)state;
    settings s = defaults();
    assert_string_equal(set(&s, "lease_ms", "5"),
                        "lease_ms is 5, but must be between 100 and 600000");
    assert_string_equal(set(&s, "offset", "-11"), "offset is -11, but must be between -10 and 10");
    assert_string_equal(set(&s, "clip", "-1"), "clip is -1, but must be at least 0");
    assert_string_equal(set(&s, "lr", "inf"), "lr is inf, but must be between 0 and 1000000");
    assert_string_equal(set(&s, "lease_ms", "-1"),
                        "lease_ms is -1, but must be between 100 and 600000");
    assert_string_equal(
        set(&s, "park_bytes_max", "9007199254740993"),
        "park_bytes_max is 9007199254740993, but must be between 0 and 9007199254740992");
    assert_string_equal(set(&s, "park_bytes_max", "99999999999999999999t"),
                        "park_bytes_max is 99999999999999999999t, but must be between 0 and "
                        "9007199254740992");
    assert_non_null(
        strstr(set(&s, "park_bytes_max", "16777217t"), "must be between")); /* 2^64 + 2^40 */
    const settings fresh = defaults();
    assert_memory_equal(&s.lease_ms, &fresh.lease_ms, offsetof(settings, lr));
    assert_true(isnan(s.lr) && isinf(s.clip));
}

static void test_config_rejects_what_is_no_number(void **state)
{
    (void)state;
    settings s = defaults();
    assert_string_equal(set(&s, "lease_ms", "abc"),
                        "lease_ms is 'abc', which is not a whole number");
    assert_string_equal(set(&s, "lease_ms", "200.5"),
                        "lease_ms is '200.5', which is not a whole number");
    const char *const not_whole[] = {"",      " 200",  "200 ", "200q", "2kk",
                                     "0x200", "+-200", "k",    "inf"};
    for (size_t i = 0; i < sizeof not_whole / sizeof not_whole[0]; i++)
        assert_non_null(strstr(set(&s, "lease_ms", not_whole[i]), "which is not a whole number"));
    const char *const not_numbers[] = {"", "fast", "1.5x", " 1", "1 ", "nan", "-nan", "1,5", "1k"};
    for (size_t i = 0; i < sizeof not_numbers / sizeof not_numbers[0]; i++)
        assert_non_null(strstr(set(&s, "clip", not_numbers[i]), "which is not a number"));
}

static void test_config_reads_binary_suffixes(void **state)
{
    (void)state;
    settings s = defaults();
    const struct {
        const char *text;
        uint64_t value;
    } cases[] = {{"7", 7},           {"2k", 2048},       {"64m", 64u << 20},
                 {"3g", 3ull << 30}, {"1t", 1ull << 40}, {"2K", 2048}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(set(&s, "park_bytes_max", cases[i].text), "");
        assert_int_equal(s.park_bytes_max, cases[i].value);
    }
}

static void test_config_reads_inf_only_where_there_is_no_limit(void **state)
{
    (void)state;
    settings s = defaults();
    assert_string_equal(set(&s, "clip", "1e3"), "");
    assert_true(s.clip == 1000);
    assert_string_equal(set(&s, "clip", "inf"), "");
    assert_true(isinf(s.clip));
    assert_string_equal(set(&s, "clip", "1e999"), "clip is 1e999, but must be at least 0");
}

static void test_config_reads_every_word_for_yes_and_no(void **state)
{
    (void)state;
    settings s              = defaults();
    const char *const yes[] = {"yes", "true", "on", "1", "True"};
    const char *const no[]  = {"no", "false", "off", "0", "False"};
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(set(&s, "nesterov", yes[i]), "");
        assert_true(s.nesterov);
        assert_string_equal(set(&s, "nesterov", no[i]), "");
        assert_false(s.nesterov);
    }
    assert_string_equal(set(&s, "nesterov", "maybe"), "nesterov is 'maybe'; choose yes or no");
}

static void test_config_enum_lists_its_choices(void **state)
{
    (void)state;
    settings s = defaults();
    assert_string_equal(set(&s, "mode", "ps-ssp"), "");
    assert_int_equal(s.mode, 2);
    assert_string_equal(set(&s, "mode", "ps"), "mode is 'ps'; choose one of local, ps-bsp, ps-ssp");
    assert_int_equal(s.mode, 2);
}

static void test_config_text_is_bounded(void **state)
{
    (void)state;
    settings s = defaults();
    char longer[CONFIG_TEXT_BYTES + 1];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_string_equal(set(&s, "store", longer), "store is 256 bytes long, but at most 255 fit");
    assert_string_equal(set(&s, "store", longer + 1), "");
    assert_string_equal(s.store, longer + 1);
}

/* Each locale that is installed here; a decimal comma is the one that could do harm. */
static void test_config_reads_and_writes_a_decimal_point_in_every_locale(void **state)
{
    (void)state;
    const char *const locales[] = {"C",     "C.UTF-8",     "de_DE.UTF-8",
                                   "de_DE", "fr_FR.UTF-8", "pt_BR.UTF-8"};
    for (size_t i = 0; i < sizeof locales / sizeof *locales; i++) {
        if (setlocale(LC_NUMERIC, locales[i]) == NULL) continue;
        settings s = defaults();
        char text[32];
        assert_string_equal(set(&s, "lr", "0.5"), "");
        config_get(rows, &s, "lr", text, sizeof text);
        setlocale(LC_NUMERIC, "C");
        assert_true(s.lr == 0.5);
        assert_string_equal(text, "0.5");
    }
}

static void test_config_get_writes_what_config_set_reads(void **state)
{
    (void)state;
    settings s = defaults();
    char text[CONFIG_TEXT_BYTES];
    const char *const pairs[][2] = {{"lease_ms", "4096"}, {"offset", "-3"},    {"lr", "0.0003"},
                                    {"lr", "0.1"},        {"clip", "inf"},     {"nesterov", "yes"},
                                    {"mode", "ps-bsp"},   {"store", "/tmp/x"}, {"lr", "1e-08"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_string_equal(set(&s, pairs[i][0], pairs[i][1]), "");
        config_get(rows, &s, pairs[i][0], text, sizeof text);
        assert_string_equal(text, pairs[i][1]);
    }
    config_get(rows, &s, "no_such", text, sizeof text);
    assert_string_equal(text, "");
    config_get(rows, &s, "store", text, 4);
    assert_string_equal(text, "/tm");
}

static void test_config_unknown_key_names_the_nearest(void **state)
{
    (void)state;
    settings s                   = defaults();
    const char *const typos[][2] = {{"lease_s", "lease_ms"}, {"laese_ms", "lease_ms"},
                                    {"modes", "mode"},       {"park_bytes", "park_bytes_max"},
                                    {"offest", "offset"},    {"nestorov", "nesterov"}};
    for (size_t i = 0; i < sizeof typos / sizeof typos[0]; i++) {
        char expected[128];
        snprintf(expected, sizeof expected, "unknown setting '%s'; did you mean '%s'?", typos[i][0],
                 typos[i][1]);
        assert_string_equal(set(&s, typos[i][0], "1"), expected);
    }
}

static void test_config_swapped_letters_are_one_mistake(void **state)
{
    (void)state;
    /* clang-format off */
    static const config_row words[] = {
        {"fond", CONFIG_U64, 0, "1", 0, 1, NULL, "Two letters from form."},
        {"from", CONFIG_U64, 8, "1", 0, 1, NULL, "One swap from form."},
        {0},
    };
    /* clang-format on */
    pen_error why;
    uint64_t values[2];
    assert_int_equal(config_set(words, values, "form", "1", &why), PEN_BAD_SETTING);
    assert_string_equal(why.text, "unknown setting 'form'; did you mean 'from'?");
}

static void test_config_unknown_key_of_any_length_is_refused(void **state)
{
    (void)state;
    settings s = defaults();
    char longer[5000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_non_null(strstr(set(&s, longer, "1"), "did you mean"));
    assert_non_null(strstr(set(&s, "", "1"), "did you mean"));
    static const config_row none[] = {{0}};
    assert_int_equal(config_set(none, &s, "x", "1", NULL), PEN_BAD_SETTING);
}

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

static void test_config_from_strings_refuses_what_it_cannot_take(void **state)
{
    (void)state;
    refused_string("lease_ms", NULL, "expected name=value, but got 'lease_ms'");
    refused_string("=3", NULL, "expected name=value, but got '=3'");
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

static void test_config_from_words_refuses_what_it_cannot_take(void **state)
{
    (void)state;
    char longer[600] = "store=";
    memset(longer + 6, 'x', 500);
    refused_words("lr=1 nesterov", "expected name=value, but got 'nesterov'");
    refused_words("lr=1 lr=1", "lr is given twice");
    refused_words("lr=1 store='open",
                  "the value of store is longer than 255 bytes or has an open quote");
    refused_words("store='a'b", "the value of store");
    refused_words(longer, "the value of store");
    refused_words("beta3=1", "unknown setting 'beta3'");
    refused_words("lr mode=1", "expected name=value, but got 'lr mode=1'");
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
    refused_file("nonsense\n", 9, "expected name=value, but got 'nonsense'", ":1)");
    refused_file("= 3\n", 4, "expected name=value", ":1)");
    refused_file("store = 'open\n", 14, "the value of store", ":1)");
    refused_file("store = 'a' b\n", 14, "the value of store", ":1)");
}

static void test_config_from_file_refuses_what_is_no_text(void **state)
{
    (void)state;
    static char noise[5000];
    memset(noise, 'x', sizeof noise);
    refused_file(noise, sizeof noise, "the line is longer than", ":1)");
    refused_file("lr=1\0\n lr=2\nlr=3\n", 17, "the line is longer than", ":1)");
}

static void test_config_from_file_missing_says_so(void **state)
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
    setenv("PENSTOCK_PORT", "99999999", 1); /* another table's: not ours to judge */
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

/* Reads flags from a space-separated line; the returned string is the refusal. */
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
}

static void test_config_from_argv_leaves_what_is_not_a_flag(void **state)
{
    (void)state;
    settings s = defaults();
    int rest;
    assert_string_equal(flags(&s, "--nesterov train --lease_ms=5", &rest), "");
    assert_int_equal(rest, 2);
    assert_string_equal(flags(&s, "--nesterov true", &rest), ""); /* a program's name */
    assert_int_equal(rest, 2);
    assert_string_equal(flags(&s, "--lr 1 -- --lease_ms=5", &rest), "");
    assert_int_equal(rest, 3);
    assert_string_equal(flags(&s, "-n 3", &rest), "");
    assert_int_equal(rest, 1);
    assert_string_equal(flags(&s, "", &rest), "");
    assert_int_equal(rest, 1);
}

static void test_config_from_argv_refuses_what_it_cannot_take(void **state)
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

/* ---- print-outs ---- */

static char *printed(void (*print)(const config_row *table, FILE *out))
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    print(rows, out);
    fclose(out);
    return text;
}

static void test_config_help_is_aligned_and_fits_in_100_columns(void **state)
{
    (void)state;
    char *text = printed(config_write_help);
    assert_non_null(strstr(text, "  --lease_ms        3000   Time without a heartbeat"));
    assert_non_null(strstr(text, "  --lr              none   Rate. Accepts 0 to 1000000.\n"));
    assert_non_null(strstr(text, "  --clip            inf    Largest norm. Accepts at least 0.\n"));
    assert_non_null(strstr(text, "Accepts local, ps-bsp, ps-ssp.\n"));
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        assert_in_range(strlen(line), 1, 100);
        assert_int_not_equal(line[strlen(line) - 1], ' ');
        if (strncmp(line, "  --", 4) != 0) assert_int_equal(strspn(line, " "), 27);
    }
    free(text);
}

static void write_lines(const config_row *table, FILE *out)
{
    for (const config_row *row = table; row->name != NULL; row++)
        config_write_markdown(row, "worker, server", out);
}

static void test_config_markdown_is_a_line_of_six_cells(void **state)
{
    (void)state;
    char *text = printed(write_lines);
    assert_non_null(strstr(text,
                           "| `--offset` | `PENSTOCK_OFFSET` | worker, server | `0` | -10 to 10 | "
                           "Where to begin \\| or to end. |\n"));
    assert_non_null(strstr(text, "| `--mode` | `PENSTOCK_MODE` | worker, server | `local` | local, "
                                 "ps-bsp, ps-ssp | "));
    size_t lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) lines++;
    assert_int_equal(lines, sizeof rows / sizeof rows[0] - 1);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_every_row_keeps_its_promises),
        cmocka_unit_test(test_config_defaults_are_what_the_table_says),
        cmocka_unit_test(test_config_rejects_out_of_range_and_keeps_old_value),
        cmocka_unit_test(test_config_rejects_what_is_no_number),
        cmocka_unit_test(test_config_reads_binary_suffixes),
        cmocka_unit_test(test_config_reads_inf_only_where_there_is_no_limit),
        cmocka_unit_test(test_config_reads_every_word_for_yes_and_no),
        cmocka_unit_test(test_config_enum_lists_its_choices),
        cmocka_unit_test(test_config_text_is_bounded),
        cmocka_unit_test(test_config_reads_and_writes_a_decimal_point_in_every_locale),
        cmocka_unit_test(test_config_get_writes_what_config_set_reads),
        cmocka_unit_test(test_config_unknown_key_names_the_nearest),
        cmocka_unit_test(test_config_swapped_letters_are_one_mistake),
        cmocka_unit_test(test_config_unknown_key_of_any_length_is_refused),
        cmocka_unit_test(test_config_from_strings_takes_name_value_pairs),
        cmocka_unit_test(test_config_from_strings_refuses_what_it_cannot_take),
        cmocka_unit_test(test_config_from_words_takes_quoted_values),
        cmocka_unit_test(test_config_from_words_refuses_what_it_cannot_take),
        cmocka_unit_test(test_config_from_file_reads_lines_and_comments),
        cmocka_unit_test(test_config_from_file_refusal_names_file_and_line),
        cmocka_unit_test(test_config_from_file_refuses_what_is_no_text),
        cmocka_unit_test(test_config_from_file_missing_says_so),
        cmocka_unit_test(test_config_from_env_reads_upper_case_names),
        cmocka_unit_test(test_config_from_env_refusal_names_the_variable),
        cmocka_unit_test(test_config_from_env_needs_no_other_tables),
        cmocka_unit_test(test_config_env_reads_a_foreign_variable),
        cmocka_unit_test(test_config_from_argv_takes_every_form_of_a_flag),
        cmocka_unit_test(test_config_from_argv_leaves_what_is_not_a_flag),
        cmocka_unit_test(test_config_from_argv_refuses_what_it_cannot_take),
        cmocka_unit_test(test_config_later_source_wins),
        cmocka_unit_test(test_config_help_is_aligned_and_fits_in_100_columns),
        cmocka_unit_test(test_config_markdown_is_a_line_of_six_cells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
