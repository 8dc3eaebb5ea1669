/* ps_client_wait.c - time: repeats, warnings that name missing ranks, deadlines. */
#include "worker/ps/ps_client_internal.h"

#include "common/base/log.h"
#include "common/base/why.h"

#include <stdio.h>
#include <string.h>

/* ---- asking ---------------------------------------------------------------------------------- */
static bool inquire(ps_client *self, uint32_t chunk, uint64_t seq, uint32_t flags)
{
    const uint32_t shard = ps_client_shard(self, chunk), lane = chunk % self->setup.lanes;
    if (!self->lane[shard * self->setup.lanes + lane].up) return false;
    wire_data ask = ps_client_message(self, WIRE_INQUIRE, shard);
    ask.step      = seq;
    ask.flags     = flags;
    ask.n         = 1;
    ask.chunk     = &chunk;
    return self->act.send(self->user, shard, lane, &ask, NULL, 0) == PEN_OK;
}

static bool inquire_of(ps_client *self, const op *o)
{
    return inquire(self, o->chunk, o->seq, o->verb == PS_LOAD ? WIRE_INITIAL : 0);
}

/* ---- votes of partitions that other ranks of our node push ----------------------------------- */
/* *chunk: a decided chunk to ask about.  False if we push one ourselves: its operation asks. */
static bool is_left_to_others(const ps_client *self, uint32_t partition, uint32_t *chunk)
{
    const plan_partition *p = &self->setup.plan->partition[partition];
    bool is_left            = false;
    for (uint32_t i = 0; i < p->n_chunks; i++) {
        const op *o = self->chunk[p->chunk[i]].head;
        if (o != NULL && o->verb == PS_STEP) return false;
        if (is_left || ps_client_chunk(self, p->chunk[i])->blocks == 0) continue;
        *chunk  = p->chunk[i];
        is_left = true;
    }
    return is_left;
}

/* We repeat no push there, so only asking brings back a lost vote. */
static void tick_votes(ps_client *self, uint64_t now_ms)
{
    step_state *step = &self->step;
    uint32_t chunk;
    if (step->request == NULL || !step->closing || step->decided || step->ask_ms == NEVER) return;
    if (step->ask_ms <= now_ms) {
        for (uint32_t i = 0; i < self->setup.plan->n_partitions; i++)
            if (!step->has[i] && is_left_to_others(self, i, &chunk))
                inquire(self, chunk, step->index, 0);
        step->ask_ms =
            now_ms + retry_wait_ms(&self->setup.retry, RETRY_RECEIPT, ++step->asks, &self->draws);
    }
    if (step->ask_ms < self->tick_ms) self->tick_ms = step->ask_ms;
}

void ps_client_ask_for_votes(ps_client *self, uint64_t due_ms)
{
    step_state *step = &self->step;
    if (step->request == NULL || step->in == NULL || !step->in->wire.is_node_sum) return;
    if (due_ms < step->ask_ms) step->ask_ms = due_ms;
    if (step->ask_ms < self->tick_ms) self->tick_ms = step->ask_ms;
}

/* ---- sentences ------------------------------------------------------------------------------- */
static size_t append_rank(const ps_client *self, char *text, size_t size, size_t at, int32_t rank)
{
    bool known = rank >= 0 && (uint32_t)rank < self->setup.n_workers;
    int n      = snprintf(text + at, size - at, "%s%d (%s)", at > 0 ? ", " : "", rank,
                     known ? self->setup.worker_host[rank] : "unknown");
    return n < 0 || at + (size_t)n >= size ? size - 1 : at + (size_t)n;
}

/* "rank 3 (devbox) to push 'layer7.weight' for step 418" */
static void describe_missing(const ps_client *self, const ps_client_request *r, char *text,
                             size_t size)
{
    char ranks[256] = "";
    size_t at       = 0;
    for (uint32_t i = 0; i < r->waiting.n && i < 8 && at < sizeof ranks - 1; i++)
        at = append_rank(self, ranks, sizeof ranks, at, r->waiting.rank[i]);
    snprintf(text, size, "rank%s %s%s to push '%s' for step %llu", r->waiting.n > 1 ? "s" : "",
             ranks, r->waiting.n > 8 ? ", ..." : "", r->waiting.tensor,
             (unsigned long long)r->waiting.step);
}

/* The operation that a request has waited for longest: the first unanswered one. */
static op *oldest(const ps_client_request *r)
{
    op *found = NULL;
    for (op *o = r->ops; o != NULL; o = o->request_next)
        if (o->state != OP_DONE && o->state != OP_PREPARED && o->state != OP_BUFFERED) found = o;
    return found;
}

static void describe_silence(const ps_client *self, const ps_client_request *r, const op *o,
                             char *text, size_t size)
{
    const idle_shard *idle = o == NULL && r->is_step ? ps_client_idle_waited_for(self) : NULL;
    if (idle != NULL) {
        snprintf(text, size, "%s to take its part of a snapshot", self->setup.server[idle->shard]);
        return;
    }
    if (o == NULL && r->is_step && self->n_decided > 0 && !self->step.decided) {
        snprintf(text, size, "the sums of other ranks for step %llu",
                 (unsigned long long)self->step.index);
        return;
    }
    if (o == NULL) {
        snprintf(text, size, "the transport to let go of a buffer");
        return;
    }
    char step[48] = "";
    if (r->is_step)
        snprintf(step, sizeof step, " for step %llu", (unsigned long long)self->step.index);
    snprintf(text, size, "%s to answer %s of '%s'%s",
             self->setup.server[ps_client_shard(self, o->chunk)],
             ps_client_is_pushing(o) ? "the push" : "the pull",
             ps_client_tensor(self, o->chunk)->name, step);
}

static void describe(const ps_client *self, const ps_client_request *r, char *text, size_t size)
{
    if (r->waiting.known && r->waiting.n > 0)
        describe_missing(self, r, text, size);
    else
        describe_silence(self, r, oldest(r), text, size);
}

static void warn(ps_client *self, ps_client_request *r, uint64_t now_ms)
{
    if (r->warned || now_ms < r->opened_ms + self->setup.warn_ms) return;
    r->warned = true;
    char whom[512], line[600];
    describe(self, r, whom, sizeof whom);
    snprintf(line, sizeof line, "waiting %.0f s for %s", (double)(now_ms - r->opened_ms) / 1000,
             whom);
    self->act.log(self->user, LOG_WARNING, line);
}

static bool is_missed(const ps_client *self, const wire_data *d)
{
    for (uint32_t i = 0; i < d->n_missing; i++)
        if (d->missing[i] == self->setup.rank) return true;
    return false;
}

static void end_as_lost(ps_client *self, op *o, uint32_t shard)
{
    pen_error why;
    const char *name = ps_client_tensor(self, o->chunk)->name;
    why_set(
        &why, PEN_PEER_LOST,
        "%s has lost the gradient of '%s', which this rank does not keep (mode=zero2 and zero3); "
        "go on from a snapshot, or use mode=zero1",
        self->setup.server[shard], name);
    why_culprit(&why, PEN_SERVER, -1, (int64_t)self->step.index, name);
    ps_client_end(self, o->request, &why);
}

void ps_client_note_waiting(ps_client *self, const wire_data *d, uint64_t now_ms)
{
    if (d->n == 0 || d->chunk[0] >= self->setup.plan->n_chunks) return;
    op *o = self->chunk[d->chunk[0]].head;
    while (o != NULL && o->rows_bytes > 0 && o->seq != d->step) o = o->chunk_next;
    ps_client_request *r = o != NULL ? o->request : self->step.request;
    if (r == NULL || (o == NULL && d->step != self->step.index)) return;
    /* No rank is missing: the answer was lost, and repeating the push brings it back.  This rank is
     * missing: its push was lost with the server. */
    if (o != NULL && o->state == OP_RECEIVED && (d->n_missing == 0 || is_missed(self, d))) {
        if (o->is_returned && is_missed(self, d) && d->step == self->step.index) {
            end_as_lost(self, o, ps_client_shard(self, o->chunk));
            return;
        }
        ps_client_send_later(self, o);
    }
    r->waiting.known = true;
    r->waiting.step  = d->step;
    r->waiting.n     = d->n_missing < 32 ? d->n_missing : 32;
    if (r->waiting.n > 0) memcpy(r->waiting.rank, d->missing, r->waiting.n * sizeof *d->missing);
    const char *name = d->text[0] != '\0' ? d->text : ps_client_tensor(self, d->chunk[0])->name;
    snprintf(r->waiting.tensor, sizeof r->waiting.tensor, "%s", name);
    if (r->closed) warn(self, r, now_ms);
}

static void time_out(ps_client *self, ps_client_request *r, uint64_t now_ms)
{
    pen_error why;
    char whom[512];
    describe(self, r, whom, sizeof whom);
    const op *o = oldest(r);
    why_set(&why, PEN_TIMED_OUT, "waited %.3g s for %s", (double)(now_ms - r->opened_ms) / 1000,
            whom);
    if (r->waiting.known && r->waiting.n > 0) {
        why_culprit(&why, PEN_WORKER, r->waiting.rank[0], (int64_t)r->waiting.step,
                    r->waiting.tensor);
        why.missing_n = (int32_t)r->waiting.n;
        memcpy(why.missing, r->waiting.rank, r->waiting.n * sizeof why.missing[0]);
    } else if (o != NULL) {
        why_culprit(&why, PEN_SERVER, -1, r->is_step ? (int64_t)self->step.index : -1,
                    ps_client_tensor(self, o->chunk)->name);
    }
    ps_client_end(self, r, &why);
}

/* ---- the clock ------------------------------------------------------------------------------- */
/* Asks every warn_ms, and once shortly before the deadline. */
static void ask(ps_client *self, ps_client_request *r, uint64_t now_ms)
{
    const op *o = oldest(r);
    bool is_up  = o != NULL && inquire_of(self, o);
    /* The answer to the first question names the rank in a warning.  Without an answer the warning
     * says what is known. */
    if (o == NULL || r->asked || !is_up) warn(self, r, now_ms);
    r->asked  = true;
    r->ask_ms = now_ms + self->setup.warn_ms;
    if (r->deadline_ms == 0 || r->ask_ms < r->deadline_ms) return;
    uint64_t last =
        r->deadline_ms -
        (r->deadline_ms - r->opened_ms < 4000 ? (r->deadline_ms - r->opened_ms) / 4 : 1000);
    r->ask_ms = last > now_ms ? last : NEVER;
}

/* True: a request ended, so lists may have changed. */
static bool tick_request(ps_client *self, ps_client_request *r, uint64_t now_ms)
{
    if (!r->closed || r->status != PEN_OK) return false;
    if (r->deadline_ms != 0 && r->deadline_ms <= now_ms) {
        time_out(self, r, now_ms);
        return true;
    }
    if (r->ask_ms <= now_ms) ask(self, r, now_ms);
    if (r->ask_ms < self->tick_ms) self->tick_ms = r->ask_ms;
    if (r->deadline_ms != 0 && r->deadline_ms < self->tick_ms) self->tick_ms = r->deadline_ms;
    return false;
}

/* The client asks about a receipted push and does not send it again: the shard has the bytes.  The
 * answer is PREPARED, VALUES or WAITING.  One question is enough for a partition. */
static bool speaks_for_partition(const ps_client *self, const op *o)
{
    if (ps_client_rule_of(self, o) != STEP_TWO_PHASE) return true;
    const plan_partition *p =
        &self->setup.plan->partition[ps_client_chunk(self, o->chunk)->partition];
    for (uint32_t i = 0; i < p->n_chunks && p->chunk[i] < o->chunk; i++) {
        const op *other = self->chunk[p->chunk[i]].head;
        if (other != NULL && other->state == OP_RECEIVED &&
            ps_client_rule_of(self, other) == STEP_TWO_PHASE)
            return false;
    }
    return true;
}

/* A shard takes the pushes of a part of a table in their order.  So the oldest that is not answered goes again with all
 * behind it, which would be refused without it, and these wait for that. */
static void send_again(ps_client *self, op *o)
{
    const op *oldest = self->chunk[o->chunk].head;
    while (oldest->state != OP_SENT) oldest = oldest->chunk_next;
    o->due_ms = oldest->due_ms;
    for (op *each = o; oldest == o && each != NULL; each = each->chunk_next)
        if (each->state == OP_SENT) ps_client_send_later(self, each);
}

static void tick_op(ps_client *self, op *o, uint64_t now_ms)
{
    if (o->due_ms <= now_ms) {
        if (o->state == OP_RECEIVED) {
            if (speaks_for_partition(self, o)) inquire_of(self, o);
            o->tries++;
            o->due_ms =
                now_ms + retry_wait_ms(&self->setup.retry, RETRY_RECEIPT, o->tries, &self->draws);
        } else if (o->state == OP_SENT)
            send_again(self, o);
    }
    if (o->due_ms < self->tick_ms) self->tick_ms = o->due_ms;
}

void ps_client_tick(ps_client *self, uint64_t now_ms)
{
    if (now_ms < self->tick_ms) return;
    self->tick_ms = NEVER;
    for (op *o = self->live.live_next; o != &self->live; o = o->live_next) tick_op(self, o, now_ms);
    ps_client_idle_tick(self, now_ms);
    tick_votes(self, now_ms);
    for (uint32_t i = 0; i < self->n_lanes; i++) {
        const lane_state *lane = &self->lane[i];
        if (lane->head != NULL && lane->blocked_until_ms > now_ms &&
            lane->blocked_until_ms < self->tick_ms)
            self->tick_ms = lane->blocked_until_ms;
    }
    for (ps_client_request *r = self->requests; r != NULL;)
        r = tick_request(self, r, now_ms) ? self->requests : r->next;
}

uint64_t ps_client_due(const ps_client *self)
{
    return self->tick_ms;
}
