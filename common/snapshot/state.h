/* state.h - a few kilobytes that outlive their process: one file in a folder, written atomically.
 *
 * DESIGN.  Each write makes a new file, syncs it, and renames it over the old one, so a crash leaves the old or the
 * new state.  A checksum detects anything else.  The folder is locked while open: two schedulers of one job would
 * contradict each other.
 * Thread: one per handle.  Every failure is a sentence that names the file and what to do.
 */
#ifndef COMMON_STORE_STATE_H
#define COMMON_STORE_STATE_H

#include "penstock.h"
#include <stddef.h>

typedef struct state_file state_file;

enum { STATE_BYTES_MAX = 512 << 20 };

/* Creates the folder if it does not exist.
 * Errors  STORE  unusable, or in use by another process.   NO_MEMORY */
pen_status state_open(const char *dir, state_file **state, pen_error *why);
void state_close(state_file *state); /* NULL is fine */

/* The latest content; *data is OWNED by the caller, NULL if nothing was written yet.
 * Errors  CORRUPT  damaged.   STORE  unreadable.   NO_MEMORY */
pen_status state_read(const state_file *state, void **data, size_t *size, pen_error *why);

/* Durable on PEN_OK; otherwise the old content stays.
 * Errors  STORE
 * Cost  two fsyncs. */
pen_status state_keep(state_file *state, const void *data, size_t size, pen_error *why);

/* Removes the content.
 * Errors  STORE */
pen_status state_forget(state_file *state, pen_error *why);

#endif
