/* hier_inner.c - the part of a call in progress, on one level, and the memory between parts. */
#include "worker/collective/hier/hier_internal.h"

#include "common/base/why.h"
#include "common/compute/simd/reduce.h"

#include <stdlib.h>

enum { SCRATCH_KEPT_BYTES = 64 << 20 }; /* a larger scratch is freed after the call */

bool hier_depends_on_order(const coll_call *call)
{
    const bool is_float = call->dtype == PEN_F32 || call->dtype == PEN_F64 ||
                          call->dtype == PEN_F16 || call->dtype == PEN_BF16;
    return coll_reduces(call->kind) && is_float &&
           (call->op == PEN_SUM || call->op == PEN_PROD || call->op == PEN_AVG);
}

bool hier_is_wide(const coll_call *call)
{
    return hier_depends_on_order(call) && (call->dtype == PEN_F16 || call->dtype == PEN_BF16);
}

pen_dtype hier_dtype(const coll_call *call)
{
    return hier_is_wide(call) ? PEN_F32 : call->dtype;
}

coll_call hier_part(const hier_op *op, coll_kind kind, size_t n, const void *in, void *out)
{
    return (coll_call){.kind  = kind,
                       .op    = hier_inner_op(op->call),
                       .dtype = hier_dtype(op->call),
                       .n     = n,
                       .in    = in,
                       .out   = out,
                       .scale = 1,
                       .label = op->call->label};
}

static bool is_on_mesh(hier_level level)
{
    return level == ON_FLAT || level == ON_ACROSS;
}

/* Inside a host. */
static const coll_path *path_inside(hier_level level)
{
    return level == ON_DEVICE ? &coll_path_device : &coll_path_node;
}

pen_status hier_begin_part(hier_op *op, hier_level level, const coll_call *part, pen_error *why)
{
    struct hier_team *team = op->team;
    const uint64_t seq     = ++team->seq[level];
    pen_status status;
    op->part  = *part;
    op->level = level;
    atomic_store(&team->is_on_mesh, is_on_mesh(level));
    if (!is_on_mesh(level)) {
        void *inside = level == ON_DEVICE ? (void *)team->device.o.inside : team->o.inside;
        status       = path_inside(level)->start(inside, team->inner, &op->part, seq, why);
    } else {
        pthread_mutex_lock(team->o.mesh_lock);
        status = coll_path_wire.start(level == ON_FLAT ? team->o.flat : team->o.across, team->inner,
                                      &op->part, seq, why);
        pthread_mutex_unlock(team->o.mesh_lock);
    }
    op->is_running = status == PEN_OK;
    return status;
}

coll_state hier_advance_part(hier_op *op, pen_error *why)
{
    struct hier_team *team = op->team;
    coll_state state       = COLL_RUNNING;
    pthread_mutex_lock(team->o.mesh_lock);
    mesh_advance(team->o.mesh); /* also while inside: others may wait for unsent data */
    if (is_on_mesh(op->level)) state = coll_path_wire.advance(team->inner, why);
    pthread_mutex_unlock(team->o.mesh_lock);
    return is_on_mesh(op->level) ? state : path_inside(op->level)->advance(team->inner, why);
}

void hier_serve_mesh(const struct hier_team *team)
{
    pthread_mutex_lock(team->o.mesh_lock);
    mesh_advance(team->o.mesh);
    pthread_mutex_unlock(team->o.mesh_lock);
}

void hier_abort_part(hier_op *op)
{
    struct hier_team *team = op->team;
    if (!op->is_running) return;
    op->is_running = false;
    if (!is_on_mesh(op->level)) {
        path_inside(op->level)->abort(team->inner);
        return;
    }
    pthread_mutex_lock(team->o.mesh_lock);
    coll_path_wire.abort(team->inner);
    pthread_mutex_unlock(team->o.mesh_lock);
}

int hier_missing_in_part(hier_op *op, int *positions, int cap)
{
    struct hier_team *team = op->team;
    int n                  = 0;
    if (!op->is_running) return 0;
    if (!is_on_mesh(op->level)) {
        n = path_inside(op->level)->missing(team->inner, positions, cap);
    } else {
        pthread_mutex_lock(team->o.mesh_lock);
        n = coll_path_wire.missing(team->inner, positions, cap);
        pthread_mutex_unlock(team->o.mesh_lock);
    }
    return n;
}

/* ---- between parts --------------------------------------------------------------------------- */
pen_status hier_make_scratch(struct hier_team *team, size_t bytes, pen_error *why)
{
    if (team->scratch_size >= bytes) return PEN_OK;
    free(team->scratch);
    team->scratch_size = 0;
    team->scratch      = malloc(bytes);
    if (team->scratch == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %zu bytes", bytes);
    team->scratch_size = bytes;
    return PEN_OK;
}

void hier_trim_scratch(struct hier_team *team)
{
    if (team->scratch_size <= SCRATCH_KEPT_BYTES) return;
    free(team->scratch);
    team->scratch      = NULL;
    team->scratch_size = 0;
}

pen_op hier_inner_op(const coll_call *call)
{
    return call->op == PEN_AVG ? PEN_SUM : call->op;
}

void hier_divide(const hier_op *op, void *sums, size_t n)
{
    const void *in         = sums;
    const reduce_args args = {.op        = PEN_AVG,
                              .dtype     = hier_dtype(op->call),
                              .n_in      = 1,
                              .n_out     = 1,
                              .in        = &in,
                              .out       = &sums,
                              .divide_by = op->team->o.size};
    if (op->call->op == PEN_AVG) reduce(&args, 0, n);
}
