/* secret.h - the secret of a job, and the keys that are made from it.
 *
 * A job has one secret of 32 random bytes.  Every member holds it and derives from it what it needs: the
 * key with which a role listens, and the key with which each rank of a role dials.  The public halves can
 * be derived by everybody who has the secret and by nobody else, so no key ever travels.
 *
 * As text a secret is "pen1:" and 48 letters of base64url: the bytes, and four of their checksum, so that
 * a typing error is found.  A join line is that text, '@', and where the scheduler is.
 * libsodium's door: keys, random numbers and hashes come from here alone.
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

/* Text there and back.  Errors of parse  BAD_SETTING, and a sentence that does not repeat the text. */
void secret_format(const secret *s, char text[SECRET_TEXT_BYTES]);
pen_status secret_parse(const char *text, size_t size, secret *s, pen_error *why);

/* Eight bytes in hexadecimal that two people can compare and that give nothing away. */
void secret_print(const secret *s, char print[SECRET_PRINT_BYTES]);

/* "pen1:...@host:port"; an IPv6 address stands in brackets.  Errors  BAD_SETTING. */
void secret_join_format(const secret *s, const char *host, uint32_t port,
                        char text[SECRET_JOIN_BYTES]);
pen_status secret_join_parse(const char *text, secret *s, char host[SECRET_HOST_BYTES],
                             uint32_t *port, pen_error *why);

/* A file with the text on one line.  Only its owner may be able to read it; its group may where the owner
 * is somebody else, as with secrets that Kubernetes mounts.
 * Errors  BAD_SETTING  it cannot be read, others can read it, or it holds something else: in words. */
pen_status secret_read(const char *path, secret *s, pen_error *why);

/* Makes the file, of mode 0600.  Errors  STORE  it is there already, or cannot be made. */
pen_status secret_write(const char *path, const secret *s, pen_error *why);

/* X25519 keys of (use, index).  Equal on every host; independent for different pairs.
 * Cost  about 30 us. */
void secret_derive(const secret *s, uint32_t use, uint32_t index, uint8_t own[32],
                   uint8_t own_public[32]);

/* For proofs (transport/proof.h).  A symmetric key of (use, index), independent of those above; a keyed hash
 * (BLAKE2b) of some bytes; whether two tags are equal, in a time that does not tell where they differ; and random
 * bytes. */
enum { SECRET_TAG_BYTES = 32 };
void secret_proof_key(const secret *s, uint32_t use, uint32_t index, uint8_t key[32]);
void secret_tag(const uint8_t key[32], const void *data, size_t size,
                uint8_t tag[SECRET_TAG_BYTES]);
bool secret_is_tag(const uint8_t tag[SECRET_TAG_BYTES], const uint8_t expected[SECRET_TAG_BYTES]);
void secret_draw(void *bytes, size_t size);

#endif
