/* limit_memory.c - how fast this machine moves memory with all its cores: copy, triad and memcpy, as STREAM counts them.
 *
 *     limit_memory [THREADS [BYTES]]      0 threads: one for each core; BYTES: all three arrays together (256 MiB)
 *
 * Contains no Penstock code. Prints one JSON line with the best of five passes of each loop, and
 * the best of all as "GBps". Each loop exists with plain stores and with non-temporal stores, which
 * avoid the fetch of lines that are only overwritten: for large arrays the second is the true
 * limit. The bytes counted are those the source reads and writes (McCalpin's STREAM): 16 per copied
 * double, 24 per triad.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { PASSES = 5, THREADS_MAX = 1024, LOOPS = 5, DOUBLES = 8 /* per cache line */ };

/* Vectors as wide as the processor's; and copy stays a loop instead of a memcpy. */
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

#if defined(__x86_64__)
/* Shares begin and end at cache lines, so that every store is a whole vector. */
__attribute__((target("avx512f"))) static void copy_wide(double *to, const double *from, size_t n)
{
    for (size_t i = 0; i < n; i += DOUBLES) _mm512_stream_pd(to + i, _mm512_load_pd(from + i));
}

__attribute__((target("avx512f"))) static void triad_wide(double *to, const double *x,
                                                          const double *y, size_t n)
{
    const __m512d three = _mm512_set1_pd(3.0);
    for (size_t i = 0; i < n; i += DOUBLES)
        _mm512_stream_pd(to + i, _mm512_add_pd(_mm512_load_pd(x + i),
                                               _mm512_mul_pd(three, _mm512_load_pd(y + i))));
}

static void copy_past(double *to, const double *from, size_t n)
{
    if (__builtin_cpu_supports("avx512f"))
        copy_wide(to, from, n);
    else
        for (size_t i = 0; i < n; i += 2) _mm_stream_pd(to + i, _mm_load_pd(from + i));
    _mm_sfence();
}

static void triad_past(double *to, const double *x, const double *y, size_t n)
{
    const __m128d three = _mm_set1_pd(3.0);
    if (__builtin_cpu_supports("avx512f"))
        triad_wide(to, x, y, n);
    else
        for (size_t i = 0; i < n; i += 2)
            _mm_stream_pd(to + i,
                          _mm_add_pd(_mm_load_pd(x + i), _mm_mul_pd(three, _mm_load_pd(y + i))));
    _mm_sfence();
}
#else
#define copy_past  copy
#define triad_past triad
#endif

static void run_loop(int loop, size_t from, size_t n)
{
    if (loop == 0) copy(c + from, a + from, n);
    if (loop == 1) triad(a + from, b + from, c + from, n);
    if (loop == 2) copy_past(c + from, a + from, n);
    if (loop == 3) triad_past(a + from, b + from, c + from, n);
    if (loop == 4) memcpy(c + from, a + from, n * sizeof *a);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double best_s[LOOPS] = {1e9, 1e9, 1e9, 1e9, 1e9}; /* written only by thread 0 */

static void *work(void *arg)
{
    const size_t self  = (size_t)(uintptr_t)arg;
    const size_t share = n_elements / n_threads / DOUBLES * DOUBLES;
    const size_t from = self * share, n = self + 1 < n_threads ? share : n_elements - from;
    for (size_t i = from; i < from + n; i++) { /* pages land near the thread that uses them */
        a[i] = 1.0;
        b[i] = 2.0;
        c[i] = 0.0;
    }
    for (int pass = 0; pass < PASSES; pass++)
        for (int loop = 0; loop < LOOPS; loop++) {
            pthread_barrier_wait(&barrier);
            const double start = now();
            run_loop(loop, from, n);
            pthread_barrier_wait(&barrier);
            const double took = now() - start;
            if (self == 0 && took < best_s[loop]) best_s[loop] = took;
        }
    return NULL;
}

static double *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("limit_memory: mmap");
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
            fprintf(stderr, "limit_memory: cannot start thread %zu\n", i);
            exit(1);
        }
    work((void *)(uintptr_t)0);
    for (size_t i = 1; i < n_threads; i++) pthread_join(threads[i], NULL);
}

/* Computes the loops' results one element at a time, and reports a wrong one. */
static int check(void)
{
    double x = 1.0, z = 0.0;
    for (int pass = 0; pass < PASSES; pass++) {
        for (int pair = 0; pair < 2; pair++) {
            z = x;
            x = 2.0 + 3.0 * z;
        }
        z = x; /* memcpy */
    }
    for (size_t i = 0; i < n_elements; i++)
        if (a[i] != x || b[i] != 2.0 || c[i] != z) {
            fprintf(stderr, "limit_memory: wrong value at %zu\n", i);
            return 1;
        }
    return 0;
}

int main(int argc, char **argv)
{
    const size_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 256 << 20;
    n_threads          = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    if (n_threads == 0) n_threads = (size_t)sysconf(_SC_NPROCESSORS_ONLN);
    n_elements = bytes / 3 / sizeof(double) / DOUBLES * DOUBLES;
    if (argc > 3 || n_threads > THREADS_MAX || n_elements / DOUBLES < n_threads) {
        fprintf(stderr, "usage: limit_memory [THREADS [BYTES]]\n");
        return 2;
    }
    a = map(n_elements * sizeof *a);
    b = map(n_elements * sizeof *b);
    c = map(n_elements * sizeof *c);
    run_threads();
    if (check() != 0) return 1;

    const double gb                = 1e-9 * (double)n_elements * sizeof(double);
    static const int arrays[LOOPS] = {2, 3, 2, 3, 2}; /* read and written */
    double rate[LOOPS], best = 0;
    for (int loop = 0; loop < LOOPS; loop++) {
        rate[loop] = arrays[loop] * gb / best_s[loop];
        if (rate[loop] > best) best = rate[loop];
    }
    printf("{\"threads\":%zu,\"bytes\":%zu,\"copy_GBps\":%.3f,\"triad_GBps\":%.3f,"
           "\"stream_copy_GBps\":%.3f,\"stream_triad_GBps\":%.3f,\"memcpy_GBps\":%.3f,\"GBps\":%."
           "3f}\n",
           n_threads, bytes, rate[0], rate[1], rate[2], rate[3], rate[4], best);
    return 0;
}
