/* bench_push_pull.c - `penstock bench push-pull`: goodput of pushes and pulls, compared with raw ZeroMQ.
 *
 * The command starts a job of itself with `penstock run`; each rank uses only the public SDK.  Each tensor
 * operation is one request.  The goodput is bytes pushed + bytes pulled, over the time from the first request to the
 * end of the last.  Values are checked after every iteration, outside that time; gradients and rates are chosen so
 * that sums are exact.
 * The limit is measured between iterations by another program (tests/bench/limits/limit_zmq.c), one way, with the
 * best number of lanes, while the ranks sleep.  A pair is one measurement of each; the reported ratio is the median
 * over the pairs.
 */
#include "cli/bench/bench.h"
#include "cli/command.h"

#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t servers, replicas, ranks, bytes, keys, pairs;
    double seconds;
    int over, commit;
    bool verify, json, limit;
} push_pull_settings;

static const char *const commits[] = {"eager", "decide", NULL};

#define ROW(...) CONFIG_ROW(push_pull_settings, __VA_ARGS__)
/* clang-format off */
static const config_row rows[] = {
    ROW(servers,   U64,  "1",    1,     64,       NULL,       "Server processes.")
    ROW(replicas,  U64,  "0",    0,     2,        NULL,       "Copies of each shard on other servers.")
    ROW(ranks,     U64,  "1",    1,     64,       NULL,       "Worker processes.")
    ROW(bytes,     U64,  "4m",   4,     1 << 30,  NULL,       "Bytes per tensor, float32.")
    ROW(keys,      U64,  "16",   1,     65536,    NULL,       "Number of tensors; each is one push-pull request.")
    ROW(pairs,     U64,  "7",    1,     1000,     NULL,       "Measurements, alternating with the limit.")
    ROW(seconds,   F64,  "0.5",  0.001, 60,       NULL,       "Length of each measurement.")
    ROW(over,      ENUM, "shm",  0,     0,        bench_transports, BENCH_TRANSPORTS)
    ROW(commit,    ENUM, "eager",0,     0,        commits,    "eager: push_pull requests; decide: steps with a global norm.")
    ROW(verify,    BOOL, "yes",  0,     0,        NULL,       "Compare each value with the expected one, outside of the measured time.")
    ROW(limit,     BOOL, "yes",  0,     0,        NULL,       "Also measure the limit.")
    ROW(json,      BOOL, "no",   0,     0,        NULL,       "Print one JSON object.")
    {0},
};
/* clang-format on */

enum { PAIRS_MAX = 1000, LATENCIES_MAX = 1 << 20 };
static const float rate = 0.0078125f; /* 2^-7: with small integer gradients every sum is exact */

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

static int fail(void)
{
    return command_fail(1, "%s", pen_last_error(NULL));
}

/* Gradient of key k on rank r: an integer from 1 to 4. */
static float gradient_value(size_t key, int rank)
{
    return (float)(1 + (key + (size_t)rank) % 4);
}

static bool verify(const rank_state *w)
{
    for (size_t k = 0; k < w->s.keys; k++) {
        float sum = 0;
        for (uint64_t r = 0; r < w->s.ranks; r++) sum += gradient_value(k, (int)r);
        float want        = -rate * (float)w->steps * (sum / (float)w->s.ranks);
        const float *have = w->param + k * w->elements;
        for (size_t i = 0; i < w->elements; i++) {
            if (have[i] == want) continue;
            command_fail(1, "tensor %zu, element %zu is %g after %" PRIu64 " steps, expected %g", k,
                         i, (double)have[i], w->steps, (double)want);
            return false;
        }
    }
    return true;
}

static pen_status iterate_eager(rank_state *w)
{
    pen_status status = PEN_OK;
    for (size_t k = 0; k < w->s.keys && status == PEN_OK; k++) {
        w->issued_s[k] = bench_seconds();
        status = pen_push_pull(w->ctx, w->tensor[k], PEN_ALL, NULL, NULL, NULL, &w->request[k]);
    }
    for (size_t k = 0; k < w->s.keys; k++) {
        pen_status ended = pen_wait(&w->request[k], NULL);
        if (status == PEN_OK) status = ended;
        if (w->n_latencies < LATENCIES_MAX)
            w->latency[w->n_latencies++] = bench_seconds() - w->issued_s[k];
    }
    return status;
}

static pen_status iterate_decide(rank_state *w)
{
    pen_step step;
    double start      = bench_seconds();
    pen_status status = pen_step_begin(w->ctx, &step);
    if (status != PEN_OK) return status;
    for (size_t k = 0; k < w->s.keys; k++) pen_ready(w->ctx, w->tensor[k], PEN_ALL);
    status = pen_step_end(w->ctx, &step);
    if (w->n_latencies < LATENCIES_MAX) w->latency[w->n_latencies++] = bench_seconds() - start;
    return status;
}

/* Adds the time of the iterations to *spent. */
static pen_status measure(rank_state *w, uint64_t iterations, double *spent)
{
    pen_status status = PEN_OK;
    for (uint64_t i = 0; i < iterations && status == PEN_OK; i++) {
        double start = bench_seconds();
        status       = w->s.commit == 0 ? iterate_eager(w) : iterate_decide(w);
        *spent += bench_seconds() - start;
        w->steps++;
        if (status == PEN_OK && w->s.verify && !verify(w)) status = PEN_INTERNAL;
    }
    return status;
}

/* GB/s of the limit program, or 0. */
static double run_limit(const push_pull_settings *s, int lanes, int *best_lanes)
{
    json_t *result = bench_limit("limit_zmq --bytes %" PRIu64 " --lanes %d --seconds %g", s->bytes,
                                 lanes, s->seconds);
    if (best_lanes != NULL) *best_lanes = (int)json_integer_value(json_object_get(result, "lanes"));
    return bench_limit_rate(result);
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
    double ours = bench_quantile(p->ours, p->n, 0.5), limit = bench_quantile(p->limit, p->n, 0.5);
    double p50   = bench_quantile(w->latency, w->n_latencies, 0.5),
           p99   = bench_quantile(w->latency, w->n_latencies, 0.99);
    double ops   = ours * 1e9 / (double)s->bytes;
    double ratio = bench_quantile(p->ratio, p->n, 0.5);
    if (!s->json) {
        printf("push-pull  %" PRIu64 " keys of %" PRIu64 " bytes, %" PRIu64 " server(s), %" PRIu64
               " replica(s), %" PRIu64 " rank(s), %s, %s\n",
               s->keys, s->bytes, s->servers, s->replicas, s->ranks, bench_transports[s->over],
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
        (json_int_t)s->replicas, "transport", bench_transports[s->over], "rule", "sgd", "sync",
        "bsp", "commit", commits[s->commit], "time_us_p50", p50 * 1e6, "time_us_p99", p99 * 1e6,
        "algbw_GBps", ours, "busbw_GBps", ours, "ops_per_s", ops, "verified", s->verify);
    if (s->limit) {
        json_object_set_new(o, "limit_GBps", json_real(limit));
        json_object_set_new(o, "limit_lanes", json_integer(p->lanes));
        json_object_set_new(o, "ratio", json_real(ratio));
        json_object_set_new(o, "ratio_min", json_real(p->ratio[0]));
        json_object_set_new(o, "ratio_max", json_real(p->ratio[p->n - 1]));
    }
    json_object_set_new(o, "pairs", json_integer((json_int_t)p->n));
    json_object_set_new(o, "iterations", json_integer((json_int_t)w->steps));
    command_print_json(o, JSON_COMPACT);
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
    if (status == PEN_OK) {
        /* Gives all ranks rank 0's value. */
        double mine = w->rank == 0 ? iterations : 0;
        status =
            pen_all_reduce(pen_world(w->ctx), &mine, &iterations, 1, PEN_F64, PEN_SUM, NULL, NULL);
    }
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
    int code =
        command_settings(rows, &w.s, argc, argv, "usage: penstock bench push-pull [...]", NULL);
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
    char replicas[24];
    const int code = command_settings(
        rows, &s, argc, argv,
        "usage: penstock bench push-pull [--servers S] [--ranks R] [--bytes B] [--keys K] [--json]",
        NULL);
    if (code >= 0) return code;
    if (s.bytes % sizeof(float) != 0)
        return command_fail(EXIT_USAGE, "--bytes %" PRIu64 " is not a multiple of 4", s.bytes);
    if (!bench_use_transport(s.over)) return command_fail(1, "no memory");
    snprintf(replicas, sizeof replicas, "%" PRIu64, s.replicas);
    const char *const flags[] = {"--replicas", replicas, NULL};
    const char *const verb[]  = {"push-pull-rank", NULL};
    return bench_run_job(s.servers, s.ranks, flags, verb, argc - 1, argv + 1);
}
