/* limit_socket.c - how fast plain TCP sockets move bytes around a ring of hosts, and how long a round trip takes.
 *
 * A separate program on purpose: it contains no Penstock code.  Each host sends to the next one and receives from the
 * one before it, at the same time, with one thread for each direction.
 *   limit_socket ring RANK PORT BYTES SECONDS ADDRESS...    ADDRESS: of every host, in order
 *   limit_socket ping RANK PORT BYTES SECONDS ADDRESS...    between the first two
 * Prints, of ring, {"rank":R,"GBps":G}: bytes received in a second, 1e9 each, while all send; of ping, on rank 0,
 * {"bytes":N,"us":T}: the median round trip, both ends without sleep.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DIAL_TRIES = 1000, DIAL_WAIT_US = 10000, PINGS_MAX = 100000 };

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fail(const char *what)
{
    fprintf(stderr, "limit_socket: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct sockaddr_in at(const char *address, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, address, &to.sin_addr) != 1) fail(address);
    return to;
}

static int begin_listening(const char *address, int port)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    const struct sockaddr_in own = at(address, port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (const struct sockaddr *)&own, sizeof own) != 0 || listen(fd, 16) != 0)
        fail("listen");
    return fd;
}

static int dial(const char *address, int port)
{
    const struct sockaddr_in to = at(address, port);
    for (int i = 0; i < DIAL_TRIES; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0) return fd;
        close(fd);
        usleep(DIAL_WAIT_US);
    }
    fail("dial");
    return -1;
}

static void send_all(int fd, const char *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = send(fd, data + at, bytes - at, MSG_NOSIGNAL);
        if (n <= 0) fail("send");
        at += (size_t)n;
    }
}

static void spin_for(int fd, char *data, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = recv(fd, data + at, bytes - at, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN)) fail("receive");
        if (n > 0) at += (size_t)n;
    }
}

/* ---- ring ---------------------------------------------------------------------------------------- */
typedef struct {
    int fd;
    size_t bytes;
    double until;
} flow;

static void *send_for_ever(void *user)
{
    const flow *f = user;
    char *data    = calloc(1, f->bytes);
    while (data != NULL && now_s() < f->until)
        if (send(f->fd, data, f->bytes, MSG_NOSIGNAL) <= 0) break;
    shutdown(f->fd, SHUT_WR);
    free(data);
    return NULL;
}

/* The middle of the time counts: all have begun, none has ended. */
static void ring(int rank, int from, int to, size_t bytes, double seconds)
{
    const double begun = now_s();
    flow f             = {to, bytes, begun + 1.5 * seconds};
    double got = 0, first = 0, last = 0;
    char *data = malloc(bytes);
    pthread_t sender;
    if (data == NULL || pthread_create(&sender, NULL, send_for_ever, &f) != 0) fail("thread");
    for (ssize_t n; (n = recv(from, data, bytes, 0)) > 0;) {
        const double now = now_s();
        if (now < begun + 0.25 * seconds || now > begun + 1.25 * seconds) continue;
        if (first == 0)
            first = now;
        else
            got += (double)n;
        last = now;
    }
    pthread_join(sender, NULL);
    printf("{\"rank\":%d,\"GBps\":%.4f}\n", rank, last > first ? got / (last - first) * 1e-9 : 0.0);
    free(data);
}

/* ---- ping ---------------------------------------------------------------------------------------- */
static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void ping(int rank, int from, int to, size_t bytes, double seconds)
{
    static double took[PINGS_MAX];
    const double until = now_s() + seconds;
    char *data         = calloc(1, bytes);
    int n              = 0;
    if (data == NULL) fail("memory");
    for (bool more = true; more;) {
        const double begun = now_s();
        if (rank == 0) {
            more    = begun < until && n < PINGS_MAX - 1;
            data[0] = (char)more;
            send_all(to, data, bytes);
        }
        spin_for(from, data, bytes);
        more = data[0] != 0;
        if (rank != 0) send_all(to, data, bytes);
        took[n++ % PINGS_MAX] = (now_s() - begun) * 1e6;
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
    if (rank == 0) printf("{\"bytes\":%zu,\"us\":%.2f}\n", bytes, took[n / 2]);
    free(data);
}

int main(int argc, char **argv)
{
    const bool is_ring = argc > 1 && strcmp(argv[1], "ring") == 0;
    const int rank = argc > 7 ? atoi(argv[2]) : -1, port = argc > 7 ? atoi(argv[3]) : 0;
    const size_t bytes   = argc > 7 ? strtoull(argv[4], NULL, 10) : 0;
    const double seconds = argc > 7 ? atof(argv[5]) : 0;
    const int n          = is_ring ? argc - 6 : 2;
    if (rank < 0 || rank >= n || bytes == 0 || seconds <= 0) {
        fprintf(stderr, "usage: limit_socket ring|ping RANK PORT BYTES SECONDS ADDRESS...\n");
        return 2;
    }
    const int listener = begin_listening(argv[6 + rank], port + rank);
    const int next     = (rank + 1) % n;
    const int to       = dial(argv[6 + next], port + next);
    const int from     = accept(listener, NULL, NULL);
    if (from < 0) fail("accept");
    (is_ring ? ring : ping)(rank, from, to, bytes, seconds);
    return 0;
}
