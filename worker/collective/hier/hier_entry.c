/* hier_entry.c - what precedes every call: where members are, whether two levels may fold, and the exchange of headers. */
#include "worker/collective/hier/hier_internal.h"

/* ---- host layout ----------------------------------------------------------------------------- */
int hier_place_across(const struct hier_team *team, int position)
{
    return team->host[team->host_of[position]];
}

size_t hier_slice(const struct hier_team *team, size_t n, int who)
{
    const size_t parts = (size_t)team->o.inside_size, place = (size_t)who;
    return n / parts + (place < n % parts);
}

bool hier_is_at_root(const struct hier_team *team, int root)
{
    return team->host_of[team->o.rank] == team->host_of[root];
}

/* ---- the order of folds ------------------------------------------------------------------------ */
/* An AVG of integers is divided once, after the last sum, so it uses one level only. */
bool hier_may_fold_in_two(const hier_options *o, const coll_call *call)
{
    if (hier_depends_on_order(call)) return o->may_fold_in_two;
    return call->op != PEN_AVG;
}

/* ---- headers ----------------------------------------------------------------------------------- */
static bool is_large(const struct hier_team *team)
{
    return team->o.size > MESH_DIAL_ALL;
}

pen_status hier_begin_entry(hier_op *op, pen_error *why)
{
    const hier_options *o = &op->team->o;
    op->shown.is_inside =
        op->on_devices ? !op->team->device.is_refused : o->inside != NULL || o->inside_size == 1;
    if (is_large(op->team)) {
        op->team->all_inside = op->shown.is_inside != 0;
        const coll_call part = {.kind    = COLL_BARRIER,
                                .dtype   = PEN_U8,
                                .scale   = 1,
                                .label   = op->call->label,
                                .shown   = op->call->shown != NULL ? op->call->shown : op->call,
                                .accepts = &op->team->all_inside};
        return hier_begin_part(op, ON_FLAT, &part, why);
    }
    const coll_call part = {.kind  = COLL_ALL_GATHER,
                            .dtype = PEN_U8,
                            .n     = sizeof op->shown,
                            .in    = &op->shown,
                            .out   = op->team->shown,
                            .scale = 1,
                            .label = op->call->label};
    return hier_begin_part(op, ON_FLAT, &part, why);
}

pen_status hier_compare(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    if (is_large(team)) return PEN_OK; /* the wire has compared them */
    team->all_inside = true;
    for (int i = 0; i < team->o.size; i++) {
        coll_header *header                 = &team->shown[i].header;
        header->label[COLL_LABEL_BYTES - 1] = '\0';
        team->headers[i]                    = header;
        team->all_inside &= team->shown[i].is_inside != 0;
    }
    return coll_headers_compare(team->headers, team->o.ranks, team->o.size, why);
}
