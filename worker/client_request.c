/* client_request.c - what the program asks of the engine with servers: requests and steps. */
#include "worker/client.h"

#include "common/why.h"

#include <stdlib.h>

/* ---- requests, in the loop's thread ---------------------------------------------------------- */
static bool refuse_failed(client *c, request *r)
{
    if (!atomic_load(&c->ctx->has_failed)) return false;
    request_end(r, c->ctx->failure.status, &c->ctx->failure);
    return true;
}

static void refuse_for_memory(request *r)
{
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "no memory for another request");
    request_end(r, PEN_NO_MEMORY, &why);
}

/* What only servers do. */
static bool refuse_without_servers(client *c, request *r)
{
    const bool needs = r->kind == REQUEST_VERB || r->kind == REQUEST_STEP ||
                       r->kind == REQUEST_PULL_FREE || r->kind == REQUEST_FETCH ||
                       r->kind == REQUEST_SNAPSHOT;
    if (!needs || c->record.term == 0 || c->record.n_servers > 0) return false;
    pen_error why;
    why_set(&why, PEN_UNSUPPORTED,
            "this job has no servers; start it with `penstock run --servers 1`");
    if (r->kind == REQUEST_STEP && r->u.step.decided != NULL)
        request_end(r->u.step.decided, PEN_UNSUPPORTED, &why);
    request_end(r, PEN_UNSUPPORTED, &why);
    return true;
}

static void begin_verb(client *c, request *r, uint64_t now)
{
    exchange_request *e = exchange_open(c->exchange, now);
    if (e == NULL) {
        refuse_for_memory(r);
        return;
    }
    exchange_add(c->exchange, e, r->u.verb.verb, r->u.verb.tensor->index, r->u.verb.from,
                 r->u.verb.to);
    exchange_close(c->exchange, e, r, r->deadline_ms, now);
}

static void begin_pull_free(client *c, request *r, uint64_t now)
{
    const model *m      = &c->ctx->model;
    exchange_request *e = exchange_open(c->exchange, now);
    if (e == NULL) {
        refuse_for_memory(r);
        return;
    }
    for (uint32_t t = 0; t < m->n_tensors; t++)
        if (m->tensor[t]->trained && model_rule_of(m, m->tensor[t]) == EXCHANGE_FREE)
            exchange_add(c->exchange, e, EXCHANGE_PULL, t, NULL, m->tensor[t]->param);
    exchange_close(c->exchange, e, r, r->deadline_ms, now);
}

static void begin_step_end(client *c, request *r, uint64_t now)
{
    if (c->step == NULL) {
        if (r->u.step.decided != NULL) refuse_for_memory(r->u.step.decided);
        refuse_for_memory(r);
        return;
    }
    c->step = NULL;
    exchange_step_close(c->exchange, r, r->deadline_ms, now);
}

static void begin(void *user)
{
    request *r         = user;
    client *c          = r->ctx->state;
    const uint64_t now = loop_now_ms(c->loop);
    if (r->kind == REQUEST_LEAVE) {
        c->leave = r;
        liaison_leave(c->liaison, now);
        client_after(c);
        return;
    }
    /* A step that was opened ends in the exchange, which tells both of its requests. */
    if (r->kind != REQUEST_STEP && refuse_failed(c, r)) {
        if (r->kind == REQUEST_COMMAND) free(r->u.command.body);
        return;
    }
    if (refuse_without_servers(c, r)) return;
    switch (r->kind) {
    case REQUEST_JOIN:
        c->join = r;
        if (c->record.term != 0) client_end(&c->join, NULL);
        break;
    case REQUEST_COMMIT:
        c->commit = r;
        liaison_register(c->liaison, &c->ctx->model.wire, now);
        break;
    case REQUEST_VERB: begin_verb(c, r, now); break;
    case REQUEST_STEP: begin_step_end(c, r, now); break;
    case REQUEST_PULL_FREE: begin_pull_free(c, r, now); break;
    case REQUEST_FETCH: client_begin_fetch(c, r, now); break;
    case REQUEST_COMMAND: client_begin_command(c, r, now); break;
    case REQUEST_STORE: client_begin_store(c, r, now); break;
    case REQUEST_SNAPSHOT:
        r->next      = c->snapshots;
        c->snapshots = r;
        liaison_snapshot(c->liaison);
        break;
    case REQUEST_COLL:
    case REQUEST_LEAVE: break;
    }
}

void client_start(pen_ctx *ctx, request *r)
{
    client *c = ctx->state;
    if (r->kind == REQUEST_STEP) client_units_step_end(c);
    r->task = (loop_task){.fn = begin, .user = r};
    loop_post(c->loop, &r->task);
}
