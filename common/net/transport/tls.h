/* tls.h - TLS 1.3 over a connected socket, between ends that share a key: the one door to OpenSSL.
 *
 * No certificates.  A dialler names itself (who, index); the listener derives the key that only this member and a member
 * of the listener's role can have.  Both prove it in the handshake, and a fresh X25519 exchange keeps recorded traffic
 * closed (psk_dhe_ke).  No other version, no early data, no resumption, no request after the handshake.
 * Cipher   AES-128-GCM, or ChaCha20-Poly1305 if one of the two processors has no AES.
 * Errors   a sentence without the peer's name, as notes of events (transport.h).
 * Thread   one connection belongs to one thread at a time; a context may be shared by connections.
 */
#ifndef COMMON_TRANSPORT_TLS_H
#define COMMON_TRANSPORT_TLS_H

#include "common/net/transport/transport.h"
#include <sys/types.h>
#include <sys/uio.h>

typedef struct ssl_ctx_st tls_context; /* of an endpoint */
typedef struct tls tls;                /* of a connection */

/* Keys are BORROWED until the last handshake has ended.  Errors  UNSUPPORTED, NO_MEMORY. */
pen_status tls_context_open(const transport_keys *keys, bool listens, tls_context **out,
                            pen_error *why);
void tls_context_close(tls_context *c); /* connections may outlive it */

/* BORROWS a non-blocking socket; NULL: no memory.  A listener's connection costs 100 bytes until the whole first
 * message of its handshake has arrived. */
tls *tls_create(tls_context *c, bool listens, int fd);
void tls_free(tls *t); /* NULL is fine; sends nothing */

typedef enum {
    TLS_SHAKING, /* the other end has to send more */
    TLS_UP,
    TLS_FAILED /* *note says why; NULL: the connection ended */
} tls_state;
tls_state tls_shake(tls *t, const char **note);
bool tls_is_costly(const tls *t); /* shaking, and has the memory of a handshake */

/* Of a listener's connection that is up: the dialler. */
transport_identity tls_who(const tls *t);

/* As readv(): reads once from the socket, or not at all while something received before is held here.  EPROTO: what
 * arrived is not what was sent, see tls_fault(). */
ssize_t tls_receive(tls *t, const struct iovec *to, int n);
bool tls_holds(const tls *t);      /* more can be received although the socket may have nothing */
bool tls_is_drained(const tls *t); /* the last read from the socket took all that it had */

/* As sendmsg().  Bytes that it took may wait here (tls_unsent()): tls_flush() sends them. */
ssize_t tls_send(tls *t, const struct iovec *of, int n);
size_t tls_unsent(const tls *t);
void tls_flush(tls *t);

const char *tls_fault(const tls *t); /* NULL: none */

#endif
