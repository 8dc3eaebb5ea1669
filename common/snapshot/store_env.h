/* store_env.h - the one door to LMDB: one file of sorted keys and values, and transactions on it.
 *
 * DESIGN.  Three ways to open a file, because three things are wanted of one:
 *   FRESH  a file that nobody sees before it is whole.  Its transactions only bound memory: each hands what it
 *          gathered to the kernel and waits for no disk.  store_env_seal() waits for it, once; the caller then
 *          puts the file in place.  A crash before that leaves a file that nobody reads.
 *   READ   such a file afterwards: it never changes again.  No lock, nothing written, so a read-only disk will do.
 *   STATE  a small file that changes for ever: every commit is durable when it returns, whole or not at all.
 *          Made whole or not at all, too.
 * LMDB's own locks are not used: a FRESH file has one user, a READ file does not change, and who opens a STATE file
 * holds a lock of store_files.h around it.
 * Thread: one thread per env at a time.  Keys and values given are BORROWED for the call; those that come back are
 * BORROWED from the transaction.
 */
#ifndef COMMON_STORE_ENV_H
#define COMMON_STORE_ENV_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct store_env store_env;
typedef struct store_txn store_txn;
typedef enum { STORE_ENV_READ, STORE_ENV_FRESH, STORE_ENV_STATE } store_env_mode;

typedef struct {
    const void *data;
    size_t size;
} store_bytes;

/* Whether the newest failure in this thread was that the disk, or a quota on it, has no room for more. */
bool store_env_lacked_room(void);

/* Opens the file.  READ wants it to be there, FRESH removes what is there, STATE makes it when absent.
 * Errors     STORE: no space, not permitted, absent; CORRUPT: damaged, truncated, no store. */
pen_status store_env_open(const char *file, store_env_mode mode, store_env **env, pen_error *why);
void store_env_close(store_env *env); /* NULL is fine; ends its transaction, if any */

/* FRESH: everything that was committed is on the disk when it returns.  STORE: it is not. */
pen_status store_env_seal(store_env *env, pen_error *why);

/* One transaction at a time.  Writing: the file has room for `bytes` more in it.
 * Errors     STORE, NO_MEMORY. */
pen_status store_txn_begin(store_env *env, bool writes, uint64_t bytes, store_txn **txn,
                           pen_error *why);
pen_status store_txn_commit(store_txn *txn, pen_error *why); /* txn is gone, whatever is returned */
void store_txn_abort(store_txn *txn);                        /* NULL is fine */

/* Sets a key.  *room is where the value's `size` bytes are to be written before the next call.
 * Errors     STORE: no space, or a key longer than STORE_KEY_BYTES_MAX. */
pen_status store_txn_reserve(store_txn *txn, store_bytes key, size_t size, void **room,
                             pen_error *why);
pen_status store_txn_put(store_txn *txn, store_bytes key, store_bytes value, pen_error *why);
enum { STORE_KEY_BYTES_MAX = 511 };

/* NOT_FOUND, without a sentence, for an absent key. */
pen_status store_txn_get(store_txn *txn, store_bytes key, store_bytes *value, pen_error *why);

/* Calls fn for every key that begins with `prefix`, in order, until it returns another status than OK, which
 * is returned.  fn changes nothing. */
pen_status store_txn_walk(store_txn *txn, store_bytes prefix,
                          pen_status (*fn)(store_bytes key, store_bytes value, void *user,
                                           pen_error *why),
                          void *user, pen_error *why);

#endif
