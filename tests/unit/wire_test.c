/* wire_test.c - every kind encoded and decoded; and everything that a hostile or broken peer can send. */
#include "common/base/crc.h"
#include "proto/wire/wire.h"
#include "proto/wire/wire_peer.h"
#include "tests/support/wire_difference.h"
#include "tests/support/wire_samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_BYTES = 4 << 20 };

static wire_arena *arena;
static wire_out out, again;
static pen_error why;

static int set_up(void **state)
{
    (void)state;
    arena = wire_arena_create(ARENA_BYTES);
    return arena == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    wire_arena_destroy(arena);
    wire_out_free(&out);
    wire_out_free(&again);
    return 0;
}

/* From a block of its own size, so that AddressSanitizer sees a read past the end. */
static pen_status decode_data(const void *head, size_t size, wire_data *d)
{
    void *copy = malloc(size > 0 ? size : 1);
    memcpy(copy, head, size);
    wire_arena_reset(arena);
    pen_status status = wire_data_decode(copy, size, arena, d, &why);
    free(copy);
    return status;
}

static pen_status decode_control(const void *head, size_t size, wire_control *c)
{
    void *copy = malloc(size > 0 ? size : 1);
    memcpy(copy, head, size);
    wire_arena_reset(arena);
    pen_status status = wire_control_decode(copy, size, arena, c, &why);
    free(copy);
    return status;
}

/* Makes the checksum valid again after the body was changed. */
static void seal(wire_out *o)
{
    uint64_t length = o->size - WIRE_PREFIX_BYTES;
    uint32_t crc    = crc32c(0, o->data + WIRE_PREFIX_BYTES, length);
    memcpy(o->data + 8, &length, sizeof length);
    memcpy(o->data + 16, &crc, sizeof crc);
}

/* Replaces the body by these bytes. */
static void set_body(wire_out *o, const void *body, size_t size)
{
    assert_true(WIRE_PREFIX_BYTES + size <= o->capacity);
    memcpy(o->data + WIRE_PREFIX_BYTES, body, size);
    o->size = WIRE_PREFIX_BYTES + size;
    seal(o);
}

/* ---- encode and decode ----------------------------------------------------------------------- */
static void test_wire_data_of_every_kind_comes_back_with_every_field(void **state)
{
    (void)state;
    for (int kind = WIRE_PUSH; kind < WIRE_KIND_END; kind++) {
        if (!wire_is_data_kind(kind)) continue;
        wire_data in = wire_sample_data((wire_kind)kind), back;
        assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
        assert_int_equal(decode_data(out.data, out.size, &back), PEN_OK);
        assert_null(wire_difference_data(&in, &back));
    }
}

static void test_wire_control_of_every_kind_comes_back_with_every_field(void **state)
{
    (void)state;
    for (int kind = WIRE_HELLO; kind < (int)WIRE_CONTROL_END; kind++) {
        if (!wire_is_control_kind(kind)) continue;
        wire_control in = wire_sample_control((wire_control_kind)kind), back;
        assert_int_equal(wire_control_encode(&in, &out, &why), PEN_OK);
        assert_int_equal(decode_control(out.data, out.size, &back), PEN_OK);
        assert_null(wire_difference_control(&in, &back));
    }
}

/* The message that it was decoded to is gone when the copy is read. */
static void test_copied_lists_outlive_what_they_were_copied_from(void **state)
{
    (void)state;
    wire_data in  = wire_sample_data(WIRE_VALUES), back;
    in.n_entries  = 0;
    in.has_inputs = false;
    in.inputs     = (wire_inputs){0};
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    assert_int_equal(decode_data(out.data, out.size, &back), PEN_OK);
    wire_data counted  = back;
    const size_t bytes = wire_data_copy_lists(&counted, NULL);
    assert_memory_equal(&counted, &back, sizeof back);
    void *room = malloc(bytes);
    assert_int_equal(wire_data_copy_lists(&back, room), bytes);
    wire_arena_reset(arena);
    assert_null(wire_difference_data(&in, &back));
    free(room);
}

/* The sample's storage and the first copy are gone when the second copy is read. */
static void test_wire_control_copy_outlives_what_it_was_made_of(void **state)
{
    (void)state;
    for (int kind = WIRE_HELLO; kind < WIRE_CONTROL_END; kind++) {
        if (!wire_is_control_kind(kind)) continue;
        const wire_control sample = wire_sample_control((wire_control_kind)kind);
        wire_arena *kept          = NULL;
        wire_control copy;
        assert_int_equal(wire_control_encode(&sample, &out, &why), PEN_OK);
        assert_int_equal(decode_control(out.data, out.size, &copy), PEN_OK);
        assert_true(wire_control_copy(&copy, &kept, &copy));
        wire_arena_reset(arena);
        assert_true(wire_control_copy(&copy, &kept, &copy));
        assert_int_equal(wire_control_encode(&copy, &again, &why), PEN_OK);
        assert_int_equal(again.size, out.size);
        assert_memory_equal(again.data, out.data, out.size);
        wire_arena_destroy(kept);
    }
}

static void test_wire_control_copy_of_what_cannot_be_encoded_changes_nothing(void **state)
{
    (void)state;
    const wire_control bad = {.kind = WIRE_HELLO, .u.hello.n_addresses = 1};
    wire_arena *kept       = NULL;
    wire_control copy      = {.kind = WIRE_BYE};
    assert_true(wire_control_copy(&copy, &kept, &copy));
    wire_arena *before = kept;
    assert_false(wire_control_copy(&bad, &kept, &copy));
    assert_ptr_equal(kept, before);
    assert_int_equal(copy.kind, WIRE_BYE);
    wire_arena_destroy(kept);
}

static void test_wire_bytes_are_those_of_the_first_release(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {0x50, 0x4e, 0x53, 0x4b, 1,    0,    2,    0,    4, 0, 0,    0,
                                    0,    0,    0,    0,    0xac, 0xeb, 0x69, 0x43, 8, 2, 0x30, 1};
    wire_data receipt            = {.kind = WIRE_RECEIPT, .rank = 1};
    assert_int_equal(wire_data_encode(&receipt, &out, &why), PEN_OK);
    assert_int_equal(out.size, sizeof bytes);
    assert_memory_equal(out.data, bytes, sizeof bytes);
}

static void test_wire_strings_and_columns_that_were_not_given_come_back_empty(void **state)
{
    (void)state;
    wire_data in = {.kind = WIRE_RECEIPT, .rank = -1}, back;
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    assert_int_equal(decode_data(out.data, out.size, &back), PEN_OK);
    assert_string_equal(back.text, "");
    assert_null(back.chunk);
    assert_null(back.seq);
    assert_false(back.has_inputs);
    assert_false(back.has_decision);

    wire_control hello = {.kind = WIRE_HELLO}, hello_back;
    assert_int_equal(wire_control_encode(&hello, &out, &why), PEN_OK);
    assert_int_equal(decode_control(out.data, out.size, &hello_back), PEN_OK);
    assert_string_equal(hello_back.u.hello.host, "");
    assert_string_equal(hello_back.u.hello.store, "");
    assert_null(hello_back.u.hello.address);
}

static void test_wire_columns_may_be_absent_one_by_one(void **state)
{
    (void)state;
    wire_data in = wire_sample_data(WIRE_PUSH), back;
    in.seq       = NULL;
    in.version   = NULL;
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    assert_int_equal(decode_data(out.data, out.size, &back), PEN_OK);
    assert_null(back.seq);
    assert_null(back.version);
    assert_int_equal(back.crc[0], in.crc[0]);
    assert_int_equal(back.staleness[2], in.staleness[2]);
}

static void test_wire_names_every_kind_and_only_those(void **state)
{
    (void)state;
    for (int kind = -3; kind < 100; kind++) {
        bool is_kind = wire_is_data_kind(kind) || wire_is_control_kind(kind) ||
                       (kind >= (int)WIRE_SHOW && kind < (int)WIRE_PEER_END);
        assert_int_equal(strcmp(wire_kind_name(kind), "?") != 0, is_kind);
    }
    assert_string_equal(wire_kind_name(WIRE_PUSH), "PUSH");
    assert_string_equal(wire_kind_name((int)WIRE_STATUS), "STATUS");
}

static void test_wire_control_characters_become_question_marks(void **state)
{
    (void)state;
    wire_data in = wire_sample_data(WIRE_REFUSED), back;
    in.text      = "a\x1b[31m\nb\x7f \xc3\xa4 \xc2\x9b"
                   "4m \xc2\xa0";
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    assert_int_equal(decode_data(out.data, out.size, &back), PEN_OK);
    assert_string_equal(back.text, "a?[31m?b? \xc3\xa4 ??4m \xc2\xa0");
}

static void test_wire_status_that_is_unknown_becomes_internal(void **state)
{
    (void)state;
    wire_data in = wire_sample_data(WIRE_REFUSED), back;
    in.status    = (pen_status)-77;
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    assert_int_equal(decode_data(out.data, out.size, &back), PEN_OK);
    assert_int_equal(back.status, PEN_INTERNAL);

    wire_control verdict     = wire_sample_control(WIRE_VERDICT), verdict_back;
    verdict.u.verdict.status = (pen_status)0x7fffffff;
    assert_int_equal(wire_control_encode(&verdict, &out, &why), PEN_OK);
    assert_int_equal(decode_control(out.data, out.size, &verdict_back), PEN_OK);
    assert_int_equal(verdict_back.u.verdict.status, PEN_INTERNAL);
}

static void test_wire_fields_of_later_versions_are_skipped(void **state)
{
    (void)state;
    wire_data in = wire_sample_data(WIRE_PUSH), back;
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    assert_true(out.size + 5 <= out.capacity);
    memcpy(out.data + out.size, "\xc0\x3e\x01\xc0\x3e", 5); /* field 1000, varint 1 */
    out.size += 3;
    seal(&out);
    assert_int_equal(decode_data(out.data, out.size, &back), PEN_OK);
    assert_null(wire_difference_data(&in, &back));
}

/* ---- what is refused ------------------------------------------------------------------------- */
static void test_wire_every_truncation_is_refused(void **state)
{
    (void)state;
    wire_data d;
    wire_control c;
    for (int kind = WIRE_PUSH; kind < WIRE_KIND_END; kind++) {
        if (!wire_is_data_kind(kind)) continue;
        wire_data in = wire_sample_data((wire_kind)kind);
        assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
        for (size_t size = 0; size < out.size; size++)
            assert_int_equal(decode_data(out.data, size, &d), PEN_CORRUPT);
    }
    for (int kind = WIRE_HELLO; kind < (int)WIRE_CONTROL_END; kind++) {
        if (!wire_is_control_kind(kind)) continue;
        wire_control in = wire_sample_control((wire_control_kind)kind);
        assert_int_equal(wire_control_encode(&in, &out, &why), PEN_OK);
        for (size_t size = 0; size < out.size; size++)
            assert_int_equal(decode_control(out.data, size, &c), PEN_CORRUPT);
    }
}

/* With a valid prefix: the body alone must not mislead.  A body truncated between fields is
 * another valid message, so this checks only crashes and broken promises. */
static void test_wire_truncated_bodies_with_true_checksums_keep_every_promise(void **state)
{
    (void)state;
    wire_data d, in = wire_sample_data(WIRE_PREPARED);
    assert_int_equal(wire_data_encode(&in, &again, &why), PEN_OK);
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    size_t n_refused = 0;
    for (size_t size = 0; size < again.size - WIRE_PREFIX_BYTES; size++) {
        set_body(&out, again.data + WIRE_PREFIX_BYTES, size);
        pen_status status = decode_data(out.data, out.size, &d);
        if (status == PEN_OK) assert_true(d.text != NULL && (d.n == 0) == (d.chunk == NULL));
        n_refused += status == PEN_CORRUPT;
    }
    assert_true(n_refused > 100);
}

static void test_wire_every_flipped_bit_is_refused(void **state)
{
    (void)state;
    wire_data d, in = wire_sample_data(WIRE_PUSH);
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    for (size_t bit = 0; bit < out.size * 8; bit++) {
        out.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(decode_data(out.data, out.size, &d), PEN_CORRUPT);
        out.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void check_data_refused(const char *sentence)
{
    wire_data d;
    assert_int_equal(decode_data(out.data, out.size, &d), PEN_CORRUPT);
    assert_int_equal(why.status, PEN_CORRUPT);
    assert_string_equal(why.text, sentence);
}

static void set_u16(size_t at, uint16_t value)
{
    memcpy(out.data + at, &value, sizeof value);
}
static void set_u64(size_t at, uint64_t value)
{
    memcpy(out.data + at, &value, sizeof value);
}

static void test_wire_false_prefixes_are_refused_with_a_reason(void **state)
{
    (void)state;
    wire_data in = {.kind = WIRE_RECEIPT, .rank = 1}, d;
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    assert_int_equal(out.size, 24);
    assert_int_equal(decode_data(out.data, out.size, &d), PEN_OK);

    set_u16(4, 7);
    check_data_refused("unsupported wire version 7; this is version 1");
    set_u16(4, 1);
    set_u16(6, 1);
    check_data_refused("a message of plane 1 (control) came to the data plane");
    set_u16(6, 2);
    set_u64(8, UINT64_MAX);
    check_data_refused("the prefix promises 18446744073709551615 bytes and 4 follow");
    set_u64(8, 3);
    check_data_refused("the prefix promises 3 bytes and 4 follow");
    set_u64(8, 4);
    out.data[16] ^= 1;
    assert_int_equal(decode_data(out.data, out.size, &d), PEN_CORRUPT);
    assert_non_null(strstr(why.text, "the checksum of the head is "));
    out.data[16] ^= 1;
    out.data[0] = 'G';
    check_data_refused("not a message of Penstock: it starts with 474e534b");
    out.data[0] = 'P';
    out.size    = 7;
    check_data_refused("a head frame of 7 bytes is shorter than its prefix of 20");
}

static void test_wire_head_over_the_limit_is_refused_unread(void **state)
{
    (void)state;
    wire_data d;
    size_t size   = (size_t)WIRE_HEAD_BYTES_MAX + 1;
    uint8_t *head = calloc(1, size);
    wire_arena_reset(arena);
    assert_int_equal(wire_data_decode(head, size, arena, &d, &why), PEN_CORRUPT);
    free(head);
    assert_string_equal(why.text, "a head frame of 8388609 bytes is over the limit of 8388608");
}

static void test_wire_column_of_another_length_is_refused(void **state)
{
    (void)state;
    wire_data in = wire_sample_data(WIRE_PUSH);
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    set_body(&out, "\x08\x01\x5a\x03\x01\x02\x03\x62\x02\x01\x02",
             11); /* kind 1, chunk 1 2 3, seq 1 2 */
    check_data_refused("PUSH has 2 entries in column seq, where 3 belong");
    set_body(&out, "\x08\x01\x6a\x04\x01\x02\x03\x04", 8); /* crc without chunk */
    check_data_refused("PUSH has 1 entries in column crc, where 0 belong");
    set_body(&out,
             "\x08\x04\x82\x01\x01\x05\x8a\x01\x10"
             "0123456789abcdef",
             25); /* partition 5, two hashes */
    check_data_refused("PULL has 2 entries in column vote_hash, where 1 belong");
}

static void test_wire_numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    wire_data in = wire_sample_data(WIRE_PUSH), d;
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    set_body(&out, "\x08\x01\x48\x80\x80\x80\x80\x80\x80\x80\x80\x10", 12); /* payload_bytes 2^60 */
    check_data_refused(
        "PUSH announces a payload of 1152921504606846976 bytes, over the limit of 67108864");
    set_body(&out, "\x08\x0a", 2);
    check_data_refused("10 is not a kind of message of the data plane");
    set_body(&out, "\x08\xff\xff\xff\xff\x0f", 6);
    assert_int_equal(decode_data(out.data, out.size, &d), PEN_CORRUPT);
    set_body(&out, "", 0); /* a message of defaults has kind 0 */
    check_data_refused("0 is not a kind of message of the data plane");
    set_body(&out, "\x08\x01\x30\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 13); /* rank -2 */
    check_data_refused("PUSH has invalid rank -2");
    in        = wire_sample_data(WIRE_REFUSED);
    in.status = PEN_END;
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_INVALID_ARGUMENT);
    set_body(&out, "\x08\x06", 2); /* status 0 */
    check_data_refused("REFUSED has a status that is no failure, 0");
    set_body(&out, "\x08\x04\x9a\x01\x02\x08\x09", 7); /* decision with outcome 9 */
    check_data_refused("PULL decides -1, which is not an outcome");
    set_body(&out, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11);
    check_data_refused("the head is not a data message");
}

/* Three bytes of an empty record cost a decoder more than a hundred: the arena bounds them. */
static void test_wire_hostile_counts_are_refused_within_the_memory_given(void **state)
{
    (void)state;
    enum { N = 200000 };
    wire_out big = {.data     = malloc(WIRE_PREFIX_BYTES + 3 * N),
                    .capacity = WIRE_PREFIX_BYTES + 3 * N};
    wire_data in = {.kind = WIRE_PUSH}, d;
    assert_int_equal(wire_data_encode(&in, &big, &why), PEN_OK);
    uint8_t *body = malloc(3 * N);
    for (size_t i = 0; i < N; i++) memcpy(body + 3 * i, "\xa2\x01\x00", 3); /* an empty record */
    set_body(&big, body, 3 * N);
    assert_int_equal(decode_data(big.data, big.size, &d), PEN_CORRUPT);

    set_body(&big, body, 3 * 257); /* fits, but exceeds the possible maximum */
    assert_int_equal(decode_data(big.data, big.size, &d), PEN_CORRUPT);

    memcpy(body, "\x08\x01\x5a\x81\x80\x04", 6); /* kind 1, 65537 chunks */
    memset(body + 6, 0, 65537);
    set_body(&big, body, 6 + 65537);
    assert_int_equal(decode_data(big.data, big.size, &d), PEN_CORRUPT);
    assert_string_equal(why.text, "PUSH has a list of more than 65536 entries");

    memcpy(body, "\x08\x01\x5a\xff\xff\xff\xff\x0f", 8); /* claims 2^32 - 1 bytes of chunks */
    set_body(&big, body, 64);
    assert_int_equal(decode_data(big.data, big.size, &d), PEN_CORRUPT);
    free(body);
    wire_out_free(&big);
}

static void test_wire_message_over_the_bound_of_its_arena_is_refused_at_every_size(void **state)
{
    (void)state;
    wire_data d, in    = wire_sample_data(WIRE_PREPARED);
    wire_control c, ci = wire_sample_control(WIRE_STATUS);
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    assert_int_equal(wire_control_encode(&ci, &again, &why), PEN_OK);
    bool was_enough[2] = {false, false};
    for (size_t bytes = 0; bytes < 8192; bytes += 16) {
        wire_arena *small = wire_arena_create(bytes);
        pen_status status = wire_data_decode(out.data, out.size, small, &d, &why);
        assert_int_equal(status, was_enough[0] || status == PEN_OK ? PEN_OK : PEN_CORRUPT);
        was_enough[0] = status == PEN_OK;
        wire_arena_reset(small);
        status = wire_control_decode(again.data, again.size, small, &c, &why);
        assert_int_equal(status, was_enough[1] || status == PEN_OK ? PEN_OK : PEN_CORRUPT);
        was_enough[1] = status == PEN_OK;
        wire_arena_destroy(small);
    }
    assert_true(was_enough[0] && was_enough[1]);
}

static void check_control_refused(const wire_control *c, const char *sentence)
{
    assert_int_equal(wire_control_encode(c, &out, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, sentence);
}

static void test_wire_control_refuses_to_send_what_the_peer_would_refuse(void **state)
{
    (void)state;
    static char text[WIRE_TEXT_MAX + 1];
    memset(text, 'x', WIRE_TEXT_MAX);
    wire_control c  = {.kind = WIRE_NOTICE};
    c.u.notice.text = text;
    check_control_refused(
        &c,
        "NOTICE has a text of 1024 bytes or more: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'");
    text[WIRE_TEXT_MAX - 1] = '\0';
    assert_int_equal(wire_control_encode(&c, &out, &why), PEN_OK);

    wire_tensor tensor = {.name = "w", .dtype = PEN_F32, .ndim = 2, .shape = {3, 0}};
    c = (wire_control){.kind = WIRE_REGISTER, .u.register_ = {.n_tensors = 1, .tensor = &tensor}};
    check_control_refused(&c, "REGISTER gives 'w' a dimension of 0");
    tensor.ndim = 9;
    check_control_refused(&c, "REGISTER gives 'w' 9 dimensions; 8 are allowed");
    tensor = (wire_tensor){.name = "w", .dtype = (pen_dtype)13};
    check_control_refused(&c, "REGISTER has dtype 13, which is not in 0..12");
    c.u.register_.n_tensors = WIRE_ITEMS_MAX + 1;
    check_control_refused(&c, "REGISTER has a list of 65537 entries; 65536 are allowed");
    c = (wire_control){.kind      = WIRE_COMMAND,
                       .u.command = {.body = text, .body_size = WIRE_CALL_BYTES_MAX + 1}};
    check_control_refused(&c, "COMMAND carries 65537 bytes; 65536 are allowed");
    c = (wire_control){.kind = WIRE_VERDICT, .u.verdict = {.missing_n = 33}};
    check_control_refused(&c, "VERDICT has a list of 33 entries; 32 are allowed");
    c = (wire_control){.kind = WIRE_CONTROL_END};
    check_control_refused(&c, "58 is not a kind of message of the control plane");
}

static void check_body_refused(const void *body, size_t size, const char *sentence)
{
    wire_control c = {.kind = WIRE_STOP};
    assert_int_equal(wire_control_encode(&c, &out, &why), PEN_OK);
    set_body(&out, body, size);
    assert_int_equal(decode_control(out.data, out.size, &c), PEN_CORRUPT);
    assert_string_equal(why.text, sentence);
}

static void test_wire_control_refuses_impossible_bodies(void **state)
{
    (void)state;
    check_body_refused("", 0, "a control message is of kind 0, which this version does not know");
    check_body_refused(
        "\x9a\x06\x00", 3,
        "a control message is of kind 0, which this version does not know"); /* field 99 */
    check_body_refused("\xba\x01\x00", 3, "FAILURE gives no reason");
    check_body_refused("\x52\x02\x08\x06", 4, "HELLO has role 6, which is not in 0..5");
    check_body_refused("\x6a\x07\x0a\x06\x0a\x01w\x22\x00", 9,
                       "the head is not a control message"); /* a truncated list */
    check_body_refused("\x6a\x0c\x0a\x0a\x0a\x01w\x22\x05\x01\x01\x01\x01\x00", 14,
                       "REGISTER gives 'w' a dimension of 0");
    check_body_refused("\x6a\x10\x0a\x0e\x0a\x01w\x22\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01", 18,
                       "REGISTER gives 'w' 9 dimensions; 8 are allowed");
}

static void test_wire_control_text_that_is_too_long_is_refused(void **state)
{
    (void)state;
    wire_control c = {.kind = WIRE_NOTICE};
    assert_int_equal(wire_control_encode(&c, &out, &why), PEN_OK);
    uint8_t whole[7 + WIRE_TEXT_MAX];
    memcpy(whole, "\xaa\x01\x83\x08\x0a\x80\x08", 7); /* a notice of 1,027 bytes: a text of 1,024 */
    memset(whole + 7, 'x', WIRE_TEXT_MAX);
    set_body(&out, whole, sizeof whole);
    assert_int_equal(decode_control(out.data, out.size, &c), PEN_CORRUPT);
    assert_string_equal(why.text, "NOTICE has a text of 1024 bytes or more");
}

static void test_wire_data_refuses_to_send_what_the_peer_would_refuse(void **state)
{
    (void)state;
    wire_data d = wire_sample_data(WIRE_PUSH);
    d.chunk     = NULL;
    assert_int_equal(wire_data_encode(&d, &out, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, "PUSH has a list with a count and without entries");
    d   = wire_sample_data(WIRE_PUSH);
    d.n = WIRE_ITEMS_MAX + 1;
    assert_int_equal(wire_data_encode(&d, &out, &why), PEN_INVALID_ARGUMENT);
    d         = wire_sample_data(WIRE_PREPARED);
    d.n_votes = WIRE_PARTITIONS_MAX + 1;
    assert_int_equal(wire_data_encode(&d, &out, &why), PEN_INVALID_ARGUMENT);
    d               = wire_sample_data(WIRE_PUSH);
    d.payload_bytes = WIRE_PAYLOAD_BYTES_MAX + 1;
    assert_int_equal(wire_data_encode(&d, &out, &why), PEN_INVALID_ARGUMENT);
    d.kind = WIRE_KIND_END;
    assert_int_equal(wire_data_encode(&d, &out, &why), PEN_INVALID_ARGUMENT);
    assert_string_equal(why.text, "82 is not a kind of message of the data plane");
}

static void test_wire_control_refuses_a_command_with_too_many_bytes(void **state)
{
    (void)state;
    enum { BYTES = WIRE_CALL_BYTES_MAX + 1 };
    static uint8_t body[9 + BYTES] = "\xa2\x02\x85\x80\x04\x32\x81\x80\x04"; /* body */
    wire_out large                 = {.data     = malloc(WIRE_PREFIX_BYTES + 9 + BYTES),
                                      .capacity = WIRE_PREFIX_BYTES + 9 + BYTES};
    wire_control c                 = {.kind = WIRE_STOP};
    assert_int_equal(wire_control_encode(&c, &large, &why), PEN_OK);
    set_body(&large, body, 9 + BYTES);
    assert_int_equal(decode_control(large.data, large.size, &c), PEN_CORRUPT);
    assert_string_equal(why.text, "COMMAND carries 65537 bytes; 65536 are allowed");
    wire_out_free(&large);
}

/* ---- memory ---------------------------------------------------------------------------------- */
static void test_wire_output_is_reused_and_holds_the_last_message_only(void **state)
{
    (void)state;
    wire_data large = wire_sample_data(WIRE_PUSH), small = {.kind = WIRE_RECEIPT}, back;
    assert_int_equal(wire_data_encode(&large, &out, &why), PEN_OK);
    const uint8_t *data = out.data;
    assert_int_equal(wire_data_encode(&small, &out, &why), PEN_OK);
    assert_ptr_equal(out.data, data);
    assert_int_equal(decode_data(out.data, out.size, &back), PEN_OK);
    assert_int_equal(back.kind, WIRE_RECEIPT);
}

static void test_wire_large_messages_grow_arena_and_output(void **state)
{
    (void)state;
    enum { N = WIRE_ITEMS_MAX };
    uint32_t *chunk = malloc(N * sizeof *chunk);
    for (uint32_t i = 0; i < N; i++) chunk[i] = i * 65537u;
    wire_data in = {.kind = WIRE_PULL, .n = N, .chunk = chunk, .crc = chunk}, back;
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    for (int round = 0; round < 3; round++) { /* the arena's blocks are reused after a reset */
        assert_int_equal(decode_data(out.data, out.size, &back), PEN_OK);
        assert_memory_equal(back.chunk, chunk, N * sizeof *chunk);
        assert_memory_equal(back.crc, chunk, N * sizeof *chunk);
    }
    free(chunk);
}

static void test_wire_arena_forgets_the_last_message_at_a_reset(void **state)
{
    (void)state;
    wire_arena *small = wire_arena_create(16 << 10);
    wire_data in      = wire_sample_data(WIRE_PREPARED), back;
    assert_int_equal(wire_data_encode(&in, &out, &why), PEN_OK);
    for (int i = 0; i < 1000; i++) {
        wire_arena_reset(small);
        assert_int_equal(wire_data_decode(out.data, out.size, small, &back, &why), PEN_OK);
    }
    pen_status status = PEN_OK; /* without a reset it is full at some point */
    for (int i = 0; i < 1000 && status == PEN_OK; i++)
        status = wire_data_decode(out.data, out.size, small, &back, &why);
    assert_int_equal(status, PEN_CORRUPT);
    wire_arena_destroy(small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire_data_of_every_kind_comes_back_with_every_field),
        cmocka_unit_test(test_wire_control_of_every_kind_comes_back_with_every_field),
        cmocka_unit_test(test_wire_bytes_are_those_of_the_first_release),
        cmocka_unit_test(test_copied_lists_outlive_what_they_were_copied_from),
        cmocka_unit_test(test_wire_control_copy_outlives_what_it_was_made_of),
        cmocka_unit_test(test_wire_control_copy_of_what_cannot_be_encoded_changes_nothing),
        cmocka_unit_test(test_wire_strings_and_columns_that_were_not_given_come_back_empty),
        cmocka_unit_test(test_wire_columns_may_be_absent_one_by_one),
        cmocka_unit_test(test_wire_names_every_kind_and_only_those),
        cmocka_unit_test(test_wire_control_characters_become_question_marks),
        cmocka_unit_test(test_wire_status_that_is_unknown_becomes_internal),
        cmocka_unit_test(test_wire_fields_of_later_versions_are_skipped),
        cmocka_unit_test(test_wire_every_truncation_is_refused),
        cmocka_unit_test(test_wire_truncated_bodies_with_true_checksums_keep_every_promise),
        cmocka_unit_test(test_wire_every_flipped_bit_is_refused),
        cmocka_unit_test(test_wire_false_prefixes_are_refused_with_a_reason),
        cmocka_unit_test(test_wire_head_over_the_limit_is_refused_unread),
        cmocka_unit_test(test_wire_column_of_another_length_is_refused),
        cmocka_unit_test(test_wire_numbers_out_of_range_are_refused),
        cmocka_unit_test(test_wire_hostile_counts_are_refused_within_the_memory_given),
        cmocka_unit_test(test_wire_message_over_the_bound_of_its_arena_is_refused_at_every_size),
        cmocka_unit_test(test_wire_control_refuses_to_send_what_the_peer_would_refuse),
        cmocka_unit_test(test_wire_control_refuses_impossible_bodies),
        cmocka_unit_test(test_wire_control_text_that_is_too_long_is_refused),
        cmocka_unit_test(test_wire_data_refuses_to_send_what_the_peer_would_refuse),
        cmocka_unit_test(test_wire_output_is_reused_and_holds_the_last_message_only),
        cmocka_unit_test(test_wire_control_refuses_a_command_with_too_many_bytes),
        cmocka_unit_test(test_wire_arena_forgets_the_last_message_at_a_reset),
        cmocka_unit_test(test_wire_large_messages_grow_arena_and_output),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
