/* files.h - checks the limit of open files: connections are files. */
#ifndef COMMON_FILES_H
#define COMMON_FILES_H

#include "penstock.h"

enum { FILES_MIN = 64 }; /* with less, even the smallest job hangs */

/* Errors  BAD_SETTING  the limit of open files is lower: names the limit and how to raise it. */
pen_status files_check(pen_error *why);

/* For listening processes, now and then: warns once a minute if no more files can be opened.  Connections are then not
 * accepted, which nobody else says.
 * Cost  two system calls. */
void files_tell_exhausted(void);

#endif
