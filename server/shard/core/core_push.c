/* core_push.c - a push or pull of one chunk: moves counters, picks answers. */
#include "server/shard/core/core_state.h"

#include "common/base/mutation.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- push: a repeat -------------------------------------------------------------------------- */
static void acknowledge(shard_core *c, shard_core_verb verb, const shard_core_push_event *e,
                        bool repeated)
{
    shard_core_action *a = shard_core_send(c, verb, e->chunk);
    a->rank              = e->rank;
    a->peer              = e->peer;
    a->seq               = e->seq;
    a->repeated          = repeated;
}

static shard_core_actions refuse_push(shard_core *c, const shard_core_push_event *e,
                                      pen_status status, const char *reason)
{
    return shard_core_refuse(c, e->chunk, e->rank, e->peer, e->seq, status, reason);
}

static shard_core_actions mixed_verbs(shard_core *c, const shard_core_push_event *e)
{
    why_set(&c->why, PEN_WRONG_STATE,
            "'%s' is trained by both pen_push_pull() and pen_step_end(); use one of them "
            "in a job",
            c->chunk[e->chunk].desc.tensor);
    return refuse_push(c, e, PEN_WRONG_STATE, c->why.text);
}

/* The record of a step outlives its commit: a rank that lost it cannot decide, so it pushes nothing newer, and
 * without its push no newer record exists. */
static bool has_vote(const shard_core *c, uint32_t partition, uint64_t step)
{
    const shard_core_partition *p = &c->partition[partition];
    return (step == p->step && p->has_hash) || (step + 1 == p->step && p->has_decision);
}

static shard_core_actions repeat_decided(shard_core *c, const shard_core_push_event *e)
{
    const shard_core_chunk *k = &c->chunk[e->chunk];
    const uint32_t p          = k->desc.partition;
    if (e->seq < k->round && e->seq >= c->partition[p].step) return mixed_verbs(c, e);
    const bool is_ready = has_vote(c, p, e->seq);
    acknowledge(c, is_ready ? CORE_PREPARED : CORE_RECEIPT, e, true);
    if (is_ready) c->action[c->n_actions - 1].index = p;
    return shard_core_sent(c);
}

/* A bsp push that no decision closes. */
static bool is_eager(const shard_core *c, const shard_core_push_event *e)
{
    return c->eager || e->want_values || c->chunk[e->chunk].desc.is_table;
}

static shard_core_waiting answer_to(const shard_core_push_event *e)
{
    return (shard_core_waiting){
        .rank = e->rank, .peer = e->peer, .seq = e->seq, .bare = !e->want_values};
}

static shard_core_actions repeat(shard_core *c, const shard_core_push_event *e)
{
    const shard_core_chunk *k = &c->chunk[e->chunk];
    if (shard_core_group_of(c, k)->ops->averages) {
        if (!is_eager(c, e)) return repeat_decided(c, e);
    } else if (!e->want_values) {
        acknowledge(c, CORE_APPLIED, e, true);
        return shard_core_sent(c);
    }
    bool held;
    const shard_core_waiting h = answer_to(e);
    if (!shard_core_answer(c, e->chunk, &h, &held))
        return refuse_push(c, e, PEN_AGAIN, "too many answers are waiting");
    if (held)
        acknowledge(c, CORE_RECEIPT, e, true);
    else
        c->action[c->n_actions - 1].repeated = true;
    return shard_core_sent(c);
}

/* ---- push: part of a mean -------------------------------------------------------------------- */
static bool rates_agree(shard_core *c, const shard_core_chunk *k, const shard_core_push_event *e)
{
    const double rate = e->inputs->rate[k->desc.group];
    if (rate == k->rate && e->inputs->loss_scale == k->loss_scale) return true;
    why_set(&c->why, PEN_MISMATCH,
            "'%s' in round %" PRIu64
            ": rank %d pushes with learning rate %.17g and loss scale %.17g, rank %d with %.17g "
            "and %.17g; all ranks must give the same",
            k->desc.tensor, k->round, e->rank, rate, e->inputs->loss_scale, k->first, k->rate,
            k->loss_scale);
    why_culprit(&c->why, PEN_WORKER, e->rank, (int64_t)k->round, k->desc.tensor);
    return false;
}

/* Checks that this contribution fits the earlier ones of the round. */
static pen_status check_round(shard_core *c, const shard_core_push_event *e, const char **reason)
{
    shard_core_chunk *k = &c->chunk[e->chunk];
    *reason             = c->why.text;
    const bool eager    = is_eager(c, e);
    if (!eager && k->round != c->partition[k->desc.partition].step) {
        mixed_verbs(c, e);
        c->n_actions = 0;
        return PEN_WRONG_STATE;
    }
    if (eager && !k->desc.is_table && shard_core_group_of(c, k)->whole_tensor)
        return why_set(&c->why, PEN_UNSUPPORTED,
                       "'%s': its update rule needs the norm of the whole tensor, so it cannot be "
                       "updated chunk by chunk "
                       "(commit=eager, pen_push_pull()); use pen_step_end() with commit=decide",
                       k->desc.tensor);
    if (e->inputs->is_node_sum && (eager || !shard_core_brings(c, e->chunk, e->rank)))
        return why_set(
            &c->why, PEN_MISMATCH,
            "'%s' in round %" PRIu64
            ": rank %d pushes a node sum that another rank must send, or for a chunk without "
            "decisions; do all ranks know the same nodes?",
            k->desc.tensor, k->round, e->rank);
    if (k->got == 0) return PEN_OK;
    if (k->by_node != e->inputs->is_node_sum)
        return why_set(&c->why, PEN_MISMATCH,
                       "'%s' in round %" PRIu64
                       ": rank %d pushes %s and rank %d %s; all ranks must use the same mode",
                       k->desc.tensor, k->round, e->rank,
                       k->by_node ? "its own gradient" : "the sum of its node", k->first,
                       k->by_node ? "that of its node" : "its own gradient");
    if (k->eager != eager)
        return why_set(&c->why, PEN_MISMATCH,
                       "'%s' in round %" PRIu64
                       ": rank %d trains it by one pen_push_pull() and rank %d by pen_step_end(); "
                       "all ranks must do the same",
                       k->desc.tensor, k->round, eager ? e->rank : k->first,
                       eager ? k->first : e->rank);
    return !k->eager || rates_agree(c, k, e) ? PEN_OK : PEN_MISMATCH;
}

/* The next rank after `rank` that adds to this round; world_size: none. */
static int32_t next_to_add(const shard_core *c, uint32_t chunk, int32_t rank)
{
    do rank = shard_core_next_turn(c, rank);
    while (c->chunk[chunk].by_node && (uint32_t)rank < c->world_size &&
           !shard_core_brings(c, chunk, rank));
    return rank;
}

/* The first contribution decides which ranks add to the round; for all others it counts as over. */
static void open_round(shard_core *c, const shard_core_push_event *e)
{
    shard_core_chunk *k = &c->chunk[e->chunk];
    k->by_node          = e->inputs->is_node_sum;
    k->turn             = next_to_add(c, e->chunk, -1);
    for (uint32_t r = 0; k->by_node && r < c->world_size; r++)
        if (c->incarnation[r] != 0 && !shard_core_brings(c, e->chunk, (int32_t)r))
            *shard_core_clock(c, e->chunk, (int32_t)r) = k->round + 1;
}

static void take(shard_core *c, const shard_core_push_event *e)
{
    shard_core_chunk *k = &c->chunk[e->chunk];
    if (k->got++ == 0) {
        k->eager      = is_eager(c, e);
        k->first      = e->rank;
        k->rate       = e->inputs->rate[k->desc.group];
        k->loss_scale = e->inputs->loss_scale;
    }
    ++*shard_core_clock(c, e->chunk, e->rank);
    if (!e->snapshot) return;
    k->capture = e->seq + 1;
    if (!k->eager) c->partition[k->desc.partition].capture = e->seq + 1;
}

/* Of a contribution to the open round. */
static uint64_t bytes_of(const shard_core_chunk *k)
{
    return k->by_node ? k->desc.sum_bytes : k->desc.bytes;
}

static void fold(shard_core *c, uint32_t chunk, int32_t rank)
{
    shard_core_send(c, CORE_FOLD, chunk)->rank = rank;
    if (!c->chunk[chunk].by_node && shard_core_ends_node(c, rank))
        shard_core_send(c, CORE_NODE, chunk)->rank = rank;
}

/* Folds the contribution whose turn it is, and all buffered ones after it. */
static void fold_from_turn(shard_core *c, uint32_t chunk)
{
    shard_core_chunk *k = &c->chunk[chunk];
    fold(c, chunk, k->turn);
    while (k->turn = next_to_add(c, chunk, k->turn), (uint32_t)k->turn < c->world_size) {
        if (*shard_core_clock(c, chunk, k->turn) == k->round) return;
        c->parked_bytes -= bytes_of(k);
        fold(c, chunk, k->turn);
    }
}

static void close_eager(shard_core *c, uint32_t chunk)
{
    shard_core_chunk *k       = &c->chunk[chunk];
    shard_core_action *update = shard_core_send(c, CORE_UPDATE, chunk);
    update->capture           = k->capture;
    update->seq               = k->round++;
    k->got                    = 0;
    k->capture                = 0;
    k->turn                   = shard_core_next_turn(c, -1);
    shard_core_serve_waiting(c, chunk);
}

static shard_core_actions add(shard_core *c, const shard_core_push_event *e)
{
    shard_core_chunk *k = &c->chunk[e->chunk];
    const char *reason;
    const pen_status status = check_round(c, e, &reason);
    if (status != PEN_OK) return refuse_push(c, e, status, reason);

    if (k->got == 0) open_round(c, e);
    const bool is_turn    = c->sums == SUMS_LOOSE || e->rank == k->turn;
    const bool has_credit = is_turn && !mutation(MUTATION_NO_RESERVED_CREDIT);
    if (!has_credit && c->parked_bytes + bytes_of(k) > c->park_bytes_max)
        return refuse_push(c, e, PEN_AGAIN, "no room to buffer this push until its turn");
    const shard_core_waiting h = answer_to(e);
    if (is_eager(c, e) && !shard_core_hold(c, e->chunk, &h))
        return refuse_push(c, e, PEN_AGAIN, "too many answers are waiting");

    take(c, e);
    if (!is_turn) {
        c->parked_bytes += bytes_of(k);
        shard_core_send(c, CORE_BUFFER, e->chunk)->rank = e->rank;
    } else if (c->sums != SUMS_LOOSE) {
        fold_from_turn(c, e->chunk);
    } else {
        fold(c, e->chunk, e->rank);
    }
    const bool is_whole = k->got == (k->by_node ? c->live_nodes : c->live);
    if (is_whole && k->eager)
        close_eager(c, e->chunk);
    else
        acknowledge(c, CORE_RECEIPT, e, false);
    if (is_whole && !k->eager) shard_core_partition_summed(c, e->chunk);
    return shard_core_sent(c);
}

/* ---- push: applied on its own ---------------------------------------------------------------- */
static shard_core_actions apply(shard_core *c, const shard_core_push_event *e)
{
    const shard_core_waiting h = answer_to(e);
    if (e->inputs->is_node_sum)
        return refuse_push(c, e, PEN_INVALID_ARGUMENT,
                           "the sum of a node cannot be applied by itself");
    if (e->want_values && !shard_core_hold(c, e->chunk, &h))
        return refuse_push(c, e, PEN_AGAIN, "too many answers are waiting");

    ++*shard_core_clock(c, e->chunk, e->rank);
    shard_core_action *update = shard_core_send(c, CORE_UPDATE, e->chunk);
    update->rank              = e->rank;
    update->seq               = e->seq;
    update->capture           = e->snapshot ? e->seq + 1 : 0;
    if (!e->want_values) acknowledge(c, CORE_APPLIED, e, false);

    shard_core_serve_waiting(c, e->chunk);
    if (!e->want_values) return shard_core_sent(c);
    for (uint32_t i = 0; i < c->n_actions; i++)
        if (c->action[i].verb == CORE_SERVE && c->action[i].rank == e->rank &&
            c->action[i].seq == e->seq)
            return shard_core_sent(c);
    shard_core_send(c, CORE_WAITING, e->chunk)->rank = e->rank;
    acknowledge(c, CORE_RECEIPT, e, false);
    return shard_core_sent(c);
}

shard_core_actions shard_core_push(shard_core *c, const shard_core_push_event *e)
{
    c->n_actions              = 0;
    const shard_core_chunk *k = &c->chunk[e->chunk];
    if (!k->has_values)
        return refuse_push(c, e, PEN_AGAIN, "the first values have not arrived yet");
    if (!k->desc.trained)
        return refuse_push(c, e, PEN_INVALID_ARGUMENT, "a frozen tensor takes no gradient");

    const shard_core_group *group = shard_core_group_of(c, k);
    const sync_view view          = shard_core_view(c, e->chunk, e->rank, e->seq, 0);
    switch (group->ops->push(&group->hyper, &view)) {
    case SYNC_REPEAT: return repeat(c, e);
    case SYNC_ADD: return add(c, e);
    case SYNC_APPLY: return apply(c, e);
    case SYNC_EARLY: break;
    }
    return refuse_push(c, e, PEN_AGAIN, "an earlier push of this chunk is still missing");
}

/* ---- pull ------------------------------------------------------------------------------------ */
static shard_core_actions refuse_pull(shard_core *c, const shard_core_pull_event *e,
                                      pen_status status, const char *reason)
{
    return shard_core_refuse(c, e->chunk, e->rank, e->peer, e->seq, status, reason);
}

shard_core_actions shard_core_pull(shard_core *c, const shard_core_pull_event *e)
{
    c->n_actions               = 0;
    const shard_core_chunk *k  = &c->chunk[e->chunk];
    const shard_core_waiting h = {
        .rank = e->rank, .peer = e->peer, .seq = e->seq, .initial = e->initial};
    if (e->decided && shard_core_is_of_step(c, k)) {
        if (k->round != e->seq + 1)
            return refuse_pull(c, e, PEN_WRONG_STATE, "these values are newer than that step");
        shard_core_serve(c, e->chunk, &h, 0);
        return shard_core_sent(c);
    }
    bool held;
    if (!shard_core_answer(c, e->chunk, &h, &held))
        return refuse_pull(c, e, PEN_AGAIN, "too many answers are waiting");
    if (held && !e->initial) shard_core_send(c, CORE_WAITING, e->chunk)->rank = e->rank;
    return shard_core_sent(c);
}

shard_core_actions shard_core_first_values(shard_core *c, uint32_t chunk)
{
    c->n_actions               = 0;
    c->chunk[chunk].has_values = true;
    shard_core_serve_waiting(c, chunk);
    return shard_core_sent(c);
}

/* ---- inquire --------------------------------------------------------------------------------- */
/* Ranks whose next push of the chunk is below `clock`. */
static uint32_t who_is_below(const shard_core *c, uint32_t chunk, uint64_t clock, int32_t *missing)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < c->world_size; r++)
        if (c->incarnation[r] != 0 && *shard_core_clock(c, chunk, (int32_t)r) < clock)
            missing[n++] = (int32_t)r;
    return n;
}

/* A decided step waits for the whole partition: the first incomplete chunk names the missing ranks. */
static uint32_t missing_of_partition(const shard_core *c, const shard_core_partition *p,
                                     uint64_t step, int32_t *missing)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n && n == 0; i++) {
        const shard_core_chunk *k = &c->chunk[c->order[p->first + i]];
        if (shard_core_is_of_step(c, k))
            n = who_is_below(c, c->order[p->first + i], step + 1, missing);
    }
    return n;
}

/* Ranks that would block this rank's values if they were the slowest. */
static uint32_t who_holds_back(const shard_core *c, uint32_t chunk, int32_t rank, int32_t *missing)
{
    const shard_core_group *group = shard_core_group_of(c, &c->chunk[chunk]);
    uint32_t n                    = 0;
    for (uint32_t r = 0; r < c->world_size; r++) {
        if (c->incarnation[r] == 0) continue;
        const sync_view view =
            shard_core_view(c, chunk, rank, 0, *shard_core_clock(c, chunk, (int32_t)r));
        if (!group->ops->serve(&group->hyper, &view)) missing[n++] = (int32_t)r;
    }
    return n;
}

shard_core_actions shard_core_inquire(shard_core *c, const shard_core_pull_event *e,
                                      int32_t *missing, uint32_t *n)
{
    c->n_actions              = 0;
    *n                        = 0;
    const shard_core_chunk *k = &c->chunk[e->chunk];
    if (!k->has_values) { /* rank 0 has them */
        missing[(*n)++] = 0;
    } else if (!k->desc.trained) {
        *n = 0;
    } else if (!shard_core_group_of(c, k)->ops->averages) {
        *n = who_holds_back(c, e->chunk, e->rank, missing);
    } else if (c->eager || k->desc.is_table || (k->eager && k->got > 0)) {
        *n = e->seq < k->round ? 0 : who_is_below(c, e->chunk, k->round + 1, missing);
    } else if (has_vote(c, k->desc.partition, e->seq)) {
        shard_core_action *a = shard_core_send(c, CORE_PREPARED, k->desc.partition);
        a->rank              = e->rank;
        a->peer              = e->peer;
    } else {
        *n = missing_of_partition(c, &c->partition[k->desc.partition], e->seq, missing);
    }
    return shard_core_sent(c);
}
