/* api_spawn.c - pen_spawn(): the ranks of one host without a launcher.
 *
 * DESIGN
 * Children are forked before they use any of Penstock.  Each gets its place from the environment, as from a launcher,
 * and joins with pen_init().  Children die with their parent.  The parent only waits and is not a member.  When a child
 * fails, the others get SIGTERM, and SIGKILL after a grace period, unless the job continues without it.
 */
#include "worker/api/api.h"

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/net/tcp_address.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SPAWN_MAX = 1024, GRACE_MS = 5000, FAILED_TO_BEGIN = 1, SIGNAL_BASE = 128 };

/* ---- a child --------------------------------------------------------------------------------- */
static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void describe(int rank, int n, int port)
{
    /* Set by a launcher that started the calling program, for another job. */
    static const char *const foreign[] = {
        "GROUP_RANK",    "GROUP_WORLD_SIZE",    "TORCHELASTIC_USE_AGENT_STORE",
        "PENSTOCK_RANK", "PENSTOCK_WORLD_SIZE", "PENSTOCK_PORT"};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) unsetenv(foreign[i]);
    set_number("RANK", rank);
    set_number("WORLD_SIZE", n);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", n);
    set_number("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    if (config_env("PENSTOCK_SERVERS") == NULL) setenv("PENSTOCK_SERVERS", "0", 1);
}

static int run_child(int (*fn)(pen_ctx *ctx, void *arg), void *arg)
{
    pen_ctx *ctx;
    if (pen_init(NULL, &ctx) != PEN_OK) {
        fprintf(stderr, "penstock: %s\n", pen_last_error(NULL));
        return FAILED_TO_BEGIN;
    }
    int code          = fn(ctx, arg);
    pen_status status = pen_finalize(ctx);
    if (code == 0 && status != PEN_OK) {
        fprintf(stderr, "penstock: %s\n", pen_last_error(NULL));
        code = FAILED_TO_BEGIN;
    }
    return code;
}

static pid_t start_child(int rank, int n, int port, int (*fn)(pen_ctx *ctx, void *arg), void *arg)
{
    const pid_t parent = getpid();
    pid_t pid          = fork();
    if (pid != 0) return pid;
    /* The parent may have died before this call. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(FAILED_TO_BEGIN);
    describe(rank, n, port);
    int code = run_child(fn, arg);
    fflush(NULL);
    _exit(code);
}

/* ---- the parent ------------------------------------------------------------------------------ */
typedef struct {
    pid_t pid[SPAWN_MAX]; /* 0: has ended */
    int n, left;
    int code; /* of the first failure */
} ranks;

static void signal_all(const ranks *r, int signal)
{
    for (int i = 0; i < r->n; i++)
        if (r->pid[i] > 0) kill(r->pid[i], signal);
}

/* Waits for these children only: the program may have others. True: one has ended. */
static bool reap(ranks *r, int options)
{
    bool has_ended = false;
    for (int i = 0; i < r->n; i++) {
        int status = 0;
        if (r->pid[i] <= 0) continue;
        pid_t pid = waitpid(r->pid[i], &status, options);
        if (pid == 0 || (pid < 0 && errno == EINTR)) continue;
        if (pid < 0) status = FAILED_TO_BEGIN << 8; /* the program has waited for it */
        r->pid[i] = 0;
        r->left--;
        has_ended = true;
        if (r->code == 0)
            r->code = WIFSIGNALED(status) ? SIGNAL_BASE + WTERMSIG(status) : WEXITSTATUS(status);
    }
    return has_ended;
}

static void nap(void)
{
    const struct timespec ms = {.tv_nsec = 2000000};
    nanosleep(&ms, NULL);
}

static void end_all(ranks *r)
{
    const uint64_t until = clock_ms(&clock_real) + GRACE_MS;
    signal_all(r, SIGTERM);
    while (r->left > 0 && clock_ms(&clock_real) < until)
        if (!reap(r, WNOHANG)) nap();
    signal_all(r, SIGKILL);
    while (r->left > 0) reap(r, 0);
}

static pen_status start_all(ranks *r, int port, int (*fn)(pen_ctx *ctx, void *arg), void *arg)
{
    fflush(NULL); /* else children would write the buffered output again */
    for (int i = 0; i < r->n; i++) {
        r->pid[i] = start_child(i, r->n, port, fn, arg);
        if (r->pid[i] < 0) {
            r->pid[i] = 0;
            return last_error_report(PEN_NO_MEMORY, "pen_spawn: cannot start rank %d: %s", i,
                                     strerror(errno));
        }
        r->left++;
    }
    return PEN_OK;
}

static void wait_for(ranks *r)
{
    const char *rule   = config_env("PENSTOCK_ON_WORKER_LOSS");
    const bool goes_on = rule != NULL && strcmp(rule, "continue") == 0;
    while (r->left > 0) {
        if (!reap(r, WNOHANG)) nap();
        if (r->code != 0 && !goes_on) end_all(r);
    }
}

int pen_spawn(int n, int (*fn)(pen_ctx *ctx, void *arg), void *arg)
{
    ranks r = {.n = n};
    int port, reserved;
    if (fn == NULL || n < 1 || n > SPAWN_MAX) {
        last_error_report(PEN_INVALID_ARGUMENT,
                          "pen_spawn: n is %d and fn is %s; expected a function and 1 to %d ranks",
                          n, fn != NULL ? "given" : "NULL", SPAWN_MAX);
        return FAILED_TO_BEGIN;
    }
    if ((port = tcp_reserve_port(&reserved)) < 0) {
        last_error_report(PEN_INTERNAL, "pen_spawn: no free port on 127.0.0.1: %s",
                          strerror(errno));
        return FAILED_TO_BEGIN;
    }
    const pen_status status = start_all(&r, port, fn, arg);
    if (status == PEN_OK)
        wait_for(&r);
    else
        end_all(&r);
    close(reserved);
    if (status != PEN_OK) return FAILED_TO_BEGIN;
    if (r.code != 0)
        last_error_report(PEN_PEER_LOST, "pen_spawn: a rank failed first with exit code %d",
                          r.code);
    return r.code;
}
