/* run.c - `penstock run`: starts a job's processes on this machine, watches them, and ends all when one fails.
 *
 * One attempt =  scheduler (machine 0) -> servers -> workers -> wait -> report.
 * The launcher holds a control connection to the scheduler: it reports local deaths the moment they happen, and
 * receives the verdict, whose sentence and culprit the report then gives.
 */
#include "cli/command.h"
#include "cli/control.h"
#include "cli/run/options.h"
#include "cli/run/process.h"
#include "cli/run/report.h"
#include "common/clock.h"
#include "common/why.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LEAVE_MS    = 3000,  /* survivors of a verdict may say their sentence and go */
    SERVERS_MS  = 10000, /* servers and scheduler after the last worker          */
    OVER_MS     = 300,   /* servers after the last worker and the scheduler      */
    VERDICT_MS  = 500,   /* the verdict of a scheduler that has ended            */
    LINK_MS     = 60000, /* machine 0 may start that much later than another     */
    LINK_TRY_MS = 1000,
    ANNOUNCE_MS = 20000, /* the scheduler's port                                 */
    CODES       = 16
};

typedef struct {
    run_options options;
    char job[128], program[128], self[1024], log_folder[400], note[600];
    char address[300]; /* tcp://HOST:PORT of the scheduler */
    int port, attempt, signals;
    process *all; /* scheduler (machine 0 only), servers, workers */
    size_t n;
    control *link;
    pen_error verdict;
    bool has_verdict, stopping;
    bool had_link, is_over; /* is_over: the scheduler has ended after all workers */
    bool told_waiting;
    bool asked, answered, scheduler_hung; /* after a failure: does the scheduler still answer? */
    int interrupted, interrupts;
    uint64_t kill_at_ms, leave_at_ms, link_until_ms;
} launcher;

/* ---- names and files -------------------------------------------------------------------------------- */

static void name_job(launcher *l)
{
    char copy[512];
    snprintf(copy, sizeof copy, "%s", l->options.program[0]);
    snprintf(l->program, sizeof l->program, "%s", basename(copy));
    if (l->options.job != NULL)
        snprintf(l->job, sizeof l->job, "%s", l->options.job);
    else
        snprintf(l->job, sizeof l->job, "%.100s-%04x", l->program,
                 (unsigned)((clock_ns(&clock_real) / 1000 ^ (uint64_t)getpid() << 4) & 0xffff));
}

static bool keeps_files(const run_options *o)
{
    if (o->log_dir != NULL) return true;
    for (int i = 0; i < o->nproc; i++)
        if (o->redirects[i] != 0 || o->tee[i] != 0) return true;
    return false;
}

/* LOG_DIR/JOB/attempt_N: made when any output goes to files. */
static pen_status make_log_folder(launcher *l, pen_error *why)
{
    const char *tmp  = config_env("TMPDIR");
    const char *base = l->options.log_dir != NULL ? l->options.log_dir : tmp != NULL ? tmp : "/tmp";
    if (!keeps_files(&l->options)) return PEN_OK;
    mkdir(base, 0755);
    snprintf(l->log_folder, sizeof l->log_folder, "%.200s/%s", base, l->job);
    mkdir(l->log_folder, 0755);
    size_t n = strlen(l->log_folder);
    snprintf(l->log_folder + n, sizeof l->log_folder - n, "/attempt_%d", l->attempt);
    if (mkdir(l->log_folder, 0755) != 0 && errno != EEXIST)
        return why_set(why, PEN_STORE, "cannot make the log folder %s: %m", l->log_folder);
    return PEN_OK;
}

static void open_stream(launcher *l, process *p, process_stream *s, const char *suffix, int bit,
                        FILE *terminal)
{
    const run_options *o = &l->options;
    bool worker          = p->role == PEN_WORKER;
    uint8_t redirect     = worker ? o->redirects[p->local_rank] : 0,
            tee          = worker ? o->tee[p->local_rank] : 0;
    bool shown           = !worker || o->shown[p->local_rank];
    *s                   = (process_stream){.fd = -1};
    s->terminal          = shown && !(redirect & bit && !(tee & bit)) ? terminal : NULL;
    if (l->log_folder[0] == '\0' || (o->log_dir == NULL && !((redirect | tee) & bit))) return;
    char path[512], name[32];
    snprintf(name, sizeof name, "%s", p->name);
    for (char *c = name; *c != '\0'; c++)
        if (*c == ' ') *c = '-';
    snprintf(path, sizeof path, "%.440s/%s.%s", l->log_folder, name, suffix);
    s->file = fopen(path, "we");
    if (bit == RUN_STDERR && s->file != NULL) snprintf(p->err_path, sizeof p->err_path, "%s", path);
}

/* The note by which `penstock status` finds this job. */
static void write_note(launcher *l)
{
    char folder[300];
    pen_error why;
    if (control_jobs_folder(folder, sizeof folder, &why) != PEN_OK) return;
    snprintf(l->note, sizeof l->note, "%s/%s.json", folder, l->job);
    int fd = open(l->note, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return;
    dprintf(fd, "{\"job\": \"%s\", \"address\": \"%s\", \"pid\": %d}\n", l->job, l->address,
            (int)getpid());
    close(fd);
}

/* ---- starting ------------------------------------------------------------------------------------------ */

static process *add(launcher *l, int32_t role, int32_t rank, int32_t local_rank,
                    const char *role_name)
{
    process *p = &l->all[l->n++];
    *p         = (process){.role = role, .rank = rank, .local_rank = local_rank};
    if (role == PEN_SCHEDULER)
        snprintf(p->name, sizeof p->name, "%s", role_name);
    else
        snprintf(p->name, sizeof p->name, "%s %d", role_name, rank);
    if (l->options.prefix && role == PEN_WORKER)
        snprintf(p->prefix, sizeof p->prefix, "[%d] ", rank);
    open_stream(l, p, &p->out, "out", RUN_STDOUT, stdout);
    open_stream(l, p, &p->err, "err", RUN_STDERR, stderr);
    return p;
}

/* Reads the port the scheduler says on its announcement pipe. */
static pen_status read_announcement(launcher *l, process *scheduler, int fd, pen_error *why)
{
    char text[32]   = "";
    size_t n        = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (n < sizeof text - 1 && strchr(text, '\n') == NULL) {
        if (poll(&p, 1, ANNOUNCE_MS) <= 0) break;
        ssize_t got = read(fd, text + n, sizeof text - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
        text[n] = '\0';
    }
    l->port = atoi(text);
    if (l->port > 0) return PEN_OK;
    process_signal(scheduler, SIGTERM);
    scheduler->err.terminal = NULL; /* its sentence is in ours */
    process_read_all(scheduler, &scheduler->err, 2000);
    const char *said = scheduler->err.lines == 0
                           ? "it said nothing"
                           : scheduler->err.tail[(scheduler->err.lines - 1) % PROCESS_TAIL_LINES];
    return why_set(why, PEN_UNREACHABLE, "the scheduler did not start: %s",
                   strncmp(said, "penstock: ", 10) == 0 ? said + 10 : said);
}

typedef struct {
    char text[CODES][32];
    int n;
} numbers;

static const char *number(numbers *all, long value)
{
    snprintf(all->text[all->n], sizeof all->text[0], "%ld", value);
    return all->text[all->n++];
}

static pen_status start_scheduler(launcher *l, pen_error *why)
{
    const run_options *o = &l->options;
    numbers num          = {.n = 0};
    int announce[2];
    if (o->node_rank != 0) {
        l->port = o->master_port;
        return PEN_OK;
    }
    if (pipe(announce) != 0) return why_set(why, PEN_STORE, "cannot make a pipe: %m");
    fcntl(announce[0], F_SETFD, FD_CLOEXEC);
    char *argv[]      = {l->self,
                         (char *)"scheduler",
                         (char *)"--host",
                         (char *)(o->nnodes > 1 ? "*" : o->master_addr),
                         (char *)"--port",
                         (char *)number(&num, o->master_port),
                         (char *)"--world-size",
                         (char *)number(&num, (long)o->nproc * o->nnodes),
                         (char *)"--servers",
                         (char *)number(&num, o->servers),
                         (char *)"--job",
                         l->job,
                         (char *)"--announce-fd",
                         (char *)number(&num, announce[1]),
                         NULL};
    process *p        = add(l, PEN_SCHEDULER, 0, -1, "scheduler");
    pen_status status = process_start(p, argv, NULL, 0, why);
    close(announce[1]);
    if (status == PEN_OK) status = read_announcement(l, p, announce[0], why);
    close(announce[0]);
    return status;
}

/* Server i of S runs on machine i mod nnodes. */
static pen_status start_servers(launcher *l, pen_error *why)
{
    const run_options *o = &l->options;
    pen_status status    = PEN_OK;
    for (int i = o->node_rank; i < o->servers && status == PEN_OK; i += o->nnodes) {
        numbers num = {.n = 0};
        char *argv[20];
        int n     = 0;
        argv[n++] = l->self;
        argv[n++] = (char *)"server";
        argv[n++] = (char *)"--master-addr";
        argv[n++] = (char *)o->master_addr;
        argv[n++] = (char *)"--master-port";
        argv[n++] = (char *)number(&num, l->port);
        argv[n++] = (char *)"--rank";
        argv[n++] = (char *)number(&num, i);
        if (o->store != NULL) {
            argv[n++] = (char *)"--store";
            argv[n++] = (char *)o->store;
        }
        argv[n] = NULL;
        /* Values and messages are large and read from end to end: let malloc ask for large pages. */
        const char *tunables = config_env("GLIBC_TUNABLES");
        process_env env[]    = {
               {"PENSTOCK_ROLE", "server"},
               {"GLIBC_TUNABLES", tunables != NULL ? tunables : "glibc.malloc.hugetlb=1"}};
        status = process_start(add(l, PEN_SERVER, i, -1, "server"), argv, env, 2, why);
    }
    return status;
}

static pen_status start_worker(launcher *l, int local_rank, pen_error *why)
{
    const run_options *o = &l->options;
    numbers num          = {.n = 0};
    long world = (long)o->nproc * o->nnodes, rank = (long)o->node_rank * o->nproc + local_rank;
    bool threads_given    = config_env("OMP_NUM_THREADS") != NULL;
    long cores            = sysconf(_SC_NPROCESSORS_ONLN),
         threads          = cores / o->nproc > 0 ? cores / o->nproc : 1;
    const char *rank_text = number(&num, rank), *world_text = number(&num, world);
    const char *local_text = number(&num, local_rank), *nproc_text = number(&num, o->nproc);
    const char *node_text = number(&num, o->node_rank), *nodes_text = number(&num, o->nnodes);
    process_env env[] = {
        {"RANK", rank_text},
        {"WORLD_SIZE", world_text},
        {"LOCAL_RANK", local_text},
        {"LOCAL_WORLD_SIZE", nproc_text},
        {"GROUP_RANK", node_text},
        {"GROUP_WORLD_SIZE", nodes_text},
        {"ROLE_RANK", rank_text},
        {"ROLE_WORLD_SIZE", world_text},
        {"ROLE_NAME", "default"},
        {"MASTER_ADDR", o->master_addr},
        {"MASTER_PORT", number(&num, l->port)},
        {"TORCHELASTIC_RUN_ID", l->job},
        {"TORCHELASTIC_RESTART_COUNT", number(&num, l->attempt)},
        {"TORCHELASTIC_MAX_RESTARTS", number(&num, o->max_restarts)},
        {"PENSTOCK_ROLE", "worker"},
        {"PENSTOCK_SCHEDULER", "external"},
        {"PENSTOCK_JOB", l->job},
        {"PENSTOCK_SERVERS", number(&num, o->servers)},
        {threads_given ? "ROLE_NAME" : "OMP_NUM_THREADS",
         threads_given ? "default" : number(&num, threads)},
        {"PENSTOCK_MODE", o->mode != NULL ? o->mode : config_env("PENSTOCK_MODE")},
        {"PENSTOCK_RESUME",
         o->resume || (o->store != NULL && l->attempt > 0) ? "yes" : config_env("PENSTOCK_RESUME")},
        {"PENSTOCK_FRESH", o->fresh && l->attempt == 0 ? "yes" : config_env("PENSTOCK_FRESH")},
    };
    process *p = add(l, PEN_WORKER, (int32_t)rank, local_rank, "worker");
    return process_start(p, o->program, env, sizeof env / sizeof *env, why);
}

static void say_start(const launcher *l)
{
    const run_options *o = &l->options;
    long cores           = sysconf(_SC_NPROCESSORS_ONLN);
    fprintf(stderr, "penstock: job %s   scheduler %s:%d   %d server%s   %d worker%s", l->job,
            o->master_addr, l->port, o->servers, o->servers == 1 ? "" : "s", o->nproc * o->nnodes,
            o->nproc * o->nnodes == 1 ? "" : "s");
    if (o->nproc > cores) fprintf(stderr, "   (%d workers on %ld cores)", o->nproc, cores);
    if (o->nnodes > 1) fprintf(stderr, "   machine %d of %d", o->node_rank, o->nnodes);
    fprintf(stderr, "\n");
}

static void report_exit(launcher *l, const process *p)
{
    wire_control exited = {.kind = WIRE_EXITED};
    if (l->link == NULL || p->role == PEN_SCHEDULER) return;
    exited.u.exited.role   = p->role;
    exited.u.exited.rank   = p->rank;
    exited.u.exited.code   = p->exit_code;
    exited.u.exited.signal = p->exit_signal;
    exited.u.exited.note   = "";
    control_send(l->link, &exited, NULL);
}

/* Without a link deaths are found by the scheduler itself.  One that has ended the job says so at once. */
static void open_link(launcher *l, uint64_t timeout_ms)
{
    pen_status status = control_open(l->address, WIRE_LAUNCHER, timeout_ms, &l->link, &l->verdict);
    l->had_link       = status == PEN_OK;
    if (status != PEN_OK) l->link = NULL;
    l->has_verdict = status != PEN_OK && status != PEN_UNREACHABLE;
    for (size_t i = 0; i < l->n; i++)
        if (l->all[i].ended) report_exit(l, &l->all[i]);
}

static pen_status start_all(launcher *l, pen_error *why)
{
    const run_options *o = &l->options;
    l->n                 = 0;
    l->all               = calloc((size_t)o->nproc + (size_t)o->servers + 1, sizeof *l->all);
    if (l->all == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %d processes", o->nproc + o->servers);
    pen_status status = make_log_folder(l, why);
    if (status == PEN_OK) status = start_scheduler(l, why);
    if (status != PEN_OK) return status;
    snprintf(l->address, sizeof l->address, "tcp://%s:%d", o->master_addr, l->port);
    say_start(l);
    if (o->node_rank == 0) write_note(l);
    if (o->node_rank == 0)
        open_link(l, 5000); /* before anything can fail: its verdict would be missed */
    status = start_servers(l, why);
    for (int i = 0; i < o->nproc && status == PEN_OK; i++) status = start_worker(l, i, why);
    if (o->node_rank != 0) l->link_until_ms = clock_ms(&clock_real) + LINK_MS;
    return status;
}

/* ---- watching ------------------------------------------------------------------------------------------- */

static size_t alive(const launcher *l, int32_t role)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        n += l->all[i].pid != 0 && (role == 0 || l->all[i].role == role);
    return n;
}

static void stop_all(launcher *l, uint64_t now)
{
    if (l->stopping) return;
    l->stopping   = true;
    l->kill_at_ms = now + (uint64_t)l->options.grace_s * 1000;
    for (size_t i = 0; i < l->n; i++) process_signal(&l->all[i], SIGTERM);
}

/* The first failure: survivors get a moment to find out by themselves and say so.  A scheduler that does not
 * answer within that moment is the cause itself. */
static void on_failure(launcher *l, uint64_t now)
{
    if (l->asked) return;
    wire_control question = {.kind = WIRE_STATUS_ASK};
    l->asked              = true;
    l->leave_at_ms        = now + LEAVE_MS;
    if (l->link == NULL || control_send(l->link, &question, NULL) != PEN_OK) l->answered = true;
}

/* Servers and workers that live, but for the one the verdict calls lost: that may hang. */
static bool has_survivors(const launcher *l)
{
    size_t n = alive(l, PEN_SERVER) + alive(l, PEN_WORKER);
    for (size_t i = 0; i < l->n; i++) {
        const process *p = &l->all[i];
        n -= p->pid != 0 && p->role == l->verdict.role && p->rank == l->verdict.rank &&
             p->role != PEN_SCHEDULER;
    }
    return n > 0;
}

static void read_link(launcher *l, uint64_t now)
{
    wire_control message;
    pen_status status = PEN_OK;
    while (l->link != NULL && (status = control_receive(l->link, 0, &message, NULL)) == PEN_OK) {
        l->answered = l->asked;
        if (message.kind != WIRE_VERDICT || l->has_verdict) continue;
        l->verdict     = message.u.verdict;
        l->has_verdict = true;
        on_failure(l, now);
    }
    bool has_done = l->has_verdict && !has_survivors(l); /* the scheduler waits for us */
    if (l->link != NULL && (status != PEN_AGAIN || has_done)) {
        l->answered = true;                         /* it has ended: no more to be heard */
        control_close(l->link, has_done ? 200 : 0); /* what we said of their ends goes first */
        l->link = NULL;
    }
}

static void reap(launcher *l, uint64_t now)
{
    process *p;
    while ((p = process_reap(l->all, l->n)) != NULL) {
        process_drain(p);
        report_exit(l, p);
        if (l->is_over && l->stopping && p->exit_signal == SIGTERM)
            p->exit_signal = 0; /* it had not even begun */
        bool failed = p->exit_code != 0 || p->exit_signal != 0;
        if (failed && !l->stopping) on_failure(l, now);
        if (l->stopping) p->reported = true;
    }
    if (alive(l, PEN_WORKER) == 0 && l->leave_at_ms == 0) l->leave_at_ms = now + SERVERS_MS;
}

/* Not on machine 0, whose link is there from the start. */
static bool seeks_link(const launcher *l, uint64_t now)
{
    return !l->had_link && !l->has_verdict && !l->stopping && now < l->link_until_ms;
}

/* Workers of other machines may be far behind, in ps-async by hours. */
static bool waits_for_others(const launcher *l, uint64_t now)
{
    if (l->options.nnodes == 1 || l->asked) return false;
    return l->options.node_rank == 0 ? alive(l, PEN_SCHEDULER) > 0
                                     : l->link != NULL || seeks_link(l, now);
}

/* Nobody has failed, but what should have ended by itself has not. */
static bool is_patient(launcher *l, uint64_t now)
{
    if (!waits_for_others(l, now)) return false;
    if (!l->told_waiting)
        fprintf(stderr,
                "penstock: the workers here have ended; waiting for those of other machines\n");
    l->told_waiting = true;
    l->leave_at_ms  = now + SERVERS_MS;
    return true;
}

/* The scheduler ends last, after every server that it knew: what is left has never joined. */
static void look_for_the_end(launcher *l, uint64_t now)
{
    bool scheduler_ended =
        l->options.node_rank == 0 ? alive(l, PEN_SCHEDULER) == 0 : l->had_link && l->link == NULL;
    if (l->is_over || l->stopping || !scheduler_ended || alive(l, PEN_WORKER) > 0) return;
    l->is_over = true;
    if (l->leave_at_ms > now + OVER_MS) l->leave_at_ms = now + OVER_MS;
}

static void read_signals(launcher *l, uint64_t now)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue;
        l->interrupted = (int)info.ssi_signo;
        stop_all(l, now);
        if (++l->interrupts > 1) l->kill_at_ms = now;
    }
}

static int poll_timeout(const launcher *l, uint64_t now)
{
    uint64_t due = l->stopping ? l->kill_at_ms : l->leave_at_ms;
    if (seeks_link(l, now)) return 100;
    if (due == 0) return 1000;
    return due <= now ? 0 : due - now < 1000 ? (int)(due - now) : 1000;
}

static size_t gather_fds(const launcher *l, struct pollfd *fds, process_stream **streams,
                         process **owners)
{
    size_t n = 0;
    fds[n++] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = l->link == NULL ? -1 : control_fd(l->link), .events = POLLIN};
    for (size_t i = 0; i < l->n; i++) {
        process *p             = &l->all[i];
        process_stream *both[] = {&p->out, &p->err};
        for (int k = 0; k < 2; k++) {
            if (both[k]->fd < 0) continue;
            owners[n]  = p;
            streams[n] = both[k];
            fds[n++]   = (struct pollfd){.fd = both[k]->fd, .events = POLLIN};
        }
    }
    return n;
}

static pen_status watch(launcher *l, pen_error *why)
{
    size_t cap               = 2 * l->n + 2;
    struct pollfd *fds       = calloc(cap, sizeof *fds);
    process_stream **streams = calloc(cap, sizeof *streams);
    process **owners         = calloc(cap, sizeof *owners);
    pen_status status        = PEN_OK;
    if (fds == NULL || streams == NULL || owners == NULL)
        status = why_set(why, PEN_NO_MEMORY, "no memory to watch");
    while (status == PEN_OK) {
        uint64_t now = clock_ms(&clock_real);
        if (alive(l, 0) == 0 && !seeks_link(l, now)) break;
        size_t n = gather_fds(l, fds, streams, owners);
        poll(fds, n, poll_timeout(l, now));
        now = clock_ms(&clock_real);
        for (size_t i = 2; i < n; i++)
            if (fds[i].revents != 0) process_read(owners[i], streams[i]);
        read_signals(l, now);
        reap(l, now); /* before the link: a death we saw ourselves is told with its signal */
        if (seeks_link(l, now)) open_link(l, LINK_TRY_MS);
        if (l->has_verdict) on_failure(l, now);
        read_link(l, now);
        look_for_the_end(l, now);
        if (!l->stopping && l->leave_at_ms != 0 && now >= l->leave_at_ms && !is_patient(l, now)) {
            l->scheduler_hung = l->asked && !l->answered && alive(l, PEN_SCHEDULER) > 0;
            stop_all(l, now);
        }
        if (l->stopping && now >= l->kill_at_ms) {
            for (size_t i = 0; i < l->n; i++) process_signal(&l->all[i], SIGKILL);
            l->kill_at_ms = now + 1000;
        }
    }
    free(fds);
    free(streams);
    free(owners);
    return status;
}

/* A scheduler may end before its last words were read. */
static void hear_verdict(launcher *l)
{
    uint64_t now = clock_ms(&clock_real), end = now + VERDICT_MS;
    for (; l->asked && !l->has_verdict && l->link != NULL && now < end;
         now = clock_ms(&clock_real)) {
        struct pollfd fd = {.fd = control_fd(l->link), .events = POLLIN};
        poll(&fd, 1, (int)(end - now));
        read_link(l, now);
    }
}

static void clean_up(launcher *l)
{
    for (size_t i = 0; i < l->n; i++) {
        process_signal(&l->all[i], SIGKILL);
        process_drain(&l->all[i]);
    }
    control_close(l->link,
                  l->options.node_rank == 0 ? 0 : 200); /* our own scheduler has ended by now */
    if (l->note[0] != '\0') unlink(l->note);
    free(l->all);
    l->all  = NULL;
    l->link = NULL;
    l->n    = 0;
}

/* One start of everything; the exit code, and whether it may be tried again. */
static int attempt(launcher *l, bool *again)
{
    pen_error why  = {0};
    l->has_verdict = l->stopping = l->asked = l->answered = l->scheduler_hung = false;
    l->had_link = l->is_over = l->told_waiting = false;
    l->leave_at_ms = l->kill_at_ms = l->link_until_ms = 0;
    *again                                            = false;

    int code;
    pen_status status = start_all(l, &why);
    if (status == PEN_OK) status = watch(l, &why);
    if (status == PEN_OK) hear_verdict(l);
    if (status != PEN_OK) {
        code = command_fail(1, "%s", why.text);
    } else {
        *again          = l->interrupted == 0 && l->attempt < l->options.max_restarts;
        report_input in = {.options        = &l->options,
                           .program        = l->program,
                           .job            = l->job,
                           .log_folder     = l->log_folder,
                           .all            = l->all,
                           .n              = l->n,
                           .verdict        = l->has_verdict ? &l->verdict : NULL,
                           .scheduler_hung = l->scheduler_hung,
                           .interrupted    = l->interrupted,
                           .restarting     = *again};
        code            = report_write(&in, report_cause(&in));
        *again          = *again && code != 0;
    }
    clean_up(l);
    return code;
}

static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    const int caught[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

int command_run(int argc, char **argv)
{
    static launcher l;
    pen_error why;
    int code = run_options_parse(argc, argv, &l.options);
    if (code >= 0) return code;
    ssize_t n = readlink("/proc/self/exe", l.self, sizeof l.self - 1);
    if (n <= 0) return command_fail(1, "cannot find this program's own file: %m");
    name_job(&l);
    l.signals = open_signals();
    if (l.signals < 0) return command_fail(1, "cannot watch signals: %m");
    if (process_guard_start(&why) != PEN_OK) return command_fail(1, "%s", why.text);
    bool again;
    for (;;) {
        code = attempt(&l, &again);
        if (!again) break;
        l.attempt++;
        fprintf(stderr, "penstock: starting again, %d of %d\n", l.attempt, l.options.max_restarts);
    }
    process_guard_stop();
    return code;
}
