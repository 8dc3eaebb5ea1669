/* secret_test.c - the job's secret: text, join lines, files, and keys that are equal everywhere. */
#include "common/net/auth/secret.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static secret make(void)
{
    secret s;
    pen_error why;
    if (secret_make(&s, &why) != PEN_OK) fail_msg("%s", why.text);
    return s;
}

/* Bytes 0 to 31. */
static secret known(void)
{
    secret s;
    for (int i = 0; i < SECRET_BYTES; i++) s.bytes[i] = (uint8_t)i;
    return s;
}

static void test_secret_new_ones_differ(void **state)
{
    (void)state;
    const secret a = make(), b = make();
    assert_memory_not_equal(a.bytes, b.bytes, SECRET_BYTES);
}

static void test_secret_text_reads_back_and_never_changes(void **state)
{
    (void)state;
    char text[SECRET_TEXT_BYTES];
    for (int i = 0; i < 100; i++) {
        secret s = make(), back;
        secret_format(&s, text);
        assert_int_equal(strlen(text), SECRET_TEXT_BYTES - 1);
        assert_int_equal(secret_parse(text, strlen(text), &back, NULL), PEN_OK);
        assert_memory_equal(s.bytes, back.bytes, SECRET_BYTES);
    }
    const secret s = known(); /* files of older versions must be read */
    secret_format(&s, text);
    assert_string_equal(text, "pen1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh_zmiyt");
}

/* Any single wrong letter, and any missing letter. */
static void test_secret_typing_errors_are_found_and_not_repeated_in_the_sentence(void **state)
{
    (void)state;
    char text[SECRET_TEXT_BYTES], wrong[SECRET_TEXT_BYTES];
    const secret s = make();
    secret back    = known();
    pen_error why;
    secret_format(&s, text);
    for (size_t i = 0; i < strlen(text); i++) {
        strcpy(wrong, text);
        wrong[i] = wrong[i] == 'A' ? 'B' : 'A';
        assert_int_equal(secret_parse(wrong, strlen(wrong), &back, &why), PEN_BAD_SETTING);
        assert_null(strstr(why.text, text + 10));
        memmove(wrong + i, text + i + 1, strlen(text + i));
        assert_int_equal(secret_parse(wrong, strlen(wrong), &back, &why), PEN_BAD_SETTING);
    }
    for (int high = 128; high < 256; high++) { /* no letter beyond ASCII is accepted */
        strcpy(wrong, text);
        wrong[30] = (char)high;
        assert_int_equal(secret_parse(wrong, strlen(wrong), &back, &why), PEN_BAD_SETTING);
    }
    const secret untouched = known();
    assert_memory_equal(back.bytes, untouched.bytes, SECRET_BYTES);
}

static void test_secret_join_line_carries_secret_host_and_port(void **state)
{
    (void)state;
    static const char *const hosts[] = {"a", "10.0.0.7", "node-0.cluster.local", "fe80::1"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        char line[SECRET_JOIN_BYTES], host[SECRET_HOST_BYTES];
        uint32_t port;
        const secret s = make();
        secret back;
        pen_error why;
        secret_join_format(&s, hosts[i], 29500, line);
        if (secret_join_parse(line, &back, host, &port, &why) != PEN_OK) fail_msg("%s", why.text);
        assert_memory_equal(s.bytes, back.bytes, SECRET_BYTES);
        assert_int_equal(port, 29500);
        const size_t bracket = strchr(hosts[i], ':') != NULL;
        assert_memory_equal(host + bracket, hosts[i], strlen(hosts[i]));
    }
}

static void test_secret_invalid_join_lines_are_refused(void **state)
{
    (void)state;
    char line[SECRET_JOIN_BYTES + 300], host[SECRET_HOST_BYTES], text[SECRET_TEXT_BYTES];
    static const char *const tails[] = {
        "",         "@",     "@a",     "@:1",    "@a:",   "@a:0",  "@a:x",     "@a:1x",
        "@a:65536", "@a:-1", "@a b:1", "@a/b:1", "@a/:1", " @a:1", "@a:123456"};
    const secret s = make();
    secret back;
    uint32_t port;
    pen_error why;
    secret_format(&s, text);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(line, sizeof line, "%s%s", text, tails[i]);
        if (secret_join_parse(line, &back, host, &port, &why) != PEN_BAD_SETTING)
            fail_msg("'%s' was taken", tails[i]);
    }
    snprintf(line, sizeof line, "%s@%0300d:1", text, 0);
    assert_int_equal(secret_join_parse(line, &back, host, &port, &why), PEN_BAD_SETTING);
}

/* ---- files ----------------------------------------------------------------------------------- */

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/secret-test-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *path, const char *text, mode_t mode)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(path, mode), 0);
}

static void test_secret_file_is_its_owners_alone_and_is_never_overwritten(void **state)
{
    (void)state;
    const char *path = in_folder("key");
    const secret s = make(), other = make();
    secret back;
    struct stat st;
    pen_error why;
    const mode_t before = umask(0);
    assert_int_equal(secret_write(path, &s, &why), PEN_OK);
    umask(before);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(secret_write(path, &other, &why), PEN_STORE);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(secret_read(path, &back, &why), PEN_OK);
    assert_memory_equal(s.bytes, back.bytes, SECRET_BYTES);
}

static void test_secret_file_that_others_can_open_is_refused_with_the_remedy(void **state)
{
    (void)state;
    static const mode_t modes[] = {0604, 0602, 0640, 0660, 0644, 0666, 0777};
    const char *path            = in_folder("open");
    char text[SECRET_TEXT_BYTES];
    secret s = make();
    secret_format(&s, text);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        pen_error why;
        put(path, text, modes[i]);
        assert_int_equal(secret_read(path, &s, &why), PEN_BAD_SETTING);
        assert_non_null(strstr(why.text, "chmod 600"));
    }
    put(path, text, 0400);
    assert_int_equal(secret_read(path, &s, NULL), PEN_OK);
}

static void test_secret_file_of_something_else_is_refused_and_named(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "\n",
                                        "pen1:",
                                        "pen2:AAAA",
                                        "hello",
                                        "\x7f"
                                        "ELF"};
    const char *path                 = in_folder("else");
    char line[600];
    secret s;
    pen_error why;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put(path, texts[i], 0600);
        assert_int_equal(secret_read(path, &s, &why), PEN_BAD_SETTING);
        assert_non_null(strstr(why.text, path));
    }
    const secret good = make();
    secret_format(&good, line);
    memset(line + strlen(line), ' ', 400);
    line[500] = '\0';
    put(path, line, 0600);
    assert_int_equal(secret_read(path, &s, &why), PEN_BAD_SETTING);
    assert_int_equal(secret_read(folder, &s, &why), PEN_BAD_SETTING);
    assert_int_equal(secret_read(in_folder("none"), &s, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(why.text, "No such file"));
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void test_secret_keys_depend_on_secret_use_and_index_and_on_nothing_else(void **state)
{
    (void)state;
    enum { KEYS = 4 };
    uint8_t own[KEYS][32], public_key[KEYS][32], again[32], again_public[32];
    const secret a = known(), b = make();
    secret_derive(&a, 1, 0, own[0], public_key[0]);
    secret_derive(&a, 1, 1, own[1], public_key[1]);
    secret_derive(&a, 2, 0, own[2], public_key[2]);
    secret_derive(&b, 1, 0, own[3], public_key[3]);
    for (int i = 0; i < KEYS; i++)
        for (int j = 0; j < i; j++) {
            assert_memory_not_equal(own[i], own[j], 32);
            assert_memory_not_equal(public_key[i], public_key[j], 32);
        }
    secret_derive(&a, 1, 0, again, again_public);
    assert_memory_equal(again, own[0], 32);
    assert_memory_equal(again_public, public_key[0], 32);
}

static void test_secret_print_distinguishes_secrets_and_reveals_none(void **state)
{
    (void)state;
    char a[SECRET_PRINT_BYTES], b[SECRET_PRINT_BYTES];
    const secret one = make(), two = make();
    secret_print(&one, a);
    secret_print(&two, b);
    assert_int_equal(strlen(a), 16);
    assert_string_not_equal(a, b);
    for (int i = 0; i + 4 < SECRET_BYTES; i++) {
        char hex[9];
        snprintf(hex, sizeof hex, "%02x%02x%02x%02x", one.bytes[i], one.bytes[i + 1],
                 one.bytes[i + 2], one.bytes[i + 3]);
        assert_null(strstr(a, hex));
    }
}

static void test_secret_is_gone_when_wiped(void **state)
{
    (void)state;
    static const uint8_t zeros[SECRET_BYTES];
    secret s = make();
    secret_wipe(&s);
    secret_wipe(NULL);
    assert_memory_equal(s.bytes, zeros, SECRET_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_secret_new_ones_differ),
        cmocka_unit_test(test_secret_text_reads_back_and_never_changes),
        cmocka_unit_test(test_secret_typing_errors_are_found_and_not_repeated_in_the_sentence),
        cmocka_unit_test(test_secret_join_line_carries_secret_host_and_port),
        cmocka_unit_test(test_secret_invalid_join_lines_are_refused),
        cmocka_unit_test(test_secret_file_is_its_owners_alone_and_is_never_overwritten),
        cmocka_unit_test(test_secret_file_that_others_can_open_is_refused_with_the_remedy),
        cmocka_unit_test(test_secret_file_of_something_else_is_refused_and_named),
        cmocka_unit_test(test_secret_keys_depend_on_secret_use_and_index_and_on_nothing_else),
        cmocka_unit_test(test_secret_print_distinguishes_secrets_and_reveals_none),
        cmocka_unit_test(test_secret_is_gone_when_wiped),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
