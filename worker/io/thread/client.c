/* client.c - failure of the connection to the job, and its timer. */
#include "worker/io/thread/client.h"

#include "common/base/why.h"

enum { VERDICT_MS = 1000 }; /* how long to wait for the scheduler's verdict after a mismatch */

/* ---- failing --------------------------------------------------------------------------------- */
void client_end(request **place, const pen_error *why)
{
    request *r = *place;
    if (r == NULL) return;
    *place = NULL;
    request_end(r, why != NULL ? why->status : PEN_OK, why);
}

void client_end_snapshots(client *c, const pen_error *why, int64_t step)
{
    while (c->snapshots != NULL) {
        request *r     = c->snapshots;
        c->snapshots   = r->next;
        r->result.step = step;
        request_end(r, why != NULL ? why->status : PEN_OK, why);
    }
}

/* ---- ranks that disagree ---------------------------------------------------------------------- */
void client_dispute(client *c, request *r, const pen_error *why)
{
    if (c->disputes == NULL) {
        c->dispute        = *why;
        c->dispute_due_ms = loop_now_ms(c->loop) + VERDICT_MS;
    }
    r->next     = c->disputes;
    c->disputes = r;
    liaison_report(c->liaison, why);
}

static void end_disputes(client *c, const pen_error *why)
{
    while (c->disputes != NULL) {
        request *r  = c->disputes;
        c->disputes = r->next;
        request_end(r, why->status, why);
    }
}

void client_fail(client *c, const pen_error *why)
{
    c->has_failed = true;
    context_fail(c->ctx, why);
    end_disputes(c, why);
    client_end(&c->join, why);
    client_end_snapshots(c, why, -1);
    requests_fail(c->requests, why);
    commands_fail(c->commands);
    if (c->ctx->coll != NULL) coll_engine_fail(c->ctx->coll, why);
    if (c->exchange != NULL) exchange_fail(c->exchange, why, loop_now_ms(c->loop));
    if (!c->is_loading)
        client_end(&c->commit, why); /* else after the transport has released the first values */
}

void client_report(client *c, const pen_error *why)
{
    liaison_report(c->liaison, why);
    client_fail(c, why);
}

/* ---- time ------------------------------------------------------------------------------------ */
static void tick(void *user)
{
    client *c          = user;
    const uint64_t now = loop_now_ms(c->loop);
    membership_tick(liaison_membership(c->liaison), now);
    requests_tick(c->requests, now);
    if (c->exchange != NULL) exchange_tick(c->exchange, now);
    if (c->disputes != NULL && now >= c->dispute_due_ms) end_disputes(c, &c->dispute);
    if (c->commit != NULL && c->commit->deadline_ms != 0 && c->commit->deadline_ms <= now) {
        pen_error why;
        why_set(&why, PEN_TIMED_OUT,
                "waited %.3g s in pen_commit for all ranks to register and all servers to be ready",
                (double)(now - c->commit->begun_ms) / 1000);
        client_report(c, &why);
    }
    client_after(c);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void client_after(client *c)
{
    request_tell(&c->ctx->requests);
    uint64_t due = least(membership_due(liaison_membership(c->liaison)), requests_due(c->requests));
    if (c->exchange != NULL) due = least(due, exchange_due(c->exchange));
    if (c->commit != NULL && c->commit->deadline_ms != 0) due = least(due, c->commit->deadline_ms);
    if (c->disputes != NULL) due = least(due, c->dispute_due_ms);
    if (due == UINT64_MAX)
        loop_timer_stop(c->loop, &c->timer);
    else if (c->timer.due_ms != due || due == 0)
        loop_timer_start(c->loop, &c->timer, due > 0 ? due : 1, tick, c);
}

bool client_is_reaching(const client *c)
{
    return c->has_plan && !c->is_ready && !c->has_failed;
}
