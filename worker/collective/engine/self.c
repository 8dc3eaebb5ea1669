/* self.c - the paths of a group of one, on the host and on a device: they copy the input to the output, scaled. */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/why.h"
#include "common/compute/simd/reduce.h"
#include "proto/plan.h"

#include <string.h>
#include <time.h>

/* `in` and `out` are the memory that the arguments point to. */
static reduce_args arguments_of(const coll_call *call, const void **in, void **out)
{
    *in  = call->in;
    *out = call->out;
    return (reduce_args){.op    = call->op,
                         .dtype = call->dtype,
                         .n_in  = 1,
                         .n_out = 1,
                         .in    = in,
                         .out   = out,
                         .scale = call->scale != 1 ? &call->scale : NULL};
}

static size_t elements_of(const coll_call *call)
{
    return call->kind == COLL_BARRIER ? 0 : coll_in_elements(call, 1, 0);
}

static pen_status self_start(void *team, void *op, const coll_call *call, uint64_t seq,
                             pen_error *why)
{
    (void)team, (void)op, (void)seq, (void)why;
    const void *in;
    void *out;
    const size_t n = elements_of(call);
    if (n == 0) return PEN_OK;
    if (coll_reduces(call->kind)) {
        const reduce_args args = arguments_of(call, &in, &out);
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

const coll_path coll_path_self = {"self", self_start, self_advance, self_abort, self_missing, NULL};

/* ---- on a device ------------------------------------------------------------------------------------- */
typedef struct {
    const device_ops *ops;
    device_event *end; /* NULL: there is nothing to wait for */
} device_self;

static pen_status enqueue(const device_ops *ops, const coll_call *call, pen_error *why)
{
    const void *in;
    void *out;
    const size_t n = elements_of(call);
    if (!coll_reduces(call->kind))
        return device_copy(ops, call->traffic, NULL, call->out, call->in,
                           n * plan_dtype_bytes(call->dtype), call->stream, why);
    const reduce_args args = arguments_of(call, &in, &out);
    return ops->reduce(&args, 0, n, call->stream, why);
}

static pen_status device_self_start(void *team, void *op, const coll_call *call, uint64_t seq,
                                    pen_error *why)
{
    (void)seq;
    const device_ops *ops = team;
    device_self *self     = op;
    *self                 = (device_self){.ops = ops};
    if (elements_of(call) == 0) return PEN_OK;
    pen_status status = ops->enter(ops->device(call->out), why);
    if (status != PEN_OK) return status;
    status = enqueue(ops, call, why);
    if (status == PEN_OK && !call->in_stream_order) {
        self->end = ops->event_new();
        status    = self->end != NULL ? ops->event_record(self->end, call->stream, why)
                                      : why_set(why, PEN_NO_MEMORY, "no memory for an event");
    }
    ops->leave();
    return status;
}

static void end_self(device_self *self)
{
    if (self->end != NULL) self->ops->event_free(self->end);
    self->end = NULL;
}

static coll_state device_self_advance(void *op, pen_error *why)
{
    device_self *self = op;
    pen_status status = self->end != NULL ? self->ops->event_done(self->end, why) : PEN_OK;
    if (status == PEN_AGAIN) return COLL_RUNNING;
    end_self(self);
    return status == PEN_OK ? COLL_DONE : COLL_FAILED;
}

/* The work ends by itself. */
static void device_self_abort(void *op)
{
    device_self *self           = op;
    const struct timespec pause = {.tv_nsec = 50000};
    while (self->end != NULL && self->ops->event_done(self->end, NULL) == PEN_AGAIN)
        nanosleep(&pause, NULL);
    end_self(self);
}

static pen_status device_self_follow(void *op, void *stream, pen_error *why)
{
    const device_self *self = op;
    return self->end != NULL ? self->ops->stream_wait(stream, self->end, why) : PEN_AGAIN;
}

const coll_path coll_path_self_device = {
    "self",       device_self_start, device_self_advance, device_self_abort,
    self_missing, device_self_follow};
