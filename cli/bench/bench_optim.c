/* bench_optim.c - penstock bench optim: an update rule, compared with memory bandwidth.
 *
 * DESIGN.  An update of more elements than the cache holds is bound by memory, so the figure is its bytes per second
 * over those of a plain copy loop.  Both are measured alternately, so that load and clock changes affect both.  The
 * limit is another program (limits/limit_memory) with the same number of threads and the same working set; its best
 * figure counts.  Several sets of arrays are updated in turn, so that no set stays in the last-level cache.
 */
#include "cli/bench/bench.h"

#include "cli/command.h"
#include "common/base/why.h"
#include "common/compute/optim/optim.h"
#include "common/compute/simd/simd.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PASSES = 3, PAIRS_MAX = 99, SETS_MAX = 4096, THREADS_MAX = 1024 };

typedef struct {
    char rule[CONFIG_TEXT_BYTES], simd[CONFIG_TEXT_BYTES];
    uint64_t elements, threads, pairs;
    bool json;
} settings;

#define ROW(...) CONFIG_ROW(settings, __VA_ARGS__)
/* clang-format off */
static const config_row rows[] = {
    ROW(rule, TEXT, "adamw", 0, 0, NULL, "Update rule and its options, as in the setting optim.")
    ROW(elements, U64, "16m", 1, 1e10, NULL, "Number of parameters in one set of arrays.")
    ROW(threads, U64, "1", 1, THREADS_MAX, NULL, "Number of threads.")
    ROW(simd, TEXT, "auto", 0, 0, NULL, "Instruction set: auto, scalar, avx2 or avx512.")
    ROW(pairs, U64, "7", 1, PAIRS_MAX, NULL, "Measurements, alternating with the limit; more are steadier.")
    ROW(json, BOOL, "no", 0, 0, NULL, "Print one JSON object.")
    {0},
};
/* clang-format on */

typedef struct {
    settings set;
    const optim_ops *ops;
    optim_hyper hyper;
    size_t bytes_per_element; /* moved by one update */
    size_t llc_bytes;
    size_t sets;     /* of arrays, updated one after the other */
    float *memory;   /* sets x (param, grad, slots), elements each */
    double *scratch; /* two doubles per block of one set: whole_tensor rules */
    uint64_t step;
    pthread_barrier_t barrier;
    bool is_over;
} bench;

typedef struct {
    bench *owner;
    size_t from, n; /* of every set */
} share;

/* ---- sizes -------------------------------------------------------------------------------- */

static size_t arrays_of(const optim_ops *ops)
{
    return 2 + (size_t)ops->slot_count;
}

/* Slots that an option leaves unused cause no traffic. */
static size_t slots_in_use(const optim_ops *ops, const optim_hyper *hyper)
{
    const simd_update u  = optim_scalars(ops, hyper, hyper->lr, 1, false);
    const unsigned slots = simd_slots(&u);
    return (slots & 1) + (slots >> 1 & 1) + (slots >> 2 & 1);
}

/* The gradient is read; parameter and slots are read and written.  Rules with norms read parameter and slots twice. */
static size_t bytes_per_element(const optim_ops *ops, const optim_hyper *hyper)
{
    const size_t slots = slots_in_use(ops, hyper);
    return 4 + 8 + 8 * slots + (ops->whole_tensor ? 4 + 4 * slots : 0);
}

static size_t positive(long value, size_t otherwise)
{
    return value > 0 ? (size_t)value : otherwise;
}

static size_t working_set(const bench *b)
{
    return b->sets * arrays_of(b->ops) * b->set.elements * sizeof(float);
}

/* ---- the update ------------------------------------------------------------------------------ */

static float *array_of(const bench *b, size_t set, size_t index)
{
    return b->memory + (set * arrays_of(b->ops) + index) * b->set.elements;
}

static optim_span span_of(const share *s, size_t set)
{
    const bench *b  = s->owner;
    optim_span span = {.param  = array_of(b, set, 0) + s->from,
                       .grad   = array_of(b, set, 1) + s->from,
                       .n      = s->n,
                       .step   = b->step,
                       .lr     = b->hyper.lr,
                       .gscale = 1};
    for (int i = 0; i < b->ops->slot_count; i++)
        span.slot[i] = array_of(b, set, 2 + (size_t)i) + s->from;
    return span;
}

/* Runs on the thread that will use the pages, so that they are local to it. */
static void fill(const share *s)
{
    const bench *b = s->owner;
    for (size_t set = 0; set < b->sets; set++) {
        for (size_t i = s->from; i < s->from + s->n; i++) {
            array_of(b, set, 0)[i] = 1.0f + 0.001f * (float)(i % 997);
            array_of(b, set, 1)[i] = 0.01f * (float)((int)(i % 31) - 15);
            for (size_t slot = 2; slot < arrays_of(b->ops); slot++) array_of(b, set, slot)[i] = 0;
        }
        const optim_span span = span_of(s, set);
        if (b->ops->slot_init != NULL) b->ops->slot_init(&b->hyper, &span);
    }
}

static void update(const share *s)
{
    bench *b = s->owner;
    for (size_t set = 0; set < b->sets; set++) {
        optim_span span = span_of(s, set);
        optim_apply(b->ops, &b->hyper, &span, 1, b->scratch + 2 * (s->from / SIMD_BLOCK));
    }
}

static void *work(void *arg)
{
    const share *s = arg;
    fill(s);
    pthread_barrier_wait(&s->owner->barrier);
    for (;;) {
        pthread_barrier_wait(&s->owner->barrier);
        if (s->owner->is_over) return NULL;
        update(s);
        pthread_barrier_wait(&s->owner->barrier);
    }
}

/* Seconds for all sets; the best of a few passes, as in the limit program. */
static double measure_update(bench *b, const share *own)
{
    double best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        b->step++;
        pthread_barrier_wait(&b->barrier);
        const double start = bench_seconds();
        update(own);
        pthread_barrier_wait(&b->barrier);
        const double took = bench_seconds() - start;
        if (pass == 0 || took < best) best = took;
    }
    return best;
}

/* ---- the limit ------------------------------------------------------------------------------- */

static pen_status measure_limit(const bench *b, double *gbps, pen_error *why)
{
    *gbps = bench_limit_rate(
        bench_limit("limit_memory %" PRIu64 " %zu", b->set.threads, working_set(b)));
    if (*gbps > 0) return PEN_OK;
    return why_set(why, PEN_NOT_FOUND,
                   "limits/limit_memory beside this program failed; it is built with the tests");
}

/* ---- pairs ----------------------------------------------------------------------------------- */

typedef struct {
    double update_s[PAIRS_MAX], gbps[PAIRS_MAX], limit[PAIRS_MAX], ratio[PAIRS_MAX];
} results;

static pen_status measure_pairs(bench *b, const share *own, results *r, pen_error *why)
{
    const double bytes = (double)b->bytes_per_element * (double)b->set.elements * (double)b->sets;
    measure_update(b, own); /* warm-up: first touch of all memory */
    for (uint64_t i = 0; i < b->set.pairs; i++) {
        const pen_status status = measure_limit(b, &r->limit[i], why);
        if (status != PEN_OK) return status;
        const double took = measure_update(b, own);
        r->update_s[i]    = took / (double)b->sets;
        r->gbps[i]        = 1e-9 * bytes / took;
        r->ratio[i]       = r->gbps[i] / r->limit[i];
    }
    return PEN_OK;
}

/* Consecutive parts of every set, split at block boundaries. */
static void split(bench *b, share *shares)
{
    const size_t n = b->set.elements, threads = b->set.threads;
    const size_t blocks = (n + SIMD_BLOCK - 1) / SIMD_BLOCK;
    for (size_t i = 0; i < threads; i++) {
        const size_t from = blocks * i / threads * SIMD_BLOCK;
        const size_t to   = blocks * (i + 1) / threads * SIMD_BLOCK;
        shares[i] = (share){.owner = b, .from = from, .n = from < n ? (to < n ? to : n) - from : 0};
    }
}

/* Runs the pairs on all threads; the others wait while the limit is measured. */
static pen_status run_threads(bench *b, results *r, pen_error *why)
{
    static share shares[THREADS_MAX];
    static pthread_t ids[THREADS_MAX];
    split(b, shares);
    pthread_barrier_init(&b->barrier, NULL, (unsigned)b->set.threads);
    for (size_t i = 1; i < b->set.threads; i++)
        if (pthread_create(&ids[i], NULL, work, &shares[i]) != 0)
            exit(command_fail(1, "bench optim: cannot start thread %zu", i));
    fill(&shares[0]);
    pthread_barrier_wait(&b->barrier);
    const pen_status status = measure_pairs(b, &shares[0], r, why);
    b->is_over              = true;
    pthread_barrier_wait(&b->barrier);
    for (size_t i = 1; i < b->set.threads; i++) pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&b->barrier);
    return status;
}

static pen_status run_bench(bench *b, results *r, pen_error *why)
{
    const size_t bytes  = working_set(b);
    const size_t blocks = (b->set.elements + SIMD_BLOCK - 1) / SIMD_BLOCK;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return why_set(why, PEN_NO_MEMORY, "no memory for a working set of %zu MB: %m",
                       bytes >> 20);
    b->memory         = memory;
    b->scratch        = calloc(2 * (blocks + 1), sizeof *b->scratch);
    pen_status status = b->scratch != NULL ? run_threads(b, r, why)
                                           : why_set(why, PEN_NO_MEMORY, "no memory for norms");
    free(b->scratch);
    munmap(memory, bytes);
    return status;
}

/* ---- report ---------------------------------------------------------------------------------- */

static void report(const bench *b, results *r)
{
    const size_t n = b->set.pairs, bytes = b->bytes_per_element * b->set.elements;
    const double p50   = 1e6 * bench_quantile(r->update_s, n, 0.5),
                 p99   = 1e6 * bench_quantile(r->update_s, n, 0.99);
    const double algbw = bench_quantile(r->gbps, n, 0.5), limit = bench_quantile(r->limit, n, 0.5);
    const double ratio = bench_quantile(r->ratio, n, 0.5);

    if (b->set.json)
        printf("{\"bench\":\"optim\",\"rule\":\"%s\",\"elements\":%" PRIu64 ",\"threads\":%" PRIu64
               ",\"simd\":\"%s\",\"bytes\":%zu,\"working_set_bytes\":%zu,\"llc_bytes\":%zu,"
               "\"pairs\":%zu,\"time_us_p50\":%.1f,\"time_us_p99\":%.1f,\"algbw_GBps\":%.3f,"
               "\"limit_GBps\":%.3f,\"ratio\":%.3f,\"ratio_min\":%.3f,\"ratio_max\":%.3f}\n",
               b->ops->name, b->set.elements, b->set.threads, simd()->name, bytes, working_set(b),
               b->llc_bytes, n, p50, p99, algbw, limit, ratio, r->ratio[0], r->ratio[n - 1]);
    else
        printf("%s, %" PRIu64 " elements, %" PRIu64
               " threads, %s: %.1f GB/s in %.2f ms; memory %.1f GB/s; "
               "ratio %.2f (%.2f to %.2f in %zu pairs, working set %zu MB)\n",
               b->ops->name, b->set.elements, b->set.threads, simd()->name, algbw, 1e-3 * p50,
               limit, ratio, r->ratio[0], r->ratio[n - 1], n, working_set(b) >> 20);
}

int bench_optim(int argc, char **argv)
{
    static const char usage[] = "usage: penstock bench optim [--rule RULE] [--elements N] "
                                "[--threads T] [--simd LEVEL] [--json]";
    static results measured;
    bench b = {0};
    pen_error why;
    const int code = command_settings(rows, &b.set, argc, argv, usage, NULL);
    if (code >= 0) return code;
    if (simd_choose(b.set.simd, &why) != PEN_OK ||
        optim_parse_of_tensor(b.set.rule, &b.ops, &b.hyper, &why) != PEN_OK)
        return command_fail(EXIT_USAGE, "bench optim: %s", why.text);

    b.bytes_per_element = bytes_per_element(b.ops, &b.hyper);
    /* Enough sets for four times the last-level cache, but at most a quarter of the memory: the limit program needs
     * the same amount. */
    const size_t page  = positive(sysconf(_SC_PAGESIZE), 4096);
    const size_t ram   = positive(sysconf(_SC_PHYS_PAGES), 1 << 18) * page;
    const size_t bytes = arrays_of(b.ops) * b.set.elements * sizeof(float);
    b.llc_bytes        = positive(sysconf(_SC_LEVEL3_CACHE_SIZE), 32 << 20);
    b.sets             = (4 * b.llc_bytes + bytes - 1) / bytes;
    if (b.sets > ram / 4 / bytes) b.sets = ram / 4 / bytes;
    if (b.sets < 1) b.sets = 1;
    if (b.sets > SETS_MAX) b.sets = SETS_MAX;
    if (b.sets * bytes < 4 * b.llc_bytes)
        fprintf(stderr,
                "penstock bench optim: working set of %zu MB is less than four times the "
                "last-level cache (%zu MB): the figure may measure the cache\n",
                b.sets * bytes >> 20, b.llc_bytes >> 20);
    if (run_bench(&b, &measured, &why) != PEN_OK)
        return command_fail(1, "bench optim: %s", why.text);
    report(&b, &measured);
    return 0;
}
