/* shard_rig.c - drives shards in tests. */
#include "tests/support/shard_rig.h"

#include "common/base/crc.h"
#include "common/compute/simd/simd.h"
#include "server/shard/shard_test.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- a shard's environment ------------------------------------------------------------------- */
static void keep_sent(void *user, uint32_t peer, const wire_data *d, buf *payload)
{
    const rig_outside *o = user;
    rig *r               = o->rig;
    if (r->link != NULL && r->link(r->user, o->shard, d, payload)) return;
    if (r->n_sent == r->sent_capacity) {
        r->sent_capacity = r->sent_capacity == 0 ? 64 : r->sent_capacity * 2;
        r->sent          = realloc(r->sent, r->sent_capacity * sizeof *r->sent);
        assert(r->sent != NULL);
    }
    rig_message *m = &r->sent[r->n_sent++];
    *m = (rig_message){.shard = o->shard, .peer = peer, .d = *d, .payload = buf_acquire(payload)};
    assert(d->payload_bytes == (payload != NULL ? payload->size : 0));
    m->lists = malloc(wire_data_copy_lists(&m->d, NULL));
    assert(m->lists != NULL);
    (void)wire_data_copy_lists(&m->d, m->lists);
}

static void keep_cut(void *user, shard_capture *capture)
{
    const rig_outside *o = user;
    shard_capture_destroy(o->rig->capture[o->shard]);
    o->rig->capture[o->shard] = capture;
    o->rig->cuts++;
}

static void keep_report(void *user, const pen_error *error)
{
    rig *r    = ((const rig_outside *)user)->rig;
    r->report = *error;
    r->reports++;
}

void rig_forget_sent(rig *r)
{
    for (size_t i = 0; i < r->n_sent; i++) {
        free(r->sent[i].lists);
        buf_release(r->sent[i].payload);
    }
    r->n_sent = 0;
}

/* ---- life ------------------------------------------------------------------------------------ */
uint64_t rig_incarnation(int32_t rank)
{
    return 100 + (uint64_t)rank;
}
uint32_t rig_peer(int32_t rank)
{
    return 10 + (uint32_t)rank;
}
uint32_t rig_shard_of(const rig *r, uint32_t chunk)
{
    return r->shard_of[r->plan->chunk[chunk].partition];
}

shard_outside rig_outside_of(rig_outside *o)
{
    return (shard_outside){
        .user = o, .send = keep_sent, .snapshot = keep_cut, .report = keep_report};
}

static void add_shard(rig *r, uint32_t index, const rig_options *o)
{
    r->outside[index]           = (rig_outside){r, index};
    r->to[index]                = RIG_SERVER + index;
    const shard_options options = {.park_bytes_max =
                                       o->park_bytes_max != 0 ? o->park_bytes_max : 64 << 20,
                                   .stats     = &r->stats,
                                   .admission = o->admission,
                                   .offload   = o->offload};
    r->offload_of_copies        = o->offload_of_copies;
    shard_outside out           = rig_outside_of(&r->outside[index]);
    if (o->outside != NULL) o->outside(o->user, &out);
    const shard_setup setup = {.model       = &r->model,
                               .plan        = r->plan,
                               .shard_of    = r->shard_of,
                               .self        = index,
                               .world_size  = r->world_size,
                               .incarnation = RIG_SERVER + index,
                               .first_step  = o->first_step,
                               .applied     = o->applied};
    wire_member members[RIG_RANKS_MAX];
    for (uint32_t i = 0; i < r->world_size; i++)
        members[i] = (wire_member){.role        = PEN_WORKER,
                                   .rank        = (int32_t)i,
                                   .node        = o->node != NULL ? o->node[i] : 0,
                                   .incarnation = rig_incarnation((int32_t)i)};

    pen_error why;
    r->shard[index] = shard_create(&options, &out, &why);
    assert(r->shard[index] != NULL);
    const pen_status status = shard_configure(r->shard[index], &setup, &why);
    assert(status == PEN_OK);
    shard_epoch(r->shard[index], RIG_TERM, RIG_EPOCH, members, r->world_size);
}

rig *rig_create(const wire_model *model, const rig_options *o)
{
    rig *r = calloc(1, sizeof *r);
    assert(r != NULL && o->n_shards <= RIG_SHARDS_MAX && o->world_size <= RIG_RANKS_MAX);
    r->model      = *model;
    r->epoch      = RIG_EPOCH;
    r->n_shards   = o->n_shards;
    r->world_size = o->world_size;
    pen_error why;
    const pen_status status = plan_create(model, &r->plan, &why);
    assert(status == PEN_OK);
    plan_place(r->plan, o->n_shards, r->shard_of);

    static double rates[16];
    for (uint32_t g = 0; g < model->n_groups; g++) rates[g] = 0.125 / (g + 1);
    r->inputs = (wire_inputs){
        .loss_scale = 1, .weight = 1, .skip = true, .n_rates = model->n_groups, .rate = rates};
    for (uint32_t i = 0; i < o->n_shards; i++) add_shard(r, i, o);
    return r;
}

void rig_destroy(rig *r)
{
    rig_forget_sent(r);
    for (uint32_t i = 0; i < r->n_shards; i++) {
        shard_destroy(r->shard[i]);
        shard_capture_destroy(r->capture[i]);
    }
    plan_destroy(r->plan);
    free(r->sent);
    free(r);
}

/* ---- numbers --------------------------------------------------------------------------------- */
static float mixed(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    return (float)((double)(x >> 11) / (double)(1ull << 53) * 2 - 1);
}

float rig_value(uint32_t tensor, uint64_t i)
{
    return mixed(((uint64_t)tensor << 40) + i + 1);
}

float rig_noise(int32_t rank, uint64_t step, uint32_t tensor, uint64_t i)
{
    return mixed(((uint64_t)rank + 1) << 58 ^ (step + 1) << 48 ^ (uint64_t)tensor << 40 ^ (i + 1));
}

static pen_dtype push_dtype(const rig *r, uint32_t tensor)
{
    const wire_tensor *t = &r->model.tensor[tensor];
    const char *wire     = r->model.group[t->group].wire;
    const pen_dtype own  = t->grad_dtype != PEN_DTYPE_DEFAULT ? t->grad_dtype : t->dtype;
    if (own != PEN_F32 || wire == NULL) return own;
    return strcmp(wire, "bf16") == 0 ? PEN_BF16 : strcmp(wire, "f16") == 0 ? PEN_F16 : own;
}

static buf *encoded(const float *values, pen_dtype dtype, size_t n)
{
    buf *b = buf_new(n * plan_dtype_bytes(dtype));
    assert(b != NULL);
    simd()->encode(b->data, values, dtype, n);
    return b;
}

buf *rig_payload(const rig *r, uint32_t chunk, int32_t rank, uint64_t step, rig_gradient g)
{
    const plan_chunk *c = &r->plan->chunk[chunk];
    float *values       = malloc(c->count * sizeof *values);
    assert(values != NULL);
    for (uint64_t i = 0; i < c->count; i++)
        values[i] =
            g != NULL ? g(rank, step, c->tensor, c->start + i) : rig_value(c->tensor, c->start + i);
    buf *b = encoded(
        values, g != NULL ? push_dtype(r, c->tensor) : r->model.tensor[c->tensor].dtype, c->count);
    free(values);
    return b;
}

/* ---- messages -------------------------------------------------------------------------------- */
void rig_deliver(rig *r, uint32_t to, int32_t rank, wire_data *d, buf *payload)
{
    if (d->from == 0) d->from = rig_incarnation(rank);
    if (d->to == 0) d->to = r->to[to];
    if (d->epoch == 0) d->epoch = r->epoch;
    d->term          = RIG_TERM;
    d->rank          = rank;
    d->payload_bytes = payload != NULL ? payload->size : 0;
    d->text          = "";
    shard_receive(r->shard[to], rig_peer(rank), d, payload);
}

void rig_push(rig *r, int32_t rank, uint64_t step, uint32_t chunk, uint32_t flags, rig_gradient g)
{
    buf *payload = rig_payload(r, chunk, rank, step, g);
    uint32_t crc = crc32c(0, payload->data, payload->size);
    wire_data d  = {.kind       = WIRE_PUSH,
                    .step       = step,
                    .flags      = flags,
                    .n          = 1,
                    .chunk      = &chunk,
                    .crc        = &crc,
                    .has_inputs = true,
                    .inputs     = r->inputs};
    rig_deliver(r, rig_shard_of(r, chunk), rank, &d, payload);
    buf_release(payload);
}

static bool is_trained(const rig *r, uint32_t chunk)
{
    return r->plan->chunk[chunk].trained;
}

void rig_push_all(rig *r, int32_t rank, uint64_t step, uint32_t flags, rig_gradient g)
{
    for (uint32_t c = 0; c < r->plan->n_chunks; c++)
        if (is_trained(r, c)) rig_push(r, rank, step, c, flags, g);
}

void rig_init(rig *r)
{
    for (uint32_t c = 0; c < r->plan->n_chunks; c++) {
        buf *payload = rig_payload(r, c, 0, 0, NULL);
        uint32_t crc = crc32c(0, payload->data, payload->size);
        wire_data d  = {.kind = WIRE_INIT, .n = 1, .chunk = &c, .crc = &crc};
        rig_deliver(r, rig_shard_of(r, c), 0, &d, payload);
        buf_release(payload);
    }
    rig_flush(r);
    rig_forget_sent(r);
}

void rig_flush(rig *r)
{
    for (uint32_t i = 0; i < r->n_shards; i++) shard_flush(r->shard[i]);
    if (r->carry != NULL) r->carry(r->user);
}

/* ---- deciding -------------------------------------------------------------------------------- */
static void take_records(rig *r, const rig_message *m, rig_decision *out, const double **sums)
{
    const double *at = m->payload->data;
    for (uint32_t i = 0; i < m->d.n_votes; i++) {
        const wire_vote *vote      = &m->d.vote[i];
        out->vote[vote->partition] = *vote;
        sums[vote->partition]      = at;
        at += r->plan->partition[vote->partition].blocks;
    }
}

bool rig_decide(rig *r, int32_t rank, uint64_t step, int64_t applied, rig_decision *out)
{
    const double *sums[PLAN_PARTITIONS_MAX] = {NULL};
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < r->n_sent; i++) {
        const rig_message *m = &r->sent[i];
        if (m->d.kind == WIRE_PREPARED && m->d.rank == rank && m->d.step == step)
            take_records(r, m, out, sums);
    }
    for (uint32_t p = 0; p < r->plan->n_partitions; p++)
        if (r->plan->partition[p].n_decided > 0 && sums[p] == NULL) return false;
    decision_make(r->plan, out->vote, sums, &r->inputs, applied, &out->decision, &out->bad_chunk,
                  &out->bad_rank);
    return true;
}

static void pull_from(rig *r, uint32_t from, int32_t rank, uint64_t step,
                      const rig_decision *decision)
{
    uint32_t *chunk = malloc(r->plan->n_chunks * sizeof *chunk), n = 0;
    uint32_t partition[PLAN_PARTITIONS_MAX], n_partitions          = 0;
    uint64_t hash[PLAN_PARTITIONS_MAX];
    assert(chunk != NULL);
    for (uint32_t c = 0; c < r->plan->n_chunks; c++)
        if (rig_shard_of(r, c) == from) chunk[n++] = c;
    for (uint32_t p = 0; p < r->plan->n_partitions; p++) {
        if (r->shard_of[p] != from || r->plan->partition[p].n_decided == 0) continue;
        partition[n_partitions] = p;
        hash[n_partitions++]    = decision->vote[p].hash;
    }
    wire_data d = {.kind         = WIRE_PULL,
                   .step         = step,
                   .n            = n,
                   .chunk        = chunk,
                   .n_partitions = n_partitions,
                   .partition    = partition,
                   .vote_hash    = hash,
                   .has_decision = true,
                   .decision     = decision->decision};
    rig_deliver(r, from, rank, &d, NULL);
    free(chunk);
}

void rig_pull(rig *r, int32_t rank, uint64_t step, const rig_decision *decision)
{
    for (uint32_t i = 0; i < r->n_shards; i++) pull_from(r, i, rank, step, decision);
}

void rig_step(rig *r, uint64_t step, int64_t applied, rig_gradient g, rig_decision *out)
{
    rig_forget_sent(r);
    for (uint32_t rank = 0; rank < r->world_size; rank++)
        if (!r->is_absent[rank]) rig_push_all(r, (int32_t)rank, step, 0, g);
    rig_flush(r);
    const bool decided = rig_decide(r, 0, step, applied, out);
    assert(decided);
    for (uint32_t rank = 0; rank < r->world_size; rank++)
        if (!r->is_absent[rank]) rig_pull(r, (int32_t)rank, step, out);
    rig_flush(r);
}

/* ---- inspecting ------------------------------------------------------------------------------ */
static bool is_about(const rig_message *m, uint32_t chunk)
{
    if (chunk == UINT32_MAX) return true;
    for (uint32_t i = 0; i < m->d.n; i++)
        if (m->d.chunk[i] == chunk) return true;
    return false;
}

const rig_message *rig_find(const rig *r, wire_kind kind, int32_t rank, uint32_t chunk)
{
    for (size_t i = r->n_sent; i-- > 0;) {
        const rig_message *m = &r->sent[i];
        if (m->d.kind == kind && m->d.rank == rank && is_about(m, chunk)) return m;
    }
    return NULL;
}

uint32_t rig_count_sent(const rig *r, wire_kind kind, int32_t rank)
{
    uint32_t n = 0;
    for (size_t i = 0; i < r->n_sent; i++)
        n += r->sent[i].d.kind == kind && r->sent[i].d.rank == rank;
    return n;
}

float rig_param(const rig *r, uint32_t tensor, uint64_t i)
{
    for (uint32_t c = r->plan->first_chunk[tensor]; c < r->plan->first_chunk[tensor + 1]; c++) {
        const plan_chunk *k = &r->plan->chunk[c];
        if (i >= k->start && i < k->start + k->count)
            return shard_values(r->shard[rig_shard_of(r, c)], c, NULL)[i - k->start];
    }
    assert(false);
    return 0;
}

uint32_t rig_params_crc(const rig *r)
{
    uint32_t crc = 0;
    for (uint32_t c = 0; c < r->plan->n_chunks; c++)
        crc = crc32c(crc, shard_values(r->shard[rig_shard_of(r, c)], c, NULL),
                     r->plan->chunk[c].count * sizeof(float));
    return crc;
}

uint32_t rig_slots_crc(const rig *r)
{
    uint32_t crc = 0;
    for (uint32_t c = 0; c < r->plan->n_chunks; c++) {
        for (int slot = 0; slot < OPTIM_SLOTS_MAX; slot++) {
            const float *values = shard_slot(r->shard[rig_shard_of(r, c)], c, slot);
            if (values != NULL) crc = crc32c(crc, values, r->plan->chunk[c].count * sizeof(float));
        }
    }
    return crc;
}
