/* shard_pull.c - messages without a payload: PULL, decisions, INQUIRE. */
#include "server/shard/shard_state.h"

#include <math.h>

/* ---- decisions ------------------------------------------------------------------------------- */
static bool is_sane(const wire_decision *decision)
{
    return decision->outcome >= PEN_APPLIED && decision->outcome <= PEN_SKIPPED_EMPTY &&
           isfinite(decision->gscale) && isfinite(decision->clip);
}

static void report(shard *s, const shard_core_action *a, const wire_data *d)
{
    pen_error error;
    why_set(&error, PEN_MISMATCH, "rank %d, step %llu: %s", d->rank, (unsigned long long)d->step,
            a->reason);
    why_culprit(&error, PEN_WORKER, d->rank, (int64_t)d->step, NULL);
    s->outside.report(s->outside.user, &error);
}

/* Commits partitions for which this decision is the first.  False: refused. */
static bool decide(shard *s, uint32_t peer, const wire_data *d)
{
    const shard_arrival in = {.peer = peer, .d = d};
    for (uint32_t i = 0; i < d->n_partitions; i++) {
        const uint32_t number = d->partition[i];
        if (number >= s->setup.plan->n_partitions || s->partition_index[number] == SHARD_NONE) {
            shard_refuse(s, peer, d, PEN_INVALID_ARGUMENT, "a partition is not on this shard");
            return false;
        }
        const shard_core_actions actions = shard_core_decide(
            s->core, s->partition_index[number], d->step, d->vote_hash[i], &d->decision, peer);
        shard_act(s, actions, &in);
        if (actions.n == 0 || actions.at[0].verb != CORE_REFUSE) continue;
        if (actions.at[0].status == PEN_MISMATCH) report(s, &actions.at[0], d);
        return false;
    }
    return true;
}

static bool check_pull(shard *s, uint32_t peer, const wire_data *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        if (shard_find(s, d->chunk[i]) != NULL) continue;
        shard_refuse(s, peer, d, PEN_INVALID_ARGUMENT, "a chunk is not on this shard");
        return false;
    }
    const bool is_whole = d->n_partitions == 0 || d->vote_hash != NULL;
    if (is_whole && (!d->has_decision || is_sane(&d->decision))) return true;
    shard_refuse(s, peer, d, PEN_INVALID_ARGUMENT,
                 "invalid decision: records missing or numbers out of range");
    return false;
}

/* ---- PULL ------------------------------------------------------------------------------------ */
void shard_receive_pull(shard *s, uint32_t peer, const wire_data *d)
{
    if (!check_pull(s, peer, d)) return;
    if (d->has_decision && !decide(s, peer, d)) return;

    const shard_arrival in = {.peer = peer, .d = d};
    for (uint32_t i = 0; i < d->n && !s->has_failed; i++) {
        const shard_core_pull_event e = {.rank    = d->rank,
                                         .peer    = peer,
                                         .chunk   = s->index_of[d->chunk[i]],
                                         .seq     = shard_seq(d, i),
                                         .initial = (d->flags & WIRE_INITIAL) != 0,
                                         .decided = d->has_decision};
        shard_act(s, shard_core_pull(s->core, &e), &in);
    }
    shard_refuse_flush(s, peer, d);
}

/* ---- INQUIRE --------------------------------------------------------------------------------- */
void shard_receive_inquiry(shard *s, uint32_t peer, const wire_data *d)
{
    if (d->n == 0 || shard_find(s, d->chunk[0]) == NULL) {
        shard_refuse(s, peer, d, PEN_INVALID_ARGUMENT, "INQUIRE needs a chunk of this shard");
        return;
    }
    const shard_arrival in        = {.peer = peer, .d = d};
    const shard_core_pull_event e = {
        .rank = d->rank, .peer = peer, .chunk = s->index_of[d->chunk[0]], .seq = shard_seq(d, 0)};
    uint32_t n;
    const shard_core_actions actions = shard_core_inquire(s->core, &e, s->missing, &n);
    shard_act(s, actions, &in);
    if (actions.n > 0) return;

    wire_data answer = {.kind      = WIRE_WAITING,
                        .step      = e.seq,
                        .n         = 1,
                        .chunk     = d->chunk,
                        .text      = shard_tensor_name(s, &s->chunk[e.chunk]),
                        .n_missing = n,
                        .missing   = s->missing};
    shard_send(s, peer, d->rank, &answer, NULL);
}
