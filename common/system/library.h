/* library.h - shared libraries that a process loads when it first needs them.
 *
 * Most processes of a job need no HTTP server, no ZeroMQ and no TLS.  The three bring some 25 other libraries, and
 * loading all of them took a third of a worker's start.
 *
 * Its user lists the functions once, and makes of the list a struct of pointers and their names:
 *
 *     #define FUNCTIONS(X) X(SSL_new) X(SSL_free)
 *     static struct { FUNCTIONS(LIBRARY_MEMBER) } ssl;
 *     static const char *const names[] = {FUNCTIONS(LIBRARY_NAME)};
 */
#ifndef COMMON_LIBRARY_H
#define COMMON_LIBRARY_H

#include "penstock.h"

#include <stddef.h>

#define LIBRARY_MEMBER(name) __typeof__(name) *name;
#define LIBRARY_NAME(name)   #name,

/* Finds the functions of these names and writes `n` pointers to them into `table`, all NULL before.  A table that is
 * filled already stays as it is.  The library is never unloaded.
 * Thread   any, also several at once for one table.
 * Errors   UNSUPPORTED: it cannot be loaded, or lacks a function; the table is unchanged.
 * Cost     the first call some milliseconds, others a lock. */
pen_status library_load(const char *file, const char *const *names, size_t n, void *table,
                        pen_error *why);

#endif
