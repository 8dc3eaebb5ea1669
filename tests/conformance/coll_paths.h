/* coll_paths.h - shared by the tests of collectives: the paths, members of one job, and their
 * complaints.
 *
 * A member is a forked process, where a failed cmocka assertion would go on with the next test.
 * So members write complaints into a board in shared memory, and the test reads it when
 * all have ended.
 */
#ifndef TESTS_CONFORMANCE_COLL_PATHS_H
#define TESTS_CONFORMANCE_COLL_PATHS_H

#include "penstock.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    const char *name;
    const char *shared_memory; /* the setting */
    const char *carrier;       /* coll_path.name */
    int hosts;                 /* number of pretended hosts; ranks are dealt out in blocks */
    int ranks_min;             /* fewer ranks do not take this path */
} coll_test_path;

static const coll_test_path coll_test_paths[] = {
    {"shared memory", "yes", "node", 1, 1},
    {"ZeroMQ", "no", "wire", 1, 1},
    {"two hosts", "yes", "hier", 2, 3},
};

enum { COLL_TEST_PATHS = sizeof coll_test_paths / sizeof *coll_test_paths, COMPLAINT_BYTES = 400 };

#define EACH_PATH(path)                                                                            \
    for (const coll_test_path *path = coll_test_paths; path < coll_test_paths + COLL_TEST_PATHS;   \
         path++)

/* A member's complaint: the text belongs to this process, until the next complaint. */
__attribute__((format(printf, 1, 2))) static inline const char *complaint(const char *format, ...)
{
    static char text[COMPLAINT_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return text;
}

/* For a member's function that returns a complaint, or NULL. */
#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != PEN_OK) return complaint("%s: %s", #call, pen_last_error(NULL));             \
    } while (0)
#define HOLDS(what)                                                                                \
    do {                                                                                           \
        if (!(what)) return complaint("line %d: not so: %s", __LINE__, #what);                     \
    } while (0)

/* Zeroed memory shared with the members' processes. */
static inline void *shared_board(size_t bytes)
{
    void *board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return board == MAP_FAILED ? NULL : board;
}

static inline void set_number(const char *name, int value)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* A port for the scheduler; *fd keeps it from other jobs. */
static inline int reserve_port(int *fd)
{
    const int one         = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length      = sizeof at;
    *fd                   = socket(AF_INET, SOCK_STREAM, 0);
    if (*fd < 0) return -1;
    (void)setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    (void)bind(*fd, (struct sockaddr *)&at, sizeof at);
    (void)getsockname(*fd, (struct sockaddr *)&at, &length);
    return ntohs(at.sin_port);
}

/* The variables of a launcher on each of several hosts; node[n] by rank. */
static inline void describe_member(int rank, int n, const int *node, int port)
{
    int place = 0, here = 0;
    for (int r = 0; r < n; r++) {
        place += r < rank && node[r] == node[rank];
        here += node[r] == node[rank];
    }
    set_number("RANK", rank);
    set_number("WORLD_SIZE", n);
    set_number("LOCAL_RANK", place);
    set_number("LOCAL_WORLD_SIZE", here);
    set_number("GROUP_RANK", node[rank]);
    set_number("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

/* pen_spawn() for pretended nodes, node[n] by rank; is_apart: they share no memory. */
static inline int spawn_nodes(const int *node, bool is_apart, int n, int (*fn)(pen_ctx *, void *),
                              void *arg)
{
    pid_t pids[16];
    int reserved, port = reserve_port(&reserved), first = 0;
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        if (pids[r] != 0) continue;
        pen_ctx *ctx = NULL;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        describe_member(r, n, node, port);
        if (is_apart) set_number("PENSTOCK_HOST_ID", node[r]);
        int code = pen_init(NULL, &ctx) == PEN_OK ? fn(ctx, arg) : 1;
        if (ctx && pen_finalize(ctx) != PEN_OK && code == 0) code = 1;
        fflush(NULL);
        _exit(code);
    }
    for (int r = 0; r < n; r++) {
        int status = 0;
        if (waitpid(pids[r], &status, 0) > 0 && status != 0 && first == 0)
            first = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    close(reserved);
    return first;
}

static inline void prepare_job(const coll_test_path *path)
{
    static const char *const cleared[] = {"RANK",         "WORLD_SIZE",           "LOCAL_RANK",
                                          "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "MASTER_PORT",
                                          "MASTER_ADDR",  "LOCAL_WORLD_SIZE",     "GROUP_RANK"};
    for (size_t i = 0; i < sizeof cleared / sizeof *cleared; i++) unsetenv(cleared[i]);
    setenv("PENSTOCK_SHARED_MEMORY", path->shared_memory, 1);
    setenv("PENSTOCK_INIT_TIMEOUT_MS", "20000", 1);
    setenv("PENSTOCK_DEADLINE_MS", "20000", 0);
    setenv("PENSTOCK_SERVERS", "0", 1);
}

/* Runs n members on a path; returns the result of pen_spawn(). */
static inline int spawn_on(const coll_test_path *path, int n, int (*fn)(pen_ctx *, void *),
                           void *arg)
{
    int node[16];
    prepare_job(path);
    for (int r = 0; r < n; r++) node[r] = r * path->hosts / n;
    return path->hosts > 1 ? spawn_nodes(node, true, n, fn, arg) : pen_spawn(n, fn, arg);
}

/* The same with nodes, node[n] by rank, which share memory if the path is one of a single host. */
static inline int spawn_on_nodes(const coll_test_path *path, int n, const int *node,
                                 int (*fn)(pen_ctx *, void *), void *arg)
{
    prepare_job(path);
    return spawn_nodes(node, path->hosts > 1, n, fn, arg);
}

#endif
