/* ps.h - training with servers; shared by ps.c and two_level.c. */
#ifndef WORKER_TRAIN_PS_H
#define WORKER_TRAIN_PS_H

#include "worker/io/thread/io_thread.h"
#include "worker/train/strategy.h"

typedef struct ps_units ps_units;

typedef struct ps {
    strategy base;
    io_thread *c;
    uint64_t index;          /* of the newest step */
    ps_client_request *step; /* this and the rest belong to the loop's thread; NULL: none is open */
    loop_task open;
    void *zeros;     /* as large as the largest gradient; made when first needed */
    ps_units *units; /* stage 3: fetches and drops values; else NULL */
} ps;

/* For a context whose strategy pushes to servers. */
static inline ps *ps_of(const pen_ctx *ctx)
{
    return (ps *)ctx->strategy;
}

/* io_push.c: members of strategy_ops */
void ps_step_open(strategy *s, uint64_t index, const wire_inputs *inputs);
void ps_ready(strategy *s, pen_tensor *t, const void *grad);

void ps_init(ps *p, const strategy_ops *ops, pen_ctx *ctx);
void ps_start(strategy *s, request *r); /* strategy_ops.start */
void ps_fini(ps *p);

/* io_unit.c: gradients and values that a worker does not keep in zero2 and zero3 */
pen_status ps_units_open(ps *p, pen_error *why);
pen_status ps_units_use(strategy *s, const pen_unit *u, pen_phase phase, int64_t step,
                        pen_error *why);
void ps_units_release(strategy *s, const pen_unit *u, pen_phase phase);
pen_status ps_units_view(strategy *s, pen_tensor *t, pen_error *why);
void ps_units_step_end(ps *p);
void ps_units_close(ps *p);

#endif
