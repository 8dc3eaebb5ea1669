/* shard_push.c - messages with a payload: gradients, and rank 0's first values. */
#include "server/shard/shard_state.h"

#include "common/base/crc.h"
#include "common/compute/simd/simd.h"

#include <inttypes.h>
#include <math.h>

/* ---- validation ------------------------------------------------------------------------------ */
/* All chunks belong to this shard, each has a checksum, and the payload has their total size. */
static pen_status check_payload(const shard *s, const wire_data *d, const buf *payload,
                                bool is_push, pen_error *why)
{
    if (d->n == 0 || d->crc == NULL || payload == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT, "%s lacks chunks, checksums or payload",
                       wire_kind_name((int)d->kind));
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        const shard_chunk *k = shard_find(s, d->chunk[i]);
        if (k == NULL)
            return why_set(why, PEN_INVALID_ARGUMENT, "chunk %u is not on this shard", d->chunk[i]);
        if (is_push && shard_is_part(k))
            return why_set(why, PEN_INVALID_ARGUMENT, "chunk %u is a part of a table", d->chunk[i]);
        bytes +=
            k->count * plan_dtype_bytes(is_push ? shard_push_dtype(s, k, &d->inputs) : k->dtype);
    }
    if (bytes != payload->size)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "the payload has %zu bytes, its %u chunks have %" PRIu64, payload->size,
                       d->n, bytes);
    return PEN_OK;
}

pen_status shard_check_inputs(const shard *s, const wire_data *d, pen_error *why)
{
    const wire_inputs *in = &d->inputs;
    if (!d->has_inputs || in->n_rates != s->setup.model->n_groups)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "a push has %u learning rates for %u parameter groups",
                       d->has_inputs ? in->n_rates : 0, s->setup.model->n_groups);
    if (!(in->loss_scale > 0) || !isfinite(in->loss_scale) || !(in->weight >= 0) ||
        !isfinite(in->weight))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "a push with weight %g and loss scale %g cannot be averaged", in->weight,
                       in->loss_scale);
    for (uint32_t i = 0; i < in->scalars.n; i++)
        if (in->scalars.ranks[i] > s->setup.world_size)
            return why_set(why, PEN_INVALID_ARGUMENT, "a push has scalars of %u ranks, expected %u",
                           in->scalars.ranks[i], s->setup.world_size);
    return PEN_OK;
}

bool shard_is_intact(shard *s, uint32_t peer, const wire_data *d, uint32_t i, const uint8_t *data,
                     size_t size)
{
    if (crc32c(0, data, size) == d->crc[i]) return true;
    stat_add(s->options.stats, STAT_CORRUPT, 1);
    shard_refuse_chunk(s, peer, d, d->chunk[i], shard_seq(d, i), PEN_CORRUPT,
                       "the checksum does not match");
    return false;
}

/* ---- PUSH ------------------------------------------------------------------------------------ */
static bool has_decided_push(const shard *s, const wire_data *d)
{
    if (s->is_eager || d->flags & WIRE_WANT_VALUES) return false;
    for (uint32_t i = 0; i < d->n; i++)
        if (shard_find(s, d->chunk[i])->decided) return true;
    return false;
}

/* The core's refusals for disagreement also end the job. */
void shard_report_mismatch(shard *s, shard_core_actions actions, const wire_data *d)
{
    for (uint32_t i = 0; i < actions.n; i++) {
        if (actions.at[i].verb != CORE_REFUSE || actions.at[i].status != PEN_MISMATCH) continue;
        pen_error error;
        why_set(&error, PEN_MISMATCH, "%s", actions.at[i].reason);
        why_culprit(&error, PEN_WORKER, d->rank, (int64_t)d->step,
                    actions.at[i].index < s->n_chunks
                        ? shard_tensor_name(s, &s->chunk[actions.at[i].index])
                        : NULL);
        s->outside.report(s->outside.user, &error);
        return;
    }
}

/* Reports a refused push to its rank; if ranks wait for each other, ends the job with one sentence for all. */
bool shard_is_admitted(shard *s, const shard_arrival *in, const shard_chunk *k, const void *data,
                       uint64_t count)
{
    const wire_data *d         = in->d;
    const uint64_t seq         = in->seq;
    const admission_gradient g = {.rank       = d->rank,
                                  .step       = seq,
                                  .tensor     = shard_tensor_name(s, k),
                                  .data       = data,
                                  .count      = count,
                                  .dtype      = shard_push_dtype(s, k, &d->inputs),
                                  .loss_scale = d->inputs.loss_scale};
    pen_error why;
    if (d->inputs.weight == 0) return true; /* a rank without data: bytes are meaningless */
    if (admission_check(&s->options.admission, &g, &why) == PEN_OK) return true;
    stat_add(s->options.stats, STAT_REFUSED, 1);
    why_culprit(&why, PEN_WORKER, d->rank, (int64_t)seq, g.tensor);
    if (k->decided || (k->table != NULL && shard_core_is_round(s->core, k->index)))
        s->outside.report(s->outside.user, &why);
    else
        shard_refuse_chunk(s, in->peer, d, k->number, seq, why.status, why.text);
    return false;
}

static bool push_chunk(shard *s, const shard_arrival *in, uint32_t i, const shard_chunk *k)
{
    const wire_data *d = in->d;
    if (!shard_is_intact(s, in->peer, d, i, in->data, in->size) ||
        !shard_is_admitted(s, in, k, in->data, k->count))
        return false;
    const shard_core_push_event e = {
        .rank        = d->rank,
        .peer        = in->peer,
        .chunk       = k->index,
        .seq         = in->seq,
        .want_values = (d->flags & WIRE_WANT_VALUES) != 0,
        .snapshot =
            d->inputs.snapshot && (shard_core_is_first(s->core, d->rank) || d->inputs.is_node_sum),
        .inputs = &d->inputs};
    const shard_core_actions actions = shard_core_push(s->core, &e);
    shard_act(s, actions, in);
    shard_report_mismatch(s, actions, d);
    return true;
}

/* Notes the first push of a step: the others are late from then on. */
static void note_first(shard *s, const wire_data *d)
{
    if (s->watch.begun_ns != 0 && d->step <= s->watch.step) return;
    s->watch.step     = d->step;
    s->watch.begun_ns = stat_begin(s->options.stats);
}

void shard_receive_push(shard *s, uint32_t peer, const wire_data *d, buf *payload)
{
    note_first(s, d);
    shard_states_take(s, d);
    if (d->n == 0 && shard_is_idle(s)) { /* see shard_is_idle() */
        if (shard_core_is_first(s->core, d->rank) && d->has_inputs && d->inputs.snapshot)
            shard_capture_idle(s, (int64_t)d->step + 1);
        wire_data receipt = {.kind = WIRE_RECEIPT, .step = d->step};
        shard_send(s, peer, d->rank, &receipt, NULL);
        return;
    }
    pen_error why;
    if (check_payload(s, d, payload, true, &why) != PEN_OK ||
        shard_check_inputs(s, d, &why) != PEN_OK ||
        (has_decided_push(s, d) &&
         shard_core_inputs(s->core, d->rank, d->step, &d->inputs, &why) != PEN_OK)) {
        shard_refuse(s, peer, d, why.status, why.text);
        if (why.status == PEN_MISMATCH) s->outside.report(s->outside.user, &why);
        return;
    }
    shard_arrival in = {.peer = peer, .d = d, .payload = payload, .data = payload->data};
    uint32_t taken   = 0;
    for (uint32_t i = 0; i < d->n && !s->has_failed; i++) {
        const shard_chunk *k = &s->chunk[s->index_of[d->chunk[i]]];
        in.size              = k->count * plan_dtype_bytes(shard_push_dtype(s, k, &d->inputs));
        in.seq               = shard_seq(d, i);
        taken += push_chunk(s, &in, i, k);
        in.data += in.size;
    }
    shard_refuse_flush(s, peer, d);
    stat_add(s->options.stats, STAT_PUSH_BYTES, payload->size);
    stat_add(s->options.stats, STAT_PUSH_OPS, taken);
    stat_store(s->options.stats, STAT_PARKED_BYTES, shard_core_parked_bytes(s->core));
}

/* ---- INIT ------------------------------------------------------------------------------------ */
static void init_chunk(shard *s, const shard_arrival *in, shard_chunk *k)
{
    if (!shard_core_has_values(s->core, k->index)) {
        if (!shard_offload_first_in(s, k)) return;
        simd()->decode(k->values->data, in->data, k->dtype, k->count);
        shard_chunk_first_slots(s, k);
        shard_chunk_changed(k);
        shard_log_first(s, k);
        shard_offload_out(s, k);
        shard_act(s, shard_core_first_values(s->core, k->index), in);
    }
    const shard_core_action receipt = {.verb     = CORE_RECEIPT,
                                       .index    = k->index,
                                       .rank     = in->d->rank,
                                       .peer     = in->peer,
                                       .seq      = in->d->step,
                                       .repeated = true};
    shard_note(s, SHARD_FIRST_RECEIPT, &receipt);
}

void shard_receive_init(shard *s, uint32_t peer, const wire_data *d, buf *payload)
{
    pen_error why;
    if (d->rank != 0) {
        shard_refuse(s, peer, d, PEN_INVALID_ARGUMENT, "only rank 0 may send first values");
        return;
    }
    if (check_payload(s, d, payload, false, &why) != PEN_OK) {
        shard_refuse(s, peer, d, why.status, why.text);
        return;
    }
    shard_arrival in = {.peer = peer, .d = d, .payload = payload, .data = payload->data};
    for (uint32_t i = 0; i < d->n && !s->has_failed; i++) {
        shard_chunk *k    = &s->chunk[s->index_of[d->chunk[i]]];
        const size_t size = k->count * plan_dtype_bytes(k->dtype);
        if (shard_is_intact(s, peer, d, i, in.data, size)) init_chunk(s, &in, k);
        in.data += size;
    }
    shard_refuse_flush(s, peer, d);
}
