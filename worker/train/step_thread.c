/* step_thread.c - the thread, and the step that it is given. */
#include "worker/train/step_thread.h"

#include "common/system/fp_env.h"
#include "worker/context.h"

void step_thread_init(step_thread *t, void (*end)(void *user, request *r), void *user)
{
    *t = (step_thread){.end = end, .user = user};
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
}

static void *end_steps(void *user)
{
    step_thread *t = user;
    fp_env_set_ours();
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (t->step == NULL && !t->is_closing) pthread_cond_wait(&t->changed, &t->lock);
        if (t->step == NULL) break;
        request *r = t->step;
        pthread_mutex_unlock(&t->lock);
        t->end(t->user, r);
        pthread_mutex_lock(&t->lock);
        t->step = NULL;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* The program has waited for the values of the previous step, but that step may still be ending. */
void step_thread_run(step_thread *t, request *r)
{
    if (!t->has_thread && pthread_create(&t->thread, NULL, end_steps, t) != 0) {
        t->end(t->user, r);
        return;
    }
    if (!t->has_thread) pthread_setname_np(t->thread, "pen-step");
    t->has_thread = true;
    pthread_mutex_lock(&t->lock);
    while (t->step != NULL) pthread_cond_wait(&t->changed, &t->lock);
    t->step = r;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

void step_thread_fini(step_thread *t)
{
    if (t->has_thread) {
        pthread_mutex_lock(&t->lock);
        t->is_closing = true;
        pthread_cond_broadcast(&t->changed);
        pthread_mutex_unlock(&t->lock);
        pthread_join(t->thread, NULL);
    }
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->changed);
}

void step_thread_decided(request *r)
{
    if (r->u.step.decided == NULL) return;
    request_end(r->u.step.decided, PEN_OK, NULL);
    r->u.step.decided = NULL;
    request_notify(&r->ctx->requests);
}
