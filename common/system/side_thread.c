/* side_thread.c - starts a small thread without signals. */
#include "common/system/side_thread.h"

#include <pthread.h>
#include <signal.h>

enum { STACK_BYTES = 1 << 20 };

bool side_thread_start(void *(*run)(void *user), void *user)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool is_started = pthread_create(&thread, &attributes, run, user) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return is_started;
}
