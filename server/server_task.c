/* server_task.c - what one thread has another do, what all threads say to main, and what all of main uses. */
#include "server/server_state.h"

#include "common/log.h"

#include <stdlib.h>

typedef struct {
    loop_task task;
    loop_fn fn; /* NULL: an event of main */
    void *user;
    server *main;
    server_event event;
} carried;

static void run(void *user)
{
    const carried c = *(carried *)user;
    free(user);
    if (c.fn != NULL)
        c.fn(c.user);
    else
        c.main->take(c.main, c.event, c.user);
}

static bool carry(loop *to, const carried *what)
{
    carried *c = malloc(sizeof *c);
    if (c == NULL) return false;
    *c      = *what;
    c->task = (loop_task){.fn = run, .user = c};
    loop_post(to, &c->task);
    return true;
}

bool server_post(loop *to, loop_fn fn, void *user)
{
    return carry(to, &(carried){.fn = fn, .user = user});
}

bool server_tell_main(server *s, server_event event, void *value)
{
    return carry(s->loop, &(carried){.main = s, .event = event, .user = value});
}

void server_report(server *s, const pen_error *error)
{
    log_error("%s", error->text);
    pen_error *r = malloc(sizeof *r);
    if (r != NULL) *r = *error;
    if (r != NULL && server_tell_main(s, SERVER_FAILED, r)) return;
    free(r);
    loop_stop(s->loop);
}

void server_tell(server *s, const wire_control *c)
{
    wire_control *t = malloc(sizeof *t);
    if (t == NULL) return; /* what is told this way is told again */
    *t = *c;
    if (!server_tell_main(s, SERVER_SAYS, t)) free(t);
}

/* ---- in main's thread ------------------------------------------------------------------------ */
void server_end(server *s, const pen_error *error)
{
    if (s->has_ended) return; /* the first cause wins */
    s->has_ended = true;
    s->status    = error != NULL ? error->status : PEN_OK;
    if (error != NULL) s->why = *error;
    loop_stop(s->loop);
}

void server_send(server *s, const wire_control *message)
{
    membership_say(&s->member, message);
}
