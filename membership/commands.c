/* commands.c - commands of other processes, each run once. */
#include "membership/commands.h"

#include "proto/status_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_CALLS = 64 }; /* of one asker, which has at most UNANSWERED_COMMANDS_MAX in flight */

typedef struct asker {
    struct asker *next;
    uint64_t incarnation, done_below;
    command_call *calls;
    uint32_t n_calls;
} asker;

struct commands {
    commands_actions act;
    void *user;
    pen_role role;
    int32_t rank;
    bool has_failed;
    asker *askers;
};

/* ---- life ------------------------------------------------------------------------------------ */
commands *commands_create(pen_role role, int32_t rank, const commands_actions *actions, void *user)
{
    commands *self = calloc(1, sizeof *self);
    if (self == NULL) return NULL;
    self->act  = *actions;
    self->user = user;
    self->role = role;
    self->rank = rank;
    return self;
}

static void free_call(command_call *call)
{
    free(call->data);
    free(call);
}

static void free_asker(asker *a)
{
    while (a->calls != NULL) {
        command_call *call = a->calls;
        a->calls           = call->next;
        free_call(call);
    }
    free(a);
}

void commands_destroy(commands *self)
{
    if (self == NULL) return;
    while (self->askers != NULL) {
        asker *a     = self->askers;
        self->askers = a->next;
        free_asker(a);
    }
    free(self);
}

/* ---- answering ------------------------------------------------------------------------------- */
static asker *meet_asker(commands *self, uint64_t incarnation)
{
    for (asker *a = self->askers; a != NULL; a = a->next)
        if (a->incarnation == incarnation) return a;
    asker *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->incarnation   = incarnation;
    made->next          = self->askers;
    return self->askers = made;
}

static void drop(asker *a, command_call **at)
{
    command_call *call = *at;
    *at                = call->next;
    a->n_calls--;
    free_call(call);
}

/* Keeps a call that the program has not answered, because the program points to it. */
static void forget_below(asker *a, uint64_t done_below)
{
    if (done_below > a->done_below) a->done_below = done_below;
    for (command_call **at = &a->calls; *at != NULL;) {
        command_call *call = *at;
        call->is_over      = call->id < a->done_below;
        if (call->is_over && call->is_ready)
            drop(a, at);
        else
            at = &call->next;
    }
}

static void send_reply(commands *self, const command_call *call)
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
        snprintf(text, sizeof text, "%s %d has no handler for command %d",
                 status_role_name(self->role), self->rank, call->head);
    else if (call->status != PEN_OK)
        snprintf(text, sizeof text, "%s %d refused command %d: %s", status_role_name(self->role),
                 self->rank, call->head, reason);
    if (call->status == PEN_OK) {
        c.u.reply.data      = call->data;
        c.u.reply.data_size = call->size;
    }
    self->act.send(self->user, &c);
}

static command_call *add_call(asker *a, const wire_control *c)
{
    command_call *call = a->n_calls < KEPT_CALLS ? calloc(1, sizeof *call) : NULL;
    if (call == NULL) return NULL; /* the asker sends it again */
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

void commands_answer(commands *self, command_call *call)
{
    call->is_ready = true;
    if (!call->is_over) {
        if (!self->has_failed) send_reply(self, call);
        return;
    }
    asker *a          = meet_asker(self, call->asker);
    command_call **at = &a->calls;
    while (*at != call) at = &(*at)->next;
    drop(a, at);
}

void commands_receive(commands *self, const wire_control *c)
{
    if (self->has_failed) return;
    asker *a = meet_asker(self, c->u.command.asker);
    if (a == NULL) return;
    forget_below(a, c->u.command.done_below);
    if (c->u.command.id < a->done_below) return;
    command_call *call = a->calls;
    while (call != NULL && call->id != c->u.command.id) call = call->next;
    if (call != NULL) {
        if (call->is_ready) send_reply(self, call);
        return;
    }
    call = add_call(a, c);
    if (call == NULL) return;
    const pen_status ran =
        self->act.run(self->user, call, c->u.command.body, c->u.command.body_size);
    if (ran == PEN_NO_MEMORY) drop(a, &a->calls); /* the newest */
    if (ran != PEN_NOT_FOUND) return;
    call->status         = PEN_NOT_FOUND;
    call->has_no_handler = true;
    commands_answer(self, call);
}

void commands_fail(commands *self)
{
    self->has_failed = true;
}
