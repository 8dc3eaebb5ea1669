/* server_task.c - one function call, carried to another thread. */
#include "server/server_state.h"

#include <stdlib.h>

typedef struct {
    loop_task task;
    loop_fn fn;
    void *user;
} carried;

static void run(void *user)
{
    carried *c       = user;
    const loop_fn fn = c->fn;
    void *argument   = c->user;
    free(c);
    fn(argument);
}

bool server_post(loop *to, loop_fn fn, void *user)
{
    carried *c = malloc(sizeof *c);
    if (c == NULL) return false;
    *c = (carried){.task = {.fn = run, .user = c}, .fn = fn, .user = user};
    loop_post(to, &c->task);
    return true;
}
