/* netswitch.c - an Ethernet switch that loses, delays and cuts frames:  netswitch INTERFACE...
 *
 * Runs in a network namespace whose interfaces are the far ends of the hosts' cables, and replaces
 * `tc netem` and a firewall where the kernel has neither. One command a line on standard input, one
 * answer a line on standard output:
 *   rule FROM TO LOSS DELAY JITTER   frames from port FROM to port TO: per cent lost, ms delayed, plus or minus ms (so
 *                                    they overtake each other); * is every port; 100 cuts one direction
 *   count FROM TO                    frames that went through, and those lost on purpose:  PASSED LOST
 * The ports are numbered from 0, in command line order. Losses are drawn from a fixed seed.
 *
 * Frames are read and written with the kernel's header (PACKET_VNET_HDR): it preserves segments
 * larger than a cable's and checksums that the hardware would fill in, so TCP runs at speed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    PORTS_MAX      = 16,
    ADDRESSES      = 64,
    FRAME_BYTES    = 128 << 10,
    WAITING_MAX    = 8192, /* more are lost, as in a real switch */
    FRAMES_AT_ONCE = 64
};

typedef struct {
    double loss;
    long delay_ms, jitter_ms;
    unsigned long passed, lost;
} rule;

typedef struct {
    uint64_t due_us, serial;
    int to;
    size_t size;
    char *bytes;
} frame;

static rule rules[PORTS_MAX][PORTS_MAX];
static int port[PORTS_MAX], n_ports;
static frame waiting[WAITING_MAX]; /* a heap: the next due first */
static int n_waiting;
static struct {
    unsigned char mac[ETH_ALEN];
    int port;
} known[ADDRESSES];
static int n_known;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- ports ----------------------------------------------------------------------------------- */
static int open_port(const char *interface)
{
    const int one         = 1;
    struct sockaddr_ll at = {.sll_family   = AF_PACKET,
                             .sll_protocol = htons(ETH_P_ALL),
                             .sll_ifindex  = (int)if_nametoindex(interface)};
    int fd                = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || at.sll_ifindex == 0) return -1;
    if (setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) != 0) return -1;
    if (setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) != 0) return -1;
    const int room = 16 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    return bind(fd, (struct sockaddr *)&at, sizeof at) == 0 ? fd : -1;
}

/* The port behind which an address was last seen; -1: all ports. */
static int *find_port(const unsigned char *mac)
{
    static int all = -1;
    for (int i = 0; i < n_known; i++)
        if (memcmp(known[i].mac, mac, ETH_ALEN) == 0) return &known[i].port;
    return &all;
}

static void learn(const unsigned char *mac, int from)
{
    int *at = find_port(mac);
    if (*at >= 0) {
        *at = from;
    } else if (n_known < ADDRESSES) {
        memcpy(known[n_known].mac, mac, ETH_ALEN);
        known[n_known++].port = from;
    }
}

/* ---- frames ---------------------------------------------------------------------------------- */
static bool is_before(const frame *a, const frame *b)
{
    return a->due_us != b->due_us ? a->due_us < b->due_us : a->serial < b->serial;
}

static void swap(frame *a, frame *b)
{
    const frame c = *a;
    *a            = *b;
    *b            = c;
}

static void put(const frame *f)
{
    int i      = n_waiting++;
    waiting[i] = *f;
    for (; i > 0 && is_before(&waiting[i], &waiting[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&waiting[i], &waiting[(i - 1) / 2]);
}

static frame take(void)
{
    const frame first = waiting[0];
    waiting[0]        = waiting[--n_waiting];
    for (int i = 0, child; (child = 2 * i + 1) < n_waiting; i = child) {
        if (child + 1 < n_waiting && is_before(&waiting[child + 1], &waiting[child])) child++;
        if (!is_before(&waiting[child], &waiting[i])) break;
        swap(&waiting[i], &waiting[child]);
    }
    return first;
}

/* A port whose cable is unplugged loses the frame, as it should. */
static void put_out(int to, const char *bytes, size_t size)
{
    if (send(port[to], bytes, size, 0) < 0 && errno == EINVAL)
        fprintf(stderr, "netswitch: the kernel does not take back a frame of %zu bytes\n", size);
}

static void forward(int from, int to, const char *bytes, size_t size)
{
    static uint64_t serial;
    rule *r          = &rules[from][to];
    const long shift = r->jitter_ms > 0 ? random() % (2 * r->jitter_ms + 1) - r->jitter_ms : 0;
    const long wait  = r->delay_ms + shift > 0 ? r->delay_ms + shift : 0;
    const bool lost  = drand48() * 100 < r->loss || n_waiting == WAITING_MAX;
    frame f          = {.due_us = now_us() + (uint64_t)wait * 1000,
                        .serial = serial++,
                        .to     = to,
                        .size   = size,
                        .bytes  = lost || wait == 0 ? NULL : malloc(size)};
    if (lost) {
        r->lost++;
        return;
    }
    r->passed++;
    if (f.bytes == NULL) {
        put_out(to, bytes, size);
        return;
    }
    memcpy(f.bytes, bytes, size);
    put(&f);
}

static void take_frame(int from, const char *bytes, size_t size)
{
    const size_t note = sizeof(struct virtio_net_hdr);
    if (size < note + ETH_HLEN) return;
    const unsigned char *to_mac   = (const unsigned char *)bytes + note,
                        *from_mac = to_mac + ETH_ALEN;
    learn(from_mac, from);
    const int to = *find_port(to_mac);
    for (int i = 0; i < n_ports; i++)
        if (i != from && (to < 0 || to == i)) forward(from, i, bytes, size);
}

static void drain(int from)
{
    static char bytes[FRAME_BYTES];
    for (int i = 0; i < FRAMES_AT_ONCE; i++) {
        const ssize_t size = recv(port[from], bytes, sizeof bytes, 0);
        if (size < 0) return; /* empty, or its cable was just unplugged */
        take_frame(from, bytes, (size_t)size);
    }
}

/* ---- commands -------------------------------------------------------------------------------- */
static bool is_meant(const char *text, int number)
{
    return strcmp(text, "*") == 0 || atoi(text) == number;
}

static void obey(const char *line)
{
    char verb[16] = "", from[8] = "", to[8] = "";
    rule said            = {0};
    unsigned long passed = 0, lost = 0;
    sscanf(line, "%15s %7s %7s %lf %ld %ld", verb, from, to, &said.loss, &said.delay_ms,
           &said.jitter_ms);
    const bool is_rule = strcmp(verb, "rule") == 0;
    for (int i = 0; i < n_ports; i++)
        for (int k = 0; k < n_ports; k++) {
            if (!is_meant(from, i) || !is_meant(to, k)) continue;
            passed += rules[i][k].passed;
            lost += rules[i][k].lost;
            if (is_rule) rules[i][k] = said;
        }
    if (is_rule || strcmp(verb, "count") == 0)
        printf("%lu %lu\n", passed, lost);
    else
        printf("no: %s\n", line);
    fflush(stdout);
}

/* False at the end of standard input. */
static bool read_commands(void)
{
    static char text[4096];
    static size_t used;
    const ssize_t got = read(0, text + used, sizeof text - 1 - used);
    if (got <= 0) return false;
    used += (size_t)got;
    text[used] = '\0';
    char *line = text, *end;
    for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        obey(line);
    }
    used -= (size_t)(line - text);
    memmove(text, line, used);
    return true;
}

/* ---- waiting --------------------------------------------------------------------------------- */
static void put_out_due(void)
{
    const uint64_t now = now_us();
    while (n_waiting > 0 && waiting[0].due_us <= now) {
        const frame f = take();
        put_out(f.to, f.bytes, f.size);
        free(f.bytes);
    }
}

static const struct timespec *until_due(struct timespec *left)
{
    if (n_waiting == 0) return NULL;
    const uint64_t now = now_us(), due = waiting[0].due_us;
    const uint64_t us = due > now ? due - now : 0;
    *left =
        (struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
    return left;
}

int main(int argc, char **argv)
{
    struct pollfd fds[1 + PORTS_MAX] = {{.fd = 0, .events = POLLIN}};
    struct timespec left;
    srand48(1);
    srandom(1);
    for (n_ports = 0; n_ports + 1 < argc && n_ports < PORTS_MAX; n_ports++) {
        port[n_ports] = open_port(argv[n_ports + 1]);
        if (port[n_ports] < 0) return perror(argv[n_ports + 1]), 1;
        fds[1 + n_ports] = (struct pollfd){.fd = port[n_ports], .events = POLLIN};
    }
    printf("%d ports\n", n_ports);
    fflush(stdout);
    for (;;) {
        if (ppoll(fds, (nfds_t)n_ports + 1, until_due(&left), NULL) < 0 && errno != EINTR) return 1;
        for (int i = 0; i < n_ports; i++)
            if (fds[1 + i].revents != 0) drain(i);
        put_out_due();
        if (fds[0].revents != 0 && !read_commands()) return 0;
    }
}
