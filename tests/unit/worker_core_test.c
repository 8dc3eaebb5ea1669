/* worker_core_test.c - the worker's exchange with shards, driven by hand: no socket, no thread, no
 * clock. */
#include "common/crc.h"
#include "common/log.h"
#include "common/why.h"
#include "worker/exchange.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    N         = 9000,
    LARGE     = 16 << 20,
    SHARDS    = 2,
    SENT_MAX  = 512,
    ITEMS_MAX = 512,
    TENSORS   = 300,
    SELF      = 901
};

/* What the exchange did, in order. */
typedef struct {
    wire_kind kind;
    uint32_t shard, n, flags;
    uint64_t step;
    uint32_t chunk[ITEMS_MAX];
    uint64_t seq[ITEMS_MAX];
    wire_decision decision;
    uint32_t n_partitions;
    void *held;
    bool snapshot;
    uint32_t n_pieces;
    exchange_piece piece[ITEMS_MAX];
} sent;

typedef struct {
    wire_tensor tensor[TENSORS];
    wire_group group[2];
    wire_model model;
    plan *plan;
    uint32_t shard[PLAN_PARTITIONS_MAX];
    exchange *x;
    sent sent[SENT_MAX];
    int n_sent, n_completed, n_decided, n_cut;
    void *token;
    pen_status status;
    pen_error why;
    exchange_result result;
    exchange_outcome outcome;
    char log[640];
    uint64_t count[STAT_COUNT];
    bool hold, full;
    float param[N], grad[N], small[8], small_grad[8];
    uint64_t now;
} world;

static const uint64_t servers[SHARDS] = {501, 502};

/* ---- actions --------------------------------------------------------------------------------- */
static pen_status on_send(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                          const exchange_piece *pieces, uint32_t n)
{
    world *w = user;
    assert_int_equal(lane, 0);
    if (w->full) return PEN_AGAIN;
    assert_true(w->n_sent < SENT_MAX && d->n <= ITEMS_MAX);
    assert_int_equal(d->from, SELF);
    assert_int_equal(d->to, servers[shard]);
    sent *s = &w->sent[w->n_sent++];
    *s      = (sent){.kind         = d->kind,
                     .shard        = shard,
                     .n            = d->n,
                     .flags        = d->flags,
                     .step         = d->step,
                     .decision     = d->decision,
                     .n_partitions = d->n_partitions,
                     .snapshot     = d->has_inputs && d->inputs.snapshot,
                     .n_pieces     = n};
    if (n > 0) memcpy(s->piece, pieces, n * sizeof *pieces);
    for (uint32_t i = 0; i < d->n; i++) {
        s->chunk[i] = d->chunk[i];
        s->seq[i]   = d->seq != NULL ? d->seq[i] : d->step;
        assert_int_equal(w->shard[w->plan->chunk[d->chunk[i]].partition], shard);
    }
    if (w->hold && n > 0) exchange_hold(w->x, s->held = pieces[0].op);
    return PEN_OK;
}

static void on_cut(void *user, uint32_t shard, uint32_t lane)
{
    (void)shard, (void)lane;
    ((world *)user)->n_cut++;
}

static bool on_store(void *user, void *to, const void *from, size_t size, uint32_t crc)
{
    (void)user;
    if (crc32c(0, from, size) != crc) return false;
    memcpy(to, from, size);
    return true;
}

static void on_decided(void *user, void *token, const exchange_outcome *outcome)
{
    world *w   = user;
    w->outcome = *outcome;
    w->token   = token;
    w->n_decided++;
}

static void on_completed(void *user, void *token, pen_status status, const exchange_result *result,
                         const pen_error *why)
{
    world *w  = user;
    w->token  = token;
    w->status = status;
    w->result = *result;
    if (why != NULL) w->why = *why;
    w->n_completed++;
}

static void on_log(void *user, int level, const char *line)
{
    assert_int_equal(level, LOG_WARNING);
    snprintf(((world *)user)->log, 640, "%s", line);
}

static void on_count(void *user, stat_id id, uint64_t n)
{
    ((world *)user)->count[id] += n;
}

/* ---- a world --------------------------------------------------------------------------------- */
typedef struct {
    exchange_rule rule;
    const char *sync[2], *wire; /* of group 0, which has 'w', and 1, which has 'b' */
    bool one_group, one_tensor; /* one_tensor: only 'b', so that a shard is idle */
    bool many;                  /* instead TENSORS like 'b', each third one of group 0 */
    bool large;                 /* 'w' has LARGE elements, which nobody may touch */
} world_shape;

static world *world_of(const world_shape *shape)
{
    static const exchange_actions actions   = {on_send,      on_cut, on_store, on_decided,
                                               on_completed, on_log, on_count};
    static const char *const hosts[]        = {"devbox", "devbox", "devbox", "devbox"},
                             *const names[] = {"server 0 (devbox)", "server 1 (devbox)"};
    pen_error why;
    world *w     = calloc(1, sizeof *w);
    w->tensor[0] = (wire_tensor){
        .name = "w", .dtype = PEN_F32, .grad_dtype = PEN_F32, .ndim = 1, .shape = {N}, .init = ""};
    w->tensor[1] = (wire_tensor){
        .name = "b", .dtype = PEN_F32, .grad_dtype = PEN_F32, .ndim = 1, .shape = {8}, .init = ""};
    for (int g = 0; g < 2; g++)
        w->group[g] = (wire_group){"default", "sgd lr=1", shape->sync[g], shape->wire, "constant"};
    w->tensor[1].group = !shape->one_group;
    if (shape->large) w->tensor[0].shape[0] = LARGE;
    for (uint32_t t = 0; t < TENSORS && shape->many; t++) {
        w->tensor[t]       = w->tensor[1];
        w->tensor[t].group = t % 3 > 0;
    }
    w->model = (wire_model){.n_tensors = shape->many         ? TENSORS
                                         : shape->one_tensor ? 1
                                                             : 2,
                            .n_groups  = 2,
                            .tensor    = w->tensor + shape->one_tensor,
                            .group     = w->group};
    assert_int_equal(plan_create(&w->model, &w->plan, &why), PEN_OK);
    plan_place(w->plan, SHARDS, w->shard);
    w->now                     = 1000;
    const exchange_setup setup = {.plan        = w->plan,
                                  .model       = &w->model,
                                  .shard       = w->shard,
                                  .rule        = shape->rule,
                                  .rank        = 0,
                                  .n_shards    = SHARDS,
                                  .lanes       = 1,
                                  .term        = 7,
                                  .epoch       = 1,
                                  .from        = SELF,
                                  .to          = servers,
                                  .n_workers   = 4,
                                  .worker_host = hosts,
                                  .server      = names,
                                  .warn_ms     = 30000,
                                  .retry       = retry_policy_make(1000, 1)};
    w->x                       = exchange_create(&setup, &actions, w, &why);
    assert_non_null(w->x);
    for (uint32_t s = 0; s < SHARDS; s++) exchange_up(w->x, s, 0, w->now);
    return w;
}

static world *world_create(exchange_rule rule)
{
    const char *sync = rule == EXCHANGE_FREE ? "async" : "bsp";
    return world_of(
        &(world_shape){.rule = rule, .sync = {sync, sync}, .wire = "raw", .one_group = true});
}

static void world_destroy(world *w)
{
    exchange_destroy(w->x);
    plan_destroy(w->plan);
    free(w);
}

/* Lets time pass until just after the exchange wants it to; returns how much. */
static uint64_t sleep_until_due(world *w)
{
    uint64_t before = w->now;
    assert_true(exchange_due(w->x) != UINT64_MAX);
    if (exchange_due(w->x) > w->now) w->now = exchange_due(w->x);
    exchange_tick(w->x, w->now);
    exchange_flush(w->x, w->now);
    return w->now - before;
}

static wire_data from_shard(const world *w, uint32_t shard, wire_kind kind, uint64_t step)
{
    (void)w;
    return (wire_data){.kind  = kind,
                       .term  = 7,
                       .epoch = 1,
                       .from  = servers[shard],
                       .to    = SELF,
                       .step  = step,
                       .text  = ""};
}

static void receipt(world *w, const sent *s, uint32_t flags)
{
    wire_data d = from_shard(w, s->shard, WIRE_RECEIPT, s->step);
    d.n         = s->n;
    d.chunk     = s->chunk;
    d.seq       = s->seq;
    d.flags     = flags;
    exchange_receive(w->x, s->shard, &d, NULL, w->now);
}

/* Values of all chunks of a message, every element `value`; `damage` breaks the first checksum. */
static void values(world *w, const sent *s, float value, uint32_t flags, bool damage)
{
    uint32_t crc[ITEMS_MAX];
    uint64_t version[ITEMS_MAX];
    size_t elements = 0;
    for (uint32_t i = 0; i < s->n; i++) elements += w->plan->chunk[s->chunk[i]].count;
    buf *body = buf_new(elements * sizeof(float));
    float *at = body->data;
    for (size_t i = 0; i < elements; i++) at[i] = value;
    for (uint32_t i = 0; i < s->n; i++) {
        size_t count = w->plan->chunk[s->chunk[i]].count;
        crc[i]       = crc32c(0, at, count * sizeof(float));
        version[i]   = s->seq[i] + 1;
        at += count;
    }
    if (damage) crc[0]++;
    wire_data d = from_shard(w, s->shard, WIRE_VALUES, s->step);
    d.n = s->n, d.chunk = s->chunk, d.seq = s->seq, d.crc = crc, d.version = version,
    d.flags = flags;
    exchange_receive(w->x, s->shard, &d, body, w->now);
    buf_release(body);
}

static const wire_inputs step_inputs = {.loss_scale = 1, .weight = 1, .skip = true};

/* PREPARED for one partition whose sums are all 1; hash as the shard computes it. */
static void prepared(world *w, uint32_t partition, uint64_t step, bool finite, bool damage)
{
    uint32_t blocks = w->plan->partition[partition].blocks;
    buf *body       = buf_new(blocks * sizeof(double));
    for (uint32_t i = 0; i < blocks; i++) ((double *)body->data)[i] = 1;
    wire_record r = {.partition  = partition,
                     .weight_sum = 4,
                     .finite     = finite,
                     .bad_rank   = finite ? -1 : 3,
                     .bad_chunk  = finite ? 0 : w->plan->partition[partition].chunk[0]};
    r.hash        = decision_record_hash(step, &r, &step_inputs, body->data, blocks) + damage;
    wire_data d   = from_shard(w, w->shard[partition], WIRE_PREPARED, step);
    d.n_records   = 1;
    d.record      = &r;
    exchange_receive(w->x, w->shard[partition], &d, body, w->now);
    buf_release(body);
}

static void push_step(world *w, uint64_t step)
{
    exchange_request *r = exchange_step_open(w->x, step, &step_inputs, w->now);
    exchange_add(w->x, r, EXCHANGE_STEP, 0, w->grad, w->param);
    exchange_add(w->x, r, EXCHANGE_STEP, 1, w->small_grad, w->small);
    exchange_flush(w->x, w->now);
}

static void one_verb(world *w, exchange_verb verb, uint32_t tensor, uint64_t deadline_ms)
{
    exchange_request *r = exchange_open(w->x, w->now);
    exchange_add(w->x, r, verb, tensor, tensor == 0 ? w->grad : w->small_grad,
                 tensor == 0 ? w->param : w->small);
    exchange_close(w->x, r, w, deadline_ms, w->now);
    exchange_flush(w->x, w->now);
}

/* ---- retry ----------------------------------------------------------------------------------- */
static void test_retry_doubles_to_a_bound_with_jitter_from_the_seed(void **state)
{
    (void)state;
    const retry_policy policy = retry_policy_make(100, 5);
    uint64_t a = policy.seed, b = policy.seed, c = 6, differs = 0;
    for (uint32_t tries = 1; tries < 20; tries++) {
        uint64_t full = 100u << (tries - 1 < 16 ? tries - 1 : 16);
        if (full > policy.most_ms) full = policy.most_ms;
        uint64_t wait = retry_wait_ms(&policy, RETRY_SILENCE, tries, &a);
        assert_in_range(wait, full - full / 2, full);
        assert_int_equal(wait, retry_wait_ms(&policy, RETRY_SILENCE, tries, &b));
        differs += wait != retry_wait_ms(&policy, RETRY_SILENCE, tries, &c);
    }
    assert_true(differs > 10);
}

static void test_exchange_sends_again_what_is_not_answered(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_FREE);
    one_verb(w, EXCHANGE_PUSH_PULL, 1, 0);
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->sent[0].flags, WIRE_WANT_VALUES);
    assert_in_range(sleep_until_due(w), 500, 1000);
    assert_int_equal(w->n_sent, 2);
    assert_int_equal(w->sent[1].kind, WIRE_PUSH);
    assert_int_equal(w->sent[1].flags, WIRE_WANT_VALUES | WIRE_REPEATED);
    assert_int_equal(w->sent[1].seq[0], w->sent[0].seq[0]);
    assert_in_range(sleep_until_due(w), 1000, 2000);
    values(w, &w->sent[0], 4, 0, false);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);
    assert_true(w->small[7] == 4);
    assert_int_equal(w->result.version, 1);
    assert_int_equal(w->count[STAT_RETRIES], 2);
    world_destroy(w);
}

static void test_exchange_ignores_answers_that_come_twice_or_late(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_FREE);
    one_verb(w, EXCHANGE_PUSH_PULL, 1, 0);
    values(w, &w->sent[0], 1, 0, false);
    values(w, &w->sent[0], 2, 0, false);
    assert_int_equal(w->n_completed, 1);
    assert_true(w->small[0] == 1);
    one_verb(w, EXCHANGE_PUSH_PULL, 1, 0);
    assert_int_equal(w->sent[1].seq[0], 1);
    values(w, &w->sent[0], 3, 0, false); /* of the first push */
    assert_int_equal(w->n_completed, 1);
    assert_true(w->small[0] == 1);
    values(w, &w->sent[1], 5, 0, false);
    assert_int_equal(w->n_completed, 2);
    assert_true(w->small[0] == 5);
    world_destroy(w);
}

static void test_exchange_has_one_push_of_a_chunk_in_flight(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_FREE);
    one_verb(w, EXCHANGE_PUSH_PULL, 1, 0);
    one_verb(w, EXCHANGE_PUSH_PULL, 1, 0);
    assert_int_equal(w->n_sent, 1);
    values(w, &w->sent[0], 1, 0, false);
    exchange_flush(w->x, w->now);
    assert_int_equal(w->n_sent, 2);
    assert_int_equal(w->sent[1].seq[0], 1);
    values(w, &w->sent[1], 2, 0, false);
    assert_int_equal(w->n_completed, 2);
    world_destroy(w);
}

static void test_exchange_asks_again_for_values_whose_checksum_fails(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_FREE);
    one_verb(w, EXCHANGE_PULL, 1, 0);
    values(w, &w->sent[0], 9, 0, true);
    assert_int_equal(w->n_completed, 0);
    assert_true(w->small[0] == 0);
    assert_int_equal(w->count[STAT_CORRUPT], 1);
    sleep_until_due(w);
    assert_int_equal(w->n_sent, 2);
    values(w, &w->sent[1], 9, 0, false);
    assert_int_equal(w->n_completed, 1);
    world_destroy(w);
}

static void test_exchange_backs_off_when_a_shard_has_no_room(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_DECIDE);
    push_step(w, 0);
    int n       = w->n_sent;
    wire_data d = from_shard(w, w->sent[0].shard, WIRE_REFUSED, 0);
    d.status    = PEN_AGAIN;
    d.n         = w->sent[0].n;
    d.chunk     = w->sent[0].chunk;
    exchange_receive(w->x, w->sent[0].shard, &d, NULL, w->now);
    exchange_flush(w->x, w->now);
    assert_int_equal(w->n_sent, n);
    assert_in_range(sleep_until_due(w), 1, 10);
    while (w->n_sent == n) sleep_until_due(w); /* jitter may part the chunks of one message */
    assert_int_equal(w->sent[n].kind, WIRE_PUSH);
    assert_int_equal(w->sent[n].step, 0);
    world_destroy(w);
}

static void test_exchange_sends_unanswered_again_when_a_connection_is_back(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_FREE);
    one_verb(w, EXCHANGE_PUSH_PULL, 1, 0);
    uint32_t shard = w->sent[0].shard;
    exchange_down(w->x, shard, 0);
    one_verb(w, EXCHANGE_PULL, 1, 0);
    sleep_until_due(w);
    assert_int_equal(w->n_sent, 1); /* nothing goes into a connection that is gone */
    exchange_up(w->x, shard, 0, w->now);
    exchange_flush(w->x, w->now);
    assert_int_equal(w->n_sent, 2);
    assert_int_equal(w->sent[1].seq[0], 0);
    world_destroy(w);
}

static void test_exchange_keeps_what_a_full_queue_refuses(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_FREE);
    w->full  = true;
    one_verb(w, EXCHANGE_PUSH_PULL, 1, 0);
    assert_int_equal(w->n_sent, 0);
    w->full = false;
    assert_in_range(sleep_until_due(w), 1, 10);
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->sent[0].flags & WIRE_REPEATED, 0);
    world_destroy(w);
}

/* ---- the decided step ------------------------------------------------------------------------ */
static void run_decided(world *w, uint64_t step, bool backwards, int bad_partition)
{
    const uint32_t n = w->plan->n_partitions;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = backwards ? n - 1 - i : i;
        if (w->plan->partition[p].n_trained > 0)
            prepared(w, p, step, (int)p != bad_partition, false);
    }
}

static void answer_pulls(world *w, int from, float value)
{
    for (int i = from; i < w->n_sent; i++)
        if (w->sent[i].kind == WIRE_PULL) values(w, &w->sent[i], value, 0, false);
}

static void test_exchange_decides_alike_in_any_order_of_answers(void **state)
{
    (void)state;
    wire_decision decision[2];
    for (int order = 0; order < 2; order++) {
        world *w = world_create(EXCHANGE_DECIDE);
        push_step(w, 0);
        if (order == 1) exchange_step_close(w->x, w, 0, w->now);
        run_decided(w, 0, order == 1, -1);
        if (order == 0) {
            assert_int_equal(w->n_decided,
                             0); /* parameters are the program's until it closes the step */
            exchange_step_close(w->x, w, 0, w->now);
        }
        assert_int_equal(w->n_decided, 1);
        int pulls = w->n_sent;
        exchange_flush(w->x, w->now);
        assert_true(w->n_sent > pulls);
        decision[order] = w->sent[pulls].decision;
        answer_pulls(w, pulls, 2.5f);
        assert_int_equal(w->n_completed, 1);
        assert_int_equal(w->status, PEN_OK);
        assert_true(w->param[0] == 2.5f && w->param[N - 1] == 2.5f && w->small[7] == 2.5f);
        assert_int_equal(w->outcome.outcome, PEN_APPLIED);
        assert_int_equal(w->outcome.applied, 1);
        world_destroy(w);
    }
    assert_memory_equal(&decision[0], &decision[1], sizeof decision[0]);
}

static void test_exchange_pulls_carry_the_hashes_of_their_partitions(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_DECIDE);
    push_step(w, 0);
    exchange_step_close(w->x, w, 0, w->now);
    run_decided(w, 0, false, -1);
    int pulls = w->n_sent;
    exchange_flush(w->x, w->now);
    uint32_t partitions = 0, chunks = 0;
    for (int i = pulls; i < w->n_sent; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_PULL);
        partitions += w->sent[i].n_partitions;
        chunks += w->sent[i].n;
    }
    assert_int_equal(chunks, w->plan->n_chunks);
    uint32_t trained = 0;
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        trained += w->plan->partition[p].n_trained > 0;
    assert_int_equal(partitions, trained);
    world_destroy(w);
}

static void test_exchange_skips_a_step_that_is_not_finite_and_names_the_rank(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_DECIDE);
    push_step(w, 0);
    exchange_step_close(w->x, w, 0, w->now);
    uint32_t bad = w->plan->chunk[w->plan->n_chunks - 1].partition; /* of 'b' */
    run_decided(w, 0, false, (int)bad);
    assert_int_equal(w->outcome.outcome, PEN_SKIPPED_NONFINITE);
    assert_true(w->outcome.has_bad);
    assert_int_equal(w->outcome.bad_rank, 3);
    assert_int_equal(w->outcome.bad_tensor,
                     w->plan->chunk[w->plan->partition[bad].chunk[0]].tensor);
    assert_int_equal(w->outcome.applied, 0);
    world_destroy(w);
}

static void test_exchange_does_not_believe_a_damaged_record(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_DECIDE);
    push_step(w, 0);
    exchange_step_close(w->x, w, 0, w->now);
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_trained > 0) prepared(w, p, 0, true, p == 0);
    assert_int_equal(w->n_decided, 0);
    assert_int_equal(w->count[STAT_CORRUPT], 1);
    prepared(w, 0, 0, true, false);
    assert_int_equal(w->n_decided, 1);
    world_destroy(w);
}

static void test_exchange_ignores_records_of_another_step_or_stranger(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_DECIDE);
    push_step(w, 3);
    exchange_step_close(w->x, w, 0, w->now);
    run_decided(w, 2, false, -1);
    assert_int_equal(w->n_decided, 0);
    wire_data d = from_shard(w, 0, WIRE_REFUSED, 3);
    d.from      = 12345;
    d.status    = PEN_MISMATCH;
    exchange_receive(w->x, 0, &d, NULL, w->now);
    assert_int_equal(w->n_completed, 0);
    assert_int_equal(w->count[STAT_REFUSED], 1);
    run_decided(w, 3, false, -1);
    assert_int_equal(w->n_decided, 1);
    world_destroy(w);
}

static void
test_exchange_asks_about_a_receipted_push_and_repeats_it_when_nobody_is_missing(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_DECIDE);
    push_step(w, 0);
    exchange_step_close(w->x, w, 0, w->now);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) receipt(w, &w->sent[i], 0);
    while (w->n_sent == n) sleep_until_due(w);
    assert_int_equal(w->sent[n].kind, WIRE_INQUIRE);
    wire_data d = from_shard(w, w->sent[n].shard, WIRE_WAITING, 0);
    d.n = 1, d.chunk = w->sent[n].chunk, d.text = "w";
    exchange_receive(w->x, w->sent[n].shard, &d, NULL, w->now);
    int before = w->n_sent;
    exchange_flush(w->x, w->now);
    assert_int_equal(w->sent[before].kind, WIRE_PUSH);
    assert_int_equal(w->sent[before].flags, WIRE_REPEATED);
    world_destroy(w);
}

/* ---- eager: values that come before the step is closed --------------------------------------- */
static void test_exchange_writes_no_values_before_the_step_is_closed(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_EAGER);
    push_step(w, 0);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) values(w, &w->sent[i], 8, 0, false);
    assert_true(w->param[0] == 0);
    assert_int_equal(w->n_completed, 0);
    exchange_step_close(w->x, w, 0, w->now);
    assert_int_equal(w->n_completed, 1);
    assert_true(w->param[0] == 8 && w->param[N - 1] == 8 && w->small[0] == 8);
    world_destroy(w);
}

static void test_exchange_asks_again_for_held_values_whose_checksum_fails(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_EAGER);
    push_step(w, 0);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) values(w, &w->sent[i], 8, 0, i == 0);
    exchange_step_close(w->x, w, 0, w->now);
    assert_int_equal(w->n_completed, 0);
    while (w->n_sent == n) sleep_until_due(w);
    for (int i = n; i < w->n_sent; i++) values(w, &w->sent[i], 8, 0, false);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);
    world_destroy(w);
}

/* ---- first values ---------------------------------------------------------------------------- */
static void test_exchange_sends_first_values_and_then_fetches_them(void **state)
{
    (void)state;
    world *w            = world_create(EXCHANGE_DECIDE);
    exchange_request *r = exchange_open(w->x, w->now);
    for (uint32_t t = 0; t < 2; t++) {
        exchange_add(w->x, r, EXCHANGE_INIT, t, t == 0 ? w->param : w->small, NULL);
        exchange_add(w->x, r, EXCHANGE_LOAD, t, NULL, t == 0 ? w->param : w->small);
    }
    exchange_close(w->x, r, w, 0, w->now);
    exchange_flush(w->x, w->now);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_INIT);
        receipt(w, &w->sent[i], WIRE_INITIAL);
    }
    exchange_flush(w->x, w->now);
    for (int i = n; i < w->n_sent; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_PULL);
        assert_int_equal(w->sent[i].flags, WIRE_INITIAL);
        values(w, &w->sent[i], 1, WIRE_INITIAL, false);
    }
    assert_int_equal(w->n_completed, 1);
    assert_true(w->param[N - 1] == 1 && w->small[0] == 1);
    world_destroy(w);
}

/* ---- deadlines ------------------------------------------------------------------------------- */
static void answer_inquiry_of(world *w, uint64_t step, int at, const int32_t *ranks, uint32_t n)
{
    wire_data d = from_shard(w, w->sent[at].shard, WIRE_WAITING, step);
    d.n = 1, d.chunk = w->sent[at].chunk, d.text = "layer7.weight", d.missing = ranks,
    d.n_missing = n;
    exchange_receive(w->x, w->sent[at].shard, &d, NULL, w->now);
}

static void answer_inquiry(world *w, int at, const int32_t *ranks, uint32_t n)
{
    answer_inquiry_of(w, 418, at, ranks, n);
}

static int find_sent(const world *w, wire_kind kind, int from)
{
    for (int i = from; i < w->n_sent; i++)
        if (w->sent[i].kind == kind) return i;
    return -1;
}

static void test_exchange_warns_and_times_out_with_the_name_of_who_is_missing(void **state)
{
    (void)state;
    static const int32_t missing[] = {3, 1};
    world *w                       = world_create(EXCHANGE_DECIDE);
    push_step(w, 418);
    int n = w->n_sent;
    for (int i = 0; i < n; i++) receipt(w, &w->sent[i], 0);
    uint64_t begun = w->now;
    exchange_step_close(w->x, w, begun + 600000, begun);
    while (w->n_completed == 0) {
        int from = w->n_sent;
        sleep_until_due(w);
        int asked = find_sent(w, WIRE_INQUIRE, from);
        if (asked >= 0) answer_inquiry(w, asked, missing, w->now < begun + 300000 ? 1 : 2);
        w->n_sent = n; /* the log of a test is short */
    }
    assert_string_equal(w->log,
                        "waiting 30 s for rank 3 (devbox) to push 'layer7.weight' for step 418");
    assert_int_equal(w->status, PEN_TIMED_OUT);
    assert_string_equal(
        w->why.text,
        "waited 600 s for ranks 3 (devbox), 1 (devbox) to push 'layer7.weight' for step 418");
    assert_int_equal(w->now, begun + 600000);
    assert_int_equal(w->why.missing_n, 2);
    assert_int_equal(w->why.missing[0], 3);
    assert_int_equal(w->why.rank, 3);
    assert_int_equal(w->why.step, 418);
    assert_string_equal(w->why.tensor, "layer7.weight");
    world_destroy(w);
}

static void test_exchange_times_out_naming_a_silent_server(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_FREE);
    one_verb(w, EXCHANGE_PULL, 1, w->now + 2000);
    char sentence[128];
    snprintf(sentence, sizeof sentence,
             "waited 2 s for server %u (devbox) to answer the pull of 'b'", w->sent[0].shard);
    while (w->n_completed == 0) sleep_until_due(w);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    assert_string_equal(w->why.text, sentence);
    assert_int_equal(exchange_pending(w->x), 0);
    values(w, &w->sent[0], 7, 0, false); /* too late: the memory is the program's again */
    assert_true(w->small[0] == 0);
    world_destroy(w);
}

static void test_exchange_does_not_push_again_where_the_outcome_is_unknown(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_FREE);
    one_verb(w, EXCHANGE_PUSH_PULL, 1, w->now + 100);
    one_verb(w, EXCHANGE_PUSH_PULL, 1, 0);
    w->now += 100;
    exchange_tick(w->x, w->now);
    assert_int_equal(w->n_completed, 2); /* the second cannot know its number */
    assert_int_equal(w->status, PEN_TIMED_OUT);
    one_verb(w, EXCHANGE_PUSH, 1, 0);
    assert_int_equal(w->n_completed, 3);
    assert_int_equal(w->status, PEN_WRONG_STATE);
    assert_string_equal(w->why.text, "a push of 'b' ended without an answer, so it is not known "
                                     "whether it counts; it cannot be pushed again");
    one_verb(w, EXCHANGE_PULL, 1, 0);
    assert_int_equal(w->n_completed, 3); /* looking is always possible */
    world_destroy(w);
}

static size_t bytes_sent(const world *w, int shard, int from)
{
    size_t bytes = 0;
    for (int i = from; i < w->n_sent; i++)
        if (shard < 0 || (int)w->sent[i].shard == shard) bytes += w->sent[i].piece[0].size;
    return bytes;
}

static void test_exchange_keeps_a_bounded_lead_over_a_shard_that_does_not_answer(void **state)
{
    (void)state;
    enum { CREDIT = 16 << 20 };
    world *w     = world_of(&(world_shape){.rule      = EXCHANGE_FREE,
                                           .sync      = {"async", "async"},
                                           .wire      = "raw",
                                           .one_group = true,
                                           .large     = true});
    size_t chunk = LARGE / 64 * sizeof(float);
    one_verb(w, EXCHANGE_PUSH, 0, 0);
    for (int shard = 0; shard < SHARDS; shard++) assert_int_equal(bytes_sent(w, shard, 0), CREDIT);
    int before = w->n_sent;
    one_verb(w, EXCHANGE_PUSH, 1, 0); /* a small one waits its turn, but needs no credit */
    assert_int_equal(w->n_sent, before);

    receipt(w, &w->sent[0], 0);
    exchange_flush(w->x, w->now);
    assert_int_equal(w->n_sent, before + 1);
    assert_int_equal(bytes_sent(w, (int)w->sent[0].shard, before), chunk);

    for (int i = 1; i < w->n_sent; i++) { /* who answers gets the rest */
        receipt(w, &w->sent[i], 0);
        exchange_flush(w->x, w->now);
    }
    assert_int_equal(bytes_sent(w, -1, 0), LARGE * sizeof(float) + 8 * sizeof(float));
    world_destroy(w);
}

static void test_exchange_gives_a_buffer_back_only_when_the_transport_let_go(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_FREE);
    w->hold  = true;
    one_verb(w, EXCHANGE_PUSH_PULL, 1, w->now + 100);
    values(w, &w->sent[0], 1, 0, false);
    assert_int_equal(w->n_completed, 0);
    exchange_release(w->x, w->sent[0].held);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);

    one_verb(w, EXCHANGE_PUSH_PULL, 1, w->now + 100);
    w->now += 100;
    exchange_tick(w->x, w->now);
    assert_int_equal(w->n_cut, 1); /* a deadline takes it away */
    assert_int_equal(w->n_completed, 1);
    exchange_release(w->x, w->sent[1].held);
    assert_int_equal(w->n_completed, 2);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    world_destroy(w);
}

static void test_exchange_ends_everything_with_the_verdict(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_DECIDE);
    push_step(w, 0);
    exchange_step_close(w->x, w, 0, w->now);
    pen_error verdict;
    why_set(&verdict, PEN_PEER_LOST, "worker 1 (devbox) is gone");
    exchange_fail(w->x, &verdict, w->now);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_PEER_LOST);
    one_verb(w, EXCHANGE_PULL, 0, 0);
    assert_int_equal(w->n_completed, 2);
    assert_string_equal(w->why.text, "worker 1 (devbox) is gone");
    assert_int_equal(exchange_pending(w->x), 0);
    world_destroy(w);
}

static void test_exchange_passes_on_what_a_shard_refuses_for_good(void **state)
{
    (void)state;
    world *w = world_create(EXCHANGE_DECIDE);
    push_step(w, 0);
    exchange_step_close(w->x, w, 0, w->now);
    wire_data d = from_shard(w, w->sent[0].shard, WIRE_REFUSED, 0);
    d.status    = PEN_MISMATCH;
    d.text      = "the clip bound is 1 on rank 0 and 2 on rank 1";
    d.n         = w->sent[0].n;
    d.chunk     = w->sent[0].chunk;
    exchange_receive(w->x, w->sent[0].shard, &d, NULL, w->now);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_MISMATCH);
    assert_string_equal(w->why.text, "the clip bound is 1 on rank 0 and 2 on rank 1");
    world_destroy(w);
}

/* ---- groups that differ ---------------------------------------------------------------------- */
static void test_exchange_drives_decided_and_free_chunks_in_one_step(void **state)
{
    (void)state;
    world *w =
        world_of(&(world_shape){.rule = EXCHANGE_DECIDE, .sync = {"bsp", "async"}, .wire = "raw"});
    push_step(w, 5);
    const sent *free = NULL;
    for (int i = 0; i < w->n_sent; i++) {
        bool is_free = w->plan->chunk[w->sent[i].chunk[0]].tensor == 1;
        assert_int_equal(w->sent[i].flags, is_free ? WIRE_WANT_VALUES : 0);
        assert_int_equal(w->sent[i].seq[0], is_free ? 0 : 5); /* its own count; the step */
        if (is_free) free = &w->sent[i];
    }
    assert_non_null(free);
    const sent push = *free;
    w->n_sent       = 0;
    values(w, &push, 3, 0, false);
    assert_true(w->small[0] == 0); /* early: kept until the step is closed */
    exchange_step_close(w->x, w, 0, w->now);
    assert_true(w->small[0] == 3); /* does not wait for the decision */
    assert_int_equal(w->n_decided + w->n_completed, 0);
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_decided > 0) prepared(w, p, 5, true, false);
    assert_int_equal(w->n_decided, 1);
    exchange_flush(w->x, w->now);
    assert_in_range(w->n_sent, 1, SENT_MAX);
    for (int i = 0, n = w->n_sent; i < n; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_PULL);
        assert_int_equal(w->plan->chunk[w->sent[i].chunk[0]].tensor, 0);
        values(w, &w->sent[i], 2, 0, false);
    }
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);
    assert_true(w->param[N - 1] == 2);
    world_destroy(w);
}

static void test_exchange_asks_for_both_kinds_of_chunks_when_their_answers_are_late(void **state)
{
    (void)state;
    world *w =
        world_of(&(world_shape){.rule = EXCHANGE_DECIDE, .sync = {"async", "bsp"}, .wire = "raw"});
    push_step(w, 0);
    int pushes = w->n_sent;
    for (int i = 0; i < pushes; i++) receipt(w, &w->sent[i], 0);
    w->n_sent     = 0;
    bool asked[2] = {false};
    for (int round = 0; round < 6; round++) sleep_until_due(w);
    for (int i = 0; i < w->n_sent; i++) {
        assert_int_equal(w->sent[i].kind, WIRE_INQUIRE);
        asked[w->plan->chunk[w->sent[i].chunk[0]].tensor] = true;
    }
    assert_true(asked[0] && asked[1]);
    world_destroy(w);
}

static void test_exchange_does_not_pull_free_chunks_with_the_decision(void **state)
{
    (void)state;
    world *w =
        world_of(&(world_shape){.rule = EXCHANGE_DECIDE, .sync = {"bsp", "async"}, .wire = "raw"});
    push_step(w, 0);
    sent push = w->sent[0];
    for (int i = 0; i < w->n_sent; i++)
        if (w->plan->chunk[w->sent[i].chunk[0]].tensor == 1) push = w->sent[i];
    exchange_step_close(w->x, w, 0, w->now);
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_decided > 0) prepared(w, p, 0, true, false);
    w->n_sent = 0;
    exchange_flush(w->x, w->now);
    for (int i = 0; i < w->n_sent; i++) {
        assert_int_equal(w->plan->chunk[w->sent[i].chunk[0]].tensor, 0);
        values(w, &w->sent[i], 2, 0, false);
    }
    assert_int_equal(w->n_completed, 0); /* the answer to the free push is still to come */
    values(w, &push, 3, 0, false);
    assert_int_equal(w->n_completed, 1);
    assert_true(w->small[7] == 3);
    world_destroy(w);
}

/* PREPARED is about the decided chunks of a partition; the others wait for their own answers. */
static void test_exchange_asks_for_free_chunks_of_a_partition_that_is_prepared(void **state)
{
    (void)state;
    world *w            = world_of(&(world_shape){
                   .rule = EXCHANGE_DECIDE, .sync = {"bsp", "async"}, .wire = "raw", .many = true});
    exchange_request *r = exchange_step_open(w->x, 0, &step_inputs, w->now);
    for (uint32_t t = 0; t < TENSORS; t++)
        exchange_add(w->x, r, EXCHANGE_STEP, t, w->small_grad, w->small);
    exchange_flush(w->x, w->now);
    for (int i = 0; i < w->n_sent; i++) receipt(w, &w->sent[i], 0);
    uint32_t mixed         = 0;
    bool is_asked[TENSORS] = {false};
    for (int round = 0; round < 400;
         round++) { /* before PREPARED: about one decided chunk of each */
        w->n_sent = 0;
        sleep_until_due(w);
        for (int i = 0; i < w->n_sent; i++) is_asked[w->sent[i].chunk[0]] = true;
    }
    for (uint32_t p = 0; p < w->plan->n_partitions; p++) {
        const plan_partition *part = &w->plan->partition[p];
        bool asks                  = part->n_decided == 0;
        for (uint32_t i = 0; i < part->n_chunks; i++)
            asks |= part->chunk[i] % 3 == 0 && is_asked[part->chunk[i]];
        assert_true(asks);
    }
    for (uint32_t p = 0; p < w->plan->n_partitions; p++) {
        const plan_partition *part = &w->plan->partition[p];
        if (part->n_decided > 0) prepared(w, p, 0, true, false);
        mixed += part->n_decided > 0 && part->n_decided < part->n_trained;
    }
    assert_in_range(mixed, 1, TENSORS);
    memset(is_asked, 0, sizeof is_asked);
    for (int round = 0; round < 400; round++) {
        w->n_sent = 0;
        sleep_until_due(w);
        for (int i = 0; i < w->n_sent; i++) is_asked[w->sent[i].chunk[0]] = true;
    }
    for (uint32_t t = 0; t < TENSORS; t++) assert_int_equal(is_asked[t], t % 3 > 0);
    world_destroy(w);
}

/* ---- fewer bits ------------------------------------------------------------------------------ */
static void test_exchange_sends_gradients_in_16_bits_and_first_values_as_they_are(void **state)
{
    (void)state;
    world *w = world_of(&(world_shape){
        .rule = EXCHANGE_DECIDE, .sync = {"bsp", "bsp"}, .wire = "bf16", .one_group = true});
    one_verb(w, EXCHANGE_INIT, 0, 0);
    for (int i = 0; i < w->n_sent; i++) {
        assert_int_equal(w->sent[i].piece[0].encode, PEN_DTYPE_DEFAULT);
        receipt(w, &w->sent[i], WIRE_INITIAL);
    }
    w->n_sent = 0;
    push_step(w, 0);
    const uint64_t before = w->count[STAT_PUSH_BYTES];
    int first             = w->n_sent;
    sleep_until_due(w); /* repeats are alike */
    assert_in_range(w->n_sent, first + 1, SENT_MAX);
    for (int i = 0; i < w->n_sent; i++)
        for (uint32_t k = 0; k < w->sent[i].n_pieces; k++) {
            const exchange_piece *p = &w->sent[i].piece[k];
            const plan_chunk *chunk = &w->plan->chunk[w->sent[i].chunk[k]];
            const float *from       = chunk->tensor == 0 ? w->grad : w->small_grad;
            assert_int_equal(p->encode, PEN_BF16);
            assert_int_equal(p->size, chunk->count * 2);
            assert_ptr_equal(p->data, from + chunk->start);
        }
    assert_int_equal(before, (N + 8) * 2);
    world_destroy(w);
}

/* ---- shards without trained chunks ----------------------------------------------------------- */
static world *world_with_idle_shard(void)
{
    return world_of(&(world_shape){.rule       = EXCHANGE_DECIDE,
                                   .sync       = {"bsp", "bsp"},
                                   .wire       = "raw",
                                   .one_group  = true,
                                   .one_tensor = true});
}

static void open_small_step(world *w, uint64_t step, bool snapshot)
{
    wire_inputs in      = step_inputs;
    in.snapshot         = snapshot;
    exchange_request *r = exchange_step_open(w->x, step, &in, w->now);
    exchange_add(w->x, r, EXCHANGE_STEP, 0, w->small_grad, w->small);
    exchange_flush(w->x, w->now);
}

static const sent *find_sign(const world *w)
{
    const sent *found = NULL;
    for (int i = 0; i < w->n_sent; i++)
        if (w->sent[i].n == 0) found = &w->sent[i];
    return found;
}

static void end_small_step(world *w, uint64_t step)
{
    exchange_step_close(w->x, w, 0, w->now);
    w->n_sent = 0;
    prepared(w, 0, step, true, false);
    exchange_flush(w->x, w->now);
    assert_int_equal(w->n_sent, 1);
    const sent pull = w->sent[0];
    values(w, &pull, 1, 0, false);
}

static void test_exchange_tells_idle_shards_of_a_snapshot_until_they_have_heard(void **state)
{
    (void)state;
    world *w = world_with_idle_shard();
    open_small_step(w, 0, false);
    assert_null(find_sign(w));
    end_small_step(w, 0);
    assert_int_equal(w->n_completed, 1);

    w->n_sent = 0;
    open_small_step(w, 1, true);
    assert_non_null(find_sign(w));
    const sent sign = *find_sign(w);
    assert_int_equal(sign.kind, WIRE_PUSH);
    assert_int_equal(sign.step, 1);
    assert_int_equal(sign.shard, 1 - w->shard[0]);
    assert_true(sign.snapshot);
    end_small_step(w, 1);
    assert_int_equal(w->n_completed, 1); /* waits for the receipt */
    w->n_sent = 0;
    for (int i = 0; i < 5 && find_sign(w) == NULL; i++) sleep_until_due(w);
    assert_non_null(find_sign(w)); /* said again */
    assert_int_equal(find_sign(w)->flags, WIRE_REPEATED);
    receipt(w, &(sent){.shard = sign.shard, .step = 0}, 0); /* of another step */
    assert_int_equal(w->n_completed, 1);
    receipt(w, &sign, 0);
    receipt(w, &sign, 0);
    assert_int_equal(w->n_completed, 2);
    assert_int_equal(w->status, PEN_OK);
    assert_int_equal(exchange_pending(w->x), 0);
    world_destroy(w);
}

static void test_exchange_forgets_idle_shards_with_a_step_that_fails(void **state)
{
    (void)state;
    world *w = world_with_idle_shard();
    open_small_step(w, 0, true);
    end_small_step(w, 0);
    pen_error why = {.status = PEN_ABORTED, .text = "enough"};
    exchange_fail(w->x, &why, w->now);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_ABORTED);
    assert_int_equal(exchange_pending(w->x), 0);
    world_destroy(w);
}

static void test_exchange_times_out_naming_the_idle_server_that_does_not_answer(void **state)
{
    (void)state;
    world *w = world_with_idle_shard();
    open_small_step(w, 0, true);
    exchange_step_close(w->x, w, w->now + 5000, w->now);
    prepared(w, 0, 0, true, false);
    w->n_sent = 0;
    exchange_flush(w->x, w->now);
    const sent pull = w->sent[0];
    values(w, &pull, 1, 0, false);
    for (int i = 0; i < 20 && w->n_completed == 0; i++) sleep_until_due(w);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    char want[128];
    snprintf(want, sizeof want, "waited 5 s for server %u (devbox) to take its part of a snapshot",
             1 - w->shard[0]);
    assert_string_equal(w->why.text, want);
    world_destroy(w);
}

/* ---- sums of nodes --------------------------------------------------------------------------- */
enum { OWN_PARTITION = 0, FOREIGN_PARTITION = 1 };

/* This rank pushes the chunks of one partition, others of its node all the rest. */
static world *world_with_a_share(void)
{
    world *w            = world_of(&(world_shape){.rule      = EXCHANGE_DECIDE,
                                                  .sync      = {"bsp", "bsp"},
                                                  .wire      = "raw",
                                                  .one_group = true,
                                                  .many      = true});
    wire_inputs in      = step_inputs;
    in.is_node_sum      = true;
    exchange_request *r = exchange_step_open(w->x, 0, &in, w->now);
    assert_in_range(w->plan->n_partitions, 2, TENSORS);
    const plan_partition *own = &w->plan->partition[OWN_PARTITION];
    for (uint32_t i = 0; i < own->n_chunks; i++)
        exchange_step_add(w->x, r, own->chunk[i], w->small_grad, w->small);
    exchange_flush(w->x, w->now);
    return w;
}

static int find_inquiry_about(const world *w, uint32_t partition)
{
    for (int i = 0; i < w->n_sent; i++)
        if (w->sent[i].kind == WIRE_INQUIRE &&
            w->plan->chunk[w->sent[i].chunk[0]].partition == partition)
            return i;
    return -1;
}

static void bring_all_records_but(world *w, uint32_t lost)
{
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (p != lost && w->plan->partition[p].n_decided > 0) prepared(w, p, 0, true, false);
    assert_int_equal(w->n_decided, 0);
    w->n_sent = 0;
}

static void
test_exchange_asks_for_a_lost_record_of_a_partition_that_others_of_the_node_push(void **state)
{
    (void)state;
    world *w = world_with_a_share();
    exchange_step_close(w->x, w, w->now + 600000, w->now);
    bring_all_records_but(w, FOREIGN_PARTITION);
    for (int i = 0; i < 20 && find_inquiry_about(w, FOREIGN_PARTITION) < 0; i++) sleep_until_due(w);
    assert_true(find_inquiry_about(w, FOREIGN_PARTITION) >= 0);
    assert_int_equal(find_inquiry_about(w, OWN_PARTITION), -1); /* is prepared */
    w->n_sent = 0;
    for (int i = 0; i < 20 && find_inquiry_about(w, FOREIGN_PARTITION) < 0; i++) sleep_until_due(w);
    assert_true(find_inquiry_about(w, FOREIGN_PARTITION) >= 0); /* the answer was lost as well */
    prepared(w, FOREIGN_PARTITION, 0, true, false);
    assert_int_equal(w->n_decided, 1);
    w->n_sent = 0;
    for (int i = 0; i < 20 && w->n_sent < 20; i++) sleep_until_due(w);
    assert_int_equal(find_inquiry_about(w, FOREIGN_PARTITION),
                     -1); /* only its own pulls are left */
    world_destroy(w);
}

static void test_exchange_asks_for_records_of_others_at_once_when_a_connection_is_back(void **state)
{
    (void)state;
    world *w             = world_with_a_share();
    const uint32_t shard = w->shard[FOREIGN_PARTITION];
    exchange_down(w->x, shard, 0);
    exchange_up(w->x, shard, 0, w->now);
    exchange_tick(w->x, w->now);
    assert_int_equal(find_inquiry_about(w, FOREIGN_PARTITION),
                     -1); /* whose it is shows at the end */
    exchange_step_close(w->x, w, 0, w->now);
    bring_all_records_but(w, FOREIGN_PARTITION);
    exchange_tick(w->x, w->now);
    assert_true(find_inquiry_about(w, FOREIGN_PARTITION) >= 0);
    world_destroy(w);
}

static void test_exchange_names_who_keeps_a_partition_of_others_from_its_record(void **state)
{
    (void)state;
    world *w = world_with_a_share();
    exchange_step_close(w->x, w, w->now + 20000, w->now);
    bring_all_records_but(w, FOREIGN_PARTITION);
    for (int i = 0; i < 20 && find_inquiry_about(w, FOREIGN_PARTITION) < 0; i++) sleep_until_due(w);
    const int32_t missing[] = {3};
    answer_inquiry_of(w, 0, find_inquiry_about(w, FOREIGN_PARTITION), missing, 1);
    for (int i = 0; i < 200 && w->n_completed == 0; i++) sleep_until_due(w);
    assert_int_equal(w->status, PEN_TIMED_OUT);
    assert_int_equal(w->why.rank, 3);
    world_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_retry_doubles_to_a_bound_with_jitter_from_the_seed),
        cmocka_unit_test(test_exchange_sends_again_what_is_not_answered),
        cmocka_unit_test(test_exchange_ignores_answers_that_come_twice_or_late),
        cmocka_unit_test(test_exchange_has_one_push_of_a_chunk_in_flight),
        cmocka_unit_test(test_exchange_asks_again_for_values_whose_checksum_fails),
        cmocka_unit_test(test_exchange_backs_off_when_a_shard_has_no_room),
        cmocka_unit_test(test_exchange_sends_unanswered_again_when_a_connection_is_back),
        cmocka_unit_test(test_exchange_keeps_what_a_full_queue_refuses),
        cmocka_unit_test(test_exchange_decides_alike_in_any_order_of_answers),
        cmocka_unit_test(test_exchange_pulls_carry_the_hashes_of_their_partitions),
        cmocka_unit_test(test_exchange_skips_a_step_that_is_not_finite_and_names_the_rank),
        cmocka_unit_test(test_exchange_does_not_believe_a_damaged_record),
        cmocka_unit_test(test_exchange_ignores_records_of_another_step_or_stranger),
        cmocka_unit_test(
            test_exchange_asks_about_a_receipted_push_and_repeats_it_when_nobody_is_missing),
        cmocka_unit_test(test_exchange_writes_no_values_before_the_step_is_closed),
        cmocka_unit_test(test_exchange_asks_again_for_held_values_whose_checksum_fails),
        cmocka_unit_test(test_exchange_sends_first_values_and_then_fetches_them),
        cmocka_unit_test(test_exchange_warns_and_times_out_with_the_name_of_who_is_missing),
        cmocka_unit_test(test_exchange_times_out_naming_a_silent_server),
        cmocka_unit_test(test_exchange_does_not_push_again_where_the_outcome_is_unknown),
        cmocka_unit_test(test_exchange_keeps_a_bounded_lead_over_a_shard_that_does_not_answer),
        cmocka_unit_test(test_exchange_gives_a_buffer_back_only_when_the_transport_let_go),
        cmocka_unit_test(test_exchange_ends_everything_with_the_verdict),
        cmocka_unit_test(test_exchange_passes_on_what_a_shard_refuses_for_good),
        cmocka_unit_test(test_exchange_drives_decided_and_free_chunks_in_one_step),
        cmocka_unit_test(test_exchange_asks_for_both_kinds_of_chunks_when_their_answers_are_late),
        cmocka_unit_test(test_exchange_does_not_pull_free_chunks_with_the_decision),
        cmocka_unit_test(test_exchange_asks_for_free_chunks_of_a_partition_that_is_prepared),
        cmocka_unit_test(test_exchange_sends_gradients_in_16_bits_and_first_values_as_they_are),
        cmocka_unit_test(test_exchange_tells_idle_shards_of_a_snapshot_until_they_have_heard),
        cmocka_unit_test(test_exchange_forgets_idle_shards_with_a_step_that_fails),
        cmocka_unit_test(test_exchange_times_out_naming_the_idle_server_that_does_not_answer),
        cmocka_unit_test(
            test_exchange_asks_for_a_lost_record_of_a_partition_that_others_of_the_node_push),
        cmocka_unit_test(
            test_exchange_asks_for_records_of_others_at_once_when_a_connection_is_back),
        cmocka_unit_test(test_exchange_names_who_keeps_a_partition_of_others_from_its_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
