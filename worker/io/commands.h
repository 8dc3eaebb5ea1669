/* commands.h - commands of other processes: each is carried out once and answered.  A pure state machine.
 *
 * DESIGN.  The scheduler passes COMMAND and REPLY on and keeps nothing.  Who asks says COMMAND again to
 * whoever has not answered (requests.h).  Who answers knows a command by (asker's incarnation, id), so it is
 * carried out once; its answer is kept until the asker says, by done_below, that it needs it no more.  An
 * asker has at most REQUESTS_COMMANDS_MAX under way, so what is kept is bounded too.
 */
#ifndef WORKER_COMMANDS_H
#define WORKER_COMMANDS_H

#include "common/base/loop.h"
#include "proto/wire.h"

#include <stdatomic.h>

typedef struct commands commands;

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
    bool is_ready, is_over, has_no_handler; /* of commands.c; is_over: nobody waits any more */
};

/* Called from within the functions below; must not call them. */
typedef struct {
    void (*send)(void *user, const wire_control *message); /* may be lost */

    /* Runs the program's function; body is BORROWED for the call.  False: there is none. */
    bool (*run)(void *user, pen_call *call, const void *body, size_t size);
} commands_actions;

commands *commands_create(int32_t rank, const commands_actions *actions, void *user);
void commands_destroy(commands *self); /* also calls that were never answered; NULL is fine */

void commands_receive(commands *self, const wire_control *command);
void commands_answer(commands *self, pen_call *call); /* is_answered; it may be freed */
void commands_fail(commands *self);                   /* hears and answers no more */

#endif
