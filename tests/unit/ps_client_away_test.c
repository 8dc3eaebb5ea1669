/* ps_client_away_test.c - gradients that a shard has received are the program's again, and values that stay on the
 * shards: the ps client without socket, thread or clock, with one shard. */
#include "common/base/crc.h"
#include "common/base/log.h"
#include "worker/ps/ps_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 9000, SMALL = 8, SENT_MAX = 64, ITEMS_MAX = 16, SELF = 901, SERVER = 501 };

typedef struct {
    wire_kind kind;
    uint32_t n, n_partitions;
    uint64_t step;
    uint32_t chunk[ITEMS_MAX];
    bool has_decision;
    void *held;
} sent;

typedef struct {
    wire_tensor tensor[2];
    wire_group group;
    wire_model model;
    plan *plan;
    uint32_t shard[PLAN_PARTITIONS_MAX];
    ps_client *x;
    sent sent[SENT_MAX];
    int n_sent, n_completed, n_decided, n_returned[2];
    pen_status status;
    pen_error why;
    bool hold;
    float param[N], grad[N], small[SMALL], small_grad[SMALL];
    uint64_t now;
} world;

static const uint64_t servers[]      = {SERVER};
static const wire_inputs step_inputs = {.loss_scale = 1, .weight = 1, .skip = true};

static pen_status on_send(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                          const ps_client_piece *pieces, uint32_t n)
{
    world *w = user;
    assert_int_equal(shard + lane, 0);
    assert_true(w->n_sent < SENT_MAX && d->n <= ITEMS_MAX);
    for (uint32_t i = 0; i < n; i++)
        assert_non_null(pieces[i].data); /* nothing that was returned */
    sent *s = &w->sent[w->n_sent++];
    *s      = (sent){.kind         = d->kind,
                     .n            = d->n,
                     .n_partitions = d->n_partitions,
                     .step         = d->step,
                     .has_decision = d->has_decision};
    if (d->n > 0) memcpy(s->chunk, d->chunk, d->n * sizeof *d->chunk);
    if (w->hold && n > 0) ps_client_tx_ref(w->x, s->held = pieces[0].op);
    return PEN_OK;
}

static void on_cut(void *user, uint32_t shard, uint32_t lane)
{
    (void)user, (void)shard, (void)lane;
}

static bool on_store(void *user, void *to, const void *from, size_t size, uint32_t crc)
{
    (void)user;
    if (crc32c(0, from, size) != crc) return false;
    memcpy(to, from, size);
    return true;
}

static void on_decided(void *user, void *token, const ps_client_outcome *outcome)
{
    (void)token;
    assert_int_equal(outcome->outcome, PEN_APPLIED);
    ((world *)user)->n_decided++;
}

static void on_completed(void *user, void *token, pen_status status, const ps_client_result *result,
                         const pen_error *why)
{
    world *w = user;
    (void)token, (void)result;
    w->status = status;
    if (why != NULL) w->why = *why;
    w->n_completed++;
}

static void on_log(void *user, int level, const char *line)
{
    (void)user, (void)line;
    assert_true(level >= LOG_WARNING);
}

static void on_count(void *user, stat_id id, uint64_t n)
{
    (void)user, (void)id, (void)n;
}

static void on_returned(void *user, uint32_t tensor)
{
    ((world *)user)->n_returned[tensor]++;
}

static world *world_create(bool gives_back)
{
    static const ps_client_actions actions = {on_send,      on_cut, on_store, on_decided,
                                              on_completed, on_log, on_count, on_returned};
    static const char *const hosts[] = {"devbox", "devbox"}, *const names[] = {"server 0 (devbox)"};
    pen_error why;
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->group     = (wire_group){"default", "sgd lr=1", "bsp", "raw", "constant"};
    w->tensor[0] = (wire_tensor){
        .name = "w", .dtype = PEN_F32, .grad_dtype = PEN_F32, .ndim = 1, .shape = {N}, .init = ""};
    w->tensor[1]          = w->tensor[0];
    w->tensor[1].name     = "b";
    w->tensor[1].shape[0] = SMALL;
    w->model = (wire_model){.n_tensors = 2, .n_groups = 1, .tensor = w->tensor, .group = &w->group};
    assert_int_equal(plan_create(&w->model, &w->plan, &why), PEN_OK);
    w->now                      = 1000;
    const ps_client_setup setup = {.plan        = w->plan,
                                   .model       = &w->model,
                                   .shard       = w->shard,
                                   .rule        = STEP_TWO_PHASE,
                                   .n_shards    = 1,
                                   .lanes       = 1,
                                   .term        = 7,
                                   .epoch       = 1,
                                   .from        = SELF,
                                   .to          = servers,
                                   .n_workers   = 2,
                                   .worker_host = hosts,
                                   .server      = names,
                                   .warn_ms     = 30000,
                                   .retry       = retry_policy_make(1000, 1),
                                   .gives_back  = gives_back};
    w->x                        = ps_client_create(&setup, &actions, w, &why);
    assert_non_null(w->x);
    ps_client_up(w->x, 0, 0, w->now);
    return w;
}

static void world_destroy(world *w)
{
    ps_client_destroy(w->x);
    plan_destroy(w->plan);
    free(w);
}

static void sleep_until_due(world *w)
{
    assert_true(ps_client_due(w->x) != UINT64_MAX);
    if (ps_client_due(w->x) > w->now) w->now = ps_client_due(w->x);
    ps_client_tick(w->x, w->now);
    ps_client_flush(w->x, w->now);
}

/* ---- what the shard sends -------------------------------------------------------------------- */
static wire_data from_shard(wire_kind kind, uint64_t step)
{
    return (wire_data){
        .kind = kind, .term = 7, .epoch = 1, .from = SERVER, .to = SELF, .step = step, .text = ""};
}

static void receipt(world *w, const sent *s)
{
    wire_data d = from_shard(WIRE_RECEIPT, s->step);
    d.n         = s->n;
    d.chunk     = s->chunk;
    ps_client_receive(w->x, 0, &d, NULL, w->now);
}

static void receive_all(world *w, int from)
{
    for (int i = from, n = w->n_sent; i < n; i++)
        if (w->sent[i].kind == WIRE_PUSH) receipt(w, &w->sent[i]);
}

static void prepared(world *w, uint64_t step)
{
    for (uint32_t p = 0; p < w->plan->n_partitions; p++) {
        const uint32_t blocks = w->plan->partition[p].blocks;
        buf *body             = buf_new(blocks * sizeof(double));
        for (uint32_t i = 0; i < blocks; i++) ((double *)body->data)[i] = 1;
        wire_vote r = {.partition = p, .weight_sum = 2, .finite = true, .bad_rank = -1};
        r.hash      = decision_vote_hash(step, &r, &step_inputs, body->data, blocks);
        wire_data d = from_shard(WIRE_PREPARED, step);
        d.n_votes   = 1;
        d.vote      = &r;
        ps_client_receive(w->x, 0, &d, body, w->now);
        buf_release(body);
    }
}

/* Every element is `value`. */
static void values(world *w, const sent *s, float value)
{
    uint32_t crc[ITEMS_MAX];
    size_t elements = 0;
    for (uint32_t i = 0; i < s->n; i++) elements += w->plan->chunk[s->chunk[i]].count;
    buf *body = buf_new(elements * sizeof(float));
    float *at = body->data;
    for (size_t i = 0; i < elements; i++) at[i] = value;
    for (uint32_t i = 0; i < s->n; i++) {
        const size_t count = w->plan->chunk[s->chunk[i]].count;
        crc[i]             = crc32c(0, at, count * sizeof(float));
        at += count;
    }
    wire_data d = from_shard(WIRE_VALUES, s->step);
    d.n = s->n, d.chunk = s->chunk, d.crc = crc;
    ps_client_receive(w->x, 0, &d, body, w->now);
    buf_release(body);
}

/* ---- what the program does ------------------------------------------------------------------- */
/* 'w' is not pulled, 'b' comes with the step. */
static void push_step(world *w, uint64_t step)
{
    ps_client_request *r = ps_client_step_open(w->x, step, &step_inputs, w->now);
    ps_client_add(w->x, r, PS_STEP, 0, w->grad, NULL);
    ps_client_add(w->x, r, PS_STEP, 1, w->small_grad, w->small);
    ps_client_flush(w->x, w->now);
}

static void close_step(world *w)
{
    ps_client_step_close(w->x, w, 0, w->now);
    ps_client_flush(w->x, w->now);
}

static void fetch(world *w)
{
    ps_client_request *r = ps_client_open(w->x, w->now);
    ps_client_add(w->x, r, PS_FETCH, 0, NULL, w->param);
    ps_client_close(w->x, r, w, 0, w->now);
    ps_client_flush(w->x, w->now);
}

/* Values of 'b' arrive; none of 'w' were requested. */
static void end_step(world *w, uint64_t step)
{
    push_step(w, step);
    receive_all(w, 0);
    close_step(w);
    const int before = w->n_sent;
    prepared(w, step);
    ps_client_flush(w->x, w->now);
    const int completed = w->n_completed;
    for (int i = before; i < w->n_sent; i++)
        if (w->sent[i].kind == WIRE_PULL && w->sent[i].n > 0) values(w, &w->sent[i], 3);
    assert_int_equal(w->n_completed, completed + 1);
    assert_int_equal(w->status, PEN_OK);
}

static int count_of(const world *w, int from, wire_kind kind, bool is_empty)
{
    int n = 0;
    for (int i = from; i < w->n_sent; i++)
        n += w->sent[i].kind == kind && (w->sent[i].n == 0) == is_empty;
    return n;
}

/* ---- gradients ------------------------------------------------------------------------------- */
static void test_ps_client_returns_a_gradient_when_the_shard_has_all_of_it(void **state)
{
    (void)state;
    world *w = world_create(true);
    push_step(w, 0);
    const int pushes = w->n_sent;
    for (int i = 0; i < pushes; i++) {
        assert_int_equal(w->n_returned[0] + w->n_returned[1] < 2, 1);
        receipt(w, &w->sent[i]);
        receipt(w, &w->sent[i]); /* a repeat changes nothing */
    }
    assert_int_equal(w->n_returned[0], 1);
    assert_int_equal(w->n_returned[1], 1);
    /* From here on it is asked about: on_send() would get a piece without bytes. */
    close_step(w);
    for (int i = 0; i < 4; i++) sleep_until_due(w);
    ps_client_down(w->x, 0, 0);
    ps_client_up(w->x, 0, 0, w->now);
    for (int i = 0; i < 4; i++) sleep_until_due(w);
    assert_int_equal(count_of(w, pushes, WIRE_PUSH, false), 0);
    assert_true(count_of(w, pushes, WIRE_INQUIRE, false) > 1);
    assert_int_equal(w->n_returned[0], 1);
    world_destroy(w);
}

static void test_ps_client_returns_a_gradient_only_after_the_transport_released_it(void **state)
{
    (void)state;
    world *w = world_create(true);
    w->hold  = true;
    push_step(w, 0);
    receive_all(w, 0);
    assert_int_equal(w->n_returned[0], 0);
    for (int i = 0; i < w->n_sent; i++) ps_client_release(w->x, w->sent[i].held);
    assert_int_equal(w->n_returned[0], 1);
    assert_int_equal(w->n_returned[1], 1);
    world_destroy(w);
}

static void test_ps_client_keeps_gradients_that_may_be_requested_again(void **state)
{
    (void)state;
    world *w = world_create(false);
    end_step(w, 0);
    assert_int_equal(w->n_returned[0] + w->n_returned[1], 0);
    push_step(w, 1);
    const int pushes = w->n_sent;
    ps_client_down(w->x, 0, 0);
    ps_client_up(w->x, 0, 0, w->now);
    ps_client_flush(w->x, w->now);
    assert_true(count_of(w, pushes, WIRE_PUSH, false) > 0);
    world_destroy(w);
}

static void test_ps_client_fails_the_step_and_names_the_shard_that_lost_a_gradient(void **state)
{
    (void)state;
    world *w = world_create(true);
    push_step(w, 0);
    receive_all(w, 0);
    close_step(w);
    const int32_t missing[] = {0};
    wire_data d             = from_shard(WIRE_WAITING, 0);
    d.n = 1, d.chunk = (const uint32_t[]){0}, d.text = "w", d.n_missing = 1, d.missing = missing;
    ps_client_receive(w->x, 0, &d, NULL, w->now);
    assert_int_equal(w->n_completed, 1);
    assert_int_equal(w->status, PEN_PEER_LOST);
    assert_string_equal(
        w->why.text,
        "server 0 (devbox) has lost the gradient of 'w', which this rank does not keep "
        "(mode=zero2 and zero3); go on from a snapshot, or use mode=zero1");
    world_destroy(w);
}

/* ---- values ---------------------------------------------------------------------------------- */
static void
test_ps_client_step_without_values_ends_with_the_decision_and_sends_it_to_the_shard(void **state)
{
    (void)state;
    world *w = world_create(true);
    end_step(w, 0);
    assert_int_equal(w->n_decided, 1);
    assert_true(w->small[0] == 3); /* 'b' came with the step */
    assert_true(w->param[0] == 0); /* and nothing else */
    assert_int_equal(count_of(w, 0, WIRE_PULL, true), 1);
    for (int i = 0; i < w->n_sent; i++) {
        const sent *s = &w->sent[i];
        if (s->kind != WIRE_PULL || s->n > 0) continue;
        assert_true(s->has_decision);
        assert_int_equal(s->step, 0);
        assert_int_equal(s->n_partitions, w->plan->n_partitions);
    }
    world_destroy(w);
}

static void test_ps_client_fetch_requests_the_values_of_the_newest_decided_step(void **state)
{
    (void)state;
    world *w = world_create(true);
    fetch(w); /* before the first step: a plain pull */
    const sent first = w->sent[0];
    assert_int_equal(first.kind, WIRE_PULL);
    assert_false(first.has_decision);
    for (int i = 0; i < w->n_sent; i++) values(w, &w->sent[i], 1);
    assert_true(w->param[0] == 1 && w->param[N - 1] == 1);
    end_step(w, 0);
    int at = w->n_sent;
    for (int again = 0; again < 2; again++) { /* any number of times, also in the next step */
        fetch(w);
        assert_int_equal(w->sent[at].kind, WIRE_PULL);
        assert_true(w->sent[at].has_decision);
        assert_int_equal(w->sent[at].step, 0);
        sent stale = w->sent[at];
        stale.step = 77; /* of another step: ignored */
        values(w, &stale, 9);
        assert_true(w->param[0] == 1 + (float)again);
        for (int n = w->n_sent; at < n; at++) values(w, &w->sent[at], 2 + (float)again);
        assert_true(w->param[0] == 2 + (float)again && w->param[N - 1] == 2 + (float)again);
    }
    world_destroy(w);
}

static void test_ps_client_sends_a_decision_again_if_the_shard_may_have_lost_it(void **state)
{
    (void)state;
    world *w = world_create(true);
    end_step(w, 0);
    int at = w->n_sent;
    push_step(w, 1);
    assert_int_equal(count_of(w, at, WIRE_PULL, true), 0);
    wire_data d = from_shard(WIRE_REFUSED, 1); /* "not yet" */
    d.status = PEN_AGAIN, d.n = w->sent[at].n, d.chunk = w->sent[at].chunk;
    ps_client_receive(w->x, 0, &d, NULL, w->now);
    at = w->n_sent;
    ps_client_flush(w->x, w->now);
    assert_int_equal(count_of(w, at, WIRE_PULL, true), 1);
    at = w->n_sent;
    ps_client_down(w->x, 0, 0);
    ps_client_up(w->x, 0, 0, w->now);
    ps_client_flush(w->x, w->now);
    assert_int_equal(count_of(w, at, WIRE_PULL, true), 1);
    assert_int_equal(w->sent[at].kind, WIRE_PULL); /* before the pushes that need it */
    world_destroy(w);
}

static void test_ps_client_late_decision_has_no_effect(void **state)
{
    (void)state;
    world *w = world_create(true);
    end_step(w, 0);
    push_step(w, 1);
    wire_data d = from_shard(WIRE_REFUSED, 0);
    d.status = PEN_WRONG_STATE, d.text = "that step was decided and is over";
    ps_client_receive(w->x, 0, &d, NULL, w->now);
    assert_int_equal(w->n_completed, 1);
    d.status = PEN_MISMATCH; /* a different case: ranks that disagree */
    ps_client_receive(w->x, 0, &d, NULL, w->now);
    close_step(w);
    assert_int_equal(w->n_completed, 2);
    assert_int_equal(w->status, PEN_MISMATCH);
    world_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ps_client_returns_a_gradient_when_the_shard_has_all_of_it),
        cmocka_unit_test(test_ps_client_returns_a_gradient_only_after_the_transport_released_it),
        cmocka_unit_test(test_ps_client_keeps_gradients_that_may_be_requested_again),
        cmocka_unit_test(test_ps_client_fails_the_step_and_names_the_shard_that_lost_a_gradient),
        cmocka_unit_test(
            test_ps_client_step_without_values_ends_with_the_decision_and_sends_it_to_the_shard),
        cmocka_unit_test(test_ps_client_fetch_requests_the_values_of_the_newest_decided_step),
        cmocka_unit_test(test_ps_client_sends_a_decision_again_if_the_shard_may_have_lost_it),
        cmocka_unit_test(test_ps_client_late_decision_has_no_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
