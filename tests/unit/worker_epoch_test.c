/* worker_epoch_test.c - the ps client when servers and members change: no socket, no thread,
 * no clock. */
#include "common/base/crc.h"
#include "worker/ps/ps_client.h"

#include <stdio.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 9000, SHARDS = 2, SENT_MAX = 256, ITEMS_MAX = 64, SELF = 901, WORKERS = 3 };

typedef struct {
    wire_kind kind;
    uint32_t shard, n, flags;
    uint64_t step, epoch, to;
    uint32_t chunk[ITEMS_MAX];
    uint64_t seq[ITEMS_MAX];
    bool is_snapshot;
} sent;

typedef struct {
    wire_tensor tensor[2];
    wire_group group;
    wire_model model;
    plan *plan;
    uint32_t shard[PLAN_PARTITIONS_MAX];
    ps_client *x;
    sent sent[SENT_MAX];
    int n_sent, n_completed, n_decided;
    pen_status status;
    pen_error why;
    ps_client_outcome outcome;
    uint64_t server[SHARDS], worker[WORKERS], term, epoch;
    float param[N], grad[N], small[8], small_grad[8];
    uint64_t now;
} world;

static const char *const hosts[] = {"a", "b", "c"};
static const char *const names[] = {"server 0 (a)", "server 1 (b)"};

/* ---- actions --------------------------------------------------------------------------------- */
static pen_status on_send(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                          const ps_client_piece *pieces, uint32_t n)
{
    world *w = user;
    assert_int_equal(lane, 0);
    assert_true(w->n_sent < SENT_MAX && d->n <= ITEMS_MAX);
    assert_int_equal(d->shard, shard);
    sent *s = &w->sent[w->n_sent++];
    *s      = (sent){.kind        = d->kind,
                     .shard       = shard,
                     .n           = d->n,
                     .flags       = d->flags,
                     .step        = d->step,
                     .epoch       = d->epoch,
                     .to          = d->to,
                     .is_snapshot = d->has_inputs && d->inputs.snapshot};
    (void)pieces, (void)n;
    for (uint32_t i = 0; i < d->n; i++) {
        s->chunk[i] = d->chunk[i];
        s->seq[i]   = d->seq != NULL ? d->seq[i] : d->step;
    }
    return PEN_OK;
}

static void on_cut(void *user, uint32_t shard, uint32_t lane)
{
    (void)user, (void)shard, (void)lane;
}

static bool on_store(void *user, void *to, const void *from, size_t size, uint32_t crc)
{
    (void)user;
    memcpy(to, from, size);
    return crc32c(0, from, size) == crc;
}

static void on_decided(void *user, void *token, const ps_client_outcome *outcome)
{
    world *w   = user;
    w->outcome = *outcome;
    w->n_decided++;
    assert_ptr_equal(token, w);
}

static void on_completed(void *user, void *token, pen_status status, const ps_client_result *result,
                         const pen_error *why)
{
    world *w  = user;
    w->status = status;
    if (why != NULL) w->why = *why;
    w->n_completed++;
    (void)token, (void)result;
}

static void on_log(void *user, int level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static void on_count(void *user, stat_id id, uint64_t n)
{
    (void)user, (void)id, (void)n;
}

/* ---- a world --------------------------------------------------------------------------------- */
typedef struct {
    ps_client_rule rule;
    const char *sync;
    bool is_late, stays; /* stays: members cannot change */
    bool is_small;       /* one tensor of one chunk: the other shard is idle */
    int64_t step;
} world_shape;

static world *world_create(const world_shape *shape)
{
    static const ps_client_actions actions = {on_send,      on_cut, on_store, on_decided,
                                              on_completed, on_log, on_count};
    pen_error why;
    world *w     = calloc(1, sizeof *w);
    w->tensor[0] = (wire_tensor){
        .name = "w", .dtype = PEN_F32, .grad_dtype = PEN_F32, .ndim = 1, .shape = {N}, .init = ""};
    w->tensor[1] = (wire_tensor){
        .name = "b", .dtype = PEN_F32, .grad_dtype = PEN_F32, .ndim = 1, .shape = {8}, .init = ""};
    w->group = (wire_group){"default", "sgd lr=1", shape->sync, "raw", "constant"};
    w->model = (wire_model){.n_tensors = shape->is_small ? 1 : 2,
                            .n_groups  = 1,
                            .tensor    = w->tensor + shape->is_small,
                            .group     = &w->group};
    assert_int_equal(plan_create(&w->model, &w->plan, &why), PEN_OK);
    plan_place(w->plan, SHARDS, w->shard);
    memcpy(w->server, (const uint64_t[]){501, 502}, sizeof w->server);
    memcpy(w->worker, (const uint64_t[]){SELF, 902, 903}, sizeof w->worker);
    w->now = 1000, w->term = 7, w->epoch = 1;
    const ps_client_setup setup = {.plan             = w->plan,
                                   .model            = &w->model,
                                   .shard            = w->shard,
                                   .rule             = shape->rule,
                                   .n_shards         = SHARDS,
                                   .lanes            = 1,
                                   .term             = 7,
                                   .epoch            = 1,
                                   .from             = SELF,
                                   .to               = w->server,
                                   .n_workers        = WORKERS,
                                   .worker           = w->worker,
                                   .worker_host      = hosts,
                                   .server           = names,
                                   .warn_ms          = 30000,
                                   .retry            = retry_policy_make(1000, 1),
                                   .step             = shape->step,
                                   .applied          = shape->step,
                                   .may_lose_members = !shape->stays,
                                   .is_late          = shape->is_late};
    w->x                        = ps_client_create(&setup, &actions, w, &why);
    assert_non_null(w->x);
    for (uint32_t s = 0; s < SHARDS; s++) ps_client_up(w->x, s, 0, w->now);
    return w;
}

static void world_destroy(world *w)
{
    ps_client_destroy(w->x);
    plan_destroy(w->plan);
    free(w);
}

static const world_shape decided = {.rule = STEP_TWO_PHASE, .sync = "bsp"};
static const world_shape eager   = {.rule = STEP_EAGER, .sync = "bsp"};
static const world_shape async   = {.rule = STEP_ASYNC, .sync = "async"};

static void pass(world *w, uint64_t ms)
{
    w->now += ms;
    ps_client_tick(w->x, w->now);
    ps_client_flush(w->x, w->now);
}

/* The next epoch; the changes are in w->server and w->worker. */
static void install(world *w, bool members_changed, int64_t step)
{
    w->epoch++;
    const ps_client_view view = {.term            = w->term,
                                 .epoch           = w->epoch,
                                 .to              = w->server,
                                 .members_changed = members_changed,
                                 .step            = step,
                                 .n_workers       = WORKERS,
                                 .worker          = w->worker,
                                 .worker_host     = hosts,
                                 .server          = names};
    w->n_sent                 = 0;
    ps_client_install(w->x, &view, w->now);
    ps_client_flush(w->x, w->now);
}

/* The same, and another server holds the shard; its connection breaks and is made again. */
static void move(world *w, uint32_t shard, bool members_changed, int64_t step)
{
    uint64_t *servers = malloc(sizeof w->server); /* the ps client copies the array before */
    memcpy(servers, w->server, sizeof w->server);
    servers[shard] += 100;
    w->epoch++;
    const ps_client_view view = {.term            = w->term,
                                 .epoch           = w->epoch,
                                 .to              = servers,
                                 .members_changed = members_changed,
                                 .step            = step,
                                 .n_workers       = WORKERS,
                                 .worker          = w->worker,
                                 .worker_host     = hosts,
                                 .server          = names};
    w->n_sent                 = 0;
    ps_client_install(w->x, &view, w->now);
    memcpy(w->server, servers, sizeof w->server);
    const ps_client_view same = {.term        = w->term,
                                 .epoch       = w->epoch,
                                 .to          = w->server,
                                 .step        = -1,
                                 .n_workers   = WORKERS,
                                 .worker      = w->worker,
                                 .worker_host = hosts,
                                 .server      = names};
    ps_client_install(w->x, &same, w->now); /* only so that the array may be freed */
    free(servers);
    ps_client_down(w->x, shard, 0);
    ps_client_flush(w->x, w->now);
    ps_client_up(w->x, shard, 0, w->now);
    ps_client_flush(w->x, w->now);
}

static wire_data from_shard(const world *w, uint32_t shard, wire_kind kind, uint64_t step)
{
    return (wire_data){.kind  = kind,
                       .shard = shard,
                       .term  = w->term,
                       .epoch = w->epoch,
                       .from  = w->server[shard],
                       .to    = SELF,
                       .step  = step,
                       .text  = ""};
}

static void receipt(world *w, const sent *s)
{
    wire_data d = from_shard(w, s->shard, WIRE_RECEIPT, s->step);
    d.n = s->n, d.chunk = s->chunk, d.seq = s->seq;
    ps_client_receive(w->x, s->shard, &d, NULL, w->now);
}

static void values_of(world *w, const sent *s, float value, uint32_t flags, const uint64_t *seq,
                      uint64_t epoch)
{
    uint32_t crc[ITEMS_MAX];
    uint64_t version[ITEMS_MAX];
    size_t elements = 0;
    for (uint32_t i = 0; i < s->n; i++) elements += w->plan->chunk[s->chunk[i]].count;
    buf *body = buf_new(elements * sizeof(float));
    float *at = body->data;
    for (size_t i = 0; i < elements; i++) at[i] = value;
    for (uint32_t i = 0; i < s->n; i++) {
        const size_t count = w->plan->chunk[s->chunk[i]].count;
        crc[i]             = crc32c(0, at, count * sizeof(float));
        version[i]         = seq[i] + 1;
        at += count;
    }
    wire_data d = from_shard(w, s->shard, WIRE_VALUES, s->step);
    d.n = s->n, d.chunk = s->chunk, d.seq = seq, d.crc = crc, d.version = version, d.flags = flags;
    d.epoch = epoch;
    ps_client_receive(w->x, s->shard, &d, body, w->now);
    buf_release(body);
}

static void values(world *w, const sent *s, float value)
{
    values_of(w, s, value, 0, s->seq, w->epoch);
}

static wire_inputs step_inputs = {.loss_scale = 1, .weight = 1, .skip = true};

static void prepared(world *w, uint32_t partition, uint64_t step, double sum)
{
    const uint32_t blocks = w->plan->partition[partition].blocks;
    buf *body             = buf_new(blocks * sizeof(double));
    for (uint32_t i = 0; i < blocks; i++) ((double *)body->data)[i] = sum;
    wire_vote r = {.partition = partition, .weight_sum = 4, .finite = true, .bad_rank = -1};
    r.hash      = decision_vote_hash(step, &r, &step_inputs, body->data, blocks);
    wire_data d = from_shard(w, w->shard[partition], WIRE_PREPARED, step);
    d.n_votes   = 1;
    d.vote      = &r;
    ps_client_receive(w->x, w->shard[partition], &d, body, w->now);
    buf_release(body);
}

static void prepare_all(world *w, uint64_t step, double sum)
{
    for (uint32_t p = 0; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_decided > 0) prepared(w, p, step, sum);
}

static void push_step(world *w, uint64_t step)
{
    ps_client_request *r = ps_client_step_open(w->x, step, &step_inputs, w->now);
    ps_client_add(w->x, r, PS_STEP, 0, w->grad, w->param);
    if (w->model.n_tensors > 1) ps_client_add(w->x, r, PS_STEP, 1, w->small_grad, w->small);
    ps_client_flush(w->x, w->now);
}

static uint32_t count_chunks(const world *w, int from, wire_kind kind)
{
    uint32_t n = 0;
    for (int i = from; i < w->n_sent; i++)
        if (w->sent[i].kind == kind) n += w->sent[i].n;
    return n;
}

static void answer_pulls(world *w, float value)
{
    const int n = w->n_sent;
    for (int i = 0; i < n; i++)
        if (w->sent[i].kind == WIRE_PULL) {
            const sent s = w->sent[i];
            values(w, &s, value);
        }
}

static void one_verb(world *w, ps_client_verb verb, uint32_t tensor)
{
    ps_client_request *r = ps_client_open(w->x, w->now);
    ps_client_add(w->x, r, verb, tensor, tensor == 0 ? w->grad : w->small_grad,
                  tensor == 0 ? w->param : w->small);
    ps_client_close(w->x, r, w, 0, w->now);
    ps_client_flush(w->x, w->now);
}

/* ---- what is sent again ---------------------------------------------------------------------- */
static void test_epoch_repeats_unanswered_pushes_with_their_numbers(void **state)
{
    (void)state;
    world *w = world_create(&async);
    one_verb(w, PS_PUSH_PULL, 1);
    const sent first = w->sent[0];
    install(w, false, -1);
    assert_int_equal(w->n_sent, 1);
    assert_int_equal(w->sent[0].kind, WIRE_PUSH);
    assert_int_equal(w->sent[0].seq[0], first.seq[0]);
    assert_int_equal(w->sent[0].epoch, 2);
    assert_true(w->sent[0].flags & WIRE_REPEATED);
    values(w, &w->sent[0], 3);
    assert_int_equal(w->n_completed, 1);
    assert_true(w->small[0] == 3);
    world_destroy(w);
}

static void test_epoch_sends_a_push_to_the_server_that_holds_its_shard_now(void **state)
{
    (void)state;
    world *w = world_create(&async);
    one_verb(w, PS_PUSH_PULL, 1);
    const sent first = w->sent[0];
    receipt(w, &first); /* the member that gave it is gone */
    move(w, first.shard, false, -1);
    assert_int_equal(count_chunks(w, 0, WIRE_PUSH), 1);
    assert_int_equal(w->sent[w->n_sent - 1].to, w->server[first.shard]);
    assert_int_equal(w->sent[w->n_sent - 1].seq[0], first.seq[0]);
    world_destroy(w);
}

static void test_epoch_asks_only_where_a_receipt_still_holds(void **state)
{
    (void)state;
    world *w = world_create(&decided);
    push_step(w, 0);
    for (int i = 0, n = w->n_sent; i < n; i++) receipt(w, &w->sent[i]);
    install(w, false, 0);
    assert_int_equal(count_chunks(w, 0, WIRE_PUSH), 0);
    pass(w, 0);
    assert_true(count_chunks(w, 0, WIRE_INQUIRE) > 0);
    world_destroy(w);
}

static void test_epoch_ignores_answers_of_another_epoch(void **state)
{
    (void)state;
    world *w = world_create(&async);
    one_verb(w, PS_PUSH_PULL, 1);
    const sent first = w->sent[0];
    values_of(w, &first, 5, 0, first.seq, 2); /* the shard has applied it; we do not know yet */
    assert_int_equal(w->n_completed, 0);
    install(w, false, -1);
    values_of(w, &first, 6, 0, first.seq, 1);
    assert_int_equal(w->n_completed, 0);
    w->term = 8;
    values_of(w, &first, 6, 0, first.seq, 2); /* a scheduler with a later term */
    assert_int_equal(w->n_completed, 0);
    w->term = 7;
    values_of(w, &first, 7, 0, first.seq, 2);
    assert_int_equal(w->n_completed, 1);
    assert_true(w->small[0] == 7);
    world_destroy(w);
}

static void test_epoch_waits_briefly_for_a_shard_that_does_not_know_it_yet(void **state)
{
    (void)state;
    world *w = world_create(&async);
    one_verb(w, PS_PUSH_PULL, 1);
    install(w, false, -1);
    const sent s = w->sent[0];
    wire_data d  = from_shard(w, s.shard, WIRE_REFUSED, s.step);
    d.epoch      = 1;
    d.to         = SELF - 1; /* the process that had this rank before */
    d.status     = PEN_AGAIN;
    d.n = s.n, d.chunk = s.chunk, d.seq = s.seq;
    ps_client_receive(w->x, s.shard, &d, NULL, w->now);
    w->n_sent = 0;
    pass(w, 10);
    assert_int_equal(count_chunks(w, 0, WIRE_PUSH), 1);
    world_destroy(w);
}

static void test_epoch_pushes_again_what_the_shard_reports_missing(void **state)
{
    (void)state;
    world *w = world_create(&decided);
    push_step(w, 0);
    const sent s = w->sent[0];
    receipt(w, &s);
    const int32_t self = 0;
    wire_data d        = from_shard(w, s.shard, WIRE_WAITING, 0);
    d.n = 1, d.chunk = s.chunk, d.n_missing = 1, d.missing = &self, d.text = "w";
    ps_client_receive(w->x, s.shard, &d, NULL, w->now);
    w->n_sent = 0;
    ps_client_flush(w->x, w->now);
    assert_int_equal(count_chunks(w, 0, WIRE_PUSH), 1);
    assert_int_equal(w->sent[0].chunk[0], s.chunk[0]);
    world_destroy(w);
}

/* ---- members --------------------------------------------------------------------------------- */
static void test_epoch_restarts_an_open_step_when_members_change(void **state)
{
    (void)state;
    world *w = world_create(&decided);
    push_step(w, 0);
    prepared(w, 0, 0, 1);
    install(w, true, 0);
    assert_int_equal(count_chunks(w, 0, WIRE_PUSH), w->plan->n_chunks);
    ps_client_step_close(w->x, w, 0, w->now);
    for (uint32_t p = 1; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_decided > 0) prepared(w, p, 0, 2);
    ps_client_flush(w->x, w->now);
    assert_int_equal(count_chunks(w, 0, WIRE_PULL), 0); /* the earlier record is void */
    prepared(w, 0, 0, 2);
    ps_client_flush(w->x, w->now);
    answer_pulls(w, 4);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);
    assert_true(w->param[N - 1] == 4);
    world_destroy(w);
}

static void test_epoch_drops_a_decision_that_no_shard_applied(void **state)
{
    (void)state;
    world *w = world_create(&decided);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    prepare_all(w, 0, 1);
    ps_client_flush(w->x, w->now);
    assert_true(count_chunks(w, 0, WIRE_PULL) > 0);
    assert_int_equal(w->n_decided, 0); /* it can still be undone */
    install(w, true, 0);
    assert_int_equal(count_chunks(w, 0, WIRE_PUSH), w->plan->n_chunks);
    assert_int_equal(count_chunks(w, 0, WIRE_PULL), 0);
    prepare_all(w, 0, 9);
    ps_client_flush(w->x, w->now);
    answer_pulls(w, 2);
    assert_int_equal(w->n_decided, 1);
    assert_int_equal(w->outcome.applied, 1); /* once */
    assert_true(w->outcome.norm > 1);        /* from the sums that count */
    assert_int_equal(w->n_completed, 1);
    world_destroy(w);
}

static void test_epoch_sends_a_decision_with_the_initial_values(void **state)
{
    (void)state;
    world *w = world_create(&decided);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    prepare_all(w, 0, 1);
    w->n_sent = 0;
    ps_client_flush(w->x, w->now);
    assert_true(w->n_sent > 1);
    const sent first = w->sent[0];
    values(w, &first, 1);
    assert_int_equal(w->n_decided, 1);
    assert_int_equal(w->n_completed, 0);
    answer_pulls(w, 1);
    assert_int_equal(w->n_decided, 1);
    assert_int_equal(w->n_completed, 1);
    world_destroy(w);
}

static void test_epoch_sends_a_decision_at_once_if_members_stay(void **state)
{
    (void)state;
    world_shape shape = decided;
    shape.stays       = true;
    world *w          = world_create(&shape);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    prepare_all(w, 0, 1);
    assert_int_equal(w->n_decided, 1);
    world_destroy(w);
}

static void
test_epoch_keeps_gradients_of_chunks_without_a_decision_until_they_are_answered(void **state)
{
    (void)state;
    for (int rule = 0; rule < 2; rule++) {
        world_shape shape = rule == 0 ? async : eager;
        shape.stays       = true;
        world *w          = world_create(&shape);
        push_step(w, 0);
        ps_client_step_close(w->x, w, 0, w->now);
        const int n = w->n_sent;
        assert_true(n > 1);
        for (int i = 0; i < n; i++) {
            assert_int_equal(w->n_decided, 0); /* a push may still have to be sent again */
            const sent s = w->sent[i];
            values(w, &s, 1);
        }
        assert_int_equal(w->n_decided, 1);
        assert_int_equal(w->n_completed, 1);
        world_destroy(w);
    }
}

static void test_epoch_completes_a_step_that_ended_elsewhere(void **state)
{
    (void)state;
    world *w = world_create(&decided);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    prepared(w, 0, 0, 1);
    install(w, true, 1); /* everything below step 1 is committed: our records of 0 are valid */
    for (uint32_t p = 1; p < w->plan->n_partitions; p++)
        if (w->plan->partition[p].n_decided > 0) prepared(w, p, 0, 1);
    w->n_sent = 0;
    ps_client_flush(w->x, w->now);
    assert_int_equal(count_chunks(w, 0, WIRE_PULL), w->plan->n_chunks);
    answer_pulls(w, 8);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_OK);
    world_destroy(w);
}

static void test_epoch_detects_changed_members_without_the_record_between(void **state)
{
    (void)state;
    world *w = world_create(&decided);
    push_step(w, 0);
    prepare_all(w, 0, 1);
    w->worker[2] = 977; /* another process has that rank */
    install(w, false, 0);
    assert_int_equal(count_chunks(w, 0, WIRE_PUSH), w->plan->n_chunks);
    install(w, false, 0); /* the same members as before: nothing is dropped */
    prepare_all(w, 0, 1);
    install(w, false, 0);
    assert_int_equal(count_chunks(w, 0, WIRE_PUSH), 0);
    world_destroy(w);
}

static void test_epoch_of_several_the_newest_is_applied(void **state)
{
    (void)state;
    world *w = world_create(&decided);
    push_step(w, 0);
    for (int i = 0; i < 5; i++) move(w, 0, i % 2 == 0, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    prepare_all(w, 0, 1);
    ps_client_flush(w->x, w->now);
    answer_pulls(w, 6);
    assert_int_equal(w->n_completed, 1);
    assert_true(w->small[7] == 6);
    world_destroy(w);
}

static void test_epoch_that_drops_values_already_here_is_a_failure(void **state)
{
    (void)state;
    world *w = world_create(&decided);
    push_step(w, 0);
    ps_client_step_close(w->x, w, 0, w->now);
    prepare_all(w, 0, 1);
    w->n_sent = 0;
    ps_client_flush(w->x, w->now);
    const sent first = w->sent[0];
    values(w, &first, 1);
    install(w, true, 0);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_INTERNAL);
    assert_string_equal(w->why.text, "epoch 2 begins step 0 anew, and rank 0 has values of it");
    world_destroy(w);
}

static void test_epoch_keeps_the_numbers_of_independent_chunks(void **state)
{
    (void)state;
    world *w = world_create(&eager);
    push_step(w, 0);
    const sent first = w->sent[0];
    values(w, &first, 1); /* buffered until the step is closed */
    install(w, true, -1);
    const uint32_t again = count_chunks(w, 0, WIRE_PUSH);
    assert_int_equal(again, w->plan->n_chunks - first.n);
    for (int i = 0; i < w->n_sent; i++)
        for (uint32_t k = 0; k < w->sent[i].n; k++) assert_int_equal(w->sent[i].seq[k], 0);
    world_destroy(w);
}

/* ---- latecomers ------------------------------------------------------------------------------ */
static void test_epoch_a_late_worker_numbers_its_pushes_from_the_initial_values(void **state)
{
    (void)state;
    world_shape shape = async;
    shape.is_late     = true;
    world *w          = world_create(&shape);
    one_verb(w, PS_LOAD, 1);
    const sent load      = w->sent[0];
    const uint64_t seven = 7;
    values_of(w, &load, 1, WIRE_INITIAL, &seven, 1);
    assert_int_equal(w->n_completed, 1);
    w->n_sent = 0;
    one_verb(w, PS_PUSH_PULL, 1);
    assert_int_equal(w->sent[0].seq[0], 7);
    world_destroy(w);
}

static void test_epoch_a_late_worker_skips_finished_steps(void **state)
{
    (void)state;
    world_shape shape = eager;
    shape.is_late     = true;
    shape.step        = 4;
    world *w          = world_create(&shape);
    one_verb(w, PS_LOAD, 1);
    const sent load     = w->sent[0];
    const uint64_t five = 5;
    values_of(w, &load, 1, WIRE_INITIAL, &five, 1);
    const uint32_t chunk = load.chunk[0];
    for (uint64_t step = 4; step < 6; step++) {
        w->n_sent = 0;
        push_step(w, step);
        bool has_it = false;
        for (int i = 0; i < w->n_sent; i++)
            for (uint32_t k = 0; k < w->sent[i].n; k++) {
                has_it |= w->sent[i].chunk[k] == chunk;
                assert_int_equal(w->sent[i].seq[k], step);
            }
        assert_int_equal(has_it, step == 5);
        ps_client_step_close(w->x, w, 0, w->now);
        for (int i = 0, n = w->n_sent; i < n; i++) values(w, &w->sent[i], 2);
        assert_int_equal(w->n_completed, (int)(step - 4) + 2);
    }
    world_destroy(w);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
static void test_epoch_repeats_a_snapshot_request_to_an_idle_shard(void **state)
{
    (void)state;
    world_shape shape       = decided;
    shape.is_small          = true;
    world *w                = world_create(&shape);
    w->tensor[1].shape[0]   = 8;
    const wire_inputs plain = step_inputs;
    step_inputs.snapshot    = true;
    ps_client_request *r    = ps_client_step_open(w->x, 0, &step_inputs, w->now);
    ps_client_add(w->x, r, PS_STEP, 0, w->small_grad, w->small);
    ps_client_flush(w->x, w->now);
    ps_client_step_close(w->x, w, 0, w->now);
    prepare_all(w, 0, 1);
    ps_client_flush(w->x, w->now);
    uint32_t idle = SHARDS;
    for (int i = 0; i < w->n_sent; i++)
        if (w->sent[i].n == 0 && w->sent[i].is_snapshot) idle = w->sent[i].shard;
    assert_true(idle < SHARDS);
    wire_data heard = from_shard(w, idle, WIRE_RECEIPT, 0);
    ps_client_receive(w->x, idle, &heard, NULL, w->now);
    move(w, idle, false, 0);
    ps_client_flush(w->x, w->now);
    uint32_t told = 0;
    for (int i = 0; i < w->n_sent; i++)
        told += w->sent[i].n == 0 && w->sent[i].shard == idle && w->sent[i].kind == WIRE_PUSH;
    assert_true(told >= 1);
    answer_pulls(w, 3);
    assert_int_equal(w->n_completed, 0); /* the shard has not confirmed that it knows */
    heard = from_shard(w, idle, WIRE_RECEIPT, 0);
    ps_client_receive(w->x, idle, &heard, NULL, w->now);
    assert_int_equal(w->n_completed, 1);
    step_inputs = plain;
    world_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epoch_repeats_unanswered_pushes_with_their_numbers),
        cmocka_unit_test(test_epoch_sends_a_push_to_the_server_that_holds_its_shard_now),
        cmocka_unit_test(test_epoch_asks_only_where_a_receipt_still_holds),
        cmocka_unit_test(test_epoch_ignores_answers_of_another_epoch),
        cmocka_unit_test(test_epoch_waits_briefly_for_a_shard_that_does_not_know_it_yet),
        cmocka_unit_test(test_epoch_pushes_again_what_the_shard_reports_missing),
        cmocka_unit_test(test_epoch_restarts_an_open_step_when_members_change),
        cmocka_unit_test(test_epoch_drops_a_decision_that_no_shard_applied),
        cmocka_unit_test(test_epoch_sends_a_decision_with_the_initial_values),
        cmocka_unit_test(test_epoch_sends_a_decision_at_once_if_members_stay),
        cmocka_unit_test(
            test_epoch_keeps_gradients_of_chunks_without_a_decision_until_they_are_answered),
        cmocka_unit_test(test_epoch_completes_a_step_that_ended_elsewhere),
        cmocka_unit_test(test_epoch_detects_changed_members_without_the_record_between),
        cmocka_unit_test(test_epoch_of_several_the_newest_is_applied),
        cmocka_unit_test(test_epoch_that_drops_values_already_here_is_a_failure),
        cmocka_unit_test(test_epoch_keeps_the_numbers_of_independent_chunks),
        cmocka_unit_test(test_epoch_a_late_worker_numbers_its_pushes_from_the_initial_values),
        cmocka_unit_test(test_epoch_a_late_worker_skips_finished_steps),
        cmocka_unit_test(test_epoch_repeats_a_snapshot_request_to_an_idle_shard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
