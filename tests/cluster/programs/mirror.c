/* mirror.c - a stranger without a token lets members answer each other's challenges. It implements
 * ZMTP itself, on plain sockets.
 *
 *   mirror reflect PORT...    challenges each port, and claims to be a member with the port's own messages: the
 *                             tag of its answer, its whole answer, and the tag that it makes for its own challenge
 *                             on a second connection
 *   mirror relay AT PORT      listens at AT and relays every message to PORT and back; PORT 0: echoes each
 * relay runs until SIGTERM. Prints one line of JSON at the end: connections, and received messages
 * of proofs, by kind.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    KINDS           = 5, /* messages of a proof: ask, answer, claim, welcome; 0: anything else */
    NONCE           = 32,
    PREFACE         = 16,
    WHO             = 8,
    SHORT_FRAME     = 255,
    FRAME_MORE_LONG = 3,
    COMMAND         = 4,
    PAUSE_MS        = 20
};
enum { ASK = 1, ANSWER, CLAIM, WELCOME };

typedef struct {
    unsigned char bytes[SHORT_FRAME];
    size_t size;
} message;

static unsigned long connections, heard[KINDS];
static volatile sig_atomic_t is_over;

/* ---- ZMTP: greeting, READY, short frames ------------------------------------------------------- */

static bool send_all(int fd, const void *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

static bool recv_all(int fd, void *bytes, size_t n)
{
    return n == 0 || recv(fd, bytes, n, MSG_WAITALL) == (ssize_t)n;
}

static bool say(int fd, const message *m)
{
    const unsigned char prefix[2] = {0, (unsigned char)m->size};
    return send_all(fd, prefix, sizeof prefix) && send_all(fd, m->bytes, m->size);
}

static unsigned kind_of(const message *m)
{
    const bool is_proof = m->size > PREFACE && memcmp(m->bytes, "\0PenProv", WHO) == 0;
    return is_proof && m->bytes[9] < KINDS ? m->bytes[9] : 0;
}

/* The next message; commands are skipped.  False: the connection has ended. */
static bool hear(int fd, message *m)
{
    unsigned char prefix[2];
    do {
        if (!recv_all(fd, prefix, sizeof prefix) || (prefix[0] & FRAME_MORE_LONG) != 0)
            return false;
        m->size = prefix[1];
        if (!recv_all(fd, m->bytes, m->size)) return false;
    } while (prefix[0] == COMMAND);
    if (m->size > 0) heard[kind_of(m)]++;
    return true;
}

static bool shake_hands(int fd, bool listens)
{
    static const unsigned char greeting[64] = "\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL",
                               dealer[]     = "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06"
                                              "DEALER\x08Identity\0\0\0\0",
                               router[]     = "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06"
                                              "ROUTER\x08Identity\0\0\0\0";
    static const message word               = {.size = 0};
    unsigned char theirs[64], prefix[2], ready[SHORT_FRAME];
    const struct timeval patience = {.tv_sec = 2};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (!send_all(fd, greeting, sizeof greeting) || !recv_all(fd, theirs, sizeof theirs))
        return false;
    if (!send_all(fd, listens ? router : dealer, sizeof dealer - 1)) return false;
    if (!recv_all(fd, prefix, sizeof prefix) || prefix[0] != COMMAND) return false;
    if (!recv_all(fd, ready, prefix[1])) return false;
    connections++;
    return listens || say(fd, &word);
}

static struct sockaddr_in loopback(const char *port)
{
    return (struct sockaddr_in){.sin_family      = AF_INET,
                                .sin_port        = htons((uint16_t)atoi(port)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int dial(const char *port)
{
    const struct sockaddr_in to = loopback(port);
    const int fd                = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 && shake_hands(fd, false))
        return fd;
    close(fd);
    return -1;
}

/* ---- reflecting ------------------------------------------------------------------------------- */

/* Starts a message of a proof: only its preface. */
static message begin(unsigned kind)
{
    message m  = {.bytes = "\0PenProv\1", .size = PREFACE};
    m.bytes[9] = (unsigned char)kind;
    return m;
}

static void add(message *m, const void *bytes, size_t n)
{
    memcpy(m->bytes + m->size, bytes, n);
    m->size += n;
}

/* Asks with that nonce. Returns a descriptor, and the answer; -1: no answer. */
static int ask(const char *port, const unsigned char *nonce, message *answer)
{
    message m    = begin(ASK);
    const int fd = dial(port);
    add(&m, nonce, NONCE);
    if (fd >= 0 && say(fd, &m) && hear(fd, answer) && kind_of(answer) == ANSWER) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

typedef enum { ITS_TAG, ITS_ANSWER, ITS_TAG_FOR_ITS_CHALLENGE, WAYS } way;

static message claim_of(const char *port, way how, unsigned who, const message *answer)
{
    const unsigned char role[WHO] = {(unsigned char)who};
    message claim                 = begin(CLAIM), other;
    if (how == ITS_ANSWER) return *answer;
    const int fd = how == ITS_TAG ? -1 : ask(port, answer->bytes + PREFACE, &other);
    add(&claim, role, sizeof role);
    add(&claim, (fd < 0 ? answer : &other)->bytes + PREFACE + NONCE, NONCE);
    if (fd >= 0) close(fd);
    return claim;
}

static void reflect(const char *port)
{
    enum { ROLES = 4 };
    unsigned char nonce[NONCE] = {0};
    for (unsigned i = 0; i < ROLES * WAYS; i++) {
        message answer, claim;
        nonce[0]     = (unsigned char)i;
        const int fd = ask(port, nonce, &answer);
        if (fd < 0) continue;
        claim = claim_of(port, (way)(i % WAYS), i / WAYS, &answer);
        if (say(fd, &claim))
            while (hear(fd, &answer)) {}
        close(fd);
    }
}

/* ---- relaying --------------------------------------------------------------------------------- */

static bool pass(int from, int to)
{
    message m;
    return hear(from, &m) && say(to, &m);
}

/* Serves one dialler, until either side closes. */
static void relay(int fd, const char *port)
{
    message word;
    const bool is_echo = strcmp(port, "0") == 0;
    const bool is_up   = shake_hands(fd, true) && hear(fd, &word);
    const int on       = !is_up ? -1 : is_echo ? fd : dial(port);
    struct pollfd at[] = {{fd, POLLIN, 0}, {is_echo ? -1 : on, POLLIN, 0}};
    for (bool goes_on = on >= 0; goes_on && !is_over;) {
        if (poll(at, 2, PAUSE_MS) <= 0) continue;
        if (at[0].revents != 0) goes_on = pass(fd, on);
        if (goes_on && at[1].revents != 0) goes_on = pass(on, fd);
    }
    if (on >= 0 && on != fd) close(on);
}

static int listen_at(const char *port)
{
    const struct sockaddr_in at = loopback(port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (const struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 16) == 0) return fd;
    perror("mirror: cannot listen");
    exit(3);
}

static void end(int signal)
{
    (void)signal;
    is_over = 1;
}

int main(int argc, char **argv)
{
    if (argc < 3) return fprintf(stderr, "mirror reflect PORT... | relay AT PORT\n"), 2;
    signal(SIGTERM, end);
    if (strcmp(argv[1], "reflect") == 0) {
        for (int i = 2; i < argc; i++) reflect(argv[i]);
    } else if (argc == 4) {
        const int door  = listen_at(argv[2]);
        struct pollfd p = {door, POLLIN, 0};
        while (!is_over) {
            if (poll(&p, 1, PAUSE_MS) <= 0) continue;
            const int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
            if (fd < 0) continue;
            relay(fd, argv[3]);
            close(fd);
        }
    }
    printf("{\"connections\": %lu, \"asks\": %lu, \"answers\": %lu, \"claims\": %lu, \"welcomes\": "
           "%lu, \"others\": %lu}\n",
           connections, heard[ASK], heard[ANSWER], heard[CLAIM], heard[WELCOME], heard[0]);
    return 0;
}
