/* self.c - the path of a group of one: copies the input to the output, scaled. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/why.h"
#include "common/compute/simd/reduce.h"
#include "proto/plan.h"

#include <string.h>

static pen_status self_start(void *team, void *op, const coll_call *call, uint64_t seq,
                             pen_error *why)
{
    (void)team, (void)op, (void)seq, (void)why;
    const size_t n = coll_in_elements(call, 1, 0);
    if (n == 0 || call->kind == COLL_BARRIER) return PEN_OK;
    if (coll_reduces(call->kind)) {
        const void *in         = call->in;
        void *out              = call->out;
        const reduce_args args = {.op    = call->op,
                                  .dtype = call->dtype,
                                  .n_in  = 1,
                                  .n_out = 1,
                                  .in    = &in,
                                  .out   = &out,
                                  .scale = call->scale != 1 ? &call->scale : NULL};
        reduce(&args, 0, n);
    } else if (call->in != call->out) {
        memmove(call->out, call->in, n * plan_dtype_bytes(call->dtype));
    }
    return PEN_OK;
}

static coll_state self_advance(void *op, pen_error *why)
{
    (void)op, (void)why;
    return COLL_DONE;
}

static void self_abort(void *op)
{
    (void)op;
}

static int self_missing(void *op, int *positions, int cap)
{
    (void)op, (void)positions, (void)cap;
    return 0;
}

const coll_path coll_path_self = {"self", self_start, self_advance, self_abort, self_missing};
