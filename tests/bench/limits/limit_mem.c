/* limit_mem.c - how fast this machine moves memory: copy, triad and memcpy, as STREAM counts them.
 *
 *     limit_mem THREADS BYTES      BYTES: all three arrays together
 *
 * No code of Penstock is in here.  Prints one JSON line with the best of five passes of each.
 * Bytes are those the source says are read and written (McCalpin's STREAM): 16 per copied double,
 * 24 per triad; lines fetched only to be overwritten are not counted, so memcpy, whose large copies
 * bypass the cache, usually comes out on top.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PASSES = 5, THREADS_MAX = 1024, KERNELS = 3 };

/* As wide as the processor can, so that the limit is the memory's; and copy stays a loop of its own
 * instead of being recognised and replaced by memcpy. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#define WIDEST                                                                                     \
    __attribute__((target_clones("avx512f", "avx2", "default"),                                    \
                   optimize("no-tree-loop-distribute-patterns")))
#else
#define WIDEST
#endif

static double *a, *b, *c;
static size_t n_threads, n_elements;
static pthread_barrier_t barrier;

WIDEST static void copy(double *restrict to, const double *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}

WIDEST static void triad(double *restrict to, const double *restrict x, const double *restrict y,
                         size_t n)
{
    for (size_t i = 0; i < n; i++) to[i] = x[i] + 3.0 * y[i];
}

static void run_kernel(int kernel, size_t from, size_t n)
{
    if (kernel == 0) copy(c + from, a + from, n);
    if (kernel == 1) triad(a + from, b + from, c + from, n);
    if (kernel == 2) memcpy(b + from, a + from, n * sizeof *a);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double best_s[KERNELS] = {1e9, 1e9, 1e9}; /* written by thread 0 alone */

static void *work(void *arg)
{
    const size_t self = (size_t)(uintptr_t)arg, share = n_elements / n_threads;
    const size_t from = self * share, n = self + 1 < n_threads ? share : n_elements - from;
    for (size_t i = from; i < from + n; i++) { /* pages land near the thread that uses them */
        a[i] = 1.0;
        b[i] = 2.0;
        c[i] = 0.0;
    }
    for (int pass = 0; pass < PASSES; pass++)
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            pthread_barrier_wait(&barrier);
            const double start = now();
            run_kernel(kernel, from, n);
            pthread_barrier_wait(&barrier);
            const double took = now() - start;
            if (self == 0 && took < best_s[kernel]) best_s[kernel] = took;
        }
    return NULL;
}

static double *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("limit_mem: mmap");
        exit(1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static void run_threads(void)
{
    static pthread_t threads[THREADS_MAX];
    pthread_barrier_init(&barrier, NULL, (unsigned)n_threads);
    for (size_t i = 1; i < n_threads; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) != 0) {
            fprintf(stderr, "limit_mem: cannot start thread %zu\n", i);
            exit(1);
        }
    work((void *)(uintptr_t)0);
    for (size_t i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
}

/* Uses the result, so that no pass can be left out, and says so if memory did not do as told. */
static int check(void)
{
    for (size_t i = 0; i < n_elements; i++)
        if (c[i] != c[0] || a[i] != b[i]) {
            fprintf(stderr, "limit_mem: wrong value at %zu\n", i);
            return 1;
        }
    return 0;
}

int main(int argc, char **argv)
{
    const size_t bytes = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    n_threads          = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
    n_elements         = bytes / 3 / sizeof(double);
    if (n_threads < 1 || n_threads > THREADS_MAX || n_elements < n_threads) {
        fprintf(stderr, "usage: limit_mem THREADS BYTES\n");
        return 2;
    }
    a = map(n_elements * sizeof *a);
    b = map(n_elements * sizeof *b);
    c = map(n_elements * sizeof *c);
    run_threads();
    if (check() != 0) return 1;

    const double gb = 1e-9 * (double)n_elements * sizeof(double);
    printf("{\"threads\":%zu,\"bytes\":%zu,\"copy_GBps\":%.3f,\"triad_GBps\":%.3f,\"memcpy_GBps\":%"
           ".3f}\n",
           n_threads, bytes, 2 * gb / best_s[0], 3 * gb / best_s[1], 2 * gb / best_s[2]);
    return 0;
}
