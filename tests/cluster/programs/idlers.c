/* idlers.c - opens connections that prove nothing to a job's ports:  idlers KIND N SECONDS PORT...
 * N to each port, kept open and reopened when closed, for SECONDS and until each port had N. KIND:
 *   silent   send nothing
 *   greet    do ZeroMQ's handshake
 *   drip     send a byte now and then
 *   mixed    these three by turns
 *   rush     like greet, as fast as possible; the others make at most 1,000 a second to a port
 * Prints a line of JSON at the end: connections made, and the most that were open.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SILENT, GREETS, DRIPS, KINDS, MIXED = KINDS, RUSH, A_ROUND = 100 };

static const char *const names[] = {"silent", "greet", "drip", "mixed", "rush"};

typedef struct {
    int fd, port;
    unsigned kind, sent;
} idler;

static unsigned long made, most;
static unsigned budget; /* connections left in this round */

/* ZeroMQ's greeting and its READY; then a dialler's empty message, after the other's greeting. */
static const unsigned char word[2],
    words[] = "\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
              "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
              "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06"
              "DEALER\x08Identity\0\0\0\0";

static void dial(idler *i)
{
    const struct sockaddr_in to = {.sin_family      = AF_INET,
                                   .sin_port        = htons((uint16_t)i->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    i->sent                     = 0;
    i->fd                       = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (i->fd < 0) return;
    if (connect(i->fd, (const struct sockaddr *)&to, sizeof to) == 0 || errno == EINPROGRESS) {
        made++;
        return;
    }
    close(i->fd);
    i->fd = -1;
}

static void say(idler *i)
{
    const size_t n = sizeof words - 1;
    if (i->kind == GREETS && i->sent == 0)
        i->sent = send(i->fd, words, n, MSG_NOSIGNAL) == (ssize_t)n ? 1 : 0;
    if (i->kind == GREETS && i->sent == 2)
        i->sent = send(i->fd, word, sizeof word, MSG_NOSIGNAL) > 0 ? 3 : 2;
    if (i->kind == DRIPS && i->sent < n && send(i->fd, words + i->sent, 1, MSG_NOSIGNAL) == 1)
        i->sent++;
}

static void go_on(idler *i)
{
    unsigned char bytes[256];
    if (i->fd < 0 && budget > 0) dial(i), budget--;
    if (i->fd < 0) return;
    say(i);
    for (;;) {
        const ssize_t got = recv(i->fd, bytes, sizeof bytes, 0);
        if (got > 0 && i->kind == GREETS && i->sent == 1) i->sent = 2;
        if (got > 0) continue;
        if (got < 0 && (errno == EAGAIN || errno == ENOTCONN)) return;
        close(i->fd);
        i->fd = -1;
        return;
    }
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    unsigned kind = 0;
    while (argc > 1 && kind <= RUSH && strcmp(argv[1], names[kind]) != 0) kind++;
    if (argc < 5 || kind > RUSH)
        return fprintf(stderr, "idlers silent|greet|drip|mixed|rush N SECONDS PORT...\n"), 2;
    const unsigned each = (unsigned)atoi(argv[2]), ports = (unsigned)argc - 4, n = each * ports;
    const double end    = now_s() + atof(argv[3]);
    const long pause_ms = kind == RUSH ? 1 : 100;
    struct rlimit files = {.rlim_cur = n + 64, .rlim_max = n + 64};
    if (setrlimit(RLIMIT_NOFILE, &files) != 0) return perror("idlers: too few descriptors"), 3;
    setpriority(PRIO_PROCESS, 0, 10);
    idler *all = calloc(n, sizeof *all);
    if (all == NULL) return 1;
    for (unsigned i = 0; i < n; i++)
        all[i] = (idler){.fd   = -1,
                         .port = atoi(argv[4 + i % ports]),
                         .kind = kind < KINDS   ? kind
                                 : kind == RUSH ? GREETS
                                                : i / ports % KINDS};
    while (now_s() < end || made < n) {
        unsigned open = 0;
        budget        = kind == RUSH ? n : A_ROUND * ports;
        for (unsigned i = 0; i < n; i++) {
            go_on(&all[i]);
            open += all[i].fd >= 0;
        }
        if (open > most) most = open;
        nanosleep(&(struct timespec){.tv_nsec = pause_ms * 1000000}, NULL);
    }
    printf("{\"made\": %lu, \"most\": %lu}\n", made, most);
    return 0;
}
