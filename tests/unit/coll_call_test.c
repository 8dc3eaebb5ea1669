/* coll_call_test.c - the checks of a collective call, and how members detect calls that differ. */
#include "worker/collective/coll.h"

#include "common/base/why.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SIZE = 3 };
static float in[64], out[64];

static coll_call call_of(coll_kind kind)
{
    return (coll_call){
        .kind = kind, .dtype = PEN_F32, .n = 4, .in = in, .out = out, .scale = 1, .label = ""};
}

static void assert_refused(const coll_call *call, pen_status status, const char *sentence)
{
    pen_error why = {0};
    assert_int_equal(coll_call_check(call, SIZE, 1, "pen_x", &why), status);
    assert_string_equal(why.text, sentence);
}

static void assert_legal(const coll_call *call, int rank)
{
    pen_error why = {0};
    if (coll_call_check(call, SIZE, rank, "pen_x", &why) != PEN_OK) fail_msg("%s", why.text);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static void each_kind_defines_what_a_member_sends_and_receives(void **state)
{
    (void)state;
    static const struct {
        coll_kind kind;
        size_t root_in, root_out, in, out;
    } rows[] = {
        {COLL_BARRIER, 0, 0, 0, 0},        {COLL_BROADCAST, 4, 4, 0, 4},
        {COLL_REDUCE, 4, 4, 4, 0},         {COLL_ALL_REDUCE, 4, 4, 4, 4},
        {COLL_GATHER, 4, 12, 4, 0},        {COLL_ALL_GATHER, 4, 12, 4, 12},
        {COLL_SCATTER, 12, 4, 0, 4},       {COLL_REDUCE_SCATTER, 12, 4, 12, 4},
        {COLL_ALL_TO_ALL, 12, 12, 12, 12},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const coll_call call = call_of(rows[i].kind);
        assert_int_equal(coll_in_elements(&call, SIZE, 0), rows[i].root_in);
        assert_int_equal(coll_out_elements(&call, SIZE, 0), rows[i].root_out);
        assert_int_equal(coll_in_elements(&call, SIZE, 1), rows[i].in);
        assert_int_equal(coll_out_elements(&call, SIZE, 1), rows[i].out);
        for (int rank = 0; rank < SIZE; rank++) assert_legal(&call, rank);
    }
}

static void parts_are_packed_in_group_order(void **state)
{
    (void)state;
    const size_t counts[SIZE] = {5, 0, 2};
    assert_int_equal(coll_part(counts, 9, 2), 2);
    assert_int_equal(coll_part(NULL, 9, 2), 9);
    assert_int_equal(coll_part_offset(counts, 9, 2), 5);
    assert_int_equal(coll_part_offset(counts, 9, 3), 7);
    assert_int_equal(coll_part_offset(NULL, 9, 2), 18);
    coll_call call = call_of(COLL_ALL_GATHER);
    call.counts    = counts;
    call.n         = 5;
    assert_int_equal(coll_in_elements(&call, SIZE, 0), 5);
    assert_int_equal(coll_out_elements(&call, SIZE, 0), 7);
    assert_legal(&call, 0);
}

/* ---- checks ---------------------------------------------------------------------------------- */

static void a_type_must_support_arithmetic(void **state)
{
    (void)state;
    coll_call call = call_of(COLL_ALL_REDUCE);
    call.dtype     = PEN_DTYPE_DEFAULT;
    assert_refused(&call, PEN_INVALID_ARGUMENT,
                   "pen_x: invalid element type 0; use one of pen_dtype, such as PEN_F32");
    call.dtype = (pen_dtype)77;
    assert_refused(&call, PEN_INVALID_ARGUMENT,
                   "pen_x: invalid element type 77; use one of pen_dtype, such as PEN_F32");
    call.dtype = PEN_F8E4M3;
    assert_refused(&call, PEN_UNSUPPORTED,
                   "pen_x: f8e4m3 is for wire and storage only; pass these bytes as u8");
}

static void an_operation_must_fit_its_type(void **state)
{
    (void)state;
    coll_call call = call_of(COLL_ALL_REDUCE);
    call.op        = PEN_BXOR;
    assert_refused(&call, PEN_UNSUPPORTED, "pen_x: BXOR of f32 is not defined; it needs integers");
    call.dtype = PEN_U32;
    assert_legal(&call, 1);
    call.op = (pen_op)11;
    assert_refused(&call, PEN_INVALID_ARGUMENT,
                   "pen_x: invalid operation 11; use one of pen_op, such as PEN_SUM");
    call.kind = COLL_ALL_GATHER; /* this kind has none */
    assert_legal(&call, 1);
}

static void a_root_outside_the_group_is_refused(void **state)
{
    (void)state;
    coll_call call = call_of(COLL_BROADCAST);
    call.in        = out;
    call.root      = 3;
    assert_refused(&call, PEN_INVALID_ARGUMENT, "pen_x: invalid root 3; expected 0 to 2");
    call.root = -1;
    assert_refused(&call, PEN_INVALID_ARGUMENT, "pen_x: invalid root -1; expected 0 to 2");
    call.kind = COLL_ALL_REDUCE;
    assert_legal(&call, 1);
}

static void counts_that_memory_cannot_hold_are_refused(void **state)
{
    (void)state;
    const char *sentence = "pen_x: more elements than memory can hold; n and counts are elements, "
                           "not negative";
    coll_call call       = call_of(COLL_ALL_REDUCE);
    call.n               = (size_t)-1;
    assert_refused(&call, PEN_INVALID_ARGUMENT, sentence);
    call.kind = COLL_ALL_GATHER;
    call.n    = SIZE_MAX / 8;
    assert_refused(&call, PEN_INVALID_ARGUMENT, sentence);
    const size_t counts[SIZE] = {SIZE_MAX / 8, 4, SIZE_MAX / 8};
    call.counts               = counts;
    call.n                    = 4;
    assert_refused(&call, PEN_INVALID_ARGUMENT, sentence);
}

static void a_members_two_counts_of_its_own_part_must_be_equal(void **state)
{
    (void)state;
    const size_t counts[SIZE] = {4, 6, 4}, others[SIZE] = {4, 5, 4};
    coll_call call = call_of(COLL_REDUCE_SCATTER);
    call.counts    = counts;
    assert_refused(&call, PEN_INVALID_ARGUMENT,
                   "pen_x: n is 4, but counts[1], this member's part, is 6");
    call.kind = COLL_ALL_TO_ALL;
    assert_refused(&call, PEN_INVALID_ARGUMENT,
                   "pen_x: expected in_counts and out_counts, or neither");
    call.out_counts = others;
    assert_refused(&call, PEN_INVALID_ARGUMENT,
                   "pen_x: this member sends 6 elements to itself, but expects 5");
    call.out_counts = counts;
    assert_legal(&call, 1);
}

static void only_buffers_that_are_needed_may_not_be_null(void **state)
{
    (void)state;
    coll_call call = call_of(COLL_REDUCE);
    call.out       = NULL;
    assert_legal(&call, 1);
    call.root = 1;
    assert_refused(&call, PEN_INVALID_ARGUMENT,
                   "pen_x: out is NULL, but this member gets 4 elements");
    call    = call_of(COLL_SCATTER);
    call.in = NULL;
    assert_legal(&call, 1);
    call.root = 1;
    assert_refused(&call, PEN_INVALID_ARGUMENT,
                   "pen_x: in is NULL, but this member has 12 elements");
    call    = call_of(COLL_BROADCAST);
    call.in = call.out = NULL;
    assert_refused(&call, PEN_INVALID_ARGUMENT, "pen_x: buf is NULL");
    call.n = 0;
    assert_legal(&call, 1);
}

static void buffers_are_identical_or_disjoint(void **state)
{
    (void)state;
    const char *sentence = "pen_x: in and out overlap; use the same pointer, or separate buffers";
    coll_call call       = call_of(COLL_ALL_REDUCE);
    call.out             = in;
    assert_legal(&call, 1);
    call.out = in + 1;
    assert_refused(&call, PEN_INVALID_ARGUMENT, sentence);
    call.out = in + 4;
    assert_legal(&call, 1);
    call.kind = COLL_REDUCE_SCATTER; /* member 1's part of in */
    assert_legal(&call, 1);
    call.out = in + 8;
    assert_refused(&call, PEN_INVALID_ARGUMENT, sentence);
    call.kind = COLL_ALL_GATHER;
    call.out  = in;
    call.in   = in + 4;
    assert_legal(&call, 1);
    call.in = in + 5;
    assert_refused(&call, PEN_INVALID_ARGUMENT, sentence);
}

static void a_scale_is_for_reductions(void **state)
{
    (void)state;
    coll_call call = call_of(COLL_ALL_REDUCE);
    call.scale     = 0.5;
    assert_legal(&call, 1);
    call.kind = COLL_ALL_GATHER;
    assert_refused(&call, PEN_INVALID_ARGUMENT, "pen_x: PEN_SCALED is for calls that reduce");
}

/* ---- headers --------------------------------------------------------------------------------- */

static coll_header header_of(const coll_call *call, uint64_t seq)
{
    coll_header header;
    memset(&header, 0xff, sizeof header);
    coll_header_of(call, SIZE, seq, &header);
    return header;
}

static const int ranks[5] = {0, 2, 5, 6, 9};

static void assert_differ(const coll_header *header, int size, const char *sentence, int culprit)
{
    const coll_header *all[5];
    pen_error why = {0};
    for (int i = 0; i < size; i++) all[i] = &header[i];
    assert_int_equal(coll_headers_compare(all, ranks, size, &why), PEN_MISMATCH);
    assert_string_equal(why.text, sentence);
    assert_int_equal(why.rank, culprit);
    assert_int_equal(why.role, PEN_WORKER);
}

static void members_that_do_the_same_agree(void **state)
{
    (void)state;
    coll_call a = call_of(COLL_ALL_REDUCE), b = a;
    b.scale               = 7;    /* each rank has its own */
    b.label               = "b";  /* for readers only */
    b.in                  = NULL; /* addresses may differ */
    b.root                = 2;    /* this kind has none */
    const coll_header one = header_of(&a, 3), two = header_of(&b, 3);
    const coll_header *all[] = {&one, &two, &one};
    pen_error why            = {0};
    assert_int_equal(coll_headers_compare(all, ranks, 3, &why), PEN_OK);
    assert_int_equal(coll_headers_compare(all, ranks, 1, &why), PEN_OK);
}

static void the_sentence_names_both_ranks_and_their_values(void **state)
{
    (void)state;
    coll_call a                = call_of(COLL_ALL_REDUCE), b;
    a.n                        = 1001;
    a.label                    = "loss";
    b                          = a;
    b.n                        = 1000;
    const coll_header header[] = {header_of(&a, 418), header_of(&b, 418)};
    assert_differ(header, 2,
                  "all_reduce (call 418) differs: rank 2 has 1,000 f32 SUM 'loss', "
                  "rank 0 has 1,001 f32 SUM 'loss'",
                  2);
}

static void the_culprit_is_the_first_that_differs_from_most(void **state)
{
    (void)state;
    coll_call a = call_of(COLL_ALL_REDUCE), b = a;
    b.op                = PEN_MAX;
    const coll_header x = header_of(&a, 1), y = header_of(&b, 1);
    const coll_header header[] = {x, y, y};
    assert_differ(header, 3,
                  "all_reduce (call 1) differs: rank 0 has 4 f32 SUM, rank 2 has 4 f32 MAX", 0);
    const coll_header tie[] = {x, y, y, x};
    assert_differ(tie, 4, "all_reduce (call 1) differs: rank 2 has 4 f32 MAX, rank 0 has 4 f32 SUM",
                  2);
}

static void memory_of_host_and_device_differs_but_no_buffer_fits_both(void **state)
{
    (void)state;
    coll_call a = call_of(COLL_ALL_REDUCE), b = a, none = a;
    b.on_device         = true;
    none.any_memory     = true;
    const coll_header x = header_of(&a, 1), y = header_of(&b, 1), z = header_of(&none, 1);
    const coll_header *fits[]  = {&z, &y, &y};
    const coll_header header[] = {z, x, y, z};
    pen_error why              = {0};
    assert_int_equal(coll_headers_compare(fits, ranks, 3, &why), PEN_OK);
    assert_differ(header, 4,
                  "all_reduce (call 1) differs: rank 5 has 4 f32 SUM in device memory, "
                  "rank 2 has 4 f32 SUM in host memory",
                  5);
}

static void different_kinds_are_named(void **state)
{
    (void)state;
    coll_call a = call_of(COLL_BARRIER), b = call_of(COLL_BROADCAST), c = call_of(COLL_ALL_GATHER);
    a.label                    = "epoch end";
    b.root                     = 2;
    const coll_header header[] = {header_of(&a, 7), header_of(&b, 7)};
    assert_differ(header, 2,
                  "call 7 differs: rank 2 has a broadcast of 4 f32 root 2, "
                  "rank 0 has a barrier 'epoch end'",
                  2);
    const coll_header late[] = {header_of(&a, 8), header_of(&c, 7)};
    assert_differ(late, 2,
                  "this call differs: rank 2 has call 7, an all_gather of 4 f32, "
                  "rank 0 has call 8, a barrier 'epoch end'",
                  2);
    const coll_header skipped[] = {header_of(&a, 8), header_of(&a, 7)};
    assert_differ(skipped, 2,
                  "barrier differs: rank 2 has call 7, a barrier 'epoch end', "
                  "rank 0 has call 8, a barrier 'epoch end'",
                  2);
}

static void roots_and_counts_are_compared(void **state)
{
    (void)state;
    const size_t one[SIZE] = {4, 5, 6}, two[SIZE] = {4, 6, 5};
    coll_call a = call_of(COLL_REDUCE), b = a;
    b.root                   = 1;
    const coll_header root[] = {header_of(&a, 1), header_of(&b, 1)};
    assert_differ(root, 2,
                  "reduce (call 1) differs: rank 2 has 4 f32 SUM root 1, "
                  "rank 0 has 4 f32 SUM root 0",
                  2);
    a = b                      = call_of(COLL_ALL_GATHER);
    a.counts                   = one;
    b.counts                   = two;
    const coll_header counts[] = {header_of(&a, 1), header_of(&b, 1)};
    const coll_header *all[]   = {&counts[0], &counts[1]};
    pen_error why              = {0};
    assert_int_equal(coll_headers_compare(all, ranks, 2, &why), PEN_MISMATCH);
    assert_non_null(strstr(why.text, "rank 2 has f32 in counts #"));
    a.kind = b.kind                = COLL_ALL_TO_ALL; /* these are allowed to differ */
    const coll_header each[]       = {header_of(&a, 1), header_of(&b, 1)};
    const coll_header *everybody[] = {&each[0], &each[1]};
    assert_int_equal(coll_headers_compare(everybody, ranks, 2, &why), PEN_OK);
}

static void a_long_label_is_truncated_between_characters(void **state)
{
    (void)state;
    char label[200];
    for (size_t i = 0; i + 2 < sizeof label; i += 2) memcpy(label + i, "\xc3\xa4", 3);
    coll_call a   = call_of(COLL_ALL_REDUCE);
    a.label       = label;
    coll_header h = header_of(&a, 1);
    assert_int_equal(strlen(h.label), 62);
    assert_memory_equal(h.label, label, 62);
    a.label = NULL;
    h       = header_of(&a, 1);
    assert_string_equal(h.label, "");
}

/* Bytes from another process may contain anything. */
static void a_garbage_header_is_a_mismatch(void **state)
{
    (void)state;
    const coll_call a    = call_of(COLL_ALL_REDUCE);
    coll_header header[] = {header_of(&a, 1), header_of(&a, 1)};
    memset(&header[1], 0xfe, sizeof header[1]);
    const coll_header *all[] = {&header[0], &header[1]};
    pen_error why            = {0};
    assert_int_equal(coll_headers_compare(all, ranks, 2, &why), PEN_MISMATCH);
    assert_int_equal(why.rank, 2);
    assert_string_equal(coll_kind_name((coll_kind)-2), "?");
    assert_string_equal(coll_op_name((pen_op)-2), "?");
    assert_false(coll_reduces((coll_kind)99));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_defines_what_a_member_sends_and_receives),
        cmocka_unit_test(parts_are_packed_in_group_order),
        cmocka_unit_test(a_type_must_support_arithmetic),
        cmocka_unit_test(an_operation_must_fit_its_type),
        cmocka_unit_test(a_root_outside_the_group_is_refused),
        cmocka_unit_test(counts_that_memory_cannot_hold_are_refused),
        cmocka_unit_test(a_members_two_counts_of_its_own_part_must_be_equal),
        cmocka_unit_test(only_buffers_that_are_needed_may_not_be_null),
        cmocka_unit_test(buffers_are_identical_or_disjoint),
        cmocka_unit_test(a_scale_is_for_reductions),
        cmocka_unit_test(members_that_do_the_same_agree),
        cmocka_unit_test(the_sentence_names_both_ranks_and_their_values),
        cmocka_unit_test(the_culprit_is_the_first_that_differs_from_most),
        cmocka_unit_test(memory_of_host_and_device_differs_but_no_buffer_fits_both),
        cmocka_unit_test(different_kinds_are_named),
        cmocka_unit_test(roots_and_counts_are_compared),
        cmocka_unit_test(a_long_label_is_truncated_between_characters),
        cmocka_unit_test(a_garbage_header_is_a_mismatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
