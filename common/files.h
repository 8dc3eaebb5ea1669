/* files.h - whether this process may have as many files open as a member of a job needs: connections are files. */
#ifndef COMMON_FILES_H
#define COMMON_FILES_H

#include "penstock.h"

enum { FILES_MIN = 64 }; /* with less, the smallest job stands still */

/* Errors  BAD_SETTING  the limit of open files is lower: the sentence says which it is, and how it is raised. */
pen_status files_check(pen_error *why);

#endif
