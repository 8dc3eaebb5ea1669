/* bench_openmpi.c - MPI_Allreduce of float32 sums, measured as `penstock bench all-reduce` and nccl-tests do.
 *
 *     mpirun -n N bench_openmpi [MIN_BYTES MAX_BYTES FACTOR SECONDS [IN_PLACE]]
 *
 * Contains no Penstock code. IN_PLACE 1: one buffer for input and output, MPI_IN_PLACE. Prints one JSON object for each size: the time of one call is the mean
 * over ranks of a loop of calls; algbw = bytes / time, busbw = algbw * 2 (n - 1) / n. Sums are
 * checked before and after.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_CALLS = 5 };

static int rank, ranks;
static float *in, *out;

static float value(int of_rank, size_t i)
{
    return (float)(1 + (i * 7 + i / 64 + (size_t)of_rank * 3) % 5);
}

static void check(size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < ranks; r++) sum += value(r, i);
        if (out[i] == sum) continue;
        fprintf(stderr, "bench_openmpi: element %zu is %g, but should be %g\n", i, (double)out[i],
                (double)sum);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* The mean over ranks of the time of one call, measured over `calls` calls. */
static double measure(size_t n, long calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (long i = 0; i < calls; i++)
        MPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, (int)n, MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
    double mine = (MPI_Wtime() - start) / (double)calls, mean = 0;
    MPI_Allreduce(&mine, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return mean / ranks;
}

static void check_once(size_t n)
{
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < n; i++) in[i] = value(rank, i);
    measure(n, 1);
    check(n);
}

static void run_size(size_t bytes, double seconds)
{
    const size_t n = bytes / sizeof(float);
    check_once(n);
    measure(n, WARM_CALLS);
    long calls = (long)(seconds / measure(n, WARM_CALLS)) + 1;
    MPI_Bcast(&calls, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    const double time = measure(n, calls), algbw = (double)bytes / time * 1e-9;
    check_once(n);
    if (rank != 0) return;
    printf("{\"peer\":\"openmpi\",\"bytes\":%zu,\"ranks\":%d,\"time_us\":%.3f,\"algbw_GBps\":%.4f,"
           "\"busbw_GBps\":%.4f,\"iterations\":%ld,\"verified\":true}\n",
           bytes, ranks, time * 1e6, algbw, algbw * 2 * (ranks - 1) / ranks, calls);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const size_t least   = argc > 1 ? strtoull(argv[1], NULL, 10) : 4096;
    const size_t most    = argc > 2 ? strtoull(argv[2], NULL, 10) : 16 << 20;
    const size_t factor  = argc > 3 ? strtoull(argv[3], NULL, 10) : 4;
    const double seconds = argc > 4 ? strtod(argv[4], NULL) : 0.1;
    const int in_place   = argc > 5 && atoi(argv[5]) == 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (least < sizeof(float) || factor < 2 || most > (size_t)1 << 32) {
        fprintf(stderr, "usage: bench_openmpi [MIN_BYTES MAX_BYTES FACTOR SECONDS [IN_PLACE]]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    in  = aligned_alloc(4096, (most + 4095) / 4096 * 4096);
    out = in_place ? in : aligned_alloc(4096, (most + 4095) / 4096 * 4096);
    if (in == NULL || out == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t bytes = least; bytes <= most; bytes *= factor) run_size(bytes, seconds);
    if (out != in) free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
