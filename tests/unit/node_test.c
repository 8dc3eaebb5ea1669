/* node_test.c - members that share the memory of one host: the result of every collective. */
#include "tests/unit/node_rig.h"

#include <sys/resource.h>

/* ---- cases ----------------------------------------------------------------------------------- */
static void run_case(coll_kind kind, pen_dtype dtype, pen_op op, size_t n, buffers where,
                     bool in_place, bool by_counts)
{
    static kase k;
    k = (kase){.call      = {.kind       = kind,
                             .dtype      = dtype,
                             .op         = op,
                             .n          = n,
                             .scale      = 1,
                             .label      = "x",
                             .overwrites = (me.seq + (uint64_t)me.rank) % 3 == 0,
                             .root       = (int)(me.seq % (uint64_t)me.size)},
               .where     = where,
               .in_place  = in_place || kind == COLL_BROADCAST,
               .by_counts = by_counts};
    if (kind != COLL_BROADCAST && kind != COLL_REDUCE && kind != COLL_GATHER &&
        kind != COLL_SCATTER)
        k.call.root = 0;
    prepare(&k);
    must(me.team, &k.call, ++me.seq);
    if (!k.in_place) check_input(&k, "after success");
    check_output(&k, "after success");
    finish(&k);
}

static void every_kind(pen_dtype dtype, pen_op op, size_t n, buffers where, bool in_place)
{
    for (int kind = COLL_BARRIER + 1; kind < COLL_KINDS; kind++) {
        if (kind == COLL_BROADCAST && in_place) continue;
        run_case((coll_kind)kind, dtype, op, n, where, in_place, false);
        if (kind >= COLL_GATHER) run_case((coll_kind)kind, dtype, op, n, where, in_place, true);
    }
}

/* ---- programs of members --------------------------------------------------------------------- */
static void all_sizes_and_places(void)
{
    static const size_t sizes[] = {0, 1, 7, 4097, 20011};
    const coll_call barrier     = {.kind = COLL_BARRIER, .scale = 1, .label = ""};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (int where = 0; where < BUFFERS; where++)
            for (int in_place = 0; in_place < 2; in_place++)
                if (me.size <= 4 || sizes[s] < 5000 || (where + in_place) % 2 == me.size / 2 % 2)
                    every_kind(PEN_F32, PEN_SUM, sizes[s], (buffers)where, in_place);
    must(me.team, &barrier, ++me.seq);
}

static void all_types(void)
{
    static const pen_dtype dtypes[] = {PEN_F16, PEN_BF16, PEN_F64, PEN_I8,  PEN_U8,
                                       PEN_I32, PEN_U32,  PEN_I64, PEN_U64, PEN_F32};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        every_kind(dtypes[d], PEN_SUM, 40003, d % 2 ? MAPPED : UNALIGNED, d % 3 == 0);
        every_kind(dtypes[d], PEN_MAX, 333, FOREIGN, false);
    }
}

static void all_ops(void)
{
    static const pen_op float_ops[] = {PEN_SUM, PEN_AVG, PEN_PROD, PEN_MIN, PEN_MAX};
    static const pen_op whole_ops[] = {PEN_SUM, PEN_PROD, PEN_MIN, PEN_MAX, PEN_BXOR, PEN_LAND};
    static const size_t sizes[]     = {5, 40003};
    for (int s = 0; s < 2; s++)
        for (int where = 0; where < BUFFERS; where++) {
            for (int o = 0; o < 5; o++)
                run_case(COLL_ALL_REDUCE, PEN_F32, float_ops[o], sizes[s], (buffers)where, o & 1,
                         false);
            for (int o = 0; o < 6; o++)
                run_case(COLL_REDUCE_SCATTER, PEN_I32, whole_ops[o], sizes[s], (buffers)where,
                         o & 1, true);
        }
}

/* Some members in place, the others not. */
static void mixed_ones(void)
{
    static const size_t sizes[] = {10000, 300001, NODE_PAST_FROM_BYTES / 4 + 3};
    for (int where = 0; where < BUFFERS; where++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            run_case(COLL_ALL_REDUCE, PEN_F32, PEN_SUM, sizes[s], (buffers)where, me.rank % 2 == 0,
                     false);
}

/* Segments of shared memory are files: after the first call has made the windows, none is long enough for a scratch. */
static void ones_without_a_scratch(void)
{
    run_case(COLL_ALL_REDUCE, PEN_F32, PEN_SUM, 10000, FOREIGN, false, false);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, 1 << 20}) == 0, "setrlimit: %m");
    run_case(COLL_ALL_REDUCE, PEN_F32, PEN_SUM, 300001, FOREIGN, false, false);
}

static void large_ones(void)
{
    for (int where = 0; where < BUFFERS; where++)
        for (int in_place = 0; in_place < 2; in_place++) {
            run_case(COLL_ALL_REDUCE, PEN_F32, PEN_SUM, (1 << 20) + 3, (buffers)where, in_place,
                     false);
            run_case(COLL_REDUCE, PEN_F32, PEN_SUM, (1 << 20) + 3, (buffers)where, in_place, false);
            run_case(COLL_ALL_REDUCE, PEN_F32, PEN_SUM, NODE_PAST_FROM_BYTES / 4 + 3,
                     (buffers)where, in_place, false);
            if (in_place) continue;
            run_case(COLL_ALL_GATHER, PEN_U8, PEN_SUM, (1 << 20) + 3, (buffers)where, false, true);
            run_case(COLL_ALL_TO_ALL, PEN_U8, PEN_SUM, (1 << 20) + 3, (buffers)where, false, true);
            run_case(COLL_BROADCAST, PEN_U8, PEN_SUM, (1 << 20) + 3, (buffers)where, true, false);
        }
}

static void scaled(void)
{
    static float in[40000], out[40000];
    for (size_t n = 10; n <= 40000; n += 39990) {
        const coll_call call = {.kind  = COLL_ALL_REDUCE,
                                .dtype = PEN_F32,
                                .op    = PEN_SUM,
                                .n     = n,
                                .in    = in,
                                .out   = out,
                                .scale = 0.5 + me.rank,
                                .label = ""};
        for (size_t i = 0; i < n; i++) in[i] = (float)(i % 10);
        must(me.team, &call, ++me.seq);
        for (size_t i = 0; i < n; i++) {
            float want = 0;
            for (int r = 0; r < me.size; r++) want += (0.5f + (float)r) * (float)(i % 10);
            CHECK(out[i] == want, "scaled: element %zu is %g, not %g", i, out[i], want);
        }
    }
}

static void gather_where_it_lies(void)
{
    enum { N = 30000 };
    unsigned char *all = segment_alloc((size_t)N * MEMBERS_MAX, NULL);
    memset(all + (size_t)N * (size_t)me.rank, me.rank + 1, N);
    const coll_call call = {.kind  = COLL_ALL_GATHER,
                            .dtype = PEN_U8,
                            .n     = N,
                            .in    = all + (size_t)N * (size_t)me.rank,
                            .out   = all,
                            .scale = 1,
                            .label = ""};
    must(me.team, &call, ++me.seq);
    for (size_t i = 0; i < (size_t)(N * me.size); i++)
        CHECK(all[i] == i / N + 1, "byte %zu is %d", i, all[i]);
    segment_free(all);
}

/* ---- tests: results -------------------------------------------------------------------------- */
static void every_kind_is_right_for_one_to_nine_members(void **state)
{
    (void)state;
    for (int size = 1; size <= MEMBERS_MAX; size = size < 5 ? size + 1 : size + 2)
        run_members(size, -1, 0, all_sizes_and_places, NULL);
}

static void every_type_is_right(void **state)
{
    (void)state;
    run_members(2, -1, 0, all_types, NULL);
    run_members(3, -1, 0, all_types, NULL);
}

static void every_operation_is_right(void **state)
{
    (void)state;
    run_members(4, -1, 0, all_ops, NULL);
}

static void large_buffers_are_right(void **state)
{
    (void)state;
    run_members(2, -1, 0, large_ones, NULL);
    run_members(3, -1, 0, large_ones, NULL);
}

static void members_in_place_and_others_are_right(void **state)
{
    (void)state;
    run_members(2, -1, 0, mixed_ones, NULL);
    run_members(3, -1, 0, mixed_ones, NULL);
}

static void two_members_without_memory_for_a_scratch_read_windows(void **state)
{
    (void)state;
    run_members(2, -1, 0, ones_without_a_scratch, NULL);
}

static void each_input_has_its_own_scale(void **state)
{
    (void)state;
    run_members(3, -1, 0, scaled, NULL);
}

static void all_gather_in_place_leaves_its_own_part_in_place(void **state)
{
    (void)state;
    run_members(3, -1, 0, gather_where_it_lies, NULL);
}

/* ---- tests: groups --------------------------------------------------------------------------- */
static void many_groups(void)
{
    int ranks[MEMBERS_MAX];
    for (int i = 0; i < me.size; i++) ranks[i] = i;
    for (uint64_t id = 1000; id < 1000 + 4 * NODE_SLOTS; id++) {
        node_team *team = make_team(id, ranks, me.size);
        int32_t in = me.rank, out = -1;
        const coll_call call = {.kind  = COLL_ALL_REDUCE,
                                .dtype = PEN_I32,
                                .n     = 1,
                                .in    = &in,
                                .out   = &out,
                                .scale = 1,
                                .label = ""};
        must(team, &call, 1);
        CHECK(out == me.size * (me.size - 1) / 2, "group %d: %d", (int)id, out);
        node_team_destroy(team);
    }
}

static void slots_are_used_again_while_others_lag(void **state)
{
    (void)state;
    run_members(3, -1, 0, many_groups, NULL);
}

/* One thread advances both members by turns: no path may block. */
static void two_members_of_one_process_need_no_thread(void **state)
{
    (void)state;
    enum { N = 500000 };
    static _Alignas(64) unsigned char op[2][COLL_OP_BYTES];
    node_place *place[2];
    node_team *team[2];
    pen_error why;
    const int ranks[] = {0, 1};
    for (int i = 0; i < 2; i++) assert_int_equal(node_place_create(&place[i], &why), PEN_OK);
    const char *address[] = {node_place_address(place[0]), node_place_address(place[1])};
    for (int i = 0; i < 2; i++)
        assert_int_equal(node_team_create(place[i], 9, address, ranks, 2, i, &team[i], &why),
                         PEN_OK);
    for (uint64_t seq = 1; seq <= 2; seq++) {
        int32_t *in[2], *out[2];
        coll_call call[2];
        for (int i = 0; i < 2; i++) {
            in[i]  = seq == 1 ? segment_alloc(N * 4, NULL) : calloc(N, 4);
            out[i] = seq == 1 ? segment_alloc(N * 4, NULL) : calloc(N, 4);
            for (int k = 0; k < N; k++) in[i][k] = k * (i + 1);
            call[i] = (coll_call){.kind  = COLL_ALL_REDUCE,
                                  .dtype = PEN_I32,
                                  .n     = N,
                                  .in    = in[i],
                                  .out   = out[i],
                                  .scale = 1,
                                  .label = ""};
            memset(op[i], 0, sizeof op[i]);
            assert_int_equal(coll_path_node.start(team[i], op[i], &call[i], seq, &why), PEN_OK);
        }
        coll_state ended[2] = {COLL_RUNNING, COLL_RUNNING};
        for (int turn = 0; turn < 1000; turn++)
            if (ended[turn % 2] == COLL_RUNNING)
                ended[turn % 2] = coll_path_node.advance(op[turn % 2], &why);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(ended[i], COLL_DONE);
            for (int k = 0; k < N; k++) assert_int_equal(out[i][k], 3 * k);
            if (!segment_free(in[i])) free(in[i]);
            if (!segment_free(out[i])) free(out[i]);
        }
    }
    for (int i = 0; i < 2; i++) node_team_destroy(team[i]);
    for (int i = 0; i < 2; i++) node_place_destroy(place[i]);
}

static void a_number_is_read_only_where_memory_can_be_mapped(void **state)
{
    (void)state;
    node_place *place, *other;
    pen_error why;
    node_team *team;
    assert_int_equal(node_place_create(&place, &why), PEN_OK);
    assert_int_equal(node_place_create(&other, &why), PEN_OK);
    const char *own = node_place_address(place);
    for (int keep = 0; keep < 2; keep++) {
        const char *at = node_place_address(other);
        assert_true(node_read_number(own, keep) == node_place_number(place));
        assert_true(node_read_number(at, keep) == node_place_number(other));
        assert_true(node_read_number("node:999999999:3:ab:5", keep) == 0); /* no such process */
        assert_true(node_read_number("tcp://127.0.0.1:1", keep) == 0);
    }
    assert_true(node_place_number(place) != node_place_number(other));
    const char *address[] = {own, "node:999999999:3:ab:5"}; /* no such process */
    const int ranks[]     = {0, 1};
    assert_int_equal(node_team_create(place, 5, address, ranks, 2, 0, &team, &why),
                     PEN_UNREACHABLE);
    address[1] = "rubbish";
    assert_int_equal(node_team_create(place, 5, address, ranks, 2, 0, &team, &why),
                     PEN_UNREACHABLE);
    node_place_destroy(other);
    node_place_destroy(place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_is_read_only_where_memory_can_be_mapped),
        cmocka_unit_test(two_members_of_one_process_need_no_thread),
        cmocka_unit_test(every_kind_is_right_for_one_to_nine_members),
        cmocka_unit_test(every_type_is_right),
        cmocka_unit_test(every_operation_is_right),
        cmocka_unit_test(large_buffers_are_right),
        cmocka_unit_test(members_in_place_and_others_are_right),
        cmocka_unit_test(two_members_without_memory_for_a_scratch_read_windows),
        cmocka_unit_test(each_input_has_its_own_scale),
        cmocka_unit_test(all_gather_in_place_leaves_its_own_part_in_place),
        cmocka_unit_test(slots_are_used_again_while_others_lag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
