/* coll_group_test.c - groups, batches, byte objects, messages and pen_spawn(), with threads as ranks and with
 * real processes. */
#include "../support/coll_rig.h"

#include "common/base/clock.h"
#include "common/base/why.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SETTINGS(...)                                                                              \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static const char *const *const hosts[] = {
    NULL, SETTINGS("shared_memory=no"),
    SETTINGS("0:host_id=a", "1:host_id=a", "2:host_id=b", "3:host_id=b", "0:local_rank=0",
             "1:local_rank=1", "2:local_rank=0", "3:local_rank=1")};
enum { HOSTS = 3 };

static void on_all_hosts(int n, rig_fn fn, void *user)
{
    for (int i = 0; i < HOSTS; i++) {
        rig r = {.user = user};
        rig_start(&r, n, hosts[i], NULL);
        rig_run(&r, fn);
        rig_stop(&r);
    }
}

static int32_t sum_over(rig *r, pen_group *g, int32_t x)
{
    int32_t out = -1;
    rig_check(r, pen_all_reduce(g, &x, &out, 1, PEN_I32, PEN_SUM, NULL, NULL) == PEN_OK);
    return out;
}

/* ---- groups ---------------------------------------------------------------------------------- */
static void make_groups(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]), *odd, *pair, *again;
    int ranks[RIG_RANKS_MAX];
    rig_check(r, pen_group_split(w, rank % 2, -rank, &odd) == PEN_OK);
    rig_check(r, pen_size(odd) == 2 && pen_rank(odd) == (rank < 2 ? 1 : 0)); /* by key */
    rig_check(r, pen_group_ranks(odd, ranks, RIG_RANKS_MAX) == 2 && ranks[1] == rank % 2);
    rig_check(r, sum_over(r, odd, rank) == (rank % 2 == 0 ? 2 : 4));
    rig_check(r, pen_group_new(w, (const int[]){3, 1}, 2, &pair) == PEN_OK);
    rig_check(r, (pair != NULL) == (rank % 2 == 1));
    rig_check(r, pen_group_new(w, (const int[]){3, 1}, 2, &again) == PEN_OK);
    if (pair != NULL) {
        rig_check(r, pair->id != again->id && pen_rank(pair) == (rank == 3 ? 0 : 1));
        rig_check(r, sum_over(r, again, 1) == 2 && sum_over(r, pair, rank) == 4);
        pen_group *own;
        rig_check(r, pen_group_new(pair, &rank, 1, &own) == PEN_OK); /* nested */
        rig_check(r, pen_size(own) == 1 && sum_over(r, own, rank) == rank);
        pen_group_free(own);
    }
    rig_check(r, pen_group_split(w, rank == 0 ? -1 : 5, 0, &again) == PEN_OK || rank < 0);
    rig_check(r, (again == NULL) == (rank == 0));
    rig_check(r, sum_over(r, w, 1) == 4);
    pen_group_free(odd);
    pen_group_free(pair);
    pen_group_free(again);
    pen_group_free(w); /* the context owns it */
    rig_check(r, sum_over(r, w, 1) == 4);
}

static void groups_are_made_of_groups_and_work_side_by_side(void **state)
{
    (void)state;
    on_all_hosts(4, make_groups, NULL);
}

typedef struct {
    rig *r;
    pen_group *g;
    int add;
} worker;

static void *sum_many(void *user)
{
    worker *w = user;
    for (int i = 0; i < 200; i++) rig_check(w->r, sum_over(w->r, w->g, w->add) == 3 * w->add);
    return NULL;
}

static void sum_in_two_threads(rig *r, int rank)
{
    pen_group *other;
    pthread_t thread;
    rig_check(r, pen_group_split(pen_world(r->ctx[rank]), 0, 0, &other) == PEN_OK);
    worker a = {r, pen_world(r->ctx[rank]), 1}, b = {r, other, 5};
    rig_check(r, pthread_create(&thread, NULL, sum_many, &b) == 0);
    sum_many(&a);
    pthread_join(thread, NULL);
    pen_group_free(other);
}

static void two_threads_with_two_groups_do_not_disturb_each_other(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        rig r = {0};
        rig_start(&r, 3, hosts[i], NULL);
        rig_run(&r, sum_in_two_threads);
        rig_stop(&r);
    }
}

static void look_around(rig *r, int rank)
{
    pen_ctx *ctx    = r->ctx[rank];
    pen_group *node = pen_group_get(ctx, PEN_GROUP_NODE);
    pen_group *over = pen_group_get(ctx, PEN_GROUP_ACROSS);
    rig_check(r, node == pen_group_get(ctx, PEN_GROUP_NODE));
    rig_check(r, pen_size(node) == 2 && pen_size(over) == 2);
    rig_check(r, sum_over(r, node, rank) == (rank < 2 ? 1 : 5));
    rig_check(r, sum_over(r, over, rank) == (rank % 2 == 0 ? 2 : 4));
    pen_group_free(node);
    rig_check(r, sum_over(r, node, 1) == 2);
}

static void members_of_a_host_and_one_of_every_host_are_groups(void **state)
{
    (void)state;
    rig r = {0};
    rig_start(&r, 4, hosts[2], NULL);
    rig_run(&r, look_around);
    assert_int_equal(r.ctx[0]->coll->node_group->carrier, GROUP_NODE);
    assert_int_equal(r.ctx[0]->coll->across_group->carrier, GROUP_WIRE);
    rig_stop(&r);
}

static void refuse(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]), *g;
    rig_check(r, pen_group_new(w, (const int[]){0, 0}, 2, &g) == PEN_INVALID_ARGUMENT);
    rig_check(r, strcmp(pen_last_error(NULL), "pen_group_new: rank 0 is named twice") == 0);
    rig_check(r, pen_group_new(w, (const int[]){9}, 1, &g) == PEN_INVALID_ARGUMENT);
    rig_check(r, pen_group_new(w, NULL, 0, &g) == PEN_INVALID_ARGUMENT);
    rig_check(r, pen_group_split(w, -2, 0, &g) == PEN_INVALID_ARGUMENT);
    rig_check(r, pen_broadcast(w, &rank, 1, PEN_I32, 7, NULL, NULL) == PEN_INVALID_ARGUMENT);
    rig_check(r, pen_barrier(NULL, NULL, NULL) == PEN_INVALID_ARGUMENT);
    rig_check(r, pen_send(w, &rank, 1, PEN_I32, 2, 0, NULL, NULL) == PEN_INVALID_ARGUMENT);
    rig_check(r, pen_send(w, &rank, 1, PEN_I32, 1, -1, NULL, NULL) == PEN_INVALID_ARGUMENT);
    rig_check(r, pen_group_shrink(w, &g) == PEN_UNSUPPORTED);
    rig_check(r,
              pen_size(NULL) == 0 && pen_rank(NULL) == -1 && pen_group_ranks(NULL, NULL, 0) == -1);
    rig_check(r, pen_barrier(w, NULL, NULL) == PEN_OK); /* the refused calls did no harm */
}

static void invalid_calls_are_refused_and_do_no_harm(void **state)
{
    (void)state;
    rig r = {0};
    rig_start(&r, 2, NULL, NULL);
    rig_run(&r, refuse);
    rig_stop(&r);
}

/* ---- shrinking ------------------------------------------------------------------------------- */
typedef struct {
    pthread_mutex_t lock;
    int asked;
} agreement;

/* Plays the scheduler: answers both survivors once both have asked. */
static void on_shrink(void *user, uint64_t group, const int *ranks, int n)
{
    rig *r       = user;
    agreement *a = r->user;
    pthread_mutex_lock(&a->lock);
    const bool all = ++a->asked == n;
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < n && all; i++)
        coll_engine_shrunk(r->ctx[ranks[i]]->coll, group, 12345678, ranks, n, NULL);
}

static void shrink(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]), *rest;
    if (rank == 1) return;
    pen_error why;
    why_set(&why, PEN_PEER_LOST, "worker 1 died");
    coll_engine_lost(r->ctx[rank]->coll, 1, &why);
    rig_check(r, pen_barrier(w, NULL, NULL) == PEN_PEER_LOST);
    rig_check(r, pen_group_shrink(w, &rest) == PEN_OK);
    rig_check(r, pen_size(rest) == 2 && pen_rank(rest) == (rank == 0 ? 0 : 1));
    rig_check(r, sum_over(r, rest, rank) == 2);
    pen_group_free(rest);
}

static void survivors_go_on_in_a_smaller_group(void **state)
{
    (void)state;
    const coll_job job = {.shrink = on_shrink};
    for (int i = 0; i < 2; i++) {
        agreement a = {.lock = PTHREAD_MUTEX_INITIALIZER};
        rig r       = {.user = &a};
        rig_start(&r, 3, hosts[i], &job);
        rig_run(&r, shrink);
        rig_stop(&r);
    }
}

static void group_with_the_dead(rig *r, int rank)
{
    pen_group *late;
    pen_error why;
    if (rank == 1) return;
    why_set(&why, PEN_PEER_LOST, "worker 1 died");
    coll_engine_lost(r->ctx[rank]->coll, 1, &why);
    why_set(&why, PEN_PEER_LOST, "worker 2 died"); /* not in the group */
    if (rank == 0) coll_engine_lost(r->ctx[rank]->coll, 2, &why);
    const pen_status status =
        pen_group_new(pen_world(r->ctx[rank]), (const int[]){0, 1, 3}, 3, &late);
    rig_check(r, status == (rank == 2 ? PEN_OK : PEN_PEER_LOST));
    if (rank == 2) return;
    pen_last_error(&why);
    rig_check(r, strstr(why.text, "worker 1 died") != NULL);
}

static void who_makes_a_group_with_one_that_is_lost_waits_for_nobody(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        rig r = {0};
        rig_start(&r, 4, hosts[i], NULL);
        rig_run(&r, group_with_the_dead);
        rig_stop(&r);
    }
}

static void ask_nobody(void *user, uint64_t group, const int *ranks, int n)
{
    (void)user, (void)group, (void)ranks, (void)n;
}

static void make_alone(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]), *g = w;
    pen_error why;
    if (rank != 0) return;
    const uint64_t begun = clock_ms(&clock_real);
    rig_check(r, pen_group_new(w, (const int[]){0, 1}, 2, &g) == PEN_TIMED_OUT && g == NULL);
    pen_last_error(&why);
    rig_check(r, strstr(why.text, "pen_group_new") != NULL && why.missing[0] == 1);
    const uint64_t made = clock_ms(&clock_real);
    rig_check(r, made - begun >= 200);
    rig_check(r, pen_group_shrink(w, &g) == PEN_TIMED_OUT);
    rig_check(r, clock_ms(&clock_real) - made >= 200);
    rig_check(r, strstr(pen_last_error(NULL), "did not call it in time") != NULL);
    rig_check(r, pen_group_split(w, 0, 0, &g) == PEN_TIMED_OUT && g == NULL);
}

static void who_makes_a_group_alone_waits_for_the_setting_deadline_ms(void **state)
{
    (void)state;
    const coll_job job                  = {.shrink = ask_nobody};
    const char *const *const settings[] = {SETTINGS("deadline_ms=200"),
                                           SETTINGS("deadline_ms=200", "shared_memory=no")};
    for (int i = 0; i < 2; i++) {
        rig r = {0};
        rig_start(&r, 2, settings[i], &job);
        rig_run(&r, make_alone);
        rig_stop(&r);
    }
}

/* ---- messages and batches -------------------------------------------------------------------- */
static void pass_messages(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]);
    int32_t to = (rank + 1) % r->n, from = (rank + r->n - 1) % r->n, got[4] = {0}, mine = rank;
    pen_req req;
    pen_result result;
    rig_check(r, pen_send(w, &mine, 1, PEN_I32, to, 5, NULL, &req) == PEN_OK);
    rig_check(r, pen_recv(w, got, 4, PEN_I32, PEN_ANY, PEN_ANY, NULL, NULL) == PEN_OK);
    rig_check(r, got[0] == from);
    rig_check(r, pen_wait(&req, NULL) == PEN_OK);
    rig_check(r, pen_recv(w, got, 4, PEN_I32, from, 6, NULL, &req) == PEN_OK);
    rig_check(r, pen_send(w, &mine, 1, PEN_I32, to, 6, NULL, NULL) == PEN_OK);
    rig_check(r, pen_wait(&req, &result) == PEN_OK);
    rig_check(r, result.count == 1 && result.source == from && result.tag == 6);
    /* To itself; the receive comes first. */
    rig_check(r, pen_recv(w, got, 1, PEN_I32, rank, 7, NULL, &req) == PEN_OK);
    rig_check(r, pen_send(w, &to, 1, PEN_I32, rank, 7, NULL, NULL) == PEN_OK);
    rig_check(r, pen_wait(&req, &result) == PEN_OK && got[0] == to && result.count == 1);
    rig_check(r, pen_recv(w, got, 1, PEN_I32, to, 99, &(pen_opts){.deadline_ms = 50}, NULL) ==
                     PEN_TIMED_OUT);
    rig_check(r, sum_over(r, w, 1) == r->n);
}

static void messages_travel_in_a_circle_and_to_the_sender_itself(void **state)
{
    (void)state;
    on_all_hosts(4, pass_messages, NULL);
    rig r = {0};
    rig_start(&r, 1, NULL, NULL);
    rig_run(&r, pass_messages);
    rig_stop(&r);
}

enum { LARGE = 300000 };

static void batch(rig *r, int rank)
{
    pen_ctx *ctx = r->ctx[rank];
    pen_group *w = pen_world(ctx);
    float a = (float)rank, b[2] = {1, 2}, c = 3, sums[4] = {0};
    const int peer = rank ^ 1;
    int32_t *out = calloc(LARGE, sizeof *out), *in = calloc(LARGE, sizeof *in);
    out[LARGE - 1] = rank + 1;
    rig_check(r, pen_batch_begin(ctx) == PEN_OK);
    rig_check(r, pen_batch_begin(ctx) == PEN_WRONG_STATE);
    /* Both send first: without a batch they would wait for each other. */
    rig_check(r, pen_send(w, out, LARGE, PEN_I32, peer, 1, NULL, NULL) == PEN_OK);
    rig_check(r, pen_all_reduce(w, &a, &sums[0], 1, PEN_F32, PEN_SUM, NULL, NULL) == PEN_OK);
    rig_check(r, pen_all_reduce(w, b, &sums[1], 2, PEN_F32, PEN_SUM, NULL, NULL) == PEN_OK);
    rig_check(r, pen_recv(w, in, LARGE, PEN_I32, peer, 1, NULL, NULL) == PEN_OK);
    rig_check(r, pen_all_reduce(w, &c, &sums[3], 1, PEN_F32, PEN_MAX, NULL, NULL) == PEN_OK);
    rig_check(r, sums[0] == 0 && in[LARGE - 1] == 0); /* nothing has started */
    const uint64_t before = w->seq;
    rig_check(r, pen_batch_end(ctx, NULL, NULL) == PEN_OK);
    rig_check(r, w->seq == before + 2); /* the first two were merged */
    rig_check(r, sums[0] == (float)(r->n * (r->n - 1) / 2) && sums[1] == (float)r->n);
    rig_check(r, sums[2] == 2 * (float)r->n && sums[3] == 3 && in[LARGE - 1] == peer + 1);
    pen_req req;
    rig_check(r, pen_batch_begin(ctx) == PEN_OK);
    rig_check(r, pen_barrier(w, NULL, NULL) == PEN_OK);
    rig_check(r, pen_batch_end(ctx, NULL, &req) == PEN_OK);
    rig_check(r, pen_wait(&req, NULL) == PEN_OK);
    rig_check(r, pen_batch_end(ctx, NULL, NULL) == PEN_WRONG_STATE);
    free(in);
    free(out);
}

static void a_batch_cannot_deadlock_by_order_and_fuses_small_calls(void **state)
{
    (void)state;
    on_all_hosts(4, batch, NULL);
}

/* ---- byte objects ---------------------------------------------------------------------------- */
static void pass_bytes(rig *r, int rank)
{
    pen_group *w = pen_world(r->ctx[rank]);
    pen_bytes io = {0}, all[RIG_RANKS_MAX];
    char text[RIG_RANKS_MAX + 1];
    if (rank == 2) io = (pen_bytes){"seven b", 7};
    rig_check(r, pen_broadcast_bytes(w, &io, 2, NULL) == PEN_OK);
    rig_check(r, io.size == 7 && memcmp(io.data, "seven b", 7) == 0);
    if (rank != 2) pen_free(io.data);
    memset(text, 'a' + rank, sizeof text);
    for (int root = PEN_EVERY; root < 2; root++) {
        rig_check(r, pen_gather_bytes(w, text, (size_t)rank, all, root, NULL) == PEN_OK);
        if (root != PEN_EVERY && root != rank) continue;
        for (int i = 0; i < r->n; i++) {
            rig_check(r, all[i].size == (size_t)i && (i == 0 || *(char *)all[i].data == 'a' + i));
            pen_free(all[i].data);
        }
    }
}

static void objects_of_any_length_are_broadcast_and_gathered(void **state)
{
    (void)state;
    on_all_hosts(4, pass_bytes, NULL);
}

/* ---- streams --------------------------------------------------------------------------------- */
static void without_a_device_no_stream_waits(void **state)
{
    (void)state;
    rig r = {0};
    pen_req req;
    rig_start(&r, 1, NULL, NULL);
    assert_int_equal(pen_barrier(pen_world(r.ctx[0]), NULL, &req), PEN_OK);
    const pen_status status = pen_wait_stream(&req, NULL);
    if (status == PEN_UNSUPPORTED) assert_int_equal(pen_wait(&req, NULL), PEN_OK);
    assert_true(status == PEN_OK || status == PEN_UNSUPPORTED);
    rig_stop(&r);
}

/* ---- pen_spawn ------------------------------------------------------------------------------- */
static int meet(pen_ctx *ctx, void *arg)
{
    const int n  = *(int *)arg;
    pen_group *w = pen_world(ctx);
    double x = pen_rank(w) + 1, sum = 0;
    alarm(200);
    if (pen_size(w) != n) return 11;
    if (pen_all_reduce(w, &x, &sum, 1, PEN_F64, PEN_SUM, NULL, NULL) != PEN_OK) return 12;
    return sum == n * (n + 1) / 2 ? 0 : 13;
}

static void spawned_ranks_find_each_other(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) assert_int_equal(pen_spawn(n, meet, &n), 0);
}

static int fail_on_one(pen_ctx *ctx, void *arg)
{
    (void)arg;
    alarm(200);
    if (pen_rank(pen_world(ctx)) == 1) _exit(37);
    (void)!pen_barrier(pen_world(ctx), NULL, NULL);
    return 0;
}

static int die_on_one(pen_ctx *ctx, void *arg)
{
    (void)arg;
    alarm(200);
    if (pen_rank(pen_world(ctx)) == 1) raise(SIGKILL);
    pause();
    return 0;
}

static void a_spawn_returns_the_first_failure(void **state)
{
    (void)state;
    pen_log_set(NULL, NULL, -1);
    assert_int_equal(pen_spawn(2, fail_on_one, NULL), 37);
    assert_int_equal(pen_spawn(2, die_on_one, NULL), 128 + SIGKILL);
    assert_int_equal(pen_spawn(0, meet, NULL), 1);
    assert_int_equal(pen_spawn(2, NULL, NULL), 1);
}

/* Each member exits when its own part is done: whatever others wait for was sent before. */
static int send_round_and_leave(pen_ctx *ctx, void *arg)
{
    static float mail[10000]; /* 40 KB: sent in place */
    const size_t n = *(const size_t *)arg;
    pen_group *w   = pen_world(ctx);
    alarm(200);
    if (pen_rank(w) == 1) return pen_recv(w, mail, n, PEN_F32, 0, 7, NULL, NULL) != PEN_OK;
    return pen_rank(w) == 0 && pen_send(w, mail, n, PEN_F32, 1, 7, NULL, NULL) != PEN_OK;
}

static int meet_and_leave(pen_ctx *ctx, void *arg)
{
    (void)arg;
    alarm(200);
    return pen_barrier(pen_world(ctx), NULL, NULL) != PEN_OK;
}

static void a_rank_that_finalizes_after_its_last_call_or_message_fails_no_other(void **state)
{
    static const size_t sizes[] = {1, 10000};
    (void)state;
    for (int i = 0; i < 8; i++) {
        setenv("PENSTOCK_SHARED_MEMORY", i % 4 < 2 ? "yes" : "no", 1);
        size_t n = sizes[i % 2];
        assert_int_equal(pen_spawn(2, send_round_and_leave, &n), 0);
        assert_int_equal(pen_spawn(3, meet_and_leave, NULL), 0);
    }
    unsetenv("PENSTOCK_SHARED_MEMORY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_made_of_groups_and_work_side_by_side),
        cmocka_unit_test(two_threads_with_two_groups_do_not_disturb_each_other),
        cmocka_unit_test(members_of_a_host_and_one_of_every_host_are_groups),
        cmocka_unit_test(invalid_calls_are_refused_and_do_no_harm),
        cmocka_unit_test(survivors_go_on_in_a_smaller_group),
        cmocka_unit_test(who_makes_a_group_with_one_that_is_lost_waits_for_nobody),
        cmocka_unit_test(who_makes_a_group_alone_waits_for_the_setting_deadline_ms),
        cmocka_unit_test(messages_travel_in_a_circle_and_to_the_sender_itself),
        cmocka_unit_test(a_batch_cannot_deadlock_by_order_and_fuses_small_calls),
        cmocka_unit_test(objects_of_any_length_are_broadcast_and_gathered),
        cmocka_unit_test(without_a_device_no_stream_waits),
        cmocka_unit_test(spawned_ranks_find_each_other),
        cmocka_unit_test(a_rank_that_finalizes_after_its_last_call_or_message_fails_no_other),
        cmocka_unit_test(a_spawn_returns_the_first_failure),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
