/* file_limit.h - limits of a process's files: a size limit (ulimit -f) is an error like a full disk, not a fatal signal; and
 * how many may be open.
 *
 * The kernel sends SIGXFSZ to the thread that writes beyond the limit, which ends the process by default.  The
 * signal's action belongs to the program, so it is blocked only in our threads, and in the program's threads while
 * they write for us. write() then fails with EFBIG.
 *
 *   FILE_LIMIT_IS_AN_ERROR();   until the function returns
 *   file_limit_block();         first lines of a thread of ours that writes files
 *
 * Cost  two system calls.
 */
#ifndef COMMON_FILE_LIMIT_H
#define COMMON_FILE_LIMIT_H

#include "penstock.h"

#include <signal.h>
#include <stdbool.h>

typedef struct {
    bool was_blocked;
} file_limit;

file_limit file_limit_block(void);

/* Consumes a pending signal, so that it does not arrive now. */
void file_limit_restore(const file_limit *before);

#define FILE_LIMIT_IS_AN_ERROR()                                                                   \
    __attribute__((cleanup(file_limit_restore), unused)) const file_limit file_limit_before =      \
        file_limit_block()

/* ---- open files: connections are files ------------------------------------------------------- */
enum { FILES_MIN = 64 }; /* with less, even the smallest job hangs */

/* Errors  BAD_SETTING  the limit of open files is lower: names the limit and how to raise it. */
pen_status files_check(pen_error *why);

/* For listening processes, now and then: warns once a minute if no more files can be opened.  Connections are then not
 * accepted, which nobody else says.
 * Cost  two system calls. */
void files_tell_exhausted(void);

#endif
