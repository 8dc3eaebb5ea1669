/* mesh_receive_test.c - many meshes in one process: mismatches, early and late members, damage. */
#include "mesh_rig.h"

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
            begin(r, i,
                  &(coll_call){.kind  = COLL_ALL_REDUCE,
                               .dtype = PEN_F32,
                               .n     = i == 2 ? n + 1 : n,
                               .in    = data[i],
                               .out   = data[i],
                               .scale = 1,
                               .label = "loss"});
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_that_differ_all_get_the_same_sentence),
        cmocka_unit_test(a_faster_member_may_be_one_call_ahead),
        cmocka_unit_test(a_root_far_ahead_is_held_back),
        cmocka_unit_test(parts_without_room_fail_the_call),
        cmocka_unit_test(a_rank_that_has_not_come_is_missing),
        cmocka_unit_test(one_flipped_bit_of_a_payload_fails_the_call),
        cmocka_unit_test(one_flipped_bit_of_a_head_is_refused_and_counted),
        cmocka_unit_test(strangers_and_earlier_incarnations_are_refused),
        cmocka_unit_test(a_part_without_a_place_fails_the_call),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
