/* tls.c - TLS 1.3 between members of a job; it and its cipher, tls_gcm.c, are the only files that include OpenSSL.
 *
 * DESIGN
 * Strangers. The first message of a handshake (ClientHello) is looked at where it is, in the kernel, until all of it is
 *            there; only then is a connection of OpenSSL made.  Its proof of the key is checked before any key exchange,
 *            so a stranger costs two hashes, and leaves with an alert.
 * Proof.     A listener has no certificate and a dialler trusts none, so a handshake without the shared key fails at both
 *            ends; both also ask afterwards whether the key was used.
 * Records.   Sent records are gathered and leave with one call; a call to receive takes up to READ_BYTES from the socket
 *            and decrypts them to where they belong.  OpenSSL copies each byte once on either side, in the cache.
 * Keys.      Each end changes its sending key every RECORDS_MAX records, long before AES-GCM's limit of 2^24.5 (RFC 8446,
 *            5.5).
 * Errors.    OpenSSL's queue of errors belongs to the program's thread: marks keep ours out of it, and SSL_get_error(),
 *            which looks into it, is not used.
 */
#include "common/net/transport/tls.h"

#include "common/base/why.h"
#include "common/net/transport/tls_gcm.h"
#include "common/system/library.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>

enum {
    RECORD_BYTES  = SSL3_RT_MAX_PLAIN_LENGTH,
    RECORD_MORE   = 64,       /* header, type, tag: 22 */
    OUT_BYTES     = 48 << 10, /* gathered before a call */
    OUT_BYTES_MAX = OUT_BYTES + 2 * (RECORD_BYTES + RECORD_MORE),
    READ_BYTES    = 64 << 10,
    RECORDS_MAX   = 1 << 16, /* sent with one key: at most 1 GiB */
    HEADER_BYTES  = 5,
    HELLO_BYTES   = 1024, /* OpenSSL sends some 300 */
    NAME_BYTES    = 48
};

struct tls {
    int fd;
    tls_context *context; /* BORROWED; used until the connection is made */
    SSL *ssl;             /* NULL: the first message has not arrived */
    bool listens, is_up, is_over;
    bool may_read, is_refused; /* one call to recv(); it was asked for more */
    bool is_drained;           /* by that call */
    bool holds, has_alert;     /* of the other end */
    bool has_read, speaks_zmq; /* its first byte has come; and was that of ZeroMQ */
    bool lacks_memory;         /* for what is to be sent */
    const char *fault;
    transport_identity is;
    uint32_t records;
    uint8_t *out; /* [out_size]: encrypted, from out_at to out_end not sent */
    size_t out_size, out_at, out_end, out_expected;
};

/* ---- the library, loaded by the first context ----------------------------------------------------- */
/* clang-format off */
#define FUNCTIONS(X) \
    X(BIO_clear_flags) X(BIO_free) X(BIO_get_data) X(BIO_get_new_index) X(BIO_meth_new) X(BIO_meth_set_ctrl) \
    X(BIO_meth_set_read) X(BIO_meth_set_write) X(BIO_new) X(BIO_set_data) X(BIO_set_flags) X(BIO_set_init) \
    X(ERR_peek_last_error) X(ERR_pop_to_mark) X(ERR_reason_error_string) X(ERR_set_mark) X(OPENSSL_init_ssl) \
    X(SSL_CIPHER_find) X(SSL_CTX_clear_options) X(SSL_CTX_ctrl) X(SSL_CTX_free) X(SSL_CTX_get_ex_data) \
    X(SSL_CTX_new_ex) X(SSL_CTX_set_ciphersuites) X(SSL_CTX_set_default_read_buffer_len) X(SSL_CTX_set_ex_data) \
    X(SSL_CTX_set_info_callback) X(SSL_CTX_set_max_early_data) X(SSL_CTX_set_num_tickets) X(SSL_CTX_set_options) \
    X(SSL_CTX_set_psk_find_session_callback) X(SSL_CTX_set_psk_use_session_callback) \
    X(SSL_CTX_set_recv_max_early_data) X(SSL_CTX_set_verify) X(SSL_SESSION_free) X(SSL_SESSION_new) \
    X(SSL_SESSION_set1_master_key) X(SSL_SESSION_set_cipher) X(SSL_SESSION_set_protocol_version) \
    X(SSL_do_handshake) X(SSL_free) X(SSL_get_SSL_CTX) X(SSL_get_ex_data) X(SSL_has_pending) X(SSL_key_update) \
    X(SSL_new) X(SSL_read_ex) X(SSL_session_reused) X(SSL_set_accept_state) X(SSL_set_bio) \
    X(SSL_set_connect_state) X(SSL_set_ex_data) X(SSL_version) X(SSL_write_ex) X(TLS_method)
/* clang-format on */

static struct {
    FUNCTIONS(LIBRARY_MEMBER)
} openssl;

/* What macros of OpenSSL call. */
#define BIO_clear_flags     openssl.BIO_clear_flags
#define BIO_set_flags       openssl.BIO_set_flags
#define SSL_CTX_ctrl        openssl.SSL_CTX_ctrl
#define SSL_CTX_get_ex_data openssl.SSL_CTX_get_ex_data
#define SSL_CTX_set_ex_data openssl.SSL_CTX_set_ex_data
#define SSL_get_ex_data     openssl.SSL_get_ex_data
#define SSL_set_ex_data     openssl.SSL_set_ex_data

static pen_status load(pen_error *why)
{
    static const char *const names[] = {FUNCTIONS(LIBRARY_NAME)};
    return library_load(PENSTOCK_SSL, names, sizeof names / sizeof *names, &openssl, why);
}

/* ---- the socket, as OpenSSL sees it -------------------------------------------------------------- */
static bool make_room(tls *t, size_t more)
{
    if (t->out_at > 0) {
        memmove(t->out, t->out + t->out_at, t->out_end - t->out_at);
        t->out_end -= t->out_at;
        t->out_at = 0;
    }
    if (t->out_size - t->out_end >= more) return true;
    size_t size = t->out_end + more;
    if (size > OUT_BYTES_MAX) {
        t->fault = "the other end asks and does not read the answers"; /* for keys to change */
        return false;
    }
    if (size < t->out_expected) size = t->out_expected;
    uint8_t *larger = realloc(t->out, size);
    if (larger == NULL) {
        t->lacks_memory = true; /* for good: OpenSSL has begun a record that it cannot end */
        return false;
    }
    t->out      = larger;
    t->out_size = size;
    return true;
}

static int bio_write(BIO *bio, const char *data, int n)
{
    tls *t = openssl.BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (n <= 0 || !make_room(t, (size_t)n)) return -1;
    memcpy(t->out + t->out_end, data, (size_t)n);
    t->out_end += (size_t)n;
    return n;
}

static int bio_read(BIO *bio, char *data, int n)
{
    tls *t = openssl.BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t got = -1;
    errno       = EAGAIN;
    if (t->may_read && n > 0) {
        got           = recv(t->fd, data, (size_t)n, MSG_DONTWAIT);
        t->is_drained = got < n;
    }
    t->may_read = false;
    if (got > 0) {
        t->speaks_zmq |= !t->has_read && *(const uint8_t *)data == TRANSPORT_ZMQ_FIRST;
        t->has_read = true;
        return (int)got;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        t->is_refused = true;
        BIO_set_retry_read(bio);
        return -1;
    }
    t->is_over = true;
    return 0;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)number, (void)pointer;
    const tls *t = openssl.BIO_get_data(bio);
    if (command == BIO_CTRL_EOF) return t->is_over;
    return command == BIO_CTRL_FLUSH || command == BIO_CTRL_PUSH || command == BIO_CTRL_POP;
}

static BIO_METHOD *method;

static void start(void)
{
    /* Threads of ours may still run when the process ends: OpenSSL must not free what they use. */
    openssl.OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL);
    method = openssl.BIO_meth_new(openssl.BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "penstock");
    if (method == NULL) return;
    openssl.BIO_meth_set_write(method, bio_write);
    openssl.BIO_meth_set_read(method, bio_read);
    openssl.BIO_meth_set_ctrl(method, bio_control);
}

/* ---- the shared key ------------------------------------------------------------------------------ */
static int write_name(transport_identity is, char name[NAME_BYTES])
{
    return snprintf(name, NAME_BYTES, "penstock %u %u", is.who, is.index);
}

static bool read_name(const unsigned char *text, size_t size, transport_identity *is)
{
    char name[NAME_BYTES] = "", again[NAME_BYTES];
    if (size >= sizeof name) return false;
    memcpy(name, text, size);
    if (sscanf(name, "penstock %10u %10u", &is->who, &is->index) != 2) return false;
    return (size_t)write_name(*is, again) == size && memcmp(again, text, size) == 0;
}

/* Both ciphers use SHA-256, which is all that a key is bound to. */
static SSL_SESSION *session_of(SSL *ssl, const uint8_t key[TRANSPORT_KEY_BYTES])
{
    static const unsigned char aes_128_gcm[] = {0x13, 0x01};
    const SSL_CIPHER *cipher                 = openssl.SSL_CIPHER_find(ssl, aes_128_gcm);
    SSL_SESSION *s                           = openssl.SSL_SESSION_new();
    if (s != NULL && cipher != NULL &&
        openssl.SSL_SESSION_set1_master_key(s, key, TRANSPORT_KEY_BYTES) &&
        openssl.SSL_SESSION_set_cipher(s, cipher) &&
        openssl.SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    openssl.SSL_SESSION_free(s);
    return NULL;
}

static const transport_keys *keys_of(const SSL *ssl)
{
    return SSL_CTX_get_app_data(openssl.SSL_get_SSL_CTX(ssl));
}

static int offer_key(SSL *ssl, const EVP_MD *hash, const unsigned char **name, size_t *size,
                     SSL_SESSION **session)
{
    static _Thread_local char text[NAME_BYTES]; /* OpenSSL copies it */
    const transport_keys *k = keys_of(ssl);
    (void)hash;
    *size    = (size_t)write_name(k->self, text);
    *name    = (const unsigned char *)text;
    *session = session_of(ssl, k->shared);
    return *session != NULL;
}

static int find_key(SSL *ssl, const unsigned char *name, size_t size, SSL_SESSION **session)
{
    tls *t                  = SSL_get_app_data(ssl);
    const transport_keys *k = keys_of(ssl);
    uint8_t key[TRANSPORT_KEY_BYTES];
    *session = NULL;
    if (!read_name(name, size, &t->is) || !k->shares(k->user, t->is, key)) return 0;
    *session = session_of(ssl, key);
    explicit_bzero(key, sizeof key);
    return *session != NULL;
}

/* ---- the context --------------------------------------------------------------------------------- */
static bool has_aes(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
    enum { HWCAP_AES_AND_PMULL = 1 << 3 | 1 << 4 };
    return (getauxval(AT_HWCAP) & HWCAP_AES_AND_PMULL) == HWCAP_AES_AND_PMULL;
#else
    return false;
#endif
}

static void note_alert(const SSL *ssl, int where, int value)
{
    tls *t = SSL_get_app_data(ssl);
    (void)value;
    if (where == SSL_CB_READ_ALERT) t->has_alert = true;
}

static int trust_none(int is_ok, X509_STORE_CTX *store)
{
    (void)is_ok, (void)store;
    return 0;
}

static bool set_up(SSL_CTX *c, bool listens)
{
    const char *ciphers = has_aes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                    : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    openssl.SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION |
                                       SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF |
                                       SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
    openssl.SSL_CTX_clear_options(c, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    openssl.SSL_CTX_set_verify(c, listens ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, trust_none);
    SSL_CTX_set_max_cert_list(c, 4096);
    openssl.SSL_CTX_set_info_callback(c, note_alert);
    SSL_CTX_set_read_ahead(c, 1);
    openssl.SSL_CTX_set_default_read_buffer_len(c, READ_BYTES);
    if (listens)
        openssl.SSL_CTX_set_psk_find_session_callback(c, find_key);
    else
        openssl.SSL_CTX_set_psk_use_session_callback(c, offer_key);
    return SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) &&
           SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) &&
           openssl.SSL_CTX_set_ciphersuites(c, ciphers) && SSL_CTX_set1_groups_list(c, "X25519") &&
           openssl.SSL_CTX_set_num_tickets(c, 0) && openssl.SSL_CTX_set_max_early_data(c, 0) &&
           openssl.SSL_CTX_set_recv_max_early_data(c, 0);
}

pen_status tls_context_open(const transport_keys *keys, bool listens, tls_context **out,
                            pen_error *why)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (load(why) != PEN_OK) return why->status;
    pthread_once(&once, start);
    openssl.ERR_set_mark();
    OSSL_LIB_CTX *fast = tls_gcm_library();
    SSL_CTX *c         = NULL;
    if (method != NULL)
        c = openssl.SSL_CTX_new_ex(fast, fast != NULL ? TLS_GCM_PROPERTIES : NULL,
                                   openssl.TLS_method());
    if (c != NULL && set_up(c, listens)) {
        SSL_CTX_set_app_data(c, (void *)(uintptr_t)keys);
        *out = c;
    } else {
        const char *reason = openssl.ERR_reason_error_string(openssl.ERR_peek_last_error());
        why_set(why, c == NULL ? PEN_NO_MEMORY : PEN_UNSUPPORTED,
                "OpenSSL cannot prepare TLS 1.3 (%s); set transport=zmq, or encryption=clear",
                reason != NULL ? reason : "no memory");
        openssl.SSL_CTX_free(c);
        c = NULL;
    }
    openssl.ERR_pop_to_mark();
    return c != NULL ? PEN_OK : why->status;
}

void tls_context_close(tls_context *c)
{
    if (c != NULL) openssl.SSL_CTX_free(c);
}

/* ---- life ---------------------------------------------------------------------------------------- */
static bool begin(tls *t)
{
    BIO *bio = openssl.BIO_new(method);
    t->ssl   = bio != NULL ? openssl.SSL_new(t->context) : NULL;
    if (t->ssl == NULL) {
        openssl.BIO_free(bio);
        return false;
    }
    openssl.BIO_set_data(bio, t);
    openssl.BIO_set_init(bio, 1);
    openssl.SSL_set_bio(t->ssl, bio, bio);
    SSL_set_app_data(t->ssl, t);
    if (t->listens)
        openssl.SSL_set_accept_state(t->ssl);
    else
        openssl.SSL_set_connect_state(t->ssl);
    return true;
}

tls *tls_create(tls_context *c, bool listens, int fd)
{
    tls *t = calloc(1, sizeof *t);
    if (t == NULL) return NULL;
    t->fd      = fd;
    t->context = c;
    t->listens = listens;
    openssl.ERR_set_mark();
    const bool is_made = listens || begin(t);
    openssl.ERR_pop_to_mark();
    if (is_made) return t;
    free(t);
    return NULL;
}

void tls_free(tls *t)
{
    if (t == NULL) return;
    openssl.SSL_free(t->ssl);
    free(t->out);
    free(t);
}

/* ---- the handshake ------------------------------------------------------------------------------- */
typedef enum { HELLO_PARTIAL, HELLO_WHOLE, HELLO_OVER, HELLO_ZMQ, HELLO_NOT_TLS } hello_state;

/* Whether the first record is there; the kernel reports no more until it is. */
static hello_state look_at_hello(const tls *t)
{
    uint8_t start[HEADER_BYTES + HELLO_BYTES];
    const ssize_t n = recv(t->fd, start, sizeof start, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return HELLO_OVER;
    if (n >= 1 && start[0] == TRANSPORT_ZMQ_FIRST) return HELLO_ZMQ;
    if (n >= 1 && start[0] != SSL3_RT_HANDSHAKE) return HELLO_NOT_TLS;
    if (n >= 2 && start[1] != SSL3_VERSION_MAJOR) return HELLO_NOT_TLS;
    const size_t body = n >= HEADER_BYTES ? (size_t)start[3] << 8 | start[4] : 0;
    if (body > HELLO_BYTES) return HELLO_NOT_TLS;
    struct pollfd end = {.fd = t->fd, .events = POLLRDHUP};
    const int whole   = n < HEADER_BYTES ? HEADER_BYTES : HEADER_BYTES + (int)body;
    if (n >= HEADER_BYTES && n >= whole) {
        setsockopt(t->fd, SOL_SOCKET, SO_RCVLOWAT, &(int){1}, sizeof(int));
        return HELLO_WHOLE;
    }
    if (poll(&end, 1, 0) != 0) return HELLO_OVER; /* the rest will not come */
    setsockopt(t->fd, SOL_SOCKET, SO_RCVLOWAT, &whole, sizeof whole);
    return HELLO_PARTIAL;
}

static const char *why_it_failed(const tls *t)
{
    const int reason = ERR_GET_REASON(openssl.ERR_peek_last_error());
    if (t->speaks_zmq) return TRANSPORT_DIFFERS;
    if (t->listens) return "a connection without a key of this job";
    if (t->is_over && !t->has_alert) return NULL;
    return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_UNEXPECTED_MESSAGE ||
                   reason == SSL_R_PACKET_LENGTH_TOO_LONG
               ? "the other end does not encrypt, but this side does"
               : "the other end does not know this job's secret";
}

static tls_state go_on(tls *t, const char **note)
{
    t->is_refused = false;
    t->may_read   = true;
    int done      = openssl.SSL_do_handshake(t->ssl);
    tls_flush(t);
    if (done != 1 && t->is_refused && !t->is_over && tls_unsent(t) == 0) return TLS_SHAKING;
    t->is_up = done == 1 && openssl.SSL_session_reused(t->ssl) == 1 &&
               openssl.SSL_version(t->ssl) == TLS1_3_VERSION;
    t->holds = t->is_up;
    if (t->is_up) return TLS_UP;
    *note = done == 1 ? "the other end has proven nothing" : why_it_failed(t);
    return TLS_FAILED;
}

tls_state tls_shake(tls *t, const char **note)
{
    static const uint8_t not_tls[] = {
        SSL3_RT_ALERT, 3, 3, 0, 2, SSL3_AL_FATAL, SSL_AD_UNEXPECTED_MESSAGE};
    *note = NULL;
    if (t->ssl == NULL) {
        switch (look_at_hello(t)) {
        case HELLO_PARTIAL: return TLS_SHAKING;
        case HELLO_OVER: return TLS_FAILED;
        case HELLO_ZMQ: *note = TRANSPORT_DIFFERS; return TLS_FAILED;
        case HELLO_NOT_TLS:
            *note = "a connection without a key of this job";
            (void)!send(t->fd, not_tls, sizeof not_tls, MSG_DONTWAIT | MSG_NOSIGNAL);
            return TLS_FAILED;
        case HELLO_WHOLE: break;
        }
    }
    openssl.ERR_set_mark();
    if (t->ssl == NULL && !begin(t)) *note = "no memory for a handshake";
    const tls_state state = *note == NULL ? go_on(t, note) : TLS_FAILED;
    openssl.ERR_pop_to_mark();
    return state;
}

bool tls_is_costly(const tls *t)
{
    return t->ssl != NULL && !t->is_up;
}

transport_identity tls_who(const tls *t)
{
    return t->is;
}

/* ---- receiving ----------------------------------------------------------------------------------- */
/* Until there is no whole record, or no room. */
static size_t decrypt(tls *t, uint8_t *to, size_t room)
{
    size_t all = 0;
    while (all < room && t->holds) {
        size_t got = 0;
        if (openssl.SSL_read_ex(t->ssl, to + all, room - all, &got) == 1) {
            all += got;
            t->holds = openssl.SSL_has_pending(t->ssl) ==
                       1; /* if only a part of a record, the next call finds that */
            continue;
        }
        t->holds = false;
        if (!t->is_refused && !t->is_over && t->fault == NULL)
            t->fault = t->has_alert
                           ? "the other end found that what it received was not what was sent"
                           : "what arrived is not what was sent: damaged, or forged";
    }
    return all;
}

ssize_t tls_receive(tls *t, const struct iovec *to, int n)
{
    size_t all    = 0;
    t->may_read   = !t->holds;
    t->holds      = t->fault == NULL && !t->is_over;
    t->is_refused = false;
    openssl.ERR_set_mark();
    for (int i = 0; i < n; i++) all += decrypt(t, to[i].iov_base, to[i].iov_len);
    openssl.ERR_pop_to_mark();
    if (tls_unsent(t) > 0) tls_flush(t); /* an answer to a change of keys */
    if (all > 0) {
        t->holds |= t->fault != NULL || t->is_over; /* so that the end is noticed */
        return (ssize_t)all;
    }
    if (t->fault != NULL)
        errno = EPROTO;
    else if (!t->is_over)
        errno = EAGAIN;
    return t->fault == NULL && t->is_over ? 0 : -1;
}

bool tls_holds(const tls *t)
{
    return t->holds;
}

bool tls_is_drained(const tls *t)
{
    return t->is_drained;
}

const char *tls_fault(const tls *t)
{
    return t->fault;
}

/* ---- sending ------------------------------------------------------------------------------------- */
size_t tls_unsent(const tls *t)
{
    return t->out_end - t->out_at;
}

static void flush(tls *t)
{
    while (t->out_at < t->out_end) {
        const ssize_t sent =
            send(t->fd, t->out + t->out_at, t->out_end - t->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return;
        t->out_at += (size_t)sent;
    }
    t->out_at = t->out_end = 0;
}

void tls_flush(tls *t)
{
    flush(t);
    if (tls_unsent(t) > 0) return;
    free(t->out);
    t->out      = NULL;
    t->out_size = 0;
}

typedef struct {
    const struct iovec *of;
    int n;
    size_t at; /* in the first */
} pieces;

static size_t count(const pieces *p)
{
    size_t all = 0;
    for (int i = 0; i < p->n; i++) all += p->of[i].iov_len;
    return all - p->at;
}

static void advance(pieces *p, size_t bytes)
{
    while (p->n > 0 && bytes >= p->of->iov_len - p->at) {
        bytes -= p->of->iov_len - p->at;
        p->of++, p->n--;
        p->at = 0;
    }
    p->at += bytes;
}

/* The next record's bytes: where they are, if they are in one piece. */
static const uint8_t *next_record(const pieces *p, uint8_t scratch[RECORD_BYTES], size_t *size)
{
    const uint8_t *first = (const uint8_t *)p->of->iov_base + p->at;
    size_t n             = p->of->iov_len - p->at;
    *size                = n < RECORD_BYTES ? n : RECORD_BYTES;
    if (p->n == 1 || n >= RECORD_BYTES) return first;
    memcpy(scratch, first, n);
    for (int i = 1; i < p->n && n < RECORD_BYTES; i++) {
        const size_t room = RECORD_BYTES - n,
                     more = p->of[i].iov_len < room ? p->of[i].iov_len : room;
        memcpy(scratch + n, p->of[i].iov_base, more);
        n += more;
    }
    *size = n;
    return scratch;
}

/* False: the connection cannot be used any more. */
static bool encrypt(tls *t, const uint8_t *data, size_t size)
{
    size_t taken = 0;
    if (++t->records % RECORDS_MAX == 0 &&
        openssl.SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
        return false;
    return openssl.SSL_write_ex(t->ssl, data, size, &taken) == 1 && taken == size;
}

ssize_t tls_send(tls *t, const struct iovec *of, int n)
{
    uint8_t scratch[RECORD_BYTES];
    pieces left       = {.of = of, .n = n};
    size_t taken      = 0;
    const size_t all  = count(&left);
    bool is_fit       = t->fault == NULL && !t->is_over;
    const size_t most = OUT_BYTES + RECORD_BYTES + RECORD_MORE;
    const size_t full = all + (all / RECORD_BYTES + 1) * RECORD_MORE;
    t->out_expected   = full < most ? full : most;
    advance(&left, 0);
    openssl.ERR_set_mark();
    flush(t);
    while (is_fit && taken < all && tls_unsent(t) < OUT_BYTES) {
        size_t size;
        const uint8_t *data = next_record(&left, scratch, &size);
        is_fit              = encrypt(t, data, size);
        if (!is_fit) break;
        taken += size;
        advance(&left, size);
        if (tls_unsent(t) >= OUT_BYTES) flush(t);
    }
    openssl.ERR_pop_to_mark();
    tls_flush(t);
    if (taken > 0) return (ssize_t)taken;
    errno = is_fit ? EAGAIN : t->lacks_memory ? ENOMEM : EPROTO;
    return -1;
}
