/* secret.h - the secret of a job, and keys derived from it.
 *
 * A job has one secret of 32 random bytes.  Every member has it and derives its keys: one per role for listening, one
 * per role and rank for dialling.  Only holders of the secret can derive the public halves, so keys are never sent.
 *
 * As text a secret is "pen1:" and 48 letters of base64url: the bytes and four of their checksum, which catches typing
 * errors.  A join line is that text, '@', and the scheduler's address. libsodium's door: keys, random numbers and
 * hashes come from here alone.
 * Thread  any; nothing is shared.
 */
#ifndef COMMON_SECRET_H
#define COMMON_SECRET_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SECRET_BYTES       = 32,
    SECRET_TEXT_BYTES  = 5 + 48 + 1, /* with the end of the string */
    SECRET_PRINT_BYTES = 16 + 1,
    SECRET_HOST_BYTES  = 256,
    SECRET_JOIN_BYTES  = SECRET_TEXT_BYTES + SECRET_HOST_BYTES + 8
};

typedef struct {
    uint8_t bytes[SECRET_BYTES];
} secret;

/* A new one, at random.  Errors  INTERNAL: libsodium cannot start. */
pen_status secret_make(secret *made, pen_error *why);

/* Overwrites it, for good; NULL is fine. */
void secret_wipe(secret *s);

/* To text and back.  Errors of parse  BAD_SETTING, with a sentence that does not repeat the text. */
void secret_format(const secret *s, char text[SECRET_TEXT_BYTES]);
pen_status secret_parse(const char *text, size_t size, secret *s, pen_error *why);

/* Eight bytes in hexadecimal for people to compare; reveals nothing. */
void secret_print(const secret *s, char print[SECRET_PRINT_BYTES]);

/* Whether this text holds a secret, or begins to. */
bool secret_is_in(const char *text);

/* "pen1:...@host:port"; an IPv6 address is in brackets.  To parse, words may stand before it and after it, as in what
 * machine 0 prints.  Errors  BAD_SETTING. */
void secret_join_format(const secret *s, const char *host, uint32_t port,
                        char text[SECRET_JOIN_BYTES]);
pen_status secret_join_parse(const char *text, secret *s, char host[SECRET_HOST_BYTES],
                             uint32_t *port, pen_error *why);

/* Reads a file with the text on one line.  It must be readable only by its owner, or also by its group if it has
 * another owner, as with secrets mounted by Kubernetes.
 * Errors  BAD_SETTING  unreadable, open to others, or not a secret: with a sentence. */
pen_status secret_read(const char *path, secret *s, pen_error *why);

/* Makes the file, of mode 0600.  Errors  STORE  it exists already, or cannot be created. */
pen_status secret_write(const char *path, const secret *s, pen_error *why);

/* X25519 keys of (use, index).  Equal on every host; independent for different pairs.
 * Cost  about 30 us. */
void secret_derive(const secret *s, uint32_t use, uint32_t index, uint8_t own[32],
                   uint8_t own_public[32]);

/* A key of (use, index) that is no pair.  Cost  about 1 us. */
void secret_subkey(const secret *s, uint32_t use, uint32_t index, uint8_t key[32]);

#endif
