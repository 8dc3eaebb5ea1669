/* device_list_test.c - CUDA_VISIBLE_DEVICES as users, Slurm and liars write it. */
#include "common/launch/device_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static device_list list;
static pen_error why;

/* The words that `text` gives, joined by spaces. */
static const char *words(const char *text)
{
    static char joined[DEVICE_LIST_MAX * DEVICE_WORD_BYTES];
    size_t n  = 0;
    joined[0] = '\0';
    if (device_list_parse(text, &list, &why) != PEN_OK) fail_msg("%s", why.text);
    for (int i = 0; i < list.n; i++)
        n +=
            (size_t)snprintf(joined + n, sizeof joined - n, "%s%s", i > 0 ? " " : "", list.word[i]);
    return joined;
}

static void refused(const char *text, const char *part)
{
    assert_int_equal(device_list_parse(text, &list, &why), PEN_BAD_SETTING);
    if (strstr(why.text, part) == NULL) fail_msg("'%s' has no '%s'", why.text, part);
}

static void the_order_is_kept_and_spaces_are_dropped(void **state)
{
    (void)state;
    assert_string_equal(words("3,1"), "3 1");
    assert_string_equal(words(" 0 , 2 "), "0 2");
    assert_string_equal(words("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,GPU-5"),
                        "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 GPU-5");
    assert_false(list.has_parts);
    assert_string_equal(words("MIG-3b2e,MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/13/0"),
                        "MIG-3b2e MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/13/0");
    assert_true(list.has_parts);
}

static void an_empty_text_a_negative_number_and_nodevfiles_end_the_list(void **state)
{
    (void)state;
    assert_string_equal(words(""), "");
    assert_string_equal(words("  "), "");
    assert_string_equal(words("-1"), "");
    assert_string_equal(words("NoDevFiles"), "");
    assert_string_equal(words("2,-1,0"), "2");
}

static void what_is_no_device_is_refused_and_quoted(void **state)
{
    static char long_word[1 << 16], many[1 << 16];
    size_t n = 0;
    (void)state;
    refused("0,x", "'x'");
    refused("0,,1", "''");
    refused("0,", "''");
    refused("1 2", "'1 2'");
    refused("0x1", "'0x1'");
    refused("99999999999", "'99999999999'");
    refused("GPU-", "'GPU-'");
    refused("MIG-", "'MIG-'");
    refused("MIG-GPU-", "'MIG-GPU-'");
    refused("GPU-../../etc", "'GPU-../../etc'");
    refused("0,1,0", "'0' twice");
    memset(long_word, '7', sizeof long_word - 1);
    refused(long_word, "'7777");
    assert_true(strlen(why.text) < 300);
    for (int i = 0; i <= DEVICE_LIST_MAX; i++)
        n += (size_t)snprintf(many + n, sizeof many - n, "%s%d", i > 0 ? "," : "", i);
    refused(many, "more than 128");
}

/* Every text gives words that give themselves again, or a sentence. */
static void random_texts_never_break_the_reader(void **state)
{
    static const char letters[] = "0123,,-- GPUMIGabcNoDevFiles/\n\x80x";
    uint64_t seed               = 1;
    (void)state;
    for (int i = 0; i < 50000; i++) {
        char text[64];
        size_t n = 0;
        for (; n < sizeof text - 1; n++) {
            seed    = seed * 6364136223846793005u + 1442695040888963407u;
            text[n] = letters[(seed >> 33) % (sizeof letters - 1)];
            if ((seed >> 50) % 16 == 0) break;
        }
        text[n] = '\0';
        if (device_list_parse(text, &list, &why) != PEN_OK) continue;
        assert_in_range(list.n, 0, DEVICE_LIST_MAX);
        for (int w = 0; w < list.n; w++) {
            device_list again;
            assert_int_equal(device_list_parse(list.word[w], &again, &why), PEN_OK);
            assert_int_equal(again.n, 1);
            assert_string_equal(again.word[0], list.word[w]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_is_kept_and_spaces_are_dropped),
        cmocka_unit_test(an_empty_text_a_negative_number_and_nodevfiles_end_the_list),
        cmocka_unit_test(what_is_no_device_is_refused_and_quoted),
        cmocka_unit_test(random_texts_never_break_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
