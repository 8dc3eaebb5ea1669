/* grad_slot.c - the states of a gradient, and the events that each allows. */
#include "worker/tensor/grad_slot_test.h"

#include "common/base/why.h"

enum { P = GRAD_PROGRAM, C = GRAD_DEVICE_COPYING, O = GRAD_OFFERED };
enum { A = GRAD_ACCUMULATED, L = GRAD_LENT, R = GRAD_RETURNED, X = -1 };

/* clang-format off */
static const int8_t table[GRAD_STATES][GRAD_EVENTS] = {
    /*                  view bind ready use close  copy fail offer add lend return next */
    [GRAD_PROGRAM]        = {P, P, P, P, X,          C,   X,   O,   A,  X,   P,     P},
    [GRAD_DEVICE_COPYING] = {X, X, X, C, X,          X,   P,   O,   X,  X,   C,     C},
    [GRAD_OFFERED]        = {X, X, X, X, O,          X,   X,   X,   A,  L,   O,     P},
    [GRAD_ACCUMULATED]    = {X, X, X, X, A,          X,   X,   X,   X,  X,   A,     P},
    [GRAD_LENT]           = {X, X, X, X, L,          X,   X,   X,   X,  X,   R,     P},
    [GRAD_RETURNED]       = {X, X, X, X, R,          X,   X,   X,   X,  X,   R,     P},
};
/* clang-format on */

int grad_slot_next(grad_state state, grad_event event)
{
    return table[state][event];
}

static pen_status refuse(grad_state state, grad_event event, const char *name, long long step,
                         pen_error *why)
{
    static const char *const is[GRAD_STATES]   = {"the program's", "being copied", "offered",
                                                  "in a sum",      "lent",         "returned"};
    static const char *const done[GRAD_EVENTS] = {
        "viewed",   "bound",   "made ready", "used", "sent",     "copied",
        "given up", "offered", "added up",   "lent", "returned", "left behind"};
    switch (event) {
    case GRAD_VIEW:
        return why_set(why, PEN_WRONG_STATE,
                       "pen_view('%s'): its gradient was sent by pen_ready() and is no longer here",
                       name);
    case GRAD_BIND:
        return why_set(why, PEN_WRONG_STATE,
                       "pen_bind('%s'): its gradient is being sent; bind between steps, or before "
                       "its first pen_ready()",
                       name);
    case GRAD_READY:
        return why_set(why, PEN_WRONG_STATE, "pen_ready('%s') was called twice in step %lld", name,
                       step);
    case GRAD_USE:
        return why_set(why, PEN_WRONG_STATE,
                       "pen_use: the values of '%s' left after its gradient was sent; use its unit "
                       "before pen_ready(), or after pen_step_end()",
                       name);
    case GRAD_CLOSE:
        return why_set(why, PEN_WRONG_STATE,
                       "step %lld has not seen '%s' from this rank; call pen_ready() on it, or "
                       "register it with PEN_ZERO_IF_UNUSED",
                       step, name);
    default:
        return why_set(why, PEN_INTERNAL,
                       "the gradient of '%s' cannot be %s in step %lld: it is %s", name,
                       done[event], step, is[state]);
    }
}

void grad_slot_begin(grad_slot *g)
{
    g->sums = 0;
    (void)grad_slot_move(g, GRAD_NEXT, "", -1, NULL);
}

pen_status grad_slot_move(grad_slot *g, grad_event event, const char *name, int64_t step,
                          pen_error *why)
{
    uint8_t state = atomic_load(&g->state);
    int next;
    do {
        next = table[state][event];
        if (next < 0) return refuse((grad_state)state, event, name, step, why);
    } while (!atomic_compare_exchange_weak(&g->state, &state, (uint8_t)next));
    return PEN_OK;
}
