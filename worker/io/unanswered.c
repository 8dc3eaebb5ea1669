/* unanswered.c - FAULT, SHRINK, STORE and COMMAND, from request to answer. */
#include "worker/io/unanswered.h"

#include "common/base/why.h"
#include "common/containers/list.h"
#include "proto/status_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEVER   UINT64_MAX
#define GET_BIT ((uint64_t)1 << 63) /* gets have their own range of numbers */

typedef struct {
    bool is_here;
    pen_status status;
    pen_bytes data;
    char *text; /* of a refusal */
} reply;

typedef struct pending {
    struct pending *next, *prev;
    wire_control message; /* points into `bytes` */
    void *token;
    uint64_t begun_ms, deadline_ms, again_ms; /* again_ms 0: as soon as the window allows */
    uint32_t n, n_here;
    reply *replies; /* [n] of STORE and COMMAND */
    char bytes[];   /* key and data, ranks, or body */
} pending;

struct unanswered {
    unanswered_actions act;
    void *user;
    bool has_failed;
    pending *first;                   /* oldest first */
    uint64_t changes, gets, commands; /* last numbers used */
};

/* ---- life ------------------------------------------------------------------------------------ */
unanswered *unanswered_create(const unanswered_actions *actions, void *user)
{
    unanswered *self = calloc(1, sizeof *self);
    if (self == NULL) return NULL;
    self->act  = *actions;
    self->user = user;
    return self;
}

static void free_pending(pending *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        free(p->replies[i].data.data);
        free(p->replies[i].text);
    }
    free(p->replies);
    free(p);
}

void unanswered_destroy(unanswered *self)
{
    if (self == NULL) return;
    LIST_EACH(p, self->first) free_pending(p);
    free(self);
}

/* ---- the table ------------------------------------------------------------------------------- */
/* Makes a request for n replies, with room for `bytes`; not yet in the table. */
static pending *make_pending(wire_control_kind kind, uint32_t n, size_t bytes)
{
    pending *p = calloc(1, sizeof *p + bytes);
    if (p == NULL) return NULL;
    p->message.kind = kind;
    p->n            = n;
    p->replies      = n > 0 ? calloc(n, sizeof *p->replies) : NULL;
    if (n == 0 || p->replies != NULL) return p;
    free(p);
    return NULL;
}

static void drop(unanswered *self, pending *p)
{
    LIST_REMOVE(self->first, p);
    free_pending(p);
}

/* The first request of that kind, from `from` on; NULL: none. */
static pending *seek(pending *from, wire_control_kind kind)
{
    while (from != NULL && from->message.kind != kind) from = from->next;
    return from;
}

static void bound(unanswered *self, wire_control_kind kind, int max)
{
    int n = 0;
    for (pending *p = seek(self->first, kind); p != NULL; p = seek(p->next, kind)) n++;
    if (n >= max) drop(self, seek(self->first, kind));
}

static bool is_change(const pending *p)
{
    return p->message.kind == WIRE_STORE && p->message.u.store.op != WIRE_STORE_GET;
}

/* ---- sending --------------------------------------------------------------------------------- */
/* All numbers below these are answered; the windows begin there. */
typedef struct {
    uint64_t changes_done, commands_done;
    uint32_t n_commands;
} window;

static window open_window(const unanswered *self)
{
    window w = {.changes_done = self->changes + 1, .commands_done = self->commands + 1};
    LIST_EACH(p, self->first) {
        if (is_change(p) && p->message.u.store.id < w.changes_done)
            w.changes_done = p->message.u.store.id;
        if (p->message.kind == WIRE_COMMAND && p->message.u.command.id < w.commands_done)
            w.commands_done = p->message.u.command.id;
    }
    return w;
}

/* Call it for each request, oldest first. */
static bool may_go(window *w, const pending *p)
{
    if (p->message.kind == WIRE_COMMAND) return w->n_commands++ < UNANSWERED_COMMANDS_MAX;
    return !is_change(p) || p->message.u.store.id < w->changes_done + UNANSWERED_CHANGES_MAX;
}

/* A command to many is repeated only to those that have not answered. */
static void send_command(unanswered *self, const pending *p, uint64_t done_below)
{
    wire_control c         = p->message;
    c.u.command.done_below = done_below;
    if (p->n_here == 0) self->act.send(self->user, &c);
    for (uint32_t i = 0; i < p->n && p->n_here > 0; i++) {
        c.u.command.rank = (int32_t)i;
        if (!p->replies[i].is_here) self->act.send(self->user, &c);
    }
}

static void send_due(unanswered *self, uint64_t now_ms)
{
    window w = open_window(self);
    for (pending *p = self->first; p != NULL; p = p->next) {
        if (!may_go(&w, p) || p->again_ms > now_ms) continue;
        p->again_ms = now_ms + UNANSWERED_AGAIN_MS;
        if (p->message.kind == WIRE_STORE) p->message.u.store.done_below = w.changes_done;
        if (p->message.kind == WIRE_COMMAND)
            send_command(self, p, w.commands_done);
        else
            self->act.send(self->user, &p->message);
    }
}

/* ---- asking ---------------------------------------------------------------------------------- */
static pen_status begin(unanswered *self, pending *p, uint64_t now_ms)
{
    LIST_APPEND(self->first, p);
    p->begun_ms = now_ms;
    send_due(self, now_ms);
    return PEN_OK;
}

pen_status unanswered_fault(unanswered *self, uint64_t group, uint64_t call, const pen_error *why,
                            uint64_t now_ms)
{
    pending *p = make_pending(WIRE_FAULT, 0, 0);
    if (p == NULL) return PEN_NO_MEMORY;
    p->message.u.fault = (wire_fault){.group = group, .call = call, .why = *why};
    bound(self, WIRE_FAULT, UNANSWERED_FAULTS_MAX);
    return begin(self, p, now_ms);
}

static pending *find_shrink(const unanswered *self, uint64_t group)
{
    pending *p = seek(self->first, WIRE_SHRINK);
    while (p != NULL && p->message.u.shrink.group != group) p = seek(p->next, WIRE_SHRINK);
    return p;
}

/* A newer list replaces the old one: more ranks may have died. */
pen_status unanswered_shrink(unanswered *self, uint64_t group, const int32_t *ranks, uint32_t n,
                             uint64_t now_ms)
{
    pending *p   = make_pending(WIRE_SHRINK, 0, n * sizeof *ranks);
    pending *old = find_shrink(self, group);
    if (p == NULL) return PEN_NO_MEMORY;
    if (old != NULL) drop(self, old);
    if (n > 0) memcpy(p->bytes, ranks, n * sizeof *ranks);
    p->message.u.shrink.group   = group;
    p->message.u.shrink.n_ranks = n;
    p->message.u.shrink.rank    = (const int32_t *)(const void *)p->bytes;
    bound(self, WIRE_SHRINK, UNANSWERED_SHRINKS_MAX);
    return begin(self, p, now_ms);
}

pen_status unanswered_kv(unanswered *self, const unanswered_change *change, void *token,
                         uint64_t deadline_ms, uint64_t now_ms)
{
    const size_t length = strlen(change->key) + 1;
    pending *p          = make_pending(WIRE_STORE, 1, length + change->size);
    if (p == NULL) return PEN_NO_MEMORY;
    memcpy(p->bytes, change->key, length);
    if (change->size > 0) memcpy(p->bytes + length, change->data, change->size);
    p->token              = token;
    p->deadline_ms        = deadline_ms;
    p->message.u.store.id = change->op == WIRE_STORE_GET ? GET_BIT | ++self->gets : ++self->changes;
    p->message.u.store.op = (int32_t)change->op;
    p->message.u.store.key       = p->bytes;
    p->message.u.store.data      = p->bytes + length;
    p->message.u.store.data_size = change->size;
    p->message.u.store.delta     = change->delta;
    return begin(self, p, now_ms);
}

pen_status unanswered_command(unanswered *self, const unanswered_question *question, void *token,
                              uint64_t deadline_ms, uint64_t now_ms)
{
    pending *p = make_pending(WIRE_COMMAND, question->n, question->size);
    if (p == NULL) return PEN_NO_MEMORY;
    if (question->size > 0) memcpy(p->bytes, question->body, question->size);
    p->token                       = token;
    p->deadline_ms                 = deadline_ms;
    p->message.u.command.id        = ++self->commands;
    p->message.u.command.role      = question->role;
    p->message.u.command.rank      = question->rank;
    p->message.u.command.head      = question->head;
    p->message.u.command.body      = p->bytes;
    p->message.u.command.body_size = question->size;
    return begin(self, p, now_ms);
}

/* ---- ending ---------------------------------------------------------------------------------- */
static void end(unanswered *self, pending *p, const unanswered_answer *answer, const pen_error *why)
{
    LIST_REMOVE(self->first, p);
    if (p->n > 0) self->act.ended(self->user, p->token, answer, why);
    free_pending(p);
}

static const char *name_of(const pending *p)
{
    static const char *const names[] = {[WIRE_STORE_SET] = "pen_store_set",
                                        [WIRE_STORE_GET] = "pen_store_get",
                                        [WIRE_STORE_ADD] = "pen_store_add"};
    return names[p->message.u.store.op];
}

static int32_t rank_of(const pending *p, uint32_t i)
{
    return p->message.u.command.rank >= 0 ? p->message.u.command.rank : (int32_t)i;
}

static void refuse(const pending *p, uint32_t i, pen_error *why)
{
    const reply *no = &p->replies[i];
    if (p->message.kind == WIRE_STORE) {
        why_set(why, no->status, "%s: %s", name_of(p), no->text);
        return;
    }
    why_set(why, no->status, "%s", no->text);
    why_culprit(why, p->message.u.command.role, rank_of(p, i), -1, NULL);
}

/* All replies are here. The refusal of the lowest rank fails the command. */
static void conclude(unanswered *self, pending *p, int64_t value)
{
    pen_error why;
    uint32_t i         = 0;
    pen_bytes *replies = calloc(p->n, sizeof *replies);
    while (i < p->n && p->replies[i].status == PEN_OK) i++;
    if (i < p->n)
        refuse(p, i, &why);
    else if (replies == NULL)
        why_set(&why, PEN_NO_MEMORY, "no memory for %u replies", p->n);
    const bool is_well = i == p->n && replies != NULL;
    for (i = 0; i < p->n && is_well; i++) {
        replies[i]         = p->replies[i].data;
        p->replies[i].data = (pen_bytes){0};
    }
    const unanswered_answer answer = {.replies = replies, .n = p->n, .value = value};
    end(self, p, is_well ? &answer : NULL, is_well ? NULL : &why);
    free(replies);
}

static void time_out_store(const pending *p, double waited_s, pen_error *why)
{
    if (p->message.u.store.op == WIRE_STORE_GET)
        why_set(why, PEN_TIMED_OUT, "pen_store_get: no value for '%.200s' within %.3g s",
                p->message.u.store.key, waited_s);
    else
        why_set(why, PEN_TIMED_OUT, "%s('%.200s'): no answer from the scheduler within %.3g s",
                name_of(p), p->message.u.store.key, waited_s);
}

static void time_out_command(const pending *p, double waited_s, pen_error *why)
{
    char more[32]  = "";
    uint32_t first = 0;
    while (p->replies[first].is_here) first++;
    const int32_t role = p->message.u.command.role, rank = rank_of(p, first);
    const uint32_t others = p->n - p->n_here - 1;
    if (others > 0) snprintf(more, sizeof more, " and %u more", others);
    why_set(why, PEN_TIMED_OUT, "waited %.3g s for %s %d%s to answer command %d", waited_s,
            status_role_name(role), rank, more, p->message.u.command.head);
    why_culprit(why, role, rank, -1, NULL);
    for (uint32_t i = first; i < p->n && why->missing_n < 32; i++)
        if (!p->replies[i].is_here) why->missing[why->missing_n++] = rank_of(p, i);
}

void unanswered_fail(unanswered *self, const pen_error *why)
{
    self->has_failed = true;
    while (self->first != NULL) end(self, self->first, NULL, why);
}

/* ---- receiving --------------------------------------------------------------------------------- */
static void on_faulted(unanswered *self, const wire_fault *f)
{
    for (pending *p = seek(self->first, WIRE_FAULT), *next; p != NULL; p = next) {
        next = seek(p->next, WIRE_FAULT);
        if (p->message.u.fault.group == f->group && p->message.u.fault.call == f->call)
            drop(self, p);
    }
    self->act.faulted(self->user, f->group, f->call, &f->why);
}

static void on_shrunk(unanswered *self, const wire_control *c)
{
    pen_error why;
    pending *p = find_shrink(self, c->u.shrunk.group);
    if (p == NULL) return; /* already reported */
    drop(self, p);
    const pen_status status = c->u.shrunk.status;
    if (status != PEN_OK) why_set(&why, status, "pen_group_shrink: %s", c->u.shrunk.text);
    self->act.shrunk(self->user, c->u.shrunk.group, c->u.shrunk.new_group, c->u.shrunk.rank,
                     c->u.shrunk.n_ranks, status != PEN_OK ? &why : NULL);
}

typedef struct { /* common part of STORED and REPLY; BORROWED */
    pen_status status;
    const char *text;
    const void *data;
    size_t size;
    int64_t value;
} told;

/* Without memory the answer is dropped; the receiver sends it again. */
static void on_answer(unanswered *self, pending *p, uint32_t i, const told *from)
{
    reply *to = &p->replies[i];
    if (to->is_here) return;
    *to = (reply){.status = from->status};
    if (from->status != PEN_OK) {
        to->text = strdup(from->text);
        if (to->text == NULL) return;
    } else if (from->size > 0 || p->message.kind == WIRE_STORE) {
        to->data = (pen_bytes){malloc(from->size + 1), from->size};
        if (to->data.data == NULL) return;
        if (from->size > 0) memcpy(to->data.data, from->data, from->size);
    }
    to->is_here = true;
    if (++p->n_here == p->n) conclude(self, p, from->value);
}

static void on_stored(unanswered *self, const wire_control *c)
{
    const told from = {c->u.stored.status, c->u.stored.text, c->u.stored.data,
                       c->u.stored.data_size, c->u.stored.value};
    pending *p      = seek(self->first, WIRE_STORE);
    while (p != NULL && p->message.u.store.id != c->u.stored.id) p = seek(p->next, WIRE_STORE);
    if (p != NULL) on_answer(self, p, 0, &from);
}

static void on_reply(unanswered *self, const wire_control *c)
{
    const told from = {c->u.reply.status, c->u.reply.text, c->u.reply.data, c->u.reply.data_size,
                       0};
    pending *p      = seek(self->first, WIRE_COMMAND);
    while (p != NULL && p->message.u.command.id != c->u.reply.id) p = seek(p->next, WIRE_COMMAND);
    if (p == NULL || c->u.reply.role != p->message.u.command.role) return;
    const int32_t asked = p->message.u.command.rank, rank = c->u.reply.rank;
    const int64_t i = asked < 0 ? rank : rank == asked ? 0 : -1;
    if (i >= 0 && i < p->n) on_answer(self, p, (uint32_t)i, &from);
}

static void send_all_again(unanswered *self)
{
    LIST_EACH(p, self->first) p->again_ms = 0;
}

void unanswered_receive(unanswered *self, const wire_control *message, uint64_t now_ms)
{
    if (self->has_failed) return;
    switch (message->kind) {
    case WIRE_WELCOME: send_all_again(self); break; /* messages in flight may be lost */
    case WIRE_FAULTED: on_faulted(self, &message->u.fault); break;
    case WIRE_SHRUNK: on_shrunk(self, message); break;
    case WIRE_STORED: on_stored(self, message); break;
    case WIRE_REPLY: on_reply(self, message); break;
    default: return;
    }
    send_due(self, now_ms); /* the window may have moved */
}

/* ---- time ------------------------------------------------------------------------------------ */
void unanswered_tick(unanswered *self, uint64_t now_ms)
{
    LIST_EACH(p, self->first) {
        if (p->deadline_ms == 0 || p->deadline_ms > now_ms) continue;
        pen_error why;
        const double waited_s = (double)(now_ms - p->begun_ms) / 1000;
        if (p->message.kind == WIRE_STORE)
            time_out_store(p, waited_s, &why);
        else
            time_out_command(p, waited_s, &why);
        end(self, p, NULL, &why);
    }
    send_due(self, now_ms);
}

uint64_t unanswered_due(const unanswered *self)
{
    uint64_t due = NEVER;
    window w     = open_window(self);
    for (const pending *p = self->first; p != NULL; p = p->next) {
        if (may_go(&w, p) && p->again_ms < due) due = p->again_ms;
        if (p->deadline_ms != 0 && p->deadline_ms < due) due = p->deadline_ms;
    }
    return due;
}
