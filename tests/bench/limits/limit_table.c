/* limit_table.c - how many keys a second a bare table of rows serves over a plain socket.
 *
 *     limit_table [--rows N] [--dim D] [--batch B] [--in-flight F] [--push 0|1] [--seconds S] [--unix 0|1]
 *
 * Contains no Penstock code.  A child process has a table of N rows of D floats, found by open addressing; this one sends
 * batches of keys, Zipf 0.99, each key of a batch once and in order, F batches in flight, and reads the rows.  With --push
 * a batch brings gradients too, and adagrad updates the rows before they are read.  No checksums, copies, numbers or
 * answers beyond the rows: what is left is the socket and the memory.  Prints one JSON line; keys_per_s counts the keys
 * that were drawn, before a batch lost its repeated ones.
 */
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 1000, WARM = 200 };

static struct {
    long rows, dim, batch, in_flight, push, local;
    double seconds;
} set = {1000000, 32, 500, 8, 0, 0, 0.5};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void send_all(int fd, const void *data, size_t size)
{
    for (size_t at = 0; at < size;) {
        const ssize_t n = send(fd, (const char *)data + at, size - at, MSG_NOSIGNAL);
        if (n <= 0) exit(0);
        at += (size_t)n;
    }
}

static void recv_all(int fd, void *data, size_t size)
{
    for (size_t at = 0; at < size;) {
        const ssize_t n = recv(fd, (char *)data + at, size - at, 0);
        if (n <= 0) exit(0);
        at += (size_t)n;
    }
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
    return x ^ x >> 33;
}

/* ---- the table ------------------------------------------------------------------------------- */
typedef struct {
    uint64_t key;
    uint32_t row;
} entry;

static entry *table;
static uint64_t mask;
static float *row; /* [rows][2][dim]: values, and the sums of adagrad */

static uint32_t find(uint64_t key)
{
    uint64_t i = mix(key) & mask;
    while (table[i].row == 0 || table[i].key != key) i = (i + 1) & mask;
    return table[i].row - 1;
}

static void make_table(void)
{
    for (mask = 1024; mask < (uint64_t)set.rows * 2;) mask *= 2;
    table = calloc(mask--, sizeof *table);
    row   = malloc((size_t)(2 * set.rows * set.dim) * sizeof *row);
    if (table == NULL || row == NULL) fail("memory");
    for (size_t i = 0; i < (size_t)(2 * set.rows * set.dim); i++) row[i] = 1;
    for (long r = 0; r < set.rows; r++) {
        uint64_t i = mix(mix((uint64_t)r)) & mask;
        while (table[i].row != 0) i = (i + 1) & mask;
        table[i] = (entry){mix((uint64_t)r), (uint32_t)r + 1};
    }
}

/* Vectors as wide as the processor's. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("no-math-errno")))
#endif
static void
update(float *restrict w, float *restrict s, const float *restrict g, size_t dim)
{
    for (size_t e = 0; e < dim; e++) {
        s[e] += g[e] * g[e];
        w[e] -= 0.01f * g[e] / (sqrtf(s[e]) + 1e-10f);
    }
}

static void serve(int fd)
{
    const size_t dim = (size_t)set.dim, bytes = dim * sizeof(float);
    uint64_t *key = malloc((size_t)set.batch * sizeof *key);
    uint32_t *at  = malloc((size_t)set.batch * sizeof *at), n;
    float *grad = malloc((size_t)set.batch * bytes), *out = malloc((size_t)set.batch * bytes);
    if (key == NULL || at == NULL || grad == NULL || out == NULL) fail("memory");
    for (;;) {
        recv_all(fd, &n, sizeof n);
        recv_all(fd, key, n * sizeof *key);
        if (set.push) recv_all(fd, grad, n * bytes);
        for (uint32_t i = 0; i < n; i++) __builtin_prefetch(&table[mix(key[i]) & mask]);
        for (uint32_t i = 0; i < n; i++) {
            at[i]            = find(key[i]);
            const char *line = (const char *)&row[2 * at[i] * dim];
            for (size_t b = 0; b < (set.push ? 2 * bytes : bytes) && b < 512; b += 64)
                __builtin_prefetch(line + b);
        }
        for (uint32_t i = 0; i < n; i++) {
            float *w = &row[2 * at[i] * dim];
            if (set.push) update(w, w + dim, &grad[i * dim], dim);
            memcpy(&out[i * dim], w, bytes);
        }
        send_all(fd, out, n * bytes);
    }
}

/* ---- batches --------------------------------------------------------------------------------- */
static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994. */
static uint64_t draw_zipf(double zeta, double theta, uint64_t *seed)
{
    const double n = (double)set.rows, alpha = 1 / (1 - theta);
    const double eta = (1 - pow(2 / n, 1 - theta)) / (1 - (1 + pow(0.5, theta)) / zeta);
    const double u   = (double)(mix(++*seed) >> 11) / 9007199254740992.0;
    if (u * zeta < 1) return 0;
    if (u * zeta < 1 + pow(0.5, theta)) return 1;
    const uint64_t i = (uint64_t)(n * pow(eta * u - eta + 1, alpha));
    return i < (uint64_t)set.rows ? i : (uint64_t)set.rows - 1;
}

static uint64_t *keys;
static uint32_t *counts;

static void make_batches(void)
{
    double zeta   = 0;
    uint64_t seed = 1;
    keys          = malloc((size_t)(BATCHES * set.batch) * sizeof *keys);
    counts        = malloc(BATCHES * sizeof *counts);
    if (keys == NULL || counts == NULL) fail("memory");
    for (long i = 1; i <= set.rows; i++) zeta += pow((double)i, -0.99);
    for (long b = 0; b < BATCHES; b++) {
        uint64_t *k = &keys[b * set.batch];
        uint32_t n  = 0;
        for (long i = 0; i < set.batch; i++) k[i] = mix(draw_zipf(zeta, 0.99, &seed));
        qsort(k, (size_t)set.batch, sizeof *k, by_number);
        for (long i = 0; i < set.batch; i++)
            if (n == 0 || k[i] != k[n - 1]) k[n++] = k[i];
        counts[b] = n;
    }
}

static sem_t may_send;

static void *send_batches(void *user)
{
    const int fd       = *(int *)user;
    const size_t bytes = (size_t)set.dim * sizeof(float);
    float *grad        = calloc((size_t)set.batch, bytes);
    if (grad == NULL) fail("memory");
    for (long sent = 0;; sent++) {
        const long b          = sent % BATCHES;
        struct iovec part[3]  = {{&counts[b], sizeof counts[b]},
                                 {&keys[b * set.batch], counts[b] * sizeof *keys},
                                 {grad, set.push ? counts[b] * bytes : 0}};
        struct msghdr message = {.msg_iov = part, .msg_iovlen = 3};
        const size_t all      = part[0].iov_len + part[1].iov_len + part[2].iov_len;
        sem_wait(&may_send);
        const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (n <= 0) exit(0);
        for (size_t at = (size_t)n, i = 0, begin = 0; at < all && i < 3; begin += part[i++].iov_len)
            if (at < begin + part[i].iov_len) { /* the rest, after a full buffer */
                send_all(fd, (char *)part[i].iov_base + (at - begin), begin + part[i].iov_len - at);
                at = begin + part[i].iov_len;
            }
    }
}

static void run(int fd)
{
    const size_t bytes = (size_t)set.dim * sizeof(float);
    float *in          = malloc((size_t)set.batch * bytes);
    double start = 0, spent = 0;
    pthread_t sender;
    if (in == NULL) fail("memory");
    if (sem_init(&may_send, 0, (unsigned)set.in_flight) != 0 ||
        pthread_create(&sender, NULL, send_batches, &fd) != 0)
        fail("thread");
    long got = 0;
    for (; spent<set.seconds; spent = got> WARM ? now_s() - start : 0) {
        recv_all(fd, in, counts[got % BATCHES] * bytes);
        sem_post(&may_send);
        if (++got == WARM) start = now_s();
    }
    printf("{\"limit\":\"table\",\"rows\":%ld,\"dim\":%ld,\"batch\":%ld,\"push\":%ld,\"keys_per_"
           "s\":%.0f}\n",
           set.rows, set.dim, set.batch, set.push, (double)((got - WARM) * set.batch) / spent);
    fflush(stdout);
    shutdown(fd, SHUT_RDWR);
    (void)wait(NULL); /* its memory is gone before others measure */
    _exit(0);
}

static void connect_pair(int fd[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size        = sizeof at;
    if (set.local) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fd) != 0) fail("socketpair");
        return;
    }
    const int door = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (door < 0 || bind(door, (struct sockaddr *)&at, size) != 0 || listen(door, 1) != 0 ||
        getsockname(door, (struct sockaddr *)&at, &size) != 0)
        fail("listen");
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (fd[0] < 0 || connect(fd[0], (struct sockaddr *)&at, size) != 0) fail("connect");
    fd[1] = accept(door, NULL, NULL);
    for (int i = 0; i < 2; i++) setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(door);
}

int main(int argc, char **argv)
{
    int fd[2];
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--rows") == 0) set.rows = atol(argv[i + 1]);
        if (strcmp(argv[i], "--dim") == 0) set.dim = atol(argv[i + 1]);
        if (strcmp(argv[i], "--batch") == 0) set.batch = atol(argv[i + 1]);
        if (strcmp(argv[i], "--in-flight") == 0) set.in_flight = atol(argv[i + 1]);
        if (strcmp(argv[i], "--push") == 0) set.push = atol(argv[i + 1]);
        if (strcmp(argv[i], "--unix") == 0) set.local = atol(argv[i + 1]);
        if (strcmp(argv[i], "--seconds") == 0) set.seconds = atof(argv[i + 1]);
    }
    if (set.rows < 2 || set.dim < 1 || set.batch < 1 || set.in_flight < 1) return 2;
    connect_pair(fd);
    const pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        close(fd[0]);
        make_table();
        serve(fd[1]);
    }
    close(fd[1]);
    make_batches();
    run(fd[0]);
    return 0;
}
