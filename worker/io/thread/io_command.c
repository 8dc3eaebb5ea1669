/* io_command.c - commands and the key-value store: connects requests of the program with requests.h and
 * commands.h. */
#include "worker/io/thread/io_thread.h"

#include "common/base/why.h"

#include <stdlib.h>

static void send_message(void *user, const wire_control *message)
{
    io_thread *c = user;
    membership_client_send(c->membership_client, message);
}

/* ---- requests of the program -------------------------------------------------------------------- */
static void on_values(request *r, const unanswered_answer *answer)
{
    pen_bytes bytes = answer->replies[0];
    if (r->u.store.value != NULL) *r->u.store.value = answer->value;
    if (r->u.store.out != NULL)
        *r->u.store.out = bytes;
    else
        free(bytes.data);
}

static void on_replies(request *r, const unanswered_answer *answer)
{
    r->result.count = answer->n;
    for (uint32_t i = 0; i < answer->n; i++) {
        if (r->u.command.replies != NULL)
            r->u.command.replies[i] = answer->replies[i];
        else
            free(answer->replies[i].data);
    }
}

static void ended(void *user, void *token, const unanswered_answer *answer, const pen_error *why)
{
    (void)user;
    request *r = token;
    if (answer != NULL && r->kind == REQUEST_STORE) on_values(r, answer);
    if (answer != NULL && r->kind == REQUEST_COMMAND) on_replies(r, answer);
    if (r->kind == REQUEST_COMMAND) free(r->u.command.body);
    request_end(r, why != NULL ? why->status : PEN_OK, why);
}

static void refuse_for_memory(io_thread *c, request *r)
{
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "no memory for another request");
    ended(c, r, NULL, &why);
}

void io_begin_command(io_thread *c, request *r, uint64_t now_ms)
{
    const unanswered_question q = {.role = r->u.command.to.role,
                                   .rank = r->u.command.to.rank,
                                   .head = r->u.command.head,
                                   .n    = r->u.command.n,
                                   .body = r->u.command.body,
                                   .size = r->u.command.size};
    if (unanswered_command(c->unanswered, &q, r, r->deadline_ms, now_ms) != PEN_OK)
        refuse_for_memory(c, r);
}

void io_begin_store(io_thread *c, request *r, uint64_t now_ms)
{
    const unanswered_change *change = &r->u.store.change;
    if (unanswered_kv(c->unanswered, change, r, r->deadline_ms, now_ms) != PEN_OK)
        refuse_for_memory(c, r);
}

/* ---- commands for the program ------------------------------------------------------------ */
static pen_status run_call(void *user, command_call *call, const void *body, size_t size)
{
    io_thread *c = user;
    void *own;
    pen_command_fn fn = context_command(c->ctx, &own);
    call->owner       = c->ctx;
    call->call.reply  = command_reply;
    if (fn == NULL) return PEN_NOT_FOUND;
    fn(c->ctx, &call->call, call->head, body, size, own);
    return PEN_OK;
}

static void on_answer(void *user)
{
    command_call *call = user;
    io_thread *c       = io_of(call->owner);
    commands_answer(c->commands, call);
    io_after(c);
}

void io_answer(job_link *l, command_call *call)
{
    call->task = (loop_task){.fn = on_answer, .user = call};
    loop_post(((io_thread *)l)->loop, &call->task);
}

/* ---- both ------------------------------------------------------------------------------------- */
pen_status io_make_requests(io_thread *c, pen_error *why)
{
    static const unanswered_actions asking  = {send_message, io_faulted, io_shrunk, ended};
    static const commands_actions answering = {send_message, run_call};
    c->unanswered                           = unanswered_create(&asking, c);
    c->commands = commands_create(PEN_WORKER, c->ctx->env.rank, &answering, c);
    if (c->unanswered != NULL && c->commands != NULL) return PEN_OK;
    return why_set(why, PEN_NO_MEMORY, "no memory for requests");
}
