/* ps_client_answer.c - handles messages of shards. */
#include "worker/ps/ps_client_internal.h"

#include "common/base/mutation.h"
#include "common/base/why.h"

/* False: the message is of another incarnation of this worker or of the server. */
static bool is_between_us(const ps_client *self, uint32_t shard, const wire_data *d)
{
    const ps_client_setup *s = &self->setup;
    if (mutation(MUTATION_NO_INCARNATION_CHECK)) return true;
    return d->from == s->to[shard] && (d->to == s->from || d->to == 0);
}

static bool is_of_now(const ps_client *self, const wire_data *d)
{
    const ps_client_setup *s = &self->setup;
    return d->epoch == s->epoch && (d->term == s->term || mutation(MUTATION_TERM_IGNORED));
}

/* "Not yet": the shard has an older epoch than we, or seals it.  It answers under its own epoch, and to
 * the incarnation that had our rank then.  The push is only sent again, so no fence is needed.  An
 * answer of a later epoch is dropped: unanswered operations are sent again when our epoch comes. */
static bool is_not_yet(const ps_client *self, uint32_t shard, const wire_data *d)
{
    return d->kind == WIRE_REFUSED && d->status == PEN_AGAIN && d->from == self->setup.to[shard];
}

static bool is_ours(const ps_client *self, uint32_t shard, const wire_data *d)
{
    if (mutation(MUTATION_NO_FENCE)) return true;
    return (is_between_us(self, shard, d) && is_of_now(self, d)) || is_not_yet(self, shard, d);
}

/* The operation that entry i of the message answers; NULL: it has ended or never existed. */
static op *find_op(ps_client *self, uint32_t shard, const wire_data *d, uint32_t i)
{
    uint32_t chunk = d->chunk[i];
    if (chunk >= self->setup.plan->n_chunks || ps_client_shard(self, chunk) != shard) return NULL;
    op *o              = self->chunk[chunk].head;
    const uint64_t seq = d->seq != NULL ? d->seq[i] : d->step;
    while (o != NULL && o->rows_bytes > 0 && (!o->is_numbered || o->seq != seq)) o = o->chunk_next;
    if (o == NULL || o->tries == 0) return NULL;
    /* First values have no number, and a refusal of them carries no WIRE_INITIAL. */
    bool first_values = o->verb == PS_INIT || o->verb == PS_LOAD;
    if (first_values) return d->kind == WIRE_REFUSED || (d->flags & WIRE_INITIAL) != 0 ? o : NULL;
    if (d->flags & WIRE_INITIAL) return NULL;
    return seq == o->seq ? o : NULL;
}

static void wait_again(ps_client *self, op *o, retry_reason reason, uint64_t now_ms)
{
    ps_client_due_at(self, o,
                     now_ms + retry_wait_ms(&self->setup.retry, reason, o->tries, &self->draws));
}

/* ---- RECEIPT --------------------------------------------------------------------------------- */
static void on_receipt(ps_client *self, uint32_t shard, const wire_data *d, uint64_t now_ms)
{
    for (uint32_t i = 0; i < d->n; i++) {
        op *o = find_op(self, shard, d, i);
        if (o == NULL || !ps_client_is_pushing(o)) continue;
        if (o->verb == PS_INIT) {
            ps_client_finish(self, o);
        } else if (o->state == OP_SENT || o->state == OP_READY) {
            ps_client_unqueue(self, o); /* a repeat may be queued; it is not needed */
            o->state = OP_RECEIVED;
            wait_again(self, o, RETRY_RECEIPT, now_ms);
            ps_client_away_let_go(self, o);
        }
    }
}

/* ---- VALUES ---------------------------------------------------------------------------------- */
static void hold_values(ps_client *self, op *o, buf *body, size_t at)
{
    if (o->state == OP_BUFFERED) return;
    ps_client_unqueue(self, o);
    o->state   = OP_BUFFERED;
    o->due_ms  = NEVER;
    o->body    = buf_acquire(body);
    o->body_at = at;
}

static bool wants_values(const op *o)
{
    return o->verb == PS_STEP ? true : o->verb != PS_PUSH && o->verb != PS_INIT;
}

/* Values never answer the push of a decided step: they would be late values of an earlier step. */
static bool may_take(const ps_client *self, const op *o)
{
    if (!wants_values(o)) return false;
    return o->verb != PS_STEP || o->pulling || ps_client_rule_of(self, o) != STEP_TWO_PHASE;
}

/* Bytes of entry i: those of a tensor are known. */
static size_t size_of(const ps_client *self, const wire_data *d, uint32_t i)
{
    return d->size != NULL ? d->size[i] : ps_client_value_size(self, d->chunk[i]);
}

static size_t payload_of(const ps_client *self, const wire_data *d)
{
    size_t total = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->chunk[i] >= self->setup.plan->n_chunks) return SIZE_MAX;
        total += size_of(self, d, i);
    }
    return total;
}

static void take_entry(ps_client *self, op *o, const wire_data *d, uint32_t i, buf *body, size_t at,
                       uint64_t now_ms)
{
    o->version   = d->version != NULL ? d->version[i] : 0;
    o->staleness = d->staleness != NULL ? d->staleness[i] : 0;
    o->crc       = d->crc[i];
    /* If no decision closes the scalars' chunk, they come with the answer to its push. */
    if (o->verb == PS_STEP && o->chunk == self->scalars_chunk && d->n_votes == 1 &&
        ps_client_rule_of(self, o) != STEP_TWO_PHASE)
        self->step.scalars = d->vote[0].scalars;
    if (o->verb == PS_LOAD) /* the shard knows how often this rank has pushed the chunk */
        self->chunk[o->chunk].next_seq = d->seq != NULL ? d->seq[i] : d->step;
    bool early = o->verb == PS_STEP && !self->step.closing;
    if (early)
        hold_values(self, o, body, at);
    else
        ps_client_take_values(self, o, (const char *)body->data + at, size_of(self, d, i), now_ms);
}

static void on_applied(ps_client *self, uint32_t shard, const wire_data *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        op *o = find_op(self, shard, d, i);
        if (o == NULL || o->verb != PS_PUSH) continue;
        o->version   = d->version != NULL ? d->version[i] : 0;
        o->staleness = d->staleness != NULL ? d->staleness[i] : 0;
        ps_client_note_result(o);
        self->act.count(self->user, STAT_PUSH_OPS, 1);
        ps_client_finish(self, o);
    }
}

static void on_values(ps_client *self, uint32_t shard, const wire_data *d, buf *body,
                      uint64_t now_ms)
{
    if (d->crc == NULL) {
        on_applied(self, shard, d);
        return;
    }
    if (body == NULL || payload_of(self, d) != body->size) {
        self->act.count(self->user, STAT_REFUSED, 1);
        return;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        op *o = find_op(self, shard, d, i);
        if (o != NULL && may_take(self, o) && (o->rows_bytes > 0) == (d->size != NULL))
            take_entry(self, o, d, i, body, at, now_ms);
        at += size_of(self, d, i);
    }
}

/* ---- REFUSED --------------------------------------------------------------------------------- */
static bool is_passing(pen_status status)
{
    return status == PEN_AGAIN || status == PEN_CORRUPT;
}

/* Ranks disagree: the shard sends the scheduler the same sentence, so all members report it alike. */
static void end_refused(ps_client *self, op *o, uint32_t shard, const wire_data *d)
{
    pen_error why;
    const char *name = ps_client_tensor(self, o->chunk)->name;
    if (d->status == PEN_MISMATCH)
        why_set(&why, PEN_MISMATCH, "%s", d->text);
    else
        why_set(&why, d->status, "%s refused '%s': %s", self->setup.server[shard], name, d->text);
    why_culprit(&why, PEN_SERVER, -1, (int64_t)d->step, name);
    ps_client_end(self, o->request, &why);
}

static void on_refused(ps_client *self, uint32_t shard, const wire_data *d, uint64_t now_ms)
{
    if (ps_client_away_is_over(self, d)) return;
    self->act.count(self->user, d->status == PEN_CORRUPT ? STAT_CORRUPT : STAT_BUSY, d->n);
    if (d->status == PEN_AGAIN) ps_client_away_notify(self, shard);
    for (uint32_t i = 0; i < d->n; i++) {
        op *o = find_op(self, shard, d, i);
        if (o == NULL && d->status == PEN_AGAIN) {
            /* The question for a vote came too early: the shard does not know yet where to send it. */
            ps_client_ask_for_votes(self, now_ms + retry_wait_ms(&self->setup.retry, RETRY_REFUSED,
                                                                 self->step.asks, &self->draws));
        }
        if (o == NULL || o->state == OP_BUFFERED || o->state == OP_PREPARED) continue;
        if (!is_passing(d->status)) {
            end_refused(self, o, shard, d);
            continue;
        }
        ps_client_unqueue(self, o);
        o->state = OP_SENT;
        wait_again(self, o, RETRY_REFUSED, now_ms);
    }
    if (d->n > 0 || is_passing(d->status)) return;
    pen_error why;
    why_set(&why, d->status, "%s refused a message: %s", self->setup.server[shard], d->text);
    ps_client_fail(self, &why, now_ms);
}

/* ---- entry ----------------------------------------------------------------------------------- */
void ps_client_receive(ps_client *self, uint32_t shard, const wire_data *d, buf *body,
                       uint64_t now_ms)
{
    if (!is_ours(self, shard, d)) {
        self->act.count(self->user, STAT_REFUSED, 1);
        return;
    }
    switch (d->kind) {
    case WIRE_RECEIPT:
        if (d->n == 0 && ps_client_idle_receipt(self, shard, d->step))
            ps_client_complete_if_over(self, self->step.request);
        on_receipt(self, shard, d, now_ms);
        break;
    case WIRE_PREPARED: ps_client_step_vote(self, shard, d, body); break;
    case WIRE_VALUES: on_values(self, shard, d, body, now_ms); break;
    case WIRE_REFUSED: on_refused(self, shard, d, now_ms); break;
    case WIRE_WAITING: ps_client_note_waiting(self, d, now_ms); break;
    default: self->act.count(self->user, STAT_REFUSED, 1); break; /* only workers send those */
    }
}
