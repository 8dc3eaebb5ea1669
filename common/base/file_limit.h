/* file_limit.h - a file that may not grow (ulimit -f) is an error like a full disk, and kills nobody.
 *
 * The kernel sends SIGXFSZ to the thread that writes beyond the limit, and by default that ends the process.  What the
 * signal does is the program's to say, so it is held back in our threads alone, and in the program's while it writes for us.
 * write() then fails with EFBIG.
 *
 *   FILE_LIMIT_IS_AN_ERROR();   until the function returns
 *   file_limit_block();         first lines of a thread of ours that writes files
 *
 * Cost  two system calls.
 */
#ifndef COMMON_FILE_LIMIT_H
#define COMMON_FILE_LIMIT_H

#include <signal.h>
#include <stdbool.h>

typedef struct {
    bool was_blocked;
} file_limit;

file_limit file_limit_block(void);

/* Takes the signal that came meanwhile, so that it does not arrive now. */
void file_limit_restore(const file_limit *before);

#define FILE_LIMIT_IS_AN_ERROR()                                                                   \
    __attribute__((cleanup(file_limit_restore), unused)) const file_limit file_limit_before =      \
        file_limit_block()

#endif
