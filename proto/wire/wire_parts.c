/* wire_parts.c - parts of data messages and log entries: inputs, decisions, votes. */
#include "proto/wire/wire_data_internal.h"

#include "data.pb-c.h"

/* Columns that do not fit get an invalid count, which the check that follows refuses. */
static void read_sums(size_t n_names, const uint64_t *name, size_t n_sums, const double *sum,
                      size_t n_ranks, const uint32_t *ranks, wire_scalars *s)
{
    const bool fits = n_names <= WIRE_SCALARS_MAX && n_sums == n_names && n_ranks == n_names;
    s->n            = fits ? (uint32_t)n_names : WIRE_SCALARS_MAX + 1;
    for (uint32_t i = 0; fits && i < s->n; i++) {
        s->name[i]  = name[i];
        s->sum[i]   = sum[i];
        s->ranks[i] = ranks[i];
    }
}

bool wire_are_scalars(const wire_scalars *s)
{
    if (s->n > WIRE_SCALARS_MAX) return false;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->ranks[i] == 0 || s->ranks[i] > WIRE_ITEMS_MAX) return false;
    return true;
}

/* clang-format off */
#define INPUTS(X)   X(loss_scale) X(clip) X(weight) X(skip) X(snapshot)
#define DECISION(X) X(clip) X(gscale) X(norm) X(applied)
#define RECORD(X)   X(partition) X(hash) X(weight_sum) X(finite) X(bad_chunk) X(bad_rank)

/* Both messages have the same three columns. */
#define READ_SCALARS \
    read_sums(theirs->n_scalar_name, theirs->scalar_name, theirs->n_scalar_sum, theirs->scalar_sum, \
              theirs->n_scalar_ranks, theirs->scalar_ranks, &ours->scalars);
#define WRITE_SCALARS \
    theirs->n_scalar_name = theirs->n_scalar_sum = theirs->n_scalar_ranks = ours->scalars.n; \
    theirs->scalar_name  = WIRE_COLUMN(uint64_t, ours->scalars.name); \
    theirs->scalar_sum   = WIRE_COLUMN(double, ours->scalars.sum); \
    theirs->scalar_ranks = WIRE_COLUMN(uint32_t, ours->scalars.ranks);
/* clang-format on */

void wire_read_inputs(const Pen__Inputs *theirs, bool *is_there, wire_inputs *ours)
{
    *is_there = theirs != NULL;
    if (theirs == NULL) return;
    *ours = (wire_inputs){.is_node_sum  = theirs->node_sum != 0,
                          .n_rates      = (uint32_t)theirs->n_rate,
                          .rate         = theirs->rate,
                          .states       = theirs->states.len > 0 ? theirs->states.data : NULL,
                          .states_bytes = theirs->states.len};
    INPUTS(WIRE_READ)
    READ_SCALARS
}

void wire_read_decision(const Pen__Decision *theirs, bool *is_there, wire_decision *ours)
{
    *is_there = theirs != NULL;
    if (theirs == NULL) return;
    ours->outcome = theirs->outcome <= PEN_SKIPPED_EMPTY ? (int32_t)theirs->outcome : -1;
    DECISION(WIRE_READ)
}

void wire_read_vote(const Pen__Vote *theirs, wire_vote *ours)
{
    *ours = (wire_vote){0};
    RECORD(WIRE_READ)
    READ_SCALARS
}

Pen__Inputs *wire_write_inputs(bool is_there, const wire_inputs *ours, Pen__Inputs *theirs)
{
    if (!is_there) return NULL;
    pen__inputs__init(theirs);
    theirs->node_sum = ours->is_node_sum;
    theirs->n_rate   = ours->n_rates;
    WIRE_BORROW(rate)
    theirs->states = (ProtobufCBinaryData){ours->states_bytes, WIRE_COLUMN(uint8_t, ours->states)};
    INPUTS(WIRE_WRITE)
    WRITE_SCALARS
    return theirs;
}

Pen__Decision *wire_write_decision(bool is_there, const wire_decision *ours, Pen__Decision *theirs)
{
    if (!is_there) return NULL;
    pen__decision__init(theirs);
    theirs->outcome = (uint32_t)ours->outcome;
    DECISION(WIRE_WRITE)
    return theirs;
}

Pen__Vote *wire_write_vote(bool is_there, const wire_vote *ours, Pen__Vote *theirs)
{
    if (!is_there) return NULL;
    pen__vote__init(theirs);
    RECORD(WIRE_WRITE)
    WRITE_SCALARS
    return theirs;
}
