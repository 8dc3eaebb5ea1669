/* shard_handler.c - a part of a table whose rows a handler has: what the core's verbs, the log, snapshots and commands
 * mean for it.
 *
 * A request is a numbered push that wants an answer, so the core counts it as any other.  Copies do not run requests.
 * When a shard is sealed and has copies, to one of which it may move, the states of its handlers go into its log; whoever
 * then becomes its primary without them was a copy when the primary was lost, and says so.
 */
#include "server/shard/handler/handler_part.h"
#include "server/shard/shard_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const wire_tensor *table_of(const shard *s, const shard_chunk *k)
{
    return &s->setup.model->tensor[k->tensor];
}

/* ---- life ------------------------------------------------------------------------------------ */
static const pen_handler *find_handler(const shard *s, const char *name)
{
    for (uint32_t i = 0; i < s->options.handlers.n; i++)
        if (strcmp(s->options.handlers.at[i].name, name) == 0) return &s->options.handlers.at[i];
    return NULL;
}

static pen_status not_found(const shard *s, const wire_tensor *t, pen_error *why)
{
    char names[160] = "";
    size_t n        = 0;
    for (uint32_t i = 0; i < s->options.handlers.n && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s'%.64s'", i > 0 ? ", " : "",
                              s->options.handlers.at[i].name);
    if (s->options.handlers.n == 0)
        return why_set(why, PEN_NOT_FOUND,
                       "table '%.64s' needs the handler '%.64s', and server %d has none; start the "
                       "job with --plugin X.so, or the server with pen_serve()",
                       t->name, t->handler, s->setup.server);
    return why_set(why, PEN_NOT_FOUND,
                   "table '%.64s' needs the handler '%.64s', and server %d has %s", t->name,
                   t->handler, s->setup.server, names);
}

static void answered(void *owner, handler_call *call)
{
    shard *s               = owner;
    const handler_setup *h = handler_call_settle(call);
    if (h == NULL || shard_is_sealed(s) || s->role != SHARD_PRIMARY ||
        call->incarnation != s->incarnation[call->rank])
        return; /* it is asked for again, or by nobody */
    const shard_core_action a = {
        .index = h->index, .rank = call->rank, .peer = call->peer, .seq = call->seq};
    uint8_t *at = shard_reply_rows(s, &a, call->answer->size);
    if (at != NULL) memcpy(at, call->answer->data, call->answer->size);
}

static bool post(void *owner, handler_call *call)
{
    const shard *s = owner;
    return s->outside.answered(s->outside.user, call);
}

void shard_handler_answered(handler_call *call)
{
    answered(call->part != NULL ? handler_call_owner(call) : NULL, call);
}

pen_status shard_handler_new(shard *s, shard_chunk *k, pen_error *why)
{
    const wire_tensor *t      = table_of(s, k);
    const handler_setup setup = {.set        = s->options.handlers,
                                 .handler    = find_handler(s, t->handler),
                                 .table      = t->name,
                                 .part       = (uint32_t)k->start,
                                 .parts      = (uint32_t)t->shape[0],
                                 .dim        = plan_table_dim(t),
                                 .world_size = s->setup.world_size,
                                 .index      = k->index,
                                 .dtype      = k->dtype,
                                 .server     = s->setup.server,
                                 .owner      = s,
                                 .answered   = answered,
                                 .post       = post};
    if (setup.handler == NULL) return not_found(s, t, why);
    s->has_handlers = true;
    return handler_part_open(&setup, &k->handler, why);
}

/* ---- requests -------------------------------------------------------------------------------- */
/* UPDATE: the request is new; unless its answer moved here with the state. */
void shard_handler_request(shard *s, shard_chunk *k, const shard_core_action *a,
                           const shard_arrival *in)
{
    const handler_call from = {
        .rank = a->rank, .peer = in->peer, .incarnation = s->incarnation[a->rank], .seq = a->seq};
    pen_error why;
    k->version++;
    handler_call *kept = handler_part_find(k->handler, a->rank, from.incarnation, a->seq);
    if (kept != NULL)
        kept->is_new = true;
    else if (handler_part_request(k->handler, &from, in->call, in->rows, &why) != PEN_OK)
        shard_no_memory(s);
}

/* SERVE: an answer that came in the function has left already. */
void shard_handler_serve(shard *s, const shard_chunk *k, const shard_core_action *a)
{
    handler_call *call = handler_part_find(k->handler, a->rank, s->incarnation[a->rank], a->seq);
    if (call == NULL) return;
    const bool has_left = !a->repeated && !call->is_new;
    call->peer          = a->peer;
    call->is_new        = false;
    if (!call->is_ready)
        shard_note(s, SHARD_RECEIPT, a);
    else if (!has_left)
        answered(s, call);
}

/* ---- moving ---------------------------------------------------------------------------------- */
bool shard_handlers_can_move(const shard *s)
{
    for (uint32_t i = 0; i < s->n_chunks; i++)
        if (s->chunk[i].handler != NULL && !handler_part_can_save(s->chunk[i].handler))
            return false;
    return true;
}

static void log_state(shard *s, shard_chunk *k, uint64_t *scratch)
{
    buf **block;
    uint32_t n;
    pen_error why;
    memcpy(scratch, shard_core_clocks(s->core, k->index), s->setup.world_size * sizeof *scratch);
    if (handler_part_save(k->handler, scratch, &block, &n, &why) != PEN_OK) {
        shard_fail(s, &why);
        return;
    }
    wire_entry e = {.what      = WIRE_ENTRY_STATE,
                    .object    = k->number,
                    .rank      = -1,
                    .step      = shard_core_round(s->core, k->index),
                    .version   = k->version,
                    .number    = scratch,
                    .n_numbers = s->setup.world_size};
    buf *values  = shard_offload_array(s, k, 0);
    if (values != NULL) shard_log_append(s, &e, -1, values);
    e.number    = NULL;
    e.n_numbers = 0;
    for (e.slot = 1; e.slot <= n; e.slot++) {
        e.is_last = e.slot == n;
        if (s->has_failed || values == NULL)
            buf_release(block[e.slot - 1]);
        else
            shard_log_append(s, &e, -1, block[e.slot - 1]);
    }
    free(block);
}

void shard_handlers_hand_over(shard *s)
{
    if (!s->has_handlers || !shard_is_logging(s) || !shard_handlers_can_move(s)) return;
    uint64_t *scratch = calloc(s->setup.world_size + 1, sizeof *scratch);
    if (scratch == NULL) shard_no_memory(s);
    for (uint32_t i = 0; i < s->n_chunks && !s->has_failed; i++)
        if (s->chunk[i].handler != NULL && shard_core_has_values(s->core, i))
            log_state(s, &s->chunk[i], scratch);
    free(scratch);
}

bool shard_handler_follow(shard *s, shard_chunk *k, const wire_entry *e, const void *data)
{
    pen_error why;
    if (handler_part_take(k->handler, e->slot - 1, data, e->bytes, e->is_last, &why) != PEN_OK)
        shard_fail(s, &why);
    return true;
}

void shard_handlers_check(shard *s, uint64_t epoch)
{
    if (!s->has_handlers || (s->mark_epoch == epoch && s->log.index >= s->mark_index)) return;
    pen_error why;
    const shard_chunk *k = s->chunk;
    while (k->handler == NULL) k++;
    why_set(&why, PEN_PEER_LOST,
            "the state of handler '%.64s' (part %" PRIu64
            " of table '%.64s') was lost with its server while it moved to server %d; such states "
            "have no copies: restart from a snapshot",
            table_of(s, k)->handler, k->start, shard_tensor_name(s, k), s->setup.server);
    why_culprit(&why, PEN_SERVER, s->setup.server, -1, shard_tensor_name(s, k));
    shard_fail(s, &why);
}

/* ---- snapshots ------------------------------------------------------------------------------- */
void shard_handler_capture(shard_capture_chunk *to, const shard_chunk *k)
{
    pen_error why;
    to->is_table = true;
    to->failed   = handler_part_save(k->handler, NULL, &to->block, &to->n_blocks, &why);
    if (to->failed != PEN_OK) to->n_blocks = 0;
}

/* ---- commands -------------------------------------------------------------------------------- */
uint32_t shard_command(shard *s, handler_command *c, pen_status *refused)
{
    uint32_t n = 0;
    if (s->role != SHARD_PRIMARY) return 0;
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        const shard_chunk *k = &s->chunk[i];
        if (k->handler == NULL) continue;
        c->token = k->number;
        /* Of a sealed shard the state may be on its way to another server. */
        const pen_status status =
            shard_is_sealed(s) ? PEN_AGAIN : handler_part_command(k->handler, c);
        n += status == PEN_OK;
        if (*refused == PEN_OK && status != PEN_NOT_FOUND) *refused = status;
    }
    return n;
}
