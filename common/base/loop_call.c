/* loop_call.c - a question to a loop's thread: the caller waits for the answer, at most so long. */
#include "common/base/loop_call.h"

#include <time.h>

void loop_call_init(loop_call *q, loop *l)
{
    pthread_condattr_t attributes;
    *q = (loop_call){.loop = l};
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void run_call(void *user)
{
    loop_call *q = user;
    pthread_mutex_lock(&q->lock);
    const bool is_wanted = !q->is_closed;
    pthread_mutex_unlock(&q->lock);
    if (is_wanted) q->fn(q->user); /* both are stable while it is pending */
    pthread_mutex_lock(&q->lock);
    q->is_pending = false;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

static struct timespec after(uint64_t wait_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)(wait_ms / 1000);
    t.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Call with the lock held.  True: nothing is pending. */
static bool settle(loop_call *q, const struct timespec *until)
{
    while (q->is_pending && !q->is_closed)
        if (pthread_cond_timedwait(&q->changed, &q->lock, until) != 0) break;
    return !q->is_pending && !q->is_closed;
}

bool loop_call_ask(loop_call *q, loop_fn fn, void *user, uint64_t wait_ms)
{
    const struct timespec until = after(wait_ms);
    pthread_mutex_lock(&q->lock);
    bool is_answered = settle(q, &until);
    if (is_answered) {
        q->is_pending = true;
        q->fn         = fn;
        q->user       = user;
        q->task       = (loop_task){.fn = run_call, .user = q};
        loop_post(q->loop, &q->task);
        is_answered = settle(q, &until);
    }
    pthread_mutex_unlock(&q->lock);
    return is_answered;
}

void loop_call_close(loop_call *q)
{
    pthread_mutex_lock(&q->lock);
    q->is_closed = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

void loop_call_fini(loop_call *q)
{
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->changed);
}
