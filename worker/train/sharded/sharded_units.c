/* sharded_units.c - zero3: gathers values of units for a use and drops them after it.
 *
 * DESIGN.  residency.h decides what to fetch and drop; this file gathers and frees.  Unlike with servers, a gather needs
 * all members, in the same order.  So the order must depend on the program's calls only.  Arrivals are reported to the
 * residency when a thread waits for one, in the order they were begun, and at the end of a step, but never when they
 * happen.  Programs whose ranks use units in different orders need servers.
 *   On a device values are gathered on a stream of their own.  On the stream of the sums a rank might have to end a sum
 * before a gather that another rank does first.  Nothing waits for the device: a unit has arrived when its gather is
 * enqueued, and memory is used again in the order of the streams (device_copies.h).
 */
#include "worker/train/sharded/sharded_internal.h"

#include "common/base/why.h"
#include "worker/tensor/device_copy/device_copies.h"
#include "worker/tensor/param_memory.h"
#include "worker/tensor/unit_use.h"

#include <stdlib.h>

typedef struct {
    group_calls calls; /* of the newest fetch */
    pen_error failure; /* of that fetch; status OK: none */
} unit_slot;

typedef struct { /* a tensor that is gathered */
    sharded_units *owner;
    unit_slot *slot;
    pen_tensor *tensor;
} arrival;

struct sharded_units {
    sharded *s;
    memory_space space;    /* that of the state, with a stream of its own */
    device_event *updated; /* on a device: own ranges have changed */
    residency *residency;
    uint32_t n;
    unit_slot *slot;          /* [n] */
    arrival *arrival;         /* [n_tensors] */
    uint32_t *begun, n_begun; /* [n] fetches whose arrival was not reported, in order */
    pthread_mutex_t calls;    /* of the program's threads: one at a time */
};

/* ---- calls ----------------------------------------------------------------------------------- */
/* On the thread that ended the call. */
static void end_gather(void *user, pen_status status, const pen_error *why)
{
    const arrival *a      = user;
    const memory_space *p = &a->owner->space;
    pen_error later;
    if (status == PEN_OK) {
        status = device_copies_made_values(a->tensor, p->stream, &later);
        why    = &later;
    }
    group_calls_end(&a->slot->calls, status, why);
}

static pen_status begin_gather(sharded_units *u, const arrival *a, const size_t *counts,
                               pen_error *why)
{
    const sharded *s    = u->s;
    const pen_tensor *x = a->tensor;
    char *values        = space_values(&u->space, x);
    char *own           = values + s->own[x->index].start * plan_dtype_bytes(x->desc.dtype);
    pen_status status   = device_copies_begin_values(a->tensor, u->space.stream, why);
    if (status == PEN_OK)
        status = update_state_copy_out(s->update_state, x, own, u->space.stream, why);
    const coll_call call = {.kind            = COLL_ALL_GATHER,
                            .dtype           = PEN_U8,
                            .n               = counts[s->rank],
                            .in              = own,
                            .out             = values,
                            .counts          = counts,
                            .scale           = 1,
                            .stream          = u->space.stream,
                            .in_stream_order = space_is_device(&u->space),
                            .traffic         = TRAFFIC_VALUE,
                            .label           = x->name};
    return status == PEN_OK
               ? group_calls_submit(&a->slot->calls, &call, end_gather, (void *)(uintptr_t)a, why)
               : status;
}

static void gather_tensor(sharded_units *u, unit_slot *slot, pen_tensor *x)
{
    const sharded *s = u->s;
    arrival *a       = &u->arrival[x->index];
    pen_error why;
    size_t *counts    = calloc((size_t)s->size, sizeof *counts);
    pen_status status = counts != NULL
                            ? param_memory(x, &why)
                            : why_set(&why, PEN_NO_MEMORY, "no memory to gather '%s'", x->name);
    *a                = (arrival){.owner = u, .slot = slot, .tensor = x};
    for (int m = 0; m < s->size && status == PEN_OK; m++)
        counts[m] = s->range[(size_t)x->index * (size_t)s->size + (size_t)m].count *
                    plan_dtype_bytes(x->desc.dtype);
    group_calls_count(&slot->calls);
    if (status == PEN_OK) status = begin_gather(u, a, counts, &why);
    if (status != PEN_OK) group_calls_end(&slot->calls, status, &why);
    free(counts);
}

/* ---- fetch and drop -------------------------------------------------------------------------- */
static void fetch_unit(void *user, uint32_t number)
{
    sharded_units *u       = user;
    const pen_unit *unit   = &u->s->ctx->model.units.unit[number];
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
    if (!residency_use(u->residency, unit->index, phase, step))
        status =
            why_set(why, PEN_NO_MEMORY, "no memory to record the use of unit '%s'", unit->name);
    while (status == PEN_OK && !residency_has(u->residency, unit->index) && u->n_begun > 0)
        notify_arrival(u);
    if (status == PEN_OK && !residency_has(u->residency, unit->index)) {
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

/* All local values are stale now.  On a device, what is gathered from here on is new. */
pen_status sharded_units_step_end(sharded *s, pen_error *why)
{
    sharded_units *u = s->units;
    if (u == NULL) return PEN_OK;
    pthread_mutex_lock(&u->calls);
    pen_status status = space_record(&s->space, u->updated, why);
    if (status == PEN_OK) status = space_follow(&s->space, u->space.stream, u->updated, why);
    while (u->n_begun > 0) notify_arrival(u);
    residency_step_end(u->residency);
    pthread_mutex_unlock(&u->calls);
    return status;
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
    s->units   = u;
    u->s       = s;
    u->n       = s->ctx->model.units.n;
    u->slot    = calloc(u->n, sizeof *u->slot);
    u->begun   = calloc((size_t)u->n + 1, sizeof *u->begun);
    u->arrival = calloc(s->ctx->model.n_tensors, sizeof *u->arrival);
    if (u->slot == NULL || u->begun == NULL || u->arrival == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %u units", u->n);
    for (uint32_t i = 0; i < u->n; i++) {
        group_calls_init(&u->slot[i].calls, s->ctx);
        u->slot[i].calls.group = s->values.group;
    }
    if (space_beside(&s->space, &u->space, why) != PEN_OK ||
        space_event(&u->space, &u->updated, why) != PEN_OK)
        return why->status;
    u->residency = unit_residency(s->ctx, fetch_unit, drop_unit, u, why);
    return u->residency != NULL ? PEN_OK : why->status;
}

void sharded_units_destroy(sharded *s)
{
    sharded_units *u = s->units;
    pen_error why;
    if (u == NULL) return;
    (void)space_wait(&u->space, &why);
    space_event_free(&u->space, u->updated);
    space_close(&u->space);
    residency_destroy(u->residency);
    pthread_mutex_destroy(&u->calls);
    for (uint32_t i = 0; u->slot != NULL && u->begun != NULL && u->arrival != NULL && i < u->n; i++)
        group_calls_fini(&u->slot[i].calls);
    free(u->slot);
    free(u->begun);
    free(u->arrival);
    free(u);
    s->units = NULL;
}
