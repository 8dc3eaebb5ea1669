/* client_request.c - requests of the program that are not steps. */
#include "worker/io/thread/client.h"

#include "common/base/why.h"

#include <stdlib.h>

/* ---- refused requests ---------------------------------------------------------------------- */

static bool lacks_servers(const client *c, const request *r)
{
    const bool needs = r->kind == REQUEST_VERB || r->kind == REQUEST_STEP ||
                       r->kind == REQUEST_PULL_FREE || r->kind == REQUEST_FETCH ||
                       r->kind == REQUEST_SNAPSHOT;
    return needs && c->record.term != 0 && c->record.n_servers == 0;
}

bool client_refuses(client *c, request *r)
{
    pen_error why;
    /* An open step ends in the ps client, which ends both of its requests. */
    if (r->kind != REQUEST_STEP && atomic_load(&c->ctx->has_failed)) {
        if (r->kind == REQUEST_COMMAND) free(r->u.command.body);
        request_end(r, c->ctx->failure.status, &c->ctx->failure);
        return true;
    }
    if (!lacks_servers(c, r)) return false;
    why_set(&why, PEN_UNSUPPORTED,
            "this job has no servers; start it with `penstock run --servers 1`");
    request_end(r, PEN_UNSUPPORTED, &why);
    return true;
}

void client_refuse_for_memory(request *r)
{
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "no memory for another request");
    request_end(r, PEN_NO_MEMORY, &why);
}

/* ---- in the loop's thread -------------------------------------------------------------------- */
static void begin(void *user)
{
    request *r         = user;
    client *c          = client_of(r->ctx);
    const uint64_t now = loop_now_ms(c->loop);
    if (r->kind == REQUEST_LEAVE) {
        c->leave = r;
        membership_leave(liaison_membership(c->liaison), now);
        client_after(c);
        return;
    }
    if (client_refuses(c, r)) return;
    switch (r->kind) {
    case REQUEST_JOIN:
        c->join = r;
        if (c->record.term != 0) client_end(&c->join, NULL);
        break;
    case REQUEST_COMMIT:
        c->commit = r;
        liaison_register(c->liaison, &c->ctx->model.wire, now);
        break;
    case REQUEST_COMMAND: client_begin_command(c, r, now); break;
    case REQUEST_STORE: client_begin_store(c, r, now); break;
    case REQUEST_SNAPSHOT:
        r->next      = c->snapshots;
        c->snapshots = r;
        liaison_snapshot(c->liaison);
        break;
    default: break; /* for the strategy */
    }
}

void client_start(job_link *l, request *r)
{
    r->task = (loop_task){.fn = begin, .user = r};
    loop_post(((client *)l)->loop, &r->task);
}
