/* mesh_test.c - many meshes in one process: collectives, disagreement, damage, loss, letters. */
#include "common/clock.h"
#include "proto/plan.h"
#include "proto/wire_peer.h"
#include "worker/coll/mesh_internal.h"

#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MEMBERS_MAX = 9, PATIENCE_MS = 20000, GROUP = 77, PARK_BYTES = 64 << 20 };

/* ---- a job in one process --------------------------------------------------------------------- */
typedef struct {
    mesh *m;
    wire_team *team;
    stat_set stats;
    coll_call call;
    coll_state state;
    pen_error why;
    _Alignas(64) uint8_t op[COLL_OP_BYTES];
} member;

typedef struct {
    int n;
    uint64_t seq;
    const char *address[MEMBERS_MAX];
    uint64_t incarnation[MEMBERS_MAX];
    member member[MEMBERS_MAX];
} rig;

static const char *const schemes[] = {"inproc://*", "tcp://127.0.0.1:0"};

static void must(pen_status status, const pen_error *why)
{
    if (status != PEN_OK) fail_msg("%s", why->text);
}

typedef struct {
    const char *scheme;
    uint64_t lanes, park;
    bool disorderly; /* not deterministic */
    const schedule_table *table;
} rig_options;

static rig *rig_open_with(int n, const rig_options *o)
{
    pen_error why;
    int ranks[MEMBERS_MAX];
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->n = n;
    for (int i = 0; i < n; i++) {
        const mesh_options options = {.listen         = o->scheme,
                                      .lanes          = o->lanes > 0 ? o->lanes : 1,
                                      .heartbeat_ms   = 2000,
                                      .park_bytes_max = o->park > 0 ? o->park : PARK_BYTES,
                                      .deterministic  = !o->disorderly,
                                      .table          = o->table,
                                      .stats          = &r->member[i].stats};
        must(mesh_create(&options, &r->member[i].m, &why), &why);
        r->address[i]     = mesh_address(r->member[i].m);
        r->incarnation[i] = 1000 + (uint64_t)i;
        ranks[i]          = i;
    }
    for (int i = 0; i < n; i++) {
        mesh *m = r->member[i].m;
        must(mesh_set_peers(m, i, n, r->incarnation, r->address, NULL, 5, &why), &why);
        must(wire_team_create(m, GROUP, ranks, n, i, &r->member[i].team, &why), &why);
    }
    return r;
}

static rig *rig_open(int n, const char *scheme)
{
    return rig_open_with(n, &(rig_options){.scheme = scheme});
}

static void rig_close(rig *r)
{
    for (int i = 0; i < r->n; i++) mesh_destroy(r->member[i].m, 0);
    free(r);
}

static void begin(rig *r, int who, const coll_call *call)
{
    member *m = &r->member[who];
    m->call   = *call;
    m->state  = COLL_RUNNING;
    memset(m->op, 0, sizeof m->op);
    must(coll_path_wire.start(m->team, m->op, &m->call, r->seq, &m->why), &m->why);
}

static void advance(rig *r, int who)
{
    member *m = &r->member[who];
    if (m->state == COLL_RUNNING) m->state = coll_path_wire.advance(m->op, &m->why);
}

/* Round and round until the first n have ended. */
static void run(rig *r, int n)
{
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    for (int running = n; running > 0;) {
        running = 0;
        for (int i = 0; i < n; i++) {
            advance(r, i);
            running += r->member[i].state == COLL_RUNNING;
        }
        if (clock_ms(&clock_real) > until) fail_msg("%d of %d members never ended", running, n);
    }
}

static void expect_done(rig *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->member[i].state != COLL_DONE) fail_msg("member %d: %s", i, r->member[i].why.text);
}

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

/* What member r has as element i of its input: exact in every type, also when nine are added. */
static double input(int r, size_t i)
{
    return (double)((i * 7 + (size_t)r * 5 + i / 11) % 23) - 11;
}

/* ---- every kind against what it means ------------------------------------------------------------ */
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

/* Element i of member who's result; in all_to_all member r's input for w begins at its part of w. */
static double result(const plan_of *p, int n, int who, size_t i)
{
    int from = 0;
    switch (p->kind) {
    case COLL_BROADCAST: return input(p->root, i);
    case COLL_REDUCE:
    case COLL_ALL_REDUCE: return folded(p, n, i);
    case COLL_SCATTER: return input(p->root, part_at(p, who) + i);
    case COLL_REDUCE_SCATTER: return folded(p, n, part_at(p, who) + i);
    case COLL_ALL_TO_ALL: {
        /* counts[] is what everybody sends to each, so this one gets counts[who] from each. */
        const size_t each = coll_part(p->counts, p->n, who);
        return input((int)(i / each), part_at(p, who) + i % each);
    }
    default:
        while (from + 1 < n && i >= part_at(p, from + 1)) from++;
        return input(from, i - part_at(p, from));
    }
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

static void check_result(const plan_of *p, int n, int who, const buffers *b)
{
    for (size_t i = 0; i < b->n_out; i++) {
        const double is = get(b->out, p->dtype, i), should_be = result(p, n, who, i);
        if (is != should_be)
            fail_msg("%s type %d of %zu, %d members: element %zu of member %d is %g, not %g",
                     coll_kind_name(p->kind), p->dtype, p->n, n, i, who, is, should_be);
    }
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
        /* Those who came already work while others have not begun. */
        for (int k = 0; k <= i && (r->seq & 1) != 0; k++) advance(r, k);
    }
    run(r, r->n);
    expect_done(r);
    for (int i = 0; i < r->n; i++) {
        check_result(p, r->n, i, &b[i]);
        free_buffers(&b[i]);
    }
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

static void every_kind_does_what_it_says_for_one_to_nine_members(void **unused)
{
    static const pen_dtype types[] = {PEN_F32, PEN_I32, PEN_BF16, PEN_F64, PEN_I8};
    static const size_t sizes[]    = {0, 1, 13, 1000, 40001};
    (void)unused;
    for (size_t s = 0; s < 2; s++)
        for (int n = 2; n <= MEMBERS_MAX; n += s == 0 ? 1 : 3) {
            rig *r = rig_open(n, schemes[s]);
            for (size_t t = 0; t < 5; t++) try_kinds(r, types[t], sizes[t], t % 2 == 1);
            rig_close(r);
        }
}

static void a_group_of_one_needs_nobody(void **unused)
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

static void large_calls_go_in_segments_and_over_lanes(void **unused)
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

static void every_algorithm_gives_the_same(void **unused)
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

/* ((x0 + x1) + x2) ..., each times its scale, in float32: the bits, not about the value. */
static void sums_are_in_rank_order_and_scaled(void **unused)
{
    (void)unused;
    enum { N = 5, COUNT = 300001 };
    float *in[N], *out[N];
    rig *r = rig_open(N, schemes[0]);
    r->seq = 1;
    for (int i = 0; i < N; i++) {
        in[i]  = malloc(COUNT * sizeof(float));
        out[i] = malloc(COUNT * sizeof(float));
        for (size_t k = 0; k < COUNT; k++) in[i][k] = (float)draw() / 12345.678f;
        begin(r, i,
              &(coll_call){.kind  = COLL_ALL_REDUCE,
                           .dtype = PEN_F32,
                           .n     = COUNT,
                           .in    = in[i],
                           .out   = out[i],
                           .scale = i == 3 ? 0.3 : 1,
                           .label = ""});
    }
    run(r, N);
    expect_done(r);
    for (size_t k = 0; k < COUNT; k++) {
        volatile float sum = in[0][k];
        for (int i = 1; i < N; i++) {
            volatile float x = i == 3 ? 0.3f * in[i][k] : in[i][k];
            sum              = sum + x;
        }
        for (int i = 0; i < N; i++) assert_true(out[i][k] == sum);
    }
    for (int i = 0; i < N; i++) {
        free(in[i]);
        free(out[i]);
    }
    rig_close(r);
}

static void what_goes_over_the_wire_is_what_the_formula_says(void **unused)
{
    (void)unused;
    enum { N = 4, COUNT = 1 << 20 };
    rig *r = rig_open(N, schemes[0]);
    try_call(r, &(plan_of){.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = COUNT});
    const coll_call c = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = COUNT, .scale = 1};
    const schedule_algorithm *a = schedule_for_call(NULL, &c, N, true);
    const double bytes          = a->cost(COLL_ALL_REDUCE, N, COUNT * 4.0).bytes;
    for (int i = 0; i < N; i++) {
        assert_true((double)stat_get(&r->member[i].stats, STAT_COLL_BYTES) == bytes);
        assert_int_equal(stat_get(&r->member[i].stats, STAT_COLL_OPS), 1);
    }
    rig_close(r);
}

/* ---- rank 1 is played by hand ------------------------------------------------------------- */
typedef struct {
    rig *r;
    transport *t;
} forger;

static forger forge(rig *r)
{
    forger f = {.r = r};
    pen_error why;
    transport_event event;
    must(transport_dial(r->address[0], NULL, &f.t, &why), &why);
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    while (transport_recv(f.t, &event) != PEN_OK) assert_true(clock_ms(&clock_real) < until);
    assert_int_equal(event.kind, TRANSPORT_UP);
    return f;
}

static void say(forger *f, wire_peer *head, const void *data, size_t bytes, int flip)
{
    wire_out out = {0};
    pen_error why;
    head->job           = 5;
    head->from          = f->r->incarnation[1];
    head->to            = f->r->incarnation[0];
    head->rank          = 1;
    head->group         = GROUP;
    head->payload_bytes = bytes;
    must(wire_peer_encode(head, &out, &why), &why);
    if (flip >= 0) out.data[flip / 8] ^= (uint8_t)(1 << flip % 8);
    buf *body = NULL;
    if (bytes > 0) {
        body = buf_new(bytes);
        memcpy(body->data, data, bytes);
    }
    assert_int_equal(transport_send(f->t, 0, out.data, out.size, body), PEN_OK);
    wire_out_free(&out);
}

static wire_peer show_of(coll_kind kind, uint64_t n)
{
    return (wire_peer){.kind     = WIRE_SHOW,
                       .seq      = 1,
                       .has_show = true,
                       .show     = {.kind = (uint32_t)kind, .dtype = PEN_F32, .n = n}};
}

/* ---- disagreement -------------------------------------------------------------------------------- */
static void members_that_differ_all_hear_the_same_sentence(void **unused)
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

/* ---- who is early, who is late ------------------------------------------------------------------- */
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
            /* Member 0 ends its first call and begins the second before the others look again. */
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
    /* A call of the world goes on beside it; what still comes for a group that is gone is dropped. */
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

static void parts_for_which_there_is_no_room_fail_the_call(void **unused)
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
    say(&f, &part, data, 2 << 20, -1); /* more than a member may send unasked */
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

static void who_has_not_come_is_missing(void **unused)
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

/* ---- loss ---------------------------------------------------------------------------------------- */
static void an_aborted_call_leaves_inputs_and_gives_buffers_back(void **unused)
{
    enum { COUNT = 2000000 };
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r      = rig_open(3, schemes[s]);
        float *data = malloc(COUNT * sizeof *data);
        r->seq      = 1;
        for (size_t k = 0; k < COUNT; k++) data[k] = 3;
        begin(r, 0,
              &(coll_call){.kind  = COLL_ALL_REDUCE,
                           .dtype = PEN_F32,
                           .n     = COUNT,
                           .in    = data,
                           .out   = data,
                           .scale = 1,
                           .label = ""});
        for (int i = 0; i < 100; i++) {
            advance(r, 0);
            mesh_advance(r->member[1].m);
        }
        mesh_lost(r->member[0].m, 2);
        if (r->member[0].state == COLL_RUNNING) advance(r, 0);
        if (r->member[0].state == COLL_RUNNING) coll_path_wire.abort(r->member[0].op);
        for (size_t k = 0; k < COUNT; k++) assert_true(data[k] == 3);
        free(data); /* AddressSanitizer watches that nobody reads it */
        for (int i = 0; i < 50; i++)
            for (int k = 0; k < 3; k++) mesh_advance(r->member[k].m);
        rig_close(r);
    }
}

static void a_member_that_dies_in_a_call_is_named(void **unused)
{
    (void)unused;
    rig *r            = rig_open(3, schemes[1]);
    const coll_call c = {.kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = ""};
    for (r->seq = 1; r->seq <= 2; r->seq++) {
        for (int i = 0; i < (r->seq == 1 ? 3 : 2); i++) begin(r, i, &c);
        if (r->seq == 1) {
            run(r, 3);
            expect_done(r);
        }
    }
    mesh_destroy(r->member[2].m, 0);
    r->member[2].m = NULL;
    run(r, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r->member[i].state, COLL_FAILED);
        assert_int_equal(r->member[i].why.status, PEN_PEER_LOST);
        assert_int_equal(r->member[i].why.rank, 2);
        assert_non_null(strstr(r->member[i].why.text, "rank 2"));
    }
    rig_close(r);
}

/* Destroys each mesh as soon as its call has ended, while the others may still be in theirs. */
static void run_and_leave(rig *r)
{
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    for (int left = 0; left < r->n;) {
        for (int i = 0; i < r->n; i++) {
            member *m = &r->member[i];
            if (m->m == NULL) continue;
            advance(r, i);
            if (m->state == COLL_RUNNING) continue;
            if (m->state != COLL_DONE) fail_msg("member %d: %s", i, m->why.text);
            mesh_destroy(m->m, 500);
            m->m = NULL;
            left++;
        }
        if (clock_ms(&clock_real) > until) fail_msg("%d of %d have left", left, r->n);
    }
}

static void who_leaves_after_its_last_call_fails_nobody(void **unused)
{
    (void)unused;
    static float in[3][100000], out[3][100000];
    static const coll_kind kinds[] = {COLL_BARRIER, COLL_BROADCAST, COLL_REDUCE, COLL_ALL_REDUCE};
    for (int round = 0; round < 48; round++) {
        rig *r =
            rig_open_with(3, &(rig_options){.scheme = schemes[1], .lanes = round % 8 < 4 ? 1 : 2});
        r->seq = 1;
        for (int i = 0; i < 3; i++) {
            coll_call c = {.kind  = kinds[round % 4],
                           .in    = in[i],
                           .out   = out[i],
                           .n     = round % 3 == 0 ? 10 : 100000,
                           .dtype = PEN_F32,
                           .op    = PEN_SUM,
                           .scale = 1,
                           .label = ""};
            if (c.kind == COLL_BROADCAST) c.in = out[i];
            if (c.kind == COLL_BARRIER) c.in = c.out = NULL, c.n = 0;
            begin(r, i, &c);
        }
        run_and_leave(r);
        rig_close(r);
    }
}

static void a_call_with_one_that_has_left_names_it(void **unused)
{
    (void)unused;
    rig *r            = rig_open(2, schemes[1]);
    const coll_call c = {.kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = ""};
    r->seq            = 1;
    for (int i = 0; i < 2; i++) begin(r, i, &c);
    run(r, 2);
    expect_done(r);
    mesh_destroy(r->member[1].m, 500);
    r->member[1].m = NULL;
    r->seq         = 2;
    begin(r, 0, &c);
    run(r, 1);
    assert_int_equal(r->member[0].why.status, PEN_PEER_LOST);
    assert_int_equal(r->member[0].why.rank, 1);
    assert_non_null(strstr(r->member[0].why.text, "rank 1 (unknown)"));
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
        strstr(r->member[0].why.text, "broadcast 'weights' (call 1): what rank 1 sent"));
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

static void strangers_and_the_past_are_refused(void **unused)
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

/* ---- letters --------------------------------------------------------------------------------------- */
static mesh_message *post_send(rig *r, int from, int to, int tag, const void *data, size_t n)
{
    mesh_message *one;
    pen_error why;
    must(mesh_send(r->member[from].team, to, tag, data, n, PEN_F32, "mail", &one, &why), &why);
    return one;
}

static mesh_message *post_recv(rig *r, int at, int from, int tag, void *data, size_t n)
{
    mesh_message *one;
    pen_error why;
    must(mesh_recv(r->member[at].team, from, tag, data, n, PEN_F32, "mail", &one, &why), &why);
    return one;
}

static mesh_result wait_for(rig *r, mesh_message *one)
{
    mesh_result result   = {0};
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    while (!mesh_test(one, &result)) {
        for (int i = 0; i < r->n; i++) mesh_advance(r->member[i].m);
        if (clock_ms(&clock_real) > until) fail_msg("a message never ended");
    }
    return result;
}

static void expect_letter(rig *r, mesh_message *one, int source, int tag, size_t count)
{
    const mesh_result result = wait_for(r, one);
    if (result.status != PEN_OK) fail_msg("%s", result.why.text);
    assert_int_equal(result.source, source);
    assert_int_equal(result.tag, tag);
    assert_int_equal(result.count, count);
}

static void letters_match_by_sender_and_tag_in_the_order_sent(void **unused)
{
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r = rig_open(3, schemes[s]);
        float sent[6], come[6] = {0};
        mesh_message *out[6];
        for (int i = 0; i < 6; i++) sent[i] = (float)i;
        for (int i = 0; i < 6; i++) out[i] = post_send(r, i % 2, 2, i / 2, &sent[i], 1);
        for (int i = 0; i < 6; i++) wait_for(r, out[i]);
        expect_letter(r, post_recv(r, 2, 1, 1, &come[3], 1), 1, 1, 1);
        expect_letter(r, post_recv(r, 2, 0, PEN_ANY, &come[0], 1), 0, 0, 1);
        expect_letter(r, post_recv(r, 2, 0, 2, &come[4], 1), 0, 2, 1);
        expect_letter(r, post_recv(r, 2, 0, PEN_ANY, &come[2], 1), 0, 1, 1);
        expect_letter(r, post_recv(r, 2, PEN_ANY, PEN_ANY, &come[1], 1), 1, 0, 1);
        expect_letter(r, post_recv(r, 2, PEN_ANY, PEN_ANY, &come[5], 1), 1, 2, 1);
        for (int i = 0; i < 6; i++) assert_true(come[i] == (float)i);
        rig_close(r);
    }
}

static void many_letters_keep_their_order_also_beyond_the_budget(void **unused)
{
    (void)unused;
    enum { N = 1500, EACH = 500 };
    static float sent[N][EACH], come[EACH];
    static mesh_message *out[N];
    rig *r = rig_open_with(2, &(rig_options){.scheme = schemes[1], .park = 1 << 20});
    for (int i = 0; i < N; i++) {
        sent[i][0] = (float)i;
        out[i]     = post_send(r, 0, 1, 4, sent[i], i % 7 == 0 ? 0 : EACH);
    }
    for (int i = 0; i < 100; i++) mesh_advance(r->member[1].m);
    for (int i = 0; i < N; i++) {
        expect_letter(r, post_recv(r, 1, 0, 4, come, EACH), 0, 4, i % 7 == 0 ? 0 : EACH);
        if (i % 7 != 0) assert_true(come[0] == (float)i);
    }
    for (int i = 0; i < N; i++) expect_letter(r, out[i], 1, 4, i % 7 == 0 ? 0 : EACH);
    assert_int_equal(stat_get(&r->member[1].stats, STAT_REFUSED), 0);
    rig_close(r);
}

/* With rendezvous alone, sends that wait for each other's receives would never end. */
static void large_letters_in_a_circle_all_arrive(void **unused)
{
    enum { N = 4, COUNT = 1000003 };
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r = rig_open_with(N, &(rig_options){.scheme = schemes[s], .lanes = 2});
        float *sent[N], *come[N];
        mesh_message *out[N], *in[N];
        for (int i = 0; i < N; i++) {
            sent[i] = malloc(COUNT * sizeof(float));
            come[i] = calloc(COUNT, sizeof(float));
            for (size_t k = 0; k < COUNT; k++) sent[i][k] = (float)(k % 1000) + (float)i;
            out[i] = post_send(r, i, (i + 1) % N, 9, sent[i], COUNT);
        }
        for (int i = 0; i < N; i++) in[i] = post_recv(r, i, (i + N - 1) % N, 9, come[i], COUNT);
        for (int i = 0; i < N; i++) expect_letter(r, in[i], (i + N - 1) % N, 9, COUNT);
        for (int i = 0; i < N; i++) expect_letter(r, out[i], (i + 1) % N, 9, COUNT);
        for (int i = 0; i < N; i++)
            assert_memory_equal(come[(i + 1) % N], sent[i], COUNT * sizeof(float));
        for (int i = 0; i < N; i++) {
            free(sent[i]);
            free(come[i]);
        }
        rig_close(r);
    }
}

static void a_letter_that_does_not_fit_stays_for_a_larger_room(void **unused)
{
    (void)unused;
    static float sent[100000], come[100000];
    static const size_t sizes[] = {10, 100000};
    rig *r                      = rig_open(2, schemes[0]);
    for (int i = 0; i < 4; i++) {
        const size_t n     = sizes[i / 2];
        const int to       = i % 2; /* also to oneself */
        mesh_message *out  = post_send(r, 0, to, 1, sent, n);
        mesh_result result = wait_for(r, post_recv(r, to, 0, 1, come, n - 1));
        assert_int_equal(result.status, PEN_TOO_SMALL);
        assert_int_equal(result.count, n);
        assert_non_null(strstr(result.why.text, "room for"));
        mesh_message *in;
        pen_error why;
        must(mesh_recv(r->member[to].team, 0, 1, come, n, PEN_I32, "mail", &in, &why), &why);
        assert_int_equal(wait_for(r, in).status, PEN_MISMATCH);
        for (size_t k = 0; k < n; k++) sent[k] = (float)(k + (size_t)i);
        expect_letter(r, post_recv(r, to, 0, 1, come, n), 0, 1, n);
        expect_letter(r, out, to, 1, n);
        if (to == 0 || n > 50000) assert_memory_equal(sent, come, n * sizeof(float));
    }
    rig_close(r);
}

static void a_cancelled_letter_touches_nothing_any_more(void **unused)
{
    (void)unused;
    enum { COUNT = 10 << 20 }; /* more than is sent before the receiver asks again */
    rig *r      = rig_open(2, schemes[1]);
    float *sent = calloc(COUNT, sizeof *sent), *come = calloc(COUNT, sizeof *come), one = 1, got;
    sent[0]              = 1;
    mesh_message *out    = post_send(r, 0, 1, 1, sent, COUNT);
    mesh_message *in     = post_recv(r, 1, 0, 1, come, COUNT);
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    while (come[0] == 0 && clock_ms(&clock_real) < until)
        for (int k = 0; k < 2; k++) mesh_advance(r->member[k].m);
    mesh_cancel(out);
    free(sent);
    assert_int_not_equal(wait_for(r, in).status, PEN_OK);
    mesh_cancel(post_recv(r, 1, 0, 1, come, COUNT));
    free(come);
    out = post_send(r, 0, 1, 2, &one, 1);
    expect_letter(r, post_recv(r, 1, 0, 2, &got, 1), 0, 2, 1);
    expect_letter(r, out, 1, 2, 1);
    rig_close(r);
}

/* To have its memory back it closes the connection; the other is in the next call by then. */
static void a_connection_that_is_closed_on_purpose_is_no_loss(void **unused)
{
    (void)unused;
    enum { COUNT = 10 << 20, LONGER_THAN_ANY_DOUBT_MS = 3100 };
    rig *r      = rig_open(2, schemes[1]);
    float *sent = calloc(COUNT, sizeof *sent), *come = calloc(COUNT, sizeof *come);
    float one[2]      = {1, 2}, sum[2];
    sent[0]           = 1;
    mesh_message *out = post_send(r, 0, 1, 1, sent, COUNT);
    mesh_message *in  = post_recv(r, 1, 0, 1, come, COUNT);
    uint64_t until    = clock_ms(&clock_real) + PATIENCE_MS;
    while (come[0] == 0 && clock_ms(&clock_real) < until)
        for (int k = 0; k < 2; k++) mesh_advance(r->member[k].m);
    coll_call call = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 1, .scale = 1};
    r->seq++;
    call.in = &one[1], call.out = &sum[1];
    begin(r, 1, &call);
    mesh_settle(r->member[0].m, out, 0);
    mesh_cancel(out);
    free(sent);
    assert_int_not_equal(wait_for(r, in).status, PEN_OK);
    until = clock_ms(&clock_real) + LONGER_THAN_ANY_DOUBT_MS;
    while (clock_ms(&clock_real) < until) {
        mesh_advance(r->member[0].m);
        advance(r, 1);
        if (r->member[1].state != COLL_RUNNING) fail_msg("it ended: %s", r->member[1].why.text);
    }
    call.in = &one[0], call.out = &sum[0];
    begin(r, 0, &call);
    run(r, 2);
    expect_done(r);
    assert_true(sum[0] == 3 && sum[1] == 3);
    free(come);
    rig_close(r);
}

/* What was sent on the old connection is read after the first word on the new one: a listener reads from all in turn. */
static void what_is_left_of_a_replaced_connection_does_not_make_its_end_a_loss(void **unused)
{
    (void)unused;
    rig *r     = rig_open(2, schemes[0]);
    forger old = forge(r), next = forge(r);
    r->seq = 1;
    begin(r, 0, &(coll_call){.kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = ""});
    wire_peer before = {.kind = WIRE_CREDIT, .dial = 1}, after = {.kind = WIRE_CREDIT, .dial = 2};
    say(&old, &before, NULL, 0, -1);
    while (mesh_advance(r->member[0].m)) {}
    say(&next, &after, NULL, 0, -1);
    while (mesh_advance(r->member[0].m)) {}
    say(&old, &before, NULL, 0, -1);
    transport_close(old.t, 1000);
    while (mesh_advance(r->member[0].m)) {}
    assert_int_equal(r->member[0].m->n_suspects, 0);
    transport_close(next.t, 1000);
    while (mesh_advance(r->member[0].m)) {}
    assert_int_equal(r->member[0].m->n_suspects, 1); /* the end of that one counts */
    rig_close(r);
}

static void letters_of_the_lost_end(void **unused)
{
    (void)unused;
    static float sent[100000], come[10];
    rig *r            = rig_open(2, schemes[0]);
    mesh_message *out = post_send(r, 0, 1, 1, sent, 100000);
    mesh_message *in  = post_recv(r, 0, 1, 1, come, 10), *again;
    mesh_lost(r->member[0].m, 1);
    assert_int_equal(wait_for(r, out).status, PEN_PEER_LOST);
    assert_int_equal(wait_for(r, in).status, PEN_PEER_LOST);
    pen_error why;
    assert_int_equal(mesh_send(r->member[0].team, 1, 1, sent, 1, PEN_F32, "", &again, &why),
                     PEN_PEER_LOST);
    assert_int_equal(mesh_recv(r->member[0].team, 1, 1, come, 1, PEN_F32, "", &again, &why),
                     PEN_PEER_LOST);
    rig_close(r);
}

/* Whoever only received never dialled, and does so to say goodbye. */
static void who_never_said_anything_leaves_in_good_order_too(void **unused)
{
    (void)unused;
    static float sent[100000], come[10];
    rig *r            = rig_open(2, schemes[1]);
    mesh_message *out = post_send(r, 0, 1, 1, sent, 10);
    expect_letter(r, post_recv(r, 1, 0, 1, come, 10), 0, 1, 10);
    expect_letter(r, out, 1, 1, 10);
    out = post_send(r, 0, 1, 2, sent, 100000); /* nobody asks for it */
    mesh_destroy(r->member[1].m, 500);
    r->member[1].m       = NULL;
    mesh_result result   = {0};
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    while (!mesh_test(out, &result) && clock_ms(&clock_real) < until) mesh_advance(r->member[0].m);
    assert_int_equal(result.status, PEN_PEER_LOST);
    assert_string_equal(result.why.text, "send 'mail': rank 1: it has left the job");
    rig_close(r);
}

static void a_letter_that_came_is_sent_although_its_receiver_leaves_at_once(void **unused)
{
    (void)unused;
    enum { COUNT = 10000 }; /* lent to the transport, not copied */
    static float sent[COUNT], come[COUNT];
    for (int round = 0; round < 40; round++) {
        rig *r            = rig_open(2, schemes[1]);
        mesh_message *out = post_send(r, 0, 1, 1, sent, COUNT);
        expect_letter(r, post_recv(r, 1, 0, 1, come, COUNT), 0, 1, COUNT);
        mesh_destroy(r->member[1].m, 500);
        r->member[1].m = NULL;
        if (round % 2 == 1) usleep(2000); /* all news is there before the sender looks */
        mesh_result result   = {0};
        const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
        while (!mesh_test(out, &result) && clock_ms(&clock_real) < until)
            mesh_advance(r->member[0].m);
        if (result.status != PEN_OK) fail_msg("round %d: %s", round, result.why.text);
        rig_close(r);
    }
}

/* ---- sleeping --------------------------------------------------------------------------------------- */
static void the_descriptor_tells_when_there_is_something_to_do(void **unused)
{
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r               = rig_open(2, schemes[s]);
        const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
        const size_t count   = 1500000;
        float *data[2]       = {calloc(count, 4), calloc(count, 4)};
        r->seq               = 1;
        for (int i = 0; i < 2; i++)
            begin(r, i,
                  &(coll_call){.kind  = COLL_ALL_REDUCE,
                               .dtype = PEN_F32,
                               .n     = count,
                               .in    = data[i],
                               .out   = data[i],
                               .scale = 1,
                               .label = ""});
        while (r->member[0].state == COLL_RUNNING || r->member[1].state == COLL_RUNNING) {
            struct pollfd fd[2];
            for (int i = 0; i < 2; i++) {
                advance(r, i);
                fd[i] = (struct pollfd){.fd = mesh_poll_fd(r->member[i].m), .events = POLLIN};
            }
            if (r->member[0].state != COLL_RUNNING && r->member[1].state != COLL_RUNNING) break;
            if (poll(fd, 2, 5000) == 0) fail_msg("asleep for ever");
            assert_true(clock_ms(&clock_real) < until);
        }
        expect_done(r);
        free(data[0]);
        free(data[1]);
        rig_close(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_does_what_it_says_for_one_to_nine_members),
        cmocka_unit_test(a_group_of_one_needs_nobody),
        cmocka_unit_test(parts_may_have_any_length),
        cmocka_unit_test(large_calls_go_in_segments_and_over_lanes),
        cmocka_unit_test(every_algorithm_gives_the_same),
        cmocka_unit_test(sums_are_in_rank_order_and_scaled),
        cmocka_unit_test(what_goes_over_the_wire_is_what_the_formula_says),
        cmocka_unit_test(members_that_differ_all_hear_the_same_sentence),
        cmocka_unit_test(a_faster_member_may_be_one_call_ahead),
        cmocka_unit_test(a_root_far_ahead_is_held_back),
        cmocka_unit_test(a_group_may_be_made_after_its_first_message_came),
        cmocka_unit_test(parts_for_which_there_is_no_room_fail_the_call),
        cmocka_unit_test(who_has_not_come_is_missing),
        cmocka_unit_test(an_aborted_call_leaves_inputs_and_gives_buffers_back),
        cmocka_unit_test(a_member_that_dies_in_a_call_is_named),
        cmocka_unit_test(who_leaves_after_its_last_call_fails_nobody),
        cmocka_unit_test(a_call_with_one_that_has_left_names_it),
        cmocka_unit_test(one_flipped_bit_of_a_payload_fails_the_call),
        cmocka_unit_test(one_flipped_bit_of_a_head_is_refused_and_counted),
        cmocka_unit_test(strangers_and_the_past_are_refused),
        cmocka_unit_test(a_part_without_a_place_fails_the_call),
        cmocka_unit_test(letters_match_by_sender_and_tag_in_the_order_sent),
        cmocka_unit_test(many_letters_keep_their_order_also_beyond_the_budget),
        cmocka_unit_test(large_letters_in_a_circle_all_arrive),
        cmocka_unit_test(a_letter_that_does_not_fit_stays_for_a_larger_room),
        cmocka_unit_test(a_cancelled_letter_touches_nothing_any_more),
        cmocka_unit_test(a_connection_that_is_closed_on_purpose_is_no_loss),
        cmocka_unit_test(what_is_left_of_a_replaced_connection_does_not_make_its_end_a_loss),
        cmocka_unit_test(letters_of_the_lost_end),
        cmocka_unit_test(who_never_said_anything_leaves_in_good_order_too),
        cmocka_unit_test(a_letter_that_came_is_sent_although_its_receiver_leaves_at_once),
        cmocka_unit_test(the_descriptor_tells_when_there_is_something_to_do),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
