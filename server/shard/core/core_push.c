/* core_push.c - a push or pull of one chunk: moves counters, picks answers. */
#include "server/shard/core/core_state.h"

#include "common/base/plant.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- push: a repeat -------------------------------------------------------------------------- */
static void acknowledge(server_core *c, server_core_verb verb, const server_core_push_event *e,
                        bool repeated)
{
    server_core_action *a = server_core_say(c, verb, e->chunk);
    a->rank               = e->rank;
    a->peer               = e->peer;
    a->seq                = e->seq;
    a->repeated           = repeated;
}

static server_core_actions refuse_push(server_core *c, const server_core_push_event *e,
                                       pen_status status, const char *reason)
{
    return server_core_refuse(c, e->chunk, e->rank, e->peer, e->seq, status, reason);
}

static server_core_actions mixed_verbs(server_core *c, const server_core_push_event *e)
{
    why_set(&c->why, PEN_WRONG_STATE,
            "'%s' is trained by both pen_push_pull() and pen_step_end(); use one of them "
            "in a job",
            c->chunk[e->chunk].desc.tensor);
    return refuse_push(c, e, PEN_WRONG_STATE, c->why.text);
}

/* The record of a step outlives its commit: a rank that lost it cannot decide, so it pushes nothing newer, and
 * without its push no newer record exists. */
static bool has_record(const server_core *c, uint32_t partition, uint64_t step)
{
    const server_core_partition *p = &c->partition[partition];
    return (step == p->step && p->has_hash) || (step + 1 == p->step && p->has_decision);
}

static server_core_actions repeat_decided(server_core *c, const server_core_push_event *e)
{
    const server_core_chunk *k = &c->chunk[e->chunk];
    const uint32_t p           = k->desc.partition;
    if (e->seq < k->round && e->seq >= c->partition[p].step) return mixed_verbs(c, e);
    const bool is_ready = has_record(c, p, e->seq);
    acknowledge(c, is_ready ? CORE_PREPARED : CORE_RECEIPT, e, true);
    if (is_ready) c->action[c->n_actions - 1].index = p;
    return server_core_said(c);
}

/* Bsp that a decision does not close. */
static bool is_eager(const server_core *c, const server_core_push_event *e)
{
    return c->eager || e->want_values;
}

static server_core_held answer_to(const server_core_push_event *e)
{
    return (server_core_held){
        .rank = e->rank, .peer = e->peer, .seq = e->seq, .bare = !e->want_values};
}

static server_core_actions repeat(server_core *c, const server_core_push_event *e)
{
    const server_core_chunk *k = &c->chunk[e->chunk];
    if (server_core_group_of(c, k)->ops->averages) {
        if (!is_eager(c, e)) return repeat_decided(c, e);
    } else if (!e->want_values) {
        acknowledge(c, CORE_APPLIED, e, true);
        return server_core_said(c);
    }
    bool held;
    const server_core_held h = answer_to(e);
    if (!server_core_answer(c, e->chunk, &h, &held))
        return refuse_push(c, e, PEN_AGAIN, "too many answers are waiting");
    if (held)
        acknowledge(c, CORE_RECEIPT, e, true);
    else
        c->action[c->n_actions - 1].repeated = true;
    return server_core_said(c);
}

/* ---- push: part of a mean -------------------------------------------------------------------- */
static bool rates_agree(server_core *c, const server_core_chunk *k, const server_core_push_event *e)
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
static pen_status check_round(server_core *c, const server_core_push_event *e, const char **reason)
{
    server_core_chunk *k = &c->chunk[e->chunk];
    *reason              = c->why.text;
    const bool eager     = is_eager(c, e);
    if (!eager && k->round != c->partition[k->desc.partition].step) {
        mixed_verbs(c, e);
        c->n_actions = 0;
        return PEN_WRONG_STATE;
    }
    if (eager && server_core_group_of(c, k)->whole_tensor)
        return why_set(&c->why, PEN_UNSUPPORTED,
                       "'%s': its update rule needs the norm of the whole tensor, so it cannot be "
                       "updated chunk by chunk "
                       "(commit=eager, pen_push_pull()); use pen_step_end() with commit=decide",
                       k->desc.tensor);
    if (e->inputs->is_node_sum && (eager || !server_core_brings(c, e->chunk, e->rank)))
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

/* From `from` on, the next rank that adds to this round; world_size: none. */
static int32_t next_to_add(const server_core *c, uint32_t chunk, int32_t from)
{
    int32_t rank = server_core_next_live(c, from);
    while (c->chunk[chunk].by_node && (uint32_t)rank < c->world_size &&
           !server_core_brings(c, chunk, rank))
        rank = server_core_next_live(c, rank + 1);
    return rank;
}

/* The first contribution fixes who adds to the round; for all others it is as good as over. */
static void open_round(server_core *c, const server_core_push_event *e)
{
    server_core_chunk *k = &c->chunk[e->chunk];
    k->by_node           = e->inputs->is_node_sum;
    k->turn              = next_to_add(c, e->chunk, 0);
    for (uint32_t r = 0; k->by_node && r < c->world_size; r++)
        if (c->incarnation[r] != 0 && !server_core_brings(c, e->chunk, (int32_t)r))
            *server_core_clock(c, e->chunk, (int32_t)r) = k->round + 1;
}

static void take(server_core *c, const server_core_push_event *e)
{
    server_core_chunk *k = &c->chunk[e->chunk];
    if (k->got++ == 0) {
        k->eager      = is_eager(c, e);
        k->first      = e->rank;
        k->rate       = e->inputs->rate[k->desc.group];
        k->loss_scale = e->inputs->loss_scale;
    }
    ++*server_core_clock(c, e->chunk, e->rank);
    if (!e->snapshot) return;
    k->cut = e->seq + 1;
    if (!k->eager) c->partition[k->desc.partition].cut = e->seq + 1;
}

static void fold(server_core *c, uint32_t chunk, int32_t rank)
{
    server_core_say(c, CORE_FOLD, chunk)->rank = rank;
}

/* Folds the contribution whose turn it is, and all buffered ones behind it. */
static void fold_from_turn(server_core *c, uint32_t chunk)
{
    server_core_chunk *k = &c->chunk[chunk];
    fold(c, chunk, k->turn);
    while (k->turn = next_to_add(c, chunk, k->turn + 1), (uint32_t)k->turn < c->world_size) {
        if (*server_core_clock(c, chunk, k->turn) == k->round) return;
        c->parked_bytes -= k->desc.bytes;
        fold(c, chunk, k->turn);
    }
}

static void close_eager(server_core *c, uint32_t chunk)
{
    server_core_chunk *k       = &c->chunk[chunk];
    server_core_action *update = server_core_say(c, CORE_UPDATE, chunk);
    update->cut                = k->cut;
    update->seq                = k->round++;
    k->got                     = 0;
    k->cut                     = 0;
    k->turn                    = server_core_next_live(c, 0);
    server_core_serve_held(c, chunk);
}

static server_core_actions add(server_core *c, const server_core_push_event *e)
{
    server_core_chunk *k = &c->chunk[e->chunk];
    const char *reason;
    const pen_status status = check_round(c, e, &reason);
    if (status != PEN_OK) return refuse_push(c, e, status, reason);

    if (k->got == 0) open_round(c, e);
    const bool is_turn    = !c->deterministic || e->rank == k->turn;
    const bool has_credit = is_turn && !plant(PLANT_NO_RESERVED_CREDIT);
    if (!has_credit && c->parked_bytes + k->desc.bytes > c->park_bytes_max)
        return refuse_push(c, e, PEN_AGAIN, "no room to buffer this push until its turn");
    const server_core_held h = answer_to(e);
    if (is_eager(c, e) && !server_core_hold(c, e->chunk, &h))
        return refuse_push(c, e, PEN_AGAIN, "too many answers are waiting");

    take(c, e);
    if (!is_turn) {
        c->parked_bytes += k->desc.bytes;
        server_core_say(c, CORE_KEEP, e->chunk)->rank = e->rank;
    } else if (c->deterministic) {
        fold_from_turn(c, e->chunk);
    } else {
        fold(c, e->chunk, e->rank);
    }
    const bool is_whole = k->got == (k->by_node ? c->live_nodes : c->live);
    if (is_whole && k->eager)
        close_eager(c, e->chunk);
    else
        acknowledge(c, CORE_RECEIPT, e, false);
    if (is_whole && !k->eager) server_core_partition_summed(c, e->chunk);
    return server_core_said(c);
}

/* ---- push: applied on its own ---------------------------------------------------------------- */
static server_core_actions apply(server_core *c, const server_core_push_event *e)
{
    const server_core_held h = answer_to(e);
    if (e->want_values && !server_core_hold(c, e->chunk, &h))
        return refuse_push(c, e, PEN_AGAIN, "too many answers are waiting");

    ++*server_core_clock(c, e->chunk, e->rank);
    server_core_action *update = server_core_say(c, CORE_UPDATE, e->chunk);
    update->rank               = e->rank;
    update->seq                = e->seq;
    update->cut                = e->snapshot ? e->seq + 1 : 0;
    if (!e->want_values) acknowledge(c, CORE_APPLIED, e, false);

    server_core_serve_held(c, e->chunk);
    if (!e->want_values) return server_core_said(c);
    for (uint32_t i = 0; i < c->n_actions; i++)
        if (c->action[i].verb == CORE_SERVE && c->action[i].rank == e->rank &&
            c->action[i].seq == e->seq)
            return server_core_said(c);
    server_core_say(c, CORE_HELD, e->chunk)->rank = e->rank;
    acknowledge(c, CORE_RECEIPT, e, false);
    return server_core_said(c);
}

server_core_actions server_core_push(server_core *c, const server_core_push_event *e)
{
    c->n_actions               = 0;
    const server_core_chunk *k = &c->chunk[e->chunk];
    if (!k->has_values)
        return refuse_push(c, e, PEN_AGAIN, "the first values have not arrived yet");
    if (!k->desc.trained)
        return refuse_push(c, e, PEN_INVALID_ARGUMENT, "a frozen tensor takes no gradient");

    const server_core_group *group = server_core_group_of(c, k);
    const sync_view view           = server_core_view(c, e->chunk, e->rank, e->seq, 0);
    switch (group->ops->push(&group->hyper, &view)) {
    case SYNC_REPEAT: return repeat(c, e);
    case SYNC_ADD: return add(c, e);
    case SYNC_APPLY: return apply(c, e);
    case SYNC_EARLY: break;
    }
    return refuse_push(c, e, PEN_AGAIN, "an earlier push of this chunk is still missing");
}

/* ---- pull ------------------------------------------------------------------------------------ */
static server_core_actions refuse_pull(server_core *c, const server_core_pull_event *e,
                                       pen_status status, const char *reason)
{
    return server_core_refuse(c, e->chunk, e->rank, e->peer, e->seq, status, reason);
}

server_core_actions server_core_pull(server_core *c, const server_core_pull_event *e)
{
    c->n_actions               = 0;
    const server_core_chunk *k = &c->chunk[e->chunk];
    const server_core_held h   = {
          .rank = e->rank, .peer = e->peer, .seq = e->seq, .initial = e->initial};
    if (e->decided && server_core_averages(c, k)) {
        if (k->round != e->seq + 1)
            return refuse_pull(c, e, PEN_WRONG_STATE, "these values are newer than that step");
        server_core_serve(c, e->chunk, &h, 0);
        return server_core_said(c);
    }
    bool held;
    if (!server_core_answer(c, e->chunk, &h, &held))
        return refuse_pull(c, e, PEN_AGAIN, "too many answers are waiting");
    if (held && !e->initial) server_core_say(c, CORE_HELD, e->chunk)->rank = e->rank;
    return server_core_said(c);
}

server_core_actions server_core_first_values(server_core *c, uint32_t chunk)
{
    c->n_actions               = 0;
    c->chunk[chunk].has_values = true;
    server_core_serve_held(c, chunk);
    return server_core_said(c);
}

/* ---- inquire --------------------------------------------------------------------------------- */
/* Ranks whose next push of the chunk is below `clock`. */
static uint32_t who_is_below(const server_core *c, uint32_t chunk, uint64_t clock, int32_t *missing)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < c->world_size; r++)
        if (c->incarnation[r] != 0 && *server_core_clock(c, chunk, (int32_t)r) < clock)
            missing[n++] = (int32_t)r;
    return n;
}

/* A decided step waits for the whole partition: the first incomplete chunk names the missing ranks. */
static uint32_t missing_of_partition(const server_core *c, const server_core_partition *p,
                                     uint64_t step, int32_t *missing)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n && n == 0; i++) {
        const server_core_chunk *k = &c->chunk[c->order[p->first + i]];
        if (server_core_averages(c, k))
            n = who_is_below(c, c->order[p->first + i], step + 1, missing);
    }
    return n;
}

/* Ranks that would block this rank's values if they were the slowest. */
static uint32_t who_holds_back(const server_core *c, uint32_t chunk, int32_t rank, int32_t *missing)
{
    const server_core_group *group = server_core_group_of(c, &c->chunk[chunk]);
    uint32_t n                     = 0;
    for (uint32_t r = 0; r < c->world_size; r++) {
        if (c->incarnation[r] == 0) continue;
        const sync_view view =
            server_core_view(c, chunk, rank, 0, *server_core_clock(c, chunk, (int32_t)r));
        if (!group->ops->serve(&group->hyper, &view)) missing[n++] = (int32_t)r;
    }
    return n;
}

server_core_actions server_core_inquire(server_core *c, const server_core_pull_event *e,
                                        int32_t *missing, uint32_t *n)
{
    c->n_actions               = 0;
    *n                         = 0;
    const server_core_chunk *k = &c->chunk[e->chunk];
    if (!k->has_values) { /* rank 0 has them */
        missing[(*n)++] = 0;
    } else if (!k->desc.trained) {
        *n = 0;
    } else if (!server_core_group_of(c, k)->ops->averages) {
        *n = who_holds_back(c, e->chunk, e->rank, missing);
    } else if (c->eager || (k->eager && k->got > 0)) {
        *n = e->seq < k->round ? 0 : who_is_below(c, e->chunk, k->round + 1, missing);
    } else if (has_record(c, k->desc.partition, e->seq)) {
        server_core_action *a = server_core_say(c, CORE_PREPARED, k->desc.partition);
        a->rank               = e->rank;
        a->peer               = e->peer;
    } else {
        *n = missing_of_partition(c, &c->partition[k->desc.partition], e->seq, missing);
    }
    return server_core_said(c);
}
