/* library.h - shared libraries that a process loads when it first needs them.
 *
 * Most processes of a job need no HTTP server, no ZeroMQ and no TLS.  These bring some 25 other libraries, and loading
 * them takes longer than all else that a worker does to start.
 *
 *     #define FUNCTIONS(X) X(run) X(stop_daemon)
 *     static struct { FUNCTIONS(MEMBER) } mhd;         with  #define MEMBER(name) __typeof__(MHD_##name) *name;
 *     static const char *const names[] = {FUNCTIONS(NAME)};  #define NAME(name)   "MHD_" #name,
 *     status = library_load("libmicrohttpd.so.12", names, sizeof names / sizeof *names, &mhd, why);
 */
#ifndef COMMON_LIBRARY_H
#define COMMON_LIBRARY_H

#include "penstock.h"

#include <stddef.h>

/* Finds the functions of these names and writes `n` pointers to them into `table`, a struct of zeros before.  A table
 * that is filled already stays as it is.  The library is never unloaded.
 * Thread   any, also several at once for one table.
 * Errors   UNSUPPORTED: it cannot be loaded, or lacks a function; the table is unchanged.
 * Cost     the first call some milliseconds, others a lock. */
pen_status library_load(const char *file, const char *const *names, size_t n, void *table,
                        pen_error *why);

#endif
