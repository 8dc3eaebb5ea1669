/* core_slow.c - which worker the others wait for, and how long.
 *
 * DESIGN.  A BEAT names the call that a worker is in.  A worker in a call waits for those behind it: in an earlier step, or
 * in the same one and still in their own code.  Its time in that call since its last beat is charged to the one furthest
 * behind, and among several in one step to the one longest in its own code.  So the number is what all others together have
 * lost by waiting for that worker, to the precision of a beat.
 */
#include "scheduler/core/membership/core_members.h"
#include <string.h>

static bool is_in_own_code(const member_slot *s)
{
    return !s->call[0] || strncmp(s->call, "after ", 6) == 0;
}

static bool is_behind(const member_slot *s, const member_slot *waiting)
{
    if (s == waiting || !member_slot_is_counted(s) || s->step < 0) return false;
    return s->step < waiting->step || (s->step == waiting->step && is_in_own_code(s));
}

static bool is_further(const member_slot *a, const member_slot *b)
{
    return a->step != b->step ? a->step < b->step : a->call_ms > b->call_ms;
}

void core_slow_beat(const member_slots *workers, const member_slot *waiting, uint64_t since_ms,
                    uint64_t now_ms)
{
    member_slot *slowest = NULL;
    uint64_t waited      = since_ms && now_ms > since_ms ? now_ms - since_ms : 0;
    if (waited > waiting->call_ms) waited = waiting->call_ms;
    if (!waited || waiting->step < 0 || is_in_own_code(waiting)) return;
    MEMBER_SLOT_EACH(s, workers) {
        if (is_behind(s, waiting) && (!slowest || is_further(s, slowest))) slowest = s;
    }
    if (slowest) slowest->made_wait_ms += waited;
}
