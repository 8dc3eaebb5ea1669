/* fashion_data_test.c - the idx reader of fashion_mnist on good, hostile and missing files. */
#include "data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { SAMPLES = 3, IMAGES_BYTES = 16 + SAMPLES * DATA_PIXELS, LABELS_BYTES = 8 + SAMPLES };

typedef struct {
    char dir[64];
    uint8_t images[IMAGES_BYTES], labels[LABELS_BYTES];
} fixture;

static void put32(uint8_t *at, uint32_t x)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(x >> (24 - 8 * i));
}

/* Three good samples: pixel p of sample i is i + p, its label i + 1. */
static void make_good(fixture *f)
{
    put32(f->images, 0x803);
    put32(f->images + 4, SAMPLES);
    put32(f->images + 8, DATA_SIDE);
    put32(f->images + 12, DATA_SIDE);
    put32(f->labels, 0x801);
    put32(f->labels + 4, SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        for (int p = 0; p < DATA_PIXELS; p++)
            f->images[16 + i * DATA_PIXELS + p] = (uint8_t)(i + p);
        f->labels[8 + i] = (uint8_t)(i + 1);
    }
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    *state     = f;
    if (!f) return -1;
    strcpy(f->dir, "/tmp/fashion_data_test.XXXXXX");
    make_good(f);
    return mkdtemp(f->dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    fixture *f               = *state;
    const char *const ends[] = {"images-idx3-ubyte", "labels-idx1-ubyte", "images-idx3-ubyte.gz",
                                "labels-idx1-ubyte.gz"};
    char path[128];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/train-%s", f->dir, ends[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f);
    return 0;
}

static void put_file(const fixture *f, const char *kind, const uint8_t *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/train-%s-ubyte", f->dir, kind);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
}

static void put_zipped(const fixture *f, const char *kind, const uint8_t *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/train-%s-ubyte.gz", f->dir, kind);
    gzFile out = gzopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(gzwrite(out, bytes, (unsigned)n), n);
    assert_int_equal(gzclose(out), Z_OK);
}

static void assert_good(const fixture *f)
{
    data_set set;
    char why[DATA_WHY_BYTES] = "";
    if (!data_load(&set, f->dir, "train", why)) fail_msg("%s", why);
    assert_int_equal(set.n, SAMPLES);
    assert_memory_equal(set.images, f->images + 16, SAMPLES * DATA_PIXELS);
    assert_memory_equal(set.labels, f->labels + 8, SAMPLES);
    data_free(&set);
}

/* The files must be refused with a sentence that contains `part`, and leave nothing behind. */
static void assert_refused(const fixture *f, const char *part)
{
    data_set set;
    char why[DATA_WHY_BYTES] = "";
    assert_false(data_load(&set, f->dir, "train", why));
    if (!strstr(why, part)) fail_msg("'%s' does not say '%s'", why, part);
    assert_null(set.images);
    assert_null(set.labels);
}

static void test_data_reads_plain_files(void **state)
{
    const fixture *f = *state;
    put_file(f, "images-idx3", f->images, IMAGES_BYTES);
    put_file(f, "labels-idx1", f->labels, LABELS_BYTES);
    assert_good(f);
}

static void test_data_reads_compressed_files(void **state)
{
    const fixture *f = *state;
    put_zipped(f, "images-idx3", f->images, IMAGES_BYTES);
    put_zipped(f, "labels-idx1", f->labels, LABELS_BYTES);
    assert_good(f);
}

static void test_data_names_package_and_flag_when_files_are_missing(void **state)
{
    assert_refused(*state, "install the Debian package dataset-fashion-mnist or give --data DIR");
}

static void test_data_refuses_files_cut_at_any_byte(void **state)
{
    const fixture *f = *state;
    put_file(f, "labels-idx1", f->labels, LABELS_BYTES);
    for (size_t n = 0; n < IMAGES_BYTES; n += n < 20 ? 1 : 601) {
        put_file(f, "images-idx3", f->images, n);
        assert_refused(f, "is cut short");
    }
    put_file(f, "images-idx3", f->images, IMAGES_BYTES);
    for (size_t n = 0; n < LABELS_BYTES; n++) {
        put_file(f, "labels-idx1", f->labels, n);
        assert_refused(f, "is cut short");
    }
}

static void test_data_refuses_a_damaged_compressed_file(void **state)
{
    const fixture *f = *state;
    char path[128];
    put_zipped(f, "images-idx3", f->images, IMAGES_BYTES);
    put_zipped(f, "labels-idx1", f->labels, LABELS_BYTES);
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte.gz", f->dir);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, 40, SEEK_SET);
    for (int i = 0; i < 64; i++) fputc(0xff, file);
    fclose(file);
    assert_refused(f, "cannot read");
}

static void test_data_refuses_another_type_or_number_of_dimensions(void **state)
{
    fixture *f = *state;
    put_file(f, "labels-idx1", f->labels, LABELS_BYTES);
    const uint32_t magics[] = {0x801, 0xd03, 0x01000803, 0xffffffff};
    for (int i = 0; i < 4; i++) {
        put32(f->images, magics[i]);
        put_file(f, "images-idx3", f->images, IMAGES_BYTES);
        assert_refused(f, "is not an idx file of bytes with 3 dimensions");
    }
}

static void test_data_refuses_absurd_counts_before_allocating(void **state)
{
    fixture *f = *state;
    put_file(f, "labels-idx1", f->labels, LABELS_BYTES);
    const uint32_t counts[] = {0, DATA_SAMPLES_MAX + 1, 0x80000000, 0xffffffff};
    for (int i = 0; i < 4; i++) {
        put32(f->images + 4, counts[i]);
        put_file(f, "images-idx3", f->images, IMAGES_BYTES);
        assert_refused(f, "are accepted");
    }
}

static void test_data_refuses_other_image_sizes(void **state)
{
    fixture *f = *state;
    put_file(f, "labels-idx1", f->labels, LABELS_BYTES);
    put32(f->images + 12, 0xffffffff);
    put_file(f, "images-idx3", f->images, IMAGES_BYTES);
    assert_refused(f, "they must be 28 x 28");
}

static void test_data_refuses_labels_that_do_not_fit(void **state)
{
    fixture *f = *state;
    put_file(f, "images-idx3", f->images, IMAGES_BYTES);
    f->labels[8 + 1] = DATA_CLASSES;
    put_file(f, "labels-idx1", f->labels, LABELS_BYTES);
    assert_refused(f, "label 10 of sample 1");
    put32(f->labels + 4, SAMPLES - 1);
    put_file(f, "labels-idx1", f->labels, LABELS_BYTES);
    assert_refused(f, "2 labels for 3 images");
}

static void test_data_order_is_a_permutation_and_a_function_of_seed_and_epoch(void **state)
{
    (void)state;
    enum { N = 1000 };
    uint32_t a[N], b[N];
    bool seen[N] = {false};
    data_shuffle(a, N, 7, 3);
    data_shuffle(b, N, 7, 3);
    assert_memory_equal(a, b, sizeof a);
    for (int i = 0; i < N; i++) {
        assert_true(a[i] < N && !seen[a[i]]);
        seen[a[i]] = true;
    }
    data_shuffle(b, N, 7, 4);
    assert_memory_not_equal(a, b, sizeof a);
    data_shuffle(b, N, 8, 3);
    assert_memory_not_equal(a, b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_data_reads_plain_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_data_reads_compressed_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_data_names_package_and_flag_when_files_are_missing,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_data_refuses_files_cut_at_any_byte, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_data_refuses_a_damaged_compressed_file, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_data_refuses_another_type_or_number_of_dimensions,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_data_refuses_absurd_counts_before_allocating, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_data_refuses_other_image_sizes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_data_refuses_labels_that_do_not_fit, set_up,
                                        tear_down),
        cmocka_unit_test(test_data_order_is_a_permutation_and_a_function_of_seed_and_epoch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
