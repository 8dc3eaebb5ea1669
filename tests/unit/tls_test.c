/* tls_test.c - TLS between members of a job: who is let in, and what happens to those who lie, between two members or as
 * one of them.
 *
 * The hostile ends are OpenSSL used directly, with settings that ours never has, and a relay that changes what passes.
 */
#include "tests/unit/transport_auth_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <sys/socket.h>

static const char *const no_key = "a connection without a key of this job";
static const char *const forged = "what arrived is not what was sent: damaged, or forged";
static const char *const told   = "the other end found that what it received was not what was sent";

/* ---- tools --------------------------------------------------------------------------------------- */
static auth *server, *worker; /* a listener's, and that of worker 3 */
static transport *l;

static int open_job(void **state)
{
    (void)state;
    rig_address = "socket://127.0.0.1:0";
    server      = open_auth(0, AUTH_SERVER, 0);
    worker      = open_auth(0, AUTH_WORKER, 3);
    l           = listen_with(server, (transport_options){0});
    return 0;
}

static int close_job(void **state)
{
    (void)state;
    transport_close(l, 0);
    auth_close(server);
    auth_close(worker);
    return 0;
}

/* The keys with which a member dials a server. */
static transport_keys keys_of(const auth *g)
{
    transport_options o = {0};
    auth_dial(g, AUTH_SERVER, &o);
    return *o.keys;
}

static int connect_to_listener(void)
{
    struct sockaddr_in to = {.sin_family      = AF_INET,
                             .sin_port        = htons((uint16_t)rig_port(l)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd          = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* Whatever the listener says of the connection before. */
static void await_up_again(transport *d)
{
    transport_event event;
    for (const uint64_t until = now_ms() + PATIENCE_MS; now_ms() < until;) {
        if (next(d, &event, 1) && event.kind == TRANSPORT_UP) return;
        (void)next(l, &event, 0);
    }
    fail_msg("no connection");
}

static void check_serves(void)
{
    transport *d = dial_with(worker, AUTH_SERVER, l);
    await_up(l, d);
    assert_int_equal(transport_send(d, 0, "served", 6, NULL), PEN_OK);
    assert_int_equal(await(l, TRANSPORT_MESSAGE).head_size, 6);
    transport_close(d, 0);
    await(l, TRANSPORT_DOWN);
}

/* Nothing but refusals comes; the newest one's note, also of those before. */
static char note[96];

static const char *refusal(uint64_t wait_ms)
{
    transport_event event;
    while (next(l, &event, note[0] != '\0' ? 20 : wait_ms)) {
        assert_int_equal(event.kind, TRANSPORT_REFUSED);
        memcpy(note, event.note, sizeof note);
    }
    return note;
}

/* Sanitizers keep memory of their own for ours, and one of them what was freed. */
#if defined(__SANITIZE_ADDRESS__)
enum { MEMORY_FACTOR = 512 };
#elif defined(__SANITIZE_THREAD__)
enum { MEMORY_FACTOR = 8 };
#else
enum { MEMORY_FACTOR = 1 };
#endif

/* ---- memory -------------------------------------------------------------------------------------- */
static bool refuses; /* the product's realloc(), by the linker's --wrap */
void *__real_realloc(void *from, size_t size);
void *__wrap_realloc(void *from, size_t size);

void *__wrap_realloc(void *from, size_t size)
{
    return refuses ? NULL : __real_realloc(from, size);
}

/* What was to be sent then may be in pieces in OpenSSL: nothing else is sent on that connection. */
static void test_tls_connection_without_memory_to_send_ends_and_is_made_again(void **state)
{
    (void)state;
    transport *d = dial_with(worker, AUTH_SERVER, l);
    await_up(l, d);
    refuses                 = true;
    const pen_status status = transport_send(d, 0, "refused", 7, NULL);
    refuses                 = false;
    assert_int_equal(status, PEN_AGAIN);
    const transport_event event = await(d, TRANSPORT_REFUSED);
    assert_true(event.lacks_memory);
    assert_string_equal(event.note, "no memory to send on it");
    await(d, TRANSPORT_DOWN);
    await_up_again(d);
    assert_int_equal(transport_send(d, 0, "served", 6, NULL), PEN_OK);
    assert_int_equal(await(l, TRANSPORT_MESSAGE).head_size, 6);
    transport_close(d, 0);
    await(l, TRANSPORT_DOWN);
}

/* ---- OpenSSL as the peer ------------------------------------------------------------------------- */
typedef struct {
    SSL_CTX *context;
    SSL *ssl;
    int fd;
    char name[128];
    uint8_t key[TRANSPORT_KEY_BYTES];
    uint32_t early_bytes_max;
    int n_key_updates, n_tickets;
} plain_peer;

static SSL_SESSION *session_of(SSL *ssl, const plain_peer *p)
{
    SSL_SESSION *s = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(s, p->key, sizeof p->key);
    SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, (const uint8_t[]){0x13, 0x01}));
    SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION);
    SSL_SESSION_set_max_early_data(s, p->early_bytes_max);
    return s;
}

static int offer(SSL *ssl, const EVP_MD *hash, const unsigned char **name, size_t *size,
                 SSL_SESSION **session)
{
    plain_peer *p = SSL_get_app_data(ssl);
    (void)hash;
    *name    = (const unsigned char *)p->name;
    *size    = strlen(p->name);
    *session = session_of(ssl, p);
    return 1;
}

static int find(SSL *ssl, const unsigned char *name, size_t size, SSL_SESSION **session)
{
    (void)name, (void)size;
    *session = session_of(ssl, SSL_get_app_data(ssl));
    return 1;
}

static void count_messages(int is_write, int version, int type, const void *bytes, size_t size,
                           SSL *ssl, void *user)
{
    plain_peer *p = user;
    (void)version, (void)ssl;
    if (is_write || type != SSL3_RT_HANDSHAKE || size < 1) return;
    p->n_key_updates += *(const uint8_t *)bytes == SSL3_MT_KEY_UPDATE;
    p->n_tickets += *(const uint8_t *)bytes == SSL3_MT_NEWSESSION_TICKET;
}

static void open_peer(plain_peer *p, const transport_keys *k, int fd, bool listens)
{
    *p = (plain_peer){.fd = fd, .context = SSL_CTX_new(TLS_method())};
    snprintf(p->name, sizeof p->name, "penstock %u %u", k->self.who, k->self.index);
    memcpy(p->key, k->shared, sizeof p->key);
    SSL_CTX_set_options(p->context, SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_psk_use_session_callback(p->context, offer);
    SSL_CTX_set_psk_find_session_callback(p->context, find);
    p->ssl = SSL_new(p->context);
    SSL_set_app_data(p->ssl, p);
    SSL_set_msg_callback(p->ssl, count_messages);
    SSL_set_msg_callback_arg(p->ssl, p);
    SSL_set_fd(p->ssl, fd);
    note[0] = '\0';
    if (listens)
        SSL_set_accept_state(p->ssl);
    else
        SSL_set_connect_state(p->ssl);
}

static void close_peer(plain_peer *p)
{
    SSL_free(p->ssl);
    SSL_CTX_free(p->context);
    close(p->fd);
}

/* The handshake, with the endpoint of the other side; false: it failed. */
static bool shakes(plain_peer *p, transport *other)
{
    transport_event event;
    for (const uint64_t until = now_ms() + PATIENCE_MS; now_ms() < until;) {
        const int done = SSL_do_handshake(p->ssl);
        if (done == 1) return true;
        if (SSL_get_error(p->ssl, done) != SSL_ERROR_WANT_READ) return false;
        if (!next(other, &event, 1)) continue;
        assert_int_equal(event.kind, TRANSPORT_REFUSED);
        memcpy(note, event.note, sizeof note);
    }
    return false;
}

static void write_peer(plain_peer *p, const void *bytes, int size)
{
    for (int done = 0; done < size;) {
        const int n = SSL_write(p->ssl, (const uint8_t *)bytes + done, size - done);
        if (n > 0) done += n;
        assert_true(n > 0 || SSL_get_error(p->ssl, n) == SSL_ERROR_WANT_WRITE);
    }
}

static const uint8_t hello[] =
    "PENSOCK\1\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0hi"; /* a greeting, a message */
enum { HELLO_BYTES = sizeof hello - 1 };

/* Opens it with worker 3's key, up to its first message; its number. */
static uint32_t join(plain_peer *p)
{
    const transport_keys k = keys_of(worker);
    open_peer(p, &k, connect_to_listener(), false);
    assert_true(shakes(p, l));
    write_peer(p, hello, HELLO_BYTES);
    return await(l, TRANSPORT_MESSAGE).peer;
}

static void test_tls_openssl_with_the_members_key_is_that_member(void **state)
{
    (void)state;
    plain_peer p;
    const uint32_t peer = join(&p);
    transport_identity is;
    assert_true(transport_who(l, peer, &is));
    assert_true(auth_is(&is, AUTH_WORKER, 3) && !auth_is(&is, AUTH_WORKER, 2));

    assert_int_equal(transport_send(l, peer, "hello", 5, NULL), PEN_OK);
    uint8_t answer[64];
    int n, got = 0;
    for (const uint64_t until = now_ms() + PATIENCE_MS; got < 8 + 16 + 5 && now_ms() < until;)
        if ((n = SSL_read(p.ssl, answer + got, (int)sizeof answer - got)) > 0) got += n;
    assert_memory_equal(answer, "PENSOCK\1", 8);
    assert_memory_equal(answer + 24, "hello", 5);

    assert_string_equal(SSL_get_version(p.ssl), "TLSv1.3");
    assert_int_equal(SSL_get_negotiated_group(p.ssl), NID_X25519); /* although it may go without */
    assert_int_equal(p.n_tickets, 0);
    const char *cipher = SSL_get_cipher(p.ssl);
    assert_true(strcmp(cipher, "TLS_AES_128_GCM_SHA256") == 0 ||
                strcmp(cipher, "TLS_CHACHA20_POLY1305_SHA256") == 0);
    close_peer(&p);
    await(l, TRANSPORT_DOWN);
}

static void test_tls_stranger_is_refused_whatever_it_names_itself(void **state)
{
    (void)state;
    static const char *const names[] = {
        "penstock 2 4",         "penstock 2 5",  "penstock 3 0",  "penstock 9 9",
        "penstock 2",           "penstock 2 4 ", "penstock 02 4", "x",
        "penstock 4294967297 4"};
    const transport_keys k = keys_of(worker);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        plain_peer p;
        open_peer(&p, &k, connect_to_listener(), false);
        strcpy(p.name, names[i]);
        if (i == 0)
            p.key[31] ^= 1; /* its own name, and nearly its key; else the key, and another name */
        assert_false(shakes(&p, l));
        assert_string_equal(refusal(1000), no_key);
        close_peer(&p);
    }
    check_serves();
}

static void set_no_key(plain_peer *p)
{
    SSL_set_psk_use_session_callback(p->ssl, NULL);
}

static void set_old_version(plain_peer *p)
{
    SSL_set_max_proto_version(p->ssl, TLS1_2_VERSION);
}

static void set_other_group(plain_peer *p)
{
    SSL_set1_groups_list(p->ssl, "P-256");
}

static void set_other_cipher(plain_peer *p)
{
    SSL_set_ciphersuites(p->ssl, "TLS_AES_256_GCM_SHA384");
}

static void test_tls_other_versions_groups_and_ciphers_are_refused(void **state)
{
    (void)state;
    void (*const set[])(plain_peer *) = {set_no_key, set_old_version, set_other_group,
                                         set_other_cipher};
    const transport_keys k            = keys_of(worker);
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        plain_peer p;
        open_peer(&p, &k, connect_to_listener(), false);
        set[i](&p);
        assert_false(shakes(&p, l));
        assert_string_equal(refusal(1000), no_key);
        close_peer(&p);
    }
    check_serves();
}

static void test_tls_early_data_is_not_accepted(void **state)
{
    (void)state;
    const transport_keys k = keys_of(worker);
    plain_peer p;
    size_t written = 0;
    open_peer(&p, &k, connect_to_listener(), false);
    p.early_bytes_max = 1000;
    assert_int_equal(SSL_write_early_data(p.ssl, hello, HELLO_BYTES, &written), 1);
    (void)shakes(&p, l); /* either it goes on without them, or ends */
    assert_int_not_equal(SSL_get_early_data_status(p.ssl), SSL_EARLY_DATA_ACCEPTED);
    transport_event event;
    while (next(l, &event, 100)) assert_int_equal(event.kind, TRANSPORT_REFUSED);
    close_peer(&p);
    check_serves();
}

/* Ours changes its sending key every 2^16 records, and follows a peer that does. */
static void test_tls_keys_change_in_time_on_both_sides(void **state)
{
    (void)state;
    enum { RECORDS = 1 << 17 };
    plain_peer p;
    const uint32_t peer = join(&p);
    uint8_t sink[1 << 14];
    for (int sent = 0; sent < RECORDS;) {
        for (int i = 0; i < 64; i++, sent++)
            assert_int_equal(transport_send(l, peer, "x", 1, NULL), PEN_OK);
        while (SSL_read(p.ssl, sink, sizeof sink) > 0) {}
    }
    for (const uint64_t until = now_ms() + PATIENCE_MS; p.n_key_updates < 2 && now_ms() < until;) {
        transport_event event;
        next(l, &event, 1);
        while (SSL_read(p.ssl, sink, sizeof sink) > 0) {}
    }
    assert_int_equal(p.n_key_updates, 2);
    assert_int_equal(SSL_key_update(p.ssl, SSL_KEY_UPDATE_REQUESTED), 1);
    write_peer(&p, hello + 8, HELLO_BYTES - 8);
    await(l, TRANSPORT_MESSAGE);
    close_peer(&p);
    await(l, TRANSPORT_DOWN);
}

/* Each asks for an answer, which nobody reads. */
static void test_tls_flood_of_key_updates_costs_little_memory(void **state)
{
    (void)state;
    enum { UPDATES = 20000, MESSAGES_BEFORE = 16 };
    plain_peer p;
    const uint32_t peer = join(&p);
    for (int i = 0; i < MESSAGES_BEFORE; i++) /* more than the kernel keeps: answers wait */
        assert_int_equal(transport_send(l, peer, "x", 1, buf_new(MIB)), PEN_OK);
    const long before     = resident_kib();
    transport_event event = {0};
    for (int sent = 0; sent < UPDATES && event.kind != TRANSPORT_REFUSED; sent++) {
        assert_int_equal(SSL_key_update(p.ssl, SSL_KEY_UPDATE_REQUESTED), 1);
        assert_int_equal(SSL_do_handshake(p.ssl), 1);
        next(l, &event, 0);
    }
    assert_int_equal(event.kind, TRANSPORT_REFUSED);
    assert_string_equal(event.note, "the other end asks and does not read the answers");
    await(l, TRANSPORT_DOWN);
    assert_true(resident_kib() - before < 1024 * MEMORY_FACTOR);
    close_peer(&p);
    check_serves();
}

/* ---- a listener that lies ------------------------------------------------------------------------ */
static void add_certificate(plain_peer *p)
{
    EVP_PKEY *key = EVP_RSA_gen(2048);
    X509 *x       = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), 0);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, key);
    X509_sign(x, key, EVP_sha256());
    assert_int_equal(SSL_use_certificate(p->ssl, x), 1);
    assert_int_equal(SSL_use_PrivateKey(p->ssl, key), 1);
    X509_free(x);
    EVP_PKEY_free(key);
}

static int listen_on_loopback(char address[64])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size        = sizeof at;
    const int fd          = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 1), 0);
    getsockname(fd, (struct sockaddr *)&at, &size);
    snprintf(address, 64, "socket://127.0.0.1:%d", ntohs(at.sin_port));
    return fd;
}

static void check_dialler_refuses(bool has_certificate)
{
    char address[64];
    const int listener = listen_on_loopback(address);
    transport *d;
    transport_options o = {0};
    auth_dial(worker, AUTH_SERVER, &o);
    assert_int_equal(transport_dial(address, &o, &d, NULL), PEN_OK);
    transport_keys k = keys_of(worker);
    plain_peer p;
    k.shared[0] ^= 1;
    open_peer(&p, &k, accept(listener, NULL, NULL), true);
    if (has_certificate) {
        SSL_set_psk_find_session_callback(p.ssl, NULL);
        add_certificate(&p);
    }
    fcntl(p.fd, F_SETFL, O_NONBLOCK);
    transport_event event;
    bool is_told = false;
    for (const uint64_t until = now_ms() + PATIENCE_MS; !is_told && now_ms() < until;) {
        (void)SSL_do_handshake(p.ssl);
        is_told = next(d, &event, 1);
    }
    assert_true(is_told);
    assert_int_equal(event.kind, TRANSPORT_REFUSED);
    assert_string_equal(event.note, "the other end does not know this job's secret");
    transport_close(d, 0);
    close_peer(&p);
    close(listener);
}

static void test_tls_dialler_refuses_a_listener_without_the_key(void **state)
{
    (void)state;
    check_dialler_refuses(false);
}

static void test_tls_dialler_trusts_no_certificate(void **state)
{
    (void)state;
    check_dialler_refuses(true);
}

/* ---- ends with another setting `transport` ------------------------------------------------------- */
static void check_differs(auth *listener, auth *dialler, transport_carrier listens,
                          transport_carrier dials)
{
    transport_options at = {0}, to = {0};
    transport *one, *other;
    transport_event event = {0};
    auth_listen(listener, &at);
    auth_dial(dialler, AUTH_SERVER, &to);
    at.carrier = listens;
    to.carrier = dials;
    assert_int_equal(transport_listen("tcp://127.0.0.1:0", &at, &one, NULL), PEN_OK);
    assert_int_equal(transport_dial(transport_address(one), &to, &other, NULL), PEN_OK);
    transport *sockets = listens == TRANSPORT_SOCKET ? one : other;
    for (const uint64_t until = now_ms() + PATIENCE_MS; now_ms() < until;) {
        transport_event unused;
        next(sockets == one ? other : one, &unused, 1);
        if (next(sockets, &event, 1) && event.kind == TRANSPORT_REFUSED &&
            strcmp(event.note, "a connection that ended without a message") != 0)
            break; /* one of ZeroMQ may end before it has sent its first byte */
    }
    assert_int_equal(event.kind, TRANSPORT_REFUSED);
    assert_string_equal(event.note, TRANSPORT_DIFFERS);
    transport_close(other, 0);
    transport_close(one, 0);
}

static void test_tls_end_of_zeromq_is_told_from_a_stranger(void **state)
{
    (void)state;
    check_differs(server, worker, TRANSPORT_SOCKET, TRANSPORT_ZMQ);
    check_differs(server, worker, TRANSPORT_ZMQ, TRANSPORT_SOCKET);
    check_differs(NULL, NULL, TRANSPORT_SOCKET, TRANSPORT_ZMQ);
    check_differs(NULL, NULL, TRANSPORT_ZMQ, TRANSPORT_SOCKET);
}

/* ---- between two members ------------------------------------------------------------------------- */
enum { SIDE_BYTES = 1 << 20, MESSAGES = 5, BODY_BYTES = 40000 };

typedef struct { /* a relay: what has passed from the dialler (0) and from the listener (1) */
    int listener, fd[2];
    uint8_t bytes[2][SIDE_BYTES];
    size_t size[2], passed[2];
    size_t flip[2]; /* the bit of this byte; SIZE_MAX: none */
    size_t stop;    /* of the dialler's bytes: not passed on, but closed there */
} relay;

static relay r;

static transport *dial_through_relay(void)
{
    char address[64];
    transport_options o = {.reconnect_ms_max = 1};
    transport *d;
    r.listener = listen_on_loopback(address);
    auth_dial(worker, AUTH_SERVER, &o);
    assert_int_equal(transport_dial(address, &o, &d, NULL), PEN_OK);
    r.fd[0] = accept(r.listener, NULL, NULL);
    r.fd[1] = connect_to_listener();
    fcntl(r.fd[0], F_SETFL, O_NONBLOCK);
    memset(r.size, 0, sizeof r.size);
    memset(r.passed, 0, sizeof r.passed);
    r.flip[0] = r.flip[1] = r.stop = SIZE_MAX;
    return d;
}

static void close_relay(void)
{
    for (int i = 0; i < 2; i++)
        if (r.fd[i] >= 0) close(r.fd[i]);
    close(r.listener);
}

static void end_relay(void)
{
    close(r.fd[0]);
    close(r.fd[1]);
    r.fd[0] = r.fd[1] = -1;
}

static void pass_on(void)
{
    for (int i = 0; i < 2 && r.fd[0] >= 0; i++) {
        const ssize_t n =
            recv(r.fd[i], r.bytes[i] + r.size[i], SIDE_BYTES - r.size[i], MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) {
            end_relay();
            return;
        }
        if (n > 0) r.size[i] += (size_t)n;
        const size_t from = r.passed[i], to = i == 0 && r.stop < r.size[0] ? r.stop : r.size[i];
        if (r.flip[i] >= from && r.flip[i] < to) r.bytes[i][r.flip[i]] ^= 0x10;
        const ssize_t sent =
            to > from ? send(r.fd[1 - i], r.bytes[i] + from, to - from, MSG_NOSIGNAL) : 0;
        if (sent > 0) r.passed[i] += (size_t)sent;
        if (i == 0 && r.passed[0] == r.stop) end_relay();
    }
}

typedef struct {
    int said, heard, n_refused;
    char note[2][96]; /* of the dialler, of the listener: the first */
    bool is_up, was_down;
} talk;

/* One conversation, through the relay, of messages that tell their number; it ends when the connection does. */
static talk converse(transport *d)
{
    talk t = {0};
    transport_event event;
    for (const uint64_t until = now_ms() + 3000; now_ms() < until && r.fd[0] >= 0;) {
        pass_on();
        while (next(d, &event, 0)) {
            if (event.kind == TRANSPORT_UP) t.is_up = true;
            if (event.kind == TRANSPORT_REFUSED && t.note[0][0] == '\0')
                memcpy(t.note[0], event.note, sizeof event.note);
        }
        while (t.is_up && t.said < MESSAGES) {
            buf *body = buf_new(BODY_BYTES);
            memset(body->data, 'a' + t.said, BODY_BYTES);
            const char head[] = {'n', (char)t.said};
            if (transport_send(d, 0, head, 2, body) != PEN_OK) {
                buf_release(body);
                break;
            }
            t.said++;
        }
        while (transport_recv(l, &event) == PEN_OK) {
            t.was_down |= event.kind == TRANSPORT_DOWN;
            if (event.kind == TRANSPORT_REFUSED && t.n_refused++ == 0)
                memcpy(t.note[1], event.note, sizeof event.note);
            if (event.kind != TRANSPORT_MESSAGE) continue;
            const uint8_t *body = event.body->data;
            assert_true(event.head_size == 2 && ((const char *)event.head)[1] == t.heard);
            for (size_t i = 0; i < BODY_BYTES; i++) assert_int_equal(body[i], 'a' + t.heard);
            buf_release(event.body);
            t.heard++;
        }
        if (t.heard == MESSAGES) break;
    }
    return t;
}

/* The listener has said all that it has to say. */
static void settle(talk *t)
{
    transport_event event;
    end_relay();
    while (next(l, &event, t->heard > 0 && !t->was_down ? 1000 : 20)) {
        t->was_down |= event.kind == TRANSPORT_DOWN;
        if (event.kind == TRANSPORT_REFUSED && t->n_refused++ == 0)
            memcpy(t->note[1], event.note, sizeof event.note);
        assert_true(event.kind != TRANSPORT_MESSAGE);
    }
}

static size_t n_records(int side, size_t at[], size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i + 5 <= r.size[side] && n < max; n++) {
        at[n] = i;
        i += 5 + ((size_t)r.bytes[side][i + 3] << 8 | r.bytes[side][i + 4]);
    }
    return n;
}

static uint8_t recorded[SIDE_BYTES];
static size_t recorded_bytes, records[2][64], n_of[2];

static void test_tls_members_talk_through_a_relay(void **state)
{
    (void)state;
    transport *d = dial_through_relay();
    talk t       = converse(d);
    assert_int_equal(t.heard, MESSAGES);
    for (int i = 0; i < 2; i++) n_of[i] = n_records(i, records[i], 64);
    memcpy(recorded, r.bytes[0], recorded_bytes = r.passed[0]);
    assert_true(memmem(r.bytes[0], r.size[0], "aaaa", 4) == NULL);
    settle(&t);
    transport_close(d, 0);
    close_relay();
}

/* Of the dialler's records the first two are of the handshake, of the listener's the first three. */
static void check_flip(const talk *t, int side, size_t record)
{
    static const char *const no_secret = "the other end does not know this job's secret";
    if (side == 0) {
        assert_true(t->heard < MESSAGES);
        assert_string_equal(t->note[1], record < 2 ? no_key : forged);
        assert_string_equal(t->note[0], record < 1 ? no_secret : told);
    } else if (record < 3) {
        assert_int_equal(t->heard, 0);
        assert_string_equal(t->note[1], no_key);
        assert_true(t->note[0][0] != '\0');
    } else {
        assert_string_equal(t->note[0], forged);
    }
}

static void test_tls_bit_flipped_in_any_record_is_found_and_named(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < n_of[side]; i++)
            for (size_t part = 0; part < 2; part++) { /* in its header, in its text */
                transport *d = dial_through_relay();
                r.flip[side] = records[side][i] + (part == 0 ? 1 : 20);
                talk t       = converse(d);
                settle(&t);
                check_flip(&t, side, i);
                transport_close(d, 0);
                close_relay();
            }
    check_serves();
}

static void test_tls_truncated_handshake_is_none(void **state)
{
    (void)state;
    const size_t handshake = records[0][n_of[0] > 3 ? 3 : n_of[0] - 1];
    for (size_t stop = 1; stop < handshake; stop += stop < 64 ? 1 : 13) {
        transport *d = dial_through_relay();
        r.stop       = stop;
        talk t       = converse(d);
        settle(&t);
        assert_int_equal(t.heard, 0);
        assert_false(t.was_down);
        transport_close(d, 0);
        close_relay();
    }
    check_serves();
}

static void test_tls_replayed_conversation_says_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const int fd = connect_to_listener();
        note[0]      = '\0';
        assert_true(send(fd, recorded, recorded_bytes, MSG_NOSIGNAL) > 0);
        assert_string_equal(refusal(2000), no_key);
        close(fd);
    }
    check_serves();
}

/* ---- records that break the rules ---------------------------------------------------------------- */
static void test_tls_record_that_breaks_the_rules_ends_its_connection(void **state)
{
    (void)state;
    static const struct {
        uint8_t header[5];
        const char *what;
    } bad[] = {
        {{23, 3, 3, 0x40, 0x01}, "2^14 + 1 bytes of application data"},
        {{23, 3, 3, 0x41, 0x01}, "more than a record may have"},
        {{23, 3, 3, 0xff, 0xff}, "most of all"},
        {{23, 3, 3, 0x00, 0x00}, "nothing"},
        {{22, 3, 3, 0x00, 0x40}, "a handshake in clear text: renegotiation"},
        {{20, 3, 3, 0x00, 0x01}, "a change of ciphers"},
        {{99, 3, 3, 0x00, 0x40}, "no type"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        static uint8_t text[(1 << 16) + 5];
        plain_peer p;
        const uint32_t peer = join(&p);
        memcpy(text, bad[i].header, 5);
        assert_true(send(p.fd, text, 5 + ((size_t)text[3] << 8 | text[4]), MSG_NOSIGNAL) > 0);
        transport_event event = await(l, TRANSPORT_REFUSED);
        if (event.peer != peer || strcmp(event.note, forged) != 0)
            fail_msg("%s: peer %u, %s", bad[i].what, event.peer, event.note);
        assert_int_equal(await(l, TRANSPORT_DOWN).peer, peer);
        close_peer(&p);
    }
    check_serves();
}

static void test_tls_end_that_received_something_else_says_so(void **state)
{
    (void)state;
    plain_peer p;
    join(&p);
    SSL_set_fd(p.ssl, p.fd);
    uint8_t junk[64] = {23, 3, 3, 0, 59}, sink[256];
    BIO *memory      = BIO_new_mem_buf(junk, sizeof junk);
    SSL_set0_rbio(p.ssl, memory);
    assert_true(SSL_read(p.ssl, sink, sizeof sink) <= 0); /* it sends an alert */
    assert_string_equal(await(l, TRANSPORT_REFUSED).note, told);
    await(l, TRANSPORT_DOWN);
    close_peer(&p);
}

/* ---- floods -------------------------------------------------------------------------------------- */
enum { FLOOD = 1000 };

static void flood(const void *bytes, size_t size)
{
    static int fd[FLOOD];
    transport_event event;
    check_serves();
    const long before = resident_kib();
    long most         = 0;
    for (int i = 0; i < FLOOD; i++) {
        fd[i] = connect_to_listener();
        if (size > 0) (void)!send(fd[i], bytes, size, MSG_NOSIGNAL);
        while (next(l, &event, 0)) assert_int_equal(event.kind, TRANSPORT_REFUSED);
        const long now = resident_kib() - before;
        if (now > most) most = now;
    }
    check_serves();
    for (int i = 0; i < FLOOD; i++) close(fd[i]);
    while (next(l, &event, 200)) assert_int_equal(event.kind, TRANSPORT_REFUSED);
    if (most > (10 << 10) * MEMORY_FACTOR) fail_msg("%ld KiB for %d connections", most, FLOOD);
}

static void test_tls_flood_of_silent_connections_costs_little(void **state)
{
    (void)state;
    flood(NULL, 0);
}

static void test_tls_flood_of_partial_handshakes_costs_little(void **state)
{
    (void)state;
    flood(recorded, 200);
}

/* Their proofs hold, as they are a member's own words. */
static void test_tls_flood_of_replayed_first_messages_costs_little(void **state)
{
    (void)state;
    flood(recorded, records[0][1]);
}

/* The kernel calls such a socket readable as long as it is open. */
static void test_tls_half_a_message_and_an_end_is_closed_at_once(void **state)
{
    (void)state;
    const int fd = connect_to_listener();
    transport_event event;
    assert_int_equal(send(fd, recorded, 20, MSG_NOSIGNAL), 20);
    next(l, &event, 50);
    shutdown(fd, SHUT_WR);
    note[0] = '\0';
    assert_string_equal(refusal(500), "a connection that ended without a message");
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls_connection_without_memory_to_send_ends_and_is_made_again),
        cmocka_unit_test(test_tls_openssl_with_the_members_key_is_that_member),
        cmocka_unit_test(test_tls_stranger_is_refused_whatever_it_names_itself),
        cmocka_unit_test(test_tls_other_versions_groups_and_ciphers_are_refused),
        cmocka_unit_test(test_tls_early_data_is_not_accepted),
        cmocka_unit_test(test_tls_keys_change_in_time_on_both_sides),
        cmocka_unit_test(test_tls_flood_of_key_updates_costs_little_memory),
        cmocka_unit_test(test_tls_dialler_refuses_a_listener_without_the_key),
        cmocka_unit_test(test_tls_dialler_trusts_no_certificate),
        cmocka_unit_test(test_tls_end_of_zeromq_is_told_from_a_stranger),
        cmocka_unit_test(test_tls_members_talk_through_a_relay),
        cmocka_unit_test(test_tls_bit_flipped_in_any_record_is_found_and_named),
        cmocka_unit_test(test_tls_truncated_handshake_is_none),
        cmocka_unit_test(test_tls_replayed_conversation_says_nothing),
        cmocka_unit_test(test_tls_record_that_breaks_the_rules_ends_its_connection),
        cmocka_unit_test(test_tls_end_that_received_something_else_says_so),
        cmocka_unit_test(test_tls_flood_of_silent_connections_costs_little),
        cmocka_unit_test(test_tls_flood_of_partial_handshakes_costs_little),
        cmocka_unit_test(test_tls_flood_of_replayed_first_messages_costs_little),
        cmocka_unit_test(test_tls_half_a_message_and_an_end_is_closed_at_once),
    };
    void *none = NULL;
    if (make_secrets(&none) != 0 || open_job(&none) != 0) return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_job(&none);
    remove_secrets(&none);
    return failed;
}
