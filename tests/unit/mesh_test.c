/* mesh_test.c - many meshes in one process: the result of every collective, with every scheme. */
#include "mesh_rig.h"
#include "proto/plan.h"

#include <stdio.h>
#include <unistd.h>

/* ---- numbers ----------------------------------------------------------------------------------- */
static uint64_t state = 1;

static uint32_t draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static void put(void *data, pen_dtype t, size_t i, double v)
{
    const float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    switch (t) {
    case PEN_F32: ((float *)data)[i] = f; break;
    case PEN_F64: ((double *)data)[i] = v; break;
    case PEN_BF16: ((uint16_t *)data)[i] = (uint16_t)(bits >> 16); break;
    case PEN_I32: ((int32_t *)data)[i] = (int32_t)v; break;
    case PEN_I64: ((int64_t *)data)[i] = (int64_t)v; break;
    default: ((int8_t *)data)[i] = (int8_t)v;
    }
}

static double get(const void *data, pen_dtype t, size_t i)
{
    float f;
    switch (t) {
    case PEN_F32: return ((const float *)data)[i];
    case PEN_F64: return ((const double *)data)[i];
    case PEN_BF16: {
        const uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
    case PEN_I32: return ((const int32_t *)data)[i];
    case PEN_I64: return (double)((const int64_t *)data)[i];
    default: return ((const int8_t *)data)[i];
    }
}

/* Element i of member r's input: exact in every type, also the sum of nine. */
static double input(int r, size_t i)
{
    return (double)((i * 7 + (size_t)r * 5 + i / 11) % 23) - 11;
}

/* ---- every kind against its definition ----------------------------------------------------------- */
typedef struct {
    coll_kind kind;
    pen_dtype dtype;
    pen_op op;
    size_t n;
    int root;
    const size_t *counts; /* [n of members] */
    bool in_place;
} plan_of;

static size_t part_at(const plan_of *p, int who)
{
    return coll_part_offset(p->counts, p->n, who);
}

static double folded(const plan_of *p, int n, size_t i)
{
    double sum = input(0, i);
    for (int r = 1; r < n; r++) {
        const double x = input(r, i);
        sum            = p->op == PEN_MAX   ? (x > sum ? x : sum)
                         : p->op == PEN_MIN ? (x < sum ? x : sum)
                                            : sum + x;
    }
    return sum;
}

/* All results are parts of it, from result_at() on; all_to_all's are made for one member each. */
static uint8_t *make_expected(const plan_of *p, int n, int who)
{
    const bool exchanges = p->kind == COLL_ALL_TO_ALL;
    const bool gathers   = exchanges || p->kind == COLL_GATHER || p->kind == COLL_ALL_GATHER;
    const bool copies    = p->kind == COLL_BROADCAST || p->kind == COLL_SCATTER;
    const bool is_whole =
        p->kind == COLL_BROADCAST || p->kind == COLL_REDUCE || p->kind == COLL_ALL_REDUCE;
    /* counts[] is what every member sends to each, so this one gets counts[who] from each. */
    const size_t each  = coll_part(p->counts, p->n, who);
    const size_t total = is_whole ? p->n : exchanges ? each * (size_t)n : part_at(p, n);
    uint8_t *data      = malloc(total * plan_dtype_bytes(p->dtype) + 1);
    size_t filled      = 0;
    assert_non_null(data);
    for (int r = 0; r < n && gathers; r++) {
        const size_t from = exchanges ? part_at(p, who) : 0,
                     size = exchanges ? each : coll_part(p->counts, p->n, r);
        for (size_t i = 0; i < size; i++) put(data, p->dtype, filled++, input(r, from + i));
    }
    for (size_t i = 0; i < total && !gathers; i++)
        put(data, p->dtype, i, copies ? input(p->root, i) : folded(p, n, i));
    return data;
}

static size_t result_at(const plan_of *p, int who)
{
    return p->kind == COLL_SCATTER || p->kind == COLL_REDUCE_SCATTER ? part_at(p, who) : 0;
}

typedef struct {
    uint8_t *in, *out, *copy;
    size_t n_in, n_out, bytes_in;
    size_t out_counts[MEMBERS_MAX];
} buffers;

static buffers make_buffers(const plan_of *p, const coll_call *call, int n, int who)
{
    const size_t e = plan_dtype_bytes(p->dtype);
    buffers b  = {.n_in = coll_in_elements(call, n, who), .n_out = coll_out_elements(call, n, who)};
    b.bytes_in = b.n_in * e;
    const size_t room = (b.n_in > b.n_out ? b.n_in : b.n_out) * e + 1;
    b.in              = calloc(1, room);
    b.copy            = calloc(1, room);
    b.out             = p->in_place || p->kind == COLL_BROADCAST ? b.in : calloc(1, room);
    assert_true(b.in != NULL && b.out != NULL && b.copy != NULL);
    for (size_t i = 0; i < b.n_in; i++) put(b.in, p->dtype, i, input(who, i));
    memcpy(b.copy, b.in, b.bytes_in);
    return b;
}

static void free_buffers(buffers *b)
{
    if (b->out != b->in) free(b->out);
    free(b->in);
    free(b->copy);
}

static coll_call call_of(const plan_of *p, int who, buffers *b, int n)
{
    coll_call c = {.kind   = p->kind,
                   .op     = p->op,
                   .dtype  = p->dtype,
                   .root   = p->root,
                   .n      = p->n,
                   .counts = p->counts,
                   .scale  = 1,
                   .label  = "loss"};
    if (p->counts != NULL) c.n = p->kind == COLL_ALL_TO_ALL ? 0 : p->counts[who];
    for (int i = 0; i < n; i++) b->out_counts[i] = p->counts != NULL ? p->counts[who] : p->n;
    if (p->kind == COLL_ALL_TO_ALL && p->counts != NULL) c.out_counts = b->out_counts;
    return c;
}

static void check_result(const plan_of *p, int n, int who, const buffers *b, const uint8_t *all)
{
    const size_t e          = plan_dtype_bytes(p->dtype);
    const uint8_t *expected = all + result_at(p, who) * e;
    const bool is_alike     = memcmp(b->out, expected, b->n_out * e) == 0;
    for (size_t i = 0; i < b->n_out && !is_alike; i++) {
        const double is = get(b->out, p->dtype, i), should_be = get(expected, p->dtype, i);
        if (is != should_be)
            fail_msg("%s type %d of %zu, %d members: element %zu of member %d is %g, not %g",
                     coll_kind_name(p->kind), p->dtype, p->n, n, i, who, is, should_be);
    }
    assert_true(is_alike);
    if (b->out != b->in) assert_memory_equal(b->in, b->copy, b->bytes_in);
}

static void try_call(rig *r, const plan_of *p)
{
    buffers b[MEMBERS_MAX];
    r->seq++;
    for (int i = 0; i < r->n; i++) {
        coll_call c = call_of(p, i, &b[i], r->n);
        size_t kept[MEMBERS_MAX];
        memcpy(kept, b[i].out_counts, sizeof kept);
        b[i] = make_buffers(p, &c, r->n, i);
        memcpy(b[i].out_counts, kept, sizeof kept);
        c.in  = b[i].in;
        c.out = b[i].out;
        if (c.out_counts != NULL) c.out_counts = b[i].out_counts;
        begin(r, i, &c);
        /* Members that have begun work already while others have not begun. */
        for (int k = 0; k <= i && (r->seq & 1) != 0; k++) advance(r, k);
    }
    run(r, r->n);
    expect_done(r);
    uint8_t *expected = make_expected(p, r->n, 0);
    for (int i = 0; i < r->n; i++) {
        if (i > 0 && p->kind == COLL_ALL_TO_ALL) {
            free(expected);
            expected = make_expected(p, r->n, i);
        }
        check_result(p, r->n, i, &b[i], expected);
        free_buffers(&b[i]);
    }
    free(expected);
}

static void try_kinds(rig *r, pen_dtype t, size_t n, bool in_place)
{
    for (coll_kind k = COLL_BARRIER; k < COLL_KINDS; k++) {
        const plan_of p = {.kind     = k,
                           .dtype    = t,
                           .op       = t == PEN_I32 ? PEN_MAX : PEN_SUM,
                           .n        = k == COLL_BARRIER ? 0 : n,
                           .root     = r->n - 1,
                           .in_place = in_place};
        try_call(r, &p);
    }
}

static void every_kind_matches_its_definition_for_one_to_nine_members(void **unused)
{
    static const pen_dtype types[] = {PEN_F32, PEN_I32, PEN_BF16, PEN_F64, PEN_I8};
    static const size_t sizes[]    = {0, 1, 13, 1000, 40001};
    (void)unused;
    for (size_t s = 0; s < 2; s++)
        for (int n = 2; n <= 9; n += s == 0 ? 1 : 3) {
            rig *r = rig_open(n, schemes[s]);
            for (size_t t = 0; t < 5; t++) try_kinds(r, types[t], sizes[t], t % 2 == 1);
            rig_close(r);
        }
}

static void a_group_of_one_needs_no_peer(void **unused)
{
    (void)unused;
    rig *r = rig_open(1, schemes[0]);
    try_kinds(r, PEN_F32, 100, false);
    try_kinds(r, PEN_F32, 100, true);
    rig_close(r);
}

static void parts_may_have_any_length(void **unused)
{
    static const size_t counts[]  = {3, 0, 1000, 70000, 1};
    static const coll_kind kind[] = {COLL_GATHER, COLL_ALL_GATHER, COLL_SCATTER,
                                     COLL_REDUCE_SCATTER, COLL_ALL_TO_ALL};
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r = rig_open(5, schemes[s]);
        for (size_t k = 0; k < 5; k++)
            try_call(r, &(plan_of){.kind = kind[k], .dtype = PEN_F32, .counts = counts});
        rig_close(r);
    }
}

static void large_calls_use_segments_and_lanes(void **unused)
{
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r = rig_open_with(3, &(rig_options){.scheme = schemes[s], .lanes = 3});
        for (coll_kind k = COLL_BROADCAST; k < COLL_KINDS; k++) {
            const plan_of p = {.kind = k, .dtype = PEN_F32, .n = 400001, .in_place = k % 2 == 1};
            try_call(r, &p);
        }
        rig_close(r);
    }
}

static void every_algorithm_gives_the_same_result(void **unused)
{
    (void)unused;
    pen_error why;
    for (const schedule_algorithm *const *a = schedule_all; *a != NULL; a++)
        for (coll_kind k = COLL_BROADCAST; k < COLL_KINDS; k++) {
            char rule[128];
            schedule_table *table;
            if (!(*a)->fits(k, 4)) continue;
            snprintf(rule, sizeof rule, "%s : %s", coll_kind_name(k), (*a)->name);
            must(schedule_table_parse(rule, &table, &why), &why);
            rig *r = rig_open_with(
                4, &(rig_options){.scheme = schemes[0], .disorderly = true, .table = table});
            try_call(r, &(plan_of){.kind = k, .dtype = PEN_F32, .n = 5000, .root = 1});
            try_call(r, &(plan_of){.kind = k, .dtype = PEN_BF16, .n = 160001, .in_place = true});
            rig_close(r);
            schedule_table_free(table);
        }
}

/* ((x0 + x1) + x2) ..., each times its scale, in float32: equal bits, no tolerance. */
static void check_scaled_sums(rig *r, size_t n, int scaled)
{
    enum { N = 5, COUNT = 300001 };
    float *in[N], *out[N];
    r->seq++;
    for (int i = 0; i < N; i++) {
        in[i]  = malloc(COUNT * sizeof(float));
        out[i] = malloc(COUNT * sizeof(float));
        for (size_t k = 0; k < COUNT; k++) in[i][k] = (float)draw() / 12345.678f;
        begin(r, i,
              &(coll_call){.kind  = COLL_ALL_REDUCE,
                           .dtype = PEN_F32,
                           .n     = n,
                           .in    = in[i],
                           .out   = out[i],
                           .scale = i == scaled ? 0.3 : 1,
                           .label = ""});
    }
    run(r, N);
    expect_done(r);
    for (size_t k = 0; k < n; k++) {
        volatile float sum = scaled == 0 ? 0.3f * in[0][k] : in[0][k];
        for (int i = 1; i < N; i++) {
            volatile float x = i == scaled ? 0.3f * in[i][k] : in[i][k];
            sum              = sum + x;
        }
        for (int i = 0; i < N; i++)
            if (out[i][k] != sum)
                fail_msg("%zu of %zu, rank %d scaled: %g on rank %d, not %g", k, n, scaled,
                         out[i][k], i, sum);
    }
    for (int i = 0; i < N; i++) {
        free(in[i]);
        free(out[i]);
    }
}

static void sums_are_in_rank_order_and_scaled(void **unused)
{
    static const char *const rules[] = {"all_reduce : direct", "all_reduce : one_shot",
                                        "all_reduce : bruck", "all_reduce : chain",
                                        "all_reduce : funnel"};
    (void)unused;
    for (int k = 0; k < 5; k++) {
        pen_error why;
        schedule_table *table;
        must(schedule_table_parse(rules[k], &table, &why), &why);
        rig *r = rig_open_with(5, &(rig_options){.scheme = schemes[0], .table = table});
        for (int scaled = 0; scaled < 5; scaled++) check_scaled_sums(r, 1000, scaled);
        check_scaled_sums(r, 300001, 3);
        rig_close(r);
        schedule_table_free(table);
    }
}

static void bytes_on_the_wire_match_the_formula(void **unused)
{
    (void)unused;
    enum { N = 4, COUNT = 1 << 20 };
    rig *r = rig_open(N, schemes[0]);
    try_call(r, &(plan_of){.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = COUNT});
    const coll_call c = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = COUNT, .scale = 1};
    const schedule_algorithm *a = schedule_for_call(NULL, &c, N, true, false);
    const double bytes          = a->cost(COLL_ALL_REDUCE, N, COUNT * 4.0).bytes;
    for (int i = 0; i < N; i++) {
        assert_true((double)stat_get(&r->member[i].stats, STAT_COLL_BYTES) == bytes);
        assert_int_equal(stat_get(&r->member[i].stats, STAT_COLL_OPS), 1);
    }
    rig_close(r);
}

/* ---- large groups ---------------------------------------------------------------------------- */
static int count_links(const mesh *m)
{
    int n = 0;
    for (int i = 0; i < m->n_peers; i++)
        n += m->peer[i].link != NULL && m->peer[i].link[0].t != NULL;
    return n;
}

static void seventy_members_need_few_connections_for_what_all_of_them_do(void **unused)
{
    static const coll_kind kinds[] = {COLL_BARRIER, COLL_ALL_REDUCE, COLL_ALL_GATHER,
                                      COLL_BROADCAST};
    static const size_t sizes[]    = {1, 1000, 100000};
    (void)unused;
    rig *r = rig_open(MEMBERS_MAX, schemes[0]);
    for (size_t k = 0; k < 4; k++)
        for (size_t s = 0; s < 3; s++)
            try_call(r, &(plan_of){.kind  = kinds[k],
                                   .dtype = PEN_F32,
                                   .n     = kinds[k] == COLL_BARRIER      ? 0
                                            : kinds[k] == COLL_ALL_GATHER ? sizes[s] / 10
                                                                          : sizes[s]});
    for (int i = 0; i < r->n; i++) assert_true(count_links(r->member[i].m) <= 2 * 7);
    rig_close(r);
}

static void every_kind_matches_its_definition_for_seventy_members(void **unused)
{
    static const size_t sizes[] = {0, 1, 13, 1000};
    (void)unused;
    rig *r = rig_open(MEMBERS_MAX, schemes[0]);
    for (size_t s = 0; s < 4; s++) {
        try_kinds(r, PEN_F32, sizes[s], s % 2 == 1);
        try_kinds(r, PEN_I32, sizes[s], s % 2 == 0);
    }
    rig_close(r);
}

/* Advances all until one has failed; no other may have ended.  Returns that one. */
static int run_to_failure(rig *r)
{
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    for (int failed = -1; clock_ms(&clock_real) < until;)
        for (int i = 0; i < r->n; i++) {
            if (r->member[i].state == COLL_DONE) fail_msg("member %d has ended", i);
            advance(r, i);
            if (r->member[i].state == COLL_FAILED) failed = i;
            if (failed >= 0) return failed;
        }
    fail_msg("nobody failed");
    return -1;
}

static void in_a_large_group_who_sees_another_call_says_so_and_nobody_ends(void **unused)
{
    static const coll_kind kinds[] = {COLL_BARRIER, COLL_ALL_REDUCE, COLL_BROADCAST};
    static float in[MEMBERS_MAX][1000], out[MEMBERS_MAX][1000];
    (void)unused;
    for (int odd = 0; odd < MEMBERS_MAX; odd += 23)
        for (size_t k = 0; k < 3; k++) {
            rig *r = rig_open(MEMBERS_MAX, schemes[0]);
            r->seq = 1;
            for (int i = 0; i < r->n; i++)
                begin(r, i,
                      &(coll_call){.kind  = i == odd ? COLL_ALL_REDUCE : kinds[k],
                                   .dtype = i != odd && kinds[k] == COLL_BARRIER ? PEN_U8 : PEN_F32,
                                   .n = i != odd && kinds[k] == COLL_BARRIER ? 0 : 999 + (i == odd),
                                   .in    = in[i],
                                   .out   = kinds[k] == COLL_BROADCAST && i != odd ? in[i] : out[i],
                                   .scale = 1,
                                   .label = "loss"});
            const member *m = &r->member[run_to_failure(r)];
            char name[24];
            snprintf(name, sizeof name, "rank %d has", odd);
            assert_int_equal(m->why.status, PEN_MISMATCH);
            if (strstr(m->why.text, name) == NULL || strstr(m->why.text, "differs") == NULL)
                fail_msg("%s", m->why.text);
            for (int i = 0; i < r->n; i++)
                if (r->member[i].state == COLL_RUNNING) coll_path_wire.abort(r->member[i].op);
            rig_close(r);
        }
}

static void all_of_a_large_group_learn_that_one_does_not_accept(void **unused)
{
    (void)unused;
    bool accepts[MEMBERS_MAX];
    rig *r = rig_open(MEMBERS_MAX, schemes[0]);
    for (int no = -1; no < MEMBERS_MAX; no += 10) {
        r->seq++;
        for (int i = 0; i < r->n; i++) {
            accepts[i] = i != no;
            begin(r, i,
                  &(coll_call){.kind    = COLL_BARRIER,
                               .dtype   = PEN_U8,
                               .scale   = 1,
                               .label   = "",
                               .accepts = &accepts[i]});
        }
        run(r, r->n);
        expect_done(r);
        for (int i = 0; i < r->n; i++) assert_int_equal(accepts[i], no < 0);
    }
    rig_close(r);
}

/* ---- groups ---------------------------------------------------------------------------------- */
static void a_group_may_be_made_after_its_first_message_came(void **unused)
{
    (void)unused;
    static const int ranks[] = {2, 0};
    rig *r                   = rig_open(3, schemes[0]);
    wire_team *world[]       = {r->member[0].team, NULL, r->member[2].team};
    const coll_call c        = {.kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = ""};
    pen_error why;
    r->seq = 1;
    must(wire_team_create(r->member[2].m, 5, ranks, 2, 0, &r->member[2].team, &why), &why);
    begin(r, 2, &c);
    for (int i = 0; i < 10; i++) {
        advance(r, 2);
        mesh_advance(r->member[0].m);
    }
    must(wire_team_create(r->member[0].m, 5, ranks, 2, 1, &r->member[0].team, &why), &why);
    begin(r, 0, &c);
    r->member[1].state = COLL_DONE;
    run(r, 3);
    expect_done(r);
    /* A call of the world group runs beside it; late messages for a closed group are dropped. */
    wire_team_destroy(r->member[0].team);
    r->seq = 2;
    begin(r, 2, &c);
    for (int i = 0; i < 10; i++) {
        advance(r, 2);
        mesh_advance(r->member[0].m);
    }
    coll_path_wire.abort(r->member[2].op);
    r->seq            = 0;
    r->member[0].team = world[0];
    r->member[2].team = world[2];
    try_call(r, &(plan_of){.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 100});
    assert_int_equal(stat_get(&r->member[0].stats, STAT_REFUSED), 0);
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_matches_its_definition_for_one_to_nine_members),
        cmocka_unit_test(a_group_of_one_needs_no_peer),
        cmocka_unit_test(parts_may_have_any_length),
        cmocka_unit_test(large_calls_use_segments_and_lanes),
        cmocka_unit_test(every_algorithm_gives_the_same_result),
        cmocka_unit_test(sums_are_in_rank_order_and_scaled),
        cmocka_unit_test(bytes_on_the_wire_match_the_formula),
        cmocka_unit_test(every_kind_matches_its_definition_for_seventy_members),
        cmocka_unit_test(seventy_members_need_few_connections_for_what_all_of_them_do),
        cmocka_unit_test(in_a_large_group_who_sees_another_call_says_so_and_nobody_ends),
        cmocka_unit_test(all_of_a_large_group_learn_that_one_does_not_accept),
        cmocka_unit_test(a_group_may_be_made_after_its_first_message_came),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
