/* sharded_units.c - zero3: gathers values of units for a use and drops them after it.
 *
 * DESIGN.  residency.h decides what to fetch and drop; this file gathers and frees.  Unlike with servers, a gather needs
 * all members, in the same order.  So the order must depend on the program's calls only.  Arrivals are reported to the
 * residency when a thread waits for one, in the order they were begun, and at the end of a step, but never when they
 * happen.  Programs whose ranks use units in different orders need servers.
 */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/why.h"
#include "worker/tensor/param_memory.h"
#include "worker/tensor/unit_use.h"

#include <stdlib.h>

typedef struct {
    group_calls calls; /* of the newest fetch */
    pen_error failure; /* of that fetch; status OK: none */
} unit_slot;

struct sharded_units {
    sharded *s;
    residency *residency;
    uint32_t n;
    unit_slot *slot;          /* [n] */
    uint32_t *begun, n_begun; /* [n] fetches whose arrival was not reported, in order */
    pthread_mutex_t calls;    /* of the program's threads: one at a time */
};

static const pen_unit *unit_of(const sharded_units *u, uint32_t number)
{
    return &u->s->ctx->model.units.unit[number];
}

/* ---- calls ----------------------------------------------------------------------------------- */
static void gather_tensor(sharded_units *u, unit_slot *slot, pen_tensor *x)
{
    sharded *s         = u->s;
    const size_t width = plan_dtype_bytes(x->desc.dtype);
    pen_error why;
    size_t *counts    = calloc((size_t)s->size, sizeof *counts);
    pen_status status = counts != NULL
                            ? param_memory(x, &why)
                            : why_set(&why, PEN_NO_MEMORY, "no memory to gather '%s'", x->name);
    if (status == PEN_OK) {
        const sharded_range *range = &s->range[(size_t)x->index * (size_t)s->size];
        char *own                  = (char *)x->param + s->own[x->index].start * width;
        for (int m = 0; m < s->size; m++) counts[m] = range[m].count * width;
        update_state_values(s->update_state, x, own);
        group_calls_gather(&slot->calls, PEN_U8, counts[s->rank], counts, own, x->param, x->name);
    } else {
        group_calls_count(&slot->calls);
        group_calls_end(&slot->calls, status, &why);
    }
    free(counts);
}

/* ---- fetch and drop -------------------------------------------------------------------------- */
static void fetch_unit(void *user, uint32_t number)
{
    sharded_units *u       = user;
    const pen_unit *unit   = unit_of(u, number);
    unit_slot *slot        = &u->slot[number];
    slot->failure.status   = PEN_OK;
    u->begun[u->n_begun++] = number;
    for (uint32_t i = 0; i < unit->n_tensors; i++) {
        pen_tensor *x = u->s->ctx->model.tensor[unit->tensor[i]];
        if (u->s->sharded_out[x->index]) gather_tensor(u, slot, x);
    }
}

static void drop_unit(void *user, uint32_t number)
{
    unit_drop(((sharded_units *)user)->s->ctx, number);
}

/* ---- arrivals -------------------------------------------------------------------------------- */
/* Ends the oldest fetch; this may begin another, which becomes the newest. */
static void notify_arrival(sharded_units *u)
{
    const uint32_t number = u->begun[0];
    unit_slot *slot       = &u->slot[number];
    const pen_status status =
        group_calls_wait(&slot->calls, &slot->failure); /* calls have deadlines */
    u->n_begun--;
    for (uint32_t i = 0; i < u->n_begun; i++) u->begun[i] = u->begun[i + 1];
    if (status == PEN_OK) {
        residency_arrived(u->residency, number);
        return;
    }
    drop_unit(u, number);
    residency_failed(u->residency, number);
}

pen_status sharded_units_use(strategy *s, const pen_unit *unit, pen_phase phase, int64_t step,
                             pen_error *why)
{
    sharded_units *u  = ((sharded *)s)->units;
    pen_status status = PEN_OK;
    if (u == NULL || unit->moving == 0) return PEN_OK;
    pthread_mutex_lock(&u->calls);
    residency_use(u->residency, unit->index, phase, step);
    while (!residency_has(u->residency, unit->index) && u->n_begun > 0) notify_arrival(u);
    if (!residency_has(u->residency, unit->index)) {
        *why   = u->slot[unit->index].failure;
        status = why->status != PEN_OK
                     ? why->status
                     : why_set(why, PEN_INTERNAL, "unit '%s' was not gathered", unit->name);
    }
    pthread_mutex_unlock(&u->calls);
    return status;
}

void sharded_units_release(strategy *s, const pen_unit *unit, pen_phase phase)
{
    sharded_units *u = ((sharded *)s)->units;
    if (u == NULL || unit->moving == 0) return;
    pthread_mutex_lock(&u->calls);
    residency_release(u->residency, unit->index, phase);
    pthread_mutex_unlock(&u->calls);
}

/* All local values are stale now. */
void sharded_units_step_end(sharded *s)
{
    sharded_units *u = s->units;
    if (u == NULL) return;
    pthread_mutex_lock(&u->calls);
    while (u->n_begun > 0) notify_arrival(u);
    residency_step_end(u->residency);
    pthread_mutex_unlock(&u->calls);
}

/* ---- create and destroy ---------------------------------------------------------------------- */
pen_status sharded_units_create(sharded *s, pen_error *why)
{
    bool has_any = false;
    for (uint32_t i = 0; i < s->ctx->model.n_tensors; i++) has_any |= s->sharded_out[i];
    if (!has_any) return PEN_OK;
    sharded_units *u = calloc(1, sizeof *u);
    if (u == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for units");
    pthread_mutex_init(&u->calls, NULL);
    s->units = u;
    u->s     = s;
    u->n     = s->ctx->model.units.n;
    u->slot  = calloc(u->n, sizeof *u->slot);
    u->begun = calloc((size_t)u->n + 1, sizeof *u->begun);
    if (u->slot == NULL || u->begun == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %u units", u->n);
    for (uint32_t i = 0; i < u->n; i++) {
        group_calls_init(&u->slot[i].calls, s->ctx);
        u->slot[i].calls.group = s->values.group;
    }
    u->residency = unit_residency(s->ctx, fetch_unit, drop_unit, u, why);
    return u->residency != NULL ? PEN_OK : why->status;
}

void sharded_units_destroy(sharded *s)
{
    sharded_units *u = s->units;
    if (u == NULL) return;
    residency_destroy(u->residency);
    pthread_mutex_destroy(&u->calls);
    for (uint32_t i = 0; u->slot != NULL && u->begun != NULL && i < u->n; i++)
        group_calls_fini(&u->slot[i].calls);
    free(u->slot);
    free(u->begun);
    free(u);
    s->units = NULL;
}
