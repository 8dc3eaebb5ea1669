/* user_folder.h - the folder in which processes of this user find each other: notes of jobs, keys, tokens.
 *
 * The first of these that can be used, made when absent:
 *   $XDG_RUNTIME_DIR/penstock         where that variable names a folder of this user
 *   /tmp/penstock-UID
 *   $HOME/.cache/penstock-HOSTNAME    a home may be shared between hosts, this folder must not be
 * A place that somebody else has taken is passed over: who makes /tmp/penstock-1000 first stops nobody.
 * What is used belongs to this user, is no link, and is closed to everybody else (mode 0700).
 */
#ifndef COMMON_USER_FOLDER_H
#define COMMON_USER_FOLDER_H

#include "penstock.h"
#include <stdbool.h>

enum { USER_FOLDER_BYTES = 256 };

/* Errors  STORE  none can be used, or one is this user's and open to others: the sentence names it.  That one is not
 * passed over, for what lies in it may be somebody else's; its owner looks at it and closes it. */
pen_status user_folder(char path[USER_FOLDER_BYTES], pen_error *why);

/* For who looks for what another process of this user has left, which may have been told another XDG_RUNTIME_DIR: the
 * folders above and the usual runtime folder (/run/user/UID), those that are there and closed to others.  *at begins
 * with 0.  False: no more. */
bool user_folder_next(int *at, char path[USER_FOLDER_BYTES]);

#endif
