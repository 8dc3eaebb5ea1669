/* wire_data.c - headers of the data plane; columns are used in place. */
#include "proto/wire/wire_data_internal.h"

#include "data.pb-c.h"

#include <inttypes.h>
#include <string.h>

/* clang-format off */
#define SCALARS(X) \
    X(term) X(epoch) X(from) X(to) X(rank) X(step) X(acked_below) X(payload_bytes) X(flags) X(shard) X(index) \
    X(stream) X(digest)
/* name, our count; one that is NULL has no entries */
#define COLUMNS(X) \
    X(chunk, n) X(seq, n) X(crc, n) X(version, n) X(staleness, n) X(size, n) \
    X(partition, n_partitions) X(vote_hash, n_partitions) X(missing, n_missing)
/* clang-format on */

/* ---- what both directions demand ------------------------------------------------------------- */
static pen_status check(const wire_data *d, pen_status blame, pen_error *why)
{
    if (!wire_is_data_kind((int)d->kind))
        return why_set(why, blame, "%d is not a kind of message of the data plane", (int)d->kind);
    const char *kind = wire_kind_name((int)d->kind);
    if (d->rank < -1 || d->rank >= WIRE_ITEMS_MAX)
        return why_set(why, blame, "%s has invalid rank %d", kind, d->rank);
    if (d->kind == WIRE_REFUSED && d->status >= PEN_OK && d->status != PEN_AGAIN)
        return why_set(why, blame, "%s has a status that is no failure, %d", kind, (int)d->status);
    if (d->payload_bytes > WIRE_PAYLOAD_BYTES_MAX)
        return why_set(why, blame,
                       "%s announces a payload of %" PRIu64 " bytes, over the limit of %" PRIu64,
                       kind, d->payload_bytes, WIRE_PAYLOAD_BYTES_MAX);
    if (d->n > WIRE_ITEMS_MAX || d->n_missing > WIRE_ITEMS_MAX ||
        d->inputs.n_rates > WIRE_ITEMS_MAX)
        return why_set(why, blame, "%s has a list of more than %d entries", kind, WIRE_ITEMS_MAX);
    for (uint32_t i = 0; i < d->n_votes && i < WIRE_PARTITIONS_MAX; i++)
        if (!wire_are_scalars(&d->vote[i].scalars))
            return why_set(why, blame, "%s has a record with bad scalars", kind);
    if (!wire_are_scalars(&d->inputs.scalars))
        return why_set(why, blame, "%s brings bad scalars", kind);
    if (d->inputs.states_bytes > WIRE_BLOB_BYTES_MAX)
        return why_set(why, blame, "%s carries %zu bytes of states; %d are allowed", kind,
                       d->inputs.states_bytes, WIRE_BLOB_BYTES_MAX);
    if (d->n_partitions > WIRE_PARTITIONS_MAX || d->n_votes > WIRE_PARTITIONS_MAX)
        return why_set(why, blame, "%s is about more than %d partitions", kind,
                       WIRE_PARTITIONS_MAX);
    if (d->has_decision && (d->decision.outcome < 0 || d->decision.outcome > PEN_SKIPPED_EMPTY))
        return why_set(why, blame, "%s decides %d, which is not an outcome", kind,
                       d->decision.outcome);
    if (d->n_entries > WIRE_ENTRIES_MAX)
        return why_set(why, blame, "%s has more than %d entries of a log", kind, WIRE_ENTRIES_MAX);
    return wire_check_entries(d, blame, why);
}

/* ---- decoding -------------------------------------------------------------------------------- */
static pen_status check_columns(const Pen__Data *m, pen_error *why)
{
    const struct {
        const char *name;
        size_t n, should_be;
    } columns[] = {
        {"seq", m->n_seq, m->n_chunk},         {"crc", m->n_crc, m->n_chunk},
        {"version", m->n_version, m->n_chunk}, {"staleness", m->n_staleness, m->n_chunk},
        {"size", m->n_size, m->n_chunk},       {"vote_hash", m->n_vote_hash, m->n_partition}};
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++)
        if (columns[i].n != 0 && columns[i].n != columns[i].should_be)
            return why_set(why, PEN_CORRUPT, "%s has %zu entries in column %s, where %zu belong",
                           wire_kind_name((int)m->kind), columns[i].n, columns[i].name,
                           columns[i].should_be);
    return PEN_OK;
}

static void read_scalars(const Pen__Data *theirs, wire_data *ours)
{
    *ours      = (wire_data){0};
    ours->kind = theirs->kind < WIRE_KIND_END ? (wire_kind)theirs->kind : WIRE_KIND_END;
    SCALARS(WIRE_READ)
    ours->status = wire_known_status(theirs->status);
    ours->text   = theirs->text;
}

/* The counts fit: lists longer than 32 bits can count do not fit into a head frame. */
static void read_columns(const Pen__Data *theirs, wire_data *ours)
{
    ours->n            = (uint32_t)theirs->n_chunk;
    ours->n_partitions = (uint32_t)theirs->n_partition;
    ours->n_missing    = (uint32_t)theirs->n_missing;
#define X(name, n) WIRE_READ(name)
    COLUMNS(X)
#undef X
}

static pen_status read_records(const Pen__Data *m, wire_data *d, wire_arena *arena, pen_error *why)
{
    if (m->n_vote == 0) return PEN_OK;
    wire_vote *vote = wire_arena_take(arena, m->n_vote * sizeof *vote);
    if (vote == NULL)
        return why_set(why, wire_arena_status(arena), "no memory for %zu records", m->n_vote);
    for (size_t i = 0; i < m->n_vote; i++) wire_read_vote(m->vote[i], &vote[i]);
    d->n_votes = (uint32_t)m->n_vote;
    d->vote    = vote;
    return PEN_OK;
}

pen_status wire_data_decode(const void *head, size_t size, wire_arena *arena, wire_data *d,
                            pen_error *why)
{
    void *message;
    pen_status status =
        wire_unpack(head, size, WIRE_PLANE_DATA, &pen__data__descriptor, arena, &message, why);
    if (status != PEN_OK) return status;
    const Pen__Data *m = message;
    status             = check_columns(m, why);
    if (status != PEN_OK) return status;
    if (!wire_clean_text(m->text))
        return why_set(why, PEN_CORRUPT, "%s has a text of %d bytes or more",
                       wire_kind_name((int)m->kind), WIRE_TEXT_MAX);
    read_scalars(m, d);
    read_columns(m, d);
    wire_read_inputs(m->inputs, &d->has_inputs, &d->inputs);
    wire_read_decision(m->decision, &d->has_decision, &d->decision);
    status = read_records(m, d, arena, why);
    if (status == PEN_OK) status = wire_read_entries(m, d, arena, why);
    return status == PEN_OK ? check(d, PEN_CORRUPT, why) : status;
}

/* ---- encoding -------------------------------------------------------------------------------- */
static void write_columns(const wire_data *ours, Pen__Data *theirs)
{
#define X(name, n)                                                                                 \
    theirs->n_##name = ours->name != NULL ? ours->n : 0;                                           \
    WIRE_BORROW(name)
    COLUMNS(X)
#undef X
}

static void write_scalars(const wire_data *ours, Pen__Data *theirs)
{
    theirs->kind   = (uint32_t)ours->kind;
    theirs->status = ours->status;
    SCALARS(WIRE_WRITE)
    if (ours->text != NULL) WIRE_BORROW(text)
}

static pen_status check_lists(const wire_data *d, pen_error *why)
{
    if ((d->n > 0 && d->chunk == NULL) || (d->n_partitions > 0 && d->partition == NULL) ||
        (d->n_missing > 0 && d->missing == NULL) || (d->n_votes > 0 && d->vote == NULL) ||
        (d->n_entries > 0 && d->entry == NULL) ||
        (d->has_inputs && d->inputs.n_rates > 0 && d->inputs.rate == NULL))
        return why_set(why, PEN_INVALID_ARGUMENT, "%s has a list with a count and without entries",
                       wire_kind_name((int)d->kind));
    if (d->text != NULL && strnlen(d->text, WIRE_TEXT_MAX) == WIRE_TEXT_MAX)
        return why_set(why, PEN_INVALID_ARGUMENT, "%s has a text of %d bytes or more",
                       wire_kind_name((int)d->kind), WIRE_TEXT_MAX);
    return PEN_OK;
}

pen_status wire_data_encode(const wire_data *d, wire_out *out, pen_error *why)
{
    pen_status status = check_lists(d, why);
    if (status == PEN_OK) status = check(d, PEN_INVALID_ARGUMENT, why);
    if (status != PEN_OK) return status;

    Pen__Data m = PEN__DATA__INIT;
    Pen__Inputs inputs;
    Pen__Decision decision;
    Pen__Vote votes[WIRE_PARTITIONS_MAX], *vote[WIRE_PARTITIONS_MAX];

    write_scalars(d, &m);
    write_columns(d, &m);
    m.inputs   = wire_write_inputs(d->has_inputs, &d->inputs, &inputs);
    m.decision = wire_write_decision(d->has_decision, &d->decision, &decision);
    for (uint32_t i = 0; i < d->n_votes; i++)
        vote[i] = wire_write_vote(true, &d->vote[i], &votes[i]);
    m.n_vote = d->n_votes;
    m.vote   = vote;
    if (d->n_entries > 0) return wire_pack_entries(d, &m, out, why);
    return wire_pack(&m.base, WIRE_PLANE_DATA, out, why);
}

/* ---- copying --------------------------------------------------------------------------------- */
static const void *copy_list(void *room, size_t *used, const void *list, size_t bytes)
{
    if (list == NULL || bytes == 0) return NULL;
    const void *copy = room != NULL ? memcpy((char *)room + *used, list, bytes) : list;
    *used += (bytes + 7) / 8 * 8;
    return copy;
}

size_t wire_data_copy_lists(wire_data *d, void *room)
{
    size_t used = 0;
#define X(name, n) d->name = copy_list(room, &used, d->name, d->n * sizeof *d->name);
    COLUMNS(X)
#undef X
    d->vote = copy_list(room, &used, d->vote, d->n_votes * sizeof *d->vote);
    if (d->text != NULL) d->text = copy_list(room, &used, d->text, strlen(d->text) + 1);
    return used;
}
