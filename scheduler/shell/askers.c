#include "scheduler/shell/askers.h"

/* Its answer is as large as the job, or it causes work for others. */
static bool is_question(const wire_control *message)
{
    switch (message->kind) {
    case WIRE_HELLO: return message->u.hello.role == WIRE_OBSERVER;
    case WIRE_STATUS_ASK:
    case WIRE_RECORD_ASK:
    case WIRE_SNAPSHOT_PLEASE:
    case WIRE_SCALE:
    case WIRE_DRAIN: return true;
    default: return false;
    }
}

bool askers_receive(askers *self, uint32_t peer, const wire_control *message, uint64_t now_ms)
{
    if (message->kind == WIRE_EXITED || message->kind == WIRE_BYE) return true;
    if (!rate_take(&self->at[peer % ASKERS_PLACES], ASKERS_BURST, ASKERS_A_SECOND, now_ms))
        return false;
    return !is_question(message) ||
           rate_take(&self->all, ASKERS_ALL_BURST, ASKERS_ALL_A_SECOND, now_ms);
}
