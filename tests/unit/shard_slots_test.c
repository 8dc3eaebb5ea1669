/* shard_slots_test.c - slots that workers read and set between two steps: copies have them too, a repeat that comes late
 * changes nothing, and no question makes a shard read or write beyond its arrays. */
#include "common/base/crc.h"
#include "proto/rows.h"
#include "server/shard/shard_test.h"
#include "tests/support/copies_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const wire_tensor tensors[] = {
    {.name = "w", .dtype = PEN_F32, .ndim = 2, .shape = {190, 301}, .init = ""},
    {.name = "ice", .dtype = PEN_F32, .ndim = 1, .shape = {50}, .flags = PEN_FROZEN, .init = ""},
};
static const wire_group group = {.name = "a", .optim = "adam lr=0.01", .sync = "bsp"};
static const wire_model model = {.n_tensors = 2, .tensor = tensors, .n_groups = 1, .group = &group};

static copies *start(uint32_t n_backups)
{
    copies *c = copies_create(&model, &(rig_options){.n_shards = 1, .world_size = 2}, n_backups);
    rig_init(c->r);
    return c;
}

static uint64_t numbers_asked;

/* Sends a question of any bytes; the answer is in r->sent. */
static void ask_bytes(rig *r, uint32_t chunk, const void *bytes, size_t size)
{
    const uint64_t seq = UINT64_C(1) << 63 | ++numbers_asked;
    buf *payload       = buf_new(size);
    const uint32_t n   = (uint32_t)size;
    assert_non_null(payload);
    memcpy(payload->data, bytes, size);
    const uint32_t crc = crc32c(0, payload->data, payload->size);
    wire_data d        = {
               .kind = WIRE_PULL, .n = 1, .chunk = &chunk, .seq = &seq, .crc = &crc, .size = &n};
    rig_forget_sent(r);
    rig_deliver(r, 0, 0, &d, payload);
    rig_flush(r);
    buf_release(payload);
}

static void ask(rig *r, uint32_t chunk, slots_call call, float fill)
{
    const uint64_t count = r->plan->chunk[chunk].count;
    const size_t n       = call.what == SLOTS_SET ? count : 0;
    char *bytes          = malloc(sizeof call + n * sizeof(float));
    assert_non_null(bytes);
    memcpy(bytes, &call, sizeof call);
    for (size_t i = 0; i < n; i++) {
        const float x = fill + (float)i;
        memcpy(bytes + sizeof call + i * sizeof x, &x, sizeof x);
    }
    ask_bytes(r, chunk, bytes, sizeof call + n * sizeof(float));
    free(bytes);
}

static float first_of(rig *r, uint32_t chunk, uint32_t array)
{
    float x;
    ask(r, chunk, (slots_call){.what = SLOTS_READ, .array = array}, 0);
    const rig_message *m = rig_find(r, WIRE_VALUES, 0, chunk);
    assert_non_null(m);
    assert_int_equal(m->payload->size, slots_answer_bytes(SLOTS_READ, r->plan->chunk[chunk].count));
    memcpy(&x, m->payload->data, sizeof x);
    return x;
}

static void test_what_is_set_is_read_back_and_copies_have_it(void **state)
{
    (void)state;
    copies *c = start(2);
    rig *r    = c->r;
    rig_decision decision;
    for (uint64_t step = 0; step < 2; step++)
        rig_step(r, step, (int64_t)step, rig_noise, &decision);
    for (uint32_t k = 0; k < r->plan->n_chunks; k++) {
        if (!r->plan->chunk[k].trained) continue;
        for (uint32_t array = 0; array < 3; array++)
            ask(r, k, (slots_call){.what = SLOTS_SET, .array = array, .round = 2},
                1000.f * (float)(1 + array));
        ask(r, k, (slots_call){.what = SLOTS_COUNT, .round = 2, .applied = 41}, 0);
        assert_non_null(rig_find(r, WIRE_VALUES, 0, k));
        for (uint32_t array = 0; array < 3; array++)
            assert_true(first_of(r, k, array) == 1000.f * (float)(1 + array));
    }
    copies_carry(c);
    assert_true(copies_are_equal(c, 0, 1));
    assert_true(copies_are_equal(c, 0, 2));
    copies_kill(c, 0);
    copies_change(c, (copies_how){0});
    rig_step(r, 2, 41, rig_noise, &decision); /* the backup counts from there */
    uint64_t version;
    (void)shard_values(c->at[1], 0, &version);
    assert_int_equal(version, 42);
    assert_int_equal(shard_applied(c->at[1]), 42);
    assert_true(copies_are_equal(c, 1, 2));
    assert_int_equal(r->reports, 0);
    copies_destroy(c);
}

static void test_answers_that_wait_for_a_copy_keep_their_sizes(void **state)
{
    (void)state;
    copies *c  = start(1);
    rig *r     = c->r;
    c->is_held = true;
    ask(r, 0, (slots_call){.what = SLOTS_SET, .array = 1, .round = 0}, 5);
    ask(r, 0, (slots_call){.what = SLOTS_READ, .array = 1}, 0);
    assert_null(rig_find(r, WIRE_VALUES, 0, 0));
    c->is_held = false;
    copies_carry(c);
    assert_int_equal(rig_count_sent(r, WIRE_VALUES, 0), 2);
    for (size_t i = 0; i < r->n_sent; i++) {
        const rig_message *m = &r->sent[i];
        if (m->d.kind == WIRE_VALUES) assert_int_equal(m->d.size[0], m->payload->size);
    }
    copies_destroy(c);
}

static void test_a_set_that_comes_late_changes_nothing(void **state)
{
    (void)state;
    copies *c = start(0);
    rig *r    = c->r;
    rig_decision decision;
    rig_step(r, 0, 0, rig_noise, &decision);
    const slots_call set = {.what = SLOTS_SET, .array = 1, .round = 1};
    ask(r, 0, set, 5);
    ask(r, 0, set, 5); /* a repeat in time */
    assert_non_null(rig_find(r, WIRE_VALUES, 0, 0));
    rig_push(r, 1, 1, 0, 0, rig_noise); /* the step has begun */
    ask(r, 0, set, 7);
    const rig_message *m = rig_find(r, WIRE_REFUSED, 0, 0);
    assert_non_null(m);
    assert_int_equal(m->d.status, PEN_WRONG_STATE);
    assert_true(first_of(r, 0, 1) == 5);
    ask(r, 0, (slots_call){.what = SLOTS_COUNT, .round = 0, .applied = 3},
        0); /* of an older step */
    assert_non_null(rig_find(r, WIRE_REFUSED, 0, 0));
    copies_destroy(c);
}

static void test_no_question_reaches_beyond_the_arrays(void **state)
{
    (void)state;
    copies *c = start(1);
    rig *r    = c->r;
    rig_decision decision;
    rig_step(r, 0, 0, rig_noise, &decision);
    const uint32_t params = rig_params_crc(r), slots = rig_slots_crc(r);
    uint32_t frozen = 0;
    while (r->plan->chunk[frozen].trained) frozen++;
    const slots_call bad[] = {
        {.what = 0},
        {.what = SLOTS_COUNT + 1, .round = 1},
        {.what = SLOTS_READ, .array = 3}, /* adam has two */
        {.what = SLOTS_READ, .array = UINT32_MAX},
        {.what = SLOTS_READ, .zero = 1},
        {.what = SLOTS_SET, .round = UINT64_MAX},
        {.what = SLOTS_COUNT, .round = 1, .applied = -1},
        {.what = SLOTS_COUNT, .round = 1, .applied = INT64_MIN},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ask(r, 0, bad[i], 3);
        assert_non_null(rig_find(r, WIRE_REFUSED, 0, 0));
        assert_null(rig_find(r, WIRE_VALUES, 0, 0));
    }
    ask(r, frozen, (slots_call){.what = SLOTS_SET}, 3); /* frozen */
    assert_non_null(rig_find(r, WIRE_REFUSED, 0, frozen));
    ask(r, frozen, (slots_call){.what = SLOTS_READ, .array = 1}, 3);
    assert_non_null(rig_find(r, WIRE_REFUSED, 0, frozen));

    char bytes[512]      = {0};
    const slots_call set = {.what = SLOTS_SET, .round = 1};
    for (size_t size = 0; size <= sizeof bytes; size += 1 + size / 9) { /* no size fits */
        memcpy(bytes, &set, sizeof set);
        ask_bytes(r, 0, bytes, size);
        assert_null(rig_find(r, WIRE_VALUES, 0, 0));
    }
    srand(1);
    for (int i = 0; i < 2000; i++) { /* any bytes: refused, or a read */
        slots_call any;
        for (size_t k = 0; k < sizeof any; k++) ((char *)&any)[k] = (char)(rand() % 4);
        if (any.what == SLOTS_SET || any.what == SLOTS_COUNT) any.round += 2;
        ask_bytes(r, (uint32_t)rand() % (r->plan->n_chunks + 2), &any, sizeof any);
    }
    copies_carry(c);
    assert_int_equal(rig_params_crc(r), params);
    assert_int_equal(rig_slots_crc(r), slots);
    assert_true(copies_are_equal(c, 0, 1));
    assert_int_equal(r->reports, 0);
    copies_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_set_is_read_back_and_copies_have_it),
        cmocka_unit_test(test_answers_that_wait_for_a_copy_keep_their_sizes),
        cmocka_unit_test(test_a_set_that_comes_late_changes_nothing),
        cmocka_unit_test(test_no_question_reaches_beyond_the_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
