/* node_rig.h - members in processes of their own on one host, and the expected results of their collectives. */
#ifndef TESTS_UNIT_NODE_RIG_H
#define TESTS_UNIT_NODE_RIG_H

#include "common/base/clock.h"
#include "common/system/segment.h"
#include "proto/plan.h"
#include "worker/collective/shm/node_internal.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MEMBERS_MAX = 9, ALARM_S = 300, DEADLINE_MS = 20000 };

typedef struct {
    char address[MEMBERS_MAX][192];
    _Atomic int present, step;
    _Atomic uint32_t dead; /* one bit for each that was killed by a signal */
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
static inline void meet(_Atomic int *count, int n)
{
    atomic_fetch_add(count, 1);
    while (atomic_load(count) < n) sched_yield(); /* the alarm kills it */
}

static inline node_team *make_team(uint64_t id, const int *ranks, int n)
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

static inline int count_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static inline void enter(void (*program)(void))
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

/* Starts the members; a member killed by a signal is reported to the others. */
static inline void run_members(int size, int victim, int step, void (*program)(void), board *result)
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

/* Advances a call to its end; FAILED also if it was aborted because a member died. */
static inline coll_state drive(node_team *team, const coll_call *call, uint64_t seq, pen_error *why)
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

static inline void must(node_team *team, const coll_call *call, uint64_t seq)
{
    pen_error why;
    why.text[0] = '\0';
    CHECK(drive(team, call, seq, &why) == COLL_DONE, "%s %llu failed: %.160s",
          coll_kind_name(call->kind), (unsigned long long)seq, why.text);
}

/* ---- the reference --------------------------------------------------------------------------- */
/* Values that all types represent exactly; f32 and f64 are made uneven, so that the order of a sum
 * is visible. */
static inline double value(pen_dtype dtype, int rank, size_t i)
{
    const uint64_t x = (i * 2654435761u + (uint64_t)rank * 40503u) ^ (i >> 7);
    const double v   = (double)(1 + x % 3);
    return dtype == PEN_F32 || dtype == PEN_F64 ? (double)(float)(v / 3 + (double)(x % 1000)) : v;
}

static inline uint16_t small_half(int v) /* 0 < v < 2048 */
{
    int e = 0;
    while (v >> (e + 1)) e++;
    return (uint16_t)((e + 15) << 10 | ((v - (1 << e)) << 10) >> e);
}

static inline void write_value(pen_dtype dtype, void *at, double v)
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

static inline double fold(pen_dtype dtype, pen_op op, int size, size_t i)
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
    size_t n_in, n_out, bytes; /* bytes of an element */
    unsigned char *in, *out, *in_memory, *out_memory;
} kase;

static inline size_t uneven(size_t n, int i)
{
    return n == 0 ? 0 : n + (size_t)(i % 3);
}

static inline size_t sent(const kase *k, int from, int to)
{
    return k->by_counts ? uneven(k->call.n, from + 2 * to) : k->call.n;
}

static inline void set_counts(kase *k)
{
    if (!k->by_counts) return;
    for (int i = 0; i < me.size; i++) {
        k->counts[i] = k->call.kind == COLL_ALL_TO_ALL ? sent(k, me.rank, i) : uneven(k->call.n, i);
        k->out_counts[i] = sent(k, i, me.rank);
    }
    k->call.counts     = k->counts;
    k->call.out_counts = k->call.kind == COLL_ALL_TO_ALL ? k->out_counts : NULL;
}

static inline unsigned char *make_buffer(const kase *k, size_t n, unsigned char **memory)
{
    const bool mapped = k->where == MAPPED || (k->where == MIXED && me.rank % 2 == 0);
    const size_t room = n * k->bytes + 128;
    *memory           = mapped ? segment_alloc(room, NULL) : malloc(room);
    CHECK(*memory != NULL, "no memory");
    memset(*memory, 0xee, room);
    return *memory + (k->where == UNALIGNED ? 1 + (size_t)me.rank * 3 : 64);
}

static inline void drop_buffer(const kase *k, unsigned char *memory)
{
    if (k->where == MAPPED || (k->where == MIXED && me.rank % 2 == 0))
        segment_free(memory);
    else
        free(memory);
}

/* Writes what this member puts in.  The values of a type are made once, by one write each, which a sanitizer watches;
 * what is then copied costs it little. */
static inline void write_input(const kase *k)
{
    static struct {
        unsigned char *values;
        size_t n;
    } made[PEN_U64 + 1];
    const pen_dtype dtype = k->call.dtype;
    if (made[dtype].n < k->n_in) {
        made[dtype].values = realloc(made[dtype].values, k->n_in * k->bytes);
        CHECK(made[dtype].values != NULL, "no memory");
        for (size_t i = made[dtype].n; i < k->n_in; i++)
            write_value(dtype, made[dtype].values + i * k->bytes, value(dtype, me.rank, i));
        made[dtype].n = k->n_in;
    }
    if (k->n_in > 0) memcpy(k->in, made[dtype].values, k->n_in * k->bytes);
}

static inline void prepare(kase *k)
{
    set_counts(k);
    k->bytes          = plan_dtype_bytes(k->call.dtype);
    k->n_in           = coll_in_elements(&k->call, me.size, me.rank);
    k->n_out          = coll_out_elements(&k->call, me.size, me.rank);
    const size_t most = k->n_in > k->n_out ? k->n_in : k->n_out;
    k->in             = make_buffer(k, k->in_place ? most : k->n_in, &k->in_memory);
    k->out            = k->in_place ? k->in : make_buffer(k, k->n_out, &k->out_memory);
    write_input(k);
    k->call.in  = k->in;
    k->call.out = k->out;
}

static inline void finish(kase *k)
{
    drop_buffer(k, k->in_memory);
    if (!k->in_place) drop_buffer(k, k->out_memory);
}

/* Element i of this member's expected output. */
static inline double expected(const kase *k, size_t i)
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

/* All elements of small arrays; of large ones both ends and every 17th between: errors come in
 * pieces. */
static inline size_t next(size_t i, size_t n)
{
    return n < 10000 || i < 100 || i + 100 > n ? i + 1 : i + 17;
}

static inline void check_output(const kase *k, const char *when)
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

static inline void check_input(const kase *k, const char *when)
{
    unsigned char want[8];
    for (size_t i = 0; i < k->n_in; i = next(i, k->n_in)) {
        write_value(k->call.dtype, want, value(k->call.dtype, me.rank, i));
        CHECK(memcmp(want, k->in + i * k->bytes, k->bytes) == 0,
              "%s: %s n=%zu where=%d in_place=%d: input %zu has changed", when,
              coll_kind_name(k->call.kind), k->call.n, k->where, k->in_place, i);
    }
}

#endif
