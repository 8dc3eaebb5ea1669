/* own_pid.h - getpid() without entering the kernel, for checks in every call. */
#ifndef COMMON_SYSTEM_OWN_PID_H
#define COMMON_SYSTEM_OWN_PID_H

#include <sys/types.h>

/* Also in a child of fork(); not in one of a bare clone(). */
pid_t own_pid(void);

#endif
