/* step_thread.h - ends lazy steps in a thread of its own, "pen-step", one at a time.
 *
 * The program waits for the values of a step before it begins the next one's gradients, so at most one step ends here.
 */
#ifndef WORKER_TRAIN_STEP_THREAD_H
#define WORKER_TRAIN_STEP_THREAD_H

#include "worker/io/request.h"

#include <pthread.h>

typedef struct {
    void (*end)(void *user, request *r); /* ends r; may wait */
    void *user;
    pthread_t thread; /* from the first step on */
    bool has_thread;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    request *step; /* to end; NULL: none */
    bool is_closing;
} step_thread;

void step_thread_init(step_thread *t, void (*end)(void *user, request *r), void *user);
void step_thread_fini(step_thread *t); /* after its step has ended */

/* end(user, r) in the thread, or here if there is none. */
void step_thread_run(step_thread *t, request *r);

/* Lets pen_step_end() of a lazy step return; its values come later. */
void step_thread_decided(request *r);

#endif
