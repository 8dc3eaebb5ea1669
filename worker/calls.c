/* calls.c - commands between processes. */
#include "worker/calls.h"

#include "common/why.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    AGAIN_MS   = 1000, /* what is not answered is said again          */
    KEPT_CALLS = 64    /* of one asker; it has at most CALLS_AT_ONCE */
};
#define NEVER UINT64_MAX

typedef struct {
    bool is_here;
    pen_status status;
    pen_bytes data;
    char *text; /* of a refusal */
} answer;

typedef struct ask {
    struct ask *next;
    void *token;
    uint64_t id, begun_ms, deadline_ms, again_ms;
    int32_t role, rank, head;
    uint32_t n, n_here;
    answer *answers; /* [n] */
    size_t size;
    unsigned char body[];
} ask;

typedef struct asker {
    struct asker *next;
    uint64_t incarnation, done_below;
    pen_call *calls;
    uint32_t n_calls;
} asker;

struct calls {
    calls_actions act;
    void *user;
    int32_t rank;
    bool has_failed;
    uint64_t ids;
    ask *asks; /* by id */
    asker *askers;
};

/* ---- life ------------------------------------------------------------------------------------ */
calls *calls_create(int32_t rank, const calls_actions *actions, void *user)
{
    calls *self = calloc(1, sizeof *self);
    if (self == NULL) return NULL;
    self->act  = *actions;
    self->user = user;
    self->rank = rank;
    return self;
}

static void free_ask(ask *a)
{
    for (uint32_t i = 0; i < a->n; i++) {
        free(a->answers[i].data.data);
        free(a->answers[i].text);
    }
    free(a->answers);
    free(a);
}

static void free_call(pen_call *call)
{
    free(call->data);
    free(call);
}

static void free_asker(asker *a)
{
    while (a->calls != NULL) {
        pen_call *call = a->calls;
        a->calls       = call->next;
        free_call(call);
    }
    free(a);
}

void calls_destroy(calls *self)
{
    if (self == NULL) return;
    while (self->asks != NULL) {
        ask *a     = self->asks;
        self->asks = a->next;
        free_ask(a);
    }
    while (self->askers != NULL) {
        asker *a     = self->askers;
        self->askers = a->next;
        free_asker(a);
    }
    free(self);
}

/* ---- asking ---------------------------------------------------------------------------------- */
static const char *role_name(int32_t role)
{
    return role == PEN_SERVER ? "server" : role == PEN_WORKER ? "worker" : "scheduler";
}

static void say_to(calls *self, const ask *a, int32_t rank)
{
    wire_control c         = {.kind = WIRE_COMMAND};
    c.u.command.id         = a->id;
    c.u.command.role       = a->role;
    c.u.command.rank       = rank;
    c.u.command.head       = a->head;
    c.u.command.body       = a->body;
    c.u.command.body_size  = a->size;
    c.u.command.done_below = self->asks->id;
    self->act.send(self->user, &c);
}

static void say(calls *self, ask *a, uint64_t now_ms)
{
    a->again_ms = now_ms + AGAIN_MS;
    if (a->n_here == 0) {
        say_to(self, a, a->rank);
        return;
    }
    for (uint32_t i = 0; i < a->n; i++)
        if (!a->answers[i].is_here) say_to(self, a, (int32_t)i);
}

static void say_due(calls *self, uint64_t now_ms)
{
    int n = 0;
    for (ask *a = self->asks; a != NULL && n < CALLS_AT_ONCE; a = a->next, n++)
        if (a->again_ms <= now_ms) say(self, a, now_ms);
}

static ask *make_ask(calls *self, const calls_question *q, void *token, uint64_t now_ms)
{
    ask *a = calloc(1, sizeof *a + q->size);
    if (a == NULL) return NULL;
    a->answers = calloc(q->n, sizeof *a->answers);
    if (a->answers == NULL) {
        free(a);
        return NULL;
    }
    a->token       = token;
    a->id          = ++self->ids;
    a->begun_ms    = now_ms;
    a->deadline_ms = q->deadline_ms;
    a->role        = q->role;
    a->rank        = q->rank;
    a->head        = q->head;
    a->n           = q->n;
    a->size        = q->size;
    if (q->size > 0) memcpy(a->body, q->body, q->size);
    return a;
}

pen_status calls_ask(calls *self, const calls_question *q, void *token, uint64_t now_ms)
{
    ask *a = make_ask(self, q, token, now_ms);
    if (a == NULL) return PEN_NO_MEMORY;
    ask **at = &self->asks;
    while (*at != NULL) at = &(*at)->next;
    *at = a;
    say_due(self, now_ms);
    return PEN_OK;
}

/* ---- ending ---------------------------------------------------------------------------------- */
static void end(calls *self, ask *a, const pen_bytes *replies, const pen_error *why)
{
    ask **at = &self->asks;
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    self->act.ended(self->user, a->token, replies, replies != NULL ? a->n : 0, why);
    free_ask(a);
}

static int32_t rank_of(const ask *a, uint32_t i)
{
    return a->rank >= 0 ? a->rank : (int32_t)i;
}

/* The refusal of the lowest rank is the command's; -1: none refused. */
static int64_t first_refusal(const ask *a)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (a->answers[i].status != PEN_OK) return i;
    return -1;
}

static void conclude(calls *self, ask *a)
{
    pen_error why;
    const int64_t refusal = first_refusal(a);
    if (refusal >= 0) {
        const answer *no = &a->answers[refusal];
        why_set(&why, no->status, "%s", no->text);
        why_culprit(&why, a->role, rank_of(a, (uint32_t)refusal), -1, NULL);
        end(self, a, NULL, &why);
        return;
    }
    pen_bytes *replies = calloc(a->n, sizeof *replies);
    if (replies == NULL) {
        why_set(&why, PEN_NO_MEMORY, "no memory for %u replies", a->n);
        end(self, a, NULL, &why);
        return;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        replies[i]         = a->answers[i].data;
        a->answers[i].data = (pen_bytes){0};
    }
    end(self, a, replies, NULL);
    free(replies);
}

static void time_out(calls *self, ask *a, uint64_t now_ms)
{
    pen_error why;
    char more[32]  = "";
    uint32_t first = 0;
    while (a->answers[first].is_here) first++;
    const uint32_t others = a->n - a->n_here - 1;
    if (others > 0) snprintf(more, sizeof more, " and %u more", others);
    why_set(&why, PEN_TIMED_OUT, "waited %.3g s for %s %d%s to answer command %d",
            (double)(now_ms - a->begun_ms) / 1000, role_name(a->role), rank_of(a, first), more,
            a->head);
    why_culprit(&why, a->role, rank_of(a, first), -1, NULL);
    for (uint32_t i = first; i < a->n && why.missing_n < 32; i++)
        if (!a->answers[i].is_here) why.missing[why.missing_n++] = rank_of(a, i);
    end(self, a, NULL, &why);
}

static void hear_reply(calls *self, const wire_control *c, uint64_t now_ms)
{
    ask *a = self->asks;
    while (a != NULL && a->id != c->u.reply.id) a = a->next;
    if (a == NULL || c->u.reply.role != a->role) return;
    const int64_t i = a->rank >= 0 ? (c->u.reply.rank == a->rank ? 0 : -1) : c->u.reply.rank;
    if (i < 0 || i >= a->n || a->answers[i].is_here) return;

    answer *to = &a->answers[i];
    *to        = (answer){.status = c->u.reply.status};
    if (to->status != PEN_OK) {
        to->text = strdup(c->u.reply.text);
        if (to->text == NULL) return; /* it comes again */
    } else if (c->u.reply.data_size > 0) {
        to->data = (pen_bytes){malloc(c->u.reply.data_size), c->u.reply.data_size};
        if (to->data.data == NULL) return;
        memcpy(to->data.data, c->u.reply.data, c->u.reply.data_size);
    }
    to->is_here = true;
    if (++a->n_here < a->n) return;
    conclude(self, a);
    say_due(self, now_ms); /* one more fits into the window */
}

/* ---- answering ------------------------------------------------------------------------------- */
static asker *meet_asker(calls *self, uint64_t incarnation)
{
    for (asker *a = self->askers; a != NULL; a = a->next)
        if (a->incarnation == incarnation) return a;
    asker *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->incarnation   = incarnation;
    made->next          = self->askers;
    return self->askers = made;
}

static void drop(asker *a, pen_call **at)
{
    pen_call *call = *at;
    *at            = call->next;
    a->n_calls--;
    free_call(call);
}

/* A call that the program has not answered yet is kept: it holds a pointer to it. */
static void forget_below(asker *a, uint64_t done_below)
{
    if (done_below > a->done_below) a->done_below = done_below;
    for (pen_call **at = &a->calls; *at != NULL;) {
        pen_call *call = *at;
        call->is_over  = call->id < a->done_below;
        if (call->is_over && call->is_ready)
            drop(a, at);
        else
            at = &call->next;
    }
}

static void say_reply(calls *self, const pen_call *call)
{
    char text[256]     = "";
    wire_control c     = {.kind = WIRE_REPLY};
    c.u.reply.id       = call->id;
    c.u.reply.role     = call->role;
    c.u.reply.rank     = call->rank;
    c.u.reply.asker    = call->asker;
    c.u.reply.status   = call->status;
    c.u.reply.text     = text;
    const char *reason = pen_status_info(call->status)->text;
    if (call->has_no_handler)
        snprintf(text, sizeof text, "worker %d has no handler for command %d", self->rank,
                 call->head);
    else if (call->status != PEN_OK)
        snprintf(text, sizeof text, "worker %d refused command %d: %s", self->rank, call->head,
                 reason);
    if (call->status == PEN_OK) {
        c.u.reply.data      = call->data;
        c.u.reply.data_size = call->size;
    }
    self->act.send(self->user, &c);
}

static pen_call *add_call(asker *a, const wire_control *c)
{
    pen_call *call = a->n_calls < KEPT_CALLS ? calloc(1, sizeof *call) : NULL;
    if (call == NULL) return NULL; /* it comes again */
    call->asker = a->incarnation;
    call->id    = c->u.command.id;
    call->role  = c->u.command.role;
    call->rank  = c->u.command.rank;
    call->head  = c->u.command.head;
    call->next  = a->calls;
    a->calls    = call;
    a->n_calls++;
    return call;
}

static void hear_command(calls *self, const wire_control *c)
{
    asker *a = meet_asker(self, c->u.command.asker);
    if (a == NULL) return;
    forget_below(a, c->u.command.done_below);
    if (c->u.command.id < a->done_below) return;
    pen_call *call = a->calls;
    while (call != NULL && call->id != c->u.command.id) call = call->next;
    if (call != NULL) {
        if (call->is_ready) say_reply(self, call);
        return;
    }
    call = add_call(a, c);
    if (call == NULL) return;
    if (self->act.run(self->user, call, c->u.command.body, c->u.command.body_size)) return;
    call->status         = PEN_NOT_FOUND;
    call->has_no_handler = true;
    calls_answer(self, call);
}

void calls_answer(calls *self, pen_call *call)
{
    call->is_ready = true;
    if (!call->is_over) {
        if (!self->has_failed) say_reply(self, call);
        return;
    }
    asker *a      = meet_asker(self, call->asker);
    pen_call **at = &a->calls;
    while (*at != call) at = &(*at)->next;
    drop(a, at);
}

/* ---- all together ---------------------------------------------------------------------------- */
void calls_hear(calls *self, const wire_control *message, uint64_t now_ms)
{
    if (self->has_failed) return;
    if (message->kind == WIRE_COMMAND) hear_command(self, message);
    if (message->kind == WIRE_REPLY) hear_reply(self, message, now_ms);
}

void calls_fail(calls *self, const pen_error *why)
{
    self->has_failed = true;
    while (self->asks != NULL) end(self, self->asks, NULL, why);
}

void calls_tick(calls *self, uint64_t now_ms)
{
    for (ask *a = self->asks, *next; a != NULL; a = next) {
        next = a->next;
        if (a->deadline_ms != 0 && a->deadline_ms <= now_ms) time_out(self, a, now_ms);
    }
    say_due(self, now_ms);
}

uint64_t calls_due(const calls *self)
{
    uint64_t due = NEVER;
    int n        = 0;
    for (const ask *a = self->asks; a != NULL; a = a->next, n++) {
        if (n < CALLS_AT_ONCE && a->again_ms < due) due = a->again_ms;
        if (a->deadline_ms != 0 && a->deadline_ms < due) due = a->deadline_ms;
    }
    return due;
}
