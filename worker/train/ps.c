/* ps.c - training with servers: gradients are pushed to the shards as they become ready, values are pulled.
 *
 * DESIGN.  The ps client in the thread "pen-io" sends everything to servers; here the program's threads post steps and
 * verbs to it as tasks.
 */
#include "worker/train/ps.h"

#include "common/base/why.h"

#include <stdlib.h>

/* ---- requests, in the loop's thread ---------------------------------------------------------- */
static void begin_verb(io_thread *c, request *r, uint64_t now)
{
    ps_client_request *e = ps_client_open(c->ps_client, now);
    if (e == NULL) {
        io_refuse_for_memory(r);
        return;
    }
    ps_client_prefer(e, r->priority);
    ps_client_add(c->ps_client, e, r->u.verb.verb, r->u.verb.tensor->index, r->u.verb.from,
                  r->u.verb.to);
    ps_client_close(c->ps_client, e, r, r->deadline_ms, now);
}

static void begin_pull_free(io_thread *c, request *r, uint64_t now)
{
    const model *m       = &c->ctx->model;
    ps_client_request *e = ps_client_open(c->ps_client, now);
    if (e == NULL) {
        io_refuse_for_memory(r);
        return;
    }
    for (uint32_t t = 0; t < m->n_tensors; t++)
        if (m->tensor[t]->trained && model_rule_of(m, m->tensor[t]) == STEP_ASYNC)
            ps_client_add(c->ps_client, e, PS_PULL, t, NULL, m->tensor[t]->param);
    ps_client_close(c->ps_client, e, r, r->deadline_ms, now);
}

static void begin_step_end(ps *p, request *r, uint64_t now)
{
    if (p->step == NULL) {
        io_refuse_for_memory(r);
        return;
    }
    p->step = NULL;
    ps_client_step_close(p->c->ps_client, r, r->deadline_ms, now);
}

static void begin(void *user)
{
    request *r         = user;
    ps *p              = ps_of(r->ctx);
    const uint64_t now = loop_now_ms(p->c->loop);
    if (io_refuses(p->c, r)) return;
    if (r->kind == REQUEST_VERB)
        begin_verb(p->c, r, now);
    else if (r->kind == REQUEST_PULL_FREE)
        begin_pull_free(p->c, r, now);
    else
        begin_step_end(p, r, now);
}

void ps_start(strategy *s, request *r)
{
    ps *p = (ps *)s;
    if (r->kind == REQUEST_STEP) ps_units_step_end(p);
    r->task = (loop_task){.fn = begin, .user = r};
    loop_post(p->c->loop, &r->task);
}

/* ---- create and destroy ---------------------------------------------------------------------- */
void ps_init(ps *p, const strategy_ops *ops, pen_ctx *ctx)
{
    strategy_init(&p->base, ops, ctx);
    p->c = io_of(ctx);
}

void ps_fini(ps *p)
{
    ps_units_close(p);
    free(p->zeros);
}

static void ps_close(strategy *s)
{
    ps_fini((ps *)s);
    free(s);
}

pen_status ps_open(pen_ctx *ctx, pen_error *why)
{
    static const strategy_ops ops = {.start     = ps_start,
                                     .step_open = ps_step_open,
                                     .ready     = ps_ready,
                                     .use       = ps_units_use,
                                     .release   = ps_units_release,
                                     .view      = ps_units_view,
                                     .close     = ps_close};
    ps *p                         = calloc(1, sizeof *p);
    if (p == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for training with servers");
    ps_init(p, &ops, ctx);
    p->base.tells_values = true;
    return ps_units_open(p, why);
}
