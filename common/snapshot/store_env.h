/* store_env.h - the one door to LMDB: one file of sorted keys and values, and transactions on it.
 *
 * DESIGN.  A file is opened in one of three modes:
 *   FRESH  a file under construction, not visible to readers.  Its transactions only bound memory: each hands its
 *          data to the kernel without waiting for the disk.  store_env_seal() waits once; the caller then
 *          renames the file into place.  A crash before that leaves a file that is never read.
 *   READ   such a file afterwards: it never changes again.  No lock and no write, so a read-only disk will do.
 *   STATE  a small file that keeps changing: every commit is durable when it returns, and atomic.
 *          Its creation is atomic, too.
 * LMDB's own locks are not used: a FRESH file has one user, a READ file does not change, and the opener of a STATE
 * file holds a lock of store_files.h around it.
 * Thread: one thread per env at a time.  Keys and values passed in are BORROWED for the call; those returned are
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

/* Whether the calling thread's latest failure was a full disk or an exceeded quota. */
bool store_env_lacked_room(void);

/* Opens the file.  READ requires it to exist, FRESH removes an existing one, STATE creates it if absent.
 * Errors     STORE: no space, not permitted, absent; CORRUPT: damaged, truncated, not a store. */
pen_status store_env_open(const char *file, store_env_mode mode, store_env **env, pen_error *why);
void store_env_close(store_env *env); /* NULL is fine; aborts an open transaction */

/* FRESH: waits until everything committed is on the disk.  STORE: failed. */
pen_status store_env_seal(store_env *env, pen_error *why);

/* One transaction at a time.  A write transaction has room for `bytes` more.
 * Errors     STORE, NO_MEMORY. */
pen_status store_txn_begin(store_env *env, bool writes, uint64_t bytes, store_txn **txn,
                           pen_error *why);
pen_status store_txn_commit(store_txn *txn, pen_error *why); /* txn is freed in any case */
void store_txn_abort(store_txn *txn);                        /* NULL is fine */

/* Sets a key.  The caller writes the value's `size` bytes to *room before the next call.
 * Errors     STORE: no space, or a key longer than STORE_KEY_BYTES_MAX. */
pen_status store_txn_reserve(store_txn *txn, store_bytes key, size_t size, void **room,
                             pen_error *why);
pen_status store_txn_put(store_txn *txn, store_bytes key, store_bytes value, pen_error *why);
enum { STORE_KEY_BYTES_MAX = 511 };

/* NOT_FOUND, without a sentence: the key is absent. */
pen_status store_txn_get(store_txn *txn, store_bytes key, store_bytes *value, pen_error *why);

/* Calls fn for every key that begins with `prefix`, in order, until it returns a status other than OK, which is
 * returned.  fn must not change anything. */
pen_status store_txn_walk(store_txn *txn, store_bytes prefix,
                          pen_status (*fn)(store_bytes key, store_bytes value, void *user,
                                           pen_error *why),
                          void *user, pen_error *why);

#endif
