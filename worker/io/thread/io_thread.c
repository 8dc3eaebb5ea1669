/* io_thread.c - failure of the connection to the job, and its timer. */
#include "worker/io/thread/io_thread.h"

#include "common/base/why.h"

enum { VERDICT_MS = 1000 }; /* how long to wait for the scheduler's verdict after a mismatch */

/* ---- failing --------------------------------------------------------------------------------- */
void io_end(request **place, const pen_error *why)
{
    request *r = *place;
    if (r == NULL) return;
    *place = NULL;
    request_end(r, why != NULL ? why->status : PEN_OK, why);
}

void io_end_snapshots(io_thread *c, const pen_error *why, int64_t step)
{
    while (c->snapshots != NULL) {
        request *r     = c->snapshots;
        c->snapshots   = r->next;
        r->result.step = step;
        request_end(r, why != NULL ? why->status : PEN_OK, why);
    }
}

/* ---- ranks that disagree ---------------------------------------------------------------------- */
void io_dispute(io_thread *c, request *r, const pen_error *why)
{
    if (c->disputes == NULL) {
        c->dispute        = *why;
        c->dispute_due_ms = loop_now_ms(c->loop) + VERDICT_MS;
    }
    r->next     = c->disputes;
    c->disputes = r;
    membership_client_report(c->membership_client, why);
}

static void end_disputes(io_thread *c, const pen_error *why)
{
    while (c->disputes != NULL) {
        request *r  = c->disputes;
        c->disputes = r->next;
        request_end(r, why->status, why);
    }
}

void io_fail(io_thread *c, const pen_error *why)
{
    c->has_failed = true;
    context_fail(c->ctx, why);
    end_disputes(c, why);
    io_end(&c->join, why);
    io_end_snapshots(c, why, -1);
    unanswered_fail(c->unanswered, why);
    commands_fail(c->commands);
    if (c->ctx->coll != NULL) coll_engine_fail(c->ctx->coll, why);
    if (c->ps_client != NULL) ps_client_fail(c->ps_client, why, loop_now_ms(c->loop));
    if (!c->is_loading)
        io_end(&c->commit, why); /* else after the transport has released the first values */
}

void io_report(io_thread *c, const pen_error *why)
{
    membership_client_report(c->membership_client, why);
    io_fail(c, why);
}

/* ---- time ------------------------------------------------------------------------------------ */
static void tick(void *user)
{
    io_thread *c       = user;
    const uint64_t now = loop_now_ms(c->loop);
    membership_tick(membership_client_core(c->membership_client), now);
    unanswered_tick(c->unanswered, now);
    if (c->ps_client != NULL) ps_client_tick(c->ps_client, now);
    if (c->disputes != NULL && now >= c->dispute_due_ms) end_disputes(c, &c->dispute);
    if (c->commit != NULL && c->commit->deadline_ms != 0 && c->commit->deadline_ms <= now) {
        pen_error why;
        why_set(&why, PEN_TIMED_OUT,
                "waited %.3g s in pen_commit for all ranks to register and all servers to be ready",
                (double)(now - c->commit->begun_ms) / 1000);
        io_report(c, &why);
    }
    io_after(c);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void io_after(io_thread *c)
{
    request_notify(&c->ctx->requests);
    uint64_t due = least(membership_due(membership_client_core(c->membership_client)),
                         unanswered_due(c->unanswered));
    if (c->ps_client != NULL) due = least(due, ps_client_due(c->ps_client));
    if (c->commit != NULL && c->commit->deadline_ms != 0) due = least(due, c->commit->deadline_ms);
    if (c->disputes != NULL) due = least(due, c->dispute_due_ms);
    if (due == UINT64_MAX)
        loop_timer_stop(c->loop, &c->timer);
    else if (c->timer.due_ms != due || due == 0)
        loop_timer_start(c->loop, &c->timer, due > 0 ? due : 1, tick, c);
}

bool io_is_reaching(const io_thread *c)
{
    return c->has_plan && !c->is_ready && !c->has_failed;
}
