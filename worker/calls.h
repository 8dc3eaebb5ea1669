/* calls.h - commands between processes: asked, carried out once, answered.  A pure state machine.
 *
 * DESIGN.  The scheduler passes COMMAND and REPLY on and keeps nothing.  Who asks says COMMAND again,
 * once a second, to whoever has not answered.  Who answers knows a command by (asker's incarnation,
 * id), so it is carried out once; its answer is kept until the asker says, by done_below, that it
 * needs it no more.  An asker has at most CALLS_AT_ONCE commands on their way, so what is kept is
 * bounded too.
 */
#ifndef WORKER_CALLS_H
#define WORKER_CALLS_H

#include "common/loop.h"
#include "proto/wire.h"

#include <stdatomic.h>

enum { CALLS_AT_ONCE = 8, CALLS_BYTES_MAX = WIRE_CALL_BYTES_MAX };

typedef struct calls calls;

/* A command that somebody else waits for: what the program's function is given. */
struct pen_call {
    loop_task task; /* how an answer reaches the SDK's thread */
    pen_ctx *ctx;
    struct pen_call *next;
    uint64_t asker, id;
    int32_t role, rank, head; /* role, rank: of who asks */
    atomic_bool is_answered;  /* by the program; the next three are then its answer */
    pen_status status;
    void *data; /* OWNED, malloc */
    size_t size;
    bool is_ready, is_over, has_no_handler; /* of calls.c; is_over: nobody waits any more */
};

typedef struct {
    int32_t role, rank, head; /* rank -1: all n of that role */
    uint32_t n;
    const void *body; /* copied */
    size_t size;
    uint64_t deadline_ms; /* a time; 0 = none */
} calls_question;

/* Called from within the functions below; must not call them. */
typedef struct {
    void (*send)(void *user, const wire_control *message); /* may be lost */

    /* Runs the program's function; body is BORROWED for the call.  False: there is none. */
    bool (*run)(void *user, pen_call *call, const void *body, size_t size);

    /* Of calls_ask().  replies [n] in rank order; their data is OWNED by the callee, NULL when empty.
     * why not NULL: there are none. */
    void (*ended)(void *user, void *token, const pen_bytes *replies, uint32_t n,
                  const pen_error *why);
} calls_actions;

calls *calls_create(int32_t rank, const calls_actions *actions, void *user);
void calls_destroy(calls *self); /* also calls that were never answered; NULL is fine */

pen_status calls_ask(calls *self, const calls_question *q, void *token, uint64_t now_ms);
void calls_answer(calls *self, pen_call *call); /* is_answered; it may be freed */
void calls_hear(calls *self, const wire_control *message, uint64_t now_ms); /* COMMAND or REPLY */
void calls_fail(calls *self, const pen_error *why); /* ends all, and hears no more */
void calls_tick(calls *self, uint64_t now_ms);
uint64_t calls_due(const calls *self);

#endif
