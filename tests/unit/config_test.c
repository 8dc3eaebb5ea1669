/* config_test.c - one table row per setting: its values and how it is printed. */
#include "tests/unit/config_table.h"

#include "tests/support/settings_walk.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* Sets one field and returns the error, "" if there is none. */
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

static void test_config_defaults_are_those_of_the_table(void **state)
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

static void test_config_rejects_values_that_are_not_numbers(void **state)
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

/* Each locale installed here; the risk is a decimal comma. */
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
                                    {"offest", "offset"},    {"nestorov", "nesterov"},
                                    {"of", "offset"}};
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

/* ---- printing ---- */
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
    assert_non_null(strstr(text, "  --lease-ms        3000   Time without a heartbeat"));
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
        cmocka_unit_test(test_config_defaults_are_those_of_the_table),
        cmocka_unit_test(test_config_rejects_out_of_range_and_keeps_old_value),
        cmocka_unit_test(test_config_rejects_values_that_are_not_numbers),
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
        cmocka_unit_test(test_config_help_is_aligned_and_fits_in_100_columns),
        cmocka_unit_test(test_config_markdown_is_a_line_of_six_cells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
