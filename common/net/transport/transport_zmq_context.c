/* transport_zmq_context.c - the one context of the process: ZeroMQ's threads, and what a fork does to them. */
#include "common/net/transport/transport_zmq.h"

#include "common/system/library.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NAME(name) "zmq_" #name,

struct zmq_functions zmq;

pen_status zmqctx_load(pen_error *why)
{
    static const char *const names[] = {ZMQ_FUNCTIONS(NAME)};
    return library_load(PENSTOCK_ZMQ, names, sizeof names / sizeof *names, &zmq, why);
}

enum { SOCKETS_MAX = 16384 }; /* of the process */

static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static void *context;
static unsigned context_users, monitors;
static atomic_uint generation;

/* A forked child has none of ZeroMQ's threads: it forgets the context and touches nothing. */
static void forget_context(void)
{
    context_lock  = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    context       = NULL;
    context_users = 0;
    curve_forget();
    atomic_fetch_add(&generation, 1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_context);
}

static void *context_create(uint32_t io_threads)
{
    void *made = zmq.ctx_new();
    if (made == NULL) return NULL;
    zmq.ctx_set(made, ZMQ_IO_THREADS, (int)io_threads);
    zmq.ctx_set(made, ZMQ_MAX_SOCKETS, SOCKETS_MAX);
    zmq.ctx_set(made, ZMQ_BLOCKY, 0);
    /* ZeroMQ allocates each large message and we free it in another thread.  By default glibc returns such blocks to
     * the kernel at once, and page faults take a fifth of the transfer time.  Freeing one block just below 32 MiB
     * raises both of its dynamic thresholds; mallopt() would switch that adaptation off for the whole program. */
    volatile char *block = malloc((32 << 20) - (64 << 10));
    if (block != NULL) block[0] = 0; /* keeps the compiler from removing the pair */
    free((void *)(uintptr_t)block);
    return made;
}

void *zmqctx_acquire(uint32_t io_threads, unsigned *number)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&context_lock);
    if (context == NULL) context = context_create(io_threads);
    if (context != NULL) context_users++;
    void *acquired = context;
    *number        = ++monitors;
    pthread_mutex_unlock(&context_lock);
    return acquired;
}

/* Ends the key service before the next context can be made, so that no context is without a service. */
void zmqctx_release(void)
{
    pthread_mutex_lock(&context_lock);
    void *last = --context_users == 0 ? context : NULL;
    if (last != NULL) {
        context = NULL;
        zmq.ctx_shutdown(last);
        curve_stop();
    }
    pthread_mutex_unlock(&context_lock);
    while (last != NULL && zmq.ctx_term(last) != 0 && errno == EINTR) {}
}

/* A ROUTER names its peers by a number that counts up from rand(), which every process starts alike, and libzmq aborts
 * when a peer has chosen the next name for itself.  So rand() is seeded for this call, and the program gets its own
 * sequence back. */
void *zmqctx_router(void *ctx)
{
    static char sequence[64];
    unsigned seed;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) return NULL;
    pthread_mutex_lock(&context_lock);
    char *before = initstate(seed, sequence, sizeof sequence);
    void *socket = zmq.socket(ctx, ZMQ_ROUTER);
    setstate(before);
    explicit_bzero(sequence, sizeof sequence);
    pthread_mutex_unlock(&context_lock);
    return socket;
}

unsigned zmqctx_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}
