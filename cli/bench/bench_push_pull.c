/* bench_push_pull.c - `penstock bench push-pull`: goodput of pushes and pulls beside the raw rate of ZeroMQ.
 *
 * The command starts a job of itself with `penstock run`; each rank then uses nothing but the public SDK.
 * Every tensor operation is a request of its own.  What is counted: bytes pushed + bytes pulled, over the time
 * from the first request to the end of the last.  Values are checked after every iteration, outside that time:
 * gradients and rates are chosen so that the sums are exact.
 * The limit is measured between iterations by another program (tests/bench/limits/limit_zmq.c), one way, with the
 * best number of lanes, while the ranks sleep.  A pair is one of ours and one of the limit's, and the ratio quoted is
 * the median over the pairs.
 */
#include "cli/bench/bench.h"
#include "cli/command.h"
#include "common/base/clock.h"

#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    uint64_t servers, replicas, ranks, bytes, keys, pairs;
    double seconds;
    int transport, commit;
    bool json, limit;
} push_pull_settings;

static const char *const transports[] = {"shm", "tcp", NULL};
static const char *const commits[]    = {"eager", "decide", NULL};

#define ROW(...) CONFIG_ROW(push_pull_settings, __VA_ARGS__)
/* clang-format off */
static const config_row rows[] = {
    ROW(servers,   U64,  "1",    1,     64,       NULL,       "Server processes.")
    ROW(replicas,  U64,  "0",    0,     2,        NULL,       "Copies of each part of the model on other servers.")
    ROW(ranks,     U64,  "1",    1,     64,       NULL,       "Worker processes.")
    ROW(bytes,     U64,  "4m",   4,     1 << 30,  NULL,       "Bytes of one tensor, float32.")
    ROW(keys,      U64,  "16",   1,     65536,    NULL,       "Tensors; each is pushed and pulled by a request of its own.")
    ROW(pairs,     U64,  "7",    1,     1000,     NULL,       "Alternating measurements of ours and of the limit.")
    ROW(seconds,   F64,  "0.5",  0.001, 60,       NULL,       "Length of each of our measurements.")
    ROW(transport, ENUM, "shm",  0,     0,        transports, "shm: lent where they lie; tcp: as between hosts.")
    ROW(commit,    ENUM, "eager",0,     0,        commits,    "eager: push_pull requests; decide: steps with a norm.")
    ROW(limit,     BOOL, "yes",  0,     0,        NULL,       "Measure the limit too.")
    ROW(json,      BOOL, "no",   0,     0,        NULL,       "Print one JSON object.")
    {0},
};
/* clang-format on */

enum { PAIRS_MAX = 1000, LATENCIES_MAX = 1 << 20 };
static const float rate =
    0.0078125f; /* 2^-7: with gradients of small integers every sum is exact */

typedef struct {
    push_pull_settings s;
    pen_ctx *ctx;
    int rank;
    size_t elements;
    pen_tensor **tensor;
    pen_req *request;
    double *issued_s;
    float *param, *grad; /* [keys][elements] */
    uint64_t steps;      /* done so far */
    double *latency;     /* of single operations, seconds */
    size_t n_latencies;
} rank_state;

static double seconds_now(void)
{
    return (double)clock_ns(&clock_real) * 1e-9;
}

static int fail(void)
{
    return command_fail(1, "%s", pen_last_error(NULL));
}

/* Gradient of key k on rank r: an integer from 1 to 4. */
static float gradient_value(size_t key, int rank)
{
    return (float)(1 + (key + (size_t)rank) % 4);
}

static float expected(const rank_state *w, size_t key)
{
    float sum = 0;
    for (uint64_t r = 0; r < w->s.ranks; r++) sum += gradient_value(key, (int)r);
    return -rate * (float)w->steps * (sum / (float)w->s.ranks);
}

static bool verify(const rank_state *w)
{
    for (size_t k = 0; k < w->s.keys; k++) {
        float want        = expected(w, k);
        const float *have = w->param + k * w->elements;
        for (size_t i = 0; i < w->elements; i++) {
            if (have[i] == want) continue;
            command_fail(1,
                         "tensor %zu, element %zu is %g after %" PRIu64 " steps, but should be %g",
                         k, i, (double)have[i], w->steps, (double)want);
            return false;
        }
    }
    return true;
}

static pen_status iterate_eager(rank_state *w)
{
    pen_status status = PEN_OK;
    for (size_t k = 0; k < w->s.keys && status == PEN_OK; k++) {
        w->issued_s[k] = seconds_now();
        status = pen_push_pull(w->ctx, w->tensor[k], PEN_ALL, NULL, NULL, NULL, &w->request[k]);
    }
    for (size_t k = 0; k < w->s.keys; k++) {
        pen_status ended = pen_wait(&w->request[k], NULL);
        if (status == PEN_OK) status = ended;
        if (w->n_latencies < LATENCIES_MAX)
            w->latency[w->n_latencies++] = seconds_now() - w->issued_s[k];
    }
    return status;
}

static pen_status iterate_decide(rank_state *w)
{
    pen_step step;
    double start      = seconds_now();
    pen_status status = pen_step_begin(w->ctx, &step);
    if (status != PEN_OK) return status;
    for (size_t k = 0; k < w->s.keys; k++) pen_ready(w->ctx, w->tensor[k], PEN_ALL);
    status = pen_step_end(w->ctx, &step);
    if (w->n_latencies < LATENCIES_MAX) w->latency[w->n_latencies++] = seconds_now() - start;
    return status;
}

/* Iterations for about s.seconds; the same number on all ranks.  Adds their time to *spent. */
static pen_status measure(rank_state *w, uint64_t iterations, double *spent)
{
    pen_status status = PEN_OK;
    for (uint64_t i = 0; i < iterations && status == PEN_OK; i++) {
        double start = seconds_now();
        status       = w->s.commit == 0 ? iterate_eager(w) : iterate_decide(w);
        *spent += seconds_now() - start;
        w->steps++;
        if (status == PEN_OK && !verify(w)) status = PEN_INTERNAL;
    }
    return status;
}

/* The separate program; its GB/s, or 0. */
static double run_limit(const push_pull_settings *s, int lanes, int *best_lanes)
{
    char self[1024], words[1400], line[512] = "";
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return 0;
    self[n]             = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(words, sizeof words,
             "'%s/limits/limit_zmq' --bytes %" PRIu64 " --lanes %d --seconds %g", self, s->bytes,
             lanes, s->seconds);
    FILE *pipe_ = popen(words, "r");
    if (pipe_ == NULL) return 0;
    if (fgets(line, sizeof line, pipe_) == NULL) line[0] = '\0';
    pclose(pipe_);
    json_t *result = json_loads(line, 0, NULL);
    double rate_   = json_number_value(json_object_get(result, "GBps"));
    if (best_lanes != NULL) *best_lanes = (int)json_integer_value(json_object_get(result, "lanes"));
    json_decref(result);
    return rate_;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, size_t n, double q)
{
    if (n == 0) return 0;
    qsort(values, n, sizeof *values, ascending);
    return values[(size_t)(q * (double)(n - 1) + 0.5)];
}

typedef struct {
    double ours[PAIRS_MAX], limit[PAIRS_MAX], ratio[PAIRS_MAX]; /* GB/s */
    size_t n;
    int lanes;
    double op_seconds; /* mean time of one tensor operation */
} pairs;

static void print_result(rank_state *w, pairs *p)
{
    const push_pull_settings *s = &w->s;
    double ours = quantile(p->ours, p->n, 0.5), limit = quantile(p->limit, p->n, 0.5);
    double p50   = quantile(w->latency, w->n_latencies, 0.5),
           p99   = quantile(w->latency, w->n_latencies, 0.99);
    double ops   = ours * 1e9 / (double)s->bytes;
    double ratio = quantile(p->ratio, p->n, 0.5);
    if (!s->json) {
        printf("push-pull  %" PRIu64 " keys of %" PRIu64 " bytes, %" PRIu64 " server(s), %" PRIu64
               " replica(s), %" PRIu64 " rank(s), %s, %s\n",
               s->keys, s->bytes, s->servers, s->replicas, s->ranks, transports[s->transport],
               commits[s->commit]);
        printf("           %.3f GB/s pushed + pulled   %.0f tensor operations/s   p50 %.0f us   "
               "p99 %.0f us\n",
               ours, ops, p50 * 1e6, p99 * 1e6);
        if (s->limit)
            printf("           limit (raw ZeroMQ, one way, %d lanes) %.3f GB/s   ratio %.3f (%.3f "
                   "to %.3f over %zu pairs)\n",
                   p->lanes, limit, ratio, p->ratio[0], p->ratio[p->n - 1], p->n);
        return;
    }
    json_t *o = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:b}", "bench",
        "push-pull", "bytes", (json_int_t)s->bytes, "keys", (json_int_t)s->keys, "ranks",
        (json_int_t)s->ranks, "servers", (json_int_t)s->servers, "replicas",
        (json_int_t)s->replicas, "transport", transports[s->transport], "rule", "sgd", "sync",
        "bsp", "commit", commits[s->commit], "time_us_p50", p50 * 1e6, "time_us_p99", p99 * 1e6,
        "algbw_GBps", ours, "busbw_GBps", ours, "ops_per_s", ops, "verified", 1);
    if (s->limit) {
        json_object_set_new(o, "limit_GBps", json_real(limit));
        json_object_set_new(o, "limit_lanes", json_integer(p->lanes));
        json_object_set_new(o, "ratio", json_real(ratio));
        json_object_set_new(o, "ratio_min", json_real(p->ratio[0]));
        json_object_set_new(o, "ratio_max", json_real(p->ratio[p->n - 1]));
    }
    json_object_set_new(o, "pairs", json_integer((json_int_t)p->n));
    json_object_set_new(o, "iterations", json_integer((json_int_t)w->steps));
    json_dumpf(o, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(o);
}

/* Rank 0's choice of a number, known to all. */
static pen_status agree(rank_state *w, double *value)
{
    double mine = w->rank == 0 ? *value : 0;
    return pen_all_reduce(pen_world(w->ctx), &mine, value, 1, PEN_F64, PEN_SUM, NULL, NULL);
}

static pen_status run_pairs(rank_state *w)
{
    pairs *p    = calloc(1, sizeof *p);
    double warm = 0, spent, iterations;
    if (p == NULL) return PEN_NO_MEMORY;
    pen_status status = measure(w, 2, &warm);
    warm              = 0;
    if (status == PEN_OK) status = measure(w, 3, &warm);
    iterations = w->s.seconds / (warm / 3) + 1;
    if (status == PEN_OK) status = agree(w, &iterations);
    if (status == PEN_OK && w->rank == 0 && w->s.limit) run_limit(&w->s, 0, &p->lanes);
    w->n_latencies = 0;
    for (p->n = 0; p->n < w->s.pairs && status == PEN_OK; p->n++) {
        status = pen_barrier(pen_world(w->ctx), NULL, NULL);
        spent  = 0;
        if (status == PEN_OK) status = measure(w, (uint64_t)iterations, &spent);
        p->ours[p->n] = 2.0 * (double)w->s.bytes * (double)w->s.keys * (double)w->s.ranks *
                        (double)(uint64_t)iterations / spent / 1e9;
        if (w->rank == 0 && w->s.limit) p->limit[p->n] = run_limit(&w->s, p->lanes, NULL);
        p->ratio[p->n] = p->limit[p->n] > 0 ? p->ours[p->n] / p->limit[p->n] : 0;
    }
    if (status == PEN_OK && w->rank == 0) print_result(w, p);
    free(p);
    return status;
}

static pen_status prepare(rank_state *w)
{
    char optim[64];
    snprintf(optim, sizeof optim, "optim=sgd lr=%g", (double)rate);
    const char *settings[] = {optim, w->s.commit == 0 ? "commit=eager" : "commit=decide",
                              "mode=ps-bsp", NULL};
    pen_status status      = pen_init(settings, &w->ctx);
    if (status != PEN_OK) return status;
    w->rank     = pen_rank(pen_world(w->ctx));
    w->elements = w->s.bytes / sizeof(float);
    size_t all  = w->elements * w->s.keys * sizeof(float);
    w->param    = pen_alloc(w->ctx, all, PEN_HOST);
    w->grad     = pen_alloc(w->ctx, all, PEN_HOST);
    w->tensor   = calloc(w->s.keys, sizeof *w->tensor);
    w->request  = calloc(w->s.keys, sizeof *w->request);
    w->issued_s = calloc(w->s.keys, sizeof *w->issued_s);
    w->latency  = calloc(LATENCIES_MAX, sizeof *w->latency);
    if (!w->param || !w->grad || !w->tensor || !w->request || !w->issued_s || !w->latency)
        return PEN_NO_MEMORY;
    for (size_t k = 0; k < w->s.keys; k++) {
        char name[32];
        snprintf(name, sizeof name, "key%zu", k);
        float *grad = w->grad + k * w->elements;
        for (size_t i = 0; i < w->elements; i++) grad[i] = gradient_value(k, w->rank);
        pen_register(w->ctx,
                     &(pen_tensor_desc){.name  = name,
                                        .ndim  = 1,
                                        .shape = {(int64_t)w->elements},
                                        .param = w->param + k * w->elements,
                                        .grad  = grad},
                     &w->tensor[k]);
    }
    return pen_commit(w->ctx);
}

int bench_push_pull_rank(int argc, char **argv)
{
    rank_state w = {0};
    int rest;
    int code =
        command_settings(rows, &w.s, argc, argv, "usage: penstock bench push-pull [...]", &rest);
    if (code >= 0) return code;
    pen_status status = prepare(&w);
    if (status == PEN_OK) status = run_pairs(&w);
    if (status != PEN_OK) code = fail();
    if (pen_finalize(w.ctx) != PEN_OK && code < 0) code = fail();
    pen_free(w.param);
    pen_free(w.grad);
    free(w.tensor);
    free(w.request);
    free(w.issued_s);
    free(w.latency);
    return code < 0 ? 0 : code;
}

int bench_push_pull(int argc, char **argv)
{
    push_pull_settings s;
    int rest, n = 0;
    char self[1024], servers[24], replicas[24], ranks[24];
    int code = command_settings(
        rows, &s, argc, argv,
        "usage: penstock bench push-pull [--servers S] [--ranks R] [--bytes B] [--keys K] [--json]",
        &rest);
    if (code >= 0) return code;
    if (rest < argc) return command_fail(EXIT_USAGE, "unexpected argument '%s'", argv[rest]);
    if (s.bytes % sizeof(float) != 0)
        return command_fail(EXIT_USAGE, "--bytes %" PRIu64 " is not a multiple of 4", s.bytes);
    if (s.transport == 1 && setenv("PENSTOCK_SHARED_MEMORY", "no", 1) != 0)
        return command_fail(1, "no memory");
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    if (size <= 0) return command_fail(1, "cannot find this program's own file: %m");
    self[size] = '\0';
    snprintf(servers, sizeof servers, "%" PRIu64, s.servers);
    snprintf(ranks, sizeof ranks, "%" PRIu64, s.ranks);
    snprintf(replicas, sizeof replicas, "%" PRIu64, s.replicas);

    char **words = calloc((size_t)argc + 16, sizeof *words);
    if (words == NULL) return command_fail(1, "no memory");
    const char *head[] = {
        "run",   "--standalone",  "--no-prefix", "--servers", servers, "--nproc-per-node",
        ranks,   "--replicas",    replicas,      "--job",     "bench", self,
        "bench", "push-pull-rank"};
    for (size_t i = 0; i < sizeof head / sizeof *head; i++) words[n++] = (char *)head[i];
    for (int i = 1; i < argc; i++) words[n++] = argv[i];
    code = command_run(n, words);
    free(words);
    return code;
}
