/* store_test.c - a snapshot is complete or absent, and restores onto any partition. */
#include "common/snapshot/store.h"
#include "common/snapshot/store_manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <glob.h>
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

/* Sentences are compared word for word. */
__attribute__((format(printf, 2, 3))) static void is_text(const char *text, const char *format, ...)
{
    char wanted[700];
    va_list args;
    va_start(args, format);
    vsnprintf(wanted, sizeof wanted, format, args);
    va_end(args);
    assert_string_equal(text, wanted);
}

/* The file of a part that has one only. */
static const char *file_of(int rank)
{
    static char path[400];
    glob_t found;
    snprintf(path, sizeof path, "%s/part-%d/*.mdb", dir, rank);
    assert_int_equal(glob(path, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(path, sizeof path, "%s", found.gl_pathv[0]);
    globfree(&found);
    return path;
}

static const store_tensor tensors[] = {
    {.name       = "w",
     .elements   = N,
     .dtype      = PEN_F32,
     .slots      = 1,
     .slot_names = {"momentum"},
     .optim      = "sgd lr=0.1 momentum=0.9"},
    {.name = "b", .elements = 3, .dtype = PEN_F32, .slots = 0, .optim = "sgd lr=0.1"},
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
    uint64_t bytes = 0;
    assert_int_equal(store_verify(r, 40, &bytes, &why), PEN_OK);
    assert_true(bytes > 2 * N * sizeof(float));
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
    is_text(why.text,
            "the snapshot of step 80 in %s is not complete: param of 'w' is missing from element "
            "1000 on; a server did not finish its part",
            dir);
    assert_int_equal(store_reader_trouble(r, &why), PEN_OK);
    assert_int_equal(store_read(r, 90, "w", "param", 0, 1, back, &why), PEN_NOT_FOUND);
    is_text(why.text, "%s has no snapshot of step 90", dir);
    store_reader_close(r);
}

static void test_store_manifest_is_read_back_unchanged(void **state)
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
    assert_int_equal(store_verify(r, 10, NULL, &why), PEN_OK);
    store_reader_close(r);
}

static size_t steps_now(int64_t *steps, size_t cap)
{
    store_reader *r;
    pen_error why = {0};
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    const size_t n = store_reader_steps(r, steps, cap);
    store_reader_close(r);
    return n;
}

static void test_store_deletes_older_snapshots_that_are_not_kept(void **state)
{
    (void)state;
    store *s;
    pen_error why = {0};
    int64_t steps[6];
    for (int step = 10; step <= 50; step += 10) write_part(0, 1, step);
    assert_int_equal(store_open(dir, 0, &s, &why), PEN_OK);
    const int64_t keep[] = {20, 40}; /* 50 is not known to be complete yet */
    assert_int_equal(store_forget(s, keep, 2, &why), PEN_OK);
    store_close(s);
    assert_int_equal(steps_now(steps, 6), 3);
    assert_int_equal(steps[0], 20);
    assert_int_equal(steps[1], 40);
    assert_int_equal(steps[2], 50);
}

static void test_store_without_a_part_of_the_newest_forgets_lower_steps_only(void **state)
{
    (void)state;
    store *s;
    pen_error why = {0};
    int64_t steps[4];
    write_part(0, 1, 10);
    write_part(0, 1, 20);
    write_part(0, 1, 40);
    assert_int_equal(store_open(dir, 0, &s, &why), PEN_OK);
    const int64_t keep[] = {20, 30}; /* its shards were elsewhere at step 30 */
    assert_int_equal(store_forget(s, keep, 2, &why), PEN_OK);
    store_close(s);
    assert_int_equal(steps_now(steps, 4), 2);
    assert_int_equal(steps[0], 20);
    assert_int_equal(steps[1], 40);
}

static void test_store_a_fresh_job_forgets_higher_steps_of_the_one_before(void **state)
{
    (void)state;
    store *s;
    pen_error why = {0};
    int64_t steps[4];
    write_part(0, 1, 100);
    write_part(0, 1, 120);
    write_part(0, 1, 20); /* of the new job */
    assert_int_equal(store_open(dir, 0, &s, &why), PEN_OK);
    const int64_t keep[] = {20};
    assert_int_equal(store_forget(s, keep, 1, &why), PEN_OK);
    store_close(s);
    assert_int_equal(steps_now(steps, 4), 1);
    assert_int_equal(steps[0], 20);
}

static void test_store_steps_that_never_happened_are_forgotten(void **state)
{
    (void)state;
    store *s;
    pen_error why = {0};
    int64_t steps[4];
    for (int step = 10; step <= 40; step += 10) write_part(0, 1, step);
    assert_int_equal(store_open(dir, 0, &s, &why), PEN_OK);
    assert_int_equal(store_forget_after(s, 20, &why), PEN_OK);
    store_close(s);
    assert_int_equal(steps_now(steps, 4), 2);
    assert_int_equal(steps[1], 20);
}

static void test_store_drops_the_part_of_a_snapshot_that_another_could_not_write(void **state)
{
    (void)state;
    store *s;
    pen_error why = {0};
    int64_t steps[4];
    write_part(0, 1, 10);
    write_part(0, 1, 20);
    assert_int_equal(store_open(dir, 0, &s, &why), PEN_OK);
    assert_int_equal(store_drop(s, 20, 77 + 20, &why), PEN_OK);
    assert_int_equal(store_drop(s, 10, 1234, &why), PEN_OK); /* of another job: not ours */
    store_close(s);
    assert_int_equal(steps_now(steps, 4), 1);
    assert_int_equal(steps[0], 10);
}

static void test_store_deletes_parts_of_removed_servers_too(void **state)
{
    (void)state;
    store *s;
    pen_error why = {0};
    int64_t steps[4];
    for (int rank = 0; rank < 3; rank++) write_part(rank, 3, 10);
    for (int step = 20; step <= 30; step += 10) write_part(0, 1, step);
    const int64_t keep[] = {20, 30};
    assert_int_equal(store_open(dir, 2, &s, &why), PEN_OK); /* in use: skipped */
    assert_int_equal(store_forget_strays(dir, 1, keep, 2, &why), PEN_OK);
    file_of(2);
    store_close(s);
    assert_int_equal(store_forget_strays(dir, 1, keep, 2, &why), PEN_OK);
    char pattern[300];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/part-[12]/*.mdb", dir);
    assert_int_equal(glob(pattern, 0, NULL, &found), GLOB_NOMATCH);
    assert_int_equal(steps_now(steps, 4), 2);
}

static void test_store_of_two_snapshots_of_one_step_the_later_counts(void **state)
{
    (void)state;
    store *s;
    store_reader *r;
    pen_error why    = {0};
    store_manifest m = manifest(10);
    store_entry list[4];
    write_part(0, 1, 10);
    usleep(2000); /* their times differ */
    m.id = 99;
    memset(values, 0, sizeof values);
    assert_int_equal(store_open(dir, 0, &s, &why), PEN_OK);
    assert_int_equal(store_begin(s, &m, &why), PEN_OK);
    assert_int_equal(store_put(s, "w", "param", 0, N, values, &why), PEN_OK);
    assert_int_equal(store_put(s, "w", "momentum", 0, N, slots, &why), PEN_OK);
    assert_int_equal(store_put(s, "b", "param", 0, 3, values, &why), PEN_OK);
    assert_int_equal(store_commit(s, &why), PEN_OK);
    store_close(s);
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_reader_steps(r, NULL, 0), 1);
    assert_int_equal(store_reader_list(r, list, 4), 2);
    assert_true(list[0].is_superseded && !list[1].is_superseded);
    memset(back, 1, sizeof back);
    assert_int_equal(store_read(r, 10, "w", "param", 0, N, back, &why), PEN_OK);
    assert_memory_equal(back, values, sizeof back);
    store_reader_close(r);
}

static void test_store_is_copied_into_another_and_not_over_a_later_one(void **state)
{
    (void)state;
    char other[300];
    store_reader *r;
    pen_error why = {0};
    int64_t steps[4];
    snprintf(other, sizeof other, "%s/other", dir);
    for (int rank = 0; rank < 3; rank++) write_part(rank, 3, 40);
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_copy(r, 40, other, &why), PEN_OK);
    assert_int_equal(store_copy(r, 40, other, &why), PEN_WRONG_STATE);
    is_text(why.text,
            "%s has a snapshot of step 40 already, and a job would go on from that instead of step "
            "40; give --to an empty folder",
            other);
    store_reader_close(r);
    assert_int_equal(store_reader_open(other, &r, &why), PEN_OK);
    assert_int_equal(store_reader_steps(r, steps, 4), 1);
    assert_int_equal(store_verify(r, 40, NULL, &why), PEN_OK);
    assert_int_equal(store_read(r, 40, "w", "momentum", 0, N, back, &why), PEN_OK);
    assert_memory_equal(back, slots, sizeof back);
    store_reader_close(r);
}

static void test_store_of_another_model_is_refused_by_the_first_difference(void **state)
{
    (void)state;
    store_tensor wanted[2];
    pen_error why       = {0};
    store_manifest kept = manifest(10), m = manifest(10);
    kept.job = "mnist";
    m.tensor = wanted;
    memcpy(wanted, tensors, sizeof wanted);
    assert_int_equal(store_compare(&kept, &m, "/s", &why), PEN_OK);
    wanted[1].name = "bias";
    assert_int_equal(store_compare(&kept, &m, "/s", &why), PEN_MISMATCH);
    is_text(why.text,
            "the snapshot of step 10 in /s, of job 'mnist', is of another model: it has no 'bias'");
    wanted[1]          = tensors[1];
    wanted[1].elements = 4;
    assert_int_equal(store_compare(&kept, &m, "/s", &why), PEN_MISMATCH);
    is_text(why.text,
            "the snapshot of step 10 in /s, of job 'mnist', is of another model: 'b' has 3 "
            "elements there and 4 here");
    m.n_tensors = 1;
    assert_int_equal(store_compare(&kept, &m, "/s", &why), PEN_MISMATCH);
    is_text(why.text,
            "the snapshot of step 10 in /s, of job 'mnist', is of another model: it has 'b', "
            "which the program does not register");
    m.n_tensors     = 2;
    wanted[1]       = tensors[1];
    wanted[0].slots = 0;
    wanted[0].optim = "sgd lr=0.1";
    assert_int_equal(store_compare(&kept, &m, "/s", &why), PEN_MISMATCH);
    is_text(why.text,
            "the snapshot of step 10 in /s keeps the state of 'sgd lr=0.1 momentum=0.9' for 'w', "
            "and the job trains it with 'sgd lr=0.1'; train as before, or import exported "
            "parameters");
    kept.is_import = true;
    assert_int_equal(store_compare(&kept, &m, "/s", &why), PEN_OK);
}

static void test_store_refuses_a_second_server_on_the_same_part(void **state)
{
    (void)state;
    store *a, *b;
    pen_error why = {0};
    assert_int_equal(store_open(dir, 0, &a, &why), PEN_OK);
    assert_int_equal(store_open(dir, 0, &b, &why), PEN_STORE);
    is_text(why.text, "%s/part-0 is in use by another server; two jobs cannot share a store", dir);
    store_close(a);
}

static void test_store_names_the_file_when_it_is_truncated(void **state)
{
    (void)state;
    store_reader *r;
    pen_error why = {0};
    struct stat st;
    int64_t steps[2];
    write_part(0, 1, 20);
    const char *file = file_of(0);
    assert_int_equal(stat(file, &st), 0);
    const off_t sizes[] = {st.st_size - 1, st.st_size / 2, 8192, 5000, 4096, 100, 1, 0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(truncate(file, sizes[i]), 0);
        assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
        assert_int_equal(store_reader_steps(r, steps, 2), 0);
        assert_int_equal(store_reader_trouble(r, &why), PEN_CORRUPT);
        if (sizes[i] >= 5000) /* both meta pages are present */
            is_text(why.text, "%s is truncated: %lld bytes of %lld; restore it, or move it away",
                    file, (long long)sizes[i], (long long)st.st_size);
        else
            is_text(why.text, "%s is damaged or no snapshot (it ends too early); move it away",
                    file);
        assert_int_equal(store_verify(r, 20, NULL, &why), PEN_CORRUPT);
        store_reader_close(r);
    }
    write_part(0, 1, 30); /* a damaged file does no harm once there is a later snapshot */
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_reader_trouble(r, &why), PEN_OK);
    store_reader_close(r);
}

/* Flips one bit of the file at `at`, or flips it back. */
static void flip(const char *file, long at, int bit)
{
    FILE *f = fopen(file, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    const int byte = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(byte ^ 1 << bit, f);
    fclose(f);
}

/* The offset of these bytes in the file. */
static long find(const char *file, const void *bytes, size_t size)
{
    static char all[1 << 20];
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    const size_t n = fread(all, 1, sizeof all, f);
    fclose(f);
    const char *at = memmem(all, n, bytes, size);
    assert_non_null(at);
    return at - all;
}

static void test_store_finds_a_flipped_bit_in_every_kind_of_value(void **state)
{
    (void)state;
    store_reader *r;
    pen_error why = {0};
    write_part(0, 1, 10);
    const char *file = file_of(0);
    const struct {
        long at;
        const char *before, *after; /* the file's name stands between them */
    } cases[] = {
        {find(file, values + 500, 64), "the checksum of param of 'w' from element 0 in ",
         " does not match; use an older snapshot"},
        {find(file, slots + 1500, 64), "the checksum of momentum of 'w' from element 1000 in ",
         " does not match; use an older snapshot"},
        {find(file, "counters", 8) + 8 + 8, "the checksum of 'counters' in ",
         " does not match; use an older snapshot"},
        {find(file, "sgd lr=0.1 momentum", 19), "the checksum of the manifest in ",
         " does not match; move it away"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        flip(file, cases[i].at, 3);
        assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
        assert_int_equal(store_verify(r, 10, NULL, &why), PEN_CORRUPT);
        is_text(why.text, "%s%s%s", cases[i].before, file, cases[i].after);
        store_reader_close(r);
        flip(file, cases[i].at, 3);
    }
    assert_int_equal(store_reader_open(dir, &r, &why), PEN_OK);
    assert_int_equal(store_verify(r, 10, NULL, &why), PEN_OK);
    store_reader_close(r);
}

/* Bits of the pages that LMDB itself reads: no value may end the process. */
static void test_store_a_flipped_bit_anywhere_causes_no_crash_and_no_wrong_value(void **state)
{
    (void)state;
    store_reader *r;
    pen_error why   = {0};
    unsigned long x = 88172645463325252u;
    struct stat st;
    int refused = 0;
    write_part(0, 1, 10);
    char file[400];
    snprintf(file, sizeof file, "%s", file_of(0));
    assert_int_equal(stat(file, &st), 0);
    for (int i = 0; i < 3000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        const long at = i < 2000 ? (long)(x % 12288) : (long)(x % (unsigned long)st.st_size);
        flip(file, at, (int)(x >> 60 & 7));
        if (store_reader_open(dir, &r, &why) == PEN_OK) {
            if (store_verify(r, 10, NULL, &why) == PEN_OK) {
                assert_int_equal(store_read(r, 10, "w", "param", 0, N, back, &why), PEN_OK);
                assert_memory_equal(back, values, sizeof back);
            } else {
                refused++;
                assert_non_null(strstr(why.text, dir));
            }
            store_reader_close(r);
        }
        flip(file, at, (int)(x >> 60 & 7));
    }
    print_message("refused %d of 3000\n", refused);
    assert_true(refused > 500);
}

static void test_store_of_a_later_format_is_refused_by_version(void **state)
{
    (void)state;
    store_manifest *back_again;
    pen_error why    = {0};
    store_manifest m = manifest(10);
    size_t size;
    m.format       = STORE_FORMAT + 1;
    m.version      = "9.1.0";
    uint8_t *bytes = store_manifest_encode(&m, &size);
    assert_non_null(bytes);
    assert_int_equal(
        store_manifest_decode((store_bytes){bytes, size}, "part-0/x.mdb", &back_again, &why),
        PEN_UNSUPPORTED);
    is_text(why.text,
            "part-0/x.mdb is of format 3, written by penstock 9.1.0; this is penstock %d.%d.%d, "
            "which reads format 2; use that version",
            PEN_VERSION_MAJOR, PEN_VERSION_MINOR, PEN_VERSION_PATCH);
    free(bytes);
}

static void test_store_folder_that_cannot_be_created_is_named(void **state)
{
    (void)state;
    store *s;
    pen_error why = {0};
    assert_int_equal(store_open("/proc/no/such", 0, &s, &why), PEN_STORE);
    is_text(why.text,
            "no store: cannot create the folder /proc/no/such: No such file or directory; give "
            "another --store");
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
        TEST(test_store_manifest_is_read_back_unchanged),
        TEST(test_store_aborted_part_leaves_the_older_snapshot),
        TEST(test_store_deletes_older_snapshots_that_are_not_kept),
        TEST(test_store_without_a_part_of_the_newest_forgets_lower_steps_only),
        TEST(test_store_a_fresh_job_forgets_higher_steps_of_the_one_before),
        TEST(test_store_steps_that_never_happened_are_forgotten),
        TEST(test_store_drops_the_part_of_a_snapshot_that_another_could_not_write),
        TEST(test_store_deletes_parts_of_removed_servers_too),
        TEST(test_store_of_two_snapshots_of_one_step_the_later_counts),
        TEST(test_store_is_copied_into_another_and_not_over_a_later_one),
        TEST(test_store_of_another_model_is_refused_by_the_first_difference),
        TEST(test_store_refuses_a_second_server_on_the_same_part),
        TEST(test_store_names_the_file_when_it_is_truncated),
        TEST(test_store_finds_a_flipped_bit_in_every_kind_of_value),
        TEST(test_store_a_flipped_bit_anywhere_causes_no_crash_and_no_wrong_value),
        TEST(test_store_of_a_later_format_is_refused_by_version),
        TEST(test_store_folder_that_cannot_be_created_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
