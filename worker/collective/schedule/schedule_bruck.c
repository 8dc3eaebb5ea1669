/* schedule_bruck.c - Bruck: all_gather, small all_to_all and small all_reduce in ceil(log2 n) rounds, for any n.
 *
 * DESIGN
 * all_gather  In round k a member has its own part and the 2^k - 1 after it, and sends them to the
 *             member 2^k places before it.  Parts are stored in their final place in OUT, so a piece
 *             may wrap around.
 * all_to_all  A block to the member i places on moves by the bits of i: in round k all blocks with
 *             bit k move 2^k places on.  Slot i holds the block that has i places to go in all;
 *             blocks of a round are packed in one message.  Blocks must have equal length, because
 *             members on the way do not know other members' counts.
 * all_reduce  The inputs are gathered, each as a whole, and each member folds them in rank order: one_shot with fewer
 *             messages.  Slot i holds the input of the member i places on, so that a piece never wraps around.
 * Source: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
 * message-passing systems", IEEE TPDS 1997.
 */
#include "worker/collective/schedule/schedule_draft.h"

static bool fits(coll_kind kind, int size)
{
    return size >= 1 &&
           (kind == COLL_ALL_TO_ALL || kind == COLL_ALL_GATHER || kind == COLL_ALL_REDUCE);
}

static void move_parts(schedule_draft *d, void (*put)(schedule_draft *, int, move_range), int peer,
                       int begin, int parts, int size)
{
    int first = begin + parts <= size ? parts : size - begin;
    put(d, peer, range_out((uint32_t)begin, (uint32_t)first));
    if (first < parts) put(d, peer, range_out(0, (uint32_t)(parts - first)));
}

static void all_gather(schedule_draft *d, int size, int rank)
{
    draft_copy(d, range_out((uint32_t)rank, 1), range_in((uint32_t)rank, 1));
    for (int distance = 1; distance < size; distance *= 2) {
        int parts = distance < size - distance ? distance : size - distance;
        int from = (rank + distance) % size, to = (rank - distance + size) % size;
        draft_step(d);
        move_parts(d, draft_send, to, rank, parts, size);
        move_parts(d, draft_recv, from, from, parts, size);
    }
}

/* The block in a slot; all blocks have the length of unit 0. */
static move_range block(uint32_t slot)
{
    return range_temp(slot, 0, 0, 1);
}

static uint32_t blocks_with(int distance, int size)
{
    uint32_t blocks = 0;
    for (int i = 1; i < size; i++) blocks += (i & distance) != 0;
    return blocks;
}

/* Slots: n for the blocks, then the packed blocks to send, then the received ones. */
static void exchange(schedule_draft *d, int size, int rank, int distance)
{
    uint32_t blocks = blocks_with(distance, size), pack = (uint32_t)size;
    uint32_t came = pack + (uint32_t)size / 2, at = 0;
    draft_step(d);
    for (int i = 1; i < size; i++)
        if (i & distance) draft_copy(d, block(pack + at++), block((uint32_t)i));
    draft_step(d);
    draft_send(d, (rank + distance) % size, range_temp(pack, 0, 0, blocks));
    draft_recv(d, (rank - distance + size) % size, range_temp(came, 0, 0, blocks));
    at = 0;
    for (int i = 1; i < size; i++)
        if (i & distance) draft_copy(d, block((uint32_t)i), block(came + at++));
}

static void all_to_all(schedule_draft *d, int size, int rank)
{
    draft_copy(d, range_out((uint32_t)rank, 1), range_in((uint32_t)rank, 1));
    for (int i = 1; i < size; i++)
        draft_copy(d, block((uint32_t)i), range_in((uint32_t)((rank + i) % size), 1));
    for (int distance = 1; distance < size; distance *= 2) exchange(d, size, rank, distance);
    draft_step(d);
    for (int i = 1; i < size; i++)
        draft_copy(d, range_out((uint32_t)((rank - i + size) % size), 1), block((uint32_t)i));
}

/* The own input is in IN for the first round and the fold, and in slot 0 for the rounds between. */
static void all_reduce(schedule_draft *d, int size, int rank)
{
    for (int distance = 1; distance < size; distance *= 2) {
        const int inputs     = distance < size - distance ? distance : size - distance;
        const bool sends_own = inputs == 1;
        draft_step(d);
        draft_send(d, (rank - distance + size) % size,
                   sends_own ? range_in(0, 1) : range_temp(0, 0, 0, (uint32_t)inputs));
        draft_recv(d, (rank + distance) % size,
                   range_temp((uint32_t)distance, 0, 0, (uint32_t)inputs));
        if (distance == 1 && size > 3) draft_copy(d, range_temp(0, 0, 0, 1), range_in(0, 1));
    }
    draft_step(d);
    draft_fold(d, range_out(0, 1), true);
    for (int of = 0; of < size; of++)
        draft_operand(d,
                      of == rank ? range_in(0, 1)
                                 : range_temp((uint32_t)((of - rank + size) % size), 0, 0, 1),
                      of);
}

static pen_status build(coll_kind kind, int size, int rank, int root, schedule **out)
{
    (void)root;
    if (size == 1) return schedule_build_alone(kind, out);
    const uint32_t n = (uint32_t)size, units = kind == COLL_ALL_REDUCE ? 1 : n;
    const uint32_t slots = kind == COLL_ALL_TO_ALL   ? n + n / 2 + n / 2
                           : kind == COLL_ALL_REDUCE ? n
                                                     : 0;
    schedule_draft d     = schedule_draft_begin(kind, units, slots, true);
    if (kind == COLL_ALL_REDUCE)
        all_reduce(&d, size, rank);
    else if (kind == COLL_ALL_TO_ALL)
        all_to_all(&d, size, rank);
    else
        all_gather(&d, size, rank);
    return schedule_draft_end(&d, out);
}

static schedule_cost cost(coll_kind kind, int size, double S)
{
    if (size == 1) return schedule_cost_alone(kind, S);
    schedule_cost c = {.rounds = log2_ceil(size), .bytes = (size - 1) * S};
    if (kind == COLL_ALL_REDUCE) c.folded = size * S;
    if (kind != COLL_ALL_TO_ALL) return c;
    c.bytes = 0;
    for (int distance = 1; distance < size; distance *= 2)
        c.bytes += blocks_with(distance, size) * S;
    return c;
}

const schedule_algorithm schedule_bruck = {
    .name            = "bruck",
    .doc             = "log2(n) rounds for any n; for small all_gather, all_to_all and all_reduce",
    .fits            = fits,
    .keeps_order     = true,
    .even_all_to_all = true,
    .build           = build,
    .cost            = cost,
};
