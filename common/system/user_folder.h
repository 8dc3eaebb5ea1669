/* user_folder.h - the folder where processes of this user find each other: notes of jobs, keys, tokens.
 *
 * The first usable one of these, created if missing:
 *   $XDG_RUNTIME_DIR/penstock         if that is a folder of this user
 *   /tmp/penstock-UID
 *   $HOME/.cache/penstock-HOSTNAME    a home may be shared between hosts, this folder may not
 * Folders of other users are skipped: creating /tmp/penstock-1000 first blocks no one.  The chosen folder belongs to
 * this user, is not a link, and is closed to others (mode 0700).
 */
#ifndef COMMON_USER_FOLDER_H
#define COMMON_USER_FOLDER_H

#include "penstock.h"
#include <stdbool.h>

enum { USER_FOLDER_BYTES = 256 };

/* Errors  STORE  none is usable, or one of this user is open to others: names it.  That one is not skipped, as its
 * contents may be another user's; its owner must check and close it. */
pen_status user_folder(char path[USER_FOLDER_BYTES], pen_error *why);

/* To search for files of this user's other processes, which may have another XDG_RUNTIME_DIR: iterates over the
 * folders above and /run/user/UID, if they exist and are closed to others.  *at starts at 0.  False: no more. */
bool user_folder_next(int *at, char path[USER_FOLDER_BYTES]);

#endif
