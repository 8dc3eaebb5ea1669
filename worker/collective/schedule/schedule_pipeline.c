/* schedule_pipeline.c - a chain from the root, with pieces in sequence; for large broadcasts.
 *
 * DESIGN
 * Every member sends each byte once, so a broadcast of S bytes takes little more than S divided by
 * the link's speed: the last of n members has all data after PIECES + n - 2 rounds of S / PIECES
 * bytes each.
 */
#include "worker/collective/schedule/schedule_draft.h"

enum { PIECES = 32 };

static bool fits(coll_kind kind, int size)
{
    return kind == COLL_BROADCAST && size >= 1;
}

static pen_status build(coll_kind kind, int size, int rank, int root, schedule **out)
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

static schedule_cost cost(coll_kind kind, int size, double S)
{
    if (size == 1) return schedule_cost_alone(kind, S);
    return (schedule_cost){.rounds = PIECES + size - 2, .bytes = S};
}

const schedule_algorithm schedule_pipeline = {
    .name        = "pipeline",
    .doc         = "pieces follow one another along a chain from the root; for large broadcasts",
    .fits        = fits,
    .keeps_order = true,
    .build       = build,
    .cost        = cost,
};
