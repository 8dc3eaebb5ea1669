/* shard_rows.c - messages with sizes: PUSH and PULL of parts of tables, requests to handlers, PULL of slots. */
#include "server/shard/shard_state.h"

#include <inttypes.h>

static pen_status check_message(const shard *s, const wire_data *d, const buf *payload,
                                pen_error *why)
{
    uint64_t bytes = 0;
    if (d->n == 0 || d->crc == NULL || d->seq == NULL || payload == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT, "%s of rows lacks parts, numbers or payload",
                       wire_kind_name((int)d->kind));
    for (uint32_t i = 0; i < d->n; i++) {
        const shard_chunk *k = shard_find(s, d->chunk[i]);
        if (k == NULL || (!shard_is_part(k) && d->kind != WIRE_PULL))
            return why_set(why, PEN_INVALID_ARGUMENT,
                           "chunk %u is no part of a table on this shard", d->chunk[i]);
        bytes += d->size[i];
    }
    if (bytes == payload->size) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT,
                   "the payload has %zu bytes, its %u parts have %" PRIu64, payload->size, d->n,
                   bytes);
}

/* Nothing is answered to this message now, and nothing refused. */
static bool waits(shard_core_actions actions, const shard_arrival *in)
{
    for (uint32_t i = 0; i < actions.n; i++) {
        const shard_core_action *a = &actions.at[i];
        const bool is_answer       = a->verb == CORE_SERVE || a->verb == CORE_REFUSE;
        if (is_answer && a->rank == in->d->rank && a->seq == in->seq) return false;
    }
    return true;
}

static shard_core_actions ask_core(shard *s, const shard_chunk *k, const shard_arrival *in)
{
    const wire_data *d = in->d;
    if (d->kind == WIRE_PULL)
        return shard_core_pull(
            s->core, &(shard_core_pull_event){
                         .rank = d->rank, .peer = in->peer, .chunk = k->index, .seq = in->seq});
    return shard_core_push(
        s->core, &(shard_core_push_event){.rank        = d->rank,
                                          .peer        = in->peer,
                                          .chunk       = k->index,
                                          .seq         = in->seq,
                                          .want_values = (d->flags & WIRE_WANT_VALUES) != 0,
                                          .inputs      = &d->inputs});
}

static pen_status read_request(const shard_chunk *k, const wire_tensor *t, const shard_arrival *in,
                               rows_call *c, rows *r, pen_error *why)
{
    if (in->d->kind != WIRE_PUSH || (in->d->flags & WIRE_WANT_VALUES) == 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "'%s' has a handler; its requests are pushes that want an answer", t->name);
    return rows_read_call(in->data, in->size, plan_table_dim(t), plan_dtype_bytes(k->dtype), c, r,
                          why);
}

static void take_request(shard *s, shard_chunk *k, const shard_arrival *in)
{
    const wire_data *d = in->d;
    rows r;
    rows_call c;
    pen_error why;
    if (read_request(k, &s->setup.model->tensor[k->tensor], in, &c, &r, &why) != PEN_OK) {
        shard_refuse_chunk(s, in->peer, d, k->number, in->seq, PEN_INVALID_ARGUMENT, why.text);
        return;
    }
    if (!handler_part_has_room(k->handler, d->rank, s->incarnation[d->rank], in->seq)) {
        shard_refuse_chunk(s, in->peer, d, k->number, in->seq, PEN_AGAIN,
                           "too many earlier requests wait for their answers");
        return;
    }
    const shard_core_push_event e = {.rank        = d->rank,
                                     .peer        = in->peer,
                                     .chunk       = k->index,
                                     .seq         = in->seq,
                                     .want_values = true,
                                     .inputs      = &d->inputs};
    shard_arrival mine            = *in;
    mine.rows                     = &r;
    mine.call                     = &c;
    shard_act(s, shard_core_push(s->core, &e), &mine);
}

static void take_part(shard *s, const shard_arrival *in, uint32_t i)
{
    const wire_data *d = in->d;
    shard_chunk *k     = &s->chunk[s->index_of[d->chunk[i]]];
    const bool pushes  = d->kind == WIRE_PUSH;
    rows r;
    pen_error why;
    shard_arrival mine = *in;
    mine.rows          = &r;
    if (!shard_is_intact(s, in->peer, d, i, in->data, in->size)) return;
    if (!shard_is_part(k)) {
        shard_slots_receive(s, in, k);
        return;
    }
    if (k->handler != NULL) {
        take_request(s, k, in);
        return;
    }
    if (shard_table_read(k, in, &r, &why) != PEN_OK) {
        shard_refuse_chunk(s, in->peer, d, k->number, in->seq, PEN_INVALID_ARGUMENT, why.text);
        return;
    }
    if (pushes && !shard_is_admitted(s, in, k, r.value, r.elements)) return;
    const shard_core_actions actions = ask_core(s, k, &mine);
    if ((!pushes || d->flags & WIRE_WANT_VALUES) && waits(actions, &mine))
        shard_table_ask(s, k, &mine);
    shard_act(s, actions, &mine);
    if (pushes) shard_report_mismatch(s, actions, d);
}

/* Memory is far: what all keys of the message need is on its way before the first of them is looked up. */
static void look_ahead(const shard *s, const wire_data *d, const uint8_t *data)
{
    rows r;
    pen_error why;
    shard_arrival in = {.d = d, .data = data};
    for (uint32_t i = 0; i < d->n; i++, in.data += in.size) {
        const shard_chunk *k = shard_find(s, d->chunk[i]);
        in.size              = d->size[i];
        if (k->table != NULL && shard_table_read(k, &in, &r, &why) == PEN_OK)
            row_store_ahead(shard_table_rows(k), &r);
    }
}

void shard_receive_rows(shard *s, uint32_t peer, const wire_data *d, buf *payload)
{
    pen_error why;
    if (check_message(s, d, payload, &why) != PEN_OK ||
        (d->kind == WIRE_PUSH && shard_check_inputs(s, d, &why) != PEN_OK)) {
        shard_refuse(s, peer, d, why.status, why.text);
        return;
    }
    look_ahead(s, d, payload->data);
    shard_arrival in = {.peer = peer, .d = d, .payload = payload, .data = payload->data};
    for (uint32_t i = 0; i < d->n && !s->has_failed; i++) {
        in.size = d->size[i];
        in.seq  = d->seq[i];
        take_part(s, &in, i);
        in.data += in.size;
    }
    shard_reply_rows_flush(s, peer);
    shard_refuse_flush(s, peer, d);
    if (d->kind == WIRE_PUSH) stat_add(s->options.stats, STAT_PUSH_BYTES, payload->size);
    if (d->kind == WIRE_PUSH) stat_add(s->options.stats, STAT_PUSH_OPS, d->n);
}
