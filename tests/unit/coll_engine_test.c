/* coll_engine_test.c - groups of threads as ranks: every collective on every path, and its requests.
 *
 * All ranks are in this process, so they would always use shared memory.  Rows set host_id to pretend that ranks are on
 * several hosts, and shared_memory=no to get the paths of ranks that cannot map each other's memory. */
#include "tests/unit/coll_settings.h"

#include "common/base/clock.h"
#include "common/compute/device/device_test.h"
#include "worker/collective/engine/engine_internal.h"
#include "worker/collective/fault_point.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* No rank pretends. */
static void start_rig(rig *r, int n, const char *const *settings, const coll_job *job)
{
    memset(engine_pretences, 0, sizeof engine_pretences);
    rig_start(r, n, settings, job);
}

enum { N = 1003 };

static float value(int rank, size_t i)
{
    return (float)((int)((i * 31 + (size_t)rank * 17) % 41) - 20) / 4;
}

/* ---- every collective ------------------------------------------------------------------------ */
static void fill(float *x, int rank, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = value(rank, i);
}

static float sum(int n, size_t i)
{
    float total = value(0, i);
    for (int r = 1; r < n; r++) total += value(r, i);
    return total;
}

static void check_reductions(rig *r, int rank, pen_group *w)
{
    float in[N], out[N];
    fill(in, rank, N);
    rig_check(r, pen_all_reduce(w, in, out, N, PEN_F32, PEN_SUM, NULL, NULL) == PEN_OK);
    for (size_t i = 0; i < N; i++) rig_check(r, out[i] == sum(r->n, i));
    rig_check(r, pen_all_reduce(w, in, out, N, PEN_F32, PEN_AVG, NULL, NULL) == PEN_OK);
    for (size_t i = 0; i < N; i++) rig_check(r, out[i] == sum(r->n, i) / (float)r->n);
    memset(out, 0, sizeof out);
    rig_check(r, pen_reduce(w, in, out, N, PEN_F32, PEN_SUM, r->n - 1, NULL, NULL) == PEN_OK);
    for (size_t i = 0; i < N; i++) rig_check(r, out[i] == (rank == r->n - 1 ? sum(r->n, i) : 0));
    rig_check(r, pen_all_reduce(w, in, in, N, PEN_F32, PEN_SUM,
                                &(pen_opts){.flags = PEN_SCALED, .scale = 2}, NULL) == PEN_OK);
    for (size_t i = 0; i < N; i++) rig_check(r, in[i] == 2 * sum(r->n, i));
}

/* Parts of 1, 2, ... elements; sums of quarters are exact in any order. */
static void check_parts(rig *r, int rank, pen_group *w)
{
    float in[RIG_RANKS_MAX * RIG_RANKS_MAX], out[RIG_RANKS_MAX], all[sizeof in / sizeof *in];
    size_t counts[RIG_RANKS_MAX], total = 0, before = 0;
    for (int i = 0; i < r->n; i++) {
        counts[i] = (size_t)i + 1;
        if (i < rank) before += counts[i];
        total += counts[i];
    }
    fill(in, rank, total);
    rig_check(r, pen_reduce_scatter(w, in, counts, out, counts[rank], PEN_F32, PEN_AVG, NULL,
                                    NULL) == PEN_OK);
    for (size_t i = 0; i < counts[rank]; i++)
        rig_check(r, out[i] == sum(r->n, before + i) / (float)r->n);
    for (size_t i = 0; i < total; i++) rig_check(r, in[i] == value(rank, i));
    rig_check(r, pen_all_gather(w, out, counts[rank], all, counts, PEN_F32, NULL, NULL) == PEN_OK);
    for (size_t i = 0; i < total; i++) rig_check(r, all[i] == sum(r->n, i) / (float)r->n);
}

static void check_moves(rig *r, int rank, pen_group *w)
{
    int32_t one[3] = {rank, rank + 10, rank + 20}, all[3 * RIG_RANKS_MAX] = {0}, got[3];
    for (int root = 0; root < r->n; root++) {
        int32_t data = rank == root ? 77 + root : 0;
        rig_check(r, pen_broadcast(w, &data, 1, PEN_I32, root, NULL, NULL) == PEN_OK);
        rig_check(r, data == 77 + root);
    }
    rig_check(r, pen_all_gather(w, one, 3, all, NULL, PEN_I32, NULL, NULL) == PEN_OK);
    for (int i = 0; i < r->n; i++) rig_check(r, all[3 * i] == i && all[3 * i + 2] == i + 20);
    rig_check(r, pen_scatter(w, all, NULL, got, 3, PEN_I32, 0, NULL, NULL) == PEN_OK);
    rig_check(r, got[0] == rank && got[1] == rank + 10);
    memset(all, 0, sizeof all);
    rig_check(r, pen_gather(w, one, 3, all, NULL, PEN_I32, 0, NULL, NULL) == PEN_OK);
    rig_check(r, rank != 0 || all[3 * (r->n - 1)] == r->n - 1);
    int32_t to[RIG_RANKS_MAX], from[RIG_RANKS_MAX], part;
    for (int i = 0; i < r->n; i++) to[i] = 100 * rank + i;
    rig_check(r, pen_all_to_all(w, to, NULL, from, NULL, 1, PEN_I32, NULL, NULL) == PEN_OK);
    for (int i = 0; i < r->n; i++) rig_check(r, from[i] == 100 * i + rank);
    rig_check(r, pen_reduce_scatter(w, to, NULL, &part, 1, PEN_I32, PEN_MAX, NULL, NULL) == PEN_OK);
    rig_check(r, part == 100 * (r->n - 1) + rank);
    rig_check(r, pen_barrier(w, NULL, NULL) == PEN_OK);
}

static void check_everything(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]);
    rig_check(r, pen_rank(w) == rank && pen_size(w) == r->n);
    for (int round = 0; round < 3; round++) {
        check_reductions(r, rank, w);
        check_moves(r, rank, w);
        check_parts(r, rank, w);
    }
}

static void run_everything(int n, const char *const *settings, group_carrier carrier)
{
    rig r = {0};
    start_rig(&r, n, settings, NULL);
    assert_int_equal(r.ctx[0]->world->carrier, carrier);
    rig_run(&r, check_everything);
    rig_stop(&r);
}

static void every_collective_is_right_in_shared_memory(void **state)
{
    (void)state;
    for (int n = 2; n <= 5; n++) run_everything(n, NULL, GROUP_NODE);
}

static void every_collective_is_right_over_sockets(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++) run_everything(n, SETTINGS("shared_memory=no"), GROUP_WIRE);
}

static void every_collective_is_right_on_two_hosts_of_two(void **state)
{
    (void)state;
    run_everything(4, SETTINGS("0:host_id=a", "1:host_id=a", "2:host_id=b", "3:host_id=b"),
                   GROUP_HIER);
    run_everything(
        4, SETTINGS("0:host_id=a", "1:host_id=b", "2:host_id=a", "3:host_id=b", "two_level=yes"),
        GROUP_HIER);
}

/* Members on one device are in another order than their hosts. */
static void every_collective_is_right_on_hosts_in_any_order(void **state)
{
    (void)state;
    run_everything(4, SETTINGS("0:host_id=a", "1:host_id=b", "2:host_id=b", "3:host_id=a"),
                   GROUP_HIER);
    run_everything(6,
                   SETTINGS("0:host_id=a", "1:host_id=b", "2:host_id=b", "3:host_id=c",
                            "4:host_id=a", "5:host_id=c", "two_level=yes"),
                   GROUP_HIER);
}

/* Members of nodes {0, 2, 4} and {1, 3, 5}: their sums are not exact. */
static float uneven_value(int rank, size_t i)
{
    return value(rank, i) / 7 * (float)(1 << rank);
}

static void check_sum_by_node(rig *r, int rank)
{
    float in[N], out[N];
    for (size_t i = 0; i < N; i++) in[i] = uneven_value(rank, i);
    rig_check(r, pen_all_reduce(pen_world(r->ctx[rank]), in, out, N, PEN_F32, PEN_SUM, NULL,
                                NULL) == PEN_OK);
    for (size_t i = 0; i < N; i++) {
        const float even = uneven_value(0, i) + uneven_value(2, i) + uneven_value(4, i),
                    odd  = uneven_value(1, i) + uneven_value(3, i) + uneven_value(5, i);
        rig_check(r, out[i] == even + odd);
    }
}

static void a_node_is_one_in_the_order_of_sums_with_shared_memory_or_without(void **state)
{
    (void)state;
    static const struct {
        const char *setting;
        group_carrier carrier;
    } rows[] = {{"two_level=auto", GROUP_HIER},
                {"two_level=no", GROUP_WIRE},
                {"2:shared_memory=no", GROUP_HIER},
                {"shared_memory=no", GROUP_WIRE}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rig r = {0};
        start_rig(&r, 6,
                  SETTINGS("0:host_id=a", "1:host_id=b", "2:host_id=a", "3:host_id=b",
                           "4:host_id=a", "5:host_id=b", "deterministic=node", rows[i].setting),
                  NULL);
        assert_int_equal(r.ctx[0]->world->carrier, rows[i].carrier);
        rig_run(&r, check_sum_by_node);
        rig_stop(&r);
    }
}

/* It is alone on its host, also by its own settings. */
static void one_member_may_be_without_shared_memory(void **state)
{
    (void)state;
    run_everything(3, SETTINGS("0:shared_memory=no"), GROUP_HIER);
    run_everything(2, SETTINGS("1:shared_memory=no"), GROUP_WIRE);
}

/* As if the system refused the mapping: rank 1 has a wrong size in rank 2's address. */
static void refuse_mapping(rig *r)
{
    char *size = strrchr(r->ctx[1]->coll->node_address[2], ':') + 1;
    memset(size, '0', strlen(size));
}

static void check_new_groups(rig *r, int rank)
{
    pen_group *w      = pen_world(r->ctx[rank]), *all;
    const int ranks[] = {0, 1, 2, 3};
    for (int round = 0; round < 2; round++) {
        rig_check(r, pen_group_new(w, ranks, r->n, &all) == PEN_OK);
        check_reductions(r, rank, all);
        check_moves(r, rank, all);
        check_parts(r, rank, all);
        rig_check(r, all->carrier == (group_carrier)(intptr_t)r->user);
        pen_group_free(all);
    }
    check_reductions(r, rank, w); /* mapped before */
}

static void a_mapping_refused_to_one_member_makes_all_use_sockets(void **state)
{
    (void)state;
    const char *const *const hosts[] = {
        NULL, SETTINGS("0:host_id=a", "1:host_id=b", "2:host_id=b", "3:host_id=a")};
    for (int i = 0; i < 2; i++) {
        rig r = {.user = (void *)(intptr_t)(i == 0 ? GROUP_WIRE : GROUP_HIER)};
        start_rig(&r, i == 0 ? 3 : 4, hosts[i], NULL);
        refuse_mapping(&r);
        rig_run(&r, check_new_groups);
        rig_stop(&r);
    }
}

/* The first call on devices begins with a vote, which reaches the same result. */
static void check_devices_of_a_new_group(rig *r, int rank)
{
    pen_group *w          = pen_world(r->ctx[rank]), *all;
    ENGINE_PRETENCE(rank) = PRETEND_REACHABLE;
    rig_check(r, group_create(r->ctx[rank]->coll, 4711, w->ranks, r->n, &all, &(pen_error){0}) ==
                     PEN_OK);
    check_reductions(r, rank, all);
    rig_check(r, all->carrier == GROUP_WIRE);
    pen_group_free(all);
}

static void a_vote_about_devices_bypasses_a_refused_mapping(void **state)
{
    (void)state;
    rig r = {0};
    start_rig(&r, 3, NULL, NULL);
    const bool has_devices = r.ctx[0]->coll->device_place != NULL; /* else built without */
    refuse_mapping(&r);
    if (has_devices) rig_run(&r, check_devices_of_a_new_group);
    rig_stop(&r);
    if (!has_devices) skip();
}

static void every_collective_is_right_on_hosts_of_different_size(void **state)
{
    (void)state;
    run_everything(3, SETTINGS("0:host_id=a", "1:host_id=b", "2:host_id=b"), GROUP_HIER);
}

static void one_member_on_each_host_uses_the_network(void **state)
{
    (void)state;
    run_everything(2, SETTINGS("0:host_id=a", "1:host_id=b"), GROUP_WIRE);
}

static void stage_and_check(rig *r, int rank)
{
    ENGINE_PRETENCE(rank) = PRETEND_UNREACHABLE;
    check_everything(r, rank);
}

static void memory_that_peers_cannot_reach_is_staged(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        rig r = {0};
        start_rig(&r, 3, i == 0 ? NULL : SETTINGS("shared_memory=no"), NULL);
        rig_run(&r, stage_and_check);
        rig_stop(&r);
    }
    rig r = {0};
    start_rig(&r, 1, NULL, NULL);
    rig_run(&r, stage_and_check);
    rig_stop(&r);
}

static void call_on_devices(rig *r, int rank)
{
    ENGINE_PRETENCE(rank) = PRETEND_REACHABLE;
    check_everything(r, rank);
    rig_check(r, r->ctx[rank]->world->device != NULL);
}

static void members_on_one_host_work_on_each_others_device_memory(void **state)
{
    (void)state;
    rig r = {0};
    start_rig(&r, 3, NULL, NULL);
    const bool has_devices = r.ctx[0]->coll->device_place != NULL; /* else built without */
    if (has_devices) rig_run(&r, call_on_devices);
    rig_stop(&r);
    if (!has_devices) skip();
}

/* ---- devices of several hosts ---- */
static const char *const two_hosts[] = {"0:host_id=a", "1:host_id=a", "2:host_id=b", "3:host_id=b"},
                         *const outer_and_inner[] = {"0:host_id=a", "1:host_id=b", "2:host_id=b",
                                                     "3:host_id=a"};
enum { LARGE = 700001, BYTES_MAX = LARGE * 4, CASES = 60, DTYPES = 5, KINDS = 5 };

typedef struct {
    coll_kind kind;
    pen_dtype dtype;
    pen_op op;
    size_t n, element;
    bool in_place, has_counts;
    double scale;
    int root;
} drawn_call;

/* The same on all ranks. */
static drawn_call draw_call(int seed)
{
    static const coll_kind kinds[KINDS]   = {COLL_ALL_REDUCE, COLL_REDUCE, COLL_REDUCE_SCATTER,
                                             COLL_ALL_GATHER, COLL_BROADCAST};
    static const pen_dtype dtypes[DTYPES] = {PEN_F32, PEN_BF16, PEN_F16, PEN_I32, PEN_F64};
    static const size_t element[DTYPES] = {4, 2, 2, 4, 8}, sizes[] = {1, 3, 7, 1003, 40001};
    static const pen_op ops[] = {PEN_SUM, PEN_AVG, PEN_MAX, PEN_PROD};
    const unsigned h = (unsigned)seed * 2654435761u, at = (unsigned)seed;
    drawn_call d = {.kind       = kinds[at % KINDS],
                    .dtype      = dtypes[at / KINDS % DTYPES],
                    .element    = element[at / KINDS % DTYPES],
                    .op         = ops[h >> 8 & 3],
                    .n          = sizes[(h >> 12) % 5],
                    .in_place   = (h >> 16 & 1) != 0,
                    .has_counts = (h >> 17 & 1) != 0,
                    .scale      = (h >> 18 & 1) != 0 ? 0.375 : 1,
                    .root       = (int)(h >> 20 & 3)};
    if (seed >= CASES - KINDS) { /* several pieces */
        d.n       = d.kind == COLL_REDUCE_SCATTER || d.kind == COLL_ALL_GATHER ? LARGE / 4 : LARGE;
        d.dtype   = PEN_F32;
        d.element = 4;
    }
    return d;
}

static void fill_bytes(unsigned char *to, const drawn_call *d, int rank, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float x     = value(rank, i) / 7 + 0.3f;
        const double wide = (double)x;
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        const uint16_t half   = (uint16_t)(bits >> 16),
                       narrow = (uint16_t)(0x3800 + (bits >> 13 & 0x3ff));
        const int32_t whole   = (int32_t)(i * 7) - 50 * rank;
        const void *from      = d->dtype == PEN_F32    ? (const void *)&x
                                : d->dtype == PEN_F64  ? (const void *)&wide
                                : d->dtype == PEN_BF16 ? (const void *)&half
                                : d->dtype == PEN_F16  ? (const void *)&narrow
                                                       : (const void *)&whole;
        memcpy(to + i * d->element, from, d->element);
    }
}

/* Makes it; in place, in == out or in is the own part of out, or the reverse.  The result is in out[]. */
static pen_status make_call(pen_group *w, const drawn_call *d, unsigned char *in,
                            unsigned char *out, size_t *result)
{
    const int rank = pen_rank(w), size = pen_size(w);
    const pen_opts o = {.flags = coll_reduces(d->kind) && d->scale != 1 ? PEN_SCALED : 0,
                        .scale = d->scale};
    size_t counts[RIG_RANKS_MAX], all = 0, own = 0;
    for (int i = 0; i < size; i++) {
        counts[i] = d->has_counts ? d->n / 2 + (size_t)i * (d->n > 100) + (i == 1) : d->n;
        if (i < rank) own += counts[i] * d->element;
        all += counts[i];
    }
    const size_t *parts = d->has_counts ? counts : NULL;
    unsigned char *from = d->in_place ? out : in;
    *result             = d->n * d->element;
    switch (d->kind) {
    case COLL_ALL_REDUCE:
        fill_bytes(from, d, rank, d->n);
        return pen_all_reduce(w, from, out, d->n, d->dtype, d->op, &o, NULL);
    case COLL_REDUCE:
        fill_bytes(from, d, rank, d->n);
        if (rank != d->root) *result = 0;
        return pen_reduce(w, from, out, d->n, d->dtype, d->op, d->root, &o, NULL);
    case COLL_REDUCE_SCATTER:
        fill_bytes(in, d, rank, all);
        *result           = counts[rank] * d->element;
        pen_status status = pen_reduce_scatter(w, in, parts, d->in_place ? in + own : out,
                                               counts[rank], d->dtype, d->op, &o, NULL);
        if (d->in_place) memcpy(out, in + own, *result);
        return status;
    case COLL_ALL_GATHER:
        fill_bytes(d->in_place ? out + own : in, d, rank, counts[rank]);
        *result = all * d->element;
        return pen_all_gather(w, d->in_place ? out + own : in, counts[rank], out, parts, d->dtype,
                              NULL, NULL);
    default:
        if (rank == d->root) fill_bytes(out, d, rank, d->n);
        return pen_broadcast(w, out, d->n, d->dtype, d->root, NULL, NULL);
    }
}

/* Each call on host memory and then on device memory: the same bits.  With deterministic=no a reduce to one member adds in
 * another order on the host. */
static void compare_with_host_memory(rig *r, int rank)
{
    pen_group *w      = pen_world(r->ctx[rank]);
    unsigned char *in = calloc(1, 2 * BYTES_MAX), *out[2];
    for (int i = 0; i < 2; i++) out[i] = calloc(1, 2 * BYTES_MAX);
    for (int seed = 0; seed < CASES; seed++) {
        const drawn_call d = draw_call(seed);
        size_t bytes       = 0;
        for (int i = 0; i < 2; i++) {
            ENGINE_PRETENCE(rank) = i == 0 ? PRETEND_NOTHING : PRETEND_REACHABLE;
            rig_check(r, make_call(w, &d, in, out[i], &bytes) == PEN_OK);
        }
        if (d.kind == COLL_REDUCE && r->ctx[rank]->coll->order == SUMS_LOOSE) continue;
        if (memcmp(out[0], out[1], bytes) != 0) {
            printf("call %d: %s differs on rank %d\n", seed, coll_kind_name(d.kind), rank);
            rig_check(r, false);
        }
    }
    for (int i = 0; i < 2; i++) free(out[i]);
    free(in);
}

static bool has_devices(const rig *r)
{
    return r->ctx[0]->coll->device_place != NULL; /* else built without */
}

static void calls_on_devices_of_two_hosts_have_the_bits_of_host_memory(void **state)
{
    (void)state;
    static const char *const settings[] = {"deterministic=node", "deterministic=no",
                                           "deterministic=yes"};
    bool was_built                      = true;
    device_cpu_set_event_polls(3);
    for (int i = 0; i < 3; i++) {
        const char *const *h = i == 1 ? outer_and_inner : two_hosts;
        rig r                = {0};
        start_rig(&r, 4, SETTINGS(h[0], h[1], h[2], h[3], settings[i]), NULL);
        was_built = has_devices(&r);
        if (was_built) rig_run(&r, compare_with_host_memory);
        for (int k = 0; k < 4 && was_built; k++) assert_true(r.ctx[k]->world->device_carries);
        rig_stop(&r);
    }
    device_cpu_set_event_polls(0);
    if (!was_built) skip();
}

static void every_collective_is_right_on_devices_of_several_hosts(void **state)
{
    (void)state;
    const char *const *const layouts[] = {
        SETTINGS("0:host_id=a", "1:host_id=b", "2:host_id=b", "3:host_id=c", "4:host_id=a",
                 "5:host_id=c", "two_level=yes"),
        SETTINGS("0:host_id=a", "1:host_id=a", "2:host_id=b", "3:host_id=b"),
        SETTINGS("0:host_id=a", "1:host_id=a", "2:host_id=b", "3:host_id=b", "two_level=no"),
        SETTINGS("0:host_id=a", "1:host_id=a", "2:host_id=a", "3:host_id=b", "deterministic=no")};
    for (int i = 0; i < 4; i++) {
        rig r = {0};
        start_rig(&r, i == 0 ? 6 : 4, layouts[i], NULL);
        for (int k = 0; k < r.n; k++) ENGINE_PRETENCE(k) = PRETEND_REACHABLE;
        rig_run(&r, check_everything);
        assert_int_equal(r.ctx[0]->world->device_carries, i < 2 && has_devices(&r));
        rig_stop(&r);
    }
}

/* On one host only: its members know that their devices do not work together, and the others learn it. */
static void
devices_of_one_host_that_do_not_work_together_send_all_calls_through_host_memory(void **state)
{
    (void)state;
    const char *const *h = two_hosts;
    rig r                = {0};
    start_rig(&r, 4, SETTINGS(h[0], h[1], h[2], h[3], "deterministic=node", "device_backend=spin"),
              NULL);
    for (int i = 0; i < 4; i++) ENGINE_PRETENCE(i) = PRETEND_REACHABLE;
    rig_run(&r, check_everything);
    for (int i = 0; i < 4 && has_devices(&r); i++) {
        assert_true(r.ctx[i]->world->device_is_settled);
        assert_false(r.ctx[i]->world->device_carries);
    }
    rig_stop(&r);
}

/* Threads of one process share its device, where kernels must not wait: all members detect it before data moves. */
static void a_device_unfit_for_a_group_is_bypassed_within_the_same_call(void **state)
{
    (void)state;
    rig r = {0};
    start_rig(&r, 3, SETTINGS("device_backend=spin"), NULL);
    const bool has_devices = r.ctx[0]->coll->device_place != NULL;
    for (int i = 0; i < 3; i++) ENGINE_PRETENCE(i) = PRETEND_REACHABLE;
    rig_run(&r, check_everything);
    for (int i = 0; i < 3 && has_devices; i++) {
        assert_true(r.ctx[i]->world->device_is_settled);
        assert_false(r.ctx[i]->world->device_carries);
    }
    rig_stop(&r);
    if (!has_devices) skip();
}

static void one_member_without_access_to_a_device_makes_all_take_the_same_path(void **state)
{
    (void)state;
    rig r = {0};
    start_rig(&r, 3, NULL, NULL);
    coll_engine *e         = r.ctx[1]->coll;
    const bool has_devices = e->device_place != NULL;
    if (has_devices) e->device_address[2] = "cuda:none";
    for (int i = 0; i < 3; i++) ENGINE_PRETENCE(i) = PRETEND_REACHABLE;
    rig_run(&r, check_everything);
    for (int i = 0; i < 3; i++) assert_null(r.ctx[i]->world->device);
    rig_stop(&r);
    if (!has_devices) skip();
}

/* ---- stream order ---- */
static void note_end(void *user, pen_status status, const pen_error *why)
{
    (void)why;
    atomic_store((atomic_int *)user, status == PEN_OK ? 1 : -1);
}

static bool submit_and_wait(pen_group *w, const coll_call *call)
{
    atomic_int ended = 0;
    pen_error why;
    if (coll_submit(w, call, 5000, note_end, &ended, &why) != PEN_OK) return false;
    while (atomic_load(&ended) == 0) usleep(100);
    return atomic_load(&ended) == 1;
}

/* On the host, "enqueued" is "done": what the test adds are slow events, behind which memory is set aside. */
static void chain_in_stream_order(rig *r, int rank)
{
    enum { CALLS = 8 };
    pen_group *w = pen_world(r->ctx[rank]);
    const uint32_t *stopped;
    pen_error why;
    float x[N], y[N];
    size_t counts[RIG_RANKS_MAX];
    ENGINE_PRETENCE(rank) = (engine_pretence)(intptr_t)r->user;
    rig_check(r, coll_stop_word(w, device_of(x), -1, &stopped, &why) == PEN_OK);
    for (int i = 0; i < r->n; i++) counts[i] = i == 0 ? N - (size_t)(r->n - 1) : 1;
    fill(x, rank, N);
    coll_call sum_all = {.kind            = COLL_ALL_REDUCE,
                         .op              = PEN_SUM,
                         .dtype           = PEN_F32,
                         .n               = N,
                         .in              = x,
                         .out             = y,
                         .scale           = 1,
                         .label           = "",
                         .in_stream_order = true};
    coll_call scatter = sum_all, gather = sum_all;
    float part[N];
    scatter.kind   = COLL_REDUCE_SCATTER;
    scatter.counts = counts;
    scatter.out    = part;
    gather.kind    = COLL_ALL_GATHER;
    gather.counts  = counts;
    gather.in      = part;
    gather.n       = counts[rank];
    for (int i = 0; i < CALLS; i++) {
        rig_check(r, submit_and_wait(w, &sum_all));
        for (size_t k = 0; k < N; k++) rig_check(r, y[k] == sum(r->n, k));
        memset(y, 0, sizeof y);
        rig_check(r, submit_and_wait(w, &scatter));
        rig_check(r, submit_and_wait(w, &gather));
        for (size_t k = 0; k < N; k++) rig_check(r, y[k] == sum(r->n, k));
    }
    rig_check(r, *stopped == 0);
    if (r->n == 1) return;
    sum_all.n = rank == 1 ? N - 1 : N;
    rig_check(r, !submit_and_wait(w, &sum_all));
    rig_check(r, *(const volatile uint32_t *)stopped != 0);
}

static void
calls_in_stream_order_are_right_on_every_path_and_stop_kernels_when_one_fails(void **state)
{
    (void)state;
    device_cpu_set_event_polls(3);
    for (int n = 1; n <= 3; n += 2) {
        for (int i = PRETEND_REACHABLE; i <= PRETEND_UNREACHABLE; i++) {
            rig r = {.user = (void *)(intptr_t)i};
            start_rig(&r, n, NULL, NULL);
            rig_run(&r, chain_in_stream_order);
            rig_stop(&r);
        }
    }
    rig r = {.user = (void *)(intptr_t)PRETEND_REACHABLE};
    start_rig(
        &r, 4,
        SETTINGS("0:host_id=a", "1:host_id=a", "2:host_id=b", "3:host_id=b", "deterministic=no"),
        NULL);
    rig_run(&r, chain_in_stream_order);
    rig_stop(&r);
    device_cpu_set_event_polls(0);
}

/* Rank 1 forgets to move its tensor to the device, in call 1 or in a later call. */
static int good_calls;

static void mix_memory(rig *r, int rank)
{
    pen_group *w         = pen_world(r->ctx[rank]);
    const pen_opts o     = {.deadline_ms = 20000, .label = "loss"};
    const uint64_t begun = clock_ms(&clock_real);
    float x              = (float)rank;
    for (int i = 0; i <= good_calls; i++) {
        const bool is_device    = i < good_calls || rank != 1;
        ENGINE_PRETENCE(rank)   = is_device ? PRETEND_REACHABLE : PRETEND_NOTHING;
        const pen_status status = pen_all_reduce(w, &x, &x, 1, PEN_F32, PEN_SUM, &o, NULL);
        rig_check(r, status == (i < good_calls ? PEN_OK : PEN_MISMATCH));
    }
    rig_check(r, strstr(pen_last_error(NULL), "device memory") != NULL);
    rig_check(r, clock_ms(&clock_real) - begun < 10000);
}

static void memory_of_host_and_device_in_one_call_is_a_mismatch_at_once(void **state)
{
    (void)state;
    const char *const *const layouts[] = {
        SETTINGS("shared_memory=yes"), SETTINGS("shared_memory=no"),
        SETTINGS("0:host_id=a", "1:host_id=a", "2:host_id=b", "3:host_id=b", "deterministic=no")};
    for (int i = 0; i < 6; i++) {
        rig r      = {0};
        good_calls = i < 3 ? 0 : 3;
        start_rig(&r, i % 3 == 2 ? 4 : 3, layouts[i % 3], NULL);
        rig_run(&r, mix_memory);
        rig_stop(&r);
    }
}

static void alone_every_call_is_the_identity_and_no_thread_exists(void **state)
{
    (void)state;
    rig r = {0};
    pen_ctx *ctx;
    assert_int_equal(pen_init(NULL, &ctx), PEN_OK);
    r.n = 1, r.ctx[0] = ctx;
    check_everything(&r, 0);
    assert_int_equal(atomic_load(&r.failures), 0);
    assert_false(ctx->coll->has_thread);
    assert_null(ctx->coll->mesh);
    assert_null(ctx->coll->place);
    assert_int_equal(pen_finalize(ctx), PEN_OK);
}

/* ---- requests -------------------------------------------------------------------------------- */
enum { MANY = 50 };

static void check_requests(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]);
    double in[MANY], out[MANY];
    pen_req req[MANY];
    for (int i = 0; i < MANY; i++) {
        in[i] = rank + i;
        rig_check(r,
                  pen_all_reduce(w, &in[i], &out[i], 1, PEN_F64, PEN_SUM, NULL, &req[i]) == PEN_OK);
    }
    rig_check(r, pen_barrier(w, NULL, NULL) == PEN_OK); /* waits behind them, and advances them */
    for (int i = 0; i < MANY; i++) {
        pen_result result;
        rig_check(r, pen_wait(&req[i], &result) == PEN_OK && result.count == 1);
        rig_check(r, out[i] == r->n * i + r->n * (r->n - 1) / 2);
    }
}

static void requests_and_waiting_calls_of_a_group_keep_their_order(void **state)
{
    (void)state;
    rig r = {0};
    start_rig(&r, 3, NULL, NULL);
    rig_run(&r, check_requests);
    rig_stop(&r);
}

static void requests_end_over_sockets_too(void **state)
{
    (void)state;
    rig r = {0};
    start_rig(&r, 2, SETTINGS("shared_memory=no"), NULL);
    rig_run(&r, check_requests);
    rig_stop(&r);
}

/* ---- the flight recorder --------------------------------------------------------------------- */
static void the_record_keeps_the_last_thousand_calls(void **state)
{
    (void)state;
    pen_ctx *ctx;
    double x = 1;
    assert_int_equal(pen_init(NULL, &ctx), PEN_OK);
    for (int i = 0; i < RECORD_CALLS + 5; i++)
        assert_int_equal(pen_barrier(pen_world(ctx), NULL, NULL), PEN_OK);
    assert_int_equal(pen_all_reduce(pen_world(ctx), &x, &x, 1, PEN_F64, PEN_MAX,
                                    &(pen_opts){.label = "a \"loss\"\n"}, NULL),
                     PEN_OK);
    char *text = coll_engine_recorder(ctx->coll);
    int lines  = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) lines++;
    assert_int_equal(lines, RECORD_CALLS);
    assert_non_null(strstr(text, "\"call\":7,\"kind\":\"barrier\""));
    assert_null(strstr(text, "\"call\":6,"));
    assert_non_null(
        strstr(text, "\"kind\":\"all_reduce\",\"op\":\"MAX\",\"dtype\":\"f64\",\"n\":1"));
    assert_non_null(strstr(text, "\"label\":\"a ?loss??\""));
    assert_non_null(strstr(text, "\"state\":\"OK\"}"));
    free(text);
    assert_int_equal(pen_finalize(ctx), PEN_OK);
}

static void never_done(void *user, pen_status status, const pen_error *why)
{
    (void)user, (void)status, (void)why;
    fail();
}

static void a_call_of_a_group_without_a_job_is_refused(void **state)
{
    (void)state;
    static pen_group g   = {.size = 2};
    float x              = 1;
    const coll_call call = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 1, .in = &x, .out = &x};
    pen_error why;
    assert_int_equal(coll_submit(&g, &call, 0, never_done, NULL, &why), PEN_WRONG_STATE);
    assert_string_equal(why.text, "all_reduce: the job has not begun");
    assert_int_equal(engine_run(&g, &call, 0, &why), PEN_WRONG_STATE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_of_a_group_without_a_job_is_refused),
        cmocka_unit_test(alone_every_call_is_the_identity_and_no_thread_exists),
        cmocka_unit_test(every_collective_is_right_in_shared_memory),
        cmocka_unit_test(every_collective_is_right_over_sockets),
        cmocka_unit_test(every_collective_is_right_on_two_hosts_of_two),
        cmocka_unit_test(every_collective_is_right_on_hosts_of_different_size),
        cmocka_unit_test(every_collective_is_right_on_hosts_in_any_order),
        cmocka_unit_test(a_node_is_one_in_the_order_of_sums_with_shared_memory_or_without),
        cmocka_unit_test(one_member_may_be_without_shared_memory),
        cmocka_unit_test(a_mapping_refused_to_one_member_makes_all_use_sockets),
        cmocka_unit_test(a_vote_about_devices_bypasses_a_refused_mapping),
        cmocka_unit_test(memory_that_peers_cannot_reach_is_staged),
        cmocka_unit_test(members_on_one_host_work_on_each_others_device_memory),
        cmocka_unit_test(
            calls_in_stream_order_are_right_on_every_path_and_stop_kernels_when_one_fails),
        cmocka_unit_test(calls_on_devices_of_two_hosts_have_the_bits_of_host_memory),
        cmocka_unit_test(every_collective_is_right_on_devices_of_several_hosts),
        cmocka_unit_test(
            devices_of_one_host_that_do_not_work_together_send_all_calls_through_host_memory),
        cmocka_unit_test(a_device_unfit_for_a_group_is_bypassed_within_the_same_call),
        cmocka_unit_test(one_member_without_access_to_a_device_makes_all_take_the_same_path),
        cmocka_unit_test(memory_of_host_and_device_in_one_call_is_a_mismatch_at_once),
        cmocka_unit_test(one_member_on_each_host_uses_the_network),
        cmocka_unit_test(requests_and_waiting_calls_of_a_group_keep_their_order),
        cmocka_unit_test(requests_end_over_sockets_too),
        cmocka_unit_test(the_record_keeps_the_last_thousand_calls),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
