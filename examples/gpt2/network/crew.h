/* crew.h - a few threads that run the same function on different parts, again and again.
 *
 * The network divides its rows among them, and each calls OpenBLAS with one thread.  A row then goes through several
 * operations while in its core's cache; OpenBLAS's own threads divide one product at a time and cannot do that.  Two
 * pools would also compete for the same cores.
 */
#ifndef GPT2_CREW_H
#define GPT2_CREW_H

#include <stddef.h>

typedef struct crew crew;
typedef void (*crew_fn)(void *arg, int member, int members);

/* members >= 1, the calling thread included; NULL: no memory or no thread. */
crew *crew_new(int members);
void crew_free(crew *c);
int crew_members(const crew *c);

/* Calls fn once for each member, member 0 on this thread, and returns when all are done.  One at a time. */
void crew_run(crew *c, crew_fn fn, void *arg);

typedef struct {
    size_t begin, end;
} crew_part;

/* Part `member` of n items in units of `grain`: contiguous, as equal as the grain allows. */
static inline crew_part crew_share(size_t n, size_t grain, int member, int members)
{
    const size_t units = (n + grain - 1) / grain;
    const size_t begin = units * (size_t)member / (size_t)members * grain;
    const size_t end   = units * (size_t)(member + 1) / (size_t)members * grain;
    return (crew_part){begin < n ? begin : n, end < n ? end : n};
}

#endif
