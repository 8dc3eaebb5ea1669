/* token.h - the secret of a job on one host, exchanged automatically.
 *
 * The scheduler's process makes it and leaves it in the user's folder (user_folder.h), in a file of mode 0600 named
 * after the scheduler's address and network namespace; the user's other processes read it there. So every reader of
 * this user's files belongs to the job, as every reader of its memory does anyway. The file is locked while its
 * maker lives, and removed on withdrawal.  A killed maker's file is replaced atomically by the next one at that
 * address, and removed by the next one at any address.
 */
#ifndef COMMON_TOKEN_H
#define COMMON_TOKEN_H

#include "common/net/auth/secret.h"

typedef struct token token;

/* A secret of zeros means that this scheduler admits every peer.  address: "tcp://HOST:PORT", already listening, or a
 * tag of another transport.
 * Errors  STORE  no folder, or not writable: names it. */
pen_status token_publish(const char *address, const secret *s, token **made, pen_error *why);
void token_withdraw(token *t); /* NULL is fine */

/* Whether a token for this address exists now. */
bool token_find(const char *address, secret *s);

#endif
