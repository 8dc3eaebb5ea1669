/* store_files.h - folders and files of a store, and the few ways they change on disk.
 *
 * Atomic files are written under a temporary name, synced, and then renamed into place: store_files_put_in_place().
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
    uint32_t serial; /* within its folder; later files have higher ones */
    int64_t step;
    uint64_t id; /* snapshot id, equal on all parts */
} store_file;

enum { STORE_FILE_NAME_BYTES = 64 };
void store_file_name(const store_file *file, char name[STORE_FILE_NAME_BYTES]);

/* path = folder/name; false if it is too long. */
bool store_files_join(char path[STORE_PATH_BYTES], const char *folder, const char *name);

/* The files of one folder in the order they were written.
 * Ownership  free() *files.  A missing folder has none.
 * Errors     STORE (cannot be read), NO_MEMORY. */
pen_status store_files_list(const char *folder, store_file **files, size_t *n, pen_error *why);

/* The ranks with a folder part-<rank> in dir, ascending.  Ownership and errors as above. */
pen_status store_files_parts(const char *dir, int32_t **ranks, size_t *n, pen_error *why);

/* Creates a folder durably; an existing one is fine.
 * Errors     STORE: the folder and the remedy.
 * Cost       two fsync() if it was created. */
pen_status store_files_make_folder(const char *path, pen_error *why);

/* Makes names created, renamed or removed in the folder durable.  File systems that do not support this for
 * folders are trusted. */
pen_status store_files_sync_folder(const char *path, pen_error *why);

/* Renames `from`, whose content is already on the disk, to `to` in the same folder, durably.  On failure `from` is
 * removed and the old `to` remains. */
pen_status store_files_put_in_place(const char *from, const char *to, pen_error *why);

/* Creates the file and locks it against other processes, and against other opens in this one, until the descriptor
 * is closed or the process ends.
 * Errors     AGAIN, without a sentence: already locked.  STORE: cannot be created. */
pen_status store_files_lock(const char *path, int *fd, pen_error *why);

#endif
