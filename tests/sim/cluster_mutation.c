/* cluster_mutation.c - bugs the product does not have, to show that the checks can fail. */
#include "tests/sim/cluster_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const cluster *c, sim_mutation mutation)
{
    return c->plan.mutation == mutation;
}

int mutation_active; /* of common/base/mutation.h: this run's bug within the layers */

void mutation_plan(const sim_server *s, wire_model *model)
{
    static wire_group group[2];
    static char sync[32];
    if (!is(s->c, SIM_SSP_OFF_BY_ONE)) return;
    group[0] = model->group[0];
    group[1] = model->group[1];
    snprintf(sync, sizeof sync, "ssp s=%llu", (unsigned long long)s->c->plan.bound + 1);
    group[0].sync = sync;
    model->group  = group;
}

static uint64_t seq_of(const wire_data *d, uint32_t i)
{
    return d->seq != NULL ? d->seq[i] : d->step;
}

/* As `seq <= clock` instead of `seq < clock`: an applied push is applied again. */
static void shift_repeats(const cluster *c, wire_data *d)
{
    static uint64_t shifted[4096];
    if (d->kind != WIRE_PUSH || d->n > 4096) return;
    for (uint32_t i = 0; i < d->n; i++) {
        shifted[i] = seq_of(d, i);
        if (shifted[i] + 1 == model_clock(c->reference, d->chunk[i], (uint32_t)d->rank))
            shifted[i]++;
    }
    d->seq = shifted;
}

/* The answer is sent before the work is done, which may then be lost. */
static bool acknowledge_and_lose(sim_copy *s, uint32_t peer, const wire_data *d)
{
    static const uint64_t zeros[4096];
    cluster *c = s->place->server->c;
    if (d->kind != WIRE_PUSH || d->flags & WIRE_WANT_VALUES || !draw_chance(&c->chance, 20))
        return false;
    wire_data answer = {.kind    = WIRE_VALUES,
                        .term    = d->term,
                        .epoch   = d->epoch,
                        .from    = d->to,
                        .to      = d->from,
                        .rank    = d->rank,
                        .shard   = d->shard,
                        .step    = d->step,
                        .n       = d->n,
                        .chunk   = d->chunk,
                        .seq     = d->seq,
                        .version = zeros,
                        .text    = ""};
    pen_error why;
    if (wire_data_encode(&answer, &c->out, &why) != PEN_OK) return false;
    return transport_send(s->place->listener.t, peer, c->out.data, c->out.size, NULL) == PEN_OK;
}

/* Rank 1 clips by a bound of its own: its half of the shards gets another factor than the rest. */
static void decide_locally(wire_data *d, uint32_t number)
{
    if (!d->has_decision || d->decision.outcome != PEN_APPLIED || number != 0) return;
    d->decision.gscale /= 2;
    d->decision.clip /= 2;
}

static void skip_here(wire_data *d, uint32_t number)
{
    if (!d->has_decision || number != 0 || d->step != 2) return;
    d->decision.outcome = PEN_SKIPPED_NONFINITE;
    d->decision.gscale  = 0;
}

static void zero(wire_data *d, buf **payload)
{
    static uint32_t crc[4096];
    if (d->kind != WIRE_PUSH || d->rank != 0 || d->n != 1 || *payload == NULL) return;
    buf *zeros = sim_need(buf_new((*payload)->size));
    memset(zeros->data, 0, zeros->size);
    buf_release(*payload);
    *payload = zeros;
    crc[0]   = crc32c(0, zeros->data, zeros->size);
    d->crc   = crc;
}

bool mutation_receive(sim_copy *s, uint32_t peer, wire_data *d, buf **payload)
{
    const cluster *c = s->place->server->c;
    switch (c->plan.mutation) {
    case SIM_DEDUP_OFF_BY_ONE: shift_repeats(c, d); break;
    case SIM_ACKNOWLEDGE_EARLY: return !acknowledge_and_lose(s, peer, d);
    case SIM_LOCAL_DECISION: decide_locally(d, s->number); break;
    case SIM_COMMIT_ON_SOME: skip_here(d, s->number); break;
    case SIM_LOSE_CONTRIBUTION: zero(d, payload); break;
    default: break;
    }
    return true;
}

/* The capture's references are taken when the next step has ended. */
void mutation_cut(const sim_copy *s, shard_capture *cut)
{
    if (is(s->place->server->c, SIM_SNAPSHOT_OF_NEXT) && s->number == 0) cut->step--;
}
