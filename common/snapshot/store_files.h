/* store_files.h - folders and files of a store, and the few ways in which they change on disk.
 *
 * Whatever is to exist whole or not at all is written under another name, brought to the disk, and then
 * put in place by a rename: store_files_put_in_place().
 */
#ifndef COMMON_STORE_FILES_H
#define COMMON_STORE_FILES_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STORE_PATH_BYTES = 512 };

/* The name of a part's file: 00000007-120-00000000000000ab.mdb. */
typedef struct {
    uint32_t serial; /* within its folder: what was written later has a higher one */
    int64_t step;
    uint64_t id; /* of the snapshot: equal on all its parts */
} store_file;

enum { STORE_FILE_NAME_BYTES = 64 };
void store_file_name(const store_file *file, char name[STORE_FILE_NAME_BYTES]);

/* path = folder/name; false when it is too long. */
bool store_files_join(char path[STORE_PATH_BYTES], const char *folder, const char *name);

/* The files of one folder in the order in which they were written.
 * Ownership  free() *files.  A folder that is not there has none.
 * Errors     STORE (cannot be read), NO_MEMORY. */
pen_status store_files_list(const char *folder, store_file **files, size_t *n, pen_error *why);

/* The ranks whose folders part-<rank> are in dir, ascending.  Ownership and errors as above. */
pen_status store_files_parts(const char *dir, int32_t **ranks, size_t *n, pen_error *why);

/* Makes a folder that a crash does not take away again; one that is there is fine.
 * Errors     STORE: the folder and what to do.
 * Cost       two fsync() if it was made. */
pen_status store_files_make_folder(const char *path, pen_error *why);

/* Names made, renamed or removed in the folder are on the disk when it returns.  File systems that cannot
 * do this for folders are believed. */
pen_status store_files_sync_folder(const char *path, pen_error *why);

/* Renames `from`, whose content is on the disk already, to `to` in the same folder, durably.  On failure
 * `from` is removed, and what was at `to` is there still. */
pen_status store_files_put_in_place(const char *from, const char *to, pen_error *why);

/* Makes the file and locks it against other processes, and other opens in this one, until the descriptor
 * is closed or the process ends.
 * Errors     AGAIN, without a sentence: somebody else holds it.  STORE: cannot be made. */
pen_status store_files_lock(const char *path, int *fd, pen_error *why);

#endif
