/* bench_coll.c - `penstock bench all-reduce` and the other collectives: flags, and the job that measures. */
#include "cli/bench/bench.h"
#include "cli/bench/bench_coll.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* clang-format off */
const char *const bench_coll_names[] = {
    [BENCH_ALL_REDUCE] = "all-reduce", [BENCH_BROADCAST] = "broadcast",
    [BENCH_REDUCE] = "reduce", [BENCH_ALL_GATHER] = "all-gather",
    [BENCH_REDUCE_SCATTER] = "reduce-scatter", [BENCH_GATHER] = "gather",
    [BENCH_SCATTER] = "scatter", [BENCH_ALL_TO_ALL] = "all-to-all",
    [BENCH_BARRIER] = "barrier", [BENCH_SEND_RECV] = "send-recv",
};
const char *const bench_coll_ops[] = {"sum", "avg", "prod", "min", "max", "land", "lor", "lxor",
                                      "band", "bor", "bxor", NULL};
const char *const bench_coll_dtypes[] = {"f32", "f16", "bf16", "f64", "i8", "u8", "i32", "u32",
                                         "i64", "u64", NULL};
const char *const bench_coll_devices[]    = {"cpu", "cuda", NULL};

#define ROW(...) CONFIG_ROW(bench_coll_settings, __VA_ARGS__)
const config_row bench_coll_rows[] = {
    ROW(ranks,      U64,  "2",    1,   64,      NULL, "Worker processes; within a job, its own.")
    ROW(bytes,      U64,  "0",    0,   1e12,    NULL, "Message size; 0: all sizes from min_bytes to max_bytes.")
    ROW(min_bytes,  U64,  "4k",   1,   1e12,    NULL, "Smallest message size.")
    ROW(max_bytes,  U64,  "16m",  1,   1e12,    NULL, "Largest message size.")
    ROW(factor,     U64,  "4",    2,   65536,   NULL, "Multiplication factor between sizes.")
    ROW(dtype,      ENUM, "f32",  0,   0,       bench_coll_dtypes,     "Data type.")
    ROW(op,         ENUM, "sum",  0,   0,       bench_coll_ops,        "Reduction operation.")
    ROW(device,     ENUM, "cpu",  0,   0,       bench_coll_devices,    "Device of the buffers.")
    ROW(registered, U64,  "1",    0,   1,       NULL, "1: allocate buffers with pen_alloc(); 0: with malloc().")
    ROW(in_place,   U64,  "0",    0,   1,       NULL, "1: use one buffer for input and output.")
    ROW(overwrite,  U64,  "0",    0,   1,       NULL, "1: with in_place, pass PEN_OVERWRITE: no copy for failures.")
    ROW(root,       U64,  "0",    0,   63,      NULL, "Root rank, for rooted collectives.")
    ROW(over,       ENUM, "shm",  0,   0,       bench_transports, BENCH_TRANSPORTS)
    ROW(pairs,      U64,  "7",    1,   BENCH_COLL_PAIRS_MAX, NULL, "Measurements per size, alternating with the limit.")
    ROW(seconds,    F64,  "0.7",  0.001, 600,   NULL, "Total measuring time per size.")
    ROW(limit,      BOOL, "yes",  0,   0,       NULL, "Also measure memory bandwidth.")
    ROW(json,       BOOL, "no",   0,   0,       NULL, "Print one JSON object per size.")
    ROW(plot,       TEXT, "",     0,   0,       NULL, "Plot bandwidth over size to this PNG file, with gnuplot.")
    {0},
};
/* clang-format on */

pen_dtype bench_coll_dtype(const bench_coll_settings *s)
{
    return (pen_dtype)(PEN_F32 + s->dtype);
}

size_t bench_coll_dtype_bytes(pen_dtype dtype)
{
    if (dtype == PEN_I8 || dtype == PEN_U8) return 1;
    if (dtype == PEN_F16 || dtype == PEN_BF16) return 2;
    return dtype == PEN_F32 || dtype == PEN_I32 || dtype == PEN_U32 ? 4 : 8;
}

bool bench_coll_reduces(bench_coll_kind kind)
{
    return kind == BENCH_ALL_REDUCE || kind == BENCH_REDUCE || kind == BENCH_REDUCE_SCATTER;
}

bool bench_coll_has_parts(bench_coll_kind kind)
{
    return kind == BENCH_ALL_GATHER || kind == BENCH_REDUCE_SCATTER || kind == BENCH_GATHER ||
           kind == BENCH_SCATTER || kind == BENCH_ALL_TO_ALL;
}

static bool find_kind(const char *name, bench_coll_kind *kind)
{
    for (int i = 0; i < BENCH_COLLS; i++)
        if (strcmp(name, bench_coll_names[i]) == 0) {
            *kind = (bench_coll_kind)i;
            return true;
        }
    return false;
}

static int check(bench_coll_kind kind, const bench_coll_settings *s)
{
    const size_t element = bench_coll_dtype_bytes(bench_coll_dtype(s));
    const size_t parts   = bench_coll_has_parts(kind) ? s->ranks : 1;
    const uint64_t least = s->bytes > 0 ? s->bytes : s->min_bytes;
    if (s->bytes == 0 && s->min_bytes > s->max_bytes)
        return command_fail(EXIT_USAGE, "--min-bytes %" PRIu64 " is more than --max-bytes %" PRIu64,
                            s->min_bytes, s->max_bytes);
    if (kind != BENCH_BARRIER && least < element * parts)
        return command_fail(EXIT_USAGE,
                            "%" PRIu64 " bytes are too few for one %s per part; minimum %zu", least,
                            bench_coll_dtypes[s->dtype], element * parts);
    if (s->root >= s->ranks)
        return command_fail(EXIT_USAGE, "--root %" PRIu64 " is out of range for %" PRIu64 " ranks",
                            s->root, s->ranks);
    if (bench_coll_reduces(kind) && s->op >= PEN_LAND && bench_coll_dtype(s) <= PEN_F64)
        return command_fail(EXIT_USAGE, "--op %s needs an integer type, not %s",
                            bench_coll_ops[s->op], bench_coll_dtypes[s->dtype]);
    if (s->device == 1 && s->registered == 0)
        return command_fail(EXIT_USAGE, "--device cuda needs pen_alloc() buffers; remove "
                                        "--registered 0");
    if (strpbrk(s->plot, "'\"\\\n") != NULL)
        return command_fail(EXIT_USAGE, "--plot: file name must not contain quotes or backslashes");
    return -1;
}

int bench_coll_parse(int argc, char **argv, bench_coll_kind *kind, bench_coll_settings *s)
{
    if (!find_kind(argv[0], kind))
        return command_fail(EXIT_USAGE, "unknown collective '%s'", argv[0]);
    char usage[160];
    snprintf(usage, sizeof usage,
             "usage: penstock bench %s [--ranks N] [--bytes B] [--dtype T] [--op O] [--json]",
             argv[0]);
    const int code     = command_settings(bench_coll_rows, s, argc, argv, usage, NULL);
    const uint64_t own = bench_job_ranks();
    if (own > 0) s->ranks = own;
    return code >= 0 ? code : check(*kind, s);
}

int bench_coll(int argc, char **argv)
{
    static const char *const no_flags[] = {NULL}, *const verb[] = {"coll-rank", NULL};
    bench_coll_kind kind;
    bench_coll_settings s;
    const int code = bench_coll_parse(argc, argv, &kind, &s);
    if (code >= 0) return code;
    if (bench_job_ranks() > 0) {
        s.over = BENCH_JOB;
        return bench_coll_run(kind, &s);
    }
    if (!bench_use_transport(s.over)) return command_fail(1, "no memory");
    /* a device for each rank, as far as there are some */
    if (s.device == 1 && setenv("PENSTOCK_DEVICE", "cuda", 0) != 0)
        return command_fail(1, "no memory");
    return bench_run_job(0, s.ranks, no_flags, verb, argc, argv);
}
