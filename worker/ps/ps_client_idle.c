/* ps_client_idle.c - announces snapshots to shards that no push reaches: a model smaller than the job, or parts of tables
 * alone.  After the decision of the step, when all ranks have pushed, and before its end, so that no round of a table
 * that comes later is in the snapshot. */
#include "worker/ps/ps_client_internal.h"

#include <stdlib.h>

/* ---- which ----------------------------------------------------------------------------------- */
static void list_idle(ps_client *self)
{
    self->n_idle = 0;
    for (uint32_t i = 0; i < self->setup.n_shards; i++)
        if (!self->is_trained[i])
            self->idle[self->n_idle++] = (idle_shard){.shard = i, .is_told = true};
}

bool ps_client_idle_find(ps_client *self)
{
    const plan *p    = self->setup.plan;
    self->is_trained = calloc(self->setup.n_shards + 1, sizeof *self->is_trained);
    self->idle       = calloc(self->setup.n_shards + 1, sizeof *self->idle);
    if (self->is_trained == NULL || self->idle == NULL) return false;
    for (uint32_t i = 0; i < p->n_partitions; i++)
        if (p->partition[i].n_trained > 0) self->is_trained[self->setup.shard[i]] = true;
    list_idle(self);
    return true;
}

/* ---- sending --------------------------------------------------------------------------------- */
void ps_client_idle_open(ps_client *self)
{
    for (uint32_t i = 0; i < self->n_idle; i++) {
        self->idle[i] = (idle_shard){.shard = self->idle[i].shard, .is_due = true};
        self->step.request->left++;
    }
}

static bool tell(ps_client *self, const idle_shard *idle)
{
    wire_data sign  = ps_client_message(self, WIRE_PUSH, idle->shard);
    sign.flags      = idle->tries > 0 ? WIRE_REPEATED : 0;
    sign.step       = self->step.index;
    sign.has_inputs = true;
    sign.inputs     = self->step.in->wire;
    return self->act.send(self->user, idle->shard, 0, &sign, NULL, 0) == PEN_OK;
}

void ps_client_idle_flush(ps_client *self, uint64_t now_ms)
{
    const retry_policy *retry = &self->setup.retry;
    if (!self->step.decided) return; /* a part of a table may still lack pushes of other ranks */
    for (uint32_t i = 0; i < self->n_idle; i++) {
        idle_shard *idle = &self->idle[i];
        if (idle->is_told || !idle->is_due) continue;
        if (!self->lane[idle->shard * self->setup.lanes].up) continue;
        const bool is_sent = tell(self, idle);
        idle->tries += is_sent;
        const uint64_t due_ms = now_ms + retry_wait_ms(retry, is_sent ? RETRY_SILENCE : RETRY_FULL,
                                                       idle->tries, &self->draws);
        idle->is_due          = false;
        idle->due_ms          = due_ms;
        if (due_ms < self->tick_ms) self->tick_ms = due_ms;
    }
}

void ps_client_idle_tick(ps_client *self, uint64_t now_ms)
{
    for (uint32_t i = 0; i < self->n_idle; i++) {
        idle_shard *idle = &self->idle[i];
        if (idle->is_told || idle->is_due) continue;
        if (idle->due_ms <= now_ms)
            idle->is_due = true;
        else if (idle->due_ms < self->tick_ms)
            self->tick_ms = idle->due_ms;
    }
}

void ps_client_idle_up(ps_client *self, uint32_t shard)
{
    for (uint32_t i = 0; i < self->n_idle; i++)
        if (self->idle[i].shard == shard) self->idle[i].is_due = true;
}

/* ---- answers --------------------------------------------------------------------------------- */
bool ps_client_idle_receipt(ps_client *self, uint32_t shard, uint64_t step)
{
    ps_client_request *r = self->step.request;
    if (r == NULL || step != self->step.index) return false;
    for (uint32_t i = 0; i < self->n_idle; i++) {
        idle_shard *idle = &self->idle[i];
        if (idle->shard != shard || idle->is_told || idle->tries == 0) continue;
        idle->is_told = true;
        r->left--;
        return true;
    }
    return false;
}

void ps_client_idle_forget(ps_client *self)
{
    ps_client_request *r = self->step.request;
    for (uint32_t i = 0; i < self->n_idle && r != NULL; i++) {
        if (!self->idle[i].is_told) r->left--;
        self->idle[i].is_told = true;
    }
}

const idle_shard *ps_client_idle_waited_for(const ps_client *self)
{
    for (uint32_t i = 0; i < self->n_idle; i++)
        if (!self->idle[i].is_told) return &self->idle[i];
    return NULL;
}

/* A notified shard may have moved to another server, so all are notified again.  A server that knows
 * of the snapshot treats it as a repeat. */
void ps_client_idle_again(ps_client *self)
{
    ps_client_request *r = self->step.request;
    const bool is_open   = r != NULL && r->status == PEN_OK && self->step.in->wire.snapshot;
    ps_client_idle_forget(self);
    list_idle(self);
    if (is_open) ps_client_idle_open(self);
}
