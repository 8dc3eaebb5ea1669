/* files.h - whether this process may have as many files open as a member of a job needs: connections are files. */
#ifndef COMMON_FILES_H
#define COMMON_FILES_H

#include "penstock.h"

enum { FILES_MIN = 64 }; /* with less, the smallest job stands still */

/* Errors  BAD_SETTING  the limit of open files is lower: the sentence says which it is, and how it is raised. */
pen_status files_check(pen_error *why);

/* For a process that others connect to, now and then: says, once a minute, when no more files can be opened, for then
 * nobody is let in any more and ZeroMQ is silent about it.
 * Cost  two system calls. */
void files_tell_exhausted(void);

#endif
