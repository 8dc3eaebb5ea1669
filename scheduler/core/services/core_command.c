/* core_command.c - relays COMMAND and REPLY between members.
 *
 * DESIGN.  A relay without memory: the asker repeats COMMAND until all have answered, and receivers recognise a repeat
 * by (asker, id).  Undeliverable messages are answered here; one that cannot be delivered now is dropped and repeated.
 */
#include "proto/status_json.h"
#include "scheduler/core/member_sentence.h"
#include "scheduler/core/services/core_services.h"
#include <stdio.h>

static void answer(const core_out *out, const member_slot *asker, uint64_t id,
                   const member_slot *instead_of, pen_status status, const char *text)
{
    wire_control c   = {.kind = WIRE_REPLY};
    c.u.reply.id     = id;
    c.u.reply.asker  = asker->incarnation;
    c.u.reply.role   = instead_of ? instead_of->role : PEN_SCHEDULER;
    c.u.reply.rank   = instead_of ? instead_of->rank : 0;
    c.u.reply.status = status;
    c.u.reply.text   = text;
    core_send(out, asker, &c);
}

static void pass_on(const core_out *out, const member_slot *asker, const member_slot *to,
                    wire_control *c)
{
    char text[SENTENCE_MEMBER_BYTES + 64];
    if (member_slot_is_here(to)) {
        core_send(out, to, c);
        return;
    }
    const pen_status status = sentence_absent(text, sizeof text, to);
    answer(out, asker, c->u.command.id, to, status, text);
}

void core_command(const core_out *out, const member_slot *s, const wire_control *message)
{
    const int32_t role = message->u.command.role, rank = message->u.command.rank;
    const uint64_t id = message->u.command.id;
    char text[128];
    if (role != PEN_WORKER && role != PEN_SERVER) {
        snprintf(text, sizeof text, "the scheduler has no handler for command %d",
                 (int)message->u.command.head);
        answer(out, s, id, NULL, PEN_NOT_FOUND, text);
        return;
    }
    wire_control c    = {.kind = WIRE_COMMAND, .u.command = message->u.command};
    c.u.command.role  = s->role;
    c.u.command.rank  = s->rank;
    c.u.command.asker = s->incarnation;

    const roster *r          = out->all;
    const member_slots *list = role == PEN_WORKER ? &r->workers : &r->servers;
    const member_slot *one   = rank < 0 ? NULL : roster_find(r, role, rank);
    for (uint32_t i = 0; rank < 0 && i < list->n; i++) pass_on(out, s, list->at[i], &c);
    if (one != NULL) pass_on(out, s, one, &c);
    if (rank < 0 || one != NULL) return;

    const member_slot nobody = {.role = role, .rank = rank};
    snprintf(text, sizeof text, "there is no %s %d; the job has %u", status_role_name(role),
             (int)rank, list->n);
    answer(out, s, id, &nobody, PEN_NOT_FOUND, text);
}

void core_reply(const core_out *out, const member_slot *s, const wire_control *message)
{
    const member_slot *asker = roster_find(out->all, message->u.reply.role, message->u.reply.rank);
    if (asker == NULL || asker->incarnation != message->u.reply.asker) return;
    wire_control c = {.kind = WIRE_REPLY, .u.reply = message->u.reply};
    c.u.reply.role = s->role;
    c.u.reply.rank = s->rank;
    core_send(out, asker, &c);
}
