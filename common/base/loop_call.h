/* loop_call.h - a thread queries a loop, with a time limit.
 *
 * For threads outside of the loop, for example that of http.h.  The loop runs the query as a task; the caller may read
 * its results only after loop_call_ask() returned true.  A query that timed out still runs later; the next one waits
 * for it first, so that two never overlap.
 */
#ifndef COMMON_LOOP_CALL_H
#define COMMON_LOOP_CALL_H

#include "common/base/loop.h"
#include <pthread.h>

typedef struct {
    loop *loop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    loop_task task;
    loop_fn fn;
    void *user;
    bool is_pending, is_closed;
} loop_call;

void loop_call_init(loop_call *q, loop *l);

/* Runs fn in the loop's thread; false: not within wait_ms.  Thread  always the same one. */
bool loop_call_ask(loop_call *q, loop_fn fn, void *user, uint64_t wait_ms);

/* All callers get false from now on; a query that has not started is dropped.
 * Thread  any. */
void loop_call_close(loop_call *q);
/* After the calling thread has ended and the loop was destroyed. */
void loop_call_fini(loop_call *q);

#endif
