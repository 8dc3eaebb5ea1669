/* relay.c - a TCP relay that misbehaves on command, between the processes of a job on loopback.
 *
 * One command a line on standard input, one answer a line on standard output: a number, or "no: WHY".
 *   link NAME FROM TO     listens at FROM and connects each client to TO; answers the port (HOST:0 takes a free one)
 *   hold NAME forth|back|both   bytes and closes wait; forth is from the side that dialled
 *   delay NAME MS JITTER  each piece waits MS plus or minus JITTER, in both directions and in order
 *   pass NAME             neither held nor delayed any longer
 *   reset NAME            connections end at once, like those of a restarted host
 *   leave NAME            like reset, and stops listening
 *   back NAME FROM TO     listens again, there or elsewhere
 *   count NAME            open connections
 * NAME is a pattern (s1.*), except in link. The answer: the port, or a number of connections.
 * Ends when standard input does.  Numeric addresses only.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINKS_MAX = 64, PAIRS_MAX = 256, PIECE_BYTES = 1 << 16, QUEUE_BYTES_MAX = 4 << 20 };
enum { FORTH, BACK };

typedef struct {
    char name[32];
    int fd; /* listens; -1: closed */
    struct sockaddr_in to;
    bool held[2];
    long delay_ms, jitter_ms;
} route;

typedef struct piece {
    struct piece *next;
    uint64_t due_us;
    size_t size, sent;
    char bytes[];
} piece;

typedef struct {
    piece *first, *last;
    size_t queued;
    uint64_t last_due_us;
    bool ended, passed_on; /* the source has closed; the sink was told */
} stream;

typedef struct {
    route *on; /* NULL: a free entry */
    int fd[2]; /* 0: dialled us; 1: we dialled */
    stream way[2];
    bool is_connecting;
} pair;

static route routes[LINKS_MAX];
static pair pairs[PAIRS_MAX];
static int n_routes;

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- connections ----------------------------------------------------------------------------- */
static void drop_first(stream *s)
{
    piece *p = s->first;
    s->first = p->next;
    if (s->first == NULL) s->last = NULL;
    s->queued -= p->size;
    free(p);
}

static void end_pair(pair *p, bool abruptly)
{
    const struct linger at_once = {.l_onoff = 1};
    for (int i = 0; i < 2; i++) {
        if (abruptly) setsockopt(p->fd[i], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(p->fd[i]);
        while (p->way[i].first != NULL) drop_first(&p->way[i]);
    }
    *p = (pair){0};
}

static int make_socket(void)
{
    const int one = 1;
    int fd        = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void join(route *r, int accepted)
{
    pair *p = pairs;
    while (p < pairs + PAIRS_MAX && p->on != NULL) p++;
    int fd          = p < pairs + PAIRS_MAX ? make_socket() : -1;
    const bool goes = fd >= 0 && (connect(fd, (const struct sockaddr *)&r->to, sizeof r->to) == 0 ||
                                  errno == EINPROGRESS);
    if (!goes) {
        close(accepted);
        if (fd >= 0) close(fd);
        return;
    }
    *p = (pair){.on = r, .fd = {accepted, fd}, .is_connecting = true};
}

static void take_caller(route *r)
{
    const int one = 1;
    int fd        = accept4(r->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    join(r, fd);
}

/* ---- bytes ----------------------------------------------------------------------------------- */
static uint64_t due_us(const route *r, stream *s)
{
    const long wait_ms =
        r->delay_ms + (r->jitter_ms > 0 ? random() % (2 * r->jitter_ms + 1) - r->jitter_ms : 0);
    const uint64_t due = now_us() + (uint64_t)(wait_ms > 0 ? wait_ms : 0) * 1000;
    if (due > s->last_due_us) s->last_due_us = due;
    return s->last_due_us;
}

static void append(stream *s, const char *bytes, size_t size, uint64_t due)
{
    piece *p = malloc(sizeof *p + size);
    if (p == NULL) abort();
    *p = (piece){.due_us = due, .size = size};
    memcpy(p->bytes, bytes, size);
    if (s->last != NULL)
        s->last->next = p;
    else
        s->first = p;
    s->last = p;
    s->queued += size;
}

/* False when the connection broke. */
static bool read_some(pair *p, int w)
{
    static char bytes[PIECE_BYTES];
    stream *s         = &p->way[w];
    const ssize_t got = recv(p->fd[w], bytes, sizeof bytes, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0)
        s->ended = true;
    else
        append(s, bytes, (size_t)got, due_us(p->on, s));
    return true;
}

static bool write_some(pair *p, int w)
{
    stream *s          = &p->way[w];
    const uint64_t now = now_us();
    while (s->first != NULL && s->first->due_us <= now) {
        piece *f = s->first;
        const ssize_t sent =
            send(p->fd[1 - w], f->bytes + f->sent, f->size - f->sent, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN || errno == EINTR;
        f->sent += (size_t)sent;
        if (f->sent == f->size) drop_first(s);
    }
    if (s->ended && s->first == NULL && !s->passed_on) {
        shutdown(p->fd[1 - w], SHUT_WR);
        s->passed_on = true;
    }
    return true;
}

static bool may_read(const pair *p, int w)
{
    const stream *s = &p->way[w];
    return !p->is_connecting && !p->on->held[w] && !s->ended && s->queued < QUEUE_BYTES_MAX;
}

static bool may_write(const pair *p, int w, uint64_t now)
{
    const stream *s = &p->way[w];
    if (p->is_connecting || p->on->held[w]) return false;
    return s->first != NULL ? s->first->due_us <= now : s->ended && !s->passed_on;
}

static bool has_connected(pair *p)
{
    int error      = 0;
    socklen_t size = sizeof error;
    if (getsockopt(p->fd[1], SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) return false;
    p->is_connecting = false;
    return true;
}

static void serve(pair *p, short dialler, short dialled)
{
    const short happened[2] = {dialler, dialled};
    bool is_well            = true;
    if (p->is_connecting && dialled != 0) is_well = has_connected(p);
    for (int w = 0; w < 2 && is_well; w++) {
        if (happened[w] != 0 && may_read(p, w)) is_well = read_some(p, w);
        if (is_well && may_write(p, w, now_us())) is_well = write_some(p, w);
    }
    if (!is_well)
        end_pair(p, true);
    else if (p->way[FORTH].passed_on && p->way[BACK].passed_on)
        end_pair(p, false);
}

/* ---- commands -------------------------------------------------------------------------------- */
static bool parse_address(char *text, struct sockaddr_in *a)
{
    char *colon = strchr(text, ':');
    *a          = (struct sockaddr_in){.sin_family = AF_INET};
    if (colon == NULL) return false;
    *colon      = '\0';
    a->sin_port = htons((uint16_t)atoi(colon + 1));
    return inet_pton(AF_INET, text, &a->sin_addr) == 1;
}

/* The listening port, or -1 with errno. */
static int listen_at(route *r, char *from, char *to)
{
    struct sockaddr_in a;
    socklen_t size = sizeof a;
    errno          = EINVAL;
    if (!parse_address(from, &a) || !parse_address(to, &r->to)) return -1;
    r->fd = make_socket();
    if (r->fd < 0 || bind(r->fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(r->fd, 64) != 0)
        return -1;
    getsockname(r->fd, (struct sockaddr *)&a, &size);
    return ntohs(a.sin_port);
}

static int add_link(const char *name, char *from, char *to)
{
    if (n_routes == LINKS_MAX) return -1;
    route *r = &routes[n_routes];
    *r       = (route){.fd = -1};
    snprintf(r->name, sizeof r->name, "%s", name);
    const int port = listen_at(r, from, to);
    if (port >= 0) n_routes++;
    return port;
}

static int end_pairs(const route *r)
{
    int n = 0;
    for (pair *p = pairs; p < pairs + PAIRS_MAX; p++)
        if (p->on == r) {
            end_pair(p, true);
            n++;
        }
    return n;
}

static int count_pairs(const route *r)
{
    int n = 0;
    for (const pair *p = pairs; p < pairs + PAIRS_MAX; p++) n += p->on == r && !p->is_connecting;
    return n;
}

static void leave(route *r)
{
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
}

/* Applies a command to one link. Returns the number of affected connections, a port, or -1. */
static int act(route *r, const char *verb, char *first, char *second)
{
    if (strcmp(verb, "hold") == 0) {
        if (strcmp(first, "back") != 0) r->held[FORTH] = true;
        if (strcmp(first, "forth") != 0) r->held[BACK] = true;
    } else if (strcmp(verb, "delay") == 0) {
        r->delay_ms  = atol(first);
        r->jitter_ms = atol(second);
    } else if (strcmp(verb, "pass") == 0) {
        r->held[FORTH] = r->held[BACK] = false;
        r->delay_ms = r->jitter_ms = 0;
    } else if (strcmp(verb, "reset") == 0) {
        return end_pairs(r);
    } else if (strcmp(verb, "leave") == 0) {
        leave(r);
        return end_pairs(r);
    } else if (strcmp(verb, "back") == 0) {
        leave(r);
        return listen_at(r, first, second);
    } else if (strcmp(verb, "count") != 0) {
        errno = ENOSYS;
        return -1;
    }
    return count_pairs(r);
}

static void obey(char *line)
{
    char verb[16] = "", name[32] = "", first[64] = "", second[64] = "";
    int sum = 0, n = 0, matched = 0;
    sscanf(line, "%15s %31s %63s %63s", verb, name, first, second);
    errno = ENOENT;
    if (strcmp(verb, "link") == 0) {
        sum = n = add_link(name, first, second);
        matched = 1;
    }
    for (int i = 0; i < n_routes && strcmp(verb, "link") != 0 && n >= 0; i++) {
        if (fnmatch(name, routes[i].name, 0) != 0) continue;
        matched++;
        n = act(&routes[i], verb, first, second);
        sum += n;
    }
    if (matched == 0 || n < 0)
        printf("no: %s: %s\n", line, strerror(errno));
    else
        printf("%d\n", sum);
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
/* Not polled: it has no descriptor, or the end of a held connection would wake us forever. */
static void watch(struct pollfd *f, const pair *p, int end, uint64_t now)
{
    const short out = may_write(p, 1 - end, now) ? POLLOUT : 0, in = may_read(p, end) ? POLLIN : 0;
    *f = (struct pollfd){.fd = p->fd[end], .events = (short)(in | out)};
    if (end == 1 && p->is_connecting) f->events = POLLOUT;
    if (f->events == 0) f->fd = -1;
}

static int until_due_ms(uint64_t now)
{
    uint64_t next = UINT64_MAX;
    for (const pair *p = pairs; p < pairs + PAIRS_MAX; p++)
        for (int w = 0; p->on != NULL && w < 2; w++) {
            const piece *f = p->way[w].first;
            if (f != NULL && !p->on->held[w] && f->due_us > now && f->due_us < next)
                next = f->due_us;
        }
    return next == UINT64_MAX ? -1 : (int)((next - now) / 1000 + 1);
}

int main(void)
{
    static struct pollfd fds[1 + LINKS_MAX + 2 * PAIRS_MAX];
    srandom(1);
    for (;;) {
        const uint64_t now = now_us();
        fds[0]             = (struct pollfd){.fd = 0, .events = POLLIN};
        for (int i = 0; i < LINKS_MAX; i++)
            fds[1 + i] = (struct pollfd){.fd = i < n_routes ? routes[i].fd : -1, .events = POLLIN};
        for (int i = 0; i < PAIRS_MAX; i++)
            for (int end = 0; end < 2; end++) {
                struct pollfd *f = &fds[1 + LINKS_MAX + 2 * i + end];
                *f               = (struct pollfd){.fd = -1};
                if (pairs[i].on != NULL) watch(f, &pairs[i], end, now);
            }
        if (poll(fds, sizeof fds / sizeof *fds, until_due_ms(now)) < 0 && errno != EINTR) return 1;
        for (int i = 0; i < PAIRS_MAX; i++) /* before new ones take their entries */
            if (pairs[i].on != NULL)
                serve(&pairs[i], fds[1 + LINKS_MAX + 2 * i].revents,
                      fds[2 + LINKS_MAX + 2 * i].revents);
        for (int i = 0; i < n_routes; i++)
            if (fds[1 + i].revents != 0 && routes[i].fd == fds[1 + i].fd) take_caller(&routes[i]);
        if (fds[0].revents != 0 && !read_commands()) return 0;
    }
}
