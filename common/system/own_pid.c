/* own_pid.c - the process id, cached, and renewed after a fork. */
#include "common/system/own_pid.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int known; /* 0: not yet */

static void forget(void)
{
    atomic_store(&known, 0);
}

static void know_forks(void)
{
    pthread_atfork(NULL, NULL, forget);
}

pid_t own_pid(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const pid_t pid            = atomic_load_explicit(&known, memory_order_relaxed);
    if (pid != 0) return pid;
    pthread_once(&once, know_forks);
    atomic_store(&known, getpid());
    return getpid();
}
