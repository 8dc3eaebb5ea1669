/* own_files.h - files where nobody else could put a link, and secrets that nobody else can read.
 *
 * Other users may write to /tmp, and to a folder that somebody gave them.  So folders are opened once and checked, files
 * are made in them by descriptor, and no link is followed.
 */
#ifndef COMMON_OWN_FILES_H
#define COMMON_OWN_FILES_H

#include "penstock.h"
#include <stddef.h>
#include <stdio.h>

/* OWN_FOLDER: made by us; no link, this user's, and only this user may write to it.  OWN_FOLDER_GIVEN: named by the user,
 * so it may be a link, root's or nobody's (as network file systems show root's), and shared: files in it are still
 * checked. */
typedef enum { OWN_FOLDER, OWN_FOLDER_GIVEN } own_folder_kind;

/* Opens a folder, made with mode 0700 if it is missing.  at: the open folder that contains it, or AT_FDCWD; shown: its
 * whole path, for sentences.  Returns a descriptor, or -1 and STORE with a sentence. */
int own_folder_open(int at, const char *name, const char *shown, own_folder_kind kind,
                    pen_error *why);

/* Opens a file in such a folder to read and write, made with mode 0600 if it is missing.  flags: 0, O_TRUNC, O_APPEND.
 * -1: errno says why; EPERM: somebody else made it, or it is a link or no file. */
int own_file_open(int folder, const char *name, int flags);

/* Opens a new file beside `path`; its name, which nobody can guess, goes to `making` (size bytes).  rename() it to `path`:
 * that replaces a link, and does not follow it.  NULL: errno says why. */
FILE *own_file_beside(const char *path, char *making, size_t size);

/* Reads a small file with a secret; `what` is the subject of sentences: "the secret".  It must be a file of this user or
 * of root, closed to others; root's may be readable by a group, as Kubernetes mounts it.  text gets at most size - 1
 * bytes and an end.
 * Errors  BAD_SETTING */
pen_status own_secret_read(const char *what, const char *path, char *text, size_t size,
                           pen_error *why);

#endif
