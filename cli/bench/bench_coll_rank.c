/* bench_coll_rank.c - one rank of a collective benchmark: checks and measures; rank 0 reports. */
#include "cli/bench/bench.h"
#include "cli/bench/bench_coll.h"
#include "common/compute/device/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LATENCIES_MAX = 1 << 20,
    WARM_CALLS    = 5,
    LIMIT_BYTES   = 256 << 20 /* far more than the caches of a core */
};

typedef bench_coll_state rank_state;

/* ---- the call -------------------------------------------------------------------------------- */

static pen_status send_recv(rank_state *w)
{
    pen_req req       = {0};
    const int next    = (w->c.rank + 1) % w->c.ranks;
    const int before  = (w->c.rank + w->c.ranks - 1) % w->c.ranks;
    pen_status status = pen_send(w->world, w->in, w->c.n, w->c.dtype, next, 0, NULL, &req);
    if (status == PEN_OK)
        status = pen_recv(w->world, w->out, w->c.n, w->c.dtype, before, 0, NULL, NULL);
    const pen_status sent = pen_wait(&req, NULL);
    return status == PEN_OK ? sent : status;
}

static pen_status call(rank_state *w)
{
    const bench_coll_case *c = &w->c;
    pen_group *g             = w->world;
    const pen_opts *o        = w->s.overwrite ? &(pen_opts){.flags = PEN_OVERWRITE} : NULL;
    switch (c->kind) {
    case BENCH_ALL_REDUCE: return pen_all_reduce(g, w->in, w->out, c->n, c->dtype, c->op, o, NULL);
    case BENCH_BROADCAST: return pen_broadcast(g, w->out, c->n, c->dtype, c->root, o, NULL);
    case BENCH_REDUCE: return pen_reduce(g, w->in, w->out, c->n, c->dtype, c->op, c->root, o, NULL);
    case BENCH_ALL_GATHER: return pen_all_gather(g, w->in, c->n, w->out, NULL, c->dtype, o, NULL);
    case BENCH_REDUCE_SCATTER:
        return pen_reduce_scatter(g, w->in, NULL, w->out, c->n, c->dtype, c->op, o, NULL);
    case BENCH_GATHER: return pen_gather(g, w->in, c->n, w->out, NULL, c->dtype, c->root, o, NULL);
    case BENCH_SCATTER:
        return pen_scatter(g, w->in, NULL, w->out, c->n, c->dtype, c->root, o, NULL);
    case BENCH_ALL_TO_ALL:
        return pen_all_to_all(g, w->in, NULL, w->out, NULL, c->n, c->dtype, o, NULL);
    case BENCH_BARRIER: return pen_barrier(g, o, NULL);
    default: return send_recv(w);
    }
}

/* ---- buffers --------------------------------------------------------------------------------- */

static size_t bytes_of(const rank_state *w, size_t elements)
{
    return elements * bench_coll_dtype_bytes(w->c.dtype);
}

static void place(rank_state *w)
{
    const size_t own = bytes_of(w, bench_coll_in_place(&w->c));
    w->in            = w->a;
    w->out           = w->b;
    if (w->kind == BENCH_BROADCAST) w->in = w->out;
    if (w->s.in_place == 0 || w->kind == BENCH_BROADCAST || w->kind == BENCH_SEND_RECV) return;
    if (w->kind == BENCH_ALL_GATHER || w->kind == BENCH_GATHER)
        w->in = w->c.rank == w->c.root || w->kind == BENCH_ALL_GATHER ? w->b + own : w->a;
    else if (w->kind != BENCH_SCATTER || w->c.rank == w->c.root)
        w->out = w->a + own;
    if (w->kind == BENCH_REDUCE && w->c.rank != w->c.root) w->out = NULL;
}

/* Copies between host and device; returns when the copy is complete. */
static pen_status copy(rank_state *w, void *to, const void *from, size_t bytes,
                       const void *of_device)
{
    pen_error why            = {0};
    const device_ops *device = device_of(of_device);
    pen_status status        = device->copy(to, from, bytes, NULL, &why);
    device_event *event      = status == PEN_OK ? device->event_new() : NULL;
    if (event != NULL) status = device->event_record(event, NULL, &why);
    while (event != NULL && status == PEN_OK &&
           (status = device->event_done(event, &why)) == PEN_AGAIN)
        status = PEN_OK;
    if (event != NULL) device->event_free(event);
    if (status != PEN_OK) w->is_told = command_fail(1, "%s", why.text) != 0;
    return status;
}

static pen_status fill(rank_state *w)
{
    const size_t n = bench_coll_in_elements(&w->c), n_out = bench_coll_out_elements(&w->c);
    if (w->staging == NULL) {
        if (w->out != NULL && w->in != w->out) memset(w->out, 0, bytes_of(w, n_out));
        bench_coll_fill(&w->c, w->in, n);
        return PEN_OK;
    }
    bench_coll_fill(&w->c, w->staging, n);
    return n > 0 ? copy(w, w->in, w->staging, bytes_of(w, n), w->in) : PEN_OK;
}

static pen_status verify(rank_state *w)
{
    char sentence[256];
    const size_t bytes = bytes_of(w, bench_coll_out_elements(&w->c));
    const void *out    = w->out;
    if (w->staging != NULL && bytes > 0) {
        pen_status status = copy(w, w->staging, w->out, bytes, w->out);
        if (status != PEN_OK) return status;
        out = w->staging;
    }
    if (bench_coll_verify(&w->c, out, sentence, sizeof sentence)) return PEN_OK;
    w->is_told = command_fail(1, "%s of %zu bytes: %s", bench_coll_names[w->kind],
                              bytes_of(w, w->c.n), sentence) != 0;
    return PEN_CORRUPT;
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Makes all ranks use the same value: rank 0's (PEN_SUM) or the mean. */
static pen_status agree(rank_state *w, double *value, pen_op op)
{
    double mine = op == PEN_SUM && w->c.rank != 0 ? 0 : *value;
    return pen_all_reduce(w->world, &mine, value, 1, PEN_F64, op, NULL, NULL);
}

/* Minimum memory traffic per byte of a call: each input is read once, each output written once. */
static double traffic(bench_coll_kind kind, double ranks)
{
    switch (kind) {
    case BENCH_ALL_REDUCE:
    case BENCH_ALL_TO_ALL:
    case BENCH_SEND_RECV: return 2 * ranks;
    case BENCH_BROADCAST: return ranks;
    case BENCH_REDUCE:
    case BENCH_ALL_GATHER:
    case BENCH_REDUCE_SCATTER: return ranks + 1;
    case BENCH_GATHER:
    case BENCH_SCATTER: return 2;
    default: return 0;
    }
}

static double bus_factor(bench_coll_kind kind, double ranks)
{
    if (kind == BENCH_ALL_REDUCE) return 2 * (ranks - 1) / ranks;
    return bench_coll_has_parts(kind) ? (ranks - 1) / ranks : 1;
}

/* Time of one call, averaged over ranks. */
static pen_status measure(rank_state *w, uint64_t calls, double *time_s)
{
    pen_status status  = pen_barrier(w->world, NULL, NULL);
    const double start = bench_seconds();
    double before      = start;
    for (uint64_t i = 0; i < calls && status == PEN_OK; i++) {
        status           = call(w);
        const double now = bench_seconds();
        if (w->n_latencies < LATENCIES_MAX) w->latency[w->n_latencies++] = now - before;
        before = now;
    }
    *time_s = (before - start) / (double)calls;
    return status == PEN_OK ? agree(w, time_s, PEN_AVG) : status;
}

typedef struct {
    double time_s[BENCH_COLL_PAIRS_MAX], limit[BENCH_COLL_PAIRS_MAX], ratio[BENCH_COLL_PAIRS_MAX];
} pairs;

static bool has_limit(const rank_state *w)
{
    return w->s.limit && w->s.over == 0 && w->s.device == 0 && w->kind != BENCH_BARRIER;
}

static pen_status run_pairs(rank_state *w, bench_coll_row *row, pairs *p)
{
    const double per_byte = traffic(w->kind, w->c.ranks), bytes = (double)row->bytes;
    pen_status status = PEN_OK;
    w->n_latencies    = 0;
    for (size_t i = 0; i < w->s.pairs && status == PEN_OK; i++) {
        status = measure(w, row->iterations, &p->time_s[i]);
        if (!has_limit(w) || w->c.rank != 0) continue;
        const double working_set = fmax(per_byte * bytes, LIMIT_BYTES);
        p->limit[i] =
            bench_limit_rate(bench_limit("limit_memory 0 %.0f", floor(working_set))) / per_byte;
        p->ratio[i] = p->limit[i] > 0 ? bytes / p->time_s[i] * 1e-9 / p->limit[i] : 0;
    }
    return status;
}

static void conclude(rank_state *w, bench_coll_row *row, pairs *p)
{
    const size_t n = w->s.pairs;
    row->time_s    = bench_quantile(p->time_s, n, 0.5);
    row->algbw     = (double)row->bytes / row->time_s * 1e-9;
    row->busbw     = row->algbw * bus_factor(w->kind, w->c.ranks);
    row->p50_s     = bench_quantile(w->latency, w->n_latencies, 0.5);
    row->p99_s     = bench_quantile(w->latency, w->n_latencies, 0.99);
    row->limit     = bench_quantile(p->limit, n, 0.5);
    row->ratio     = bench_quantile(p->ratio, n, 0.5);
    row->ratio_min = p->ratio[0];
    row->ratio_max = p->ratio[n - 1];
    row->iterations *= n;
}

/* Warms up, so that memory is mapped, and chooses the number of calls per measurement. */
static pen_status calibrate(rank_state *w, bench_coll_row *row)
{
    double time_s = 0;
    pen_status status;
    if ((status = measure(w, WARM_CALLS, &time_s)) != PEN_OK) return status;
    if ((status = measure(w, WARM_CALLS, &time_s)) != PEN_OK) return status;
    double calls    = w->s.seconds / (double)w->s.pairs / time_s + 1;
    status          = agree(w, &calls, PEN_SUM);
    row->iterations = (uint64_t)calls;
    return status;
}

pen_status bench_coll_measure(bench_coll_state *w, size_t bytes, bench_coll_row *row)
{
    const size_t element = bench_coll_dtype_bytes(w->c.dtype);
    const size_t parts   = bench_coll_has_parts(w->kind) ? (size_t)w->c.ranks : 1;
    pairs *p             = calloc(1, sizeof *p);
    if (p == NULL) return PEN_NO_MEMORY;
    w->c.n        = w->kind == BENCH_BARRIER ? 0 : bytes / element / parts;
    row->bytes    = w->c.n * element * parts;
    row->elements = w->c.n * parts;
    place(w);
    pen_status status = fill(w);
    if (status == PEN_OK) status = call(w);
    if (status == PEN_OK) status = verify(w);
    if (status == PEN_OK) status = calibrate(w, row);
    if (status == PEN_OK) status = run_pairs(w, row, p);
    const bool is_kept = w->s.in_place == 0 || !bench_coll_reduces(w->kind);
    if (status == PEN_OK && is_kept && w->kind != BENCH_ALL_TO_ALL) status = verify(w);
    if (status == PEN_OK) conclude(w, row, p);
    free(p);
    return status;
}

static pen_status run_size(rank_state *w, size_t bytes)
{
    bench_coll_row *row = &w->row[w->n_rows++];
    pen_status status   = bench_coll_measure(w, bytes, row);
    if (status == PEN_OK && w->c.rank == 0) bench_coll_report_row(w->kind, &w->s, row);
    return status;
}

static pen_status run_sizes(rank_state *w)
{
    pen_status status = PEN_OK;
    if (w->c.rank == 0) bench_coll_report_begin(w->kind, &w->s);
    if (w->s.bytes > 0 || w->kind == BENCH_BARRIER) return run_size(w, w->s.bytes);
    for (uint64_t bytes = w->s.min_bytes;
         bytes <= w->s.max_bytes && status == PEN_OK && w->n_rows < BENCH_COLL_SIZES_MAX;
         bytes *= w->s.factor)
        status = run_size(w, bytes);
    return status;
}

/* ---- one rank -------------------------------------------------------------------------------- */

static void *new_buffer(const rank_state *w, size_t bytes)
{
    if (w->s.device == 1) return pen_alloc(w->ctx, bytes, PEN_CUDA);
    return w->s.registered ? pen_alloc(w->ctx, bytes, PEN_HOST) : calloc(1, bytes);
}

static void free_buffer(const rank_state *w, void *buffer)
{
    if (w->s.registered)
        pen_free(buffer);
    else
        free(buffer);
}

pen_status bench_coll_begin(bench_coll_state *w)
{
    pen_status status = pen_init(NULL, &w->ctx);
    if (status != PEN_OK) return status;
    w->world           = pen_world(w->ctx);
    w->s.ranks         = (uint64_t)pen_size(w->world);
    w->c               = (bench_coll_case){.kind  = w->kind,
                                           .dtype = bench_coll_dtype(&w->s),
                                           .op    = (pen_op)w->s.op,
                                           .ranks = pen_size(w->world),
                                           .rank  = pen_rank(w->world),
                                           .root  = (int)w->s.root};
    const size_t bytes = (w->s.bytes > 0 ? w->s.bytes : w->s.max_bytes) + 64;
    w->a               = new_buffer(w, bytes);
    w->b               = new_buffer(w, bytes);
    w->latency         = calloc(LATENCIES_MAX, sizeof *w->latency);
    if (w->s.device == 1) w->staging = malloc(bytes);
    if (w->a && w->b && w->latency && (w->staging != NULL || w->s.device == 0)) return PEN_OK;
    w->is_told = command_fail(1, "no memory for two buffers of %zu bytes: %s", bytes,
                              pen_last_error(NULL)) != 0;
    return PEN_NO_MEMORY;
}

int bench_coll_end(bench_coll_state *w, pen_status status)
{
    int code = 0;
    if (status != PEN_OK) code = w->is_told ? 1 : command_fail(1, "%s", pen_last_error(NULL));
    if (w->ctx != NULL && pen_finalize(w->ctx) != PEN_OK && code == 0)
        code = command_fail(1, "%s", pen_last_error(NULL));
    free_buffer(w, w->a);
    free_buffer(w, w->b);
    free(w->staging);
    free(w->latency);
    return code;
}

int bench_coll_run(bench_coll_kind kind, const bench_coll_settings *s)
{
    rank_state *w = calloc(1, sizeof *w);
    if (w == NULL) return command_fail(1, "no memory");
    w->kind           = kind;
    w->s              = *s;
    pen_status status = bench_coll_begin(w);
    if (status == PEN_OK) status = run_sizes(w);
    int code = bench_coll_end(w, status);
    if (code == 0 && w->c.rank == 0 && w->s.plot[0] != '\0')
        code = bench_coll_plot(w->kind, &w->s, w->row, w->n_rows);
    free(w);
    return code;
}

int bench_coll_rank(int argc, char **argv)
{
    bench_coll_kind kind;
    bench_coll_settings s;
    const int code = bench_coll_parse(argc, argv, &kind, &s);
    return code >= 0 ? code : bench_coll_run(kind, &s);
}
