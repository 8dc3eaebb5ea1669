/* tls_gcm.h - AES-128-GCM for OpenSSL by Intel's multi-buffer library, where that is much faster.
 *
 * OpenSSL before 3.1 computes 16 bytes at a time; the library computes 64 with the VAES instructions, three times as
 * fast.  Handshakes and records stay OpenSSL's.
 */
#ifndef COMMON_TLS_GCM_H
#define COMMON_TLS_GCM_H

#define TLS_GCM_PROPERTIES "?provider=penstock" /* of what a context of OpenSSL fetches */

struct ossl_lib_ctx_st;

/* The OpenSSL library context in which TLS_GCM_PROPERTIES finds the library's cipher, and OpenSSL's own for all else.  It
 * is never freed.  NULL: use the default one, as this OpenSSL or processor gains nothing, the library is not installed,
 * the system demands FIPS, or there was no memory.
 * Thread   any.
 * Cost     the first call 1 ms, others nothing. */
struct ossl_lib_ctx_st *tls_gcm_library(void);

#endif
