/* commands.h - commands of other processes: each is run once and answered.  A pure state machine.
 *
 * DESIGN.  The scheduler forwards COMMAND and REPLY and keeps nothing.  The asker sends COMMAND
 * again until it has the reply (worker/io/unanswered.h).  The receiver identifies a command by (incarnation of
 * the asker, id), so it runs once.  It keeps the reply until done_below of the asker passes the id.
 * An asker has few in flight (UNANSWERED_COMMANDS_MAX), so the kept replies are bounded.
 */
#ifndef COMMANDS_H
#define COMMANDS_H

#include "common/base/call.h"
#include "common/base/loop.h"
#include "proto/wire/wire.h"

#include <stdatomic.h>

typedef struct commands commands;

/* A command of another process. */
typedef struct command_call {
    pen_call call;  /* what the program's function gets */
    loop_task task; /* carries the answer to the thread of the commands */
    void *owner;
    struct command_call *next;
    uint64_t asker, id;
    int32_t role, rank, head; /* role, rank: of the asker */
    atomic_bool is_answered;  /* by the program; the next three are then its answer */
    pen_status status;
    void *data; /* OWNED, malloc */
    size_t size;
    bool is_ready, is_over, has_no_handler; /* for commands.c; is_over: the asker no longer waits */
} command_call;

/* Called by the functions below; must not call them. */
typedef struct {
    void (*send)(void *user, const wire_control *message); /* may be lost */

    /* Runs the program's function; body is BORROWED for the call.  PEN_NOT_FOUND: there is none.  PEN_NO_MEMORY: it did
     * not run, and will when the asker sends the command again. */
    pen_status (*run)(void *user, command_call *call, const void *body, size_t size);
} commands_actions;

commands *commands_create(pen_role role, int32_t rank, const commands_actions *actions, void *user);
void commands_destroy(commands *self); /* also calls that were never answered; NULL is fine */

void commands_receive(commands *self, const wire_control *command);
void commands_answer(commands *self, command_call *call); /* is_answered; it may be freed */
void commands_fail(commands *self);                       /* ignores all messages from here on */

#endif
