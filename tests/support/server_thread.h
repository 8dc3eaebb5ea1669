/* server_thread.h - a server in a thread of its own. */
#ifndef TESTS_SUPPORT_SERVER_THREAD_H
#define TESTS_SUPPORT_SERVER_THREAD_H

#include "common/system/fp_env.h"
#include "server/process/server.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    server *s;
    pthread_t thread;
    pen_status status;
    pen_error why;
} server_thread;

static inline void *server_thread_serve(void *user)
{
    server_thread *t = user;
    fp_env_set_ours();
    t->status = server_serve(t->s, &t->why);
    return NULL;
}

static inline pen_status server_thread_start(const server_settings *settings, server_thread *t,
                                             pen_error *why)
{
    *t                      = (server_thread){0};
    const pen_status status = server_open(settings, NULL, 0, &t->s, why);
    if (status == PEN_OK && pthread_create(&t->thread, NULL, server_thread_serve, t) != 0) abort();
    return status;
}

/* Waits as server_serve() does, then closes.  *why is set on failure. */
static inline pen_status server_thread_join(server_thread *t, pen_error *why)
{
    pthread_join(t->thread, NULL);
    if (t->status != PEN_OK && why != NULL) *why = t->why;
    server_close(t->s);
    return t->status;
}

#endif
