/* asks.c - FAULT, SHRINK and STORE, from being asked to being answered. */
#include "worker/asks.h"

#include "common/why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GET_BIT ((uint64_t)1 << 63) /* numbers of gets are a range of their own */

typedef struct ask ask;
struct ask {
    ask *next;
    wire_control message; /* what it points to is OWNED: `text` */
    void *token;
    uint64_t begun_ms, deadline_ms;
    char *text; /* key, ranks or data */
};

struct asks {
    asks_actions act;
    void *user;
    ask *first;
    uint64_t changes, gets; /* numbers given */
};

asks *asks_create(const asks_actions *actions, void *user)
{
    asks *self = calloc(1, sizeof *self);
    if (self == NULL) return NULL;
    self->act  = *actions;
    self->user = user;
    return self;
}

static void free_ask(ask *a)
{
    free(a->text);
    free(a);
}

void asks_destroy(asks *self)
{
    if (self == NULL) return;
    while (self->first != NULL) {
        ask *next = self->first->next;
        free_ask(self->first);
        self->first = next;
    }
    free(self);
}

/* ---- the list -------------------------------------------------------------------------------- */
/* With room for `bytes`; not yet in the list. */
static ask *make(wire_control_kind kind, size_t bytes)
{
    ask *a = calloc(1, sizeof *a);
    if (a == NULL) return NULL;
    a->message.kind = kind;
    a->text         = malloc(bytes + 1);
    if (a->text != NULL) return a;
    free(a);
    return NULL;
}

static void append(asks *self, ask *a)
{
    ask **at = &self->first;
    while (*at != NULL) at = &(*at)->next;
    *at = a;
}

static ask *take_out(asks *self, ask *a)
{
    ask **at = &self->first;
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    return a;
}

static void bound(asks *self, wire_control_kind kind, int max)
{
    ask *oldest = NULL;
    int n       = 0;
    for (ask *a = self->first; a != NULL; a = a->next) {
        if (a->message.kind != kind) continue;
        if (oldest == NULL) oldest = a;
        n++;
    }
    if (n >= max) free_ask(take_out(self, oldest));
}

static bool is_change(const ask *a)
{
    return a->message.kind == WIRE_STORE && a->message.u.store.op != WIRE_STORE_GET;
}

/* The oldest set or add that is not answered: all below it are. */
static uint64_t done_below(const asks *self)
{
    for (const ask *a = self->first; a != NULL; a = a->next)
        if (is_change(a)) return a->message.u.store.id;
    return self->changes + 1;
}

static void send(asks *self, ask *a)
{
    const uint64_t done = done_below(self);
    if (is_change(a) && a->message.u.store.id >= done + ASKS_WINDOW) return;
    if (a->message.kind == WIRE_STORE) a->message.u.store.done_below = done;
    self->act.send(self->user, &a->message);
}

void asks_say(asks *self)
{
    for (ask *a = self->first; a != NULL; a = a->next) send(self, a);
}

/* ---- asking ---------------------------------------------------------------------------------- */
pen_status asks_fault(asks *self, uint64_t group, uint64_t call, const pen_error *why)
{
    ask *a = make(WIRE_FAULT, 0);
    if (a == NULL) return PEN_NO_MEMORY;
    a->message.u.fault = (wire_fault){.group = group, .call = call, .why = *why};
    bound(self, WIRE_FAULT, ASKS_FAULTS_MAX);
    append(self, a);
    send(self, a);
    return PEN_OK;
}

static ask *find_shrink(const asks *self, uint64_t group)
{
    ask *a = self->first;
    while (a != NULL && (a->message.kind != WIRE_SHRINK || a->message.u.shrink.group != group))
        a = a->next;
    return a;
}

/* Asked anew, the newer list is said: more may have died. */
pen_status asks_shrink(asks *self, uint64_t group, const int32_t *ranks, uint32_t n)
{
    ask *a   = make(WIRE_SHRINK, n * sizeof *ranks);
    ask *old = find_shrink(self, group);
    if (a == NULL) return PEN_NO_MEMORY;
    if (old != NULL) free_ask(take_out(self, old));
    if (n > 0) memcpy(a->text, ranks, n * sizeof *ranks);
    a->message.u.shrink.group   = group;
    a->message.u.shrink.n_ranks = n;
    a->message.u.shrink.rank    = (const int32_t *)(const void *)a->text;
    bound(self, WIRE_SHRINK, ASKS_SHRINKS_MAX);
    append(self, a);
    send(self, a);
    return PEN_OK;
}

pen_status asks_store(asks *self, const asks_change *change, void *token, uint64_t now_ms)
{
    const size_t length = strlen(change->key) + 1;
    ask *a              = make(WIRE_STORE, length + change->size);
    if (a == NULL) return PEN_NO_MEMORY;
    memcpy(a->text, change->key, length);
    if (change->size > 0) memcpy(a->text + length, change->data, change->size);
    a->token              = token;
    a->begun_ms           = now_ms;
    a->deadline_ms        = change->deadline_ms;
    a->message.u.store.id = change->op == WIRE_STORE_GET ? GET_BIT | ++self->gets : ++self->changes;
    a->message.u.store.op = (int32_t)change->op;
    a->message.u.store.key       = a->text;
    a->message.u.store.data      = a->text + length;
    a->message.u.store.data_size = change->size;
    a->message.u.store.delta     = change->delta;
    append(self, a);
    send(self, a);
    return PEN_OK;
}

/* ---- hearing --------------------------------------------------------------------------------- */
static void take_faulted(asks *self, const wire_fault *f)
{
    for (ask *a = self->first, *next; a != NULL; a = next) {
        next = a->next;
        if (a->message.kind == WIRE_FAULT && a->message.u.fault.group == f->group &&
            a->message.u.fault.call == f->call)
            free_ask(take_out(self, a));
    }
    self->act.faulted(self->user, f->group, f->call, &f->why);
}

static void take_shrunk(asks *self, const wire_control *c)
{
    pen_error why;
    ask *a = find_shrink(self, c->u.shrunk.group);
    if (a == NULL) return; /* told before */
    free_ask(take_out(self, a));
    const pen_status status = c->u.shrunk.status;
    if (status != PEN_OK) why_set(&why, status, "pen_group_shrink: %s", c->u.shrunk.text);
    self->act.shrunk(self->user, c->u.shrunk.group, c->u.shrunk.new_group, c->u.shrunk.rank,
                     c->u.shrunk.n_ranks, status != PEN_OK ? &why : NULL);
}

static const char *name_of(const ask *a)
{
    static const char *const names[] = {[WIRE_STORE_SET] = "pen_store_set",
                                        [WIRE_STORE_GET] = "pen_store_get",
                                        [WIRE_STORE_ADD] = "pen_store_add"};
    return names[a->message.u.store.op];
}

/* Sent at once: more of those that wait fit into the window now. */
static void send_next(asks *self, uint64_t before)
{
    const uint64_t after = done_below(self);
    for (ask *a = self->first; a != NULL; a = a->next)
        if (is_change(a) && a->message.u.store.id >= before + ASKS_WINDOW &&
            a->message.u.store.id < after + ASKS_WINDOW)
            send(self, a);
}

static void take_stored(asks *self, const wire_control *c)
{
    ask *a = self->first;
    while (a != NULL && (a->message.kind != WIRE_STORE || a->message.u.store.id != c->u.stored.id))
        a = a->next;
    if (a == NULL) return;
    const uint64_t before   = done_below(self);
    const pen_status status = c->u.stored.status;
    pen_error why;
    take_out(self, a);
    if (status != PEN_OK) why_set(&why, status, "%s: %s", name_of(a), c->u.stored.text);
    self->act.stored(self->user, a->token, c->u.stored.data, c->u.stored.data_size,
                     c->u.stored.value, status != PEN_OK ? &why : NULL);
    free_ask(a);
    send_next(self, before);
}

void asks_receive(asks *self, const wire_control *c)
{
    switch (c->kind) {
    case WIRE_FAULTED: take_faulted(self, &c->u.fault); break;
    case WIRE_SHRUNK: take_shrunk(self, c); break;
    case WIRE_STORED: take_stored(self, c); break;
    default: break;
    }
}

/* ---- ending ---------------------------------------------------------------------------------- */
void asks_fail(asks *self, const pen_error *why)
{
    while (self->first != NULL) {
        ask *a = take_out(self, self->first);
        if (a->message.kind == WIRE_STORE) self->act.stored(self->user, a->token, NULL, 0, 0, why);
        free_ask(a);
    }
}

static void time_out(asks *self, ask *a, uint64_t now_ms)
{
    pen_error why;
    const double waited = (double)(now_ms - a->begun_ms) / 1000;
    take_out(self, a);
    if (a->message.u.store.op == WIRE_STORE_GET)
        why_set(&why, PEN_TIMED_OUT, "pen_store_get: nobody has set '%.200s' within %.3g s",
                a->message.u.store.key, waited);
    else
        why_set(&why, PEN_TIMED_OUT, "%s('%.200s'): no answer of the scheduler within %.3g s",
                name_of(a), a->message.u.store.key, waited);
    self->act.stored(self->user, a->token, NULL, 0, 0, &why);
    free_ask(a);
}

void asks_tick(asks *self, uint64_t now_ms)
{
    for (ask *a = self->first, *next; a != NULL; a = next) {
        next = a->next;
        if (a->deadline_ms != 0 && a->deadline_ms <= now_ms) time_out(self, a, now_ms);
    }
}

uint64_t asks_due(const asks *self)
{
    uint64_t due = UINT64_MAX;
    for (const ask *a = self->first; a != NULL; a = a->next)
        if (a->deadline_ms != 0 && a->deadline_ms < due) due = a->deadline_ms;
    return due;
}
