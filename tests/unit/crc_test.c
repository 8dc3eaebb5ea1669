/* crc_test.c - CRC32C against published values and its definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/crc.h"

#include <string.h>
#include <sys/mman.h>

/* The definition: reflected polynomial 0x82f63b78, one bit at a time. */
static uint32_t by_the_bit(const unsigned char *data, size_t size)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* RFC 3720, appendix B.4, and the usual check value. */
static void test_crc_gives_the_published_values(void **state)
{
    (void)state;
    unsigned char bytes[32];
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u);
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    assert_int_equal(crc32c(0, bytes, sizeof bytes), 0x46dd794eu);
}

static void test_crc_of_nothing_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(crc32c(0, NULL, 0), 0);
    assert_int_equal(crc32c(0x12345678u, "", 0), 0x12345678u);
}

static void test_crc_agrees_with_its_definition_at_every_length_and_alignment(void **state)
{
    (void)state;
    unsigned char bytes[1024 + 16];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * i * 31 + i * 7 + 3);
    for (size_t start = 0; start < 16; start++)
        for (size_t size = 0; size <= 1024; size += size < 70 ? 1 : 53)
            assert_int_equal(crc32c(0, bytes + start, size), by_the_bit(bytes + start, size));
}

static void test_crc_continues_where_it_stopped(void **state)
{
    (void)state;
    const char text[]    = "the quick brown fox jumps over the lazy dog, twice and then once more";
    const uint32_t whole = crc32c(0, text, sizeof text);
    for (size_t capture = 0; capture <= sizeof text; capture++)
        assert_int_equal(crc32c(crc32c(0, text, capture), text + capture, sizeof text - capture),
                         whole);
}

/* More than an int can count.  The pages are only read, so all of them are the one zero page. */
static void test_crc_takes_more_than_two_gibibytes(void **state)
{
    (void)state;
    const size_t size = ((size_t)1 << 31) + 12345;
    const void *zeros =
        mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED) {
        print_message("skipped: no %zu bytes of address space\n", size);
        skip();
    }
    uint32_t in_pieces = 0;
    for (size_t at = 0, piece; at < size; at += piece) {
        piece     = size - at < (1 << 20) ? size - at : 1 << 20;
        in_pieces = crc32c(in_pieces, (const char *)zeros + at, piece);
    }
    assert_int_equal(crc32c(0, zeros, size), in_pieces);
    munmap((void *)zeros, size);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc_gives_the_published_values),
        cmocka_unit_test(test_crc_of_nothing_changes_nothing),
        cmocka_unit_test(test_crc_agrees_with_its_definition_at_every_length_and_alignment),
        cmocka_unit_test(test_crc_continues_where_it_stopped),
        cmocka_unit_test(test_crc_takes_more_than_two_gibibytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
