/* offload_test.c - the contract of every store outside memory, for each member of common/offload/. */
#include "common/offload/offload_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { EXTENTS = 12, ROUNDS = 8, STAGING = 3 };

/* Whole pages, parts of pages, one byte more than pages. */
static const size_t sizes[EXTENTS] = {4096,  40000, 4097, 8192,   123456, 65536,
                                      40000, 40000, 4,    300000, 4095,   40000};
static size_t largest(void)
{
    size_t most = 0;
    for (int i = 0; i < EXTENTS; i++)
        if (sizes[i] > most) most = sizes[i];
    return most;
}

static char folder[64];
static stat_set stats;

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "./tier-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder); /* fails if anything was left in it */
}

static offload *open_with(const offload_ops *ops, uint64_t staging)
{
    pen_error why = {0};
    offload *t    = NULL;
    memset(&stats, 0, sizeof stats);
    const offload_options o = {
        .ops = ops, .dir = folder, .staging_bytes_max = staging, .stats = &stats};
    const pen_status status = offload_open(&o, &t, &why);
    if (status != PEN_OK) fail_msg("%s: %s", ops->name, why.text);
    for (uint32_t i = 0; i < EXTENTS; i++) assert_int_equal(offload_add(t, sizes[i]), i);
    assert_int_equal(offload_reserve(t, &why), PEN_OK);
    return t;
}

/* The most bytes of buffers at one time; bytes of the member that are in use or free again. */
static uint64_t staging_most(offload *t)
{
    pthread_mutex_lock(&t->lock);
    const uint64_t most = t->staging_most;
    pthread_mutex_unlock(&t->lock);
    return most;
}

static uint64_t room_of(offload *t)
{
    pthread_mutex_lock(&t->lock);
    const uint64_t room = t->end;
    pthread_mutex_unlock(&t->lock);
    return room;
}

static unsigned char byte_of(uint32_t extent, int version, size_t i)
{
    return version == 0 ? 0 : (unsigned char)(extent * 31 + (unsigned)version * 17 + i * 7 + 1);
}

static void fill(buf *content, uint32_t extent, int version)
{
    unsigned char *at = content->data;
    for (size_t i = 0; i < content->size; i++) at[i] = byte_of(extent, version, i);
}

static bool is_version(const buf *content, uint32_t extent, int version)
{
    const unsigned char *at = content->data;
    if (content->size != sizes[extent]) return false;
    for (size_t i = 0; i < content->size; i++)
        if (at[i] != byte_of(extent, version, i)) return false;
    return true;
}

static void write_version(offload *t, uint32_t extent, int version)
{
    buf *content = NULL;
    assert_int_equal(offload_load(t, extent, &content, NULL), PEN_OK);
    assert_true(is_version(content, extent, version - 1));
    fill(content, extent, version);
    assert_int_equal(offload_store(t, extent, content, NULL), PEN_OK);
}

static bool has_version(offload *t, uint32_t extent, int version)
{
    buf *content = NULL;
    assert_int_equal(offload_look(t, extent, &content, NULL), PEN_OK);
    const bool is_it = is_version(content, extent, version);
    buf_release(content);
    return is_it;
}

static bool is_held_as(offload_hold *held, uint32_t extent, int version)
{
    buf *content = NULL;
    assert_int_equal(offload_hold_read(held, &content, NULL), PEN_OK);
    const bool is_it = is_version(content, extent, version);
    buf_release(content);
    return is_it;
}

/* ---- the contract of a member ---------------------------------------------------------------- */
static void extents_never_stored_are_zeros(const offload_ops *ops)
{
    offload *t = open_with(ops, UINT64_MAX);
    for (uint32_t i = 0; i < EXTENTS; i++) assert_true(has_version(t, i, 0));
    assert_int_equal(stat_get(&stats, STAT_TIER_READ_BYTES), 0);
    offload_close(t);
}

static void returns_what_was_stored_with_and_without_read_ahead(const offload_ops *ops)
{
    offload *t = open_with(ops, STAGING * largest());
    for (int version = 1; version <= ROUNDS; version++) {
        for (uint32_t i = 0; i < EXTENTS; i++) {
            if (version % 2 == 0 && i + 1 < EXTENTS) offload_prefetch(t, i + 1);
            write_version(t, i, version);
            if (i % 3 == 0) assert_true(has_version(t, i, version)); /* perhaps still in flight */
        }
    }
    for (uint32_t i = EXTENTS; i-- > 0;) assert_true(has_version(t, i, ROUNDS));
    assert_true(staging_most(t) <= STAGING * (largest() + OFFLOAD_ALIGN));
    offload_close(t);
}

static void an_extent_stored_twice_keeps_the_newest(const offload_ops *ops)
{
    offload *t = open_with(ops, UINT64_MAX);
    for (int version = 1; version <= 40; version++) write_version(t, 9, version);
    assert_true(has_version(t, 9, 40));
    offload_close(t);
}

static void overwriting_needs_no_read(const offload_ops *ops)
{
    offload *t   = open_with(ops, UINT64_MAX);
    buf *content = NULL;
    write_version(t, 4, 1);
    offload_prefetch(t, 4);
    assert_int_equal(offload_blank(t, 4, &content, NULL), PEN_OK);
    fill(content, 4, 7);
    assert_int_equal(offload_store(t, 4, content, NULL), PEN_OK);
    assert_true(has_version(t, 4, 7));
    offload_close(t);
}

static void keeps_held_versions_while_later_ones_are_stored(const offload_ops *ops)
{
    offload *t = open_with(ops, STAGING * largest());
    offload_hold *held[2][EXTENTS];
    for (int version = 1; version <= 5; version++)
        for (uint32_t i = 0; i < EXTENTS; i++) {
            if (version == 2 || version == 4) held[version / 2 - 1][i] = offload_hold_take(t, i);
            write_version(t, i, version);
        }
    for (uint32_t i = 0; i < EXTENTS; i++) {
        assert_true(is_held_as(held[0][i], i, 1));
        assert_true(is_held_as(held[1][i], i, 3));
        assert_true(has_version(t, i, 5));
        offload_hold_release(held[0][i]);
    }
    offload_close(t);
    for (uint32_t i = 0; i < EXTENTS; i++) { /* holds outlive their store */
        assert_true(is_held_as(held[1][i], i, 3));
        offload_hold_release(held[1][i]);
    }
}

static void reuses_the_places_of_released_versions(const offload_ops *ops)
{
    offload *t          = open_with(ops, UINT64_MAX);
    const uint64_t once = room_of(t);
    for (int version = 1; version <= 20; version++)
        for (uint32_t i = 0; i < EXTENTS; i++) {
            offload_hold *held = offload_hold_take(t, i);
            write_version(t, i, version);
            assert_true(is_held_as(held, i, version - 1));
            offload_hold_release(held);
        }
    assert_true(room_of(t) <= 2 * once);
    assert_int_equal(stat_get(&stats, STAT_TIER_BYTES), room_of(t));
    offload_close(t);
    assert_int_equal(stat_get(&stats, STAT_TIER_BYTES), 0);
}

static void buffers_outlive_their_store(const offload_ops *ops)
{
    offload *t   = open_with(ops, UINT64_MAX);
    buf *content = NULL;
    write_version(t, 1, 1);
    assert_int_equal(offload_look(t, 1, &content, NULL), PEN_OK);
    offload_prefetch(t, 2);
    offload_close(t);
    assert_true(is_version(content, 1, 1));
    buf_release(content);
}

static void works_with_room_for_one_extent_only(const offload_ops *ops)
{
    offload *t = open_with(ops, 1);
    for (int version = 1; version <= 3; version++)
        for (uint32_t i = 0; i < EXTENTS; i++) {
            offload_prefetch(t, (i + 1) % EXTENTS);
            write_version(t, i, version);
        }
    for (uint32_t i = 0; i < EXTENTS; i++) assert_true(has_version(t, i, 3));
    assert_true(staging_most(t) <= largest() + OFFLOAD_ALIGN);
    offload_close(t);
}

static void every_byte_is_counted(const offload_ops *ops)
{
    offload *t   = open_with(ops, UINT64_MAX);
    uint64_t all = 0;
    for (uint32_t i = 0; i < EXTENTS; i++) {
        write_version(t, i, 1);
        all += (sizes[i] + OFFLOAD_ALIGN - 1) / OFFLOAD_ALIGN * OFFLOAD_ALIGN;
    }
    assert_int_equal(room_of(t), all);
    offload_close(t);
    assert_int_equal(stat_get(&stats, STAT_TIER_WRITE_BYTES), all);
    assert_int_equal(stat_get(&stats, STAT_TIER_READ_BYTES), 0);
}

/* ---- every member ---------------------------------------------------------------------------- */
#define FOR_ALL(name)                                                                              \
    static void test_offload_##name(void **state)                                                  \
    {                                                                                              \
        (void)state;                                                                               \
        for (int i = 0; offload_all[i] != NULL; i++) name(offload_all[i]);                         \
        assert_non_null(offload_all[1]);                                                           \
    }
FOR_ALL(extents_never_stored_are_zeros)
FOR_ALL(returns_what_was_stored_with_and_without_read_ahead)
FOR_ALL(an_extent_stored_twice_keeps_the_newest)
FOR_ALL(overwriting_needs_no_read)
FOR_ALL(keeps_held_versions_while_later_ones_are_stored)
FOR_ALL(reuses_the_places_of_released_versions)
FOR_ALL(buffers_outlive_their_store)
FOR_ALL(works_with_room_for_one_extent_only)
FOR_ALL(every_byte_is_counted)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload_extents_never_stored_are_zeros),
        cmocka_unit_test(test_offload_returns_what_was_stored_with_and_without_read_ahead),
        cmocka_unit_test(test_offload_an_extent_stored_twice_keeps_the_newest),
        cmocka_unit_test(test_offload_overwriting_needs_no_read),
        cmocka_unit_test(test_offload_keeps_held_versions_while_later_ones_are_stored),
        cmocka_unit_test(test_offload_reuses_the_places_of_released_versions),
        cmocka_unit_test(test_offload_buffers_outlive_their_store),
        cmocka_unit_test(test_offload_works_with_room_for_one_extent_only),
        cmocka_unit_test(test_offload_every_byte_is_counted),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
