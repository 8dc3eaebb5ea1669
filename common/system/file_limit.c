/* file_limit.c - see file_limit.h. */
#include "common/system/file_limit.h"

#include <pthread.h>
#include <time.h>

static sigset_t the_signal(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    return set;
}

file_limit file_limit_block(void)
{
    const sigset_t set = the_signal();
    sigset_t before;
    if (pthread_sigmask(SIG_BLOCK, &set, &before) != 0) return (file_limit){.was_blocked = true};
    return (file_limit){.was_blocked = sigismember(&before, SIGXFSZ) == 1};
}

void file_limit_restore(const file_limit *before)
{
    const struct timespec now = {0};
    const sigset_t set        = the_signal();
    if (before->was_blocked) return;
    while (sigtimedwait(&set, NULL, &now) == SIGXFSZ) continue;
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}
