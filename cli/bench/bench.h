/* bench.h - the benchmarks of `penstock bench`; one file each.
 *
 * Each takes its own flags (argv[0] is its name), prints text or, with --json, one JSON object per line, and returns
 * the exit code.  Limits are measured in the same run by separate programs in the folder limits/ beside this one; they
 * share no code with the programs they are compared with.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_t;

int bench_push_pull(int argc, char **argv);
int bench_push_pull_rank(int argc, char **argv); /* one rank; started by the former */
int bench_optim(int argc, char **argv);

int bench_snapshot(int argc, char **argv);
int bench_snapshot_rank(int argc, char **argv); /* one rank; started by the former */

int bench_table(int argc, char **argv);
int bench_table_rank(int argc, char **argv); /* the rank; started by the former */

int bench_coll(int argc, char **argv); /* argv[0] is the collective, for example "all-reduce" */
int bench_coll_rank(int argc, char **argv); /* one rank; started by the former */
int bench_tune(int argc, char **argv);
int bench_tune_rank(int argc, char **argv); /* one rank; started by the former */

/* ---- bench_measure.c ---- */
double bench_seconds(void);                                /* monotonic */
double bench_quantile(double *values, size_t n, double q); /* sorts them; 0.5 is the median */

/* The JSON line of "PROGRAM ARGS", a program of limits/; NULL: it failed or is not built. */
struct json_t *bench_limit(const char *format, ...) __attribute__((format(printf, 1, 2)));
double bench_limit_rate(struct json_t *limit); /* its GB/s, or 0; releases it */

/* `penstock run FLAGS penstock bench VERB ARGV`; flags and verb end with NULL.  Returns the exit code. */
int bench_run_job(uint64_t servers, uint64_t ranks, const char *const *flags,
                  const char *const *verb, int argc, char **argv);

uint64_t bench_job_ranks(void); /* of the job that this process is a worker of; 0: it is none */

/* The flag --over.  bench_use_transport() sets the job's environment; false: no memory. */
enum { BENCH_SHM, BENCH_LOCAL, BENCH_TCP, BENCH_TLS, BENCH_ZMQ, BENCH_CURVE, BENCH_JOB };
extern const char *const bench_transports[]; /* without BENCH_JOB */
const char *bench_transport_name(int which); /* "job": whatever the job that runs it uses */
#define BENCH_TRANSPORTS                                                                           \
    "shm: shared memory; local: Unix-domain sockets, as within a host without it; tcp and tls: "   \
    "TCP in clear text and with TLS 1.3, as between hosts; zmq and curve: ZeroMQ in clear text "   \
    "and with CURVE (the setting transport=zmq)."
bool bench_use_transport(int which);

#endif
