/* garbage.c - sends to a TCP port what no Penstock process would send:  garbage HOST PORT KIND
 *   random   64 KiB of noise, sixteen times     http      a browser's request
 *   huge     a ZeroMQ greeting and a frame that claims 2^60 bytes
 *   cut      half a greeting, then closes        frames    a ZeroMQ handshake, then noise as messages
 * Ends with 0 if it could connect and send; the other side may hang up at any time.
 */
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { GREETING_BYTES = 64, NOISE_BYTES = 65536 };

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

static int dial(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found) != 0) return -1;
    int fd = socket(found->ai_family, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    struct timeval patience = {.tv_usec = 300000};
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

/* The other side may already be gone. */
static void put(int fd, const void *bytes, size_t n)
{
    if (send(fd, bytes, n, MSG_NOSIGNAL) < 0) return;
}

static void swallow(int fd)
{
    unsigned char bytes[4096];
    while (recv(fd, bytes, sizeof bytes, 0) > 0) {}
}

static void greet(int fd, size_t n)
{
    unsigned char greeting[GREETING_BYTES] = {0xff, 0,    0, 0, 0,   0,   0,   0,
                                              1,    0x7f, 3, 0, 'N', 'U', 'L', 'L'};
    put(fd, greeting, n);
}

static void handshake(int fd)
{
    static const unsigned char ready[] = "\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06"
                                         "DEALER\x08Identity\x00\x00\x00\x00";
    greet(fd, GREETING_BYTES);
    put(fd, ready, sizeof ready - 1);
    swallow(fd);
}

static void send_random(int fd)
{
    static unsigned char noise[NOISE_BYTES];
    for (int i = 0; i < 16; i++) {
        fill_noise(noise, sizeof noise);
        put(fd, noise, sizeof noise);
    }
}

static void send_http(int fd)
{
    static const char request[] =
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a lost browser\r\n\r\n";
    put(fd, request, sizeof request - 1);
    swallow(fd);
}

static void send_huge(int fd)
{
    unsigned char head[9] = {2, 0x10, 0, 0, 0, 0, 0, 0, 0}; /* long frame, 2^60 bytes */
    handshake(fd);
    put(fd, head, sizeof head);
    send_random(fd);
}

static void send_cut(int fd)
{
    greet(fd, 11);
}

/* One frame each: nothing, one byte, noise. */
static void send_frames(int fd)
{
    unsigned char frame[2 + 200];
    handshake(fd);
    for (int i = 0; i < 300; i++) {
        unsigned char n = (unsigned char)(i % 200);
        frame[0]        = 0;
        frame[1]        = n;
        fill_noise(frame + 2, n);
        put(fd, frame, 2 + (size_t)n);
    }
    swallow(fd);
}

static const struct {
    const char *name;
    void (*send)(int fd);
} kinds[] = {{"random", send_random},
             {"http", send_http},
             {"huge", send_huge},
             {"cut", send_cut},
             {"frames", send_frames}};

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(argv[3], kinds[k].name) != 0) continue;
        int fd = dial(argv[1], argv[2]);
        if (fd < 0) return perror("garbage"), 1;
        kinds[k].send(fd);
        close(fd);
        return 0;
    }
    return 2;
}
