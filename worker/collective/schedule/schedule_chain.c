/* schedule_chain.c - one member after another, with two connections for each: chain, an all_reduce in rank order, and
 * pipeline, a broadcast in pieces from the root.
 *
 * DESIGN  chain.  Member r adds its input to the sum of those before it, and passes it on; the last one has the result,
 * which returns the same way.  The bytes of a ring, 2 S for each member, but x0 + x1 + x2 ... in rank order.  Segments follow each other
 * along the chain: all go up first, then all come back (schedule.split), because a segment on its way would otherwise
 * occupy a track of every member until it has returned.
 *   pipeline.  Every member sends each byte once, so a broadcast of S bytes takes little more than S divided by the link's
 * speed: the last of n members has all data after PIECES + n - 2 rounds of S / PIECES bytes each.
 */
#include "worker/collective/schedule/schedule_draft.h"

/* ---- chain ----------------------------------------------------------------------------------- */
static bool chain_fits(coll_kind kind, int size)
{
    return size >= 1 && kind == COLL_ALL_REDUCE;
}

/* Slots: what came, and what goes on. */
static pen_status chain_build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    (void)root;
    if (size == 1) return schedule_build_alone(kind, out);
    const bool is_first = rank == 0, is_last = rank == size - 1;
    const move_range came = range_temp(0, 0, 0, 1), sum = range_temp(1, 0, 0, 1);
    schedule_draft d = schedule_draft_begin(kind, 1, is_first ? 0 : is_last ? 1 : 2, false);
    draft_scale_first(&d);
    if (!is_first) {
        draft_recv(&d, rank - 1, came);
        draft_fold(&d, is_last ? range_out(0, 1) : sum, is_last);
        draft_operand(&d, came, rank == 1 ? 0 : -1);
        draft_operand(&d, range_in(0, 1), rank);
        draft_step(&d);
    }
    if (!is_last) draft_send(&d, rank + 1, is_first ? range_in(0, 1) : sum);
    draft_split(&d);
    if (!is_last) draft_recv(&d, rank + 1, range_out(0, 1));
    draft_step(&d);
    if (!is_first) draft_send(&d, rank - 1, range_out(0, 1));
    return schedule_draft_end(&d, out);
}

static schedule_cost chain_cost(coll_kind kind, int size, double S)
{
    if (size == 1) return schedule_cost_alone(kind, S);
    return (schedule_cost){
        .rounds = 2 * (size - 1), .bytes = size > 2 ? 2 * S : S, .folded = 2 * S};
}

const schedule_algorithm schedule_chain = {
    .name = "chain",
    .doc  = "each member adds its input to the sum of those before it; for large all_reduces among "
            "very many",
    .fits = chain_fits,
    .in_rank_order = true,
    .build         = chain_build,
    .cost          = chain_cost,
};

/* ---- pipeline -------------------------------------------------------------------------------- */
enum { PIECES = 32 };

static bool pipeline_fits(coll_kind kind, int size)
{
    return kind == COLL_BROADCAST && size >= 1;
}

static pen_status pipeline_build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    if (size == 1) return schedule_build_alone(kind, out);
    int v      = (rank - root + size) % size; /* counted from the root */
    int before = (rank - 1 + size) % size, after = (rank + 1) % size;
    schedule_draft d = schedule_draft_begin(kind, PIECES, 0, true);
    for (uint32_t i = 0; i <= PIECES; i++) {
        draft_step(&d);
        if (v > 0 && i < PIECES) draft_recv(&d, before, range_out(i, 1));
        if (v == size - 1) continue;
        if (v == 0 && i < PIECES) draft_send(&d, after, range_in(i, 1));
        if (v > 0 && i > 0) draft_send(&d, after, range_out(i - 1, 1));
    }
    return schedule_draft_end(&d, out);
}

static schedule_cost pipeline_cost(coll_kind kind, int size, double S)
{
    if (size == 1) return schedule_cost_alone(kind, S);
    return (schedule_cost){.rounds = PIECES + size - 2, .bytes = S};
}

const schedule_algorithm schedule_pipeline = {
    .name        = "pipeline",
    .doc         = "pieces follow one another along a chain from the root; for large broadcasts",
    .fits        = pipeline_fits,
    .keeps_order = true,
    .build       = pipeline_build,
    .cost        = pipeline_cost,
};
