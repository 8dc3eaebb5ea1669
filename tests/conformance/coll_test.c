/* coll_test.c - every operation, type and reduction against a scalar reference, on every path: with deterministic=yes,
 * then with deterministic=node on several layouts of nodes.  Guard bytes around every buffer must not change.
 */
#include "coll_paths.h"
#include "tests/support/coll_reference.h"
#include "worker/collective/fault_point.h"
#include "worker/collective/schedule/schedule.h"

#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 9, MARGIN = 64, SMALL = 4097, LARGE = (1 << 20) + 3, LARGE_RANKS = 4, GUARD = 0xa5 };

/* A sanitizer is several times slower: then only some numbers of ranks are tried. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RANKS_ALL = 3, SOME = 5, ALGORITHM_RANKS = 2, LIMIT_S = 450 };
#else
enum { RANKS_ALL = RANKS, SOME = RANKS, ALGORITHM_RANKS = 4, LIMIT_S = 170 };
#endif

static bool is_tried(int ranks)
{
    return ranks <= RANKS_ALL || ranks == SOME;
}

static const size_t sizes[] = {0, 1, 7, SMALL};

static uint64_t seed;

/* ---- layouts of nodes -------------------------------------------------------------------------- */
static int uneven(int rank, int n)
{
    return rank * 4 / 3 >= n;
}

static int interleaved(int rank, int n)
{
    (void)n;
    return rank % 2;
}

static int three_backwards(int rank, int n)
{
    return (n - 1 - rank) % 3;
}

static const struct {
    const char *name;
    int (*node)(int rank, int n); /* NULL: rank order, deterministic=yes */
    int ranks;                    /* that are tried; 0: is_tried() */
} layouts[] = {{"in rank order", NULL, 0},
               {"uneven nodes", uneven, 4},
               {"interleaved nodes", interleaved, 4},
               {"three nodes backwards", three_backwards, 6}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static bool is_tried_on(int layout, int ranks)
{
    return layouts[layout].ranks == 0 ? is_tried(ranks) : ranks == layouts[layout].ranks;
}

#define EACH_COURSE(path, layout, n)                                                               \
    EACH_PATH(path)                                                                                \
    for (int layout = 0; layout < LAYOUTS; layout++)                                               \
        for (int n = path->ranks_min; n <= RANKS; n++)                                             \
            if (is_tried_on(layout, n))

/* ---- buffers --------------------------------------------------------------------------------- */
typedef struct {
    unsigned char *begin, *at; /* at: begin + MARGIN + offset */
    size_t bytes;              /* all of it */
} buffer;

typedef struct {
    pen_ctx *ctx;
    pen_group *g;
    buffer memory[2][2]; /* foreign, registered; in, out */
} bench;

static void place(buffer *b, size_t offset)
{
    b->at = b->begin + MARGIN + offset;
}

static const char *describe(const test_call *c)
{
    static char text[200];
    snprintf(text, sizeof text, "call %llu: %s %s %s n=%zu root=%d%s%s%s%s%s offsets %zu %zu",
             (unsigned long long)c->id, call_kind_names[c->kind], call_types[c->type].name,
             call_reduces(c->kind) ? call_op_names[c->op] : "", c->n, c->root,
             c->has_counts ? " counts" : "", c->in_place ? " in place" : "",
             c->overwrites ? " overwrites" : "", c->is_scaled ? " scaled" : "",
             c->is_registered ? " registered" : "", c->offset_in, c->offset_out);
    return text;
}

static const char *check_output(const test_call *c, const unsigned char *at)
{
    int part;
    size_t wrong;
    if (call_output_is_right(c, at, &part, &wrong)) return NULL;
    return complaint("%s: element %zu of part %d is wrong", describe(c), wrong, part);
}

static bool is_untouched(const unsigned char *from, const unsigned char *to)
{
    for (; from < to; from++)
        if (*from != GUARD) return false;
    return true;
}

static const char *check_guards(const test_call *c, const buffer *b, size_t used)
{
    size_t end = (size_t)(b->at - b->begin) + used + 2 * MARGIN;
    if (end > b->bytes) end = b->bytes;
    if (!is_untouched(b->begin, b->at) || !is_untouched(b->at + used, b->begin + end))
        return complaint("%s: bytes outside the buffer changed", describe(c));
    return NULL;
}

/* ---- calling --------------------------------------------------------------------------------- */
static pen_status call_it(const test_call *c, pen_group *g, const void *in, void *out,
                          const size_t *counts, const size_t *out_counts, const pen_opts *o,
                          pen_req *req)
{
    pen_dtype t = call_types[c->type].type;
    size_t own  = call_count(c, c->rank, c->rank);
    switch (c->kind) {
    case BROADCAST: return pen_broadcast(g, out, c->n, t, c->root, o, req);
    case REDUCE: return pen_reduce(g, in, out, c->n, t, c->op, c->root, o, req);
    case ALL_REDUCE: return pen_all_reduce(g, in, out, c->n, t, c->op, o, req);
    case GATHER: return pen_gather(g, in, own, out, counts, t, c->root, o, req);
    case ALL_GATHER: return pen_all_gather(g, in, own, out, counts, t, o, req);
    case SCATTER: return pen_scatter(g, in, counts, out, own, t, c->root, o, req);
    case REDUCE_SCATTER: return pen_reduce_scatter(g, in, counts, out, own, t, c->op, o, req);
    default: return pen_all_to_all(g, in, counts, out, out_counts, c->n, t, o, req);
    }
}

/* Makes the call and checks everything it may have touched.  PEN_OK and *wrong: a wrong
 * result. */
static pen_status carry_out(const bench *b, const test_call *c, const char **wrong)
{
    buffer in = b->memory[c->is_registered][0], out = b->memory[c->is_registered][1];
    size_t bytes    = call_types[c->type].bytes, counts[RANKS], out_counts[RANKS];
    size_t bytes_in = call_elements_in(c) * bytes, bytes_out = call_elements_out(c) * bytes;
    bool one_buffer = c->in_place || c->kind == BROADCAST;
    for (int i = 0; i < c->size; i++) {
        counts[i]     = call_count(c, c->rank, i);
        out_counts[i] = call_count(c, i, c->rank);
    }
    place(&in, c->offset_in);
    place(&out, c->offset_out);
    size_t cleared = bytes_in > bytes_out ? bytes_in : bytes_out;
    memset(in.begin, GUARD, MARGIN + c->offset_in + cleared + 2 * MARGIN);
    memset(out.begin, GUARD, MARGIN + c->offset_out + cleared + 2 * MARGIN);
    call_write_input(c, in.at);
    buffer *result = one_buffer ? &in : &out;
    void *out_at   = c->null_where_allowed && bytes_out == 0 ? NULL : result->at;
    void *in_at    = c->null_where_allowed && bytes_in == 0 ? NULL : in.at;
    pen_opts o     = {.label = "tested", .scale = call_scale(c)};
    if (c->is_scaled) o.flags = PEN_SCALED;
    if (c->overwrites) o.flags |= PEN_OVERWRITE;
    bool has          = c->has_counts;
    pen_status status = call_it(c, b->g, in_at, c->kind == BROADCAST ? in.at : out_at,
                                has ? counts : NULL, has ? out_counts : NULL, &o, NULL);
    if (status != PEN_OK) return status;
    *wrong      = check_output(c, result->at);
    size_t used = one_buffer && bytes_in > bytes_out ? bytes_in : bytes_out;
    if (!*wrong) *wrong = check_guards(c, result, used);
    if (*wrong || (one_buffer && bytes_out > 0)) return PEN_OK;
    size_t changed;
    if (!call_input_is_kept(c, in.at, &changed))
        *wrong = complaint("%s: input %zu changed", describe(c), changed);
    return PEN_OK;
}

/* ---- suites: what one member does ------------------------------------------------------------ */
typedef struct {
    bench b;
    const coll_test_path *path;
    int size, rank, layout;
    int node_of[RANKS];
    const int *node;   /* node_of, or NULL: rank order */
    const char *first; /* this suite's complaint */
} session;

/* False: the group is no longer usable. */
static bool try(session *s, test_call *c)
{
    const char *wrong = NULL;
    c->size           = s->size;
    c->rank           = s->rank;
    c->node           = s->node;
    c->overwrites     = call_mix(c->id, (uint64_t)s->rank) & 1;
    pen_status status = carry_out(&s->b, c, &wrong);
    if (status != PEN_OK) wrong = complaint("%s: %s", describe(c), pen_last_error(NULL));
    if (wrong && !s->first) s->first = strdup(wrong);
    return status == PEN_OK;
}

/* Variations besides kind, type and operation: random, the same on all members. */
static test_call vary(const session *s, kind k, int type, int op, int pass)
{
    test_call c          = {.kind = k, .type = type, .op = (pen_op)op};
    c.id                 = (uint64_t)(((pass * KINDS + (int)k) * TYPES + type) * OPS + op) + 1;
    uint64_t h           = call_mix(seed + (uint64_t)s->size, c.id);
    c.n                  = sizes[h >> 24 & 3];
    c.root               = (int)(h % (uint64_t)s->size);
    c.in_place           = h >> 8 & 1;
    c.is_registered      = h >> 9 & 1;
    c.null_where_allowed = h >> 10 & 1;
    c.offset_in          = h >> 12 & 15;
    c.offset_out         = h >> 16 & 15;
    c.has_counts         = k != BROADCAST && k != REDUCE && k != ALL_REDUCE && pass % 2;
    return c;
}

/* Many members share few processors; their variations are spread over the numbers of members
 * instead. */
static bool is_turn(const session *s, int which, int of)
{
    return s->size <= 4 || which % of == s->size % of;
}

static bool is_legal(int type, int op)
{
    return op <= PEN_MAX || !call_types[type].is_float;
}

static void all_reductions(session *s)
{
    static const kind kinds[] = {REDUCE, ALL_REDUCE, REDUCE_SCATTER};
    for (int k = 0; k < 3; k++)
        for (int type = 0; type < TYPES; type++)
            for (int op = 0; op < OPS; op++)
                for (int pass = 0; pass < 2 && is_legal(type, op); pass++) {
                    test_call c = vary(s, kinds[k], type, op, pass);
                    if (is_turn(s, type + op + pass, 2) && !try(s, &c)) return;
                }
}

static void all_movements(session *s)
{
    static const kind kinds[] = {BROADCAST, GATHER, ALL_GATHER, SCATTER, ALL_TO_ALL};
    for (int k = 0; k < 5; k++)
        for (int type = 0; type < TYPES; type++)
            for (int pass = 0; pass < 4; pass++) {
                test_call c = vary(s, kinds[k], type, 0, pass);
                if (is_turn(s, type + pass / 2, 2) && !try(s, &c)) return;
            }
}

static void all_offsets(session *s)
{
    static const kind kinds[] = {BROADCAST, ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL};
    for (size_t offset = 0; offset < 16; offset++)
        for (int k = 0; k < 4; k++)
            for (int in_place = 0; in_place < 2; in_place++) {
                test_call c  = vary(s, kinds[k], (int)offset % 4, PEN_SUM, 100 + (int)offset);
                c.n          = offset % 2 ? 4097 : 7;
                c.has_counts = false;
                c.in_place   = in_place;
                c.offset_in  = offset;
                c.offset_out = (offset * 7 + 3) % 16;
                if (is_turn(s, (int)offset, 3) && !try(s, &c)) return;
            }
}

static void all_scales(session *s)
{
    static const kind kinds[]  = {REDUCE, ALL_REDUCE, REDUCE_SCATTER};
    static const pen_op with[] = {PEN_SUM, PEN_AVG, PEN_MAX};
    for (int k = 0; k < 3; k++)
        for (int type = 0; type < TYPES; type++)
            for (int op = 0; op < 3; op++) {
                test_call c = vary(s, kinds[k], type, with[op], 200);
                c.is_scaled = true;
                if (is_turn(s, type + op, 2) && !try(s, &c)) return;
            }
}

static void large_ones(session *s)
{
    static const struct {
        kind kind;
        int type, largest;
    } rows[] = {{ALL_REDUCE, 0, 4},     {ALL_REDUCE, 2, 3}, {BROADCAST, 4, 4}, {REDUCE, 3, 2},
                {REDUCE_SCATTER, 0, 2}, {ALL_GATHER, 1, 3}, {ALL_TO_ALL, 6, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int in_place = (int)(i + (size_t)s->size) % 2;
        test_call c  = vary(s, rows[i].kind, rows[i].type, PEN_SUM, 300);
        if (s->size > rows[i].largest) continue;
        c.n          = LARGE;
        c.in_place   = in_place;
        c.has_counts = false;
        if (!try(s, &c)) return;
    }
}

static const char *illegal(pen_group *g, int type, int op)
{
    unsigned char x[8 * RANKS] = {0}, y[8 * RANKS] = {0};
    pen_dtype t         = call_types[type].type;
    pen_status status[] = {pen_reduce(g, x, y, 1, t, (pen_op)op, 0, NULL, NULL),
                           pen_all_reduce(g, x, y, 1, t, (pen_op)op, NULL, NULL),
                           pen_reduce_scatter(g, x, NULL, y, 1, t, (pen_op)op, NULL, NULL)};
    for (int i = 0; i < 3; i++)
        if (status[i] != PEN_UNSUPPORTED)
            return complaint("%s of %s is %s, not UNSUPPORTED", call_op_names[op],
                             call_types[type].name, pen_status_info(status[i])->name);
    return NULL;
}

static const char *no_type_of_wires(pen_group *g, pen_dtype t)
{
    unsigned char x[RANKS] = {0}, y[RANKS] = {0};
    HOLDS(pen_broadcast(g, x, 1, t, 0, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_reduce(g, x, y, 1, t, PEN_SUM, 0, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_all_reduce(g, x, y, 1, t, PEN_SUM, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_gather(g, x, 1, y, NULL, t, 0, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_all_gather(g, x, 1, y, NULL, t, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_scatter(g, x, NULL, y, 1, t, 0, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_reduce_scatter(g, x, NULL, y, 1, t, PEN_SUM, NULL, NULL) == PEN_UNSUPPORTED);
    HOLDS(pen_all_to_all(g, x, NULL, y, NULL, 1, t, NULL, NULL) == PEN_UNSUPPORTED);
    return NULL;
}

/* Refused at once, by every member itself; the group stays usable. */
static void illegal_pairs(session *s)
{
    for (int type = 0; type < TYPES && !s->first; type++)
        for (int op = 0; op < OPS && !s->first; op++) {
            if (is_legal(type, op)) continue;
            const char *wrong = illegal(s->b.g, type, op);
            if (wrong) s->first = strdup(wrong);
        }
    const char *wrong = no_type_of_wires(s->b.g, PEN_F8E4M3);
    if (!wrong) wrong = no_type_of_wires(s->b.g, PEN_F8E5M2);
    if (!wrong && pen_barrier(s->b.g, NULL, NULL) != PEN_OK) wrong = pen_last_error(NULL);
    if (wrong && !s->first) s->first = strdup(wrong);
}

/* Many calls in flight on one group, waited for from the last to the first. */
static const char *outstanding(const session *s)
{
    enum { MANY = 24, N = 501 };
    static float in[MANY][N], out[MANY][N];
    pen_req req[MANY];
    test_call c = {.kind = ALL_REDUCE, .size = s->size, .rank = s->rank, .node = s->node, .n = N};
    for (int i = 0; i < MANY; i++) {
        c.id = 5000 + (uint64_t)i;
        call_write_input(&c, (unsigned char *)in[i]);
        DO(pen_all_reduce(s->b.g, in[i], out[i], N, PEN_F32, PEN_SUM, NULL, &req[i]));
    }
    for (int i = MANY - 1; i >= 0; i--) {
        pen_result result = {0};
        DO(pen_wait(&req[i], &result));
        HOLDS(result.count == N);
        c.id              = 5000 + (uint64_t)i;
        const char *wrong = check_output(&c, (const unsigned char *)out[i]);
        if (wrong) return wrong;
    }
    return NULL;
}

static void asynchronous_calls(session *s)
{
    const char *wrong = outstanding(s);
    if (wrong) s->first = strdup(wrong);
}

/* In group order, which is not rank order: the last rank is position 0. */
static const char *backwards(const session *s)
{
    int ranks[RANKS], there[RANKS], node[RANKS];
    pen_group *g = NULL, *half = NULL;
    for (int i = 0; i < s->size; i++) {
        ranks[i] = s->size - 1 - i;
        node[i]  = s->node_of[ranks[i]];
    }
    DO(pen_group_new(s->b.g, ranks, s->size, &g));
    HOLDS(pen_size(g) == s->size && pen_rank(g) == s->size - 1 - s->rank);
    HOLDS(pen_group_ranks(g, there, RANKS) == s->size);
    HOLDS(memcmp(ranks, there, sizeof *ranks * (size_t)s->size) == 0);
    float x[64], sum[64];
    test_call c = {.kind = ALL_REDUCE, .size = s->size, .rank = pen_rank(g), .n = 64, .id = 6000};
    if (s->node != NULL) c.node = node;
    call_write_input(&c, (unsigned char *)x);
    DO(pen_all_reduce(g, x, sum, 64, PEN_F32, PEN_SUM, NULL, NULL));
    const char *wrong = check_output(&c, (const unsigned char *)sum);
    if (wrong) return wrong;
    /* Every second member; both halves at the same time, inside the reversed group. */
    DO(pen_group_split(g, s->rank % 2, s->rank, &half));
    int64_t mine = s->rank, total = 0, want = 0;
    DO(pen_all_reduce(half, &mine, &total, 1, PEN_I64, PEN_SUM, NULL, NULL));
    for (int r = s->rank % 2; r < s->size; r += 2) want += r;
    HOLDS(total == want && pen_rank(half) == s->rank / 2);
    pen_group_free(half);
    pen_group_free(g);
    return NULL;
}

/* The intended path, and whether the last call used it; the hook runs on this thread
 * or "pen-coll". */
static const char *meant;
static volatile bool has_carried;

static void note_carrier(const char *path, uint64_t seq, int step)
{
    (void)seq, (void)step;
    if (strcmp(path, meant) == 0) has_carried = true;
}

static void right_path(session *s)
{
    meant            = s->path->carrier;
    coll_fault_point = note_carrier;
    if (pen_barrier(s->b.g, NULL, NULL) != PEN_OK) s->first = strdup(pen_last_error(NULL));
    coll_fault_point = NULL;
    if (!s->first && s->size > 1 && !has_carried)
        s->first = strdup(complaint("%s had no part in it", meant));
}

static void groups(session *s)
{
    const char *wrong = backwards(s);
    if (wrong) s->first = strdup(wrong);
}

/* Integers may be folded in any order and use the requested algorithm; floats use one that keeps
 * the order. */
static void all_kinds(session *s)
{
    static const int two[] = {0, 6};
    for (int k = 0; k < KINDS; k++)
        for (int type = 0; type < 2; type++)
            for (int pass = 0; pass < 6; pass++) {
                test_call c = vary(s, (kind)k, two[type], pass % 2 ? PEN_AVG : PEN_SUM, 400 + pass);
                c.n         = sizes[1 + pass % 3];
                if (!try(s, &c)) return;
            }
}

/* ---- the board ------------------------------------------------------------------------------- */
typedef struct {
    const char *name;
    void (*member)(session *s);
    bool is_by_rank; /* the layout of nodes does not matter */
} suite;

static const suite suites[] = {
    {"calls_are_carried_by_the_path_that_is_meant", right_path, true},
    {"every_reduction_of_every_type_is_the_fold_in_the_job_s_order", all_reductions},
    {"every_movement_of_every_type_moves_the_right_bytes", all_movements, true},
    {"buffers_may_lie_anywhere", all_offsets, true},
    {"inputs_may_be_scaled", all_scales},
    {"large_calls_are_as_right_as_small_ones", large_ones},
    {"what_has_no_meaning_is_refused_on_every_member_alone", illegal_pairs, true},
    {"many_calls_may_be_outstanding", asynchronous_calls},
    {"groups_fold_in_their_own_order_and_do_not_disturb_each_other", groups},
};
enum { SUITES = sizeof suites / sizeof *suites };

static struct board {
    char complaint[COLL_TEST_PATHS][LAYOUTS][RANKS + 1][SUITES][COMPLAINT_BYTES];
    bool has_run[COLL_TEST_PATHS][LAYOUTS][RANKS + 1][SUITES][RANKS];
    int code[COLL_TEST_PATHS][LAYOUTS][RANKS + 1];
} * board;

typedef struct { /* what a job is to do */
    const coll_test_path *path;
    int layout;
} course;

/* has_large: room for two ranks with f32, and one with f64. */
static bool make_buffers(session *s, bool has_large)
{
    const size_t bytes =
        has_large ? (size_t)LARGE * 8 + 8 * MARGIN : (size_t)SMALL * 8 * RANKS + 4 * MARGIN;
    for (int registered = 0; registered < 2; registered++)
        for (int i = 0; i < 2; i++) {
            buffer *b = &s->b.memory[registered][i];
            b->bytes  = bytes;
            b->begin  = registered ? pen_alloc(s->b.ctx, bytes, PEN_HOST) : malloc(bytes);
            if (!b->begin) return false;
        }
    return true;
}

static void free_buffers(const session *s)
{
    for (int i = 0; i < 2; i++) {
        free(s->b.memory[0][i].begin);
        pen_free(s->b.memory[1][i].begin);
    }
}

static int member(pen_ctx *ctx, void *arg)
{
    const course *own = arg;
    ptrdiff_t p       = own->path - coll_test_paths;
    session s         = {.b = {.ctx = ctx, .g = pen_world(ctx)}, .path = own->path};
    s.size            = pen_size(s.b.g);
    s.rank            = pen_rank(s.b.g);
    if (layouts[own->layout].node != NULL) s.node = s.node_of;
    for (int r = 0; s.node != NULL && r < s.size; r++)
        s.node_of[r] = layouts[own->layout].node(r, s.size);
    if (!make_buffers(&s, s.size <= LARGE_RANKS)) return 1;
    for (int i = 0; i < SUITES; i++) {
        s.first = NULL;
        if (s.node == NULL || !suites[i].is_by_rank) suites[i].member(&s);
        board->has_run[p][own->layout][s.size][i][s.rank] = true;
        if (!s.first) continue;
        snprintf(board->complaint[p][own->layout][s.size][i], COMPLAINT_BYTES, "rank %d: %s",
                 s.rank, s.first);
        free((void *)s.first);
    }
    free_buffers(&s);
    return 0;
}

static int run_course(course own, int n)
{
    int node[RANKS];
    if (layouts[own.layout].node == NULL) return spawn_on(own.path, n, member, &own);
    for (int r = 0; r < n; r++) node[r] = layouts[own.layout].node(r, n);
    setenv("PENSTOCK_DETERMINISTIC", "node", 1);
    int code = spawn_on_nodes(own.path, n, node, member, &own);
    unsetenv("PENSTOCK_DETERMINISTIC");
    return code;
}

static int run_all(void **state)
{
    (void)state;
    const char *given = getenv("COLL_TEST_SEED");
    seed              = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("COLL_TEST_SEED=%llu\n", (unsigned long long)seed);
    board = shared_board(sizeof *board);
    if (!board) return -1;
    call_reference_start(seed);
    EACH_COURSE(path, layout, n)
    board->code[path - coll_test_paths][layout][n] = run_course((course){path, layout}, n);
    return 0;
}

static void holds_on_every_path_and_for_1_to_9_ranks(void **state)
{
    ptrdiff_t i = (const suite *)*state - suites;
    EACH_COURSE(path, layout, n)
    {
        ptrdiff_t p      = path - coll_test_paths;
        const char *text = board->complaint[p][layout][n][i], *name = layouts[layout].name;
        if (text[0]) fail_msg("%s, %s, %d ranks, %s", path->name, name, n, text);
        for (int r = 0; r < n; r++)
            if (!board->has_run[p][layout][n][i][r])
                fail_msg("%s, %s, %d ranks: rank %d never came so far; pen_spawn said %d",
                         path->name, name, n, r, board->code[p][layout][n]);
    }
}

/* ---- algorithms ------------------------------------------------------------------------------ */
static char (*algorithm_board)[COMPLAINT_BYTES];

static int member_of_algorithm(pen_ctx *ctx, void *arg)
{
    (void)arg;
    session s = {.b = {.ctx = ctx, .g = pen_world(ctx)}};
    s.size    = pen_size(s.b.g);
    s.rank    = pen_rank(s.b.g);
    if (!make_buffers(&s, false)) return 1;
    all_kinds(&s);
    if (s.first) snprintf(*algorithm_board, COMPLAINT_BYTES, "rank %d: %s", s.rank, s.first);
    free_buffers(&s);
    return s.first != NULL;
}

/* A rule for each kind that it supports. */
static void choose_always(const schedule_algorithm *a)
{
    char rules[400] = "";
    for (int k = 0; k < COLL_KINDS; k++) {
        size_t at = strlen(rules);
        if (a->fits((coll_kind)k, 2))
            snprintf(rules + at, sizeof rules - at, "%s:%s;", coll_kind_name((coll_kind)k),
                     a->name);
    }
    setenv("PENSTOCK_COLL_ALGORITHM", rules, 1);
}

static void every_algorithm_is_right_between_processes(void **state)
{
    (void)state;
    static const int ranks[4] = {2, 3, 4, 7};
    algorithm_board           = shared_board(sizeof *algorithm_board);
    assert_non_null(algorithm_board);
    for (int i = 0; schedule_all[i]; i++)
        for (int r = 0; r < ALGORITHM_RANKS; r++) {
            choose_always(schedule_all[i]);
            int code = spawn_on(&coll_test_paths[1], ranks[r], member_of_algorithm, NULL);
            if (code || (*algorithm_board)[0])
                fail_msg("%s, %d ranks, code %d: %s", schedule_all[i]->name, ranks[r], code,
                         *algorithm_board);
        }
    unsetenv("PENSTOCK_COLL_ALGORITHM");
}

static void every_job_ended_well(void **state)
{
    (void)state;
    EACH_COURSE(path, layout, n)
    assert_int_equal(board->code[path - coll_test_paths][layout][n], 0);
}

/* ---- the reference itself -------------------------------------------------------------------- */
static void the_reference_rounds_halves_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = call_f16_value((uint16_t)h);
        if (!isnan(f)) assert_int_equal(call_f16_bits(f), h);
        if (!isnan(call_bf16_value((uint16_t)h)))
            assert_int_equal(call_bf16_bits(call_bf16_value((uint16_t)h)), h);
    }
    assert_int_equal(call_f16_bits(65519.0f), 0x7bff);
    assert_int_equal(call_f16_bits(65520.0f), 0x7c00);
    assert_int_equal(call_f16_bits(1.0f + 0x1p-11f), 0x3c00);
    assert_int_equal(call_f16_bits(1.0f + 3 * 0x1p-11f), 0x3c02);
    assert_int_equal(call_f16_bits(0x1p-25f), 0);
    assert_int_equal(call_f16_bits(3 * 0x1p-25f), 2);
    assert_int_equal(call_bf16_bits(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(call_bf16_bits(1.0f + 3 * 0x1p-8f), 0x3f82);
}

int main(void)
{
    struct CMUnitTest tests[SUITES + 3] = {{0}};
    for (int i = 0; i < SUITES; i++)
        tests[i] = (struct CMUnitTest){.name          = suites[i].name,
                                       .test_func     = holds_on_every_path_and_for_1_to_9_ranks,
                                       .initial_state = (void *)&suites[i]};
    tests[SUITES] = (struct CMUnitTest)cmocka_unit_test(every_job_ended_well);
    tests[SUITES + 1] =
        (struct CMUnitTest)cmocka_unit_test(the_reference_rounds_halves_to_nearest_even);
    tests[SUITES + 2] =
        (struct CMUnitTest)cmocka_unit_test(every_algorithm_is_right_between_processes);
    alarm(LIMIT_S);
    return cmocka_run_group_tests(tests, run_all, NULL);
}
