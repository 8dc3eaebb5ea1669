/* device_path_test.c - collectives on device memory, with the host as the device: the code above the kernels is the
 * same.  One thread advances the members in turn, so the test chooses every order of events; one
 * test has members in processes of their own. */
#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/compute/device/device_test.h"
#include "common/compute/simd/simd.h"
#include "proto/plan.h"
#include "worker/collective/device/device_sync.h"
#include "worker/collective/device/device_test.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

extern const device_ops device_cpu;

enum { MEMBERS = 9, ELEMENTS = 1200, SMALL = 1, LARGE = 0, TURNS = 2000000 };

static const pen_dtype dtypes[] = {PEN_F32, PEN_F16, PEN_BF16, PEN_F64, PEN_I8,
                                   PEN_U8,  PEN_I32, PEN_U32,  PEN_I64, PEN_U64};

/* ---- numbers: small integers, which every type has exactly ------------------------------------------- */
static double value_of(int rank, size_t i)
{
    return (double)((i * 7 + (size_t)rank * 3) % 5);
}

static void put(void *data, pen_dtype dtype, size_t i, double x)
{
    const float real = (float)x;
    switch (dtype) {
    case PEN_F32: ((float *)data)[i] = real; return;
    case PEN_F64: ((double *)data)[i] = x; return;
    case PEN_I8:
    case PEN_U8: ((uint8_t *)data)[i] = (uint8_t)x; return;
    case PEN_I32:
    case PEN_U32: ((uint32_t *)data)[i] = (uint32_t)x; return;
    case PEN_I64:
    case PEN_U64: ((uint64_t *)data)[i] = (uint64_t)x; return;
    default: simd()->encode((uint16_t *)data + i, &real, dtype, 1);
    }
}

static double get(const void *data, pen_dtype dtype, size_t i)
{
    float real = 0;
    switch (dtype) {
    case PEN_F32: return ((const float *)data)[i];
    case PEN_F64: return ((const double *)data)[i];
    case PEN_I8:
    case PEN_U8: return ((const uint8_t *)data)[i];
    case PEN_I32:
    case PEN_U32: return ((const uint32_t *)data)[i];
    case PEN_I64:
    case PEN_U64: return (double)((const uint64_t *)data)[i];
    default: simd()->decode(&real, (const uint16_t *)data + i, dtype, 1); return real;
    }
}

/* ---- members ------------------------------------------------------------------------------------------ */
typedef struct {
    int n;
    uint64_t seq;
    device_place *place[MEMBERS];
    device_team *team[MEMBERS];
    coll_call call[MEMBERS];
    coll_state state[MEMBERS];
    pen_error why[MEMBERS];
    _Alignas(64) uint8_t op[MEMBERS][COLL_OP_BYTES];
} rig;

typedef struct {
    device_sync_choice sync;
    bool shares_device;
    uint64_t one_shot_bytes; /* 1: no call is small */
} way;

static const way ways[] = {
    {DEVICE_SYNC_AUTO, true, 1},          {DEVICE_SYNC_AUTO, true, 1 << 20},
    {DEVICE_SYNC_HOSTFLAG, false, 1},     {DEVICE_SYNC_STREAM, false, 1},
    {DEVICE_SYNC_STREAM, false, 1 << 20}, {DEVICE_SYNC_SPIN, false, 1},
    {DEVICE_SYNC_SPIN, false, 1 << 20},
};
enum { WAYS = sizeof ways / sizeof *ways };

static const nccl_table *nccl_for_teams; /* of teams created from now on */
static int nccl_without = -1;            /* this member has none */

static const device_ops *rig_ops = &device_cpu;
static device_stop *rig_stop; /* of member 0 */

static bool is_rung[MEMBERS]; /* another member has rung since this one looked */
static int members[MEMBERS];

static void ring_others(void *user)
{
    for (int i = 0; i < MEMBERS; i++)
        if (i != *(int *)user) is_rung[i] = true;
}

static device_options options_of(const way *w, int rank)
{
    members[rank] = rank;
    return (device_options){.ops            = rig_ops,
                            .ring           = ring_others,
                            .user           = &members[rank],
                            .stop           = rank == 0 ? rig_stop : NULL,
                            .sync           = w->sync,
                            .nccl           = rank == nccl_without ? NULL : nccl_for_teams,
                            .device         = w->shares_device ? -1 : rank,
                            .one_shot_bytes = w->one_shot_bytes};
}

static uint64_t rig_id = 100; /* of the newest team */

static void rig_open(rig *r, int n, const way *w)
{
    int ranks[MEMBERS];
    const char *address[MEMBERS];
    memset(r, 0, sizeof *r);
    r->n = n;
    rig_id++;
    for (int i = 0; i < n; i++) {
        assert_int_equal(device_place_create(&r->place[i], &r->why[i]), PEN_OK);
        address[i] = device_place_address(r->place[i]);
        ranks[i]   = i + 10;
    }
    for (int i = 0; i < n; i++) {
        const device_options o = options_of(w, i);
        assert_int_equal(device_team_create(r->place[i], rig_id, address, ranks, n, i, &o,
                                            &r->team[i], &r->why[i]),
                         PEN_OK);
    }
}

static void rig_close(rig *r)
{
    for (int i = 0; i < r->n; i++) device_team_destroy(r->team[i]);
    for (int i = 0; i < r->n; i++) device_place_destroy(r->place[i]);
}

static void start(rig *r, int i)
{
    const pen_status status =
        coll_path_device.start(r->team[i], r->op[i], &r->call[i], r->seq, &r->why[i]);
    r->state[i] = status == PEN_OK ? COLL_RUNNING : COLL_FAILED;
}

static void advance(rig *r, int i)
{
    if (r->state[i] == COLL_RUNNING) r->state[i] = coll_path_device.advance(r->op[i], &r->why[i]);
}

/* Advances all members, each time in another order. */
static void run(rig *r)
{
    bool is_running = true;
    r->seq++;
    for (int i = 0; i < r->n; i++) start(r, i);
    for (int turn = 0; is_running; turn++) {
        assert_true(turn < TURNS);
        is_running = false;
        for (int i = 0; i < r->n; i++) {
            const int who = (i * (r->n > 3 ? 1 : 2) + turn) % r->n;
            advance(r, who);
            advance(r, i);
        }
        for (int i = 0; i < r->n; i++) is_running = is_running || r->state[i] == COLL_RUNNING;
    }
}

static void run_well(rig *r)
{
    run(r);
    for (int i = 0; i < r->n; i++) {
        if (r->state[i] != COLL_DONE) print_message("member %d: %s\n", i, r->why[i].text);
        assert_int_equal(r->state[i], COLL_DONE);
    }
}

/* ---- one call of every kind, against a reference -------------------------------------------------------- */
typedef struct {
    coll_kind kind;
    pen_dtype dtype;
    pen_op op;
    size_t n;
    bool is_foreign, is_in_place, has_counts;
    int root;
} job;

static char *in_memory[MEMBERS], *out_memory[MEMBERS]; /* ops->alloc() of ELEMENTS * MEMBERS * 8 */
static char *foreign_in[MEMBERS], *foreign_out[MEMBERS];
static size_t counts[MEMBERS][MEMBERS], taken[MEMBERS][MEMBERS];

static size_t part(const job *j, int who)
{
    return j->has_counts ? j->n + (size_t)who % 3 : j->n;
}

static size_t start_of(const job *j, int who)
{
    size_t sum = 0;
    for (int i = 0; i < who; i++) sum += part(j, i);
    return sum;
}

static size_t sent(const job *j, int from, int to)
{
    return j->has_counts ? (size_t)(from * 2 + to) % 4 : j->n;
}

static void fill_counts(const job *j, rig *r)
{
    for (int i = 0; i < r->n; i++) {
        r->call[i].counts = r->call[i].out_counts = NULL;
        if (!j->has_counts) continue;
        for (int k = 0; k < r->n; k++) {
            counts[i][k] = j->kind == COLL_ALL_TO_ALL ? sent(j, i, k) : part(j, k);
            taken[i][k]  = sent(j, k, i);
        }
        r->call[i].counts = counts[i];
        if (j->kind == COLL_ALL_TO_ALL) r->call[i].out_counts = taken[i];
    }
}

static bool takes_counts(coll_kind kind)
{
    return kind == COLL_GATHER || kind == COLL_ALL_GATHER || kind == COLL_SCATTER ||
           kind == COLL_REDUCE_SCATTER || kind == COLL_ALL_TO_ALL;
}

/* Where in and out of a member are; in place as penstock.h defines it for each kind. */
static void place_buffers(const job *j, rig *r, int i)
{
    coll_call *c       = &r->call[i];
    const size_t width = plan_dtype_bytes(j->dtype);
    char *in           = j->is_foreign ? foreign_in[i] : in_memory[i];
    char *out          = j->is_foreign ? foreign_out[i] : out_memory[i];
    c->in              = in + (j->is_foreign ? width : 0);
    c->out             = out;
    if (j->kind == COLL_BROADCAST) c->in = c->out;
    if (!j->is_in_place) return;
    const size_t own = (takes_counts(j->kind) ? start_of(j, i) : 0) * width;
    if (j->kind == COLL_GATHER || j->kind == COLL_ALL_GATHER)
        c->in = out + own;
    else if (j->kind == COLL_SCATTER || j->kind == COLL_REDUCE_SCATTER)
        c->out = (char *)(uintptr_t)c->in + own;
    else
        c->out = (void *)(uintptr_t)c->in;
}

/* Not before the first test has forked: children share the parent's shared memory. */
static void memory_up(void)
{
    if (in_memory[0] != NULL) return;
    for (int i = 0; i < MEMBERS; i++) {
        in_memory[i]   = device_cpu.alloc(ELEMENTS * MEMBERS * 8, -1, NULL);
        out_memory[i]  = device_cpu.alloc(ELEMENTS * MEMBERS * 8, -1, NULL);
        foreign_in[i]  = malloc(ELEMENTS * MEMBERS * 8);
        foreign_out[i] = malloc(ELEMENTS * MEMBERS * 8);
        assert_true(in_memory[i] != NULL && out_memory[i] != NULL);
    }
}

static void prepare(const job *j, rig *r)
{
    memory_up();
    fill_counts(j, r);
    for (int i = 0; i < r->n; i++) {
        r->call[i].kind  = j->kind;
        r->call[i].op    = j->op;
        r->call[i].dtype = j->dtype;
        r->call[i].root  = j->root;
        r->call[i].n     = j->n;
        r->call[i].scale = 1;
        r->call[i].label = "weights";
        place_buffers(j, r, i);
        const size_t out = coll_out_elements(&r->call[i], r->n, i);
        const size_t in  = coll_in_elements(&r->call[i], r->n, i);
        for (size_t k = 0; k < out; k++) put(r->call[i].out, j->dtype, k, 99);
        for (size_t k = 0; k < in; k++)
            put((void *)(uintptr_t)r->call[i].in, j->dtype, k, value_of(i, k));
    }
}

static double folded(const job *j, int n, size_t i)
{
    double x = value_of(0, i);
    for (int r = 1; r < n; r++) {
        const double y = value_of(r, i);
        if (j->op == PEN_SUM) x += y;
        if (j->op == PEN_MAX && y > x) x = y;
        if (j->op == PEN_MIN && y < x) x = y;
    }
    return x;
}

/* Element k of member `who`'s expected output. */
static double wanted(const job *j, int n, int who, size_t k)
{
    int from = 0;
    switch (j->kind) {
    case COLL_BROADCAST: return value_of(j->root, k);
    case COLL_REDUCE:
    case COLL_ALL_REDUCE: return folded(j, n, k);
    case COLL_REDUCE_SCATTER: return folded(j, n, start_of(j, who) + k);
    case COLL_SCATTER: return value_of(j->root, start_of(j, who) + k);
    case COLL_GATHER:
    case COLL_ALL_GATHER:
        for (; k >= part(j, from); from++) k -= part(j, from);
        return value_of(from, k);
    default:
        for (; k >= sent(j, from, who); from++) k -= sent(j, from, who);
        for (int to = 0; to < who; to++) k += sent(j, from, to);
        return value_of(from, k);
    }
}

static bool shares_memory(const job *j)
{
    return j->is_in_place || j->kind == COLL_BROADCAST;
}

static void check(const job *j, const rig *r)
{
    for (int i = 0; i < r->n; i++) {
        const coll_call *c = &r->call[i];
        for (size_t k = 0; k < coll_out_elements(c, r->n, i); k++)
            if (get(c->out, j->dtype, k) != wanted(j, r->n, i, k))
                fail_msg(
                    "%s, type %d, %d members, n %zu, foreign %d, in place %d, counts %d: element "
                    "%zu of member %d is %g, not %g",
                    coll_kind_name(j->kind), j->dtype, r->n, j->n, j->is_foreign, j->is_in_place,
                    j->has_counts, k, i, get(c->out, j->dtype, k), wanted(j, r->n, i, k));
        if (shares_memory(j)) continue;
        for (size_t k = 0; k < coll_in_elements(c, r->n, i); k++)
            assert_true(get(c->in, j->dtype, k) == value_of(i, k));
    }
}

static void check_job(rig *r, const job *j)
{
    prepare(j, r);
    run_well(r);
    check(j, r);
}

static int memory_down(void **state)
{
    (void)state;
    for (int i = 0; i < MEMBERS; i++) {
        device_cpu.free(in_memory[i]);
        device_cpu.free(out_memory[i]);
        free(foreign_in[i]);
        free(foreign_out[i]);
    }
    return 0;
}

/* ---- tests ------------------------------------------------------------------------------------------------ */
static void check_kind(rig *r, coll_kind kind, pen_dtype dtype, size_t n)
{
    for (int bits = 0; bits < 8; bits++) {
        job j = {.kind        = kind,
                 .dtype       = dtype,
                 .op          = bits & 1 ? PEN_MAX : PEN_SUM,
                 .n           = n,
                 .is_foreign  = (bits & 1) != 0,
                 .is_in_place = (bits & 2) != 0,
                 .has_counts  = (bits & 4) != 0,
                 .root        = (int)(n % (size_t)r->n)};
        if (j.has_counts && !takes_counts(kind)) continue;
        if (j.is_in_place && (kind == COLL_BROADCAST || (kind == COLL_ALL_TO_ALL && j.has_counts)))
            continue;
        check_job(r, &j);
    }
}

static void every_collective_matches_the_reference_for_every_type_and_path(void **state)
{
    static const size_t sizes[] = {1, 3, 130};
    static rig r;
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        for (int n = 1; n <= 4; n++) {
            rig_open(&r, n, &ways[w]);
            for (int kind = COLL_BROADCAST; kind < COLL_KINDS; kind++)
                for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
                    check_kind(&r, (coll_kind)kind, dtypes[d], sizes[(d + (size_t)n) % 3]);
            rig_close(&r);
        }
    }
}

static void nine_members_agree(void **state)
{
    static rig r;
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        rig_open(&r, 9, &ways[w]);
        for (int kind = COLL_BROADCAST; kind < COLL_KINDS; kind++)
            check_kind(&r, (coll_kind)kind, PEN_F32, ELEMENTS - 3);
        rig_close(&r);
    }
}

static void events_that_take_long_change_nothing(void **state)
{
    static rig r;
    (void)state;
    device_cpu_set_event_polls(5);
    for (int w = 0; w < WAYS; w++) {
        rig_open(&r, 3, &ways[w]);
        for (int kind = COLL_BROADCAST; kind < COLL_KINDS; kind++)
            check_kind(&r, (coll_kind)kind, PEN_BF16, 77);
        rig_close(&r);
    }
    device_cpu_set_event_polls(0);
}

/* ---- stream order --------------------------------------------------------------------------------------- */
static int asked, followed; /* event_done(), stream_wait() */

static pen_status counted_done(device_event *event, pen_error *why)
{
    asked++;
    return device_cpu.event_done(event, why);
}

static pen_status counted_wait(device_stream stream, device_event *event, pen_error *why)
{
    followed++;
    return device_cpu.stream_wait(stream, event, why);
}

static void count_calls(device_ops *ops)
{
    *ops             = device_cpu;
    ops->event_done  = counted_done;
    ops->stream_wait = counted_wait;
    rig_ops          = ops;
}

static bool is_in_order(const rig *r, int i)
{
    return r->call[i].in_stream_order;
}

/* who: the members whose calls are in stream order, a bit for each. */
static void set_order(rig *r, unsigned who)
{
    for (int i = 0; i < r->n; i++) r->call[i].in_stream_order = (who >> i & 1) != 0;
}

static void a_call_in_stream_order_ends_without_asking_the_device(void **state)
{
    static rig r;
    device_ops counted;
    (void)state;
    count_calls(&counted);
    for (int w = 0; w < WAYS; w++) {
        if (ways[w].sync != DEVICE_SYNC_STREAM && ways[w].sync != DEVICE_SYNC_SPIN) continue;
        rig_open(&r, 3, &ways[w]);
        check_job(&r, &(job){.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 5}); /* sets up */
        set_order(&r, 7);
        device_cpu_set_event_polls(100);
        asked = 0;
        for (int kind = COLL_BROADCAST; kind < COLL_KINDS; kind++)
            check_kind(&r, (coll_kind)kind, PEN_F32, 77);
        assert_int_equal(asked, 0);
        rig_close(&r); /* frees nothing that the device still uses */
        assert_true(asked >= 3 * 100);
        device_cpu_set_event_polls(0);
    }
    rig_ops = &device_cpu;
}

static void members_may_differ_in_whether_their_calls_are_in_stream_order(void **state)
{
    static rig r;
    (void)state;
    device_cpu_set_event_polls(5);
    for (int w = 0; w < WAYS; w++) {
        rig_open(&r, 3, &ways[w]);
        for (unsigned who = 0; who < 8; who++) {
            set_order(&r, who);
            for (int kind = COLL_BROADCAST; kind < COLL_KINDS; kind++)
                check_kind(&r, (coll_kind)kind, PEN_F32, 77);
            assert_true(is_in_order(&r, 0) == ((who & 1) != 0));
        }
        rig_close(&r);
    }
    device_cpu_set_event_polls(0);
}

static void the_stream_of_the_next_call_waits_for_the_last_one_in_stream_order(void **state)
{
    static rig r;
    device_ops counted;
    const job j = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 500};
    (void)state;
    count_calls(&counted);
    rig_open(&r, 2, &ways[0]); /* hostflag: streams wait for nothing else */
    check_job(&r, &j);
    followed = 0;
    set_order(&r, 3);
    check_job(&r, &j);
    assert_int_equal(followed, 0);
    set_order(&r, 0);
    check_job(&r, &j);
    assert_int_equal(followed, 2);
    check_job(&r, &j); /* the device was done when that one ended */
    assert_int_equal(followed, 2);
    rig_close(&r);
    rig_ops = &device_cpu;
}

static void a_wait_that_ends_early_after_its_call_fails_the_next_one(void **state)
{
    static rig r;
    static device_stop stop;
    const job j = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 500};
    (void)state;
    rig_stop = &stop;
    rig_open(&r, 2, &(way){DEVICE_SYNC_SPIN, false, 1});
    rig_stop = NULL;
    set_order(&r, 3);
    check_job(&r, &j);
    stop.result = DEVICE_FLAG_LATE; /* as a kernel does that waited too long */
    prepare(&j, &r);
    run(&r);
    assert_int_equal(r.state[0], COLL_FAILED);
    assert_int_equal(r.why[0].status, PEN_TIMED_OUT);
    assert_non_null(strstr(r.why[0].text, "in an earlier call"));
    assert_int_equal(r.state[1], COLL_FAILED);
    assert_int_equal(r.why[1].status, PEN_PEER_LOST);
    rig_close(&r);
}

/* Members 0 and 2 have ended a call in stream order that member 1 gives up; they learn it in their next call. */
static void a_call_that_another_member_gave_up_fails_the_next_one(void **state)
{
    static rig r;
    const job j = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 500};
    (void)state;
    rig_open(&r, 3, &(way){DEVICE_SYNC_SPIN, false, 1});
    set_order(&r, 7);
    check_job(&r, &j);
    device_cpu_set_event_polls(100);
    prepare(&j, &r);
    r.seq++;
    for (int i = 0; i < 3; i++) start(&r, i);
    for (int i = 0; i < 3; i++) advance(&r, i);
    advance(&r, 0);
    assert_int_equal(r.state[0], COLL_DONE);
    assert_int_equal(r.state[1], COLL_RUNNING); /* it has all it needs, and does not look */
    assert_int_equal(r.state[2], COLL_DONE);
    coll_path_device.abort(r.op[1]);
    r.seq++;
    start(&r, 0);
    advance(&r, 0);
    assert_int_equal(r.state[0], COLL_FAILED);
    assert_int_equal(r.why[0].status, PEN_PEER_LOST);
    assert_non_null(strstr(r.why[0].text, "rank 11 gave up the call before"));
    device_cpu_set_event_polls(0);
    rig_close(&r);
}

static void a_barrier_needs_no_device_and_everyone(void **state)
{
    static rig r;
    int missing[MEMBERS];
    (void)state;
    rig_open(&r, 3, &ways[0]);
    for (int i = 0; i < 3; i++)
        r.call[i] = (coll_call){.kind = COLL_BARRIER, .dtype = PEN_U8, .label = "", .scale = 1};
    r.seq = 1;
    start(&r, 0);
    start(&r, 2);
    for (int turn = 0; turn < 100; turn++) advance(&r, 0);
    assert_int_equal(r.state[0], COLL_RUNNING);
    assert_int_equal(coll_path_device.missing(r.op[0], missing, MEMBERS), 1);
    assert_int_equal(missing[0], 1);
    start(&r, 1);
    for (int i = 0; i < 3; i++) advance(&r, i);
    for (int i = 0; i < 3; i++) assert_int_equal(r.state[i], COLL_DONE);
    assert_string_equal(device_team_text(r.team[0]), "");
    rig_close(&r);
}

static void empty_calls_end(void **state)
{
    static rig r;
    (void)state;
    rig_open(&r, 2, &ways[0]);
    for (int kind = COLL_BROADCAST; kind < COLL_KINDS; kind++)
        check_kind(&r, (coll_kind)kind, PEN_F64, 0);
    rig_close(&r);
}

static void every_member_scales_its_own_input(void **state)
{
    static rig r;
    (void)state;
    for (int w = 0; w < 2; w++) {
        const job j = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .op = PEN_SUM, .n = 100};
        rig_open(&r, 3, &ways[w]);
        prepare(&j, &r);
        for (int i = 0; i < 3; i++) r.call[i].scale = 0.5 * i;
        run_well(&r);
        for (size_t k = 0; k < j.n; k++)
            assert_true(get(r.call[2].out, PEN_F32, k) == 0.5 * value_of(1, k) + value_of(2, k));
        rig_close(&r);
    }
}

static void a_mismatch_is_the_same_sentence_everywhere_and_changes_no_input(void **state)
{
    static rig r;
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        const job j = {.kind        = COLL_ALL_REDUCE,
                       .dtype       = PEN_F32,
                       .op          = PEN_SUM,
                       .n           = 100,
                       .is_in_place = true};
        rig_open(&r, 3, &ways[w]);
        check_job(&r, &j);
        prepare(&j, &r);
        r.call[1].n = 99;
        run(&r);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r.state[i], COLL_FAILED);
            assert_int_equal(r.why[i].status, PEN_MISMATCH);
            assert_string_equal(r.why[i].text, r.why[0].text);
            assert_non_null(strstr(r.why[i].text, "rank 11"));
            for (size_t k = 0; k < 99; k++)
                assert_true(get(r.call[i].in, PEN_F32, k) == value_of(i, k));
        }
        rig_close(&r);
    }
}

static void mismatched_counts_are_reported(void **state)
{
    static rig r;
    const job j = {.kind = COLL_ALL_TO_ALL, .dtype = PEN_F32, .n = 4, .has_counts = true};
    (void)state;
    rig_open(&r, 2, &ways[0]);
    prepare(&j, &r);
    taken[1][0]++;
    run(&r);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r.state[i], COLL_FAILED);
        assert_int_equal(r.why[i].status, PEN_MISMATCH);
        assert_string_equal(r.why[i].text, r.why[0].text);
    }
    rig_close(&r);
}

/* Aborts member 1 after this many rounds of all members, in whatever stage it is. */
static void check_abort(const way *w, int rounds, coll_kind kind)
{
    static rig r;
    const job j = {.kind = kind, .dtype = PEN_F32, .op = PEN_SUM, .n = 300};
    rig_open(&r, 3, w);
    device_cpu_set_event_polls(3);
    prepare(&j, &r);
    r.seq++;
    for (int i = 0; i < 3; i++) start(&r, i);
    for (int turn = 0; turn < rounds; turn++)
        for (int i = 0; i < 3; i++) advance(&r, i);
    const bool was_running = r.state[1] == COLL_RUNNING;
    if (was_running) {
        coll_path_device.abort(r.op[1]);
        r.state[1] = COLL_FAILED;
    }
    for (int turn = 0; turn < 1000; turn++)
        for (int i = 0; i < 3; i++) advance(&r, i);
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(r.state[i], COLL_RUNNING);
        if (!was_running) assert_int_equal(r.state[i], COLL_DONE);
        if (kind == COLL_BROADCAST) continue;
        for (size_t k = 0; k < j.n; k++)
            assert_true(get(r.call[i].in, PEN_F32, k) == value_of(i, k));
    }
    device_cpu_set_event_polls(0);
    rig_close(&r);
}

static void a_member_that_gives_up_ends_the_call_of_all_and_leaves_inputs_intact(void **state)
{
    static const int rounds[] = {0, 1, 20, 60, 70};
    (void)state;
    for (int w = 0; w < WAYS; w += 3)
        for (int i = 0; i < 5; i++) check_abort(&ways[w], rounds[i], COLL_ALL_REDUCE);
    check_abort(&ways[0], 1, COLL_BROADCAST);
}

/* Their own devices work at once, so only another member can give them something to do. */
static void members_that_look_only_when_another_has_rung_come_to_the_end(void **state)
{
    static rig r;
    const job j = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .op = PEN_SUM, .n = 300};
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        rig_open(&r, 3, &ways[w]);
        for (int call = 0; call < 3; call++) {
            prepare(&j, &r);
            r.seq++;
            for (int i = 0; i < 3; i++) start(&r, i);
            for (int i = 0; i < 3; i++) is_rung[i] = true;
            for (int turn = 0; turn < TURNS; turn++) {
                const int i = turn % 3;
                if (!is_rung[i]) continue;
                is_rung[i] = false;
                for (int k = 0; k < 50; k++) advance(&r, i); /* as long as its own work goes on */
            }
            for (int i = 0; i < 3; i++) assert_int_equal(r.state[i], COLL_DONE);
        }
        rig_close(&r);
    }
}

static void spinning_is_refused_where_two_ranks_share_a_device(void **state)
{
    static rig r;
    const way spin_shared = {DEVICE_SYNC_SPIN, true, 1};
    const job j           = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 8};
    (void)state;
    rig_open(&r, 2, &spin_shared);
    prepare(&j, &r);
    run(&r);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r.state[i], COLL_FAILED);
        assert_int_equal(r.why[i].status, PEN_UNSUPPORTED);
        assert_non_null(strstr(r.why[i].text, "ranks 10 and 11 share"));
    }
    rig_close(&r);
}

static pen_status share_nothing(const void *data, size_t bytes, device_ref *ref, pen_error *why)
{
    (void)data, (void)bytes, (void)ref;
    return why_set(why, PEN_UNSUPPORTED, "this memory cannot be shared");
}

static void memory_that_one_member_cannot_share_is_unsupported_on_all(void **state)
{
    (void)state;
    static float in[4][8], out[4][8];
    device_ops lonely = device_cpu;
    lonely.share      = share_nothing;
    rig r;
    rig_open(&r, 4, &ways[0]);
    device_team_destroy(r.team[2]);
    int ranks[4];
    const char *address[4];
    for (int i = 0; i < 4; i++) {
        ranks[i]   = i + 10;
        address[i] = device_place_address(r.place[i]);
    }
    device_options o = options_of(&ways[0], 2);
    o.ops            = &lonely;
    assert_int_equal(
        device_team_create(r.place[2], rig_id, address, ranks, 4, 2, &o, &r.team[2], &r.why[2]),
        PEN_OK);
    for (int i = 0; i < 4; i++)
        r.call[i] = (coll_call){.kind  = COLL_ALL_REDUCE,
                                .dtype = PEN_F32,
                                .n     = 8,
                                .in    = in[i],
                                .out   = out[i],
                                .scale = 1,
                                .label = ""};
    run(&r);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r.state[i], COLL_FAILED);
        assert_int_equal(r.why[i].status, PEN_UNSUPPORTED);
        assert_true(device_team_is_refused(r.team[i]));
    }
    rig_close(&r);
}

static void the_safe_path_is_chosen_from_the_uuids(void **state)
{
    const uint8_t uuid[3][16] = {{1}, {2}, {1}}, own[3][16] = {{1}, {2}, {3}};
    const int ranks[3]      = {0, 1, 2};
    const device_sync *sync = NULL;
    (void)state;
    assert_int_equal(device_sync_choose(DEVICE_SYNC_AUTO, uuid, ranks, 3, &sync, NULL), PEN_OK);
    assert_string_equal(sync->name, "hostflag");
    assert_int_equal(device_sync_choose(DEVICE_SYNC_AUTO, own, ranks, 3, &sync, NULL), PEN_OK);
    assert_string_equal(sync->name, "spin");
    assert_int_equal(device_sync_choose(DEVICE_SYNC_STREAM, uuid, ranks, 3, &sync, NULL), PEN_OK);
    assert_string_equal(sync->name, "stream");
    assert_int_equal(device_sync_choose(DEVICE_SYNC_SPIN, own, ranks, 3, &sync, NULL), PEN_OK);
    assert_string_equal(sync->name, "spin");
    assert_int_equal(device_sync_choose(DEVICE_SYNC_SPIN, uuid, ranks, 3, &sync, NULL),
                     PEN_UNSUPPORTED);
}

/* t_bar 2.5 us and 360 GB/s were used to check the formula: 171 KB for 8 members, 600 KB for 4. */
static void the_border_of_one_shot_follows_the_formula(void **state)
{
    (void)state;
    assert_in_range(device_one_shot_bytes(2500, 360, 8, false), 171000, 172000);
    assert_in_range(device_one_shot_bytes(2500, 360, 4, false), 600000, 600000);
    assert_int_equal(device_one_shot_bytes(2500, 360, 2, false), 4 << 20);
    assert_in_range(device_one_shot_bytes(50000, 2000, 4, true), 4 << 20, 4 << 20);
    assert_in_range(device_one_shot_bytes(2500, 360, 4, true), 45000, 45000);
    assert_int_equal(device_one_shot_bytes(0, 360, 4, true), 4096);
}

static void measured_values_are_reported(void **state)
{
    static rig r;
    const way measured = {DEVICE_SYNC_AUTO, true, 0};
    const job j        = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 8};
    (void)state;
    rig_open(&r, 3, &measured);
    check_job(&r, &j);
    assert_non_null(
        strstr(device_team_text(r.team[0]), "cpu hostflag, 3 members on 1 device, barrier "));
    assert_string_equal(strstr(device_team_text(r.team[0]), "one-shot"),
                        strstr(device_team_text(r.team[2]), "one-shot"));
    rig_close(&r);
}

/* ---- NCCL, faked by a table: the result is there when the last member has called ------------------------------ */
typedef struct {
    int rank, polls;
    uint64_t calls;
} fake_link;

static fake_link fake_links[MEMBERS];
static int fake_size, fake_opened, fake_closed, fake_aborted, fake_refuses = -1, fake_carried;
static struct {
    int came;
    const void *in[MEMBERS];
    void *out[MEMBERS];
} fake_round[4];

static pen_status fake_name(uint8_t name[NCCL_NAME_BYTES], pen_error *why)
{
    (void)why;
    memset(name, 7, NCCL_NAME_BYTES);
    return PEN_OK;
}

static pen_status fake_open(const uint8_t name[NCCL_NAME_BYTES], int size, int rank, void **link,
                            pen_error *why)
{
    (void)why;
    assert_int_equal(name[NCCL_NAME_BYTES - 1], 7);
    if (rank == fake_refuses) return PEN_DEVICE;
    fake_size        = size;
    fake_links[rank] = (fake_link){.rank = rank, .polls = 3};
    *link            = &fake_links[rank];
    fake_opened++;
    return PEN_OK;
}

static pen_status fake_ready(void *link, pen_error *why)
{
    (void)why;
    return fake_refuses < 0 && --((fake_link *)link)->polls < 0 ? PEN_OK : PEN_AGAIN;
}

static pen_status fake_start(void *link, const nccl_call *call, device_stream stream,
                             pen_error *why)
{
    fake_link *l    = link;
    const int round = (int)(l->calls++ % 4);
    (void)stream, (void)why;
    assert_int_equal(call->kind, NCCL_ALL_REDUCE);
    fake_round[round].in[l->rank]  = call->in;
    fake_round[round].out[l->rank] = call->out;
    l->polls                       = (int)(l->calls % 3);
    if (++fake_round[round].came < fake_size) return PEN_AGAIN;
    const reduce_args args = {.op    = call->op,
                              .dtype = call->dtype,
                              .n_in  = fake_size,
                              .n_out = fake_size,
                              .in    = fake_round[round].in,
                              .out   = fake_round[round].out};
    reduce(&args, 0, call->n);
    fake_round[round].came = 0;
    fake_carried++;
    return PEN_OK;
}

static void fake_abort(void *link)
{
    (void)link;
    fake_aborted++;
}

static void fake_close(void *link)
{
    (void)link;
    fake_closed++;
}

static const nccl_table fake_nccl = {.name  = fake_name,
                                     .open  = fake_open,
                                     .start = fake_start,
                                     .ready = fake_ready,
                                     .abort = fake_abort,
                                     .close = fake_close};

static void with_nccl(rig *r, int n, device_sync_choice sync, int without)
{
    nccl_for_teams = &fake_nccl;
    nccl_without   = without;
    fake_opened = fake_closed = fake_aborted = fake_carried = 0;
    memset(fake_round, 0, sizeof fake_round);
    rig_open(r, n, &(way){sync, false, 1});
    nccl_for_teams = NULL;
}

static void nccl_carries_allowed_calls_and_no_others(void **state)
{
    static rig r;
    (void)state;
    with_nccl(&r, 3, DEVICE_SYNC_NCCL, -1);
    const job integers = {.kind = COLL_ALL_REDUCE, .dtype = PEN_I32, .op = PEN_SUM, .n = 500};
    const job floats   = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .op = PEN_SUM, .n = 500};
    const job in_place = {
        .kind = COLL_ALL_REDUCE, .dtype = PEN_U8, .op = PEN_MAX, .n = 500, .is_in_place = true};
    check_job(&r, &integers);
    assert_int_equal(fake_carried, 3); /* two of them, for measuring */
    check_job(&r, &floats);            /* in rank order: our own kernel */
    assert_int_equal(fake_carried, 3);
    check_job(&r, &in_place);
    assert_int_equal(fake_carried, 4);
    assert_non_null(strstr(device_team_text(r.team[0]), "NCCL"));
    rig_close(&r);
    assert_int_equal(fake_opened, 3);
    assert_int_equal(fake_closed, 3);
    assert_int_equal(fake_aborted, 0);
}

static void nccl_that_a_rank_lacks_or_that_does_not_start_is_named(void **state)
{
    static rig r;
    const job j = {.kind = COLL_ALL_REDUCE, .dtype = PEN_I32, .op = PEN_SUM, .n = 500};
    (void)state;
    for (int how = 0; how < 2; how++) {
        fake_refuses = how == 0 ? -1 : 1;
        with_nccl(&r, 3, DEVICE_SYNC_NCCL, how == 0 ? 1 : -1);
        prepare(&j, &r);
        run(&r);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r.state[i], COLL_FAILED);
            assert_int_equal(r.why[i].status, PEN_UNSUPPORTED);
            assert_non_null(strstr(r.why[i].text, "rank 1"));
            assert_string_equal(r.why[i].text, r.why[0].text);
        }
        rig_close(&r);
        assert_int_equal(fake_opened, fake_closed);
    }
    fake_refuses = -1;
}

static void only_exact_or_allowed_sums_fit_nccl(void **state)
{
    (void)state;
    assert_true(nccl_fits(PEN_SUM, PEN_I64, true));
    assert_false(nccl_fits(PEN_AVG, PEN_I64, false));
    assert_false(nccl_fits(PEN_SUM, PEN_F32, true));
    assert_true(nccl_fits(PEN_SUM, PEN_BF16, false));
    assert_false(nccl_fits(PEN_MAX, PEN_F32, false));
}

/* ---- processes ---------------------------------------------------------------------------------------------- */
enum { PROCESSES = 3 };
typedef struct {
    _Atomic int made;
    char address[PROCESSES][128];
} meeting;

static bool drive(coll_path const *path, void *op, pen_error *why)
{
    const uint64_t until = clock_ms(&clock_real) + 20000;
    coll_state state     = COLL_RUNNING;
    while (state == COLL_RUNNING && clock_ms(&clock_real) < until) {
        state = path->advance(op, why);
        if (state == COLL_RUNNING) usleep(50);
    }
    return state == COLL_DONE;
}

/* One member in a process of its own; returns 0 if everything is as expected. */
static int member(meeting *m, int rank, const way *w, pen_error *why)
{
    static _Alignas(64) uint8_t op[COLL_OP_BYTES];
    const int ranks[PROCESSES]     = {0, 1, 2};
    const char *address[PROCESSES] = {m->address[0], m->address[1], m->address[2]};
    const device_options o         = options_of(w, rank);
    device_place *place            = NULL;
    device_team *team              = NULL;
    if (device_place_create(&place, why) != PEN_OK) return 1;
    snprintf(m->address[rank], sizeof m->address[rank], "%s", device_place_address(place));
    m->made++;
    while (m->made < PROCESSES) usleep(100);
    if (device_team_create(place, 7, address, ranks, PROCESSES, rank, &o, &team, why) != PEN_OK)
        return 2;
    float *in  = device_cpu.alloc(ELEMENTS * 4, -1, why),
          *out = device_cpu.alloc(ELEMENTS * 4, -1, why);
    for (uint64_t seq = 1; seq <= 20; seq++) {
        for (size_t k = 0; k < ELEMENTS; k++) in[k] = (float)value_of(rank + (int)seq, k);
        const coll_call call = {.kind  = COLL_ALL_REDUCE,
                                .dtype = PEN_F32,
                                .n     = ELEMENTS,
                                .in    = in,
                                .out   = out,
                                .scale = 1,
                                .label = "x"};
        if (coll_path_device.start(team, op, &call, seq, why) != PEN_OK) return 3;
        if (!drive(&coll_path_device, op, why)) return 4;
        for (size_t k = 0; k < ELEMENTS; k++) {
            double sum = 0;
            for (int i = 0; i < PROCESSES; i++) sum += value_of(i + (int)seq, k);
            if (out[k] != (float)sum) return 5;
        }
    }
    device_team_destroy(team);
    device_place_destroy(place);
    device_cpu.free(in);
    device_cpu.free(out);
    return 0;
}

static void members_in_processes_of_their_own_agree(void **state)
{
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        meeting *m =
            mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(m != MAP_FAILED);
        pid_t pid[PROCESSES];
        for (int i = 0; i < PROCESSES; i++) {
            pid[i] = fork();
            if (pid[i] != 0) continue;
            pen_error why = {0};
            alarm(200);
            const int result = member(m, i, &ways[w], &why);
            if (result != 0) fprintf(stderr, "way %d, member %d, %d: %s\n", w, i, result, why.text);
            _exit(result);
        }
        for (int i = 0; i < PROCESSES; i++) {
            int result = -1;
            assert_int_equal(waitpid(pid[i], &result, 0), pid[i]);
            assert_int_equal(result, 0);
        }
        munmap(m, sizeof *m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_in_processes_of_their_own_agree), /* first: see memory_up() */
        cmocka_unit_test(every_collective_matches_the_reference_for_every_type_and_path),
        cmocka_unit_test(nine_members_agree),
        cmocka_unit_test(events_that_take_long_change_nothing),
        cmocka_unit_test(a_call_in_stream_order_ends_without_asking_the_device),
        cmocka_unit_test(members_may_differ_in_whether_their_calls_are_in_stream_order),
        cmocka_unit_test(the_stream_of_the_next_call_waits_for_the_last_one_in_stream_order),
        cmocka_unit_test(a_wait_that_ends_early_after_its_call_fails_the_next_one),
        cmocka_unit_test(a_call_that_another_member_gave_up_fails_the_next_one),
        cmocka_unit_test(a_barrier_needs_no_device_and_everyone),
        cmocka_unit_test(empty_calls_end),
        cmocka_unit_test(every_member_scales_its_own_input),
        cmocka_unit_test(a_mismatch_is_the_same_sentence_everywhere_and_changes_no_input),
        cmocka_unit_test(mismatched_counts_are_reported),
        cmocka_unit_test(a_member_that_gives_up_ends_the_call_of_all_and_leaves_inputs_intact),
        cmocka_unit_test(members_that_look_only_when_another_has_rung_come_to_the_end),
        cmocka_unit_test(spinning_is_refused_where_two_ranks_share_a_device),
        cmocka_unit_test(memory_that_one_member_cannot_share_is_unsupported_on_all),
        cmocka_unit_test(the_safe_path_is_chosen_from_the_uuids),
        cmocka_unit_test(the_border_of_one_shot_follows_the_formula),
        cmocka_unit_test(measured_values_are_reported),
        cmocka_unit_test(nccl_carries_allowed_calls_and_no_others),
        cmocka_unit_test(nccl_that_a_rank_lacks_or_that_does_not_start_is_named),
        cmocka_unit_test(only_exact_or_allowed_sums_fit_nccl),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, memory_down);
}
