/* offload_test.c - a full, damaged or failing disk: one sentence each, and held values stay whole. */
#include "common/base/why.h"
#include "common/offload/offload.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { BYTES = 64 << 10, EXTENTS = 4 };

static char folder[64];
static stat_set stats;

static int make_folder(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    snprintf(folder, sizeof folder, "./tier-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static pen_status open_at(const offload_ops *ops, const char *dir, offload **t, pen_error *why)
{
    const offload_options o = {
        .ops = ops, .dir = dir, .staging_bytes_max = UINT64_MAX, .stats = &stats};
    const pen_status status = offload_open(&o, t, why);
    for (uint32_t i = 0; status == PEN_OK && i < EXTENTS; i++)
        assert_int_equal(offload_add(*t, BYTES), i);
    return status;
}

static offload *start(const offload_ops *ops)
{
    offload *t = NULL;
    pen_error why;
    assert_int_equal(open_at(ops, folder, &t, &why), PEN_OK);
    assert_int_equal(offload_reserve(t, &why), PEN_OK);
    return t;
}

static pen_status put(offload *t, uint32_t extent, unsigned char value, pen_error *why)
{
    buf *content            = NULL;
    const pen_status status = offload_blank(t, extent, &content, why);
    if (status != PEN_OK) return status;
    memset(content->data, value, BYTES);
    return offload_store(t, extent, content, why);
}

/* 256: cannot be read. */
static int get(offload *t, uint32_t extent, pen_error *why)
{
    buf *content = NULL;
    if (offload_look(t, extent, &content, why) != PEN_OK) return 256;
    const int value = ((unsigned char *)content->data)[BYTES - 1];
    buf_release(content);
    return value;
}

static int get_held(offload_hold *held, pen_error *why)
{
    buf *content = NULL;
    if (offload_hold_read(held, &content, why) != PEN_OK) return 256;
    const int value = ((unsigned char *)content->data)[0];
    buf_release(content);
    return value;
}

/* Waits until no operation is in flight: reading a held version waits for its write. */
static void settle(offload *t, uint32_t extent)
{
    pen_error why;
    offload_hold *held = offload_hold_take(t, extent);
    (void)get_held(held, &why);
    offload_hold_release(held);
}

static void expect_sentence(const pen_error *why, pen_status status, const char *first,
                            const char *second)
{
    assert_int_equal(why->status, status);
    if (strstr(why->text, first) == NULL || strstr(why->text, second) == NULL)
        fail_msg("'%s' says neither '%s' nor '%s'", why->text, first, second);
}

/* ---- a member that fails on command ---------------------------------------------------------- */
static bool refuses_to_grow, refuses_to_write;

static pen_status grow(void *state, uint64_t bytes, pen_error *why)
{
    if (refuses_to_grow) return why_set(why, PEN_STORE, "the disk of %s is full", folder);
    return offload_find("file")->grow(state, bytes, why);
}

static pen_status write_some(void *state, uint64_t at, const void *from, size_t n, pen_error *why)
{
    if (refuses_to_write) return why_set(why, PEN_STORE, "the disk of %s is broken", folder);
    return offload_find("file")->write(state, at, from, n, why);
}

static offload *start_frail(void)
{
    static offload_ops frail;
    refuses_to_grow = refuses_to_write = false;
    frail                              = *offload_find("file");
    frail.grow                         = grow;
    frail.write                        = write_some;
    return start(&frail);
}

/* ---- tests ----------------------------------------------------------------------------------- */
static void test_offload_names_a_folder_that_cannot_be_created(void **state)
{
    (void)state;
    offload *t = NULL;
    pen_error why;
    assert_int_equal(open_at(offload_find("file"), "/proc/no/such", &t, &why), PEN_STORE);
    expect_sentence(&why, PEN_STORE, "/proc/no/such", "offload_path");
}

static void test_offload_makes_its_folder_and_leaves_no_name_in_it(void **state)
{
    (void)state;
    char inner[96];
    offload *t = NULL;
    pen_error why;
    snprintf(inner, sizeof inner, "%s/inner", folder);
    assert_int_equal(open_at(offload_find("file"), inner, &t, &why), PEN_OK);
    assert_int_equal(offload_reserve(t, &why), PEN_OK);
    assert_int_equal(rmdir(inner), 0); /* the folder is empty although the store is open */
    assert_int_equal(put(t, 0, 9, &why), PEN_OK);
    assert_int_equal(get(t, 0, &why), 9);
    offload_close(t);
}

static void test_offload_reports_how_much_room_is_missing(void **state)
{
    (void)state;
    struct rlimit before;
    offload *t = NULL;
    pen_error why;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(open_at(offload_find("file"), folder, &t, &why), PEN_OK);
    const struct rlimit small = {.rlim_cur = BYTES, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const pen_status status = offload_reserve(t, &why);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, PEN_STORE);
    expect_sentence(&why, PEN_STORE, folder, "offload_path");
    offload_close(t);
}

/* The file has no name; its descriptor does. */
static int descriptor_of_the_file(void)
{
    char link[300], path[512];
    DIR *all  = opendir("/proc/self/fd");
    int found = -1;
    for (const struct dirent *e; all != NULL && (e = readdir(all)) != NULL;) {
        snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
        const ssize_t n = readlink(link, path, sizeof path - 1);
        if (n > 0 && (path[n] = '\0', strstr(path, folder + 2) != NULL)) found = atoi(e->d_name);
    }
    closedir(all);
    return found;
}

static void damage(uint64_t at)
{
    char link[64], byte;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor_of_the_file());
    const int fd = open(link, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static void test_offload_finds_one_bit_that_changed_on_the_disk(void **state)
{
    (void)state;
    pen_error why;
    offload *t = start(offload_find("file"));
    for (uint32_t i = 0; i < EXTENTS; i++)
        assert_int_equal(put(t, i, (unsigned char)(i + 1), &why), PEN_OK);
    for (uint32_t i = 0; i < EXTENTS; i++) settle(t, i);
    damage(2 * BYTES + 17);
    assert_int_equal(get(t, 1, &why), 2);
    assert_int_equal(get(t, 3, &why), 4);
    assert_int_equal(get(t, 2, &why), 256);
    expect_sentence(&why, PEN_CORRUPT, folder, "differs from what was written");
    offload_prefetch(t, 2); /* reading ahead finds it as well */
    assert_int_equal(get(t, 2, &why), 256);
    offload_close(t);
}

static void
test_offload_without_room_for_a_second_version_keeps_the_new_one_and_says_so_to_who_holds_the_old(
    void **state)
{
    (void)state;
    pen_error why;
    offload *t = start_frail();
    assert_int_equal(put(t, 0, 1, &why), PEN_OK);
    offload_hold *first = offload_hold_take(t, 0);
    assert_int_equal(put(t, 0, 2, &why), PEN_OK);
    offload_hold *second = offload_hold_take(t, 0);
    refuses_to_grow      = true;
    assert_int_equal(put(t, 0, 3, &why), PEN_OK);
    assert_int_equal(put(t, 0, 4, &why), PEN_OK);
    assert_int_equal(get(t, 0, &why), 4);
    assert_int_equal(get_held(first, &why), 1);
    assert_int_equal(get_held(second, &why), 256);
    expect_sentence(&why, PEN_STORE, "is lost", "is full");
    offload_hold_release(second);
    offload_hold_release(first);
    offload_hold *third = offload_hold_take(t, 0); /* the first one's place is free again */
    assert_int_equal(put(t, 0, 5, &why), PEN_OK);
    assert_int_equal(get_held(third, &why), 4);
    assert_int_equal(get(t, 0, &why), 5);
    offload_hold_release(third);
    offload_close(t);
}

static void test_offload_reports_a_failed_write_from_then_on_and_keeps_held_versions(void **state)
{
    (void)state;
    pen_error why;
    offload *t = start_frail();
    assert_int_equal(put(t, 0, 1, &why), PEN_OK);
    settle(t, 0);
    offload_hold *held = offload_hold_take(t, 0);
    refuses_to_write   = true;
    assert_int_equal(put(t, 0, 2, &why), PEN_OK); /* it is not written yet */
    offload_hold *never = offload_hold_take(t, 0);
    assert_int_equal(get_held(never, &why), 256);
    expect_sentence(&why, PEN_STORE, "is lost", "is broken");
    assert_int_equal(put(t, 1, 1, &why), PEN_STORE);
    assert_int_equal(get(t, 0, &why), 256);
    expect_sentence(&why, PEN_STORE, folder, "is broken");
    assert_int_equal(get_held(held, &why), 1);
    offload_hold_release(never);
    offload_hold_release(held);
    offload_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload_names_a_folder_that_cannot_be_created),
        cmocka_unit_test(test_offload_makes_its_folder_and_leaves_no_name_in_it),
        cmocka_unit_test(test_offload_reports_how_much_room_is_missing),
        cmocka_unit_test(test_offload_finds_one_bit_that_changed_on_the_disk),
        cmocka_unit_test(
            test_offload_without_room_for_a_second_version_keeps_the_new_one_and_says_so_to_who_holds_the_old),
        cmocka_unit_test(test_offload_reports_a_failed_write_from_then_on_and_keeps_held_versions),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
