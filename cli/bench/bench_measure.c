/* bench_measure.c - shared by the benchmarks: time, quantiles, the limit programs, and a job of this program. */
#include "cli/bench/bench.h"
#include "cli/command.h"
#include "common/base/clock.h"
#include "worker/worker_env.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double bench_seconds(void)
{
    return (double)clock_ns(&clock_real) * 1e-9;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *values, size_t n, double q)
{
    if (n == 0) return 0;
    qsort(values, n, sizeof *values, ascending);
    return values[(size_t)(q * (double)(n - 1) + 0.5)];
}

json_t *bench_limit(const char *format, ...)
{
    char self[1024], words[2048], line[512] = "";
    va_list args;
    if (!command_self(self, sizeof self)) return NULL;
    *strrchr(self, '/') = '\0';
    int n               = snprintf(words, sizeof words, "'%s/limits/'", self);
    va_start(args, format);
    vsnprintf(words + n, sizeof words - (size_t)n, format, args);
    va_end(args);
    FILE *limit = popen(words, "r");
    if (limit == NULL) return NULL;
    if (fgets(line, sizeof line, limit) == NULL) line[0] = '\0';
    return pclose(limit) == 0 ? json_loads(line, 0, NULL) : NULL;
}

double bench_limit_rate(json_t *limit)
{
    const double rate = json_number_value(json_object_get(limit, "GBps"));
    json_decref(limit);
    return rate;
}

int bench_run_job(uint64_t servers, uint64_t ranks, const char *const *flags,
                  const char *const *verb, int argc, char **argv)
{
    char self[1024], n_servers[24], n_ranks[24];
    if (!command_self(self, sizeof self)) return 1;
    snprintf(n_servers, sizeof n_servers, "%" PRIu64, servers);
    snprintf(n_ranks, sizeof n_ranks, "%" PRIu64, ranks);
    char **words = calloc((size_t)argc + 24, sizeof *words);
    if (words == NULL) return command_fail(1, "no memory");
    const char *const run[] = {
        "run",   "--standalone", "--no-prefix", "--servers", n_servers, "--nproc-per-node",
        n_ranks, "--job",        "bench",       NULL};
    const char *const bench[] = {self, "bench", NULL};
    const char *const *all[]  = {run, flags, bench, verb};
    int n                     = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (const char *const *w = all[i]; *w != NULL; w++) words[n++] = (char *)*w;
    for (int i = 0; i < argc; i++) words[n++] = argv[i];
    const int code = command_run(n, words);
    free(words);
    return code;
}

uint64_t bench_job_ranks(void)
{
    worker_settings s;
    worker_env env;
    pen_error why;
    const bool is_rank = worker_settings_load(&s, NULL, &why) == PEN_OK &&
                         worker_env_resolve(&s, config_env, &env, &why) == PEN_OK && !env.alone;
    return is_rank ? (uint64_t)env.world_size : 0;
}

/* ---- transports ------------------------------------------------------------------------------ */
const char *const bench_transports[] = {"shm", "local", "tcp", "tls", "zmq", "curve", NULL};

const char *bench_transport_name(int which)
{
    return which == BENCH_JOB ? "job" : bench_transports[which];
}

bool bench_use_transport(int which)
{
    const bool encrypts = which == BENCH_TLS || which == BENCH_CURVE;
    const bool is_zmq   = which == BENCH_ZMQ || which == BENCH_CURVE;
    if (which == BENCH_SHM) return true;
    if (setenv("PENSTOCK_SHARED_MEMORY", "no", 1) != 0) return false;
    if (which == BENCH_LOCAL) return true;
    return setenv("PENSTOCK_LOCAL_SOCKETS", "no", 1) == 0 &&
           setenv("PENSTOCK_ENCRYPTION", encrypts ? "on" : "clear", 1) == 0 &&
           setenv("PENSTOCK_TRANSPORT", is_zmq ? "zmq" : "tcp", 1) == 0;
}
