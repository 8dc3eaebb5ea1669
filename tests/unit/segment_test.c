/* segment_test.c - memory that other processes can map. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/system/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MANY = 3000, BIG = 40 << 20 };

static bool is_zero(const unsigned char *data, size_t bytes)
{
    return bytes == 0 || (data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0);
}

static void memory_is_zeroed_and_aligned_also_when_used_again(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 63, 65, 4096, 70000, 3 << 20, BIG};
    for (int round = 0; round < 3; round++) {
        unsigned char *data[8];
        for (int i = 0; i < 8; i++) {
            data[i] = segment_alloc(sizes[i], NULL);
            assert_non_null(data[i]);
            assert_int_equal((uintptr_t)data[i] % 64, 0);
            assert_true(is_zero(data[i], sizes[i]));
            memset(data[i], 0xa5, sizes[i]);
        }
        for (int i = 0; i < 8; i++) segment_free(data[(i * 5 + round) % 8]);
    }
    /* Pages of many small allocations, then of a large one. */
    unsigned char *first = segment_alloc(1, NULL), *small[200];
    for (int i = 0; i < 200; i++) memset(small[i] = segment_alloc(1000, NULL), 0xa5, 1000);
    for (int i = 0; i < 200; i++) segment_free(small[i]);
    unsigned char *large = segment_alloc(150000, NULL);
    assert_true(large > first && large < small[199]); /* where they were */
    assert_true(is_zero(large, 150000));
    segment_free(large);
    segment_free(first);
    segment_free(NULL);
}

static void memory_stays_until_each_owner_has_freed_it(void **state)
{
    (void)state;
    for (size_t bytes = 100; bytes <= BIG; bytes *= 20) {
        unsigned char *data = segment_alloc(bytes, NULL);
        segment_ref ref;
        assert_non_null(data);
        data[bytes - 1] = 7;
        assert_true(segment_is_sole(data));
        assert_true(segment_keep(data + bytes / 2));
        assert_false(segment_is_sole(data));
        assert_true(segment_keep(data));
        assert_true(segment_free(data));
        assert_true(segment_free(data + bytes - 1));
        assert_int_equal(data[bytes - 1], 7);
        assert_true(segment_find(data, bytes, &ref));
        assert_true(segment_free(data));
        assert_false(segment_find(data, bytes, &ref));
        assert_false(segment_free(data));
        assert_false(segment_keep(data));
        assert_false(segment_is_sole(data));
    }
    int other;
    assert_false(segment_keep(&other));
    assert_false(segment_keep(NULL));
}

static void allocations_do_not_overlap_and_share_descriptors(void **state)
{
    (void)state;
    static unsigned char *data[MANY];
    segment_ref ref, first;
    for (int i = 0; i < MANY; i++) {
        data[i] = segment_alloc((size_t)(i % 977) + 8, NULL);
        assert_non_null(data[i]);
        memcpy(data[i], &i, sizeof i);
    }
    assert_true(segment_find(data[0], 8, &first));
    for (int i = 0; i < MANY; i++) {
        int read;
        memcpy(&read, data[i], sizeof read);
        assert_int_equal(read, i);
        assert_true(segment_find(data[i], (size_t)(i % 977) + 8, &ref));
        assert_int_equal(ref.fd, first.fd);
    }
    for (int i = 0; i < MANY; i += 2) segment_free(data[i]);
    for (int i = 0; i < MANY; i += 2) assert_non_null(data[i] = segment_alloc(40, NULL));
    for (int i = 0; i < MANY; i++) segment_free(data[i]);
}

static void only_ranges_within_one_live_allocation_are_found(void **state)
{
    (void)state;
    segment_ref ref;
    unsigned char *data = segment_alloc(100000, NULL), local[8];
    assert_true(segment_find(data + 99, 1000, &ref));
    assert_false(segment_find(data + 99, 200000, &ref));
    assert_false(segment_find(local, 1, &ref));
    unsigned char *keep = segment_alloc(10, NULL);
    segment_free(data);
    assert_false(segment_find(data, 1, &ref));
    segment_free(keep);
}

static void sizes_beyond_memory_are_refused_in_a_sentence(void **state)
{
    (void)state;
    pen_error why;
    assert_null(segment_alloc(SIZE_MAX - 5, &why));
    assert_int_equal(why.status, PEN_NO_MEMORY);
    assert_null(segment_alloc((size_t)1 << 60, &why));
    assert_string_equal(why.text, "no memory for 1152921504606846976 bytes");
}

/* Runs in a child: maps the parent's memory and writes into it. */
static int write_into(const segment_ref *ref, unsigned char value)
{
    void *data, *again;
    pen_error why;
    if (segment_map(ref, 70000, &data, &why) != PEN_OK) return 1;
    if (segment_map(ref, 70000, &again, &why) != PEN_OK || again != data) return 2;
    memset(data, value, 70000);
    segment_unmap(ref);
    segment_unmap(ref);
    segment_unmap_all_of(ref->pid);
    return 0;
}

static int in_child(const segment_ref *ref, unsigned char value)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(write_into(ref, value));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_peer_that_maps_it_writes_where_the_owner_reads(void **state)
{
    (void)state;
    segment_ref ref;
    unsigned char *data = segment_alloc(70000, NULL);
    assert_true(segment_find(data, 70000, &ref));
    assert_int_equal(in_child(&ref, 9), 0);
    assert_int_equal(data[0], 9);
    assert_int_equal(data[69999], 9);
    segment_free(data);
}

static void detached_memory_keeps_its_contents_and_has_no_other_writer(void **state)
{
    (void)state;
    segment_ref ref;
    unsigned char *data = segment_alloc(70000, NULL), *small = segment_alloc(10, NULL);
    memset(data, 3, 70000);
    assert_true(segment_find(data, 70000, &ref));
    assert_true(segment_detach(data + 5000));
    assert_true(segment_detach(data));
    assert_false(segment_detach(small));
    assert_false(segment_detach(&ref));
    assert_int_equal(in_child(&ref, 9), 0);
    assert_int_equal(data[0], 3);
    assert_int_equal(data[69999], 3);
    assert_false(segment_find(data, 1, &ref));
    segment_free(data);
    unsigned char *other = segment_alloc(70000, NULL);
    assert_ptr_not_equal(other, data);
    segment_free(other);
    segment_free(small);
}

static void references_to_freed_or_foreign_memory_are_refused(void **state)
{
    (void)state;
    segment_ref ref;
    void *mapped;
    pen_error why;
    unsigned char *data = segment_alloc_apart(70000, NULL);
    assert_true(segment_find(data, 70000, &ref));
    assert_int_equal(segment_map(&ref, SIZE_MAX, &mapped, &why), PEN_CORRUPT);
    segment_ref wrong = ref;
    wrong.size        = 4096;
    assert_int_equal(segment_map(&wrong, 10, &mapped, &why), PEN_CORRUPT);
    wrong    = ref;
    wrong.id = ref.id + 1;
    assert_int_equal(segment_map(&wrong, 10, &mapped, &why), PEN_UNREACHABLE);
    segment_free(data);
    assert_int_equal(segment_map(&ref, 10, &mapped, &why), PEN_UNREACHABLE);
}

/* An existing view must not be reachable through invented numbers. */
static void a_mapping_that_is_there_serves_only_its_own_reference(void **state)
{
    (void)state;
    segment_ref ref;
    void *view, *mapped;
    pen_error why;
    unsigned char *data = segment_alloc_apart(70000, NULL);
    assert_true(segment_find(data, 70000, &ref));
    assert_int_equal(segment_map(&ref, 70000, &view, &why), PEN_OK);
    segment_ref wrong[] = {ref, ref, ref, ref, ref};
    wrong[0].size       = (uint64_t)1 << 40; /* this offset would be within this size */
    wrong[0].offset     = (uint64_t)1 << 39;
    wrong[1].size += 4096;
    wrong[2].fd++;
    wrong[3].pid    = getppid();
    wrong[4].offset = ref.size - 8;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_not_equal(segment_map(&wrong[i], 9, &mapped, &why), PEN_OK);
    assert_int_equal(segment_map(&wrong[4], 8, &mapped, &why), PEN_OK);
    assert_ptr_equal(mapped, (unsigned char *)view + ref.size - 8);
    segment_unmap(&wrong[4]);
    segment_unmap(&ref);
    segment_unmap_all_of(getpid());
    segment_free(data);
}

/* Named as a segment is, as another process could name it; {0} if there is none. */
static segment_ref look_alike(const char *before, uint64_t id, int seals)
{
    char text[64];
    snprintf(text, sizeof text, "%spenstock-%016llx", before, (unsigned long long)id);
    const int fd = memfd_create(text, MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, 8192) != 0) return (segment_ref){0};
    if (seals != 0 && fcntl(fd, F_ADD_SEALS, seals) != 0) return (segment_ref){0};
    return (segment_ref){.id = id, .size = 8192, .pid = getpid(), .fd = fd};
}

static void memory_that_could_shrink_or_has_another_name_is_refused(void **state)
{
    (void)state;
    void *mapped;
    pen_error why;
    segment_ref shrinks = look_alike("", 77, F_SEAL_GROW);
    segment_ref good    = look_alike("", 77, F_SEAL_SHRINK);
    segment_ref other   = look_alike("my-", 77, F_SEAL_SHRINK);
    assert_int_equal(segment_map(&shrinks, 8, &mapped, &why), PEN_CORRUPT);
    assert_int_equal(segment_map(&other, 8, &mapped, &why), PEN_UNREACHABLE);
    assert_int_equal(segment_map(&good, 8192, &mapped, &why), PEN_OK);
    segment_unmap(&good);
    segment_unmap_all_of(getpid());
    close(shrinks.fd);
    close(other.fd);
    close(good.fd);
}

static void bytes_are_read_without_a_mapping_and_with_its_checks(void **state)
{
    (void)state;
    segment_ref ref;
    pen_error why;
    char read[8]        = "";
    unsigned char *data = segment_alloc_apart(70000, NULL);
    memcpy(data + 500, "a number", sizeof read);
    assert_true(segment_find(data + 500, 8, &ref));
    assert_int_equal(segment_read(&ref, read, sizeof read, &why), PEN_OK);
    assert_memory_equal(read, "a number", sizeof read);
    segment_ref outside = ref, short_one = ref, unknown = ref;
    segment_ref shrinks = look_alike("", 77, F_SEAL_GROW),
                other   = look_alike("my-", 77, F_SEAL_SHRINK);
    outside.offset      = ref.size - 7;
    short_one.size      = 4096;
    unknown.id++;
    assert_int_equal(segment_read(&outside, read, sizeof read, &why), PEN_CORRUPT);
    assert_int_equal(segment_read(&short_one, read, sizeof read, &why), PEN_CORRUPT);
    assert_int_equal(segment_read(&shrinks, read, sizeof read, &why), PEN_CORRUPT);
    assert_int_equal(segment_read(&unknown, read, sizeof read, &why), PEN_UNREACHABLE);
    assert_int_equal(segment_read(&other, read, sizeof read, &why), PEN_UNREACHABLE);
    segment_free(data);
    assert_int_equal(segment_read(&ref, read, sizeof read, &why), PEN_UNREACHABLE);
    close(shrinks.fd);
    close(other.fd);
}

static void memory_of_another_user_is_refused(void **state)
{
    (void)state;
    if (geteuid() != 0) skip(); /* only root can change its user */
    int ends[2], stay[2];
    segment_ref ref = {0};
    void *mapped;
    pen_error why;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pipe(stay), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(stay[1]);
        if (setgid(65534) != 0 || setuid(65534) != 0) _exit(1);
        ref = look_alike("", 78, F_SEAL_SHRINK);
        if (write(ends[1], &ref, sizeof ref) != (ssize_t)sizeof ref) _exit(1);
        _exit((int)read(stay[0], &ref, 1)); /* until it is ended */
    }
    close(stay[0]);
    assert_int_equal(read(ends[0], &ref, sizeof ref), sizeof ref);
    assert_int_equal(ref.pid, child);
    assert_int_equal(segment_map(&ref, 8, &mapped, &why), PEN_UNREACHABLE);
    assert_int_equal(segment_read(&ref, &mapped, 8, &why), PEN_UNREACHABLE);
    close(stay[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ends[0]);
    close(ends[1]);
}

static void a_view_outlives_the_owner_until_another_reference_shows_its_end(void **state)
{
    (void)state;
    segment_ref gone, other;
    void *view, *second;
    unsigned char *data = segment_alloc_apart(70000, NULL);
    memset(data, 7, 70000);
    assert_true(segment_find(data, 70000, &gone));
    assert_int_equal(segment_map(&gone, 70000, &view, NULL), PEN_OK);
    segment_free(data);
    assert_int_equal(((unsigned char *)view)[69999], 7);
    segment_unmap(&gone);

    unsigned char *next = segment_alloc_apart(70000, NULL), page;
    assert_true(segment_find(next, 70000, &other));
    assert_int_equal(segment_map(&other, 70000, &second, NULL), PEN_OK);
    if (second != view) assert_int_equal(mincore(view, 4096, &page), -1);
    segment_unmap(&other);
    segment_unmap_all_of(getpid());
    segment_free(next);
}

static void a_forked_child_does_no_harm_to_its_parent(void **state)
{
    (void)state;
    int status;
    segment_ref ref;
    unsigned char *data = segment_alloc(70000, NULL);
    memset(data, 5, 70000);
    pid_t child = fork();
    if (child == 0) {
        unsigned char *own = segment_alloc(70000, NULL);
        const bool apart   = own != NULL && !segment_find(data, 1, &ref);
        if (own != NULL) memset(own, 6, 70000);
        _exit(apart && segment_free(data) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    unsigned char *next = segment_alloc(70000, NULL);
    assert_true(is_zero(next, 70000));
    for (int i = 0; i < 70000; i++) assert_int_equal(data[i], 5);
    segment_free(next);
    segment_free(data);
}

static atomic_bool is_over;

static void *allocate_and_free(void *unused)
{
    (void)unused;
    while (!atomic_load(&is_over)) segment_free(segment_alloc(100, NULL));
    return NULL;
}

/* The child's segments are its own, also where the parent's segment has room, and no lock stays held. */
static void a_child_forked_while_others_allocate_has_segments_of_its_own(void **state)
{
    (void)state;
    int status;
    pthread_t other;
    segment_ref of_parent, of_child;
    unsigned char *kept = segment_alloc(100, NULL);
    assert_true(segment_find(kept, 100, &of_parent));
    assert_int_equal(pthread_create(&other, NULL, allocate_and_free, NULL), 0);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            unsigned char *own = segment_alloc(100, NULL);
            const bool is_own  = own != NULL && segment_find(own, 100, &of_child) &&
                                of_child.id != of_parent.id && of_child.pid == getpid();
            segment_free(own);
            _exit(is_own ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    atomic_store(&is_over, true);
    pthread_join(other, NULL);
    segment_free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_and_aligned_also_when_used_again),
        cmocka_unit_test(memory_stays_until_each_owner_has_freed_it),
        cmocka_unit_test(allocations_do_not_overlap_and_share_descriptors),
        cmocka_unit_test(only_ranges_within_one_live_allocation_are_found),
        cmocka_unit_test(sizes_beyond_memory_are_refused_in_a_sentence),
        cmocka_unit_test(a_peer_that_maps_it_writes_where_the_owner_reads),
        cmocka_unit_test(detached_memory_keeps_its_contents_and_has_no_other_writer),
        cmocka_unit_test(references_to_freed_or_foreign_memory_are_refused),
        cmocka_unit_test(a_mapping_that_is_there_serves_only_its_own_reference),
        cmocka_unit_test(memory_that_could_shrink_or_has_another_name_is_refused),
        cmocka_unit_test(bytes_are_read_without_a_mapping_and_with_its_checks),
        cmocka_unit_test(memory_of_another_user_is_refused),
        cmocka_unit_test(a_forked_child_does_no_harm_to_its_parent),
        cmocka_unit_test(a_child_forked_while_others_allocate_has_segments_of_its_own),
        cmocka_unit_test(a_view_outlives_the_owner_until_another_reference_shows_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
