/* io_request.c - requests of the program that are not steps. */
#include "worker/io/thread/io_thread.h"

#include "common/base/why.h"
#include "worker/tensor/table_request.h"

#include <stdlib.h>

/* ---- refused requests ---------------------------------------------------------------------- */

static bool lacks_servers(const io_thread *c, const request *r)
{
    const bool needs = r->kind == REQUEST_VERB || r->kind == REQUEST_STEP ||
                       r->kind == REQUEST_KV || r->kind == REQUEST_SLOTS ||
                       r->kind == REQUEST_PULL_FREE || r->kind == REQUEST_FETCH ||
                       r->kind == REQUEST_SNAPSHOT;
    return needs && c->view.term != 0 && c->view.n_servers == 0;
}

bool io_refuses(io_thread *c, request *r)
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

void io_refuse_for_memory(request *r)
{
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "no memory for another request");
    request_end(r, PEN_NO_MEMORY, &why);
}

/* ---- tables ---------------------------------------------------------------------------------- */
static void begin_kv(io_thread *c, request *r, uint64_t now)
{
    table_request *q      = r->u.kv;
    const uint32_t *first = c->plan->first_chunk;
    const uint32_t tensor = c->ctx->model.n_tensors + q->table->index;
    ps_client_request *e  = ps_client_open(c->ps_client, now);
    if (e == NULL) {
        io_refuse_for_memory(r);
        return;
    }
    for (uint32_t i = 0; i < q->n_parts; i++)
        ps_client_add_rows(c->ps_client, e, q->verb, first[tensor] + q->part[i].part,
                           q->part[i].bytes, q->part[i].size, &q->part[i].sink);
    ps_client_close(c->ps_client, e, r, r->deadline_ms, now);
}

/* ---- in the loop's thread -------------------------------------------------------------------- */
static void begin(void *user)
{
    request *r         = user;
    io_thread *c       = io_of(r->ctx);
    const uint64_t now = loop_now_ms(c->loop);
    if (r->kind == REQUEST_LEAVE) {
        c->leave = r;
        membership_leave(membership_client_core(c->membership_client), now);
        io_after(c);
        return;
    }
    if (io_refuses(c, r)) return;
    switch (r->kind) {
    case REQUEST_JOIN:
        c->join = r;
        if (c->view.term != 0) io_end(&c->join, NULL);
        break;
    case REQUEST_COMMIT:
        c->commit = r;
        membership_client_register(c->membership_client, &c->ctx->model.wire, now);
        break;
    case REQUEST_REPORT: io_dispute(c, r, r->u.report.why); break;
    case REQUEST_COMMAND: io_begin_command(c, r, now); break;
    case REQUEST_STORE: io_begin_store(c, r, now); break;
    case REQUEST_KV: begin_kv(c, r, now); break;
    case REQUEST_SLOTS: io_slots_begin(c, r, now); break;
    case REQUEST_SNAPSHOT:
        r->next      = c->snapshots;
        c->snapshots = r;
        membership_client_snapshot(c->membership_client);
        break;
    default: break; /* for the strategy */
    }
}

void io_start(job_link *l, request *r)
{
    r->task = (loop_task){.fn = begin, .user = r};
    loop_post(((io_thread *)l)->loop, &r->task);
}
