/* hier_parts.c - all_gather and reduce_scatter in two levels, if all hosts have the same number of members.
 *
 * DESIGN
 * Order.          Between the phases, parts are ordered by place, then host.  The parts of one place, one on each host,
 *                 are therefore contiguous: a column.
 * all_gather      Members of the same place gather their parts, a column; inside the host the columns are gathered, and
 *                 each member puts the parts in order.  Each part thus goes to each host once.
 * reduce_scatter  The reverse: inside the host each member folds the column of its place; members of the same place
 *                 fold their hosts' columns, each its own part.
 */
#include "worker/collective/hier/hier_internal.h"

#include "common/compute/simd/simd.h"
#include "proto/plan.h"

#include <string.h>

static size_t element_of(const hier_op *op)
{
    return plan_dtype_bytes(hier_dtype(op->call));
}

static size_t part_of(const hier_op *op, int position)
{
    return coll_part(op->call->counts, op->call->n, position);
}

size_t hier_count_columns(const hier_op *op)
{
    struct hier_team *team = op->team;
    const int hosts        = team->o.across_size;
    size_t all             = 0;
    for (int place = 0; place < team->o.inside_size; place++) {
        team->counts[place] = 0;
        for (int host = 0; host < hosts; host++)
            team->counts[place] += part_of(op, team->at[place * hosts + host]);
        all += team->counts[place];
    }
    for (int host = 0; host < hosts; host++)
        team->column[host] = part_of(op, team->at[team->o.inside_rank * hosts + host]);
    return all;
}

/* The scratch holds this member's column, then the columns of all places. */
static size_t column_bytes(const hier_op *op)
{
    return op->team->counts[op->team->o.inside_rank] * element_of(op);
}

static unsigned char *all_columns(const hier_op *op)
{
    return op->team->scratch + (column_bytes(op) + 63) / 64 * 64;
}

static pen_status make_room(hier_op *op, pen_error *why)
{
    const size_t all = hier_count_columns(op) * element_of(op);
    return hier_make_scratch(op->team, (column_bytes(op) + 63) / 64 * 64 + all + 1, why);
}

/* Between the group's order, in `ordered`, and the order of columns; columns of 16-bit sums are float32. */
typedef enum { TO_COLUMNS, FROM_COLUMNS } direction;

static void reorder(const hier_op *op, unsigned char *ordered, direction to)
{
    const struct hier_team *team = op->team;
    const size_t element         = plan_dtype_bytes(op->call->dtype);
    unsigned char *column        = all_columns(op);
    for (int i = 0; i < team->o.size; i++) {
        const int position = team->at[i];
        const size_t n     = part_of(op, position);
        unsigned char *part =
            ordered + coll_part_offset(op->call->counts, op->call->n, position) * element;
        if (hier_is_wide(op->call))
            simd()->decode((float *)(void *)column, part, op->call->dtype, n);
        else if (n > 0)
            memcpy(to == TO_COLUMNS ? column : part, to == TO_COLUMNS ? part : column, n * element);
        column += n * element_of(op);
    }
}

/* ---- all_gather ------------------------------------------------------------------------------ */
pen_status hier_begin_column(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    pen_status status      = make_room(op, why);
    if (status != PEN_OK) return status;
    coll_call part = hier_part(op, COLL_ALL_GATHER, team->column[team->o.across_rank], op->call->in,
                               team->scratch);
    part.counts    = team->column;
    return hier_begin_part(op, ON_ACROSS, &part, why);
}

pen_status hier_begin_rows(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    coll_call part         = hier_part(op, COLL_ALL_GATHER, team->counts[team->o.inside_rank],
                                       team->scratch, all_columns(op));
    part.counts            = team->counts;
    return hier_begin_part(op, ON_INSIDE, &part, why);
}

void hier_finish_rows(hier_op *op)
{
    reorder(op, op->call->out, FROM_COLUMNS);
}

/* ---- reduce_scatter -------------------------------------------------------------------------- */
pen_status hier_begin_shares(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    pen_status status      = make_room(op, why);
    if (status != PEN_OK) return status;
    reorder(op, (unsigned char *)(uintptr_t)op->call->in, TO_COLUMNS);
    coll_call part = hier_part(op, COLL_REDUCE_SCATTER, team->counts[team->o.inside_rank],
                               all_columns(op), team->scratch);
    part.counts    = team->counts;
    part.scale     = op->call->scale;
    return hier_begin_part(op, ON_INSIDE, &part, why);
}

/* The columns are no longer needed: the own part of the sum overwrites them. */
pen_status hier_begin_total(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    coll_call part         = hier_part(op, COLL_REDUCE_SCATTER, team->column[team->o.across_rank],
                                       team->scratch, all_columns(op));
    part.counts            = team->column;
    return hier_begin_part(op, ON_ACROSS, &part, why);
}

void hier_finish_total(hier_op *op)
{
    const size_t n = op->team->column[op->team->o.across_rank];
    hier_divide(op, all_columns(op), n);
    if (hier_is_wide(op->call))
        simd()->encode(op->call->out, (const float *)(const void *)all_columns(op), op->call->dtype,
                       n);
    else if (n > 0)
        memcpy(op->call->out, all_columns(op), n * element_of(op));
}
