/* mesh_receive_test.c - many meshes in one process: mismatches, early and late members, damage. */
#include "mesh_rig.h"

#include "common/base/crc.h"

#include <unistd.h>

/* ---- rank 1 is played by the test --------------------------------------------------------- */
static wire_peer show_of(coll_kind kind, uint64_t n)
{
    return (wire_peer){.kind     = WIRE_SHOW,
                       .seq      = 1,
                       .has_show = true,
                       .show     = {.kind = (uint32_t)kind, .dtype = PEN_F32, .n = n}};
}

/* ---- mismatches ---------------------------------------------------------------------------------- */
static void members_that_differ_all_get_the_same_sentence(void **unused)
{
    enum { N = 4 };
    static const size_t sizes[] = {100, 400000};
    (void)unused;
    for (size_t s = 0; s < 4; s++) {
        rig *r         = rig_open(N, schemes[s % 2]);
        const size_t n = sizes[s / 2];
        float *data[N];
        r->seq = 418;
        for (int i = 0; i < N; i++) {
            data[i] = calloc(n + 1, sizeof(float));
            for (size_t k = 0; k <= n; k++) data[i][k] = (float)i + 1;
            begin_sum(r, i, i == 2 ? n + 1 : n, data[i], data[i], "loss");
        }
        run(r, N);
        for (int i = 0; i < N; i++) {
            assert_int_equal(r->member[i].state, COLL_FAILED);
            assert_int_equal(r->member[i].why.status, PEN_MISMATCH);
            assert_string_equal(r->member[i].why.text, r->member[0].why.text);
            assert_non_null(strstr(r->member[i].why.text, "all_reduce (call 418) differs: rank 2"));
            for (size_t k = 0; k <= n; k++) assert_true(data[i][k] == (float)i + 1);
            free(data[i]);
        }
        rig_close(r);
    }
}

static rig *rig_of_ring(int n, uint64_t show_ms, schedule_table **table)
{
    pen_error why;
    must(schedule_table_parse("all_reduce : ring", table, &why), &why);
    return rig_open_with(
        n, &(rig_options){
               .scheme = schemes[0], .disorderly = true, .table = *table, .show_ms = show_ms});
}

enum { FEW = 64 };

static void a_difference_that_no_neighbour_sees_gives_all_the_same_sentence(void **unused)
{
    enum { N = 8 };
    (void)unused;
    for (int other = 0; other < N; other++) {
        schedule_table *table;
        rig *r           = rig_of_ring(N, 0, &table);
        float in[N][FEW] = {0}, out[N][FEW];
        r->seq           = 7;
        for (int i = 0; i < N; i++)
            begin_sum(r, i, i == other ? FEW - 1 : FEW, in[i], out[i], "loss");
        run(r, N);
        for (int i = 0; i < N; i++) {
            assert_int_equal(r->member[i].state, COLL_FAILED);
            assert_int_equal(r->member[i].why.status, PEN_MISMATCH);
            assert_string_equal(r->member[i].why.text, r->member[0].why.text);
        }
        rig_close(r);
        schedule_table_free(table);
    }
}

/* On another connection, for instance: its header may differ. */
static void data_counts_only_when_its_sender_has_shown_itself(void **unused)
{
    (void)unused;
    for (int differs = 0; differs < 2; differs++) {
        rig *r        = rig_open(2, schemes[0]);
        float in[FEW] = {0}, out[FEW], come[FEW];
        for (int k = 0; k < FEW; k++) come[k] = (float)k;
        r->seq = 1;
        begin_sum(r, 0, FEW, in, out, "loss");
        forger f       = forge(r);
        wire_peer part = {
            .kind = WIRE_PART, .seq = 1, .total = sizeof come, .crc = crc32c(0, come, sizeof come)};
        say(&f, &part, come, sizeof come, -1);
        for (int i = 0; i < 100; i++) advance(r, 0);
        assert_int_equal(r->member[0].state, COLL_RUNNING);
        wire_peer show = show_of(COLL_ALL_REDUCE, FEW);
        show.show.op   = differs ? PEN_MAX : PEN_SUM;
        say(&f, &show, NULL, 0, -1);
        run(r, 1);
        assert_int_equal(r->member[0].state, differs ? COLL_FAILED : COLL_DONE);
        if (differs) assert_int_equal(r->member[0].why.status, PEN_MISMATCH);
        for (int k = 0; k < FEW && !differs; k++) assert_true(out[k] == (float)k);
        transport_close(f.t, 0);
        rig_close(r);
    }
}

static void a_short_call_shows_itself_only_to_those_it_sends_to(void **unused)
{
    enum { N = 8 };
    (void)unused;
    schedule_table *table;
    rig *r           = rig_of_ring(N, 2 * PATIENCE_MS, &table);
    float in[N][FEW] = {0}, out[N][FEW];
    int told         = 0;
    for (int i = 0; i < N; i++)
        for (int k = 0; k < FEW; k++) in[i][k] = (float)(i + k);
    r->seq = 1;
    for (int i = 0; i < N; i++) begin_sum(r, i, FEW, in[i], out[i], "loss");
    run(r, N);
    expect_done(r);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) told += r->member[i].team->mate[k].is_told;
    assert_int_equal(told, N);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < FEW; k++) assert_true(out[i][k] == (float)(28 + N * k));
    rig_close(r);
    schedule_table_free(table);
}

/* ---- early and late members ---------------------------------------------------------------------- */
static void a_faster_member_may_be_one_call_ahead(void **unused)
{
    (void)unused;
    enum { N = 3, COUNT = 200000 };
    static float in[N][COUNT], first[N][COUNT], second[N][COUNT];
    rig *r = rig_open(N, schemes[1]);
    for (int i = 0; i < N; i++)
        for (size_t k = 0; k < COUNT; k++) in[i][k] = (float)(i + 1);
    for (r->seq = 1; r->seq <= 2; r->seq++)
        for (int i = 0; i < N; i++) {
            /* Member 0 ends its first call and begins the second before the others run again. */
            begin(r, i,
                  &(coll_call){.kind  = COLL_ALL_REDUCE,
                               .dtype = PEN_F32,
                               .n     = COUNT,
                               .in    = in[i],
                               .out   = r->seq == 1 ? first[i] : second[i],
                               .scale = (double)r->seq,
                               .label = ""});
            if (i < N - 1) continue;
            const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
            while (r->member[0].state == COLL_RUNNING && clock_ms(&clock_real) < until)
                for (int k = 0; k < N; k++) advance(r, k);
            if (r->seq == 1) {
                const uint64_t seq = r->seq++;
                begin(r, 0,
                      &(coll_call){.kind  = COLL_ALL_REDUCE,
                                   .dtype = PEN_F32,
                                   .n     = COUNT,
                                   .in    = in[0],
                                   .out   = second[0],
                                   .scale = 2,
                                   .label = ""});
                for (int k = 0; k < 50; k++) advance(r, 0);
                r->seq = seq;
                while (r->member[1].state == COLL_RUNNING || r->member[2].state == COLL_RUNNING) {
                    for (int k = 0; k < N; k++) advance(r, k);
                    assert_true(clock_ms(&clock_real) < until);
                }
                r->seq = 2;
                for (int k = 1; k < N; k++)
                    begin(r, k,
                          &(coll_call){.kind  = COLL_ALL_REDUCE,
                                       .dtype = PEN_F32,
                                       .n     = COUNT,
                                       .in    = in[k],
                                       .out   = second[k],
                                       .scale = 2,
                                       .label = ""});
                run(r, N);
                expect_done(r);
            }
            i = N;
        }
    for (int i = 0; i < N; i++)
        for (size_t k = 0; k < COUNT; k++) {
            assert_true(first[i][k] == 6);
            assert_true(second[i][k] == 12);
        }
    rig_close(r);
}

/* Its header differs from the others', but agrees with them: it has no element, so no kind of memory. */
static void data_that_comes_before_headers_are_compared_is_kept(void **unused)
{
    (void)unused;
    enum { N = 3, COUNT = 100 };
    static const size_t counts[] = {0, COUNT, COUNT};
    static float in[COUNT], out[2 * COUNT];
    rig *r      = rig_open(N, schemes[0]);
    coll_call c = {.kind   = COLL_GATHER,
                   .dtype  = PEN_F32,
                   .root   = 2,
                   .counts = counts,
                   .in     = in,
                   .out    = out,
                   .scale  = 1,
                   .label  = ""};
    for (size_t k = 0; k < COUNT; k++) in[k] = (float)k;
    r->seq       = 1;
    c.any_memory = true;
    begin(r, 0, &c);
    c.any_memory = false;
    c.n          = COUNT;
    begin(r, 2, &c);
    for (int i = 0; i < 20; i++) {
        advance(r, 0);
        advance(r, 2);
    }
    begin(r, 1, &c);
    run(r, N);
    expect_done(r);
    for (size_t k = 0; k < 2 * COUNT; k++) assert_true(out[k] == (float)(k % COUNT));
    rig_close(r);
}

static void a_root_far_ahead_is_held_back(void **unused)
{
    (void)unused;
    enum { COUNT = 6 << 20 };
    rig *r        = rig_open_with(2, &(rig_options){.scheme = schemes[0], .park = 2 << 20});
    uint8_t *from = malloc(COUNT), *to = calloc(1, COUNT);
    memset(from, 7, COUNT);
    r->seq = 1;
    begin(r, 0,
          &(coll_call){.kind  = COLL_BROADCAST,
                       .dtype = PEN_U8,
                       .n     = COUNT,
                       .in    = from,
                       .out   = from,
                       .scale = 1,
                       .label = ""});
    for (int i = 0; i < 200; i++) {
        advance(r, 0);
        mesh_advance(r->member[1].m);
    }
    assert_int_equal(r->member[0].state, COLL_RUNNING);
    assert_true(stat_get(&r->member[0].stats, STAT_COLL_BYTES) <= 1 << 20);
    begin(r, 1,
          &(coll_call){.kind  = COLL_BROADCAST,
                       .dtype = PEN_U8,
                       .n     = COUNT,
                       .in    = to,
                       .out   = to,
                       .scale = 1,
                       .label = ""});
    run(r, 2);
    expect_done(r);
    assert_memory_equal(from, to, COUNT);
    assert_int_equal(stat_get(&r->member[1].stats, STAT_REFUSED), 0);
    free(from);
    free(to);
    rig_close(r);
}

static void parts_without_room_fail_the_call(void **unused)
{
    (void)unused;
    rig *r          = rig_open_with(2, &(rig_options){.scheme = schemes[0], .park = 1 << 20});
    forger f        = forge(r);
    uint8_t *data   = calloc(1, 2 << 20);
    wire_peer show  = show_of(COLL_BROADCAST, 2 << 20);
    wire_peer part  = {.kind = WIRE_PART, .seq = 1, .total = 2 << 20};
    r->seq          = 1;
    show.show.root  = 1;
    show.show.dtype = PEN_U8;
    say(&f, &show, NULL, 0, -1);
    say(&f, &part, data, 2 << 20, -1); /* more than a member may send unrequested */
    while (mesh_advance(r->member[0].m)) {}
    begin(r, 0,
          &(coll_call){.kind  = COLL_BROADCAST,
                       .dtype = PEN_U8,
                       .root  = 1,
                       .n     = 2 << 20,
                       .in    = data,
                       .out   = data,
                       .scale = 1,
                       .label = ""});
    run(r, 1);
    assert_int_equal(r->member[0].why.status, PEN_NO_MEMORY);
    assert_non_null(strstr(r->member[0].why.text, "park_bytes_max"));
    transport_close(f.t, 0);
    free(data);
    rig_close(r);
}

static void a_rank_that_has_not_come_is_missing(void **unused)
{
    (void)unused;
    rig *r = rig_open(3, schemes[0]);
    int missing[3];
    r->seq            = 1;
    const coll_call c = {.kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = "epoch"};
    begin(r, 0, &c);
    begin(r, 2, &c);
    for (int i = 0; i < 20; i++) {
        advance(r, 0);
        advance(r, 2);
    }
    assert_int_equal(r->member[0].state, COLL_RUNNING);
    assert_int_equal(coll_path_wire.missing(r->member[0].op, missing, 3), 1);
    assert_int_equal(missing[0], 1);
    begin(r, 1, &c);
    run(r, 3);
    expect_done(r);
    rig_close(r);
}

/* Advances all but one, for longer than a short call lasts. */
static void advance_but(rig *r, int left_out, int ms)
{
    const uint64_t until = clock_ms(&clock_real) + (uint64_t)ms;
    while (clock_ms(&clock_real) < until)
        for (int i = 0; i < r->n; i++)
            if (i != left_out && r->member[i].state == COLL_RUNNING)
                advance(r, i);
            else if (i != left_out)
                mesh_advance(r->member[i].m); /* as the thread of a worker does between calls */
}

static void a_rank_that_has_not_come_is_missing_also_far_from_it(void **unused)
{
    enum { N = 8, LATE = 3 };
    (void)unused;
    schedule_table *table;
    rig *r           = rig_of_ring(N, 0, &table);
    float in[N][FEW] = {0}, out[N][FEW];
    int missing[N];
    r->seq = 1;
    for (int i = 0; i < N; i++)
        if (i != LATE) begin_sum(r, i, FEW, in[i], out[i], "loss");
    advance_but(r, LATE, 50);
    for (int i = 0; i < N; i++) {
        if (i == LATE) continue;
        assert_int_equal(coll_path_wire.missing(r->member[i].op, missing, N), 1);
        assert_int_equal(missing[0], LATE);
    }
    begin_sum(r, LATE, FEW, in[LATE], out[LATE], "loss");
    run(r, N);
    expect_done(r);
    rig_close(r);
    schedule_table_free(table);
}

/* Rank 3 has come and then stands still; the others may have ended the call. */
static void a_rank_that_has_ended_the_call_is_not_missing(void **unused)
{
    enum { N = 4, SLOW = 3 };
    (void)unused;
    rig *r           = rig_open(N, schemes[0]);
    float in[N][FEW] = {0}, out[N][FEW];
    int missing[N];
    r->seq = 1;
    for (int i = 0; i < N; i++) begin_sum(r, i, FEW, in[i], out[i], "loss");
    for (int i = 0; i < 20; i++)
        advance(r, SLOW); /* its input is on its way; what it passes on is not */
    advance_but(r, SLOW, 50);
    int running = 0;
    for (int i = 0; i < N; i++) {
        if (i == SLOW || r->member[i].state != COLL_RUNNING) continue;
        running++;
        assert_int_equal(coll_path_wire.missing(r->member[i].op, missing, N), 1);
        assert_int_equal(missing[0], SLOW);
    }
    assert_true(running > 0 && running < N - 1);
    run(r, N);
    expect_done(r);
    rig_close(r);
}

/* ---- damage ------------------------------------------------------------------------------------------- */
static void one_flipped_bit_of_a_payload_fails_the_call(void **unused)
{
    (void)unused;
    rig *r        = rig_open(2, schemes[0]);
    float data[8] = {0}, come[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    r->seq = 1;
    begin(r, 0,
          &(coll_call){.kind  = COLL_BROADCAST,
                       .dtype = PEN_F32,
                       .root  = 1,
                       .n     = 8,
                       .in    = data,
                       .out   = data,
                       .scale = 1,
                       .label = "weights"});
    forger f       = forge(r);
    wire_peer show = show_of(COLL_BROADCAST, 8);
    show.show.root = 1;
    say(&f, &show, NULL, 0, -1);
    wire_peer part = {.kind = WIRE_PART, .seq = 1, .total = sizeof come, .crc = 12345};
    say(&f, &part, come, sizeof come, -1);
    run(r, 1);
    assert_int_equal(r->member[0].state, COLL_FAILED);
    assert_int_equal(r->member[0].why.status, PEN_CORRUPT);
    assert_int_equal(r->member[0].why.rank, 1);
    assert_string_equal(r->member[0].why.tensor, "weights");
    assert_non_null(
        strstr(r->member[0].why.text,
               "broadcast 'weights' (call 1): data of rank 1 arrived with a wrong checksum"));
    assert_int_equal(stat_get(&r->member[0].stats, STAT_CORRUPT), 1);
    transport_close(f.t, 0);
    rig_close(r);
}

static void one_flipped_bit_of_a_head_is_refused_and_counted(void **unused)
{
    (void)unused;
    rig *r   = rig_open(2, schemes[0]);
    forger f = forge(r);
    r->seq   = 1;
    begin(r, 0, &(coll_call){.kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = ""});
    wire_peer show  = show_of(COLL_BARRIER, 0);
    show.show.dtype = PEN_U8;
    for (int bit = 0; bit < 20 * 8 + 64; bit++) say(&f, &show, NULL, 0, bit);
    for (int i = 0; i < 10; i++) advance(r, 0);
    assert_int_equal(stat_get(&r->member[0].stats, STAT_REFUSED), 20 * 8 + 64);
    assert_int_equal(r->member[0].state, COLL_RUNNING);
    say(&f, &show, NULL, 0, -1);
    run(r, 1);
    assert_int_equal(r->member[0].state, COLL_DONE);
    transport_close(f.t, 0);
    rig_close(r);
}

static void strangers_and_earlier_incarnations_are_refused(void **unused)
{
    (void)unused;
    rig *r   = rig_open(2, schemes[0]);
    forger f = forge(r);
    r->incarnation[1] += 1;
    wire_peer show = show_of(COLL_BARRIER, 0);
    say(&f, &show, NULL, 0, -1);
    r->incarnation[0] += 1;
    say(&f, &show, NULL, 0, -1);
    while (mesh_advance(r->member[0].m)) {}
    assert_int_equal(stat_get(&r->member[0].stats, STAT_REFUSED), 2);
    transport_close(f.t, 0);
    rig_close(r);
}

static void a_part_without_a_place_fails_the_call(void **unused)
{
    (void)unused;
    rig *r        = rig_open(2, schemes[0]);
    float data[8] = {0}, come[8] = {0};
    forger f = forge(r);
    r->seq   = 1;
    begin(r, 0,
          &(coll_call){.kind  = COLL_BROADCAST,
                       .dtype = PEN_F32,
                       .root  = 1,
                       .n     = 8,
                       .in    = data,
                       .out   = data,
                       .scale = 1,
                       .label = ""});
    wire_peer show = show_of(COLL_BROADCAST, 8);
    show.show.root = 1;
    say(&f, &show, NULL, 0, -1);
    wire_peer part = {.kind = WIRE_PART, .seq = 1, .slot = 4000, .total = sizeof come};
    say(&f, &part, come, sizeof come, -1);
    run(r, 1);
    assert_int_equal(r->member[0].why.status, PEN_MISMATCH);
    transport_close(f.t, 0);
    rig_close(r);
}

/* It may have been of a group that is not made yet, which then would wait for it. */
static void a_message_lost_for_want_of_memory_fails_the_first_call_of_the_next_group(void **unused)
{
    static const int ranks[] = {0, 1};
    (void)unused;
    rig *r        = rig_open(2, schemes[0]);
    float in[FEW] = {0}, out[FEW];
    pen_error why;
    r->member[0].m->is_starved = true;
    mesh_advance(r->member[0].m);
    r->seq = 1;
    for (int next = 1; next <= 2; next++) { /* the second one has lost nothing */
        must(wire_team_create(r->member[0].m, GROUP + (uint64_t)next, ranks, 2, 0,
                              &r->member[0].team, &why),
             &why);
        begin_sum(r, 0, FEW, in, out, "loss");
        for (int i = 0; i < 100; i++) advance(r, 0);
        assert_int_equal(r->member[0].state, next == 1 ? COLL_FAILED : COLL_RUNNING);
        if (next == 1) assert_int_equal(r->member[0].why.status, PEN_NO_MEMORY);
    }
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_that_differ_all_get_the_same_sentence),
        cmocka_unit_test(a_difference_that_no_neighbour_sees_gives_all_the_same_sentence),
        cmocka_unit_test(data_counts_only_when_its_sender_has_shown_itself),
        cmocka_unit_test(a_message_lost_for_want_of_memory_fails_the_first_call_of_the_next_group),
        cmocka_unit_test(a_short_call_shows_itself_only_to_those_it_sends_to),
        cmocka_unit_test(a_faster_member_may_be_one_call_ahead),
        cmocka_unit_test(data_that_comes_before_headers_are_compared_is_kept),
        cmocka_unit_test(a_root_far_ahead_is_held_back),
        cmocka_unit_test(parts_without_room_fail_the_call),
        cmocka_unit_test(a_rank_that_has_not_come_is_missing),
        cmocka_unit_test(a_rank_that_has_not_come_is_missing_also_far_from_it),
        cmocka_unit_test(a_rank_that_has_ended_the_call_is_not_missing),
        cmocka_unit_test(one_flipped_bit_of_a_payload_fails_the_call),
        cmocka_unit_test(one_flipped_bit_of_a_head_is_refused_and_counted),
        cmocka_unit_test(strangers_and_earlier_incarnations_are_refused),
        cmocka_unit_test(a_part_without_a_place_fails_the_call),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
