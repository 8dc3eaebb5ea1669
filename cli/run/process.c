/* process.c - children of the launcher: each leads a process group; none is left behind.
 *
 * DESIGN.  A child may have children, so each leads a process group, and signals go to the group.  If the launcher is
 * killed, PR_SET_PDEATHSIG kills each child, and a guard process, whose pipe closes, kills each group.  The guard learns
 * of a group before its program starts, and drops it when it is reaped.
 */
#include "cli/run/process.h"
#include "cli/run/lines.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/why.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static int guard_fd = -1;
static pid_t guard_pid;
static uint64_t ended_count;

/* ---- the guard ------------------------------------------------------------------------------------- */

enum { GROUPS_MAX = 4096 };

static void guard_main(int fd)
{
    static pid_t groups[GROUPS_MAX];
    size_t n = 0;
    pid_t word;

    setsid();
    for (int s = 1; s < 32; s++) signal(s, SIG_IGN);
    while (read(fd, &word, sizeof word) == sizeof word) {
        if (word > 0 && n < GROUPS_MAX) groups[n++] = word;
        for (size_t i = 0; word < 0 && i < n; i++)
            if (groups[i] == -word) groups[i--] = groups[--n];
    }
    for (size_t i = 0; i < n; i++) kill(-groups[i], SIGKILL);
    _exit(0);
}

pen_status process_guard_start(pen_error *why)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return why_set(why, PEN_STORE, "cannot make a pipe: %m");
    guard_pid = fork();
    if (guard_pid < 0) return why_set(why, PEN_NO_MEMORY, "cannot start a process: %m");
    if (guard_pid == 0) {
        close(ends[1]);
        for (int fd = 0; fd < 3; fd++) close(fd);
        guard_main(ends[0]);
    }
    close(ends[0]);
    guard_fd = ends[1];
    return PEN_OK;
}

void process_guard_stop(void)
{
    if (guard_fd < 0) return;
    close(guard_fd);
    guard_fd = -1;
    waitpid(guard_pid, NULL, 0);
}

static void guard_tell(pid_t word)
{
    if (guard_fd >= 0 && write(guard_fd, &word, sizeof word) != sizeof word)
        close(guard_fd), guard_fd = -1;
}

/* ---- all of them ----------------------------------------------------------------------------------- */

process *process_array_new(size_t n)
{
    void *all =
        mmap(NULL, n * sizeof(process), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    (void)madvise(all, n * sizeof(process), MADV_DONTFORK);
    return all;
}

void process_array_free(process *all, size_t n)
{
    if (all != NULL) munmap(all, n * sizeof *all);
}

/* ---- starting ---------------------------------------------------------------------------------------- */

static double seconds_now(void)
{
    return (double)clock_ns(&clock_real) * 1e-9;
}

static void exec_example(char *const *argv)
{
    char path[1024], *slash;
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return;
    path[n] = '\0';
    if ((slash = strrchr(path, '/')) == NULL) return;
    snprintf(slash, sizeof path - (size_t)(slash - path), "/examples/%s", argv[0]);
    execv(path, argv);
}

static bool is_file_of(const char *name, const char *ending)
{
    struct stat st;
    const size_t n = strlen(name), m = strlen(ending);
    return n > m && strcmp(name + n - m, ending) == 0 && stat(name, &st) == 0 &&
           S_ISREG(st.st_mode);
}

/* PROG as given if it has a slash; else from PATH; else from the examples beside this binary; else from this folder. */
static void exec_program(char *const *argv)
{
    char here[PATH_MAX];
    const bool is_plain = strchr(argv[0], '/') == NULL;
    execvp(argv[0], argv);
    if (errno == ENOENT && is_plain) exec_example(argv);
    if (errno == ENOENT && is_plain && is_file_of(argv[0], "")) {
        snprintf(here, sizeof here, "./%s", argv[0]);
        execv(here, argv);
    }
    const int error = errno;
    if (error == EACCES && is_file_of(argv[0], ".py")) {
        /* A script that is not executable, as torchrun runs it. */
        char *words[256] = {"python3", "-u"};
        int n            = 0;
        for (; argv[n] != NULL && n < 253; n++) words[n + 2] = argv[n];
        if (argv[n] == NULL) execvp(words[0], words);
    }
    dprintf(STDERR_FILENO, "penstock: cannot run '%s': %s\n", argv[0],
            error == EACCES && is_file_of(argv[0], "")
                ? "it is not executable; use chmod +x, or name its interpreter first"
                : strerror(error));
    _exit(error == ENOENT ? 127 : 126);
}

/* A worker's stdout is a pseudo-terminal, so that C, Python and others write each line when it ends: a pipe would hold
 * them back for minutes, and a kill would lose them.  Bytes pass unchanged.  False: none is left; then it is a pipe. */
static bool open_terminal(int ends[2])
{
    struct termios t;
    struct winsize size;
    char name[64];
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[0] < 0) return false;
    ends[1] = grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0 &&
                      ptsname_r(ends[0], name, sizeof name) == 0
                  ? open(name, O_WRONLY | O_NOCTTY | O_CLOEXEC)
                  : -1;
    if (ends[1] < 0 || tcgetattr(ends[1], &t) != 0) {
        if (ends[1] >= 0) close(ends[1]);
        close(ends[0]);
        return false;
    }
    cfmakeraw(&t);
    tcsetattr(ends[1], TCSANOW, &t);
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) ioctl(ends[0], TIOCSWINSZ, &size);
    return true;
}

static void become_child(char *const *argv, const process_env *env, size_t n_env, int position,
                         int out, int err, int go, pid_t parent)
{
    char byte, number[16];
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* the parent died before the line above */

    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int s = 1; s < 32; s++) signal(s, SIG_DFL);

    if (isatty(out) && !isatty(STDOUT_FILENO)) setenv("TERM", "dumb", 1); /* no colours in files */
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    for (size_t i = 0; i < n_env; i++) {
        if (env[i].value != NULL)
            setenv(env[i].name, env[i].value, 1);
        else
            unsetenv(env[i].name);
    }
    unsetenv(POSITION_VARIABLE);
    snprintf(number, sizeof number, "%d", position);
    if (position_pass(position)) setenv(POSITION_VARIABLE, number, 1);
    if (read(go, &byte, 1) != 1) _exit(1); /* until the guard knows this group */
    exec_program(argv);
}

pen_status process_start(process *p, char *const *argv, const process_env *env, size_t n_env,
                         pen_error *why)
{
    int out[2], err[2], go[2];
    const pid_t parent      = getpid();
    const bool has_terminal = p->role == PEN_WORKER && open_terminal(out);
    if ((!has_terminal && pipe2(out, O_CLOEXEC) != 0) || pipe2(err, O_CLOEXEC) != 0 ||
        pipe2(go, O_CLOEXEC) != 0)
        return why_set(why, PEN_STORE, "cannot make a pipe for %s: %m", p->name);
    int position = -1;
    if (p->role == PEN_WORKER) p->position = position_create(&position);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) become_child(argv, env, n_env, position, out[1], err[1], go[0], parent);
    if (position >= 0) close(position); /* each fork copies what is open */
    if (pid < 0) return why_set(why, PEN_NO_MEMORY, "cannot start %s: %m", p->name);

    p->pid = pid;
    setpgid(p->pid, p->pid); /* here too: parent and child race */
    guard_tell(p->pid);
    if (write(go[1], "", 1) != 1) kill(p->pid, SIGKILL);
    close(go[0]);
    close(go[1]);
    close(out[1]);
    close(err[1]);
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    p->out.fd    = out[0];
    p->err.fd    = err[0];
    p->started_s = seconds_now();
    return PEN_OK;
}

/* ---- output ------------------------------------------------------------------------------------------ */

static void end_line(process *p, process_stream *s)
{
    s->line[s->line_size] = '\0';
    snprintf(s->tail[s->lines++ % PROCESS_TAIL_LINES], sizeof s->tail[0], "%.255s", s->line);
    s->line[s->line_size++] = '\n'; /* other bytes pass unchanged */
    if (s->file != NULL) {
        fwrite(s->line, 1, s->line_size, s->file);
        fflush(s->file);
    }
    if (s->terminal != NULL) lines_show(p, s);
    s->line_size = 0;
}

static void take_bytes(process *p, process_stream *s, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != '\n') s->line[s->line_size++] = bytes[i];
        if (bytes[i] == '\n' || s->line_size == sizeof s->line - 1) end_line(p, s);
    }
}

bool process_read(process *p, process_stream *s)
{
    char bytes[1 << 16];
    if (s->fd < 0) return false;
    ssize_t n = read(s->fd, bytes, sizeof bytes);
    if (n > 0) {
        take_bytes(p, s, bytes, (size_t)n);
        return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (s->line_size > 0) end_line(p, s);
    close(s->fd);
    s->fd = -1;
    return false;
}

static void drain(process *p, process_stream *s)
{
    if (s->fd < 0) return;
    char bytes[1 << 16];
    for (ssize_t n; (n = read(s->fd, bytes, sizeof bytes)) > 0;) take_bytes(p, s, bytes, (size_t)n);
    if (s->line_size > 0) end_line(p, s);
    close(s->fd);
    s->fd = -1;
}

void process_read_all(process *p, process_stream *s, int timeout_ms)
{
    struct pollfd ready = {.fd = s->fd, .events = POLLIN};
    while (poll(&ready, 1, timeout_ms) > 0 && process_read(p, s)) {}
}

static void close_position(process *p)
{
    position_close(p->position);
    p->position = NULL;
}

void process_drain(process *p)
{
    drain(p, &p->out);
    drain(p, &p->err);
    close_position(p); /* of one that is not reaped; else it was read */
    if (p->out.file != NULL) fclose(p->out.file);
    if (p->err.file != NULL) fclose(p->err.file);
    p->out.file = p->err.file = NULL;
}

/* ---- ending ------------------------------------------------------------------------------------------- */

static bool is_stopped(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
}

void process_signal(const process *p, int signal_)
{
    if (p->pid == 0) return;
    kill(-p->pid, signal_);
    if (signal_ != SIGKILL && is_stopped(p->pid))
        kill(-p->pid, SIGCONT); /* a stopped process must wake to handle it */
}

bool process_cannot_run(const process *p)
{
    return p->ended && (p->exit_code == 126 || p->exit_code == 127);
}

process *process_reap(process *all, size_t n)
{
    int status;
    for (;;) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid <= 0) return NULL;
        for (size_t i = 0; i < n; i++) {
            process *p = &all[i];
            if (p->pid != pid) continue;
            kill(-pid, SIGKILL); /* remaining processes of its group */
            guard_tell(-pid);
            p->has_position = position_read(p->position, &p->step, p->call);
            close_position(p);
            p->ended_pid   = pid;
            p->pid         = 0;
            p->ended       = true;
            p->ended_s     = seconds_now();
            p->order       = ++ended_count;
            p->exit_code   = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
            p->exit_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
            return p;
        }
    }
}
