/* bandwidth.c - all_reduce of 256 MiB f32 and its bound:  bandwidth MEMBERS [MIN_SHARE [MIB]]
 *
 * Bound    t >= 2nS/B: n inputs are read and n outputs written once. B is the better of two copies inside the device
 *          by one process in the same run (bytes read + bytes written): the copy kernel of 16-byte words, and the
 *          driver's own device-to-device copy.
 * Time     the median of the calls of `penstock bench`, which go through the engine as a program's do.
 * NCCL     from a barrier of all members to the end of the call on the last of them, with NCCL_MULTI_RANK_GPU_ENABLE=1, in
 *          separate processes; a failure or hang there is reported.
 */
#include "members.h"

#include "common/base/clock.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS = 15 };
static size_t S = 256 << 20; /* bytes */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds)
{
    qsort(seconds, ROUNDS, sizeof *seconds, compare);
    return seconds[ROUNDS / 2];
}

static double now_s(void)
{
    return (double)clock_ns(&clock_real) / 1e9;
}

typedef int (*driver_copy)(unsigned long long to, unsigned long long from, size_t bytes,
                           void *stream);

/* Seconds of one copy of S bytes; 0: it failed. */
static double time_copy(char *to, const char *from, driver_copy by_driver)
{
    double seconds[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        const double begun = now_s();
        const bool ok = by_driver != NULL ? by_driver((uintptr_t)to, (uintptr_t)from, S, NULL) == 0
                                          : device_cuda.copy(to, from, S, NULL, NULL) == PEN_OK;
        if (!ok || !members_drain()) return 0;
        seconds[i] = now_s() - begun;
    }
    return median(seconds);
}

/* Passes the result of a program in separate processes to main. */
static double *result;

static int measure_bound(member *self, const void *arg)
{
    (void)self, (void)arg;
    char *from = device_cuda.alloc(S, 0, NULL), *to = device_cuda.alloc(S, 0, NULL);
    if (from == NULL || to == NULL) return 1;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    driver_copy by_driver =
        driver != NULL ? (driver_copy)dlsym(driver, "cuMemcpyDtoDAsync_v2") : NULL;
    const double by_kernel = time_copy(to, from, NULL);
    const double copied    = by_driver != NULL ? time_copy(to, from, by_driver) : 0;
    const double best      = copied > 0 && copied < by_kernel ? copied : by_kernel;
    if (!(best > 0)) return 1;
    result[0] = 2.0 * (double)S / best;
    printf("memory           %.0f GB/s (copy kernel %.0f, cudaMemcpyD2D %.0f)\n", result[0] / 1e9,
           2.0 * (double)S / by_kernel / 1e9, copied > 0 ? 2.0 * (double)S / copied / 1e9 : 0);
    return 0;
}

/* The slowest member of each round counts. */
static double slowest(member *self, double seconds)
{
    double most                      = 0;
    self->board->seconds[self->rank] = seconds;
    members_meet(self);
    for (int i = 0; i < self->size; i++)
        if (self->board->seconds[i] > most) most = self->board->seconds[i];
    members_meet(self);
    return most;
}

static bool fill(char *data, float x)
{
    float *host = malloc(S);
    if (host == NULL) return false;
    for (size_t i = 0; i < S / 4; i++) host[i] = x + (float)(i % 3);
    const bool ok = members_copy(data, host, S);
    free(host);
    return ok;
}

static bool is_sum(const char *data, int size)
{
    float *host = malloc(S);
    bool ok     = host != NULL && members_copy(host, data, S);
    for (size_t i = 0; ok && i < S / 4; i++)
        ok = host[i] == (float)(size * (size + 1) / 2) + (float)size * (float)(i % 3);
    free(host);
    return ok;
}

/* Seconds of a call, as users make it; 0: it failed. */
static double measure_ours(int size)
{
    char path[512], line[1024] = "", command[1024];
    const ssize_t n     = readlink("/proc/self/exe", path, sizeof path - 1);
    const char *name    = "\"time_us_p50\":";
    path[n > 0 ? n : 0] = '\0';
    for (int up = 0; up < 3 && strchr(path, '/') != NULL; up++) /* DIR/tests/gpu/bandwidth */
        *strrchr(path, '/') = '\0';
    snprintf(command, sizeof command,
             "'%s/bin/penstock' bench all-reduce --ranks %d --bytes %zu --device cuda --seconds %g "
             "--json 2>&1",
             path, size, S, S < (16 << 20) ? 0.2 : 2.0);
    FILE *bench = popen(command, "r");
    while (bench != NULL && fgets(line, sizeof line, bench) != NULL && line[0] != '{') continue;
    if (bench != NULL) pclose(bench);
    const char *at = strstr(line, name);
    if (at != NULL && strstr(line, "\"verified\":true") != NULL)
        return atof(at + strlen(name)) / 1e6;
    printf("%s: %s\n", command, line);
    return 0;
}

/* ---- NCCL, through its stable ABI: five functions and two numbers ------------------------------------------ */
typedef struct {
    char internal[128];
} nccl_id;

static struct {
    int (*get_id)(nccl_id *id);
    int (*init)(void **comm, int size, nccl_id id, int rank);
    int (*all_reduce)(const void *in, void *out, size_t n, int dtype, int op, void *comm,
                      void *stream);
    int (*destroy)(void *comm);
    const char *(*text)(int result);
} nccl;

static bool find_nccl(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_LAZY);
    if (library == NULL) return false;
    *(void **)&nccl.get_id     = dlsym(library, "ncclGetUniqueId");
    *(void **)&nccl.init       = dlsym(library, "ncclCommInitRank");
    *(void **)&nccl.all_reduce = dlsym(library, "ncclAllReduce");
    *(void **)&nccl.destroy    = dlsym(library, "ncclCommDestroy");
    *(void **)&nccl.text       = dlsym(library, "ncclGetErrorString");
    return nccl.get_id && nccl.init && nccl.all_reduce && nccl.destroy && nccl.text;
}

static int measure_nccl(member *self, const void *arg)
{
    enum { FLOAT32 = 7, SUM = 0 };
    double seconds[ROUNDS];
    void *comm = NULL;
    (void)arg;
    char *in = device_cuda.alloc(S, 0, NULL), *out = device_cuda.alloc(S, 0, NULL);
    if (!find_nccl() || in == NULL || out == NULL || !fill(in, (float)(self->rank + 1))) return 1;
    nccl_id *id = (nccl_id *)self->board->bytes;
    if (self->rank == 0 && nccl.get_id(id) != 0) return 1;
    members_meet(self);
    int status = nccl.init(&comm, self->size, *id, self->rank);
    if (status != 0 && self->rank == 0) printf("NCCL             %s\n", nccl.text(status));
    if (status != 0) return 1;
    for (int i = -2; i < ROUNDS; i++) {
        members_meet(self);
        const double begun = now_s();
        if (nccl.all_reduce(in, out, S / 4, FLOAT32, SUM, comm, NULL) != 0 || !members_drain())
            return 1;
        const double took = slowest(self, now_s() - begun);
        if (i >= 0) seconds[i] = took;
    }
    if (!is_sum(out, self->size)) return 1;
    if (self->rank == 0) result[2] = median(seconds);
    nccl.destroy(comm);
    return 0;
}

static void report(const char *name, double seconds, int size)
{
    const double bound = 2.0 * size * (double)S / result[0];
    printf("%-16s %.3f ms, algorithm bandwidth %.0f GB/s, %.2f of the bound of %.3f ms\n", name,
           seconds * 1e3, (double)S / seconds / 1e9, bound / seconds, bound * 1e3);
}

int main(int argc, char **argv)
{
    const int size     = argc > 1 ? atoi(argv[1]) : 2;
    const double least = argc > 2 ? atof(argv[2]) : 0;
    if (argc > 3) S = (size_t)atoi(argv[3]) << 20;
    if (size < 2 || size > MEMBERS_MAX) return 2;
    result = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (result == MAP_FAILED) return 1;
    int code = members_run(1, 60, measure_bound, NULL);
    if (code != 0) return code;
    result[1] = measure_ours(size);
    if (!(result[1] > 0)) return 1;
    report("penstock", result[1], size);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    if (members_run(size, 60, measure_nccl, NULL) == 0)
        report("NCCL", result[2], size);
    else
        printf("NCCL             did not run with %d members on one device\n", size);
    return 2.0 * size * (double)S / result[0] / result[1] >= least ? 0 : 1;
}
