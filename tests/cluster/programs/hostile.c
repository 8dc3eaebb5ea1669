/* hostile.c - plays strangers at the ports of a job:  hostile SECONDS PER_SECOND PORT...
 * All on 127.0.0.1, with plain sockets, by turns, PER_SECOND attempts on each port:
 *   noise       bytes at random              browser    a browser's request
 *   no key      ZeroMQ's handshake in clear text, then noise as messages
 *   wrong key   the first word of an encrypted handshake, with keys that nobody owns
 *   half        half a greeting, kept open, 64 at a time on each port
 *   endless     one endless message of frames, as fast as the port reads
 * Prints one line of JSON: attempts, failed connections, bytes sent.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    PORTS_MAX      = 64,
    HALVES         = 64, /* kept open on each port */
    NOISE_BYTES    = 4096,
    GREETING_BYTES = 64,
    PIECE_BYTES    = 64 << 10,
    PIECES         = 64, /* of an endless message, per attempt */
    FRAMES         = 50
};

typedef struct {
    int port, endless;
    int half[HALVES];
    unsigned turn, next_half;
} target;

static struct {
    unsigned long attempts, unreached, bytes;
} count;

static uint64_t state = 88172645463325252u;

static void fill_noise(unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes[i] = (unsigned char)(state >> 56);
    }
}

static int dial(int port)
{
    const struct sockaddr_in to   = {.sin_family      = AF_INET,
                                     .sin_port        = htons((uint16_t)port),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_usec = 200000};
    int fd                        = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    count.attempts++;
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0) return fd;
    count.unreached++;
    close(fd);
    return -1;
}

/* The other side may hang up at any time.  False: it has. */
static int put(int fd, const void *bytes, size_t n, int flags)
{
    const ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL | flags);
    if (sent > 0) count.bytes += (unsigned long)sent;
    return sent > 0 || errno == EAGAIN;
}

static void greet(int fd, const char *mechanism, size_t n)
{
    unsigned char greeting[GREETING_BYTES] = {0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0};
    memcpy(greeting + 12, mechanism, strlen(mechanism));
    put(fd, greeting, n, 0);
}

static void send_noise(int fd)
{
    unsigned char noise[NOISE_BYTES];
    fill_noise(noise, sizeof noise);
    put(fd, noise, sizeof noise, 0);
}

static void ask_like_a_browser(int fd)
{
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    put(fd, request, sizeof request - 1, 0);
}

static void say_ready(int fd)
{
    static const unsigned char ready[] = "\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06"
                                         "DEALER\x08Identity\x00\x00\x00\x00";
    greet(fd, "NULL", GREETING_BYTES);
    put(fd, ready, sizeof ready - 1, 0);
}

static void come_without_a_key(int fd)
{
    unsigned char frame[2 + 100] = {0, 100};
    say_ready(fd);
    for (int i = 0; i < FRAMES; i++) {
        fill_noise(frame + 2, 100);
        put(fd, frame, sizeof frame, 0);
    }
}

/* HELLO: version, padding, a public key, a nonce and a box; all but the first two are random. */
static void come_with_a_wrong_key(int fd)
{
    unsigned char hello[2 + 200] = {4, 200, 5, 'H', 'E', 'L', 'L', 'O', 1, 0};
    greet(fd, "CURVE", GREETING_BYTES);
    fill_noise(hello + 2 + 80, 120);
    put(fd, hello, sizeof hello, 0);
}

static void stop_half_way(target *t)
{
    int *slot = &t->half[t->next_half++ % HALVES];
    if (*slot >= 0) close(*slot);
    *slot = dial(t->port);
    if (*slot >= 0) greet(*slot, "CURVE", 30);
}

static void go_on_without_end(target *t)
{
    static unsigned char piece[9 + PIECE_BYTES] = {3, 0, 0, 0, 0, 0, 1, 0, 0};
    if (t->endless < 0) {
        t->endless = dial(t->port);
        if (t->endless >= 0) say_ready(t->endless);
    }
    for (int i = 0; t->endless >= 0 && i < PIECES; i++) {
        if (put(t->endless, piece, sizeof piece, 0)) continue;
        close(t->endless);
        t->endless = -1;
    }
}

static void attempt(target *t)
{
    static void (*const kinds[])(int fd) = {send_noise, ask_like_a_browser, come_without_a_key,
                                            come_with_a_wrong_key};
    const unsigned turn                  = t->turn++ % 6;
    if (turn == 4) {
        stop_half_way(t);
    } else if (turn == 5) {
        go_on_without_end(t);
    } else {
        const int fd = dial(t->port);
        if (fd < 0) return;
        kinds[turn](fd);
        close(fd);
    }
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void rest_until(double when)
{
    const double left = when - now_s();
    if (left <= 0) return;
    const struct timespec t = {.tv_sec  = (time_t)left,
                               .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
    nanosleep(&t, NULL);
}

int main(int argc, char **argv)
{
    static target targets[PORTS_MAX];
    const int n = argc - 3;
    if (n < 1 || n > PORTS_MAX) return fprintf(stderr, "hostile SECONDS PER_SECOND PORT...\n"), 2;
    const double end = now_s() + atof(argv[1]), every = 1 / atof(argv[2]);
    for (int i = 0; i < n; i++) {
        targets[i] = (target){.port = atoi(argv[3 + i]), .endless = -1, .turn = (unsigned)i};
        for (int k = 0; k < HALVES; k++) targets[i].half[k] = -1;
    }
    for (double due = now_s(); due < end; due += every) {
        rest_until(due);
        for (int i = 0; i < n; i++) attempt(&targets[i]);
        if (now_s() > due + 1) due = now_s(); /* far behind: missed attempts are dropped */
    }
    printf("{\"attempts\": %lu, \"unreached\": %lu, \"bytes\": %lu}\n", count.attempts,
           count.unreached, count.bytes);
    return 0;
}
