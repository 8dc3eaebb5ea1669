/* side_thread.h - a thread that asks the system one question that may take long, and ends with the answer. */
#ifndef COMMON_SIDE_THREAD_H
#define COMMON_SIDE_THREAD_H

#include <stdbool.h>

/* Detached, with a small stack; signals are the program's, so it takes none.  False: there is no thread for it. */
bool side_thread_start(void *(*run)(void *user), void *user);

#endif
