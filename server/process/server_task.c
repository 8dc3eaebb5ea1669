/* server_task.c - tasks from thread to thread, events for main, and helpers of main. */
#include "server/process/server_state.h"

#include "common/base/log.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    loop_task task;
    loop_fn fn; /* NULL: an event of main */
    void *value;
    server *main;
    server_event event;
    _Alignas(max_align_t) char copy[];
} carried;

static void run_task(void *user)
{
    const carried *c = user;
    if (c->fn != NULL)
        c->fn(c->value);
    else
        c->main->take(c->main, c->event, c->value);
    free(user);
}

static bool carry(loop *to, const carried *what, const void *value, size_t size)
{
    carried *c = malloc(sizeof *c + size);
    if (c == NULL) return false;
    *c       = *what;
    c->task  = (loop_task){.fn = run_task, .user = c};
    c->value = size > 0 ? memcpy(c->copy, value, size) : (void *)(uintptr_t)value;
    loop_post(to, &c->task);
    return true;
}

bool server_post(loop *to, loop_fn fn, const void *value, size_t size)
{
    return carry(to, &(carried){.fn = fn}, value, size);
}

bool server_notify_main(server *s, server_event event, const void *value, size_t size)
{
    return carry(s->loop, &(carried){.main = s, .event = event}, value, size);
}

static void take_failure(void *user)
{
    server *s     = user;
    pen_error why = s->failure;
    atomic_store(&s->has_failure, false);
    s->take(s, SERVER_FAILED, &why);
}

/* Its place is in the server, so that a lack of memory can be reported. */
void server_report(server *s, const pen_error *error)
{
    log_error("%s", error->text);
    if (atomic_exchange(&s->has_failure, true)) return;
    s->failure      = *error;
    s->failure_task = (loop_task){.fn = take_failure, .user = s};
    loop_post(s->loop, &s->failure_task);
}

void server_no_memory(server *s, const char *what)
{
    pen_error why;
    why_set(&why, PEN_NO_MEMORY, "no memory for %s", what);
    why_culprit(&why, PEN_SERVER, s->rank, -1, NULL);
    server_report(s, &why);
}

void server_notify(server *s, const wire_control *c)
{
    (void)server_notify_main(s, SERVER_SAYS, c, sizeof *c); /* lost messages are sent again */
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
    membership_send(&s->member, message);
}
