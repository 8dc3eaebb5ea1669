/* safetensors_test.c - files of named tensors, byte for byte as the format is specified
 * (https://huggingface.co/docs/safetensors, "Format"), and invalid files. */
#include "common/snapshot/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[200], path[256];
static pen_error why;

static int setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/safetensors-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(dir) == NULL) return 1;
    snprintf(path, sizeof path, "%s/file", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static size_t read_file(uint8_t *bytes, size_t room)
{
    FILE *f        = fopen(path, "rb");
    const size_t n = f != NULL ? fread(bytes, 1, room, f) : 0;
    if (f != NULL) fclose(f);
    return n;
}

static void write_file(const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* Three tensors as the specification lays them out: length of the header, header padded with spaces,
 * little-endian values.  f16: 0.5 = 0x3800, -2 = 0xc000; bf16: 1 = 0x3f80, 0.15625 = 0x3e20. */
#define HEADER                                                                                     \
    "{\"__metadata__\":{\"format\":\"pt\"},"                                                       \
    "\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"                   \
    "\"h.0.ln_1.bias\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[8,12]},"                 \
    "\"scale\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[12,14]}}"
static const uint8_t values[] = {0, 0,    0x80, 0x3f, 0,    0,   0x20, 0xc0, /* 1, -2.5 */
                                 0, 0x38, 0,    0xc0, 0x20, 0x3e};

static size_t golden(uint8_t *bytes)
{
    const size_t length = sizeof HEADER - 1, padded = (length + 7) / 8 * 8;
    memset(bytes, 0, 8);
    bytes[0] = (uint8_t)padded;
    bytes[1] = (uint8_t)(padded >> 8);
    memset(bytes + 8, ' ', padded);
    memcpy(bytes + 8, HEADER, length);
    memcpy(bytes + 8 + padded, values, sizeof values);
    return 8 + padded + sizeof values;
}

static const safetensors_row rows[] = {
    {.name = "wte.weight", .ndim = 2, .shape = {2, 1}, .elements = 2},
    {.name = "h.0.ln_1.bias", .dtype = 1, .ndim = 1, .shape = {2}, .elements = 2},
    {.name = "scale", .dtype = 2, .elements = 1}};

static void test_safetensors_written_byte_for_byte_as_specified(void **state)
{
    (void)state;
    static const char *const words[] = {"format", "pt", NULL};
    const float all[]                = {1, -2.5f, 0.5f, -2, 0.15625f};
    uint8_t wanted[600], got[600];
    const size_t n = golden(wanted);
    for (size_t piece = 1; piece <= 5; piece++) { /* a read may continue into the next tensor */
        safetensors_writer *w;
        assert_int_equal(safetensors_create(path, rows, 3, words, &w, &why), PEN_OK);
        assert_int_not_equal(access(path, F_OK), piece == 1 ? 0 : -1);
        for (size_t i = 0; i < 5; i += piece)
            assert_int_equal(safetensors_append(w, all + i, 5 - i < piece ? 5 - i : piece, &why),
                             PEN_OK);
        assert_int_equal(safetensors_finish(w, &why), PEN_OK);
        assert_int_equal(read_file(got, sizeof got), n);
        assert_memory_equal(got, wanted, n);
    }
    assert_int_equal(safetensors_dtype_of(PEN_F32), 0);
    assert_int_equal(safetensors_dtype_of(PEN_F16), 1);
    assert_int_equal(safetensors_dtype_of(PEN_BF16), 2);
    assert_int_equal(safetensors_dtype_of(PEN_I64), 10);
}

static void test_safetensors_of_the_specification_are_read_back(void **state)
{
    (void)state;
    uint8_t bytes[600];
    float back[2];
    size_t n;
    safetensors_reader *r;
    write_file(bytes, golden(bytes));
    assert_int_equal(safetensors_open(path, &r, &why), PEN_OK);
    const safetensors_row *found = safetensors_rows(r, &n);
    assert_int_equal(n, 3);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(found[i].name, rows[i].name);
        assert_int_equal(found[i].dtype, rows[i].dtype);
        assert_int_equal(found[i].elements, rows[i].elements);
    }
    assert_int_equal(safetensors_read(r, &found[0], 1, 1, back, &why), PEN_OK);
    assert_true(back[0] == -2.5f);
    assert_int_equal(safetensors_read(r, &found[1], 0, 2, back, &why), PEN_OK);
    assert_true(back[0] == 0.5f && back[1] == -2);
    assert_int_equal(safetensors_read(r, &found[2], 0, 1, back, &why), PEN_OK);
    assert_true(back[0] == 0.15625f);
    safetensors_close(r);
}

static void test_safetensors_truncated_anywhere_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[600];
    const size_t n = golden(bytes);
    for (size_t capture = 0; capture < n; capture++) {
        safetensors_reader *r;
        write_file(bytes, capture);
        assert_int_equal(safetensors_open(path, &r, &why), PEN_CORRUPT);
    }
}

static pen_status give(void *user, size_t row, uint64_t start, size_t count, float *to,
                       pen_error *error)
{
    const size_t *fails_at = user;
    (void)error;
    for (size_t i = 0; i < count; i++) to[i] = (float)(row * 10 + start + i);
    if (row == *fails_at) {
        error->status = PEN_CORRUPT;
        return PEN_CORRUPT;
    }
    return PEN_OK;
}

static void test_safetensors_that_fail_midway_leave_the_old_file(void **state)
{
    (void)state;
    static const char *const words[] = {NULL};
    uint8_t before[]                 = "before", got[600];
    size_t fails_at                  = 2;
    write_file(before, sizeof before);
    assert_int_equal(safetensors_write(path, rows, 3, words, give, &fails_at, &why), PEN_CORRUPT);
    assert_int_equal(read_file(got, sizeof got), sizeof before);
    assert_memory_equal(got, before, sizeof before);
    snprintf(path, sizeof path, "%s/file.making", dir);
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/file", dir);
    fails_at = 3;
    assert_int_equal(safetensors_write(path, rows, 3, words, give, &fails_at, &why), PEN_OK);
    assert_true(read_file(got, sizeof got) > sizeof before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_safetensors_written_byte_for_byte_as_specified, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_safetensors_of_the_specification_are_read_back, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_safetensors_truncated_anywhere_are_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_safetensors_that_fail_midway_leave_the_old_file, setup,
                                        teardown),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
