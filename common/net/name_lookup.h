/* name_lookup.h - resolves the name in an address without blocking its owner.
 *
 * DESIGN
 * Why.       A silent name server, which may take 5 s and more for a name that is gone, must not stop the thread that
 *            moves messages: live peers would look dead.
 * Asking.    Each lookup has its own thread, as getaddrinfo() cannot be cancelled.  No thread waits for it: the last of
 *            thread and owner frees the lookup, and its descriptor wakes the owner.
 * Answer.    The first IPv4 address, or else the first IPv6 one.
 */
#ifndef COMMON_NAME_LOOKUP_H
#define COMMON_NAME_LOOKUP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct name_lookup name_lookup;

/* Whether "tcp://HOST:PORT" has a name, not a number (nor something that is neither). */
bool name_lookup_is_needed(const char *address);

name_lookup *
name_lookup_start(const char *address);   /* NULL: not now (no memory, thread or descriptor) */
int name_lookup_fd(const name_lookup *q); /* readable when done */

/* The numeric address, "tcp://ADDRESS:PORT"; empty: the name does not resolve now; NULL: not done. */
const char *name_lookup_answer(const name_lookup *q);
void name_lookup_drop(name_lookup *q); /* NULL is fine */

#endif
