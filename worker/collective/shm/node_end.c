/* node_end.c - how a call among members of a host ends: successfully, given up here, or given up by a peer. */
#include "worker/collective/shm/node_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"

#include <sched.h>
#include <string.h>

enum { SCRATCH_KEPT_BYTES = 64 << 20 }; /* a larger scratch is freed after the call */

coll_state node_end(node_op *op, coll_state state)
{
    node_team *t = op->team;
    for (int i = 0; i < t->n_mapped; i++) segment_unmap(&t->mapped[i]);
    t->n_mapped = 0;
    if (t->scratch_bytes > SCRATCH_KEPT_BYTES) node_drop_scratch(t);
    if (state != COLL_DONE) {
        atomic_store(&node_own_slot(t)->revoked, op->seq);
        node_team_ring(t);
    }
    atomic_store_explicit(&node_own_slot(t)->ended, op->seq, memory_order_release);
    op->stage = NODE_OVER;
    return state;
}

/* Nothing was moved, and nothing is given up: the same call takes another path. */
coll_state node_turn_back(node_op *op, pen_error *why)
{
    const node_team *t = op->team;
    why_set(why, PEN_UNREACHABLE, "rank %d cannot map the memory of all workers of its host",
            t->ranks[t->refuser]);
    why_culprit(why, PEN_WORKER, t->ranks[t->refuser], -1, op->call->label);
    atomic_store_explicit(&node_own_slot(t)->ended, op->seq, memory_order_release);
    op->stage = NODE_OVER;
    return COLL_FAILED;
}

/* ---- given up here --------------------------------------------------------------------------- */
static bool is_anyone_busy(const node_op *op)
{
    const node_team *t = op->team;
    for (int i = 0; i < t->size; i++)
        if (i != t->rank && t->slot[i] != NULL && atomic_load(&t->slot[i]->busy) == op->seq &&
            node_is_alive(t->peer[i].ref.pid))
            return true;
    return false;
}

static bool wait_for_busy(const node_op *op)
{
    const uint64_t end = clock_ms(&clock_real) + NODE_PATIENCE_MS;
    while (is_anyone_busy(op)) {
        if (clock_ms(&clock_real) >= end) return false;
        sched_yield();
    }
    return true;
}

/* Bytes of slice `who` that may be overwritten: all of them are in the scratch.  A peer that is in a later call has
 * ended this one, and so has saved all. */
static size_t overwritten(const node_op *op, int who, size_t slice)
{
    const node_slot *slot = op->team->slot[who];
    size_t bytes          = op->kept * op->block;
    if (!op->takes && slot != NULL && op->own.saves) {
        const uint64_t saved = atomic_load(&slot->saved);
        if (saved >> 32 > op->seq) return slice;
        if (saved >> 32 == op->seq) bytes = (saved & UINT32_MAX) * NODE_LINE_BYTES;
    }
    return bytes < slice ? bytes : slice;
}

/* After all peers have left our memory, or cannot reach it any more. */
static void restore_input(const node_op *op)
{
    node_team *t = op->team;
    if (op->saves && op->holds_all) { /* what is not in the scratch has not been overwritten */
        const size_t filled = op->fill * op->block,
                     bytes  = filled < op->in_bytes ? filled : op->in_bytes;
        if (bytes > 0) memcpy((unsigned char *)(uintptr_t)op->call->in, t->scratch, bytes);
        return;
    }
    for (int i = 0; op->saves && i < t->size; i++) {
        const node_part slice = node_slice(op, i);
        const size_t bytes    = overwritten(op, i, slice.bytes);
        if (bytes > 0)
            memcpy((unsigned char *)op->call->out + slice.offset, t->scratch + slice.offset, bytes);
    }
}

void node_give_up(node_op *op)
{
    node_team *t = op->team;
    if (op->stage == NODE_OVER) return;
    atomic_store(&node_own_slot(t)->revoked, op->seq);
    const bool is_late = !wait_for_busy(op) && op->own.out_mapped;
    if (is_late && !op->is_apart) segment_detach(op->out);
    restore_input(op);
    if (is_late && (op->is_apart || op->saves)) node_drop_scratch(t);
    node_end(op, COLL_FAILED);
}

/* ---- given up by a peer ---------------------------------------------------------------------- */
bool node_is_revoked(const node_op *op)
{
    const node_team *t = op->team;
    for (int i = 0; i < t->size; i++)
        if (i != t->rank && t->slot[i] != NULL && atomic_load(&t->slot[i]->revoked) == op->seq)
            return true;
    return false;
}

/* The peer that gave up knows why and tells all through the scheduler.  Our own, poorer sentence is a fallback. */
coll_state node_given_up(node_op *op, pen_error *why)
{
    const uint64_t now = clock_ms(&clock_real);
    if (op->given_up_ms == 0) op->given_up_ms = now;
    if (now - op->given_up_ms < NODE_GRACE_MS) return COLL_RUNNING;
    const node_team *t = op->team;
    int who            = 0;
    while (
        op->lost == 0 && who < t->size - 1 &&
        (who == t->rank || t->slot[who] == NULL || atomic_load(&t->slot[who]->revoked) != op->seq))
        who++;
    if (op->lost != 0) who = op->lost - 1;
    why_set(why, PEN_PEER_LOST, "%s (call %llu): rank %d %s", coll_kind_name(op->call->kind),
            (unsigned long long)op->seq, t->ranks[who],
            op->lost == 0 ? "gave the call up"
                          : "has died, or its memory cannot be opened; let all workers of a host "
                            "run as one user in one pid namespace");
    why_culprit(why, PEN_WORKER, t->ranks[who], -1, op->call->label);
    node_give_up(op);
    return COLL_FAILED;
}
