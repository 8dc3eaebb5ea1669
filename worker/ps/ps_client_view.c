/* ps_client_view.c - connections and epochs: what is sent again when one of them changes. */
#include "worker/ps/ps_client_internal.h"

#include "common/base/mutation.h"
#include "common/base/why.h"

/* ---- connections ----------------------------------------------------------------------------- */
void ps_client_down(ps_client *self, uint32_t shard, uint32_t lane)
{
    self->lane[shard * self->setup.lanes + lane].up = false;
}

/* A receipted push may have lost its answer on any lane of the shard, so all of them are due. */
void ps_client_up(ps_client *self, uint32_t shard, uint32_t lane, uint64_t now_ms)
{
    self->lane[shard * self->setup.lanes + lane].up = true;
    for (op *o = self->live.live_next; o != &self->live; o = o->live_next) {
        if (ps_client_shard(self, o->chunk) != shard) continue;
        if (o->state == OP_SENT && o->chunk % self->setup.lanes == lane)
            ps_client_send_later(self, o);
        else if (o->state == OP_RECEIVED)
            ps_client_due_at(self, o, now_ms);
    }
    ps_client_away_notify(self, shard);
    ps_client_idle_up(self, shard);
    self->is_new_to_shards = true;
    ps_client_ask_for_votes(self, now_ms); /* messages sent while the lane was down are lost */
}

/* ---- epochs ---------------------------------------------------------------------------------- */
/* Messages of the old epoch may have been refused, and answers to them dropped.  A receipt stays valid
 * if the shard's server and the members are unchanged: then asking is enough. */
static void resend(ps_client *self, op *o, bool keeps_receipts, uint64_t now_ms)
{
    if (o->state != OP_SENT && o->state != OP_RECEIVED) return;
    if (mutation(MUTATION_EPOCH_IN_IDENTITY) && ps_client_is_pushing(o)) o->seq++;
    if (o->tries > 1) o->tries = 1; /* back-off starts again */
    if (o->state == OP_RECEIVED && keeps_receipts)
        ps_client_due_at(self, o, now_ms);
    else
        ps_client_send_later(self, o);
}

static void adopt(ps_client_setup *setup, const ps_client_view *view)
{
    setup->term        = view->term;
    setup->epoch       = view->epoch;
    setup->to          = view->to;
    setup->n_workers   = view->n_workers;
    setup->worker_host = view->worker_host;
    setup->server      = view->server;
}

static bool drops_open_step(const ps_client *self, const ps_client_view *view, bool changed)
{
    const step_state *step = &self->step;
    if (!changed || view->step < 0 || self->n_decided == 0) return false;
    if (step->request == NULL || step->request->status != PEN_OK) return false;
    return step->index >= (uint64_t)view->step && !mutation(MUTATION_MEMBERS_KEEP_STAGING);
}

static void fail_contradicted(ps_client *self, const ps_client_view *view, uint64_t now_ms)
{
    pen_error why;
    why_set(&why, PEN_INTERNAL, "epoch %llu begins step %llu anew, and rank %d has values of it",
            (unsigned long long)view->epoch, (unsigned long long)self->step.index,
            self->setup.rank);
    why_culprit(&why, PEN_SCHEDULER, -1, (int64_t)self->step.index, NULL);
    ps_client_fail(self, &why, now_ms);
}

void ps_client_install(ps_client *self, const ps_client_view *view, uint64_t now_ms)
{
    const uint64_t *before = self->setup.to;
    const bool are_others  = ps_client_know_workers(self, view->worker, view->n_workers);
    const bool changed     = view->members_changed || are_others;
    if (drops_open_step(self, view, changed) && !ps_client_step_reopen(self, now_ms))
        fail_contradicted(self, view, now_ms);
    for (op *o = self->live.live_next; o != &self->live; o = o->live_next) {
        const uint32_t shard = ps_client_shard(self, o->chunk);
        resend(self, o, !changed && view->to[shard] == before[shard], now_ms);
    }
    adopt(&self->setup, view);
    for (uint32_t i = 0; i < self->setup.n_shards; i++) ps_client_away_notify(self, i);
    ps_client_idle_again(self);
    if (self->step.request != NULL) ps_client_complete_if_over(self, self->step.request);
    self->is_new_to_shards = true;
    ps_client_ask_for_votes(self, now_ms);
}
