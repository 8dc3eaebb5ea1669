/* member.c - the table of a member's states and events. */
#include "scheduler/core/membership/member.h"
#include <assert.h>

enum {
    REFUSE = -1, /* an event of others that this state refuses: do not move */
    NEVER  = -2  /* an event of our own that cannot happen here: assert */
};

/* Rows are states, columns are events.  docs/member.dot is printed from this table. */
/* clang-format off */
static const signed char table[MEMBER_STATE_COUNT][MEMBER_EVENT_COUNT] = {
/*                   HELLO           MESSAGE         BYE            EXITED         BEGIN          DOWN           LOST */
[MEMBER_ABSENT]  = { MEMBER_JOINING, REFUSE,         REFUSE,        MEMBER_DEAD,   NEVER,         MEMBER_ABSENT, NEVER         },
[MEMBER_JOINING] = { MEMBER_JOINING, MEMBER_JOINING, MEMBER_ABSENT, MEMBER_DEAD,   MEMBER_ACTIVE, MEMBER_ABSENT, NEVER         },
[MEMBER_ACTIVE]  = { MEMBER_ACTIVE,  MEMBER_ACTIVE,  MEMBER_LEFT,   MEMBER_DEAD,   NEVER,         MEMBER_AWAY,   MEMBER_DEAD   },
[MEMBER_AWAY]    = { MEMBER_ACTIVE,  REFUSE,         MEMBER_LEFT,   MEMBER_DEAD,   NEVER,         MEMBER_AWAY,   MEMBER_DEAD   },
[MEMBER_LEFT]    = { MEMBER_LEFT,    REFUSE,         MEMBER_LEFT,   MEMBER_LEFT,   NEVER,         MEMBER_LEFT,   MEMBER_DEAD   },
[MEMBER_DEAD]    = { REFUSE,         REFUSE,         REFUSE,        MEMBER_DEAD,   NEVER,         MEMBER_DEAD,   NEVER         },
};
/* clang-format on */

static const char *const state_names[] = {"absent", "joining", "active", "away", "left", "dead"};
static const char *const state_docs[]  = {
#define X(name, doc) doc,
    MEMBER_STATES(X)
#undef X
};
static const char *const event_names[] = {
#define X(name) #name,
    MEMBER_EVENTS(X)
#undef X
};

pen_status member_next(member_state *state, member_event event)
{
    assert(*state < MEMBER_STATE_COUNT && event < MEMBER_EVENT_COUNT);

    const int next = table[*state][event];
    assert(next != NEVER);
    if (next == REFUSE) return PEN_NOT_A_MEMBER;

    *state = (member_state)next;
    return PEN_OK;
}

const char *member_state_name(member_state state)
{
    assert(state < MEMBER_STATE_COUNT);
    return state_names[state];
}

void member_write_dot(FILE *out)
{
    fprintf(out, "digraph member {\n");
    for (int state = 0; state < MEMBER_STATE_COUNT; state++)
        fprintf(out, "    %s [tooltip=\"%s\"];\n", state_names[state], state_docs[state]);

    for (int state = 0; state < MEMBER_STATE_COUNT; state++)
        for (int event = 0; event < MEMBER_EVENT_COUNT; event++) {
            const int next = table[state][event];
            if (next < 0 || next == state) continue;
            fprintf(out, "    %s -> %s [label=\"%s\"];\n", state_names[state], state_names[next],
                    event_names[event]);
        }
    fprintf(out, "}\n");
}
