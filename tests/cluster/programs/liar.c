/* liar.c - sends lies about memory to the ports of a job, for a while:
 *   liar SECONDS HELLO_FILE PUSH_FILE PID[,PID...] PORT...
 * Runs as the current user, and also as nobody if this is root. It implements the protocol of
 * plain sockets, with knowledge of the heads. First it finds, as root can, where the memory of
 * the processes PID lies, so that a lie in one field comes with true values in all others. On each
 * port:
 *   PROBE, MAPPED, LENT, RETURN   each field true, or one of them 0, 1, all ones, 2^40, and one more or less
 *   HELLO                         the contents of HELLO_FILE, each byte changed in turn
 * Prints one line of JSON for each user: messages sent, connections, and answers about memory,
 * which must be 0.
 */
#include "tests/support/places.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_MAX = 1024,
    PROBE    = 1,
    MAPPED,
    LENT,
    RETURN,
    PER_CONNECTION = 20,
    REST_MS        = 3, /* between two connections: throughput does not matter here */
    NOBODY         = 65534
};

typedef struct {
    char mark[8];
    uint32_t kind, n;
} preface;

static struct {
    unsigned long messages, connections, answers;
} count;
static unsigned char hello[HEAD_MAX], push[HEAD_MAX];
static size_t hello_bytes, push_bytes;

/* ---- what it knows -------------------------------------------------------------------------------------- */
static size_t read_file(const char *path, unsigned char bytes[HEAD_MAX])
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        perror(path);
        exit(2);
    }
    const size_t n = fread(bytes, 1, HEAD_MAX, file);
    fclose(file);
    return n;
}

/* ---- the wire ------------------------------------------------------------------------------------------- */
static int dial(int port)
{
    static const unsigned char greeting[8] = {'P', 'E', 'N', 'S', 'O', 'C', 'K', 1};
    const struct sockaddr_in to            = {.sin_family      = AF_INET,
                                              .sin_port        = htons((uint16_t)port),
                                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unsigned char theirs[sizeof greeting];
    const struct timeval patience = {.tv_usec = 100000};
    const int fd                  = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 &&
        send(fd, greeting, sizeof greeting, MSG_NOSIGNAL) > 0 &&
        recv(fd, theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs) {
        count.connections++;
        return fd;
    }
    close(fd);
    return -1;
}

/* One message without a body. */
static int put(int fd, const void *head, size_t size)
{
    unsigned char frame[16 + 2 * HEAD_MAX] = {0};
    for (int i = 0; i < 4; i++) frame[8 + i] = (unsigned char)(size >> 8 * i);
    memcpy(frame + 16, head, size);
    count.messages++;
    return send(fd, frame, 16 + size, MSG_NOSIGNAL) > 0;
}

/* Counts any answer about memory. */
static void hang_up(int fd)
{
    static unsigned char bytes[1 << 16];
    ssize_t n;
    shutdown(fd, SHUT_WR);
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        for (ssize_t i = 0; i + 8 <= n; i++)
            count.answers += memcmp(bytes + i, "\0PenLend", 8) == 0;
    close(fd);
}

/* ---- lies ----------------------------------------------------------------------------------------------- */
enum { FIELDS = 9, LIES = 8 };

static void bend(place *p, uint64_t number[2], int field, int lie)
{
    int32_t narrow[2]       = {p->pid, p->fd};
    uint64_t *const wide[7] = {&p->id,     &p->size,   &p->offset, &p->closed,
                               &number[0], &number[1], NULL};
    const int k             = field - 6;
    uint64_t value = field < 6 ? *wide[field] : field < 8 ? (uint64_t)(int64_t)narrow[k] : 0;
    const uint64_t lies[LIES] = {0,         1,         UINT64_MAX, (uint64_t)1 << 40,
                                 value + 1, value - 1, value + 8,  p->size - 8};
    if (field < 6) *wide[field] = lies[lie];
    if (field == 6) p->pid = (int32_t)lies[lie];
    if (field == 7) p->fd = (int32_t)lies[lie];
    if (field == 8) { /* would reach an existing mapping: a far offset in a size with room for it */
        p->size   = (uint64_t)1 << 46;
        p->offset = (uint64_t)1 << (30 + 2 * lie);
    }
}

static size_t make_head(unsigned char out[2 * HEAD_MAX], int kind, int field, int lie,
                        const place *from)
{
    place p            = *from;
    uint64_t number[2] = {0, 65536};
    preface head       = {"\0PenLend", (uint32_t)kind, 0};
    if (field < FIELDS) bend(&p, number, field, lie);
    const size_t numbers = kind == LENT ? 16 : 8, body = kind == LENT ? push_bytes : 0;
    if (kind == RETURN) head.n = field == 0 ? (uint32_t)-lie : 16;
    size_t at = 0;
    memcpy(out, &head, sizeof head);
    at += sizeof head;
    for (int i = 0; kind == RETURN && i < 16; i++) {
        const uint64_t token = number[0] + ((uint64_t)lie << 32 | (unsigned)i);
        memcpy(out + at, &token, 8);
        at += 8;
    }
    if (kind == RETURN) return at;
    memcpy(out + at, number, numbers);
    memcpy(out + at + numbers, &p, sizeof p);
    memcpy(out + at + numbers + sizeof p, push, body);
    return at + numbers + sizeof p + body;
}

static void lie_about_memory(int port, unsigned turn)
{
    unsigned char head[2 * HEAD_MAX];
    const place none   = {.id = 1, .size = 4096, .pid = 1, .fd = 3};
    const place *about = n_places > 0 ? &places[turn % (unsigned)n_places] : &none;
    const int fd       = dial(port);
    for (unsigned i = 0; fd >= 0 && i < PER_CONNECTION; i++) {
        const unsigned at = turn * PER_CONNECTION + i;
        const int kind    = PROBE + (int)(at % 4);
        const size_t size =
            make_head(head, kind, (int)(at / 4 % (FIELDS + 1)), (int)(at / 40 % LIES), about);
        if (!put(fd, head, i % 16 == 15 ? size - i % 8 : size)) break;
    }
    if (fd >= 0) hang_up(fd);
}

static void lie_in_hello(int port, unsigned turn)
{
    unsigned char head[HEAD_MAX];
    const int fd = dial(port);
    for (unsigned i = 0; fd >= 0 && i < PER_CONNECTION; i++) {
        memcpy(head, hello, hello_bytes);
        head[(turn * PER_CONNECTION + i) % hello_bytes] ^= (unsigned char)(1 << i % 8);
        if (!put(fd, head, hello_bytes)) break;
    }
    if (fd >= 0) hang_up(fd);
}

static void work(const char *user, double seconds, char **ports, int n)
{
    const time_t end = time(NULL) + (time_t)seconds;
    for (unsigned turn = 0; time(NULL) < end; turn++)
        for (int i = 0; i < n; i++) {
            (turn % 4 == 3 ? lie_in_hello : lie_about_memory)(atoi(ports[i]), turn);
            nanosleep(&(struct timespec){.tv_nsec = REST_MS * 1000000}, NULL);
        }
    printf("{\"user\": \"%s\", \"places\": %d, \"messages\": %lu, \"connections\": %lu, "
           "\"answers\": %lu}\n",
           user, n_places, count.messages, count.connections, count.answers);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return fprintf(stderr, "liar SECONDS HELLO_FILE PUSH_FILE PID[,PID...] PORT...\n"), 2;
    hello_bytes = read_file(argv[2], hello);
    push_bytes  = read_file(argv[3], push);
    for (char *pid = strtok(argv[4], ","); pid != NULL; pid = strtok(NULL, ","))
        find_places(atoi(pid));
    const pid_t other = geteuid() == 0 ? fork() : -1;
    if (other == 0) {
        if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0) return 1;
        work("nobody", atof(argv[1]), argv + 5, argc - 5);
        return 0;
    }
    work("own", atof(argv[1]), argv + 5, argc - 5);
    if (other > 0) waitpid(other, NULL, 0);
    return 0;
}
