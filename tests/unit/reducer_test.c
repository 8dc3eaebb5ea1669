/* reducer_test.c - buckets of several members in one process: a call runs once all have begun it. */
#include "worker/train/reducer.h"

#include "common/base/why.h"
#include "common/system/segment.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, CALLS_MAX = 32, GRADIENTS = 6 };

static const uint64_t sizes[GRADIENTS]    = {5, 3000, 17, 1, 9000, 100};
static const char *const names[GRADIENTS] = {"a", "b", "c", "d", "e", "f"};

/* ---- a group that sums once all members are there -------------------------------------------- */
typedef struct {
    coll_call call;
    char label[COLL_LABEL_BYTES];
    coll_done_fn done;
    void *user;
} begun;

typedef struct {
    begun queue[RANKS][CALLS_MAX];
    int n[RANKS], run;        /* run: calls begun by all; done: calls that have ended */
    int fails_at, refuses_at; /* number of a call; -1: none */
    bool is_idle;             /* calls run only when somebody waits */
} fake_group;

typedef struct {
    fake_group *group;
    int rank;
    reducer *r;
    int summed[GRADIENTS]; /* how many sums this member was told of in this step */
} member;

static void fold(fake_group *g, int k)
{
    for (int r = 0; r < RANKS; r++) {
        const coll_call *call = &g->queue[r][k].call;
        size_t from = 0, n = call->n;
        if (call->kind == COLL_REDUCE_SCATTER) {
            for (int before = 0; before < r; before++) from += call->counts[before];
            n = call->counts[r];
        }
        assert_int_equal(call->n, g->queue[0][k].call.n);
        assert_string_equal(g->queue[r][k].label, g->queue[0][k].label);
        for (size_t i = 0; i < n; i++) {
            float sum = ((const float *)g->queue[0][k].call.in)[from + i];
            for (int other = 1; other < RANKS; other++)
                sum += ((const float *)g->queue[other][k].call.in)[from + i];
            ((float *)call->out)[i] = sum;
        }
    }
}

static void run_what_is_whole(fake_group *g)
{
    while (g->run < g->n[0] && g->run < g->n[1] && g->run < g->n[2]) {
        const int k = g->run++;
        pen_error why;
        if (k == g->fails_at)
            why_set(&why, PEN_PEER_LOST, "rank 2 died");
        else
            fold(g, k);
        for (int r = 0; r < RANKS; r++)
            g->queue[r][k].done(g->queue[r][k].user, k == g->fails_at ? PEN_PEER_LOST : PEN_OK,
                                k == g->fails_at ? &why : NULL);
    }
}

static pen_status submit(void *user, const coll_call *call, coll_done_fn done, void *done_user,
                         pen_error *why)
{
    const member *m = user;
    fake_group *g   = m->group;
    begun *b        = &g->queue[m->rank][g->n[m->rank]];
    assert_true(g->n[m->rank] < CALLS_MAX);
    if (g->n[m->rank] == g->refuses_at) return why_set(why, PEN_NO_MEMORY, "no room for a call");
    *b = (begun){.call = *call, .done = done, .user = done_user};
    snprintf(b->label, sizeof b->label, "%s", call->label);
    g->n[m->rank]++;
    if (!g->is_idle) run_what_is_whole(g);
    return PEN_OK;
}

static void run_and_await(void *user, const atomic_ullong *ended, pthread_mutex_t *lock,
                          pthread_cond_t *changed)
{
    const member *m = user;
    (void)changed;
    const unsigned long long seen = atomic_load(ended);
    pthread_mutex_unlock(lock);
    run_what_is_whole(m->group);
    pthread_mutex_lock(lock);
    assert_true(atomic_load(ended) > seen);
}

static const int owners[GRADIENTS] = {0, 1, 2, 0, 1, 2};

static void note_sum(void *user, uint32_t i)
{
    member *m = user;
    m->summed[i]++;
}

/* ---- members --------------------------------------------------------------------------------- */
static void open_all(member *m, fake_group *g, uint64_t first_bytes, uint64_t bucket_bytes,
                     const int *owner)
{
    pen_error why;
    *g = (fake_group){.fails_at = -1, .refuses_at = -1};
    for (int r = 0; r < RANKS; r++) {
        m[r]                      = (member){.group = g, .rank = r};
        const reducer_setup setup = {.n            = GRADIENTS,
                                     .elements     = sizes,
                                     .name         = names,
                                     .first_bytes  = first_bytes,
                                     .bucket_bytes = bucket_bytes,
                                     .owner        = owner,
                                     .size         = RANKS,
                                     .rank         = r,
                                     .submit       = submit,
                                     .await        = run_and_await,
                                     .summed       = note_sum,
                                     .user         = &m[r]};
        assert_int_equal(reducer_create(&setup, &m[r].r, &why), PEN_OK);
    }
}

static void open_members(member *m, fake_group *g, uint64_t first_bytes, uint64_t bucket_bytes)
{
    open_all(m, g, first_bytes, bucket_bytes, NULL);
}

static void close_members(member *m)
{
    for (int r = 0; r < RANKS; r++) reducer_destroy(m[r].r);
}

/* Sums of these depend on the order of addition. */
static float value(int rank, uint32_t g, size_t i)
{
    const float sign = (rank + (int)i) % 2 == 0 ? 1 : -1;
    return sign * (float)((i * 2654435761u + g * 40503u + (unsigned)rank * 977u) % 100003) / 7;
}

static void put(const member *m, uint32_t g)
{
    float *room = reducer_room(m->r, g, NULL);
    for (size_t i = 0; i < sizes[g]; i++) room[i] = value(m->rank, g, i);
    reducer_ready(m->r, g, NULL);
}

static void begin_all(member *m, fake_group *g)
{
    memset(g->n, 0, sizeof g->n);
    g->run = 0;
    for (int r = 0; r < RANKS; r++) {
        memset(m[r].summed, 0, sizeof m[r].summed);
        reducer_begin(m[r].r);
    }
}

static void assert_sum(const member *m, uint32_t g)
{
    assert_int_equal(m->summed[g], 1);
    for (size_t i = 0; i < sizes[g]; i++) {
        const float wanted = (value(0, g, i) + value(1, g, i)) + value(2, g, i);
        assert_memory_equal(&reducer_sum(m->r, g)[i], &wanted, sizeof wanted);
    }
}

static void assert_sums(const member *m, const int *owner)
{
    for (int r = 0; r < RANKS; r++)
        for (uint32_t g = 0; g < GRADIENTS; g++)
            if (owner == NULL || owner[g] == r)
                assert_sum(&m[r], g);
            else
                assert_int_equal(m[r].summed[g], 0);
}

static void step_by(member *m, fake_group *g, const uint32_t order[RANKS][GRADIENTS],
                    const int *owner)
{
    pen_error why;
    begin_all(m, g);
    for (int i = 0; i < GRADIENTS; i++)
        for (int r = 0; r < RANKS; r++) put(&m[r], order[r][i]);
    for (int r = 0; r < RANKS; r++) assert_int_equal(reducer_wait(m[r].r, &why), PEN_OK);
    assert_sums(m, owner);
}

static void step(member *m, fake_group *g, const uint32_t order[RANKS][GRADIENTS])
{
    step_by(m, g, order, NULL);
}

/* ---- tests ----------------------------------------------------------------------------------- */
static const uint32_t backward[RANKS][GRADIENTS] = {
    {5, 4, 3, 2, 1, 0}, {5, 4, 3, 2, 1, 0}, {5, 4, 3, 2, 1, 0}};
static const uint32_t mixed[RANKS][GRADIENTS] = {
    {0, 5, 2, 4, 1, 3}, {3, 1, 4, 2, 5, 0}, {2, 3, 0, 1, 4, 5}};

static void sums_are_folds_in_rank_order_for_any_partition(void **state)
{
    static const uint64_t bytes[][2] = {{1, 1}, {4096, 16384}, {1 << 20, 25 << 20}};
    (void)state;
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        member m[RANKS];
        fake_group g;
        open_members(m, &g, bytes[i][0], bytes[i][1]);
        step(m, &g, backward);
        step(m, &g, mixed);
        close_members(m);
    }
}

static void with_owners_each_member_gets_its_own_sums_and_no_others(void **state)
{
    static const uint64_t bytes[][2] = {{1, 1}, {4096, 16384}, {1 << 20, 25 << 20}};
    (void)state;
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        member m[RANKS];
        fake_group g;
        pen_error why;
        open_all(m, &g, bytes[i][0], bytes[i][1], owners);
        step_by(m, &g, backward, owners);
        step_by(m, &g, mixed, owners);
        for (int r = 0; r < RANKS; r++)
            assert_int_equal(reducer_arrange(m[r].r, mixed[0], &why), PEN_OK);
        step_by(m, &g, mixed, owners);
        assert_int_equal(g.queue[0][0].call.kind, COLL_REDUCE_SCATTER);
        close_members(m);
    }
}

static void a_bucket_is_summed_while_others_are_computed(void **state)
{
    (void)state;
    member m[RANKS];
    fake_group g;
    open_members(m, &g, 1, 1); /* one gradient in each */
    begin_all(m, &g);
    for (int r = 0; r < RANKS; r++) put(&m[r], 5);
    assert_int_equal(g.run, 1);
    for (int r = 0; r < RANKS; r++) put(&m[r], 3); /* behind 4, which is not ready */
    assert_int_equal(g.run, 1);
    for (int r = 0; r < RANKS; r++) put(&m[r], 4);
    assert_int_equal(g.run, 3);
    close_members(m);
}

static void small_gradients_share_a_bucket_and_large_ones_have_their_own(void **state)
{
    (void)state;
    member m[RANKS];
    fake_group g;
    open_members(m, &g, 1024, 16384); /* f | e | d c b a */
    assert_int_equal(reducer_buckets(m[0].r), 3);
    step(m, &g, backward);
    assert_string_equal(g.queue[0][0].label, "f");
    assert_string_equal(g.queue[0][1].label, "e");
    assert_string_equal(g.queue[0][2].label, "d and 3 more");
    close_members(m);
}

static void an_order_that_all_agree_on_holds_from_the_next_step(void **state)
{
    (void)state;
    member m[RANKS];
    fake_group g;
    pen_error why;
    uint32_t order[GRADIENTS];
    open_members(m, &g, 1, 1);
    step(m, &g, mixed);
    memcpy(order, reducer_order(m[0].r), sizeof order);
    assert_memory_equal(order, mixed[0], sizeof order);
    for (int r = 0; r < RANKS; r++) assert_int_equal(reducer_arrange(m[r].r, order, &why), PEN_OK);
    step(m, &g, mixed);
    assert_string_equal(g.queue[1][0].label, "a");
    assert_string_equal(g.queue[1][1].label, "f");
    close_members(m);
}

static void an_order_with_a_repeat_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    member m[RANKS];
    fake_group g;
    pen_error why;
    const uint32_t twice[GRADIENTS] = {0, 1, 2, 3, 4, 4}, beyond[GRADIENTS] = {0, 1, 2, 3, 4, 6};
    open_members(m, &g, 1, 1);
    assert_int_equal(reducer_arrange(m[0].r, twice, &why), PEN_CORRUPT);
    assert_int_equal(reducer_arrange(m[0].r, beyond, &why), PEN_CORRUPT);
    step(m, &g, backward);
    close_members(m);
}

static void the_first_failure_is_reported_after_every_call_has_ended(void **state)
{
    (void)state;
    member m[RANKS];
    fake_group g;
    pen_error why;
    open_members(m, &g, 1, 1);
    begin_all(m, &g);
    g.fails_at = 2;
    for (uint32_t i = 0; i < GRADIENTS; i++)
        for (int r = 0; r < RANKS; r++) put(&m[r], i);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(reducer_wait(m[r].r, &why), PEN_PEER_LOST);
        assert_string_equal(why.text, "rank 2 died");
        for (size_t i = 0; i < sizes[4]; i++)
            assert_true(reducer_room(m[r].r, 4, NULL)[i] == value(r, 4, i));
    }
    close_members(m);
}

static void whoever_waits_for_sums_drives_them(void **state)
{
    member m[RANKS];
    fake_group g;
    pen_error why;
    (void)state;
    open_members(m, &g, 1000, 1 << 20);
    begin_all(m, &g);
    g.is_idle = true;
    for (int r = 0; r < RANKS; r++)
        for (uint32_t i = 0; i < GRADIENTS; i++) put(&m[r], i);
    assert_int_equal(g.run, 0);
    assert_int_equal(reducer_wait(m[0].r, &why), PEN_OK);
    assert_true(g.run > 0);
    assert_sums(m, NULL);
    close_members(m);
}

static void a_call_that_cannot_begin_is_reported_at_the_end(void **state)
{
    (void)state;
    member m[RANKS];
    fake_group g;
    pen_error why;
    open_members(m, &g, 1, 1);
    begin_all(m, &g);
    g.refuses_at = 0;
    for (uint32_t i = 0; i < GRADIENTS; i++) put(&m[0], i);
    assert_int_equal(reducer_wait(m[0].r, &why), PEN_NO_MEMORY);
    close_members(m);
}

static void buckets_are_in_memory_that_peers_can_map(void **state)
{
    (void)state;
    member m[RANKS];
    fake_group g;
    segment_ref ref;
    open_members(m, &g, 4096, 16384);
    assert_true(segment_find(reducer_room(m[0].r, 4, NULL), sizes[4] * sizeof(float), &ref));
    assert_true(segment_find(reducer_sum(m[0].r, 4), sizes[4] * sizeof(float), &ref));
    close_members(m);
}

/* The sum is valid during the callback; its memory serves another bucket afterwards. */
static void check_sum_now(void *user, uint32_t i)
{
    member *m = user;
    m->summed[i]++;
    assert_sum(m, i);
}

/* All ranks in one order, or each in its own; returns the most bytes that any rank held. */
static uint64_t step_with_buffers(const uint32_t order[RANKS][GRADIENTS], uint32_t n_buffers)
{
    member m[RANKS];
    fake_group g         = {.fails_at = -1, .refuses_at = -1};
    stat_set held[RANKS] = {0};
    uint64_t most        = 0;
    pen_error why;
    for (int r = 0; r < RANKS; r++) {
        m[r]                      = (member){.group = &g, .rank = r};
        const reducer_setup setup = {.n            = GRADIENTS,
                                     .elements     = sizes,
                                     .name         = names,
                                     .first_bytes  = 1,
                                     .bucket_bytes = 1,
                                     .submit       = submit,
                                     .await        = run_and_await,
                                     .n_buffers    = n_buffers,
                                     .stats        = &held[r],
                                     .summed       = check_sum_now,
                                     .user         = &m[r]};
        assert_int_equal(reducer_create(&setup, &m[r].r, &why), PEN_OK);
    }
    for (int round = 0; round < 2; round++) {
        begin_all(m, &g);
        for (int i = 0; i < GRADIENTS; i++)
            for (int r = 0; r < RANKS; r++) put(&m[r], order[r][i]);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(reducer_wait(m[r].r, &why), PEN_OK);
            for (int i = 0; i < GRADIENTS; i++) assert_int_equal(m[r].summed[i], 1);
        }
    }
    for (int r = 0; r < RANKS; r++) {
        const uint64_t peak = stat_get(&held[r], STAT_GRAD_PEAK);
        if (peak > most) most = peak;
        reducer_destroy(m[r].r);
        assert_int_equal(stat_get(&held[r], STAT_GRAD_BYTES), 0);
    }
    return most;
}

static void with_buffers_gradients_have_memory_only_until_their_sum_was_reported(void **state)
{
    (void)state;
    const uint64_t one = 2 * 9008 * sizeof(float); /* the largest gradient, and its sum */
    assert_int_equal(step_with_buffers(backward, 1), one);
    /* In another order than the buckets': also what has begun and cannot be summed yet. */
    static const uint32_t forward[RANKS][GRADIENTS] = {
        {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}};
    assert_int_equal(step_with_buffers(forward, 1), GRADIENTS * one);
}

static void assert_calls(const fake_group *g, const char *labels)
{
    char seen[CALLS_MAX * 2] = "";
    for (int k = 0; k < g->n[0]; k++) strcat(seen, g->queue[0][k].label);
    assert_string_equal(seen, labels);
}

static void the_last_buckets_are_summed_in_reverse_from_the_step_after(void **state)
{
    (void)state;
    member m[RANKS];
    fake_group g;
    open_members(m, &g, 1, 1); /* one gradient in each */
    for (int r = 0; r < RANKS; r++) reducer_set_first(m[r].r, 2);
    step(m, &g, backward);
    assert_calls(&g, "feabcd");
    begin_all(m, &g);
    for (int r = 0; r < RANKS; r++) reducer_set_first(m[r].r, UINT32_MAX); /* for the next */
    for (uint32_t i = GRADIENTS; i-- > 1;)
        for (int r = 0; r < RANKS; r++) put(&m[r], i);
    assert_int_equal(reducer_summed(m[0].r), 2);
    for (int r = 0; r < RANKS; r++) put(&m[r], 0);
    assert_int_equal(reducer_summed(m[0].r), GRADIENTS);
    assert_calls(&g, "feabcd");
    step(m, &g, mixed);
    assert_calls(&g, "fedcba");
    close_members(m);
}

static void a_wait_for_one_bucket_gives_its_gradients_or_the_first_failure(void **state)
{
    (void)state;
    member m[RANKS];
    fake_group g;
    pen_error why;
    const uint32_t *gradient;
    uint32_t n;
    open_members(m, &g, 1024, 16384); /* f | e | d c b a */
    for (int r = 0; r < RANKS; r++) reducer_set_first(m[r].r, 1);
    step(m, &g, backward);
    assert_int_equal(reducer_wait_bucket(m[0].r, 1, &gradient, &n, &why), PEN_OK);
    assert_int_equal(n, 4);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(gradient[i], 3 - i);
    g.fails_at = 2;
    begin_all(m, &g);
    for (uint32_t i = GRADIENTS; i-- > 0;)
        for (int r = 0; r < RANKS; r++) put(&m[r], i);
    assert_int_equal(reducer_wait_bucket(m[0].r, 2, &gradient, &n, &why), PEN_PEER_LOST);
    assert_string_equal(why.text, "rank 2 died");
    close_members(m);
}

static void a_model_without_gradients_needs_no_bucket(void **state)
{
    (void)state;
    pen_error why;
    reducer *r;
    const reducer_setup setup = {.submit = submit, .await = run_and_await};
    assert_int_equal(reducer_create(&setup, &r, &why), PEN_OK);
    reducer_begin(r);
    assert_int_equal(reducer_wait(r, &why), PEN_OK);
    assert_int_equal(reducer_buckets(r), 0);
    reducer_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_folds_in_rank_order_for_any_partition),
        cmocka_unit_test(with_owners_each_member_gets_its_own_sums_and_no_others),
        cmocka_unit_test(a_bucket_is_summed_while_others_are_computed),
        cmocka_unit_test(small_gradients_share_a_bucket_and_large_ones_have_their_own),
        cmocka_unit_test(an_order_that_all_agree_on_holds_from_the_next_step),
        cmocka_unit_test(an_order_with_a_repeat_is_refused_and_changes_nothing),
        cmocka_unit_test(the_first_failure_is_reported_after_every_call_has_ended),
        cmocka_unit_test(whoever_waits_for_sums_drives_them),
        cmocka_unit_test(a_call_that_cannot_begin_is_reported_at_the_end),
        cmocka_unit_test(buckets_are_in_memory_that_peers_can_map),
        cmocka_unit_test(with_buffers_gradients_have_memory_only_until_their_sum_was_reported),
        cmocka_unit_test(the_last_buckets_are_summed_in_reverse_from_the_step_after),
        cmocka_unit_test(a_wait_for_one_bucket_gives_its_gradients_or_the_first_failure),
        cmocka_unit_test(a_model_without_gradients_needs_no_bucket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
