/* inquiry.h - one thread asks a loop for something, and waits for the answer no longer than it says.
 *
 * For a thread that has nothing of the loop's, such as that of http.h.  The loop runs the question as a task;
 * what the question writes is the asker's to read only after inquiry_ask() has said true.  One that the
 * loop has not come to in time runs later; the next one waits for it first, so that no two ever overlap.
 */
#ifndef COMMON_INQUIRY_H
#define COMMON_INQUIRY_H

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
} inquiry;

void inquiry_init(inquiry *q, loop *l);

/* Runs fn in the loop's thread; false: not within wait_ms.  Thread  always the same one. */
bool inquiry_ask(inquiry *q, loop_fn fn, void *user, uint64_t wait_ms);

/* Whoever waits is told false, now and for good; a question the loop has not come to is not asked any more.
 * Thread  any. */
void inquiry_close(inquiry *q);
/* After the thread that asks has ended, and the loop was destroyed. */
void inquiry_fini(inquiry *q);

#endif
