/* ps_client_away.c - gradients that a worker gives back early, and values that stay on the shards.
 *
 * DESIGN.  Gradients.  With gives_back a push needs its bytes until its shard has them (RECEIPT or
 * PREPARED) and the transport has released them.  After that the client asks about the push but never
 * sends it again.  WIRE_RETURN makes the shard keep no reference: every rank may wait for that memory
 * before it pushes what the sum still needs.
 *   Values.  A step's operation with `to` NULL ends with the decision and brings no values.  Its pull
 * would have carried the decision to the shard.  A pull of no chunk replaces it, on every lane, so that
 * the decision arrives before this rank's next push.  It has no answer.  If it is lost, the shard
 * refuses the next push with "not yet", and the decision is sent again.
 *   PS_FETCH is the pull at a step's end, repeatable until the next step is decided.  That step needs
 * all pushes of this rank, so PS_FETCH brings the values of exactly that step and waits for no other
 * worker.
 */
#include "worker/ps/ps_client_internal.h"

#include <stdlib.h>
#include <string.h>

bool ps_client_away_init(ps_client *self)
{
    const plan *p    = self->setup.plan;
    self->away.hash  = calloc(p->n_partitions, sizeof *self->away.hash);
    self->away.tells = calloc(self->n_lanes, sizeof *self->away.tells);
    self->away.reads = calloc(p->n_tensors, sizeof *self->away.reads);
    return self->away.hash != NULL && self->away.tells != NULL && self->away.reads != NULL;
}

void ps_client_away_fini(ps_client *self)
{
    free(self->away.hash);
    free(self->away.tells);
    free(self->away.reads);
}

/* ---- gradients ------------------------------------------------------------------------------- */
void ps_client_away_let_go(ps_client *self, op *o)
{
    const bool is_there = o->state == OP_RECEIVED || o->state == OP_PREPARED || o->state == OP_DONE;
    if (o->verb != PS_STEP || o->from == NULL || o->holds > 0 || !is_there) return;
    if (!self->setup.gives_back && o->state != OP_DONE) return;
    const uint32_t tensor = ps_client_chunk(self, o->chunk)->tensor;
    o->from               = NULL;
    o->is_returned        = true;
    const bool is_last    = --self->away.reads[tensor] == 0;
    if (is_last && self->setup.gives_back && o->request->status == PEN_OK)
        self->act.returned(self->user, tensor);
}

/* ---- the newest decision --------------------------------------------------------------------- */
static bool has_values_away(const ps_client *self)
{
    for (const op *o = self->step.request->ops; o != NULL; o = o->request_next)
        if (o->to == NULL && ps_client_is_decided(self, o)) return true;
    return false;
}

void ps_client_away_decided(ps_client *self)
{
    if (!has_values_away(self)) return;
    self->away.has      = true;
    self->away.step     = self->step.index;
    self->away.decision = self->step.decision;
    for (uint32_t i = 0; i < self->setup.plan->n_partitions; i++)
        self->away.hash[i] = self->step.vote[i].hash;
    for (uint32_t i = 0; i < self->setup.n_shards; i++) ps_client_away_notify(self, i);
}

void ps_client_away_notify(ps_client *self, uint32_t shard)
{
    if (!self->away.has) return;
    for (uint32_t lane = 0; lane < self->setup.lanes; lane++)
        self->away.tells[shard * self->setup.lanes + lane] = true;
}

static void add_partition(ps_client *self, wire_data *d, uint32_t partition)
{
    self->partition[d->n_partitions]   = partition;
    self->vote_hash[d->n_partitions++] = self->away.hash[partition];
}

static void add_decision(ps_client *self, wire_data *d)
{
    d->step         = self->away.step;
    d->has_decision = true;
    d->decision     = self->away.decision;
    d->partition    = self->partition;
    d->vote_hash    = self->vote_hash;
}

/* Sends the decision for all partitions of the shard, in a message without chunks. */
static bool tell(ps_client *self, uint32_t number)
{
    const uint32_t shard = number / self->setup.lanes;
    const plan *p        = self->setup.plan;
    wire_data d          = ps_client_message(self, WIRE_PULL, shard);
    d.chunk              = self->column_chunk;
    add_decision(self, &d);
    for (uint32_t i = 0; i < p->n_partitions; i++)
        if (self->setup.shard[i] == shard && p->partition[i].n_decided > 0)
            add_partition(self, &d, i);
    if (d.n_partitions == 0) return true;
    return self->act.send(self->user, shard, number % self->setup.lanes, &d, NULL, 0) == PEN_OK;
}

void ps_client_away_flush(ps_client *self)
{
    if (!self->away.has || self->failed) return;
    for (uint32_t i = 0; i < self->n_lanes; i++)
        if (self->away.tells[i] && self->lane[i].up && tell(self, i)) self->away.tells[i] = false;
}

/* No decision covers frozen chunks: they are served as they are. */
bool ps_client_away_ask(ps_client *self, wire_data *d)
{
    if (!self->away.has) return false;
    add_decision(self, d);
    self->stamp_now++;
    for (uint32_t i = 0; i < d->n; i++) {
        const plan_chunk *planned = ps_client_chunk(self, d->chunk[i]);
        if (planned->blocks == 0 || self->stamp[planned->partition] == self->stamp_now) continue;
        self->stamp[planned->partition] = self->stamp_now;
        add_partition(self, d, planned->partition);
    }
    return true;
}

/* The shard refuses an old decision: lanes are not ordered among each other. */
bool ps_client_away_is_over(const ps_client *self, const wire_data *d)
{
    return self->away.has && d->n == 0 && d->status == PEN_WRONG_STATE &&
           d->step <= self->away.step;
}
