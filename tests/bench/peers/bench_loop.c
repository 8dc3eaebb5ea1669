/* bench_loop.c - all_reduce of float32 sums in place as a plain loop: two threads, no checks, no other process.
 *
 *     bench_loop [MIN_BYTES MAX_BYTES FACTOR SECONDS]
 *
 * Contains no Penstock code. Each thread adds one half of both buffers and writes the sums to both, which reads and
 * writes each byte once; a call ends when both threads have ended theirs. Prints one JSON object for each size.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WARM_CALLS = 5 };

static float *a, *b;
static size_t n_elements;
static long n_calls;
static _Atomic long arrived;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void add(float *restrict x, float *restrict y, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = y[i] = x[i] + y[i];
}

static void *run_half(void *which)
{
    const size_t half = n_elements / 2, at = which == NULL ? 0 : half;
    for (long i = 1; i <= n_calls; i++) {
        add(a + at, b + at, which == NULL ? half : n_elements - half);
        atomic_fetch_add(&arrived, 1);
        while (atomic_load(&arrived) < 2 * i) continue;
    }
    return NULL;
}

/* The time of one call, or 0 without a second thread. */
static double measure(size_t n, long calls)
{
    pthread_t other;
    n_elements = n;
    n_calls    = calls;
    arrived    = 0;
    for (size_t i = 0; i < n; i++) a[i] = b[i] = (float)(i % 5);
    if (pthread_create(&other, NULL, run_half, &n_elements) != 0) return 0;
    const double start = now_s();
    run_half(NULL);
    const double time = (now_s() - start) / (double)calls;
    pthread_join(other, NULL);
    return time;
}

static int run_size(size_t bytes, double seconds)
{
    const size_t n     = bytes / sizeof *a;
    const double first = measure(n, WARM_CALLS);
    if (first <= 0) return 1;
    const long calls  = (long)(seconds / first) + 1;
    const double time = measure(n, calls);
    if (time <= 0) return 1;
    printf("{\"peer\":\"loop\",\"bytes\":%zu,\"time_us\":%.3f,\"algbw_GBps\":%.4f,\"iterations\":%"
           "ld}\n",
           bytes, time * 1e6, (double)bytes / time * 1e-9, calls);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    const size_t least   = argc > 1 ? strtoull(argv[1], NULL, 10) : 1 << 20;
    const size_t most    = argc > 2 ? strtoull(argv[2], NULL, 10) : 64 << 20;
    const size_t factor  = argc > 3 ? strtoull(argv[3], NULL, 10) : 4;
    const double seconds = argc > 4 ? strtod(argv[4], NULL) : 0.1;
    int code             = 0;
    if (least < sizeof *a || factor < 2 || most > (size_t)1 << 32) {
        fprintf(stderr, "usage: bench_loop [MIN_BYTES MAX_BYTES FACTOR SECONDS]\n");
        return 2;
    }
    a = aligned_alloc(4096, (most + 4095) / 4096 * 4096);
    b = aligned_alloc(4096, (most + 4095) / 4096 * 4096);
    if (a == NULL || b == NULL) code = 1;
    for (size_t bytes = least; code == 0 && bytes <= most; bytes *= factor)
        code = run_size(bytes, seconds);
    free(a);
    free(b);
    return code;
}
