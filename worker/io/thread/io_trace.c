/* io_trace.c - messages to and from the shards, for the timeline.
 *
 * DESIGN.  The ps client is pure and has no clock, so its messages are timed here.  The timeline
 * has one push and one pull per shard and step.  A push lasts from its first message to the newest
 * answer without values, a pull to the newest answer with values.  A message that pushes and asks
 * for values is both, one after the other.
 */
#include "worker/io/thread/io_thread.h"

#include "common/trace/trace.h"

#include <stdlib.h>

typedef struct {
    uint64_t begun_ns, ended_ns, bytes; /* begun 0: none; ended 0: nothing has come */
    int64_t step;
} flight;

struct io_trace {
    uint32_t n_shards;
    bool is_over; /* the step has ended: flights end with the message that ended it */
    struct {
        flight push, pull;
    } shard[];
};

/* ---- flights --------------------------------------------------------------------------------- */
static void end_flight(trace_kind kind, flight *f, uint32_t shard)
{
    if (f->begun_ns != 0 && f->ended_ns != 0)
        trace_write(kind, f->begun_ns, f->ended_ns,
                    &(trace_note){.step = f->step, .shard = (int32_t)shard, .bytes = f->bytes});
    *f = (flight){0};
}

static void go_on(trace_kind kind, flight *f, uint32_t shard, int64_t step, uint64_t begun_ns)
{
    if (f->begun_ns != 0 && f->step == step) return;
    end_flight(kind, f, shard);
    *f = (flight){.begun_ns = begun_ns, .step = step};
}

static void end_all(io_trace *t)
{
    for (uint32_t i = 0; i < t->n_shards; i++) {
        end_flight(TRACE_PUSH, &t->shard[i].push, i);
        end_flight(TRACE_PULL, &t->shard[i].pull, i);
    }
    t->is_over = false;
}

static io_trace *of_io_thread(io_thread *c)
{
    if (c->trace != NULL || c->n_shards == 0) return c->trace;
    c->trace = calloc(1, sizeof *c->trace + c->n_shards * sizeof c->trace->shard[0]);
    if (c->trace != NULL) c->trace->n_shards = c->n_shards;
    return c->trace;
}

static int64_t step_of(const wire_data *d)
{
    return (int64_t)(d->seq != NULL && d->n > 0 ? d->seq[0] : d->step);
}

/* ---- messages -------------------------------------------------------------------------------- */
void io_trace_sent(io_thread *c, uint32_t shard, const wire_data *d, uint64_t begun_ns)
{
    io_trace *t        = begun_ns != 0 ? of_io_thread(c) : NULL;
    const int64_t step = step_of(d);
    if (t == NULL || shard >= t->n_shards) return;
    flight *push = &t->shard[shard].push, *pull = &t->shard[shard].pull;
    if (d->kind == WIRE_PUSH && d->n > 0) {
        const uint64_t now = clock_ns(&clock_real);
        trace_write(
            TRACE_SEND, begun_ns, now,
            &(trace_note){.step = step, .shard = (int32_t)shard, .bytes = d->payload_bytes});
        go_on(TRACE_PUSH, push, shard, step, begun_ns);
        push->bytes += d->payload_bytes;
        if ((d->flags & WIRE_WANT_VALUES) == 0) return;
        push->ended_ns = now;
        go_on(TRACE_PULL, pull, shard, step, now);
    } else if (d->kind == WIRE_PULL && d->has_decision) {
        go_on(TRACE_PULL, pull, shard, step, begun_ns);
    }
}

void io_trace_came(io_thread *c, uint32_t shard, const wire_data *d, uint64_t begun_ns)
{
    io_trace *t = begun_ns != 0 ? c->trace : NULL;
    if (t == NULL || shard >= t->n_shards) return;
    flight *push = &t->shard[shard].push, *pull = &t->shard[shard].pull;
    const uint64_t now = clock_ns(&clock_real);
    if (d->kind == WIRE_VALUES && d->payload_bytes > 0)
        trace_write(
            TRACE_RECEIVE, begun_ns, now,
            &(trace_note){.step = step_of(d), .shard = (int32_t)shard, .bytes = d->payload_bytes});
    if (d->kind == WIRE_VALUES && pull->begun_ns != 0) {
        pull->ended_ns = now;
        pull->bytes += d->payload_bytes;
    }
    if ((d->kind == WIRE_PREPARED || d->kind == WIRE_RECEIPT) && push->begun_ns != 0 &&
        (d->flags & WIRE_INITIAL) == 0)
        push->ended_ns = now;
    if (t->is_over) end_all(t);
}

void io_trace_step_over(io_thread *c)
{
    if (c->trace != NULL) c->trace->is_over = true;
}

void io_trace_fini(io_thread *c)
{
    if (c->trace != NULL) end_all(c->trace);
    free(c->trace);
    c->trace = NULL;
}
