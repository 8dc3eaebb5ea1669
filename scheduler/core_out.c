/* core_out.c - what leaves the core: messages, lines of the log, and what has become of a seat.
 *
 * Everything may call this; it calls nothing above it.
 */
#include "scheduler/core_state.h"
#include <stdarg.h>
#include <stdlib.h>

/* ---- messages -------------------------------------------------------------------------------- */
void core_send_peer(scheduler_core *core, uint32_t peer, const wire_control *message)
{
    core->actions.send(core->actions.user, &peer, 1, message);
}

void core_send(scheduler_core *core, const seat *s, const wire_control *message)
{
    if (s->is_bound) core_send_peer(core, s->peer, message);
}

static bool reserve_peers(scheduler_core *core)
{
    const roster *r  = &core->roster;
    const uint32_t n = r->workers.n + r->servers.n + r->guests.n;
    if (n <= core->peers_capacity) return true;
    uint32_t *peers = realloc(core->peers, n * sizeof *peers);
    if (!peers) return false;
    core->peers          = peers;
    core->peers_capacity = n;
    return true;
}

void core_send_all(scheduler_core *core, unsigned roles, const wire_control *message)
{
    if (!reserve_peers(core)) {
        core_log(core, LOG_ERROR, "no memory to send %s", wire_kind_name((int)message->kind));
        return;
    }
    uint32_t n = 0;
    const seat *s;
    for (uint32_t i = 0; (s = roster_next(&core->roster, &i));) {
        if (!(roles & 1u << s->role) || !s->is_bound) continue;
        if (s->state == MEMBER_LEFT || s->state == MEMBER_DEAD) continue;
        core->peers[n++] = s->peer;
    }
    if (n) core->actions.send(core->actions.user, core->peers, n, message);
}

void core_log(scheduler_core *core, int level, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    core->actions.log(core->actions.user, level, line);
    if (level <= LOG_INFO) core_event(core, level, line);
}

/* ---- who is turned away ---------------------------------------------------------------------- */
enum { TURNED_LINES = 4, TURNED_MS = 60000 };

/* So many lines a minute: who is turned away may come again at once. */
static bool may_log(scheduler_core *core)
{
    if (core->turned_n == 0 || core->now_ms - core->turned_ms >= TURNED_MS) {
        core->turned_ms = core->now_ms;
        core->turned_n  = 0;
    }
    return core->turned_n++ < TURNED_LINES;
}

void core_refuse(scheduler_core *core, uint32_t peer, pen_status status, const char *format, ...)
{
    wire_control verdict = {.kind = WIRE_VERDICT};
    va_list args;
    va_start(args, format);
    why_setv(&verdict.u.verdict, status, format, args);
    va_end(args);
    if (may_log(core)) core_log(core, LOG_NOTICE, "turned away: %s", verdict.u.verdict.text);
    core_send_peer(core, peer, &verdict);
}

/* ---- what people read ------------------------------------------------------------------------ */
/* A launcher prints what it hears; where there is none, the log must do. */
bool core_has_launcher(const scheduler_core *core)
{
    const seat_list *guests = &core->roster.guests;
    uint32_t i              = 0;
    while (i < guests->n && guests->at[i]->role != WIRE_LAUNCHER) i++;
    return i < guests->n;
}

void core_announce(scheduler_core *core, const char *line)
{
    const bool has_launcher = core_has_launcher(core);
    core_log(core, has_launcher ? LOG_INFO : LOG_NOTICE, "%s", line);
    if (has_launcher)
        core_send_all(core, 1u << WIRE_LAUNCHER,
                      &(wire_control){.kind = WIRE_NOTICE, .u.notice = {.text = line}});
}

bool core_move(scheduler_core *core, seat *s, member_event event)
{
    const member_state before = s->state;
    if (member_next(&s->state, event) != PEN_OK) return false;
    if (s->state == before) return true;
    char name[SENTENCE_SEAT_BYTES];
    core_log(core, LOG_DEBUG, "%s: %s, was %s", sentence_seat(name, s), member_state_name(s->state),
             member_state_name(before));
    core_event_moved(core, s);
    return true;
}
