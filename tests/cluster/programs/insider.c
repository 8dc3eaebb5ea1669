/* insider.c - a process of the job's user, or one with its secret, takes a foreign role, and lies.
 *   insider record FOLDER              writes the heads seen on loopback to FOLDER, one a file,
 *                                      until it is ended; needs root
 *   insider lie SECONDS local|SECRET_FILE FOLDER PID[,PID...] KIND:PORT...
 * It implements the protocol itself: it builds heads and memory references, and uses libraries only for
 * ZeroMQ's sockets, TLS, the way to local sockets, and the job's keys. With a secret it uses keys on each port
 * that belong to no live member: a tool's, worker 7's and server 5's. KIND is scheduler, server or worker.
 *   heads    each recorded head and each sample in FOLDER: unchanged; each field 0, 1, the largest, one more,
 *            one less; and with its name, list or message empty, torn and repeated; checksum and lengths are right
 *   memory   PROBE, MAPPED, LENT, RETURN: each field changed like this, about existing memory (found as root)
 * Prints one line of JSON: admitted connections, messages, and answers that revealed a memory
 * number.
 */
#include "common/net/auth/secret.h"
#include "common/net/local_socket.h"
#include "tests/support/places.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum {
    HEADS_MAX   = 256,
    HEAD_MAX    = 4096,
    PREFIX      = 20,
    A_KIND      = 3, /* recorded of each kind */
    BURST       = 40,
    ETH_P_IP_IS = 0x0800
};

typedef struct {
    unsigned char bytes[HEAD_MAX];
    size_t size;
} head;

static head heads[HEADS_MAX];
static int n_heads;
static struct {
    unsigned long connections, messages, refused, numbers, turns;
} count;

/* ---- bytes ------------------------------------------------------------------------------------ */
static uint32_t crc32c(const unsigned char *at, size_t n)
{
    uint32_t crc = UINT32_MAX;
    while (n-- > 0) {
        crc ^= *at++;
        for (int i = 0; i < 8; i++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static void put(unsigned char *to, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) to[i] = (unsigned char)(value >> (8 * i));
}

static uint64_t get(const unsigned char *from, int n)
{
    uint64_t value = 0;
    for (int i = 0; i < n; i++) value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static bool is_head(const unsigned char *at, size_t n)
{
    if (n < PREFIX || memcmp(at, "PNSK", 4) != 0) return false;
    const uint64_t body = get(at + 8, 8);
    return body <= n - PREFIX && body + PREFIX <= HEAD_MAX &&
           get(at + 16, 4) == crc32c(at + PREFIX, body);
}

/* ---- recording -------------------------------------------------------------------------------- */
static void keep(const char *folder, const char *name, const unsigned char *at, size_t n)
{
    char path[512];
    for (int i = 0; i < A_KIND; i++) {
        snprintf(path, sizeof path, "%s/%s-%d", folder, name, i);
        FILE *file = fopen(path, "wxe");
        if (file == NULL) continue;
        fwrite(at, 1, n, file);
        fclose(file);
        return;
    }
}

/* Heads are found anywhere in a packet, so its framing need not be parsed. Most begin with their
 * kind. */
static void look_for_heads(const char *folder, const unsigned char *at, size_t n)
{
    char name[64];
    for (size_t i = 0; i + 16 <= n; i++) {
        if (is_head(at + i, n - i)) {
            snprintf(name, sizeof name, "plane%u-%02x%02x", at[i + 6], at[i + PREFIX],
                     at[i + PREFIX + 1]);
            keep(folder, name, at + i, PREFIX + get(at + i + 8, 8));
        }
    }
}

static int record(const char *folder)
{
    static unsigned char packet[1 << 17];
    const int fd   = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP_IS)),
              much = 32 << 20;
    if (fd < 0) return perror("insider: cannot listen to loopback"), 3;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &much, sizeof much);
    puts("listens");
    fflush(stdout);
    for (;;) {
        const ssize_t n = recv(fd, packet, sizeof packet, 0);
        if (n < 40) continue;
        const size_t ip = 4 * (size_t)(packet[0] & 15), tcp = 4 * (size_t)(packet[ip + 12] >> 4);
        if (packet[9] == IPPROTO_TCP && (size_t)n > ip + tcp)
            look_for_heads(folder, packet + ip + tcp, (size_t)n - ip - tcp);
    }
}

static void read_heads(const char *folder)
{
    DIR *all = opendir(folder);
    struct dirent *one;
    char path[600];
    while (all != NULL && (one = readdir(all)) != NULL && n_heads < HEADS_MAX) {
        struct stat is;
        snprintf(path, sizeof path, "%s/%s", folder, one->d_name);
        if (one->d_name[0] == '.' || stat(path, &is) != 0) continue;
        if (S_ISDIR(is.st_mode)) read_heads(path);
        FILE *file = S_ISREG(is.st_mode) ? fopen(path, "re") : NULL;
        if (file == NULL) continue;
        head *h = &heads[n_heads];
        h->size = fread(h->bytes, 1, HEAD_MAX, file);
        fclose(file);
        n_heads += h->size > 0 && h->size < HEAD_MAX;
    }
    if (all != NULL) closedir(all);
}

/* ---- lies in heads ---------------------------------------------------------------------------- */
enum { LIES = 7 };

typedef struct {
    unsigned char *to;
    size_t size;
    int field, wanted, lie;
} forger;

static bool read_varint(const unsigned char **at, const unsigned char *end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        const unsigned char byte = *(*at)++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

static void write_bytes(forger *f, const void *from, size_t n)
{
    if (f->size + n > 2 * HEAD_MAX) n = 2 * HEAD_MAX - f->size;
    memcpy(f->to + f->size, from, n);
    f->size += n;
}

static void write_varint(forger *f, uint64_t value)
{
    unsigned char byte[10];
    int n = 0;
    do byte[n++] = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
    while ((value >>= 7) > 0);
    write_bytes(f, byte, (size_t)n);
}

static uint64_t lie_about(uint64_t value, int lie)
{
    const uint64_t lies[LIES] = {0,         1,         UINT64_MAX,       INT32_MAX,
                                 value + 1, value - 1, (uint64_t)1 << 40};
    return lies[lie];
}

static bool reads_as_message(const unsigned char *at, const unsigned char *end)
{
    uint64_t tag, value;
    while (at < end) {
        if (!read_varint(&at, end, &tag) || tag >> 3 == 0 || tag >> 3 > 64) return false;
        switch (tag & 7) {
        case 0:
            if (!read_varint(&at, end, &value)) return false;
            break;
        case 1: at += 8; break;
        case 5: at += 4; break;
        case 2:
            if (!read_varint(&at, end, &value) || value > (uint64_t)(end - at)) return false;
            at += value;
            break;
        default: return false;
        }
        if (at > end) return false;
    }
    return true;
}

static void forge(forger *f, const unsigned char *at, const unsigned char *end);

static void forge_text(forger *f, const unsigned char *at, size_t n)
{
    static unsigned char many[2048];
    unsigned char inner[2 * HEAD_MAX];
    forger in = {.to = inner, .field = f->field, .wanted = f->wanted, .lie = f->lie};
    if (f->field++ == f->wanted) {
        const size_t lengths[LIES] = {0, 1, sizeof many, n / 2, n, n > 0 ? n - 1 : 0, 300};
        memset(many, f->lie == 4 ? 0xff : 'x', sizeof many);
        write_varint(f, lengths[f->lie]);
        write_bytes(f, f->lie == 3 || f->lie == 5 ? at : many, lengths[f->lie]);
        return;
    }
    in.field = f->field;
    if (n > 1 && reads_as_message(at, at + n)) {
        forge(&in, at, at + n);
        f->field = in.field;
        write_varint(f, in.size);
        write_bytes(f, inner, in.size);
        return;
    }
    write_varint(f, n);
    write_bytes(f, at, n);
}

/* Copies the message except for the wanted field. Counts fields as it goes. */
static void forge(forger *f, const unsigned char *at, const unsigned char *end)
{
    uint64_t tag, value;
    while (at < end && read_varint(&at, end, &tag)) {
        write_varint(f, tag);
        if ((tag & 7) == 0) {
            if (!read_varint(&at, end, &value)) return;
            write_varint(f, f->field == f->wanted ? lie_about(value, f->lie) : value);
            f->field++;
        } else if ((tag & 7) == 2) {
            if (!read_varint(&at, end, &value) || value > (uint64_t)(end - at)) return;
            forge_text(f, at, value);
            at += value;
        } else {
            const int n = (tag & 7) == 1 ? 8 : 4;
            unsigned char bytes[8];
            if (end - at < n) return;
            value = get(at, n);
            put(bytes, f->field == f->wanted ? lie_about(value, f->lie) : value, n);
            write_bytes(f, bytes, (size_t)n);
            f->field++;
            at += n;
        }
    }
}

/* Lie number `turn` about a head; the lies repeat in a cycle. */
static size_t lie_in(const head *h, unsigned turn, unsigned char out[PREFIX + 2 * HEAD_MAX])
{
    memcpy(out, h->bytes, h->size);
    if (!is_head(h->bytes, h->size) || turn % 16 == 0) return h->size;
    forger count_only = {.to = out + PREFIX, .wanted = -1};
    forge(&count_only, h->bytes + PREFIX, h->bytes + h->size);
    const int fields = count_only.field > 0 ? count_only.field : 1;
    forger f         = {
                .to = out + PREFIX, .wanted = (int)(turn / LIES) % fields, .lie = (int)(turn % LIES)};
    forge(&f, h->bytes + PREFIX, h->bytes + h->size);
    put(out + 8, f.size, 8);
    put(out + 16, crc32c(out + PREFIX, f.size), 4);
    return PREFIX + f.size;
}

/* ---- lies about memory ------------------------------------------------------------------------ */
enum { PROBE = 1, MAPPED, LENT, RETURN, MEMORY_FIELDS = 9 };

static size_t lie_about_memory(unsigned turn, unsigned char out[PREFIX + 2 * HEAD_MAX])
{
    const unsigned kind = PROBE + turn % 4, field = turn / 4 % MEMORY_FIELDS,
                   lie = turn / (4 * MEMORY_FIELDS) % LIES;
    place p = n_places > 0 ? places[turn % (unsigned)n_places] : (place){1, 4096, 0, 0, 1, 3};
    uint64_t number[2]       = {turn, 65536}; /* shown, secret, or token and bytes */
    uint64_t *const wide[7]  = {&p.id, &p.size, &p.offset, &p.closed, &number[0], &number[1], NULL};
    int32_t *const narrow[2] = {&p.pid, &p.fd};
    if (field < 6) *wide[field] = lie_about(*wide[field], (int)lie);
    if (field == 6 || field == 7) {
        const int32_t value = *narrow[field - 6];
        *narrow[field - 6]  = (int32_t)lie_about((uint64_t)(int64_t)value, (int)lie);
    }
    if (field == 8) p.pid = (int32_t)getpid();
    memcpy(out, "\0PenLend", 8);
    put(out + 8, kind, 4);
    put(out + 12, kind == RETURN ? 2 : 0, 4);
    size_t n = 16;
    put(out + n, number[0], 8);
    n += 8;
    if (kind == LENT || kind == RETURN) put(out + n, number[1], 8), n += 8;
    if (kind == RETURN) return n;
    memcpy(out + n, &p, sizeof p);
    n += sizeof p;
    if (kind != LENT) return n;
    const head *inner = &heads[turn % (unsigned)n_heads];
    memcpy(out + n, inner->bytes, inner->size);
    return n + inner->size;
}

/* ---- connections ------------------------------------------------------------------------------ */
enum { SCHEDULER, SERVER, WORKER, TOOL, LISTENS = 1, DIALS = 2, SHARES = 3 };
typedef struct {
    int role, port;
} target;

static void *context;
static secret job;
static bool has_keys;

static void set_int(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof value);
}

static int recv_for(void *socket, void *bytes, size_t size, int ms)
{
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    return zmq_poll(&item, 1, ms) > 0 ? zmq_recv(socket, bytes, size, ZMQ_DONTWAIT) : -1;
}

static void *dial(const target *to, unsigned who, unsigned index)
{
    char address[64 + LOCAL_SOCKET_PATH_BYTES], path[LOCAL_SOCKET_PATH_BYTES];
    unsigned char own[32], own_public[32], theirs[32], unused[32];
    void *socket = zmq_socket(context, ZMQ_DEALER);
    set_int(socket, ZMQ_LINGER, 50);
    set_int(socket, ZMQ_PROBE_ROUTER, 1);
    set_int(socket, ZMQ_SNDTIMEO, 500);
    if (has_keys) {
        secret_derive(&job, DIALS + 16 * who, index, own, own_public);
        secret_derive(&job, LISTENS + 16 * (unsigned)to->role, 0, unused, theirs);
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, own, 32);
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, own_public, 32);
        zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, theirs, 32);
    }
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", to->port);
    if (!has_keys && local_socket_find(address, path))
        snprintf(address, sizeof address, "ipc://%s", path);
    set_int(socket, ZMQ_IMMEDIATE, 1); /* accepts messages only once admitted */
    zmq_pollitem_t room = {.socket = socket, .events = ZMQ_POLLOUT};
    if (zmq_connect(socket, address) == 0 && zmq_poll(&room, 1, 1000) > 0) {
        count.connections++;
        return socket;
    }
    count.refused++;
    zmq_close(socket);
    return NULL;
}

/* Counts answers that reveal a memory number: MAPPED with a number other than 0. */
static void listen_and_close(void *socket)
{
    unsigned char answer[256];
    for (int n; (n = recv_for(socket, answer, sizeof answer, 5)) > 0;)
        if (n >= 24 && memcmp(answer, "\0PenLend", 8) == 0 && get(answer + 8, 4) == MAPPED)
            count.numbers += get(answer + 16, 8) != 0;
    zmq_close(socket);
}

/* ---- TLS, with a key that both ends derive ------------------------------------------------------- */
static struct {
    char name[64];
    unsigned char key[32];
} shared;

static int offer_key(SSL *ssl, const EVP_MD *hash, const unsigned char **name, size_t *size,
                     SSL_SESSION **session)
{
    static const unsigned char aes_128_gcm[] = {0x13, 0x01};
    (void)hash;
    *name    = (const unsigned char *)shared.name;
    *size    = strlen(shared.name);
    *session = SSL_SESSION_new();
    return SSL_SESSION_set1_master_key(*session, shared.key, sizeof shared.key) &&
           SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, aes_128_gcm)) &&
           SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
}

/* NULL: refused. */
static SSL *shake_hands(int fd, const target *to, unsigned who, unsigned index)
{
    static SSL_CTX *tls;
    if (tls == NULL) {
        tls = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_psk_use_session_callback(tls, offer_key);
    }
    snprintf(shared.name, sizeof shared.name, "penstock %u %u", who, index);
    secret_subkey(&job, SHARES + 16 * who + 256 * (unsigned)to->role, index, shared.key);
    SSL *ssl = SSL_new(tls);
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) == 1) return ssl;
    SSL_free(ssl);
    return NULL;
}

/* ---- plain sockets: a greeting, then frames of two sizes ----------------------------------------- */
typedef struct {
    int fd;   /* -1: refused */
    SSL *ssl; /* NULL: in clear text, on a socket of this user */
} plain;

static bool put_plainly(const plain *p, const void *bytes, size_t size)
{
    if (p->ssl != NULL) return SSL_write(p->ssl, bytes, (int)size) == (int)size;
    return send(p->fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static bool reach(plain *p, const target *to, unsigned who, unsigned index)
{
    char address[64], path[LOCAL_SOCKET_PATH_BYTES], greeting[8];
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family      = AF_INET,
                             .sin_port        = htons((uint16_t)to->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", to->port);
    if (has_keys) {
        if (connect(p->fd, (struct sockaddr *)&in, sizeof in) != 0) return false;
        p->ssl = shake_hands(p->fd, to, who, index);
        return p->ssl != NULL && put_plainly(p, "PENSOCK\1", 8) &&
               SSL_read(p->ssl, greeting, 8) == 8;
    }
    if (!local_socket_find(address, path) || strlen(path) >= sizeof un.sun_path) return false;
    memcpy(un.sun_path, path, strlen(path) + 1);
    return connect(p->fd, (struct sockaddr *)&un, sizeof un) == 0 &&
           put_plainly(p, "PENSOCK\1", 8) && recv(p->fd, greeting, 8, MSG_WAITALL) == 8;
}

static void close_plain(plain *p)
{
    SSL_free(p->ssl);
    if (p->fd >= 0) close(p->fd);
    *p = (plain){.fd = -1};
}

static plain dial_plainly(const target *to, unsigned who, unsigned index)
{
    const struct timeval limit = {.tv_usec = 500000};
    plain p = {.fd = socket(has_keys ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    setsockopt(p.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(p.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (reach(&p, to, who, index)) {
        count.connections++;
    } else {
        count.refused++;
        close_plain(&p);
    }
    return p;
}

static bool send_plainly(const plain *p, const unsigned char *message, size_t size,
                         size_t body_bytes)
{
    static unsigned char all[16 + PREFIX + 2 * HEAD_MAX + 64];
    const uint64_t body     = body_bytes > 0 ? body_bytes + 1 : 0;
    const uint32_t sizes[2] = {(uint32_t)size, 0};
    memcpy(all, &body, sizeof body);
    memcpy(all + 8, sizes, sizeof sizes);
    memcpy(all + 16, message, size);
    memcpy(all + 16 + size, message, body_bytes);
    return put_plainly(p, all, 16 + size + body_bytes);
}

static void lie_to(const target *to, unsigned turn)
{
    static const struct {
        unsigned who, index;
    } keys[]                  = {{TOOL, 0}, {WORKER, 8}, {SERVER, 6}};
    static const int n_keys[] = {[SCHEDULER] = 3, [SERVER] = 2, [WORKER] = 1};
    static unsigned char message[PREFIX + 2 * HEAD_MAX];
    static unsigned lies[3];
    const unsigned as   = (to->role == SCHEDULER ? 0u : 1u) + turn % (unsigned)n_keys[to->role];
    const bool is_plain = to->role != SCHEDULER;
    plain p             = {.fd = -1};
    if (is_plain) p = dial_plainly(to, keys[as].who, keys[as].index);
    void *socket = is_plain ? NULL : dial(to, keys[as].who, keys[as].index);
    for (int i = 0; (socket != NULL || p.fd >= 0) && i < BURST; i++) {
        const unsigned k  = lies[to->role]++;
        const bool is_mem = k % 4 == 3;
        const head *h     = &heads[k % (unsigned)n_heads];
        const size_t size =
            is_mem ? lie_about_memory(k / 4, message) : lie_in(h, k / (unsigned)n_heads, message);
        const bool has_body = !is_mem && k % 8 == 1;
        if (size == 0) break;
        if (is_plain && !send_plainly(&p, message, size, !has_body ? 0 : size < 64 ? size : 64))
            break;
        if (!is_plain && zmq_send(socket, message, size, has_body ? ZMQ_SNDMORE : 0) < 0) break;
        if (!is_plain && has_body) zmq_send(socket, message, size < 64 ? size : 64, 0);
        count.messages++;
    }
    if (socket != NULL) listen_and_close(socket);
    close_plain(&p);
    count.turns++;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static target target_of(char *word)
{
    static const char *const names[] = {"scheduler", "server", "worker"};
    char *port                       = strchr(word, ':');
    target t                         = {.role = WORKER, .port = port != NULL ? atoi(port + 1) : 0};
    for (int i = 0; i < 3; i++)
        if (strncmp(word, names[i], strlen(names[i])) == 0) t.role = i;
    return t;
}

static int lie(int argc, char **argv)
{
    pen_error why;
    const double end = now_s() + atof(argv[2]);
    has_keys         = strcmp(argv[3], "local") != 0;
    read_heads(argv[4]);
    if (n_heads == 0 || (has_keys && secret_read(argv[3], &job, &why) != PEN_OK))
        return fprintf(stderr, "insider: %s\n", n_heads == 0 ? "no heads" : why.text), 2;
    for (char *pid = strtok(argv[5], ","); pid != NULL; pid = strtok(NULL, ","))
        find_places(atoi(pid));
    context = zmq_ctx_new();
    signal(SIGPIPE, SIG_IGN);
    for (unsigned turn = 0; now_s() < end; turn++)
        for (int i = 6; i < argc; i++) {
            const target to = target_of(argv[i]);
            lie_to(&to, turn);
        }
    printf("{\"heads\": %d, \"places\": %d, \"connections\": %lu, \"refused\": %lu, \"messages\": "
           "%lu, "
           "\"numbers\": %lu}\n",
           n_heads, n_places, count.connections, count.refused, count.messages, count.numbers);
    zmq_ctx_term(context);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "record") == 0) return record(argv[2]);
    if (argc > 6 && strcmp(argv[1], "lie") == 0) return lie(argc, argv);
    return fprintf(stderr,
                   "insider record FOLDER\n"
                   "insider lie SECONDS local|SECRET_FILE FOLDER PID[,PID...] KIND:PORT...\n"),
           2;
}
