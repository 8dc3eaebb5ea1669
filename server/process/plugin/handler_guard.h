/* handler_guard.h - which function of a handler each thread is in, so that a crash or a hang there can be named.
 *
 * A handler is code of the program in a server's process.  If it crashes, its thread stops in the signal's handler while
 * another thread, which asks handler_guard_look() now and then, sends the sentence to the scheduler; then the signal does
 * what it does without us.  If that takes too long (the heap may be locked), the sentence goes to stderr only.
 * One per process.  Thread: any.
 */
#ifndef SERVER_HANDLER_GUARD_H
#define SERVER_HANDLER_GUARD_H

#include "server/shard/handler/handler_part.h"

/* Around each call of a function of a handler, as handler_set wants them; not nested. */
void handler_guard_enter(const handler_place *place);
void handler_guard_leave(void);

/* From now on signals of crashes inside a handler are seen.  wake_fd: an eventfd that is then written to; -1: none. */
void handler_guard_watch(int wake_fd);

/* 0: nothing is wrong.  Otherwise the number of a signal, or -1 if a thread has been in a handler for longer than limit_ms:
 * text then says what happened where, for server `rank`. */
int handler_guard_look(uint64_t limit_ms, int32_t rank, char *text, size_t size);

/* Whether all threads leave their handlers within this time. */
bool handler_guard_is_empty(uint64_t wait_ms);

/* The sentence was sent: the thread that crashed may die of its signal.  Does not return if one has crashed. */
void handler_guard_let_die(void);

#endif
