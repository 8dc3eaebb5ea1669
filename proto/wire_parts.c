/* wire_parts.c - what messages of the data plane and entries of a log both have: inputs, decisions, records. */
#include "proto/wire_data_internal.h"

#include "data.pb-c.h"

/* Columns that do not fit are more than there may be: the check that follows says so. */
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

void wire_read_inputs(const Pen__Inputs *m, bool *is_there, wire_inputs *in)
{
    *is_there = m != NULL;
    if (m == NULL) return;
    *in = (wire_inputs){.loss_scale   = m->loss_scale,
                        .clip         = m->clip,
                        .weight       = m->weight,
                        .skip         = m->skip != 0,
                        .snapshot     = m->snapshot != 0,
                        .is_node_sum  = m->node_sum != 0,
                        .n_rates      = (uint32_t)m->n_rate,
                        .rate         = m->rate,
                        .states       = m->states.len > 0 ? m->states.data : NULL,
                        .states_bytes = m->states.len};
    read_sums(m->n_scalar_name, m->scalar_name, m->n_scalar_sum, m->scalar_sum, m->n_scalar_ranks,
              m->scalar_ranks, &in->scalars);
}

void wire_read_decision(const Pen__Decision *m, bool *is_there, wire_decision *decision)
{
    *is_there = m != NULL;
    if (m == NULL) return;
    *decision =
        (wire_decision){.outcome = m->outcome <= PEN_SKIPPED_EMPTY ? (int32_t)m->outcome : -1,
                        .clip    = m->clip,
                        .gscale  = m->gscale,
                        .norm    = m->norm,
                        .applied = m->applied};
}

void wire_read_record(const Pen__Record *m, wire_record *record)
{
    *record = (wire_record){.partition  = m->partition,
                            .hash       = m->hash,
                            .weight_sum = m->weight_sum,
                            .finite     = m->finite != 0,
                            .bad_chunk  = m->bad_chunk,
                            .bad_rank   = m->bad_rank};
    read_sums(m->n_scalar_name, m->scalar_name, m->n_scalar_sum, m->scalar_sum, m->n_scalar_ranks,
              m->scalar_ranks, &record->scalars);
}

Pen__Inputs *wire_write_inputs(bool is_there, const wire_inputs *in, Pen__Inputs *m)
{
    if (!is_there) return NULL;
    pen__inputs__init(m);
    m->loss_scale    = in->loss_scale;
    m->clip          = in->clip;
    m->weight        = in->weight;
    m->skip          = in->skip;
    m->snapshot      = in->snapshot;
    m->node_sum      = in->is_node_sum;
    m->n_rate        = in->n_rates;
    m->rate          = WIRE_COLUMN(double, in->rate);
    m->states        = (ProtobufCBinaryData){in->states_bytes, WIRE_COLUMN(uint8_t, in->states)};
    m->n_scalar_name = m->n_scalar_sum = m->n_scalar_ranks = in->scalars.n;
    m->scalar_name  = WIRE_COLUMN(uint64_t, in->scalars.name);
    m->scalar_sum   = WIRE_COLUMN(double, in->scalars.sum);
    m->scalar_ranks = WIRE_COLUMN(uint32_t, in->scalars.ranks);
    return m;
}

Pen__Decision *wire_write_decision(bool is_there, const wire_decision *in, Pen__Decision *m)
{
    if (!is_there) return NULL;
    pen__decision__init(m);
    m->outcome = (uint32_t)in->outcome;
    m->clip    = in->clip;
    m->gscale  = in->gscale;
    m->norm    = in->norm;
    m->applied = in->applied;
    return m;
}

Pen__Record *wire_write_record(bool is_there, const wire_record *in, Pen__Record *m)
{
    if (!is_there) return NULL;
    pen__record__init(m);
    m->partition     = in->partition;
    m->hash          = in->hash;
    m->weight_sum    = in->weight_sum;
    m->finite        = in->finite;
    m->bad_chunk     = in->bad_chunk;
    m->bad_rank      = in->bad_rank;
    m->n_scalar_name = m->n_scalar_sum = m->n_scalar_ranks = in->scalars.n;
    m->scalar_name  = WIRE_COLUMN(uint64_t, in->scalars.name);
    m->scalar_sum   = WIRE_COLUMN(double, in->scalars.sum);
    m->scalar_ranks = WIRE_COLUMN(uint32_t, in->scalars.ranks);
    return m;
}
