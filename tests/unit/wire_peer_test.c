/* wire_peer_test.c - the peer plane: what was written is read back, and what was damaged is refused. */
#include "common/base/crc.h"
#include "proto/wire/wire_peer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARENA_BYTES = 64 << 10 };

static wire_peer sample(wire_peer_kind kind)
{
    wire_peer p = {.kind          = kind,
                   .job           = 0x1122334455667788,
                   .from          = 7001,
                   .to            = 7002,
                   .rank          = 3,
                   .lane          = 1,
                   .dial          = 2,
                   .group         = 0xfeedface,
                   .seq           = 418,
                   .payload_bytes = 4096,
                   .crc           = 0xdeadbeef,
                   .segment       = 5,
                   .slot          = 6,
                   .offset        = 8192,
                   .total         = 1 << 20,
                   .flags         = WIRE_SCALED,
                   .scale         = 0.25,
                   .tag           = -7,
                   .dtype         = PEN_BF16,
                   .id            = 99,
                   .credit        = 12345,
                   .label         = "mail"};
    p.has_show  = kind == WIRE_SHOW || kind == WIRE_PART;
    if (p.has_show)
        p.show = (wire_show){.kind   = 3,
                             .op     = PEN_MAX,
                             .dtype  = PEN_F32,
                             .root   = 2,
                             .n      = 1000,
                             .counts = 0xabcdef,
                             .label  = "loss"};
    return p;
}

static wire_out written(const wire_peer *p)
{
    wire_out out = {0};
    pen_error why;
    if (wire_peer_encode(p, &out, &why) != PEN_OK) fail_msg("%s", why.text);
    return out;
}

static void expect_same(const wire_peer *a, const wire_peer *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_true(a->job == b->job && a->from == b->from && a->to == b->to);
    assert_int_equal(a->rank, b->rank);
    assert_int_equal(a->lane, b->lane);
    assert_int_equal(a->dial, b->dial);
    assert_true(a->group == b->group && a->seq == b->seq && a->id == b->id);
    assert_true(a->payload_bytes == b->payload_bytes && a->crc == b->crc);
    assert_true(a->segment == b->segment && a->slot == b->slot);
    assert_true(a->offset == b->offset && a->total == b->total && a->flags == b->flags);
    assert_true(a->scale == b->scale && a->tag == b->tag && a->dtype == b->dtype);
    assert_true(a->credit == b->credit && a->has_show == b->has_show);
    assert_string_equal(a->label, b->label);
    if (!a->has_show) return;
    assert_true(a->show.kind == b->show.kind && a->show.op == b->show.op);
    assert_true(a->show.dtype == b->show.dtype && a->show.root == b->show.root);
    assert_true(a->show.n == b->show.n && a->show.counts == b->show.counts);
    assert_string_equal(a->show.label, b->show.label);
}

static void every_kind_is_read_as_it_was_written(void **state)
{
    (void)state;
    wire_arena *arena = wire_arena_create(ARENA_BYTES);
    for (int kind = WIRE_SHOW; kind < WIRE_PEER_END; kind++) {
        const wire_peer p = sample((wire_peer_kind)kind);
        wire_peer back;
        pen_error why;
        wire_out out = written(&p);
        wire_arena_reset(arena);
        assert_int_equal(wire_peer_decode(out.data, out.size, arena, &back, &why), PEN_OK);
        expect_same(&p, &back);
        assert_string_not_equal(wire_kind_name(kind), "?");
        wire_out_free(&out);
    }
    wire_arena_destroy(arena);
}

static void any_flipped_bit_is_refused(void **state)
{
    (void)state;
    wire_arena *arena = wire_arena_create(ARENA_BYTES);
    const wire_peer p = sample(WIRE_PART);
    wire_out out      = written(&p);
    for (size_t bit = 0; bit < out.size * 8; bit++) {
        wire_peer back;
        pen_error why;
        out.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        wire_arena_reset(arena);
        assert_int_equal(wire_peer_decode(out.data, out.size, arena, &back, &why), PEN_CORRUPT);
        assert_true(why.text[0] != '\0');
        out.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    wire_out_free(&out);
    wire_arena_destroy(arena);
}

static void a_truncated_head_is_refused(void **state)
{
    (void)state;
    wire_arena *arena = wire_arena_create(ARENA_BYTES);
    const wire_peer p = sample(WIRE_SHOW);
    wire_out out      = written(&p);
    for (size_t size = 0; size < out.size; size++) {
        wire_peer back;
        pen_error why;
        wire_arena_reset(arena);
        assert_int_equal(wire_peer_decode(out.data, size, arena, &back, &why), PEN_CORRUPT);
    }
    wire_out_free(&out);
    wire_arena_destroy(arena);
}

static void a_message_of_another_plane_is_refused(void **state)
{
    (void)state;
    wire_arena *arena = wire_arena_create(ARENA_BYTES);
    wire_out out      = {0};
    wire_data d       = {.kind = WIRE_RECEIPT, .rank = 1};
    wire_peer back;
    pen_error why;
    assert_int_equal(wire_data_encode(&d, &out, &why), PEN_OK);
    assert_int_equal(wire_peer_decode(out.data, out.size, arena, &back, &why), PEN_CORRUPT);
    assert_string_equal(why.text, "a message of plane 2 (data) came to the peer plane");
    wire_out_free(&out);
    wire_arena_destroy(arena);
}

/* Expects a sentence, whichever side is at fault. */
static void expect_refused(wire_peer p)
{
    wire_out out = {0};
    pen_error why;
    assert_int_equal(wire_peer_encode(&p, &out, &why), PEN_INVALID_ARGUMENT);
    assert_true(why.text[0] != '\0');
    wire_out_free(&out);
}

static void messages_that_a_peer_would_refuse_are_not_sent(void **state)
{
    (void)state;
    char label[WIRE_LABEL_MAX + 1];
    memset(label, 'x', sizeof label - 1);
    label[sizeof label - 1] = '\0';
    wire_peer p             = sample(WIRE_PART);
    p.kind                  = WIRE_PEER_END;
    expect_refused(p);
    p      = sample(WIRE_PART);
    p.rank = -1;
    expect_refused(p);
    p      = sample(WIRE_PART);
    p.lane = WIRE_LANES_MAX;
    expect_refused(p);
    p               = sample(WIRE_LETTER);
    p.payload_bytes = WIRE_PAYLOAD_BYTES_MAX + 1;
    expect_refused(p);
    p        = sample(WIRE_SECTION);
    p.offset = p.total - p.payload_bytes + 1;
    expect_refused(p);
    p        = sample(WIRE_SECTION);
    p.offset = UINT64_MAX;
    expect_refused(p);
    p       = sample(WIRE_LETTER);
    p.dtype = PEN_F8E5M2 + 1;
    expect_refused(p);
    p          = sample(WIRE_SHOW);
    p.has_show = false;
    expect_refused(p);
    p           = sample(WIRE_SHOW);
    p.show.kind = WIRE_SHOW_KINDS;
    expect_refused(p);
    p           = sample(WIRE_SHOW);
    p.show.root = -1;
    expect_refused(p);
    p       = sample(WIRE_LETTER);
    p.label = label;
    expect_refused(p);
    p            = sample(WIRE_SHOW);
    p.show.label = label;
    expect_refused(p);
}

static void labels_from_a_peer_cannot_command_a_terminal(void **state)
{
    (void)state;
    wire_arena *arena = wire_arena_create(ARENA_BYTES);
    wire_peer p       = sample(WIRE_SHOW), back;
    pen_error why;
    p.show.label = "a\033[2Jb";
    wire_out out = written(&p);
    assert_int_equal(wire_peer_decode(out.data, out.size, arena, &back, &why), PEN_OK);
    assert_string_equal(back.show.label, "a?[2Jb");
    wire_out_free(&out);
    wire_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_is_read_as_it_was_written),
        cmocka_unit_test(any_flipped_bit_is_refused),
        cmocka_unit_test(a_truncated_head_is_refused),
        cmocka_unit_test(a_message_of_another_plane_is_refused),
        cmocka_unit_test(messages_that_a_peer_would_refuse_are_not_sent),
        cmocka_unit_test(labels_from_a_peer_cannot_command_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
