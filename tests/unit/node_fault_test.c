/* node_fault_test.c - members of one host that differ, die, come late or lie. */
#include "tests/unit/node_rig.h"

#include "worker/collective/fault_point.h"

/* ---- tests: what differs --------------------------------------------------------------------- */
static void differ(void)
{
    float data[16]       = {0}, out[16];
    const coll_call call = {.kind  = COLL_ALL_REDUCE,
                            .dtype = PEN_F32,
                            .op    = PEN_SUM,
                            .n     = me.rank == 2 ? 10 : 11,
                            .in    = data,
                            .out   = out,
                            .scale = 1,
                            .label = "loss"};
    pen_error why;
    CHECK(drive(me.team, &call, 1, &why) == COLL_FAILED, "no mismatch");
    CHECK(why.status == PEN_MISMATCH, "status %d: %.200s", why.status, why.text);
    strcpy(me.b->sentence[me.rank], why.text);
}

static void differ_in_counts(void)
{
    uint8_t data[64]        = {0}, out[64];
    const size_t counts[3]  = {4, 5, 6};
    const size_t gets[3][3] = {{4, 4, 4}, {5, 7, 5}, {6, 6, 6}};
    const coll_call call    = {.kind       = COLL_ALL_TO_ALL,
                               .dtype      = PEN_U8,
                               .counts     = counts,
                               .out_counts = gets[me.rank],
                               .in         = data,
                               .out        = out,
                               .scale      = 1,
                               .label      = "tokens"};
    pen_error why;
    CHECK(drive(me.team, &call, 1, &why) == COLL_FAILED, "no mismatch");
    strcpy(me.b->sentence[me.rank], why.text);
}

static void members_that_make_different_calls_get_one_sentence(void **state)
{
    (void)state;
    board b;
    run_members(4, -1, 0, differ, &b);
    assert_non_null(strstr(b.sentence[0], "all_reduce (call 1) differs: rank 2 has 10"));
    for (int i = 1; i < 4; i++) assert_string_equal(b.sentence[i], b.sentence[0]);
}

static void all_to_all_names_the_ranks_whose_counts_differ(void **state)
{
    (void)state;
    board b;
    run_members(3, -1, 0, differ_in_counts, &b);
    for (int i = 0; i < 3; i++)
        assert_string_equal(b.sentence[i], "all_to_all (call 1) differs: rank 1 sends 5 elements "
                                           "to rank 1, which expects 7");
}

/* ---- tests: death and delay ------------------------------------------------------------------ */
static void die_at(const char *path, uint64_t seq, int step)
{
    (void)path;
    if (seq == 2 && step == me.step) raise(SIGKILL);
}

/* The survivors of call 2 form a new group, which must work. */
static void go_on_without_the_victim(void)
{
    int ranks[MEMBERS_MAX], n = 0;
    for (int i = 0; i < me.size; i++)
        if (i != me.victim) ranks[n++] = i;
    node_team *team = make_team(78, ranks, n);
    enum { N = 50000 };
    int32_t *in = malloc(N * sizeof *in), *out = malloc(N * sizeof *out);
    for (int i = 0; i < N; i++) in[i] = i + me.rank;
    const coll_call call = {.kind  = COLL_ALL_REDUCE,
                            .dtype = PEN_I32,
                            .n     = N,
                            .in    = in,
                            .out   = out,
                            .scale = 1,
                            .label = ""};
    must(team, &call, 1);
    int ranks_sum = 0;
    for (int i = 0; i < n; i++) ranks_sum += ranks[i];
    for (int i = 0; i < N; i++) CHECK(out[i] == n * i + ranks_sum, "survivors: element %d", i);
    free(in);
    free(out);
    node_team_destroy(team);
}

static bool overwrites; /* what lose_one() allows */

/* Whole pages of an input that is not the output: PROT_READ, as the memory of a caller that only lends it may be. */
static void protect_input(const kase *k, int protection)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)k->in,
                    end = begin + k->n_in * k->bytes, from = (begin + page - 1) / page * page;
    if (k->in_place || end / page * page <= from) return;
    CHECK(mprotect((void *)from, end / page * page - from, protection) == 0, "mprotect: %m");
}

static void lose_one(coll_kind kind, size_t n, buffers where, bool in_place)
{
    const coll_call barrier = {.kind = COLL_BARRIER, .scale = 1, .label = ""};
    static kase k;
    pen_error why;
    k = (kase){.call     = {.kind       = kind,
                            .dtype      = PEN_F32,
                            .n          = n,
                            .scale      = 1,
                            .label      = "x",
                            .overwrites = overwrites},
               .where    = where,
               .in_place = in_place || kind == COLL_BROADCAST};
    if (me.rank == me.victim) coll_fault_point = die_at;
    prepare(&k);
    must(me.team, &barrier, 1);
    protect_input(&k, PROT_READ);
    const coll_state state = drive(me.team, &k.call, 2, &why);
    if (state == COLL_DONE)
        check_output(&k, "a member died after the last look");
    else if (!overwrites && (kind != COLL_BROADCAST || me.rank == k.call.root))
        check_input(&k, "a member died");
    coll_fault_point = NULL;
    if (me.rank == me.victim) _exit(state == COLL_DONE ? 0 : 1); /* no such step exists */
    while (atomic_load(&me.b->dead) == 0 && kill(getppid(), 0) == 0 && state != COLL_DONE)
        sched_yield();
    go_on_without_the_victim();
    protect_input(&k, PROT_READ | PROT_WRITE);
    finish(&k);
}

static void lose_small(void)
{
    lose_one(COLL_ALL_REDUCE, 100, FOREIGN, true);
}
static void lose_mapped(void)
{
    lose_one(COLL_ALL_REDUCE, 300000, MAPPED, false);
}
static void lose_mapped_in_place(void)
{
    lose_one(COLL_ALL_REDUCE, 300000, MAPPED, true);
}
static void lose_foreign(void)
{
    lose_one(COLL_ALL_REDUCE, 300000, FOREIGN, false);
}
static void lose_foreign_in_place(void)
{
    lose_one(COLL_ALL_REDUCE, 300000, FOREIGN, true);
}
static void lose_little_foreign_in_place(void)
{
    lose_one(COLL_ALL_REDUCE, 10000, FOREIGN, true);
}
static void lose_large_foreign_in_place(void)
{
    lose_one(COLL_ALL_REDUCE, NODE_PAST_FROM_BYTES / 4 + 5, FOREIGN, true);
}
static void lose_mixed_in_place(void)
{
    lose_one(COLL_ALL_REDUCE, NODE_PAST_FROM_BYTES / 4 + 5, MIXED, true);
}
static void lose_reduce_in_place(void)
{
    lose_one(COLL_REDUCE, 300000, MAPPED, true);
}
static void lose_mapped_that_is_overwritten(void)
{
    overwrites = true;
    lose_one(COLL_ALL_REDUCE, 300000, MAPPED, true);
}
static void lose_foreign_that_is_overwritten(void)
{
    overwrites = true;
    lose_one(COLL_ALL_REDUCE, NODE_PAST_FROM_BYTES / 4 + 5, FOREIGN, true);
}
static void lose_less_that_is_overwritten(void)
{
    overwrites = true;
    lose_one(COLL_ALL_REDUCE, 300000, FOREIGN, true);
}
static void lose_scatter_in_place(void)
{
    lose_one(COLL_REDUCE_SCATTER, 100000, MIXED, true);
}
static void lose_exchange_in_place(void)
{
    lose_one(COLL_ALL_TO_ALL, 100000, FOREIGN, true);
}
static void lose_broadcast(void)
{
    lose_one(COLL_BROADCAST, 300000, FOREIGN, true);
}

static void inputs_are_intact_whenever_a_member_dies(void **state)
{
    (void)state;
    void (*const programs[])(void) = {
        lose_small,
        lose_mapped,
        lose_mapped_in_place,
        lose_foreign_in_place,
        lose_large_foreign_in_place,
        lose_mixed_in_place,
        lose_reduce_in_place,
        lose_scatter_in_place,
        lose_exchange_in_place,
        lose_broadcast,
    };
    for (size_t p = 0; p < sizeof programs / sizeof programs[0]; p++)
        for (int step = 0; step < 7; step++) run_members(3, step % 3, step, programs[p], NULL);
}

/* Two members fold all of it themselves where they cannot map each other's memory. */
static void the_last_of_two_keeps_its_input(void **state)
{
    (void)state;
    void (*const programs[])(void) = {lose_foreign, lose_little_foreign_in_place,
                                      lose_foreign_in_place, lose_large_foreign_in_place,
                                      lose_mixed_in_place};
    for (size_t p = 0; p < sizeof programs / sizeof programs[0]; p++)
        for (int step = 0; step < 9; step++) run_members(2, step % 2, step, programs[p], NULL);
}

static void survivors_go_on_when_inputs_were_given_up(void **state)
{
    (void)state;
    for (int step = 0; step < 7; step++) {
        run_members(3, step % 3, step, lose_mapped_that_is_overwritten, NULL);
        run_members(3, step % 3, step, lose_foreign_that_is_overwritten, NULL);
        run_members(2, step % 2, step, lose_foreign_that_is_overwritten, NULL);
        run_members(2, step % 2, step, lose_less_that_is_overwritten, NULL);
    }
}

/* The victim announces that it is inside a block, and stays there until the others have given up. */
static void linger(const char *path, uint64_t seq, int step)
{
    (void)path;
    if (seq != 1 || step != 2) return;
    node_slot *own = node_own_slot(me.team);
    atomic_store(&own->busy, seq);
    atomic_store(&me.b->at_point, 1);
    while (atomic_load(&me.b->aborted) < me.size - 1) sched_yield();
    for (int i = 0; i < me.size; i++)
        if (i != me.rank) memset(me.team->out[i], 0x55, 100000);
}

static void give_up_on_one_that_is_inside_a_block(void)
{
    enum { N = 300000 };
    pen_error why;
    segment_ref ref;
    float *in = segment_alloc(N * 4, NULL), *out = segment_alloc(N * 4, NULL);
    const coll_call call = {.kind  = COLL_ALL_REDUCE,
                            .dtype = PEN_F32,
                            .n     = N,
                            .in    = in,
                            .out   = out,
                            .scale = 1,
                            .label = ""};
    if (me.rank == me.victim) {
        coll_fault_point = linger;
        CHECK(drive(me.team, &call, 1, &why) == COLL_FAILED, "the late one did not fail");
        CHECK(strstr(why.text, "gave the call up") != NULL, "%.200s", why.text);
        meet(&me.b->step, me.size);
        segment_free(in);
        segment_free(out);
        return;
    }
    CHECK(coll_path_node.start(me.team, me.op, &call, 1, &why) == PEN_OK, "start");
    while (atomic_load(&me.b->at_point) == 0 || !((node_op *)me.op)->pushes)
        CHECK(coll_path_node.advance(me.op, &why) == COLL_RUNNING, "ended: %.200s", why.text);
    int missing[MEMBERS_MAX];
    CHECK(coll_path_node.missing(me.op, missing, MEMBERS_MAX) >= 1, "nobody is missing");
    meet(&me.b->ready, me.size - 1);
    coll_path_node.abort(me.op);
    memset(out, 0x33, N * 4);
    CHECK(!segment_find(out, 4, &ref), "the output can still be mapped");
    atomic_fetch_add(&me.b->aborted, 1);
    meet(&me.b->step, me.size);
    for (size_t i = 0; i < N; i++)
        CHECK(((uint32_t *)out)[i] == 0x33333333u, "a late peer wrote element %zu", i);
    segment_free(in);
    segment_free(out);
}

/* The victim has saved the first piece of its slice, and overwrites more before the others give up. */
static void linger_in_place(const char *path, uint64_t seq, int step)
{
    (void)path;
    if (seq != 1 || step != 3) return;
    for (int i = 0; i < me.size; i++)
        memset(me.team->out[i] + me.team->from[0].offset, 0x77, NODE_DIRECT_BYTES);
    atomic_store(&me.b->at_point, 1);
    while (atomic_load(&me.b->aborted) < me.size - 1) sched_yield();
    for (int i = 0; i < me.size; i++)
        if (i != me.rank) memset(me.team->out[i], 0x55, 100000);
}

static void give_up_in_place_on_one_that_is_inside_a_block(void)
{
    static kase k;
    pen_error why;
    k = (kase){
        .call  = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 300000, .scale = 1, .label = ""},
        .where = MAPPED,
        .in_place = true};
    prepare(&k);
    meet(&me.b->ready, me.size);
    if (me.rank == me.victim) {
        coll_fault_point = linger_in_place;
        CHECK(drive(me.team, &k.call, 1, &why) == COLL_FAILED, "the late one did not fail");
        check_input(&k, "the late one has given up");
    } else {
        CHECK(coll_path_node.start(me.team, me.op, &k.call, 1, &why) == PEN_OK, "start");
        while (atomic_load(&me.b->at_point) == 0)
            CHECK(coll_path_node.advance(me.op, &why) == COLL_RUNNING, "ended: %.200s", why.text);
        coll_path_node.abort(me.op);
        check_input(&k, "a peer is inside a block");
        atomic_fetch_add(&me.b->aborted, 1);
    }
    meet(&me.b->step, me.size);
    check_input(&k, "a late peer wrote");
    finish(&k);
}

static void inputs_in_place_are_restored_while_a_peer_is_inside_a_block(void **state)
{
    (void)state;
    run_members(3, 1, 0, give_up_in_place_on_one_that_is_inside_a_block, NULL);
}

static void a_late_peer_cannot_write_into_an_abandoned_buffer(void **state)
{
    (void)state;
    run_members(3, 1, 0, give_up_on_one_that_is_inside_a_block, NULL);
}

/* ---- liars ------------------------------------------------------------------------------------------ */
enum { LIES = 15, FOREIGN_LIES = 12, LIE_ELEMENTS = 1 << 18 };

/* Whatever a broken or compromised member may leave in its entry. */
static void lie_in(node_entry *e, int lie)
{
    switch (lie) {
    case 0: e->publish = NODE_INLINE; break; /* 1 MiB of it */
    case 1: e->publish = NODE_NOTHING; break;
    case 2: e->publish = 99; break;
    case 3: e->in.pid = getppid(); break;
    case 4: e->in.offset++; break;
    case 5: e->in.offset += e->in.size; break;
    case 6:
        e->in.size   = (uint64_t)1 << 46;
        e->in.offset = (uint64_t)1 << 45;
        break;
    case 9: /* all_reduce in place; of foreign memory */
    case 12: e->save.pid = getppid(); break;
    case 10:
    case 13: e->save.offset++; break;
    case 11:
    case 14: e->save.offset += e->save.size; break;
    case 7: e->sends[0] = (uint64_t)1 << 40; break; /* all_to_all: to this member */
    default: e->sends[1] = (uint64_t)1 << 62; break;
    }
}

static void tell_lies(void)
{
    const size_t bytes = 2 * LIE_ELEMENTS * sizeof(float);
    float *in = segment_alloc(bytes, NULL), *mapped = segment_alloc(bytes, NULL);
    float *foreign = calloc(1, bytes);
    pen_error why;
    CHECK(in != NULL && mapped != NULL && foreign != NULL, "no memory");
    for (int lie = 0; lie < LIES; lie++) {
        float *out           = lie >= FOREIGN_LIES ? foreign : mapped;
        const coll_kind kind = lie >= 9   ? COLL_ALL_REDUCE
                               : lie >= 7 ? COLL_ALL_TO_ALL
                                          : COLL_BROADCAST;
        const coll_call call = {.kind  = kind,
                                .dtype = PEN_F32,
                                .root  = kind == COLL_BROADCAST ? 1 : 0,
                                .n     = LIE_ELEMENTS,
                                .in    = kind == COLL_ALL_TO_ALL ? in : out,
                                .out   = out,
                                .scale = 1,
                                .label = ""};
        const uint64_t seq   = ++me.seq;
        memset(me.op, 0, sizeof me.op);
        if (me.rank == 1) {
            CHECK(coll_path_node.start(me.team, me.op, &call, seq, &why) == PEN_OK, "start");
            lie_in(&node_own_slot(me.team)->entry[seq & 1], lie);
            meet(&me.b->step, 2 * lie + 2);
            meet(&me.b->ready, 2 * lie + 2);
            coll_path_node.abort(me.op);
        } else {
            meet(&me.b->step, 2 * lie + 2);
            const coll_state state = drive(me.team, &call, seq, &why);
            CHECK(state == COLL_FAILED && why.status == PEN_CORRUPT, "lie %d: state %d, %.160s",
                  lie, (int)state, state == COLL_FAILED ? why.text : "");
            meet(&me.b->ready, 2 * lie + 2);
        }
    }
    segment_free(in);
    segment_free(mapped);
    free(foreign);
}

static void a_members_claims_about_its_memory_are_checked_before_use(void **state)
{
    (void)state;
    run_members(2, -1, 0, tell_lies, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_that_make_different_calls_get_one_sentence),
        cmocka_unit_test(all_to_all_names_the_ranks_whose_counts_differ),
        cmocka_unit_test(inputs_are_intact_whenever_a_member_dies),
        cmocka_unit_test(the_last_of_two_keeps_its_input),
        cmocka_unit_test(survivors_go_on_when_inputs_were_given_up),
        cmocka_unit_test(inputs_in_place_are_restored_while_a_peer_is_inside_a_block),
        cmocka_unit_test(a_late_peer_cannot_write_into_an_abandoned_buffer),
        cmocka_unit_test(a_members_claims_about_its_memory_are_checked_before_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
