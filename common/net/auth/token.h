/* token.h - the secret of a job that stays on this host, which nobody has to give.
 *
 * Who runs the scheduler makes it and leaves it in the user's folder (user_folder.h), in a file of mode 0600 whose name
 * says where the scheduler listens and in which network of this host; the other processes of this user read it there.
 * So whoever can read files of this user belongs to the job, as whoever can read its memory does anyway.
 * The file is locked for as long as its maker lives, and removed when it is withdrawn.  What a maker that was killed has
 * left is replaced by the next one at that address, in one step, and removed by the next one at any.
 */
#ifndef COMMON_TOKEN_H
#define COMMON_TOKEN_H

#include "common/net/auth/secret.h"

typedef struct token token;

/* A secret of zeros says that the scheduler there takes anybody.
 * address: "tcp://HOST:PORT" that is listened at already, or a tag of another transport.
 * Errors  STORE  no folder, or it cannot be written: the sentence says which. */
pen_status token_publish(const char *address, const secret *s, token **made, pen_error *why);
void token_withdraw(token *t); /* NULL is fine */

/* Whether there is one for this address now. */
bool token_find(const char *address, secret *s);

#endif
