/* side_thread.h - a thread for one slow system call. */
#ifndef COMMON_SIDE_THREAD_H
#define COMMON_SIDE_THREAD_H

#include <stdbool.h>

/* Detached, with a small stack and all signals blocked, which belong to the program.  False: no thread. */
bool side_thread_start(void *(*run)(void *user), void *user);

#endif
