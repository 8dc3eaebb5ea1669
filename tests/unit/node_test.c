/* node_test.c - collectives of real processes on one host, also when one of them dies.
 *
 * Each test forks its members; they find each other by a board of shared memory and leave a
 * sentence there when something is wrong.  Nothing waits for ever: members have an alarm, calls a
 * deadline.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/segment.h"
#include "proto/plan.h"
#include "worker/collective/shm/node_internal.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMBERS_MAX = 9, ALARM_S = 300, DEADLINE_MS = 20000 };

typedef struct {
    char address[MEMBERS_MAX][192];
    _Atomic int present, step;
    _Atomic uint32_t dead; /* a bit for each that died by a signal */
    _Atomic int ready, aborted, at_point;
    char sentence[MEMBERS_MAX][640];
    char failure[MEMBERS_MAX][256];
} board;

typedef struct {
    board *b;
    int size, rank, victim, step;
    node_place *place;
    node_team *team;
    uint64_t seq;
    _Alignas(64) unsigned char op[COLL_OP_BYTES];
} member;

static member me; /* in a child */

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            snprintf(me.b->failure[me.rank], 256, __VA_ARGS__);                                    \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* ---- members --------------------------------------------------------------------------------- */
static void meet(_Atomic int *count, int n)
{
    atomic_fetch_add(count, 1);
    while (atomic_load(count) < n) sched_yield(); /* the alarm ends it */
}

static node_team *make_team(uint64_t id, const int *ranks, int n)
{
    const char *address[MEMBERS_MAX];
    node_team *team = NULL;
    pen_error why;
    int own = 0;
    for (int i = 0; i < n; i++) {
        address[i] = me.b->address[ranks[i]];
        if (ranks[i] == me.rank) own = i;
    }
    pen_status status = node_team_create(me.place, id, address, ranks, n, own, &team, &why);
    CHECK(status == PEN_OK, "no team: %.200s", why.text);
    return team;
}

static int count_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void enter(void (*program)(void))
{
    const int descriptors = count_descriptors();
    int ranks[MEMBERS_MAX];
    pen_error why;
    alarm(ALARM_S);
    CHECK(node_place_create(&me.place, &why) == PEN_OK, "no place: %.200s", why.text);
    strcpy(me.b->address[me.rank], node_place_address(me.place));
    meet(&me.b->present, me.size);
    for (int i = 0; i < me.size; i++) ranks[i] = i;
    me.team = make_team(77, ranks, me.size);
    program();
    node_team_destroy(me.team);
    node_place_destroy(me.place);
    CHECK(count_descriptors() == descriptors, "descriptors are left open");
    _exit(0);
}

/* Starts the members; those that die by a signal are told to the others. */
static void run_members(int size, int victim, int step, void (*program)(void), board *result)
{
    pid_t child[MEMBERS_MAX];
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(b, MAP_FAILED);
    for (int i = 0; i < size; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            me = (member){.b = b, .size = size, .rank = i, .victim = victim, .step = step};
            enter(program);
        }
    }
    for (int left = size; left > 0; left--) {
        int status, who = 0;
        const pid_t ended = wait(&status);
        while (who < size && child[who] != ended) who++;
        if (WIFSIGNALED(status) && who == victim)
            atomic_fetch_or(&b->dead, 1u << who);
        else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            snprintf(b->failure[who] + strlen(b->failure[who]), 32, " (status %x)", status);
    }
    bool failed = false;
    for (int i = 0; i < size; i++) {
        if (b->failure[i][0] == '\0') continue;
        print_error("member %d of %d: %s\n", i, size, b->failure[i]);
        failed = true;
    }
    if (result != NULL) *result = *b;
    munmap(b, sizeof *b);
    assert_false(failed);
}

/* Drives a call to its end; FAILED also when a member has died meanwhile, after giving up. */
static coll_state drive(node_team *team, const coll_call *call, uint64_t seq, pen_error *why)
{
    const uint64_t deadline = clock_ms(&clock_real) + DEADLINE_MS;
    memset(me.op, 0, sizeof me.op);
    CHECK(coll_path_node.start(team, me.op, call, seq, why) == PEN_OK, "start: %.200s", why->text);
    for (;;) {
        const uint32_t seen    = node_doorbell(me.place);
        const coll_state state = coll_path_node.advance(me.op, why);
        if (state != COLL_RUNNING) return state;
        CHECK(clock_ms(&clock_real) < deadline, "%s does not end", coll_kind_name(call->kind));
        if (atomic_load(&me.b->dead) != 0 && team == me.team) {
            coll_path_node.abort(me.op);
            snprintf(why->text, sizeof why->text, "aborted");
            return COLL_FAILED;
        }
        node_sleep(me.place, seen, 2000);
    }
}

static void must(node_team *team, const coll_call *call, uint64_t seq)
{
    pen_error why;
    why.text[0] = '\0';
    CHECK(drive(team, call, seq, &why) == COLL_DONE, "%s %llu failed: %.160s",
          coll_kind_name(call->kind), (unsigned long long)seq, why.text);
}

/* ---- the reference --------------------------------------------------------------------------- */
/* Values that all types hold exactly; f32 and f64 are made uneven, so that the order of a sum
 * shows. */
static double value(pen_dtype dtype, int rank, size_t i)
{
    const uint64_t x = (i * 2654435761u + (uint64_t)rank * 40503u) ^ (i >> 7);
    const double v   = (double)(1 + x % 3);
    return dtype == PEN_F32 || dtype == PEN_F64 ? (double)(float)(v / 3 + (double)(x % 1000)) : v;
}

static uint16_t small_half(int v) /* 0 < v < 2048 */
{
    int e = 0;
    while (v >> (e + 1)) e++;
    return (uint16_t)((e + 15) << 10 | ((v - (1 << e)) << 10) >> e);
}

static void write_value(pen_dtype dtype, void *at, double v)
{
    const float f      = (float)v;
    const int64_t wide = (int64_t)v;
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &f, sizeof bits);
    switch (dtype) {
    case PEN_F32: memcpy(at, &f, 4); break;
    case PEN_F64: memcpy(at, &v, 8); break;
    case PEN_BF16: memcpy(at, (const char *)&bits + 2, 2); break;
    case PEN_F16:
        half = small_half((int)v);
        memcpy(at, &half, 2);
        break;
    default: memcpy(at, &wide, plan_dtype_bytes(dtype)); break; /* little-endian */
    }
}

static double fold(pen_dtype dtype, pen_op op, int size, size_t i)
{
    double sum = value(dtype, 0, i);
    for (int r = 1; r < size; r++) {
        const double x = value(dtype, r, i);
        switch (op) {
        case PEN_PROD: sum *= x; break;
        case PEN_MIN: sum = x < sum ? x : sum; break;
        case PEN_MAX: sum = x > sum ? x : sum; break;
        case PEN_BXOR: sum = (double)((int64_t)sum ^ (int64_t)x); break;
        case PEN_LAND: sum = 1; break; /* all values are positive */
        default: sum += x; break;
        }
        if (dtype == PEN_F32) sum = (double)(float)sum;
    }
    if (op == PEN_LAND) return 1;
    if (op == PEN_AVG) sum /= size;
    return dtype == PEN_F32 ? (double)(float)sum : sum;
}

/* ---- cases ----------------------------------------------------------------------------------- */
typedef enum { MAPPED, FOREIGN, UNALIGNED, MIXED, BUFFERS } buffers;

typedef struct {
    coll_call call;
    buffers where;
    bool in_place, by_counts;
    size_t counts[MEMBERS_MAX], out_counts[MEMBERS_MAX];
    size_t n_in, n_out, bytes; /* bytes: of an element */
    unsigned char *in, *out, *in_memory, *out_memory;
} kase;

static size_t uneven(size_t n, int i)
{
    return n == 0 ? 0 : n + (size_t)(i % 3);
}

static size_t sent(const kase *k, int from, int to)
{
    return k->by_counts ? uneven(k->call.n, from + 2 * to) : k->call.n;
}

static void set_counts(kase *k)
{
    if (!k->by_counts) return;
    for (int i = 0; i < me.size; i++) {
        k->counts[i] = k->call.kind == COLL_ALL_TO_ALL ? sent(k, me.rank, i) : uneven(k->call.n, i);
        k->out_counts[i] = sent(k, i, me.rank);
    }
    k->call.counts     = k->counts;
    k->call.out_counts = k->call.kind == COLL_ALL_TO_ALL ? k->out_counts : NULL;
}

static unsigned char *make_buffer(const kase *k, size_t n, unsigned char **memory)
{
    const bool mapped = k->where == MAPPED || (k->where == MIXED && me.rank % 2 == 0);
    const size_t room = n * k->bytes + 128;
    *memory           = mapped ? segment_alloc(room, NULL) : malloc(room);
    CHECK(*memory != NULL, "no memory");
    memset(*memory, 0xee, room);
    return *memory + (k->where == UNALIGNED ? 1 + (size_t)me.rank * 3 : 64);
}

static void drop_buffer(const kase *k, unsigned char *memory)
{
    if (k->where == MAPPED || (k->where == MIXED && me.rank % 2 == 0))
        segment_free(memory);
    else
        free(memory);
}

static void prepare(kase *k)
{
    set_counts(k);
    k->bytes          = plan_dtype_bytes(k->call.dtype);
    k->n_in           = coll_in_elements(&k->call, me.size, me.rank);
    k->n_out          = coll_out_elements(&k->call, me.size, me.rank);
    const size_t most = k->n_in > k->n_out ? k->n_in : k->n_out;
    k->in             = make_buffer(k, k->in_place ? most : k->n_in, &k->in_memory);
    k->out            = k->in_place ? k->in : make_buffer(k, k->n_out, &k->out_memory);
    for (size_t i = 0; i < k->n_in; i++)
        write_value(k->call.dtype, k->in + i * k->bytes, value(k->call.dtype, me.rank, i));
    k->call.in  = k->in;
    k->call.out = k->out;
}

static void finish(kase *k)
{
    drop_buffer(k, k->in_memory);
    if (!k->in_place) drop_buffer(k, k->out_memory);
}

/* What must lie at element i of this member's output. */
static double expected(const kase *k, size_t i)
{
    const coll_call *c = &k->call;
    const int size     = me.size;
    size_t at          = i;
    int who            = 0;
    switch (c->kind) {
    case COLL_BROADCAST: return value(c->dtype, c->root, i);
    case COLL_REDUCE:
    case COLL_ALL_REDUCE: return fold(c->dtype, c->op, size, i);
    case COLL_REDUCE_SCATTER:
        return fold(c->dtype, c->op, size, i + coll_part_offset(c->counts, c->n, me.rank));
    case COLL_SCATTER:
        return value(c->dtype, c->root, i + coll_part_offset(c->counts, c->n, me.rank));
    case COLL_ALL_TO_ALL:
        while (at >= sent(k, who, me.rank)) at -= sent(k, who++, me.rank);
        for (int to = 0; to < me.rank; to++) at += sent(k, who, to);
        return value(c->dtype, who, at);
    default:
        while (at >= coll_part(c->counts, c->n, who)) at -= coll_part(c->counts, c->n, who++);
        return value(c->dtype, who, at);
    }
}

/* All elements of small arrays, the ends and every 17th in between of large ones: errors come in
 * pieces. */
static size_t next(size_t i, size_t n)
{
    return n < 10000 || i < 100 || i + 100 > n ? i + 1 : i + 17;
}

static void check_output(const kase *k, const char *when)
{
    unsigned char want[8];
    for (size_t i = 0; i < k->n_out; i = next(i, k->n_out)) {
        write_value(k->call.dtype, want, expected(k, i));
        CHECK(memcmp(want, k->out + i * k->bytes, k->bytes) == 0,
              "%s: %s %s %s n=%zu where=%d in_place=%d counts=%d root=%d: element %zu is wrong",
              when, coll_kind_name(k->call.kind), plan_dtype_name(k->call.dtype),
              coll_op_name(k->call.op), k->call.n, k->where, k->in_place, k->by_counts,
              k->call.root, i);
    }
    CHECK(k->out[k->n_out * k->bytes] == 0xee || k->in_place, "%s wrote too far",
          coll_kind_name(k->call.kind));
}

static void check_input(const kase *k, const char *when)
{
    unsigned char want[8];
    for (size_t i = 0; i < k->n_in; i = next(i, k->n_in)) {
        write_value(k->call.dtype, want, value(k->call.dtype, me.rank, i));
        CHECK(memcmp(want, k->in + i * k->bytes, k->bytes) == 0,
              "%s: %s n=%zu where=%d in_place=%d: input %zu has changed", when,
              coll_kind_name(k->call.kind), k->call.n, k->where, k->in_place, i);
    }
}

static void run_case(coll_kind kind, pen_dtype dtype, pen_op op, size_t n, buffers where,
                     bool in_place, bool by_counts)
{
    static kase k;
    k = (kase){.call      = {.kind  = kind,
                             .dtype = dtype,
                             .op    = op,
                             .n     = n,
                             .scale = 1,
                             .label = "x",
                             .root  = (int)(me.seq % (uint64_t)me.size)},
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

static void large_ones(void)
{
    for (int where = 0; where < BUFFERS; where++)
        for (int in_place = 0; in_place < 2; in_place++) {
            run_case(COLL_ALL_REDUCE, PEN_F32, PEN_SUM, (1 << 20) + 3, (buffers)where, in_place,
                     false);
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

/* ---- tests: right ---------------------------------------------------------------------------- */
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

static void each_input_has_its_own_scale(void **state)
{
    (void)state;
    run_members(3, -1, 0, scaled, NULL);
}

static void all_gather_leaves_a_part_where_it_lies(void **state)
{
    (void)state;
    run_members(3, -1, 0, gather_where_it_lies, NULL);
}

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

static void members_that_do_different_things_get_one_sentence(void **state)
{
    (void)state;
    board b;
    run_members(4, -1, 0, differ, &b);
    assert_non_null(strstr(b.sentence[0], "all_reduce (call 1) differs: rank 2 has 10"));
    for (int i = 1; i < 4; i++) assert_string_equal(b.sentence[i], b.sentence[0]);
}

static void all_to_all_says_whose_counts_differ(void **state)
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

/* The survivors of call 2 form a group of their own, which must work. */
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

static void lose_one(coll_kind kind, size_t n, buffers where, bool in_place)
{
    const coll_call barrier = {.kind = COLL_BARRIER, .scale = 1, .label = ""};
    static kase k;
    pen_error why;
    k = (kase){.call     = {.kind = kind, .dtype = PEN_F32, .n = n, .scale = 1, .label = "x"},
               .where    = where,
               .in_place = in_place || kind == COLL_BROADCAST};
    if (me.rank == me.victim) coll_fault_point = die_at;
    prepare(&k);
    must(me.team, &barrier, 1);
    const coll_state state = drive(me.team, &k.call, 2, &why);
    if (state == COLL_DONE)
        check_output(&k, "a member died after the last look");
    else if (kind != COLL_BROADCAST || me.rank == k.call.root)
        check_input(&k, "a member died");
    coll_fault_point = NULL;
    if (me.rank == me.victim) _exit(state == COLL_DONE ? 0 : 1); /* this step does not exist */
    while (atomic_load(&me.b->dead) == 0 && kill(getppid(), 0) == 0 && state != COLL_DONE)
        sched_yield();
    go_on_without_the_victim();
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
static void lose_foreign_in_place(void)
{
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
        lose_scatter_in_place,
        lose_exchange_in_place,
        lose_broadcast,
    };
    for (size_t p = 0; p < sizeof programs / sizeof programs[0]; p++)
        for (int step = 0; step < 7; step++) run_members(3, step % 3, step, programs[p], NULL);
}

/* The victim says it is inside a block, and stays there until the others have given up. */
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

static void a_late_peer_cannot_write_into_what_was_given_up(void **state)
{
    (void)state;
    run_members(3, 1, 0, give_up_on_one_that_is_inside_a_block, NULL);
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

/* One thread drives both members by turns: nothing in a path may wait. */
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

static void a_number_is_read_where_memory_can_be_mapped_and_nowhere_else(void **state)
{
    (void)state;
    node_place *place, *other;
    pen_error why;
    node_team *team;
    assert_int_equal(node_place_create(&place, &why), PEN_OK);
    assert_int_equal(node_place_create(&other, &why), PEN_OK);
    const char *own = node_place_address(place);
    assert_true(node_read_number(own) == node_place_number(place));
    assert_true(node_read_number(node_place_address(other)) == node_place_number(other));
    assert_true(node_place_number(place) != node_place_number(other));
    assert_true(node_read_number("node:999999999:3:ab:5") == 0); /* no such process */
    assert_true(node_read_number("tcp://127.0.0.1:1") == 0);
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

/* ---- liars ------------------------------------------------------------------------------------------ */
enum { LIES = 9, LIE_ELEMENTS = 1 << 18 };

/* What a member that broke, or was broken into, may leave in its entry. */
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
    case 7: e->sends[0] = (uint64_t)1 << 40; break; /* all_to_all: to this member */
    default: e->sends[1] = (uint64_t)1 << 62; break;
    }
}

static void tell_lies(void)
{
    float *in = segment_alloc(2 * LIE_ELEMENTS * sizeof *in, NULL), *out;
    out       = segment_alloc(2 * LIE_ELEMENTS * sizeof *out, NULL);
    pen_error why;
    CHECK(in != NULL && out != NULL, "no memory");
    for (int lie = 0; lie < LIES; lie++) {
        const bool is_all_to_all = lie >= 7;
        const coll_call call     = {.kind  = is_all_to_all ? COLL_ALL_TO_ALL : COLL_BROADCAST,
                                    .dtype = PEN_F32,
                                    .root  = is_all_to_all ? 0 : 1,
                                    .n     = LIE_ELEMENTS,
                                    .in    = is_all_to_all ? in : out,
                                    .out   = out,
                                    .scale = 1,
                                    .label = ""};
        const uint64_t seq       = ++me.seq;
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
    segment_free(out);
}

static void what_a_member_says_of_its_memory_is_checked_before_it_is_used(void **state)
{
    (void)state;
    run_members(2, -1, 0, tell_lies, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_is_read_where_memory_can_be_mapped_and_nowhere_else),
        cmocka_unit_test(two_members_of_one_process_need_no_thread),
        cmocka_unit_test(every_kind_is_right_for_one_to_nine_members),
        cmocka_unit_test(every_type_is_right),
        cmocka_unit_test(every_operation_is_right),
        cmocka_unit_test(large_buffers_are_right),
        cmocka_unit_test(each_input_has_its_own_scale),
        cmocka_unit_test(all_gather_leaves_a_part_where_it_lies),
        cmocka_unit_test(members_that_do_different_things_get_one_sentence),
        cmocka_unit_test(all_to_all_says_whose_counts_differ),
        cmocka_unit_test(inputs_are_intact_whenever_a_member_dies),
        cmocka_unit_test(a_late_peer_cannot_write_into_what_was_given_up),
        cmocka_unit_test(slots_are_used_again_while_others_lag),
        cmocka_unit_test(what_a_member_says_of_its_memory_is_checked_before_it_is_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
