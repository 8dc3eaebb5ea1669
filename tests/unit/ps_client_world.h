/* ps_client_world.h - a ps client with two shards, driven by the test: no socket, no thread, no clock. */
#ifndef TESTS_UNIT_PS_CLIENT_WORLD_H
#define TESTS_UNIT_PS_CLIENT_WORLD_H

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

enum {
    N         = 9000,
    LARGE     = 16 << 20,
    SHARDS    = 2,
    SENT_MAX  = 512,
    ITEMS_MAX = 512,
    TENSORS   = 300,
    SELF      = 901
};

/* Actions of the ps client, in order. */
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
    ps_client_piece piece[ITEMS_MAX];
} sent;

typedef struct {
    wire_tensor tensor[TENSORS];
    wire_group group[2];
    wire_model model;
    plan *plan;
    uint32_t shard[PLAN_PARTITIONS_MAX];
    ps_client *x;
    sent sent[SENT_MAX];
    int n_sent, n_completed, n_decided, n_cut;
    void *token;
    pen_status status;
    pen_error why;
    ps_client_result result;
    ps_client_outcome outcome;
    char log[640];
    uint64_t count[STAT_COUNT];
    uint32_t arrived[TENSORS]; /* by tensor: how often */
    bool hold, full;
    float param[N], grad[N], small[8], small_grad[8];
    uint64_t now;
} world;

static const uint64_t servers[SHARDS] = {501, 502};

/* ---- actions --------------------------------------------------------------------------------- */
static inline pen_status on_send(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                                 const ps_client_piece *pieces, uint32_t n)
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
    if (w->hold && n > 0) ps_client_tx_ref(w->x, s->held = pieces[0].op);
    return PEN_OK;
}

static inline void on_cut(void *user, uint32_t shard, uint32_t lane)
{
    (void)shard, (void)lane;
    ((world *)user)->n_cut++;
}

static inline bool on_store(void *user, void *to, const void *from, size_t size, uint32_t crc)
{
    (void)user;
    if (crc32c(0, from, size) != crc) return false;
    memcpy(to, from, size);
    return true;
}

static inline void on_decided(void *user, void *token, const ps_client_outcome *outcome)
{
    world *w   = user;
    w->outcome = *outcome;
    w->token   = token;
    w->n_decided++;
}

static inline void on_completed(void *user, void *token, pen_status status,
                                const ps_client_result *result, const pen_error *why)
{
    world *w  = user;
    w->token  = token;
    w->status = status;
    w->result = *result;
    if (why != NULL) w->why = *why;
    w->n_completed++;
}

static inline void on_log(void *user, int level, const char *line)
{
    assert_int_equal(level, LOG_WARNING);
    snprintf(((world *)user)->log, 640, "%s", line);
}

static inline void on_count(void *user, stat_id id, uint64_t n)
{
    ((world *)user)->count[id] += n;
}

static inline void on_arrived(void *user, uint32_t tensor)
{
    ((world *)user)->arrived[tensor]++;
}

/* ---- a world --------------------------------------------------------------------------------- */
typedef struct {
    ps_client_rule rule;
    const char *sync[2], *wire; /* of group 0, which has 'w', and 1, which has 'b' */
    bool one_group, one_tensor; /* one_tensor: only 'b', so that a shard is idle */
    bool many;                  /* TENSORS like 'b' instead; every third is in group 0 */
    bool table;                 /* 'b' is a table of 8 parts */
    bool large;                 /* 'w' has LARGE elements, which must not be touched */
} world_shape;

static inline world *world_of(const world_shape *shape)
{
    static const ps_client_actions actions = {on_send, on_cut,   on_store, on_decided, on_completed,
                                              on_log,  on_count, NULL,     on_arrived};
    static const char *const hosts[]       = {"devbox", "devbox", "devbox", "devbox"},
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
    if (shape->table) {
        w->tensor[1].ndim     = 2;
        w->tensor[1].shape[1] = 1;
        w->tensor[1].flags    = PEN_FROZEN | WIRE_TABLE;
    }
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
    w->now                      = 1000;
    const ps_client_setup setup = {.plan        = w->plan,
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
    w->x                        = ps_client_create(&setup, &actions, w, &why);
    assert_non_null(w->x);
    for (uint32_t s = 0; s < SHARDS; s++) ps_client_up(w->x, s, 0, w->now);
    return w;
}

static inline world *world_create(ps_client_rule rule)
{
    const char *sync = rule == STEP_ASYNC ? "async" : "bsp";
    return world_of(
        &(world_shape){.rule = rule, .sync = {sync, sync}, .wire = "raw", .one_group = true});
}

static inline void world_destroy(world *w)
{
    ps_client_destroy(w->x);
    plan_destroy(w->plan);
    free(w);
}

/* Lets time pass until just after the ps client is due; returns how much. */
static inline uint64_t sleep_until_due(world *w)
{
    uint64_t before = w->now;
    assert_true(ps_client_due(w->x) != UINT64_MAX);
    if (ps_client_due(w->x) > w->now) w->now = ps_client_due(w->x);
    ps_client_tick(w->x, w->now);
    ps_client_flush(w->x, w->now);
    return w->now - before;
}

static inline wire_data from_shard(const world *w, uint32_t shard, wire_kind kind, uint64_t step)
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

static inline void receipt(world *w, const sent *s, uint32_t flags)
{
    wire_data d = from_shard(w, s->shard, WIRE_RECEIPT, s->step);
    d.n         = s->n;
    d.chunk     = s->chunk;
    d.seq       = s->seq;
    d.flags     = flags;
    ps_client_receive(w->x, s->shard, &d, NULL, w->now);
}

/* Values of all chunks of a message, every element `value`; `damage` breaks the first checksum. */
static inline void values(world *w, const sent *s, float value, uint32_t flags, bool damage)
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
    ps_client_receive(w->x, s->shard, &d, body, w->now);
    buf_release(body);
}

static const wire_inputs step_inputs = {.loss_scale = 1, .weight = 1, .skip = true};

/* PREPARED for one partition whose sums are all 1; hash as the shard computes it. */
static inline void prepared(world *w, uint32_t partition, uint64_t step, bool finite, bool damage)
{
    uint32_t blocks = w->plan->partition[partition].blocks;
    buf *body       = buf_new(blocks * sizeof(double));
    for (uint32_t i = 0; i < blocks; i++) ((double *)body->data)[i] = 1;
    wire_vote r = {.partition  = partition,
                   .weight_sum = 4,
                   .finite     = finite,
                   .bad_rank   = finite ? -1 : 3,
                   .bad_chunk  = finite ? 0 : w->plan->partition[partition].chunk[0]};
    r.hash      = decision_vote_hash(step, &r, &step_inputs, body->data, blocks) + damage;
    wire_data d = from_shard(w, w->shard[partition], WIRE_PREPARED, step);
    d.n_votes   = 1;
    d.vote      = &r;
    ps_client_receive(w->x, w->shard[partition], &d, body, w->now);
    buf_release(body);
}

static inline void push_step(world *w, uint64_t step)
{
    ps_client_request *r = ps_client_step_open(w->x, step, &step_inputs, w->now);
    ps_client_add(w->x, r, PS_STEP, 0, w->grad, w->param);
    ps_client_add(w->x, r, PS_STEP, 1, w->small_grad, w->small);
    ps_client_flush(w->x, w->now);
}

static inline void one_verb(world *w, ps_client_verb verb, uint32_t tensor, uint64_t deadline_ms)
{
    ps_client_request *r = ps_client_open(w->x, w->now);
    ps_client_add(w->x, r, verb, tensor, tensor == 0 ? w->grad : w->small_grad,
                  tensor == 0 ? w->param : w->small);
    ps_client_close(w->x, r, w, deadline_ms, w->now);
    ps_client_flush(w->x, w->now);
}

/* ---- answers --------------------------------------------------------------------------------- */
static inline void answer_inquiry_of(world *w, uint64_t step, int at, const int32_t *ranks,
                                     uint32_t n)
{
    wire_data d = from_shard(w, w->sent[at].shard, WIRE_WAITING, step);
    d.n = 1, d.chunk = w->sent[at].chunk, d.text = "layer7.weight", d.missing = ranks,
    d.n_missing = n;
    ps_client_receive(w->x, w->sent[at].shard, &d, NULL, w->now);
}

#endif
