/* store_test.c - snapshots are whole or not there, and read back onto any cut. */
#include "common/store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 10000 };

static char dir[256];
static float values[N], slots[N], back[N];

static int setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/store-XXXXXX", tmp != NULL ? tmp : "/tmp");
    for (int i = 0; i < N; i++) {
        values[i] = (float)i * 0.5f;
        slots[i]  = -(float)i;
    }
    memset(back, 0, sizeof back);
    return mkdtemp(dir) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static const store_tensor tensors[] = {
    {.name       = "w",
     .elements   = N,
     .slots      = 1,
     .slot_names = {"momentum"},
     .optim      = "sgd lr=0.1 momentum=0.9"},
    {.name = "b", .elements = 3, .slots = 0, .optim = "sgd lr=0.1"},
};

static store_manifest manifest(int64_t step)
{
    return (store_manifest){.step      = step,
                            .applied   = step,
                            .id        = 77 + (uint64_t)step,
                            .job       = "test",
                            .n_tensors = 2,
                            .tensor    = tensors};
}

/* Part `rank` of `parts`: every parts-th range of 1,000 elements of w; b on the first. */
static void write_part(int rank, int parts, int64_t step)
{
    store *s;
    pen_error why    = {0};
    store_manifest m = manifest(step);
    assert_int_equal(store_open(dir, rank, &s, &why), PEN_OK);
    assert_int_equal(store_begin(s, &m, &why), PEN_OK);
    for (int i = rank; i < N / 1000; i += parts) {
        assert_int_equal(
            store_put(s, "w", "param", (uint64_t)i * 1000, 1000, values + i * 1000, &why), PEN_OK);
        assert_int_equal(
            store_put(s, "w", "momentum", (uint64_t)i * 1000, 1000, slots + i * 1000, &why),
            PEN_OK);
    }
    if (rank == 0) assert_int_equal(store_put(s, "b", "param", 0, 3, values, &why), PEN_OK);
    assert_int_equal(store_put_blob(s, "counters", &rank, sizeof rank, &why), PEN_OK);
    assert_int_equal(store_commit(s, &why), PEN_OK);
    store_close(s);
}

static void test_store_reads_back_any_element_range_from_several_parts(void **state)
{
    (void)state;
    store_reader *r;
    pen_error why = {0};
    write_part(0, 3, 40);
    write_part(1, 3, 40);
    write_part(2, 3, 40);
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_read(r, 40, "w", "param", 777, 5432, back, &why), PEN_OK);
    assert_memory_equal(back, values + 777, 5432 * sizeof *back);
    assert_int_equal(store_read(r, 40, "w", "momentum", 0, N, back, &why), PEN_OK);
    assert_memory_equal(back, slots, sizeof back);
    assert_int_equal(store_verify(r, 40, &why), PEN_OK);
    store_reader_close(r);
}

static void test_store_counts_a_snapshot_complete_only_with_all_its_parts(void **state)
{
    (void)state;
    store_reader *r;
    pen_error why = {0};
    int64_t steps[4];
    write_part(0, 2, 40);
    write_part(1, 2, 40);
    write_part(0, 2, 80); /* the other server died first */
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_reader_steps(r, steps, 4), 1);
    assert_int_equal(steps[0], 40);
    assert_int_equal(store_read(r, 80, "w", "param", 0, 1, back, &why), PEN_NOT_FOUND);
    assert_non_null(strstr(why.text, "no complete snapshot of step 80"));
    store_reader_close(r);
}

static void test_store_manifest_comes_back_as_it_was(void **state)
{
    (void)state;
    store_reader *r;
    pen_error why = {0};
    const store_manifest *m;
    write_part(0, 1, 12);
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_reader_manifest(r, 12, &m, &why), PEN_OK);
    assert_int_equal(m->n_tensors, 2);
    assert_string_equal(m->job, "test");
    assert_string_equal(m->tensor[0].name, "w");
    assert_string_equal(m->tensor[0].slot_names[0], "momentum");
    assert_string_equal(m->tensor[1].optim, "sgd lr=0.1");
    assert_int_equal(m->applied, 12);
    store_reader_close(r);
}

static void test_store_aborted_part_leaves_the_older_snapshot(void **state)
{
    (void)state;
    store *s;
    store_reader *r;
    pen_error why    = {0};
    store_manifest m = manifest(20);
    write_part(0, 1, 10);
    assert_int_equal(store_open(dir, 0, &s, &why), PEN_OK);
    assert_int_equal(store_begin(s, &m, &why), PEN_OK);
    assert_int_equal(store_put(s, "w", "param", 0, 1000, values, &why), PEN_OK);
    store_abort(s);
    store_close(s);
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_reader_steps(r, NULL, 0), 1);
    assert_int_equal(store_verify(r, 10, &why), PEN_OK);
    store_reader_close(r);
}

static void test_store_forgets_older_snapshots_only(void **state)
{
    (void)state;
    store *s;
    store_reader *r;
    pen_error why = {0};
    int64_t steps[4];
    for (int step = 10; step <= 40; step += 10) write_part(0, 1, step);
    assert_int_equal(store_open(dir, 0, &s, &why), PEN_OK);
    assert_int_equal(store_forget_before(s, 30, &why), PEN_OK);
    store_close(s);
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_reader_steps(r, steps, 4), 2);
    assert_int_equal(steps[0], 30);
    assert_int_equal(steps[1], 40);
    store_reader_close(r);
}

static void test_store_refuses_a_second_server_on_the_same_part(void **state)
{
    (void)state;
    store *a, *b;
    pen_error why = {0};
    assert_int_equal(store_open(dir, 0, &a, &why), PEN_OK);
    assert_int_equal(store_open(dir, 0, &b, &why), PEN_STORE);
    assert_non_null(strstr(why.text, "is in use by another server"));
    store_close(a);
}

static void test_store_names_the_file_when_it_is_truncated(void **state)
{
    (void)state;
    char file[300];
    store_reader *r;
    pen_error why = {0};
    struct stat st;
    write_part(0, 1, 10);
    snprintf(file, sizeof file, "%s/part-0/data.mdb", dir);
    assert_int_equal(stat(file, &st), 0);
    const off_t sizes[] = {st.st_size / 2, 8192, 5000, 4096, 100, 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(truncate(file, sizes[i]), 0);
        assert_int_equal(store_reader_open(dir, &r, &why), PEN_CORRUPT);
        assert_non_null(strstr(why.text, "part-0/data.mdb"));
    }
}

static void test_store_finds_a_flipped_bit_in_the_values(void **state)
{
    (void)state;
    char file[300];
    store_reader *r;
    pen_error why = {0};
    write_part(0, 1, 10);
    snprintf(file, sizeof file, "%s/part-0/data.mdb", dir);
    FILE *f = fopen(file, "r+b");
    assert_non_null(f);
    /* Find the stored floats of elements 500.. by their bytes, and flip one bit of them. */
    static char bytes[1 << 20];
    size_t size = fread(bytes, 1, sizeof bytes, f);
    char *at    = memmem(bytes, size, values + 500, 64);
    assert_non_null(at);
    fseek(f, at - bytes, SEEK_SET);
    fputc(*at ^ 1, f);
    fclose(f);
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_read(r, 10, "w", "param", 500, 10, back, &why), PEN_CORRUPT);
    assert_non_null(strstr(why.text, "checksum of 'w'"));
    assert_int_equal(store_verify(r, 10, &why), PEN_CORRUPT);
    store_reader_close(r);
}

static void test_store_folder_that_cannot_be_made_is_named(void **state)
{
    (void)state;
    store *s;
    pen_error why = {0};
    assert_int_equal(store_open("/proc/no/such", 0, &s, &why), PEN_STORE);
    assert_non_null(strstr(why.text, "/proc/no/such"));
    store_reader *r;
    assert_int_equal(store_reader_open("/no/such/folder", &r, &why),
                     PEN_OK); /* empty, not an error */
    assert_int_equal(store_reader_steps(r, NULL, 0), 0);
    store_reader_close(r);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_store_reads_back_any_element_range_from_several_parts),
        TEST(test_store_counts_a_snapshot_complete_only_with_all_its_parts),
        TEST(test_store_manifest_comes_back_as_it_was),
        TEST(test_store_aborted_part_leaves_the_older_snapshot),
        TEST(test_store_forgets_older_snapshots_only),
        TEST(test_store_refuses_a_second_server_on_the_same_part),
        TEST(test_store_names_the_file_when_it_is_truncated),
        TEST(test_store_finds_a_flipped_bit_in_the_values),
        TEST(test_store_folder_that_cannot_be_made_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
