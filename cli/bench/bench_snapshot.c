/* bench_snapshot.c - `penstock bench snapshot`: overhead of snapshots on training, and their write speed.
 *
 * The command starts a job of itself with `penstock run` and a store; each rank uses only the public SDK.  One pair is
 *   quiet   `steps` steps without a snapshot, each timed;
 *   busy    the same number while snapshots are written back to back;
 *   write   one snapshot without training: from the end of its step until it is complete on all servers;
 *   limit   the same number of bytes by another program (tests/bench/limits/limit_disk.c): writes and one fdatasync.
 * The stall is the 99th percentile of busy steps over that of quiet ones; reported figures are medians over the pairs.
 */
#include "cli/bench/bench.h"
#include "cli/command.h"
#include "common/compute/optim/optim.h"

#include <inttypes.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    uint64_t servers, ranks, bytes, keys, pairs, steps, compute_ms;
    char rule[CONFIG_TEXT_BYTES], dir[CONFIG_TEXT_BYTES];
    bool json;
} snapshot_settings;

#define ROW(...) CONFIG_ROW(snapshot_settings, __VA_ARGS__)
/* clang-format off */
static const config_row rows[] = {
    ROW(servers,    U64,  "1",    1, 64,      NULL, "Server processes.")
    ROW(ranks,      U64,  "1",    1, 64,      NULL, "Worker processes.")
    ROW(bytes,      U64,  "4m",   4, 1 << 30, NULL, "Bytes per tensor, float32.")
    ROW(keys,       U64,  "16",   1, 65536,   NULL, "Number of tensors.")
    ROW(pairs,      U64,  "7",    1, 100,     NULL, "Measurements, alternating without and with snapshots.")
    ROW(steps,      U64,  "200",  10, 100000, NULL, "Steps per measurement.")
    ROW(compute_ms, U64,  "0",    0, 10000,   NULL, "Simulated compute time per step.")
    ROW(rule,       TEXT, "adamw lr=1e-3", 0, 0, NULL, "Update rule; its state is part of the snapshot.")
    ROW(dir,        TEXT, "",     0, 0,       NULL, "Directory on the disk to measure; empty: the current directory.")
    ROW(json,       BOOL, "no",   0, 0,       NULL, "Print one JSON object.")
    {0},
};
/* clang-format on */

enum { PAIRS_MAX = 100, SETTLE_US = 50000 };

typedef struct {
    snapshot_settings s;
    pen_ctx *ctx;
    int rank;
    uint64_t part_bytes; /* of one snapshot, over all servers */
    float *param, *grad;
    pen_tensor **tensor;
    double *time; /* [steps] seconds */
    uint64_t snapshots;
} rank_state;

typedef struct {
    double quiet[PAIRS_MAX], busy[PAIRS_MAX], stall[PAIRS_MAX]; /* p99, seconds */
    double quiet_p50[PAIRS_MAX], busy_p50[PAIRS_MAX];           /* seconds */
    double rate[PAIRS_MAX], limit[PAIRS_MAX], ratio[PAIRS_MAX]; /* GB/s */
    double snapshots[PAIRS_MAX];                                /* while busy */
    size_t n;
} results;

/* ---- one rank -------------------------------------------------------------------------------- */
static pen_status take_step(rank_state *w, double *spent)
{
    pen_step step;
    if (w->s.compute_ms > 0) usleep((useconds_t)w->s.compute_ms * 1000);
    const double start = bench_seconds();
    pen_status status  = pen_step_begin(w->ctx, &step);
    if (status != PEN_OK) return status;
    for (size_t k = 0; k < w->s.keys; k++) pen_ready(w->ctx, w->tensor[k], PEN_ALL);
    status = pen_step_end(w->ctx, &step);
    *spent = bench_seconds() - start;
    return status;
}

/* Requests a snapshot when none is in progress; counts the complete ones. */
static pen_status keep_busy(rank_state *w, pen_req *request, bool *is_asked)
{
    if (w->rank != 0) return PEN_OK;
    if (*is_asked) {
        size_t which;
        pen_result unused;
        const pen_status status = pen_wait_any(request, 1, 0, &which, &unused);
        if (status == PEN_AGAIN) return PEN_OK;
        if (status != PEN_OK) return status;
        w->snapshots++;
    }
    *is_asked = true;
    return pen_snapshot(w->ctx, NULL, request);
}

/* Steps until rank 0 has no outstanding request; all ranks take the same number. */
static pen_status calm_down(rank_state *w, pen_req *request, bool is_asked)
{
    double unused, left = 1;
    pen_status status = PEN_OK;
    while (status == PEN_OK) {
        size_t which;
        pen_result result;
        if (is_asked) {
            status   = pen_wait_any(request, 1, 0, &which, &result);
            is_asked = status == PEN_AGAIN;
            if (is_asked) status = PEN_OK;
        }
        double mine = is_asked;
        if (status == PEN_OK)
            status =
                pen_all_reduce(pen_world(w->ctx), &mine, &left, 1, PEN_F64, PEN_SUM, NULL, NULL);
        if (status != PEN_OK || left == 0) return status;
        status = take_step(w, &unused);
    }
    return status;
}

static pen_status run_steps(rank_state *w, bool with_snapshots)
{
    pen_req request   = {0};
    bool is_asked     = false;
    pen_status status = PEN_OK;
    w->snapshots      = 0;
    for (uint64_t i = 0; i < w->s.steps && status == PEN_OK; i++) {
        if (with_snapshots) status = keep_busy(w, &request, &is_asked);
        if (status == PEN_OK) status = take_step(w, &w->time[i]);
    }
    return status == PEN_OK ? calm_down(w, &request, is_asked) : status;
}

/* One snapshot without training; GB/s. */
static pen_status write_alone(rank_state *w, double *rate)
{
    pen_req request = {0};
    double unused, end = 0, start;
    pen_status status = w->rank == 0 ? pen_snapshot(w->ctx, NULL, &request) : PEN_OK;
    usleep(SETTLE_US); /* the request goes to the scheduler and back; the next step takes it */
    if (status == PEN_OK) status = pen_barrier(pen_world(w->ctx), NULL, NULL);
    if (status == PEN_OK) status = take_step(w, &unused);
    start = bench_seconds();
    if (status == PEN_OK && w->rank == 0) status = pen_wait(&request, NULL);
    end = bench_seconds();
    if (status == PEN_OK) status = pen_barrier(pen_world(w->ctx), NULL, NULL);
    *rate = (double)w->part_bytes / (end - start) / 1e9;
    return status;
}

static pen_status run_pair(rank_state *w, results *p, size_t i)
{
    pen_status status = run_steps(w, false);
    p->quiet[i]       = bench_quantile(w->time, w->s.steps, 0.99);
    p->quiet_p50[i]   = bench_quantile(w->time, w->s.steps, 0.5);
    if (status == PEN_OK) status = run_steps(w, true);
    p->busy[i]      = bench_quantile(w->time, w->s.steps, 0.99);
    p->busy_p50[i]  = bench_quantile(w->time, w->s.steps, 0.5);
    p->snapshots[i] = (double)w->snapshots;
    p->stall[i]     = p->busy[i] / p->quiet[i];
    if (status == PEN_OK) status = write_alone(w, &p->rate[i]);
    p->limit[i] =
        status == PEN_OK && w->rank == 0
            ? bench_limit_rate(bench_limit("limit_disk '%s' %" PRIu64, w->s.dir, w->part_bytes))
            : 0;
    p->ratio[i] = p->limit[i] > 0 ? p->rate[i] / p->limit[i] : 0;
    return status == PEN_OK ? pen_barrier(pen_world(w->ctx), NULL, NULL) : status;
}

static void print_result(const rank_state *w, results *p)
{
    const snapshot_settings *s = &w->s;
    const size_t n             = p->n;
    const double stall = bench_quantile(p->stall, n, 0.5), ratio = bench_quantile(p->ratio, n, 0.5);
    const double quiet = bench_quantile(p->quiet, n, 0.5), busy = bench_quantile(p->busy, n, 0.5);
    const double rate = bench_quantile(p->rate, n, 0.5), limit = bench_quantile(p->limit, n, 0.5);
    if (!s->json) {
        printf("snapshot   %" PRIu64 " keys of %" PRIu64 " bytes, %s, %" PRIu64
               " server(s), %" PRIu64 " rank(s), %.1f MB a snapshot\n",
               s->keys, s->bytes, s->rule, s->servers, s->ranks, (double)w->part_bytes / 1e6);
        printf("           step p99 %.2f ms without, %.2f ms with snapshots (%.0f in %" PRIu64
               " steps)   stall %.2f (%.2f to %.2f over %zu pairs)\n",
               quiet * 1e3, busy * 1e3, bench_quantile(p->snapshots, n, 0.5), s->steps, stall,
               p->stall[0], p->stall[n - 1], n);
        printf("           written at %.2f GB/s   limit (plain file, fdatasync) %.2f GB/s   ratio "
               "%.2f (%.2f to %.2f)\n",
               rate, limit, ratio, p->ratio[0], p->ratio[n - 1]);
        return;
    }
    json_t *o = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:f, s:f, s:f, s:I, s:I}",
        "bench", "snapshot", "bytes", (json_int_t)s->bytes, "keys", (json_int_t)s->keys, "ranks",
        (json_int_t)s->ranks, "servers", (json_int_t)s->servers, "rule", s->rule, "compute_ms",
        (json_int_t)s->compute_ms, "snapshot_bytes", (json_int_t)w->part_bytes, "quiet_us_p50",
        bench_quantile(p->quiet_p50, n, 0.5) * 1e6, "busy_us_p50",
        bench_quantile(p->busy_p50, n, 0.5) * 1e6, "quiet_us_p99", quiet * 1e6, "busy_us_p99",
        busy * 1e6, "stall", stall, "stall_min", p->stall[0], "stall_max", p->stall[n - 1],
        "snapshots", bench_quantile(p->snapshots, n, 0.5), "write_GBps", rate, "limit_GBps", limit,
        "ratio", ratio, "ratio_min", p->ratio[0], "pairs", (json_int_t)n, "steps",
        (json_int_t)s->steps);
    json_object_set_new(o, "ratio_max", json_real(p->ratio[n - 1]));
    command_print_json(o, JSON_COMPACT);
}

static pen_status run_pairs(rank_state *w)
{
    results *p    = calloc(1, sizeof *p);
    double unused = 0;
    if (p == NULL) return PEN_NO_MEMORY;
    pen_status status = PEN_OK;
    for (int i = 0; i < 10 && status == PEN_OK; i++) status = take_step(w, &unused);
    if (status == PEN_OK)
        status = write_alone(w, &unused); /* memory and files for the first time */
    for (; p->n < w->s.pairs && status == PEN_OK; p->n++) status = run_pair(w, p, p->n);
    if (status == PEN_OK && w->rank == 0) print_result(w, p);
    free(p);
    return status;
}

static pen_status prepare(rank_state *w)
{
    char optim[CONFIG_TEXT_BYTES + 8];
    const optim_ops *rule;
    optim_hyper hyper;
    pen_error why;
    if (optim_parse(w->s.rule, &rule, &hyper, &why) != PEN_OK) {
        command_fail(1, "%s", why.text);
        return why.status;
    }
    snprintf(optim, sizeof optim, "optim=%s", w->s.rule);
    const char *settings[]  = {optim, "mode=ps-bsp", NULL};
    const pen_status status = pen_init(settings, &w->ctx);
    if (status != PEN_OK) return status;
    const size_t elements = w->s.bytes / sizeof(float), all = elements * w->s.keys;
    w->rank       = pen_rank(pen_world(w->ctx));
    w->part_bytes = all * sizeof(float) * (uint64_t)(1 + rule->slot_count);
    w->param      = pen_alloc(w->ctx, all * sizeof(float), PEN_HOST);
    w->grad       = pen_alloc(w->ctx, all * sizeof(float), PEN_HOST);
    w->tensor     = calloc(w->s.keys, sizeof *w->tensor);
    w->time       = calloc(w->s.steps, sizeof *w->time);
    if (!w->param || !w->grad || !w->tensor || !w->time) return PEN_NO_MEMORY;
    for (size_t i = 0; i < all; i++) w->grad[i] = (float)(1 + i % 7) * 0.01f;
    for (size_t k = 0; k < w->s.keys; k++) {
        char name[32];
        snprintf(name, sizeof name, "key%zu", k);
        pen_register(w->ctx,
                     &(pen_tensor_desc){.name  = name,
                                        .ndim  = 1,
                                        .shape = {(int64_t)elements},
                                        .param = w->param + k * elements,
                                        .grad  = w->grad + k * elements},
                     &w->tensor[k]);
    }
    return pen_commit(w->ctx);
}

int bench_snapshot_rank(int argc, char **argv)
{
    rank_state w = {0};
    int code =
        command_settings(rows, &w.s, argc, argv, "usage: penstock bench snapshot [...]", NULL);
    if (code >= 0) return code;
    pen_status status = prepare(&w);
    if (status == PEN_OK) status = run_pairs(&w);
    if (status != PEN_OK) code = command_fail(1, "%s", pen_last_error(NULL));
    if (pen_finalize(w.ctx) != PEN_OK && code < 0)
        code = command_fail(1, "%s", pen_last_error(NULL));
    pen_free(w.param);
    pen_free(w.grad);
    free(w.tensor);
    free(w.time);
    return code < 0 ? 0 : code;
}

/* ---- the job --------------------------------------------------------------------------------- */
static int run_job(const snapshot_settings *s, const char *folder, int argc, char **argv)
{
    char store_dir[400];
    snprintf(store_dir, sizeof store_dir, "%s/store", folder);
    int kept = 0;
    for (int i = 1; i < argc; i++) { /* the ranks get the new folder as --dir */
        if (strncmp(argv[i], "--dir", 5) != 0)
            argv[kept++] = argv[i];
        else if (argv[i][5] == '\0')
            i++;
    }
    const char *const flags[] = {"--store", store_dir, NULL};
    const char *const verb[]  = {"snapshot-rank", "--dir", folder, NULL};
    return bench_run_job(s->servers, s->ranks, flags, verb, kept, argv);
}

int bench_snapshot(int argc, char **argv)
{
    snapshot_settings s;
    char folder[300];
    int code =
        command_settings(rows, &s, argc, argv,
                         "usage: penstock bench snapshot [--servers S] [--ranks R] [--bytes B] "
                         "[--keys K] [--dir DIR] [--json]",
                         NULL);
    if (code >= 0) return code;
    if (s.bytes % sizeof(float) != 0)
        return command_fail(EXIT_USAGE, "--bytes %" PRIu64 " is not a multiple of 4", s.bytes);
    snprintf(folder, sizeof folder, "%s/penstock-bench-XXXXXX", s.dir[0] != '\0' ? s.dir : ".");
    if (mkdtemp(folder) == NULL)
        return command_fail(1, "cannot create the directory %s: %m", folder);
    code = run_job(&s, folder, argc, argv);
    char words[600];
    snprintf(words, sizeof words, "rm -rf '%s'", folder);
    if (system(words) != 0) fprintf(stderr, "penstock: cannot remove %s\n", folder);
    return code;
}
