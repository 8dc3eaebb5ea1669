/* limit_zmq.c - how fast raw ZeroMQ moves messages one way over TCP loopback.
 *
 * A separate program on purpose: it contains no Penstock code. Like libzmq's local_thr and
 * remote_thr, one process sends and one receives, over L connections ("lanes"), each with its own
 * sender thread, receiver thread and I/O thread. Messages of 32 KiB and more are sent without a
 * copy. Queues hold at most 64 MiB.
 *   limit_zmq --bytes N [--lanes L] [--seconds S]     L = 0 tries 1 to 4 and reports the best
 * Prints {"bytes":N,"lanes":L,"GBps":G}; G counts 1e9 bytes.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { LANES_MAX = 16, QUEUE_BYTES = 64 << 20, WARM_US = 200000 };

static size_t bytes   = 1 << 20;
static double seconds = 1;
static void *context;

typedef struct {
    char address[64];
    void *socket;
    atomic_ullong received; /* bytes */
} lane;

static atomic_bool stop;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int queue_length(void)
{
    size_t n = QUEUE_BYTES / (bytes + 64);
    return n < 4 ? 4 : n > 10000 ? 10000 : (int)n;
}

static void keep(void *data, void *hint)
{
    (void)data;
    (void)hint;
}

static void *send_for_ever(void *arg)
{
    lane *l      = arg;
    int hwm      = queue_length();
    char *data   = malloc(bytes);
    void *socket = zmq_socket(context, ZMQ_PUSH);
    memset(data, 1, bytes);
    zmq_setsockopt(socket, ZMQ_SNDHWM, &hwm, sizeof hwm);
    if (zmq_connect(socket, l->address) != 0) exit(1);
    for (;;) {
        zmq_msg_t m;
        if (bytes >= 32 << 10) {
            zmq_msg_init_data(&m, data, bytes, keep, NULL);
        } else {
            zmq_msg_init_size(&m, bytes);
            memcpy(zmq_msg_data(&m), data, bytes);
        }
        zmq_msg_send(&m, socket, 0);
    }
    return NULL;
}

static void sender(lane *lanes, int n)
{
    pthread_t threads[LANES_MAX];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_IO_THREADS, n);
    for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, send_for_ever, &lanes[i]);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
}

static void *receive(void *arg)
{
    lane *l     = arg;
    int wait_ms = 100;
    zmq_msg_t m;
    zmq_msg_init(&m);
    zmq_setsockopt(l->socket, ZMQ_RCVTIMEO, &wait_ms, sizeof wait_ms);
    while (!atomic_load(&stop))
        if (zmq_msg_recv(&m, l->socket, 0) >= 0) atomic_fetch_add(&l->received, zmq_msg_size(&m));
    zmq_msg_close(&m);
    return NULL;
}

static double received_by(lane *lanes, int n)
{
    double bytes_ = 0;
    for (int i = 0; i < n; i++) bytes_ += (double)atomic_load(&lanes[i].received);
    return bytes_;
}

/* Measures all lanes over the same period, after queues have filled and windows have opened. */
static double rate_of(lane *lanes, int n)
{
    usleep(WARM_US);
    double bytes_0 = received_by(lanes, n), start = now_s();
    usleep((useconds_t)(seconds * 1e6));
    return (received_by(lanes, n) - bytes_0) / (now_s() - start);
}

static double measure(int n)
{
    lane lanes[LANES_MAX] = {0};
    pthread_t threads[LANES_MAX];
    int hwm = queue_length(), ready[2];
    if (pipe(ready) != 0) return 0;
    pid_t child = fork();
    if (child == 0) {
        if (read(ready[0], lanes, sizeof lanes) != sizeof lanes) _exit(1);
        sender(lanes, n);
        _exit(0);
    }
    context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_IO_THREADS, n);
    for (int i = 0; i < n; i++) {
        size_t size     = sizeof lanes[i].address;
        lanes[i].socket = zmq_socket(context, ZMQ_PULL);
        zmq_setsockopt(lanes[i].socket, ZMQ_RCVHWM, &hwm, sizeof hwm);
        zmq_bind(lanes[i].socket, "tcp://127.0.0.1:*");
        zmq_getsockopt(lanes[i].socket, ZMQ_LAST_ENDPOINT, lanes[i].address, &size);
    }
    if (write(ready[1], lanes, sizeof lanes) != sizeof lanes) return 0;
    atomic_store(&stop, false);
    for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, receive, &lanes[i]);
    double rate = rate_of(lanes, n);
    atomic_store(&stop, true);
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int i = 0; i < n; i++) {
        int none = 0;
        zmq_setsockopt(lanes[i].socket, ZMQ_LINGER, &none, sizeof none);
        zmq_close(lanes[i].socket);
    }
    zmq_ctx_term(context);
    close(ready[0]);
    close(ready[1]);
    return rate / 1e9;
}

int main(int argc, char **argv)
{
    int lanes = 1, best = 1;
    double rate = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--bytes") == 0)
            bytes = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--lanes") == 0)
            lanes = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = atof(argv[i + 1]);
    }
    if (bytes < 1 || lanes < 0 || lanes > LANES_MAX || !(seconds > 0)) {
        fprintf(stderr, "usage: limit_zmq --bytes N [--lanes 0..%d] [--seconds S]\n", LANES_MAX);
        return 2;
    }
    for (int n = lanes == 0 ? 1 : lanes; n <= (lanes == 0 ? 4 : lanes); n++) {
        double one = measure(n);
        if (one > rate) {
            rate = one;
            best = n;
        }
    }
    printf("{\"bytes\": %zu, \"lanes\": %d, \"GBps\": %.4f}\n", bytes, best, rate);
    return rate > 0 ? 0 : 1;
}
