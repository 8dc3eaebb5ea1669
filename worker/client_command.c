/* client_command.c - commands between a request of the program, calls.c, and the liaison. */
#include "worker/client.h"

#include "common/why.h"

#include <stdlib.h>

/* ---- what calls say -------------------------------------------------------------------------- */
static void send_call(void *user, const wire_control *message)
{
    client *c = user;
    liaison_say(c->liaison, message);
}

static bool run_call(void *user, pen_call *call, const void *body, size_t size)
{
    client *c = user;
    void *own;
    pen_command_fn fn = context_command(c->ctx, &own);
    call->ctx         = c->ctx;
    if (fn == NULL) return false;
    fn(c->ctx, call, call->head, body, size, own);
    return true;
}

static void deliver(request *r, const pen_bytes *replies, uint32_t n)
{
    r->result.count = n;
    for (uint32_t i = 0; i < n; i++) {
        if (r->u.command.replies != NULL)
            r->u.command.replies[i] = replies[i];
        else
            free(replies[i].data);
    }
}

static void ended(void *user, void *token, const pen_bytes *replies, uint32_t n,
                  const pen_error *why)
{
    (void)user;
    request *r = token;
    if (why == NULL) deliver(r, replies, n);
    free(r->u.command.body);
    request_end(r, why != NULL ? why->status : PEN_OK, why);
}

pen_status client_make_calls(client *c, pen_error *why)
{
    static const calls_actions actions = {send_call, run_call, ended};
    c->calls                           = calls_create(c->ctx->env.rank, &actions, c);
    return c->calls != NULL ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for commands");
}

/* ---- what the program says ------------------------------------------------------------------- */
void client_begin_command(client *c, request *r, uint64_t now_ms)
{
    const calls_question q = {.role        = r->u.command.to.role,
                              .rank        = r->u.command.to.rank,
                              .head        = r->u.command.head,
                              .n           = r->u.command.n,
                              .body        = r->u.command.body,
                              .size        = r->u.command.size,
                              .deadline_ms = r->deadline_ms};
    pen_error why;
    if (calls_ask(c->calls, &q, r, now_ms) == PEN_OK) return;
    why_set(&why, PEN_NO_MEMORY, "no memory for another command");
    ended(c, r, NULL, 0, &why);
}

static void take_answer(void *user)
{
    pen_call *call = user;
    client *c      = call->ctx->state;
    calls_answer(c->calls, call);
    client_after(c);
}

void client_answer(pen_ctx *ctx, pen_call *call)
{
    client *c  = ctx->state;
    call->task = (loop_task){.fn = take_answer, .user = call};
    loop_post(c->loop, &call->task);
}
