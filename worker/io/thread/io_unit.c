/* io_unit.c - zero2 and zero3 over the servers: values and gradients that a worker does not keep.
 *
 * DESIGN.  Gradients of the SDK are freed as soon as their shard has them (ps_client_away.c), if
 * they cannot be asked for again: shards have no replicas, and workers are fixed.  pen_view() waits
 * for that when more than a bucket is in flight, so a worker holds a bucket of gradients and a
 * unit.
 *   Values of stage 3 are fetched and dropped by units, as the residency decides.  Each fetch is a
 * request, whose callback on "pen-io" reports its arrival.  Pulls are one-sided, so workers may use
 * units in any order, and different ones.
 * Threads: those of the program use, release and end steps; "pen-io" ends fetches.  `lock` guards both.
 */
#include "worker/train/ps.h"

#include "common/base/why.h"
#include "worker/tensor/param_memory.h"
#include "worker/tensor/unit_use.h"

#include <stdlib.h>

typedef struct {
    ps_units *owner;
    uint32_t unit;
    bool has_failed; /* the newest fetch failed; the next use returns it */
    bool is_to_fail; /* it failed inside a call of the residency, which learns of it afterwards */
    pen_error why;
} unit_slot;

struct ps_units {
    pen_ctx *ctx;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    residency *residency;
    unit_slot *slot; /* [units] */
    uint32_t n;
};

bool io_gives_back(const io_thread *c)
{
    return c->ctx->stage >= 2 && !context_is_elastic(c->ctx) && !c->committed.has_copies &&
           c->ctx->rule == STEP_TWO_PHASE;
}

/* ---- fetches --------------------------------------------------------------------------------- */
/* Reports failures that happened inside a call of the residency. */
static void settle(ps_units *u)
{
    for (uint32_t i = 0; i < u->n; i++) {
        if (!u->slot[i].is_to_fail) continue;
        u->slot[i].is_to_fail = false;
        u->slot[i].has_failed = true;
        unit_drop(u->ctx, i);
        residency_failed(u->residency, i);
    }
    pthread_cond_broadcast(&u->changed);
}

static void fetched(const pen_result *result, void *user)
{
    unit_slot *slot = user;
    ps_units *u     = slot->owner;
    pthread_mutex_lock(&u->lock);
    if (result->status == PEN_OK) {
        residency_arrived(u->residency, slot->unit);
    } else {
        pen_last_error(&slot->why);
        slot->is_to_fail = true;
    }
    settle(u);
    pthread_mutex_unlock(&u->lock);
}

/* Runs in the io thread. */
static void begin_fetch(void *user)
{
    request *r           = user;
    io_thread *c         = io_of(r->ctx);
    const pen_unit *unit = r->u.fetch.unit;
    const uint64_t now   = loop_now_ms(c->loop);
    if (io_refuses(c, r)) return;
    ps_client_request *e = ps_client_open(c->ps_client, now);
    if (e == NULL) {
        pen_error why;
        why_set(&why, PEN_NO_MEMORY, "no memory to fetch the unit '%s'", unit->name);
        request_end(r, PEN_NO_MEMORY, &why);
        return;
    }
    for (uint32_t i = 0; i < unit->n_tensors; i++) {
        const pen_tensor *t = c->ctx->model.tensor[unit->tensor[i]];
        if (!t->stays) ps_client_add(c->ps_client, e, PS_FETCH, t->index, NULL, t->param);
    }
    ps_client_close(c->ps_client, e, r, r->deadline_ms, now);
}

static void fetch_unit(void *user, uint32_t number)
{
    ps_units *u            = user;
    unit_slot *slot        = &u->slot[number];
    const pen_opts options = {.done = fetched, .user = slot};
    pen_req ignored        = {0};
    request *r;
    slot->has_failed = false;
    if (unit_make(u->ctx, number, &slot->why) != PEN_OK) {
        slot->is_to_fail = true;
        return;
    }
    if (request_begin(u->ctx, REQUEST_FETCH, &options, &ignored, &r) != PEN_OK) {
        pen_last_error(&slot->why);
        slot->is_to_fail = true;
        return;
    }
    r->u.fetch.unit = &u->ctx->model.units.unit[number];
    r->task         = (loop_task){.fn = begin_fetch, .user = r};
    loop_post(io_of(u->ctx)->loop, &r->task);
}

static void drop_unit(void *user, uint32_t number)
{
    unit_drop(((ps_units *)user)->ctx, number);
}

/* ---- create and destroy ---------------------------------------------------------------------- */
static pen_status make_units(ps *p, pen_error *why)
{
    pen_ctx *ctx = p->c->ctx;
    ps_units *u  = calloc(1, sizeof *u);
    if (u == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for units");
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, NULL);
    p->units     = u;
    u->ctx       = ctx;
    u->n         = ctx->model.units.n;
    u->slot      = calloc(u->n, sizeof *u->slot);
    u->residency = u->slot != NULL ? unit_residency(ctx, fetch_unit, drop_unit, u, why) : NULL;
    if (u->slot == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %u units", u->n);
    for (uint32_t i = 0; i < u->n; i++) u->slot[i] = (unit_slot){.owner = u, .unit = i};
    return u->residency != NULL ? PEN_OK : why->status;
}

/* The servers have the values of rank 0 now. */
pen_status ps_units_open(ps *p, pen_error *why)
{
    const pen_ctx *ctx = p->c->ctx;
    if (ctx->stage < 3 || p->c->n_shards == 0) return PEN_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++)
        if (!ctx->model.tensor[i]->stays) param_memory_drop(ctx->model.tensor[i]);
    return make_units(p, why);
}

void ps_units_close(ps *p)
{
    ps_units *u = p->units;
    if (u == NULL) return;
    residency_destroy(u->residency);
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->lock);
    free(u->slot);
    free(u);
    p->units = NULL;
}

/* ---- use ------------------------------------------------------------------------------------- */
/* Values are fetched with the decision of the previous step; a chunk that this step has pushed is past it. */
static pen_status check_unsent(const ps_units *u, const pen_unit *unit, pen_error *why)
{
    pen_ctx *ctx      = u->ctx;
    pen_status status = PEN_OK;
    pthread_mutex_lock(&ctx->step.lock);
    for (uint32_t i = 0; i < unit->n_tensors && status == PEN_OK && ctx->step.is_open; i++) {
        pen_tensor *t = ctx->model.tensor[unit->tensor[i]];
        if (!t->stays) status = grad_slot_move(&t->slot, GRAD_USE, t->name, -1, why);
    }
    pthread_mutex_unlock(&ctx->step.lock);
    return status;
}

static bool has_unit(ps_units *u, uint32_t unit)
{
    pthread_mutex_lock(&u->lock);
    const bool has = residency_has(u->residency, unit);
    pthread_mutex_unlock(&u->lock);
    return has;
}

/* Ends in time: a fetch has a deadline. */
static pen_status wait_for_unit(ps_units *u, uint32_t unit, pen_error *why)
{
    unit_slot *slot = &u->slot[unit];
    while (!residency_has(u->residency, unit) && !slot->has_failed)
        pthread_cond_wait(&u->changed, &u->lock);
    if (!slot->has_failed) return PEN_OK;
    *why = slot->why;
    return why->status;
}

pen_status ps_units_use(strategy *s, const pen_unit *unit, pen_phase phase, int64_t step,
                        pen_error *why)
{
    ps_units *u = ((ps *)s)->units;
    if (u == NULL || unit->moving == 0) return PEN_OK;
    /* Without `lock`: a thread that ends the step takes it inside the step's lock. */
    if (!has_unit(u, unit->index) && check_unsent(u, unit, why) != PEN_OK) return why->status;
    pthread_mutex_lock(&u->lock);
    u->slot[unit->index].has_failed = false;
    (void)residency_use(u->residency, unit->index, phase, step); /* unrecorded: not fetched ahead */
    settle(u);
    const pen_status status = wait_for_unit(u, unit->index, why);
    if (status != PEN_OK) {
        residency_release(u->residency, unit->index, phase);
        settle(u);
    }
    pthread_mutex_unlock(&u->lock);
    return status;
}

void ps_units_release(strategy *s, const pen_unit *unit, pen_phase phase)
{
    ps_units *u = ((ps *)s)->units;
    if (u == NULL || unit->moving == 0) return;
    pthread_mutex_lock(&u->lock);
    residency_release(u->residency, unit->index, phase);
    settle(u);
    pthread_mutex_unlock(&u->lock);
}

void ps_units_step_end(ps *p)
{
    ps_units *u = p->units;
    if (u == NULL) return;
    pthread_mutex_lock(&u->lock);
    residency_step_end(u->residency);
    settle(u);
    pthread_mutex_unlock(&u->lock);
}

/* ---- gradients ------------------------------------------------------------------------------- */
static uint64_t bucket_bytes(const worker_settings *s)
{
    return s->reduce_bucket > 0 ? s->reduce_bucket * sizeof(float) : s->bucket_bytes;
}

pen_status ps_units_view(strategy *s, pen_tensor *t, pen_error *why)
{
    const io_thread *c = ((ps *)s)->c;
    pen_ctx *ctx       = c->ctx;
    if (c->ps_client == NULL || !io_gives_back(c)) return PEN_OK;
    return param_grad_wait(ctx, t->grad_bytes, bucket_bytes(&ctx->settings), why);
}

void io_returned(void *user, uint32_t tensor)
{
    io_thread *c  = user;
    pen_tensor *t = c->ctx->model.tensor[tensor];
    param_grad_return(t, t->pushed);
}
