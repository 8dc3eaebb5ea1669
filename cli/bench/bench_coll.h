/* bench_coll.h - `penstock bench all-reduce` and the other collectives; private to cli/bench/bench_coll*.c.
 *
 * DESIGN.  The command starts a job of itself with `penstock run`, or, started as a worker, measures that job's links;
 * each rank uses only the public SDK.  The figures
 * are defined as in nccl-tests, so that they can be compared:
 *   bytes   size of a rank's larger buffer: for all-gather, gather, scatter, reduce-scatter and all-to-all the sum of
 *           all parts
 *   algbw   bytes / time of one call, averaged over ranks
 *   busbw   algbw times 2(n-1)/n, (n-1)/n or 1: the traffic on the busiest link of an ideal network
 * Values are checked at each size, before and after the measurement.  The limit is memory bandwidth, measured by
 * another program (limits/limit_memory) on all cores, alternating with ours.  An ideal call reads each input once and
 * writes each output once.
 */
#ifndef CLI_BENCH_COLL_H
#define CLI_BENCH_COLL_H

#include "cli/command.h"
#include "common/base/config.h"
#include "penstock.h"

typedef enum {
    BENCH_ALL_REDUCE,
    BENCH_BROADCAST,
    BENCH_REDUCE,
    BENCH_ALL_GATHER,
    BENCH_REDUCE_SCATTER,
    BENCH_GATHER,
    BENCH_SCATTER,
    BENCH_ALL_TO_ALL,
    BENCH_BARRIER,
    BENCH_SEND_RECV,
    BENCH_COLLS
} bench_coll_kind;

typedef struct {
    uint64_t ranks, bytes, min_bytes, max_bytes, factor, root, registered, in_place, overwrite,
        pairs;
    double seconds;
    int dtype, op, device, over;
    bool json, limit;
    char plot[CONFIG_TEXT_BYTES];
} bench_coll_settings;

extern const config_row bench_coll_rows[];
extern const char *const bench_coll_names[];  /* [BENCH_COLLS] "all-reduce" */
extern const char *const bench_coll_ops[];    /* in the order of pen_op */
extern const char *const bench_coll_dtypes[]; /* the first is PEN_F32, in the order of pen_dtype */
extern const char *const bench_coll_devices[];

pen_dtype bench_coll_dtype(const bench_coll_settings *s);
size_t bench_coll_dtype_bytes(pen_dtype dtype);
bool bench_coll_reduces(bench_coll_kind kind);
bool bench_coll_has_parts(bench_coll_kind kind); /* bytes are the sum of n equal parts */

/* Parses the flags of bench_coll() or bench_coll_rank(); -1: continue, else the exit code. */
int bench_coll_parse(int argc, char **argv, bench_coll_kind *kind, bench_coll_settings *s);

/* ---- bench_coll_check.c: values ---- */
/* Fills this rank's input with values that every rank can compute, and checks the result of a call. */
typedef struct {
    bench_coll_kind kind;
    pen_dtype dtype;
    pen_op op;
    int ranks, rank, root;
    size_t n; /* elements, as the public function counts them */
} bench_coll_case;

void bench_coll_fill(const bench_coll_case *c, void *in, size_t elements);
bool bench_coll_verify(const bench_coll_case *c, const void *out, char *sentence, size_t size);

size_t bench_coll_in_elements(const bench_coll_case *c);
size_t bench_coll_out_elements(const bench_coll_case *c);

/* Element of `out` at which the in-place input begins, or of `in` at which the in-place output does. */
size_t bench_coll_in_place(const bench_coll_case *c);

/* ---- bench_coll_report.c: a row of the result ---- */
enum { BENCH_COLL_PAIRS_MAX = 99 };

typedef struct {
    size_t bytes, elements;
    double time_s, p50_s, p99_s;               /* of one call */
    double algbw, busbw;                       /* GB/s */
    double limit, ratio, ratio_min, ratio_max; /* 0: not measured */
    uint64_t iterations;
} bench_coll_row;

void bench_coll_report_begin(bench_coll_kind kind, const bench_coll_settings *s);
void bench_coll_report_row(bench_coll_kind kind, const bench_coll_settings *s,
                           const bench_coll_row *row);
/* Plots bandwidth over bytes with gnuplot; returns the exit code. */
int bench_coll_plot(bench_coll_kind kind, const bench_coll_settings *s, const bench_coll_row *rows,
                    size_t n);

/* ---- bench_coll_rank.c: one rank ---- */
enum { BENCH_COLL_SIZES_MAX = 64 };

typedef struct {
    bench_coll_kind kind;
    bench_coll_settings s;
    pen_ctx *ctx;
    pen_group *world;
    bench_coll_case c;      /* of the size being measured */
    unsigned char *a, *b;   /* buffers for the largest size */
    unsigned char *staging; /* host memory; NULL: a and b are host memory */
    void *in, *out;
    double *latency; /* of single calls, seconds */
    size_t n_latencies;
    bench_coll_row row[BENCH_COLL_SIZES_MAX];
    size_t n_rows;
    bool is_told; /* a failure that is not the SDK's was printed */
} bench_coll_state;

/* Joins the job, measures all sizes and leaves; rank 0 reports.  Returns the exit code. */
int bench_coll_run(bench_coll_kind kind, const bench_coll_settings *s);
/* Joins the job and makes buffers; kind and s are given. */
pen_status bench_coll_begin(bench_coll_state *w);
/* Checks and measures calls of `bytes`; all ranks get the same times. */
pen_status bench_coll_measure(bench_coll_state *w, size_t bytes, bench_coll_row *row);
/* Leaves the job; returns the exit code, and prints why it is not 0. */
int bench_coll_end(bench_coll_state *w, pen_status status);

#endif
