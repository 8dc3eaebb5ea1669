/* state.h - a few kilobytes that outlive their process: one file in a folder, whole or not at all.
 *
 * DESIGN.  Every time it is written anew beside the old one, made durable, and then renamed onto it, so a crash
 * leaves the state before or the state after.  A checksum tells both from anything else.  The folder is locked
 * while it is open: two schedulers of one job would tell their members different things.
 * Thread: one per handle.  Every failure is a sentence that names the file and what to do.
 */
#ifndef COMMON_STORE_STATE_H
#define COMMON_STORE_STATE_H

#include "penstock.h"
#include <stddef.h>

typedef struct state_file state_file;

enum { STATE_BYTES_MAX = 512 << 20 };

/* Makes the folder when it is not there.
 * Errors  STORE  it cannot be used, or another process has it.   NO_MEMORY */
pen_status state_open(const char *dir, state_file **state, pen_error *why);
void state_close(state_file *state); /* NULL is fine */

/* What was kept last; *data is the caller's to free, NULL when nothing ever was.
 * Errors  CORRUPT  it is damaged.   STORE  it cannot be read.   NO_MEMORY */
pen_status state_read(const state_file *state, void **data, size_t *size, pen_error *why);

/* Durable when it returns PEN_OK; else what was kept before still is.
 * Errors  STORE
 * Cost  two fsyncs. */
pen_status state_keep(state_file *state, const void *data, size_t size, pen_error *why);

/* From now on nothing was ever kept.
 * Errors  STORE */
pen_status state_forget(state_file *state, pen_error *why);

#endif
