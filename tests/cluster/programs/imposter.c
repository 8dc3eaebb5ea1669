/* imposter.c - plays strangers who claim to be somebody:  imposter N RECORD|- HOST:PORT...
 * It speaks ZeroMQ's protocol by itself, on plain sockets. To each address it opens N connections of each kind:
 *   first     in clear text, with an id of the form that ZeroMQ gives: the first ones that libzmq gives by itself
 *   next      likewise, those that come after N of them
 *   zero      likewise, from 0 on                  any        likewise, at random
 *   named     an id of another form, of all lengths
 *   curve     the first two words of an encrypted handshake, with keys that nobody owns and an id
 *   reflect   what the other end says, said back to it
 *   replay    what is in the file RECORD, which a dialler sent before, unchanged
 * After the handshake of clear text it sends HELLO as a launcher does, and other messages.
 * Prints one line of JSON: connections, how many of them were not possible, and the messages that it received: frames of
 * any connection that are no words of a handshake.
 *
 *   imposter relay AT HOST:PORT RECORD   passes on what comes at port AT, and keeps what its first diallers send
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FIRST, NEXT, ZERO, ANY, NAMED, CURVE, REFLECT, REPLAY, KINDS };
enum {
    SLOTS       = 64, /* connections at a time */
    VISITS      = 3,  /* of each, before it is closed */
    GREETING    = 64,
    WORDS       = 4096,
    RECORD_MAX  = 1 << 16,
    LIBZMQ_FROM = 0x6b8b4567,
    VISIT_NS    = 50000
};

typedef struct {
    int fd, kind, visits;
    unsigned char heard[WORDS];
    size_t n;
} slot;

static struct {
    unsigned long connections, impossible, messages;
} count;
static slot slots[SLOTS];
static unsigned char record[RECORD_MAX];
static size_t record_size;

/* ---- words ------------------------------------------------------------------------------------ */
static size_t greet(unsigned char *to, const char *mechanism)
{
    memset(to, 0, GREETING);
    to[0]  = 0xff;
    to[8]  = 1;
    to[9]  = 0x7f;
    to[10] = 3;
    memcpy(to + 12, mechanism, strlen(mechanism));
    return GREETING;
}

static size_t property(unsigned char *to, const char *name, const void *value, size_t size)
{
    const size_t n = strlen(name);
    to[0]          = (unsigned char)n;
    memcpy(to + 1, name, n);
    memcpy(to + 1 + n, (unsigned char[]){0, 0, 0, (unsigned char)size}, 4);
    memcpy(to + 5 + n, value, size);
    return 5 + n + size;
}

static size_t id_of(int kind, unsigned long turn, unsigned long n, unsigned char id[255])
{
    uint32_t number = htonl((uint32_t)(kind == FIRST  ? LIBZMQ_FROM + turn
                                       : kind == NEXT ? LIBZMQ_FROM + n + turn
                                       : kind == ZERO ? turn
                                                      : (unsigned long)rand() * 2654435761u));
    if (kind == NAMED) {
        memset(id, 'a' + (int)(turn % 26), 255);
        return 1 + turn % 255;
    }
    id[0] = 0;
    memcpy(id + 1, &number, sizeof number);
    return 5;
}

/* A whole handshake in clear text, an empty message, and two of the job's kind. */
static size_t speak(unsigned char *to, const unsigned char *id, size_t id_size)
{
    static const unsigned char hello[] = "PNSK\1\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0";
    size_t n = greet(to, "NULL"), at = n + 2;
    memcpy(to + at, "\5READY", 6);
    at += 6;
    at += property(to + at, "Socket-Type", "DEALER", 6);
    at += property(to + at, "Identity", id, id_size);
    if (at - n - 2 > 255) { /* a long command */
        memmove(to + n + 9, to + n + 2, at - n - 2);
        memset(to + n, 0, 9);
        to[n]     = 6;
        to[n + 7] = (unsigned char)((at - n - 2) >> 8);
        to[n + 8] = (unsigned char)(at - n - 2);
        at += 7;
    } else {
        to[n]     = 4;
        to[n + 1] = (unsigned char)(at - n - 2);
    }
    memcpy(to + at, "\0\0", 2);
    at += 2;
    for (int i = 0; i < 2; i++) {
        to[at]     = 0;
        to[at + 1] = sizeof hello - 1;
        memcpy(to + at + 2, hello, sizeof hello - 1);
        at += 2 + sizeof hello - 1;
    }
    return at;
}

static size_t speak_curve(unsigned char *to)
{
    size_t n = greet(to, "CURVE");
    memcpy(to + n, "\x04\xc8\x05HELLO\1\0", 10);
    for (int i = 10; i < 202; i++) to[n + (size_t)i] = i < 82 ? 0 : (unsigned char)rand();
    n += 202;
    memcpy(to + n, "\x06\0\0\0\0\0\0\1\x01\x08INITIATE", 18);
    for (int i = 18; i < 9 + 257; i++) to[n + (size_t)i] = (unsigned char)rand();
    return n + 9 + 257;
}

/* Frames that are no commands, after the greeting; counted once the connection is over. */
static unsigned long messages_in(const slot *s)
{
    unsigned long found = 0;
    for (size_t at = GREETING; at + 2 <= s->n;) {
        const bool is_long = (s->heard[at] & 2) != 0;
        size_t size        = s->heard[at + 1];
        if (is_long && at + 9 > s->n) break;
        if (is_long) size = (size_t)s->heard[at + 7] << 8 | s->heard[at + 8];
        found += (s->heard[at] & 4) == 0;
        at += (is_long ? 9 : 2) + size;
    }
    return found;
}

/* ---- connections ------------------------------------------------------------------------------ */
static bool parse(char *word, struct sockaddr_in *to)
{
    char *colon = strrchr(word, ':');
    if (colon == NULL) return false;
    *colon = '\0';
    *to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(colon + 1))};
    return inet_pton(AF_INET, word, &to->sin_addr) == 1;
}

static int dial(const struct sockaddr_in *to)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)to, sizeof *to) == 0) {
        fcntl(fd, F_SETFL, O_NONBLOCK);
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

static void leave(slot *s)
{
    if (s->fd < 0) return;
    close(s->fd);
    count.messages += messages_in(s);
    s->fd = -1;
}

static void visit(slot *s)
{
    if (s->fd < 0) return;
    const ssize_t got = recv(s->fd, s->heard + s->n, sizeof s->heard - s->n, 0);
    if (got > 0 && s->kind == REFLECT)
        (void)!send(s->fd, s->heard + s->n, (size_t)got, MSG_NOSIGNAL);
    if (got > 0) s->n += (size_t)got;
    if (++s->visits >= VISITS || got == 0) leave(s);
}

static void begin(slot *s, const struct sockaddr_in *to, int kind, unsigned long turn,
                  unsigned long n)
{
    unsigned char words[WORDS], id[255];
    while (s->fd >= 0) visit(s);
    *s = (slot){.fd = dial(to), .kind = kind};
    count.connections++;
    if (s->fd < 0) {
        count.impossible++;
        return;
    }
    const size_t id_size = id_of(kind, turn, n, id);
    const size_t size    = kind == CURVE     ? speak_curve(words)
                           : kind == REFLECT ? greet(words, "CURVE")
                           : kind == REPLAY  ? 0
                                             : speak(words, id, id_size);
    if (kind == REPLAY)
        (void)!send(s->fd, record, record_size, MSG_NOSIGNAL);
    else
        (void)!send(s->fd, words, size, MSG_NOSIGNAL);
}

static int play(int argc, char **argv)
{
    const unsigned long n       = strtoul(argv[1], NULL, 10);
    const struct timespec pause = {.tv_nsec = VISIT_NS};
    FILE *file                  = strcmp(argv[2], "-") != 0 ? fopen(argv[2], "re") : NULL;
    if (file != NULL) record_size = fread(record, 1, sizeof record, file);
    if (file != NULL) fclose(file);
    for (int i = 0; i < SLOTS; i++) slots[i].fd = -1;
    srand((unsigned)time(NULL));
    for (int i = 3; i < argc; i++) {
        struct sockaddr_in to;
        if (!parse(argv[i], &to)) return fprintf(stderr, "imposter: HOST:PORT?\n"), 2;
        for (int kind = 0; kind < KINDS; kind++) {
            if (kind == REPLAY && record_size == 0) continue;
            for (unsigned long turn = 0; turn < n; turn++) {
                begin(&slots[turn % SLOTS], &to, kind, turn, n);
                visit(&slots[(turn + SLOTS / 2) % SLOTS]);
                nanosleep(&pause, NULL);
            }
        }
    }
    for (int i = 0; i < SLOTS; i++) leave(&slots[i]);
    printf("{\"connections\": %lu, \"impossible\": %lu, \"messages\": %lu}\n", count.connections,
           count.impossible, count.messages);
    return 0;
}

/* ---- recording -------------------------------------------------------------------------------- */
static void pass_on(int from, int to, FILE *keep)
{
    unsigned char bytes[4096];
    struct pollfd fds[2] = {{.fd = from, .events = POLLIN}, {.fd = to, .events = POLLIN}};
    while (poll(fds, 2, 5000) > 0)
        for (int i = 0; i < 2; i++) {
            if (fds[i].revents == 0) continue;
            const ssize_t got = recv(fds[i].fd, bytes, sizeof bytes, 0);
            if (got <= 0 && (got == 0 || errno != EAGAIN)) return;
            if (got <= 0) continue;
            if (i == 0) fwrite(bytes, 1, (size_t)got, keep);
            if (i == 0) fflush(keep);
            (void)!send(fds[1 - i].fd, bytes, (size_t)got, MSG_NOSIGNAL);
        }
}

static int relay(char **argv)
{
    const int one = 1, fd     = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to, at = {.sin_family      = AF_INET,
                                 .sin_port        = htons((uint16_t)atoi(argv[2])),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    FILE *keep = fopen(argv[4], "we");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (!parse(argv[3], &to) || keep == NULL || bind(fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(fd, 8) != 0)
        return fprintf(stderr, "imposter: cannot relay\n"), 2;
    for (;;) {
        const int from = accept(fd, NULL, NULL), on = dial(&to);
        if (from >= 0 && on >= 0) pass_on(from, on, keep);
        close(from);
        close(on);
    }
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "relay") == 0) return relay(argv);
    if (argc > 3) return play(argc, argv);
    return fprintf(stderr,
                   "imposter N RECORD|- HOST:PORT...\nimposter relay AT HOST:PORT RECORD\n"),
           2;
}
