/* wire_entry.c - entries of a shard's log, as LOG carries them. */
#include "proto/wire/wire_data_internal.h"

#include "data.pb-c.h"

#include <inttypes.h>

/* ---- what both directions demand ------------------------------------------------------------- */
static pen_status check_entry(const wire_entry *e, pen_status blame, pen_error *why)
{
    if ((int)e->what < WIRE_ENTRY_FIRST || (int)e->what >= WIRE_ENTRY_END)
        return why_set(why, blame, "LOG has an entry of unknown kind %d", (int)e->what);
    if (e->rank < -1 || e->rank >= WIRE_ITEMS_MAX)
        return why_set(why, blame, "LOG has invalid rank %d", e->rank);
    if (e->n_numbers > WIRE_ITEMS_MAX || e->inputs.n_rates > WIRE_ITEMS_MAX)
        return why_set(why, blame, "LOG has a list of more than %d entries", WIRE_ITEMS_MAX);
    if (!wire_are_scalars(&e->inputs.scalars) || !wire_are_scalars(&e->vote.scalars))
        return why_set(why, blame, "LOG has an entry with bad scalars");
    if (e->has_decision && (e->decision.outcome < 0 || e->decision.outcome > PEN_SKIPPED_EMPTY))
        return why_set(why, blame, "LOG decides %d, which is not an outcome", e->decision.outcome);
    if ((e->n_numbers > 0 && e->number == NULL) ||
        (e->has_inputs && e->inputs.n_rates > 0 && e->inputs.rate == NULL))
        return why_set(why, blame, "LOG has a list with a count and without entries");
    return PEN_OK;
}

pen_status wire_check_entries(const wire_data *d, pen_status blame, pen_error *why)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < d->n_entries; i++) {
        const pen_status status = check_entry(&d->entry[i], blame, why);
        if (status != PEN_OK) return status;
        if (d->entry[i].bytes > d->payload_bytes - bytes)
            return why_set(why, blame,
                           "entries of LOG have more payload than its %" PRIu64 " bytes",
                           d->payload_bytes);
        bytes += d->entry[i].bytes;
    }
    if (d->n_entries > 0 && bytes != d->payload_bytes)
        return why_set(why, blame,
                       "LOG announces a payload of %" PRIu64 " bytes, its entries have %" PRIu64,
                       d->payload_bytes, bytes);
    return PEN_OK;
}

/* ---- decoding -------------------------------------------------------------------------------- */
/* clang-format off */
#define NUMBERS(X) \
    X(object) X(rank) X(step) X(capture) X(bytes) X(version) X(applied) X(crc) X(slot) X(restart) X(weight_sum) X(digest)
/* clang-format on */

static void read_entry(const Pen__Entry *theirs, wire_entry *ours)
{
    *ours = (wire_entry){
        .is_last = theirs->last, .n_numbers = (uint32_t)theirs->n_number, .number = theirs->number};
    ours->what = theirs->what < WIRE_ENTRY_END ? (wire_entry_kind)theirs->what : WIRE_ENTRY_END;
    NUMBERS(WIRE_READ)
    wire_read_inputs(theirs->inputs, &ours->has_inputs, &ours->inputs);
    wire_read_decision(theirs->decision, &ours->has_decision, &ours->decision);
    ours->has_vote = theirs->vote != NULL;
    if (ours->has_vote) wire_read_vote(theirs->vote, &ours->vote);
}

pen_status wire_read_entries(const Pen__Data *m, wire_data *d, wire_arena *arena, pen_error *why)
{
    if (m->n_entry == 0) return PEN_OK;
    wire_entry *entry = wire_arena_take(arena, m->n_entry * sizeof *entry);
    if (entry == NULL)
        return why_set(why, wire_arena_status(arena), "no memory for %zu entries of a log",
                       m->n_entry);
    for (size_t i = 0; i < m->n_entry; i++) read_entry(m->entry[i], &entry[i]);
    d->n_entries = (uint32_t)m->n_entry;
    d->entry     = entry;
    return PEN_OK;
}

/* ---- encoding -------------------------------------------------------------------------------- */
typedef struct { /* of one message; uninitialised */
    Pen__Entry entry[WIRE_ENTRIES_MAX], *pointer[WIRE_ENTRIES_MAX];
    Pen__Inputs inputs[WIRE_ENTRIES_MAX];
    Pen__Decision decision[WIRE_ENTRIES_MAX];
    Pen__Vote vote[WIRE_ENTRIES_MAX];
} entries_room;

static void write_entry(const wire_entry *ours, entries_room *room, uint32_t i)
{
    Pen__Entry *theirs = room->pointer[i] = &room->entry[i];
    pen__entry__init(theirs);
    theirs->what     = (uint32_t)ours->what;
    theirs->last     = ours->is_last;
    theirs->n_number = ours->n_numbers;
    NUMBERS(WIRE_WRITE)
    WIRE_BORROW(number)
    theirs->inputs   = wire_write_inputs(ours->has_inputs, &ours->inputs, &room->inputs[i]);
    theirs->decision = wire_write_decision(ours->has_decision, &ours->decision, &room->decision[i]);
    theirs->vote     = wire_write_vote(ours->has_vote, &ours->vote, &room->vote[i]);
}

pen_status wire_pack_entries(const wire_data *d, Pen__Data *m, wire_out *out, pen_error *why)
{
    entries_room room;
    for (uint32_t i = 0; i < d->n_entries; i++) write_entry(&d->entry[i], &room, i);
    m->n_entry = d->n_entries;
    m->entry   = room.pointer;
    return wire_pack(&m->base, WIRE_PLANE_DATA, out, why);
}
