/* run.c - `penstock run`: starts a job's processes on this machine, watches them, and stops all when one fails.
 *
 * One attempt =  scheduler (machine 0) -> servers -> workers -> wait -> report.
 * The launcher keeps a control connection to the scheduler: it reports local deaths at once, and receives the verdict
 * with the cause for the report.
 */
#include "cli/command.h"
#include "cli/emit/emit.h"
#include "cli/job/headline.h"
#include "cli/run/files.h"
#include "cli/run/launcher.h"
#include "cli/run/lines.h"
#include "cli/run/report.h"
#include "common/base/clock.h"
#include "common/base/why.h"
#include "common/net/local_socket.h"
#include "common/net/own_address.h"
#include "common/net/tcp_address.h"
#include "common/system/file_limit.h"
#include "scheduler/core/scheduler_settings.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    TELL_MS     = 50,    /* the scheduler notifies the other machines that the job was stopped */
    SERVERS_MS  = 10000, /* servers and scheduler after the last worker */
    OVER_MS     = 300,   /* servers after the last worker and the scheduler */
    SOON_MS     = 500,   /* the report, after the verdict or another end */
    SAID_MS     = 20,    /* the verdict, when the scheduler or a server prints a line ... */
    HEARD_MS    = 1000,  /* ... after it was silent for so long */
    HEAR_MS     = 100,   /* the verdict about the first failure */
    VERDICT_MS  = 500,   /* the verdict of an exited scheduler */
    LINK_MS     = 60000, /* a restarted scheduler */
    LINK_TRY_MS = 1000,
    CODES       = 16
};

static void print_start(const launcher *l)
{
    const run_options *o = &l->options;
    long cores           = sysconf(_SC_NPROCESSORS_ONLN);
    fprintf(stderr, "penstock: job %s   scheduler %s:%d   %d server%s   %d worker%s", l->job,
            o->master_addr, l->port, o->servers, o->servers == 1 ? "" : "s", o->nproc * o->nnodes,
            o->nproc * o->nnodes == 1 ? "" : "s");
    if (o->nproc > cores) fprintf(stderr, "   (%d workers on %ld cores)", o->nproc, cores);
    if (o->nnodes > 1) fprintf(stderr, "   machine %d of %d", o->node_rank, o->nnodes);
    if (l->http[0] != '\0') fprintf(stderr, "   http://%s/", l->http);
    fprintf(stderr, "\n");
}

static void report_exit(launcher *l, const process *p)
{
    wire_control exited = {.kind = WIRE_EXITED};
    if (l->link == NULL || p->role == PEN_SCHEDULER) return;
    exited.u.exited.role   = p->role;
    exited.u.exited.rank   = p->rank;
    exited.u.exited.pid    = p->ended_pid;
    exited.u.exited.code   = p->exit_code;
    exited.u.exited.signal = p->exit_signal;
    exited.u.exited.step   = p->has_position ? p->step : -1;
    exited.u.exited.call   = p->has_position ? p->call : "";
    exited.u.exited.note   = revive_end_note(l, p);
    control_send(l->link, &exited, NULL);
}

/* Without a link the scheduler detects deaths itself.  A scheduler that has ended the job answers at once. */
static void open_link(launcher *l, uint64_t timeout_ms)
{
    pen_status status = control_join(l->address, l->is_named ? l->job : "", l->options.nproc,
                                     timeout_ms, &l->link, &l->verdict);
    l->had_link       = status == PEN_OK;
    if (status != PEN_OK) l->link = NULL;
    l->has_verdict = status != PEN_OK && status != PEN_UNREACHABLE;
    for (size_t i = 0; i < l->n; i++)
        if (l->all[i].ended) report_exit(l, &l->all[i]);
}

static void print_sharing(const run_options *o)
{
    const int devices = o->devices.list.n, least = devices > 0 ? o->nproc / devices : 0;
    if (devices == 0 || o->nproc <= devices || o->sees_all) return;
    fprintf(stderr, "penstock: %d workers share %d CUDA device%s", o->nproc, devices,
            devices == 1 ? "" : "s");
    if (o->nproc % devices != 0) fprintf(stderr, ", %d or %d on each", least, least + 1);
    if (o->nproc % devices == 0 && devices > 1) fprintf(stderr, ", %d on each", least);
    fprintf(stderr, "\n");
}

/* The initial ranks of this machine; an additional machine joins a running job. */
static pen_status start_workers(launcher *l, pen_error *why)
{
    const run_options *o = &l->options;
    pen_status status    = PEN_OK;
    for (int i = 0; i < o->nproc && status == PEN_OK; i++)
        status = launcher_start_worker(l, o->node_rank * o->nproc + i, i, why);
    return status;
}

static pen_status start_servers(launcher *l, pen_error *why)
{
    const run_options *o = &l->options;
    pen_status status    = PEN_OK;
    for (int i = 0; i < o->servers && status == PEN_OK; i++)
        if (launcher_node_of_server(o, i) == o->node_rank)
            status = launcher_start_server(l, i, why);
    return status;
}

/* ---- watching ------------------------------------------------------------------------------------------- */
/* The newest first: workers, so that none has the time to say that a server is gone. */
static void stop(launcher *l, bool is_scheduler)
{
    for (size_t i = l->n; i-- > 0;) {
        process *p = &l->all[i];
        if ((p->role == PEN_SCHEDULER) != is_scheduler) continue;
        if (p->role != PEN_WORKER && l->interrupted != 0) p->err.terminal = NULL;
        process_signal(p, p->lost ? SIGKILL : SIGTERM);
    }
}

/* The scheduler stops last, to receive all exits.  If the user interrupts a job of several machines it stops first, so
 * that the others learn that the job was stopped instead of restarting after a lost server. */
static void stop_all(launcher *l, uint64_t now)
{
    const bool is_first =
        l->interrupted != 0 && l->options.nnodes > 1 && launcher_alive(l, PEN_SCHEDULER) > 0;
    if (l->stopping) return;
    l->stopping   = true;
    l->kill_at_ms = now + (uint64_t)l->options.grace_s * 1000;
    stop(l, is_first);
    if (is_first) poll(NULL, 0, TELL_MS);
    stop(l, !is_first);
}

/* ---- progress --------------------------------------------------------------------------------------------- */
/* When the next line is due; UINT64_MAX: never. */
static uint64_t progress_ms(const launcher *l)
{
    const uint64_t said = lines_newest_ms() > l->progress_ms ? lines_newest_ms() : l->progress_ms;
    if (l->options.progress_s == 0 || !run_options_has_scheduler(&l->options) || l->link == NULL ||
        l->stopping || l->asked)
        return UINT64_MAX;
    return said + (uint64_t)l->options.progress_s * 1000;
}

/* The program has printed nothing for a while: asks the scheduler, whose answer is printed. */
static void ask_progress(launcher *l, uint64_t now)
{
    wire_control question = {.kind = WIRE_STATUS_ASK};
    if (progress_ms(l) > now) return;
    l->progress_ms    = now;
    l->shows_progress = control_send(l->link, &question, NULL) == PEN_OK;
}

static void show_progress(launcher *l, const wire_control *status)
{
    char text[HEADLINE_BYTES];
    if (!l->shows_progress || status->kind != WIRE_STATUS) return;
    l->shows_progress = false;
    if (strcmp(status->u.status.phase, "training") != 0) return;
    headline_progress(status, text);
    fprintf(stderr, "penstock: %s\n", text);
}

/* ---- messages of the scheduler ----------------------------------------------------------------------------- */
static void read_link(launcher *l, uint64_t now)
{
    wire_control message;
    pen_status status = PEN_OK;
    while (l->link != NULL && (status = control_receive(l->link, 0, &message, NULL)) == PEN_OK) {
        l->answered = l->asked;
        launcher_take_stuck(l, &message);
        show_progress(l, &message);
        if (message.kind == WIRE_LOST) {
            for (size_t i = 0; i < l->n; i++) {
                process *p = &l->all[i];
                if (p->role == PEN_WORKER && p->rank == message.u.lost.rank) p->lost = true;
            }
            fprintf(stderr, "penstock: %s; the job goes on without it\n", message.u.lost.why.text);
        }
        if (message.kind == WIRE_NOTICE) fprintf(stderr, "penstock: %s\n", message.u.notice.text);
        if (message.kind == WIRE_SCALE)
            revive_scale(l, message.u.scale.workers, message.u.scale.servers);
        if (message.kind != WIRE_VERDICT || l->has_verdict) continue;
        l->verdict     = message.u.verdict;
        l->has_verdict = true;
        l->tell_ms     = now + SOON_MS;
        lines_hide(l->verdict.text);
        launcher_ask_scheduler(l, now);
    }
    bool has_done = l->has_verdict && !launcher_has_survivors(l); /* the scheduler waits for us */
    if (l->link != NULL && (status != PEN_AGAIN || has_done)) {
        l->answered = true;                         /* it has exited: no more messages */
        control_close(l->link, has_done ? 200 : 0); /* send our exit reports first */
        l->link = NULL;
        if (run_options_survives(&l->options) && !has_done && launcher_alive(l, PEN_WORKER) > 0) {
            l->had_link      = false; /* unless it is restarted */
            l->link_until_ms = now + LINK_MS;
        }
    }
}

/* Waits a moment for the verdict: others received it too and print it, and one report is enough. */
static void hear_verdict(launcher *l, uint64_t patience_ms)
{
    const uint64_t until = clock_ms(&clock_real) + patience_ms;
    for (uint64_t now = 0; !l->has_verdict && l->link != NULL && now < until;) {
        struct pollfd fd = {.fd = control_fd(l->link), .events = POLLIN};
        poll(&fd, 1, 5);
        now = clock_ms(&clock_real);
        read_link(l, now);
    }
}

static void reap(launcher *l, uint64_t now)
{
    process *p;
    while ((p = process_reap(l->all, l->n)) != NULL) {
        report_exit(l, p);
        if (l->tell_ms != 0) l->tell_ms = now + SOON_MS;
        if (l->is_over && l->stopping && p->exit_signal == SIGTERM)
            p->exit_signal = 0; /* it was still starting */
        const bool fails = !l->stopping && (p->exit_code != 0 || p->exit_signal != 0);
        if (fails && !l->asked && !revive_may_restart(l, p)) hear_verdict(l, HEAR_MS);
        process_drain(p); /* its last lines often repeat the verdict */
        if (fails && !revive_takes_end(l, p, now)) launcher_ask_scheduler(l, now);
        if (l->stopping) p->reported = true;
    }
    if (launcher_alive(l, PEN_WORKER) == 0 && l->leave_at_ms == 0)
        l->leave_at_ms = now + SERVERS_MS;
}

/* Workers of other machines may be far behind, in ps-async by hours. */
static bool waits_for_others(const launcher *l, uint64_t now)
{
    if (l->options.nnodes == 1 || l->asked) return false;
    return run_options_has_scheduler(&l->options) ? launcher_alive(l, PEN_SCHEDULER) > 0
                                                  : l->link != NULL || launcher_seeks_link(l, now);
}

/* Nothing failed, but some process that should have exited has not. */
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

/* The scheduler exits last, after all its servers: the remaining processes never joined. */
static void look_for_the_end(launcher *l, uint64_t now)
{
    bool scheduler_ended = run_options_has_scheduler(&l->options)
                               ? launcher_alive(l, PEN_SCHEDULER) == 0
                               : l->had_link && l->link == NULL;
    if (l->is_over || l->stopping || !scheduler_ended || launcher_alive(l, PEN_WORKER) > 0) return;
    l->is_over = true;
    if (l->leave_at_ms > now + OVER_MS) l->leave_at_ms = now + OVER_MS;
}

static void read_signals(launcher *l, uint64_t now)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGUSR1) launcher_ask_stuck(l, now);
        if (info.ssi_signo == SIGCHLD || info.ssi_signo == SIGUSR1) continue;
        l->interrupted = (int)info.ssi_signo;
        stop_all(l, now);
        if (++l->interrupts > 1) l->kill_at_ms = now;
    }
}

/* How long this machine waits for machine 0. */
static uint64_t init_timeout_ms(void)
{
    scheduler_settings s;
    const char *given = config_env("PENSTOCK_INIT_TIMEOUT_MS");
    config_defaults(scheduler_settings_rows, &s);
    if (given != NULL)
        (void)config_set(scheduler_settings_rows, &s, "init_timeout_ms", given, NULL);
    return s.init_timeout_ms;
}

/* Other machines join the scheduler before they start anything: it gives the job its name, and its end is not missed.
 * PEN_OK also if the user interrupts. */
static pen_status join_scheduler(launcher *l, pen_error *why)
{
    const uint64_t begun = clock_ms(&clock_real), patience = init_timeout_ms();
    const char *who   = l->options.is_external ? "the job" : "machine 0";
    pen_status status = PEN_UNREACHABLE;
    for (int tries = 0; !l->stopping && status == PEN_UNREACHABLE; tries++) {
        const char *at = l->address + strlen("tcp://");
        status = control_join(l->address, l->is_named ? l->job : "", l->options.nproc, LINK_TRY_MS,
                              &l->link, why);
        const uint64_t now = clock_ms(&clock_real);
        if (tries == 0 && status == PEN_UNREACHABLE)
            fprintf(stderr, "penstock: waiting for %s (scheduler at %s)%s\n", who, at,
                    own_address_is_here(l->options.master_addr)
                        ? "; this name is loopback here: set --master-addr to its address"
                        : "");
        if (status == PEN_UNREACHABLE && now - begun >= patience)
            return why_set(why, PEN_UNREACHABLE,
                           "%s has not answered at %s for %.3g s; `penstock doctor "
                           "--master-addr %s` tests the connection",
                           who, at, (double)(now - begun) / 1000, l->options.master_addr);
        read_signals(l, now);
    }
    if (status != PEN_OK) return l->stopping ? PEN_OK : status;
    l->had_link = true;
    return launcher_take_name(l, control_job(l->link), why);
}

/* This machine calls itself machine 0, but the scheduler of another one has refused it. */
static pen_status check_node_rank(const launcher *l, pen_error *why)
{
    const run_options *o = &l->options;
    if (!l->has_verdict || o->nnodes_max < 2 || own_address_is_ours(o->master_addr)) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "--node-rank 0 is the machine with the address %s, which another machine has: "
                   "give each other machine a --node-rank of its own, from 1 on, and --join -",
                   o->master_addr);
}

static pen_status start_all(launcher *l, pen_error *why)
{
    const run_options *o     = &l->options;
    const bool has_scheduler = run_options_has_scheduler(o);
    l->n                     = 0;
    l->capacity              = launcher_capacity(o);
    l->all                   = process_array_new(l->capacity);
    if (l->all == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for %zu processes", l->capacity);
    l->port           = has_scheduler ? 0 : o->master_port;
    pen_status status = PEN_OK;
    tcp_address_format(o->master_addr, (uint32_t)l->port, l->address, sizeof l->address);
    if (!has_scheduler) status = join_scheduler(l, why);
    if (status != PEN_OK || l->stopping) return status;
    status = launcher_make_folders(l, why);
    if (status == PEN_OK && has_scheduler) status = launcher_start_scheduler(l, why);
    if (status != PEN_OK) return status;
    tcp_address_format(o->master_addr, (uint32_t)l->port, l->address, sizeof l->address);
    launcher_choose_store_port(l);
    print_start(l);
    print_sharing(o);
    launcher_write_note(l);
    if (has_scheduler)
        open_link(l, 5000); /* before anything can fail, so as not to miss its verdict */
    if (has_scheduler) status = check_node_rank(l, why);
    if (status == PEN_OK) status = start_servers(l, why);
    return status == PEN_OK ? start_workers(l, why) : status;
}

static int poll_timeout(const launcher *l, uint64_t now)
{
    uint64_t due = l->stopping ? l->kill_at_ms : l->leave_at_ms, again = revive_ms(l);
    if (progress_ms(l) < again) again = progress_ms(l);
    if (l->tell_ms != 0 && l->tell_ms < again) again = l->tell_ms;
    if (again != UINT64_MAX && (due == 0 || again < due)) due = again;
    if (launcher_seeks_link(l, now)) return 100;
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

/* The report waits for processes to end.  The sentence does not, when for a while none has ended. */
static void tell_verdict(launcher *l, uint64_t now)
{
    if (l->tell_ms == 0 || now < l->tell_ms) return;
    l->tell_ms  = 0;
    l->has_told = l->interrupted == 0;
    if (l->has_told) fprintf(stderr, "penstock: %s\n", l->verdict.text);
}

static pen_status watch(launcher *l, pen_error *why)
{
    size_t cap               = 2 * l->capacity + 2;
    struct pollfd *fds       = calloc(cap, sizeof *fds);
    process_stream **streams = calloc(cap, sizeof *streams);
    process **owners         = calloc(cap, sizeof *owners);
    pen_status status        = PEN_OK;
    if (fds == NULL || streams == NULL || owners == NULL)
        status = why_set(why, PEN_NO_MEMORY, "no memory to watch");
    while (status == PEN_OK) {
        uint64_t now = clock_ms(&clock_real);
        if (launcher_alive(l, 0) == 0 && !launcher_seeks_link(l, now)) break;
        size_t n = gather_fds(l, fds, streams, owners);
        poll(fds, n, poll_timeout(l, now));
        now = clock_ms(&clock_real);
        read_signals(l, now);
        revive_due(l, now);
        reap(l, now); /* before the link: reports deaths here with their signal */
        for (size_t i = 2; i < n; i++) {
            if (fds[i].revents == 0) continue;
            if (owners[i]->role != PEN_WORKER && now >= l->heard_ms + HEARD_MS) {
                hear_verdict(l, SAID_MS);
                l->heard_ms = now;
            }
            process_read(owners[i], streams[i]);
        }
        if (launcher_seeks_link(l, now)) open_link(l, LINK_TRY_MS);
        if (l->has_verdict) launcher_ask_scheduler(l, now);
        read_link(l, now);
        ask_progress(l, now);
        tell_verdict(l, now);
        look_for_the_end(l, now);
        if (l->stuck != NULL && now >= l->stuck_until_ms) launcher_end_stuck(l);
        if (!l->stopping && l->leave_at_ms != 0 && now >= l->leave_at_ms && !is_patient(l, now)) {
            l->scheduler_hung = l->asked && !l->answered && launcher_alive(l, PEN_SCHEDULER) > 0;
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

static void clean_up(launcher *l)
{
    for (size_t i = 0; i < l->n; i++) {
        process_signal(&l->all[i], SIGKILL);
        process_drain(&l->all[i]);
    }
    launcher_remove_folders(l);
    control_close(l->link,
                  run_options_has_scheduler(&l->options) ? 0 : 200); /* our own has exited by now */
    if (l->note[0] != '\0') unlink(l->note);
    stuck_destroy(l->stuck);
    l->stuck = NULL;
    process_array_free(l->all, l->capacity);
    l->all  = NULL;
    l->link = NULL;
    l->n    = 0;
}

/* The job was stopped here or on machine 0: not a failure, so no restart. */
static bool was_stopped(const launcher *l)
{
    return l->interrupted != 0 ||
           (l->has_verdict && l->verdict.status == PEN_ABORTED && l->verdict.role == PEN_SCHEDULER);
}

/* Not if a program cannot be run, nor for a worker that has used up its own restarts: every machine reads that in the
 * verdict. */
static bool may_restart(const launcher *l, const process *cause)
{
    const bool is_in_vain = l->has_verdict && l->verdict.status == PEN_PEER_LOST &&
                            l->verdict.role == PEN_WORKER && l->verdict.missing_n > 0;
    return !l->options.is_external && !was_stopped(l) && l->attempt < l->options.max_restarts &&
           !is_in_vain && (cause == NULL || !process_cannot_run(cause));
}

/* Starts and watches everything once; returns the exit code, and whether to restart. */
static int attempt(launcher *l, bool *again)
{
    pen_error why = {0};
    lines_hide(NULL);
    l->progress_ms    = clock_ms(&clock_real);
    l->shows_progress = l->has_told = false;
    l->tell_ms                      = 0;
    l->has_verdict = l->stopping = l->asked = l->answered = l->scheduler_hung = false;
    l->had_link = l->is_over = l->told_waiting = false;
    l->leave_at_ms = l->kill_at_ms = l->link_until_ms = 0;
    *again                                            = false;

    int code;
    pen_status status = start_all(l, &why);
    if (status == PEN_OK) status = watch(l, &why);
    if (status == PEN_OK) {
        /* The scheduler may exit before its verdict was read. */
        uint64_t now = clock_ms(&clock_real), end = now + VERDICT_MS;
        for (; (l->asked || launcher_has_unexplained(l)) && !l->has_verdict && l->link != NULL &&
               now < end;
             now = clock_ms(&clock_real)) {
            struct pollfd fd = {.fd = control_fd(l->link), .events = POLLIN};
            poll(&fd, 1, (int)(end - now));
            read_link(l, now);
        }
    }
    if (status != PEN_OK) {
        code = command_fail(1, "%s", why.text);
    } else {
        /* A lost worker is a failure if the job fails. */
        for (size_t i = 0; i < l->n && l->has_verdict; i++) l->all[i].lost = false;
        report_input in      = {.options        = &l->options,
                                .program        = l->program,
                                .job            = l->job,
                                .log_folder     = l->log_folder,
                                .all            = l->all,
                                .n              = l->n,
                                .verdict        = l->has_verdict ? &l->verdict : NULL,
                                .scheduler_hung = l->scheduler_hung,
                                .is_told        = l->has_told,
                                .interrupted    = l->interrupted};
        const process *cause = report_cause(&in);
        in.restarting        = may_restart(l, cause);
        code                 = report_write(&in, cause);
        *again               = in.restarting && code != 0;
    }
    clean_up(l);
    return code;
}

static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    const int caught[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1};
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

/* --print-config: refuses what a run would refuse, and creates nothing. */
static int print_config(launcher *l)
{
    pen_error why;
    if (files_check(&why) != PEN_OK) return command_fail(1, "%s", why.text);
    if ((l->options.program != NULL && launcher_name_job(l, &why) != PEN_OK) ||
        secure_check(l, &why) != PEN_OK || timeline_check(&why) != PEN_OK)
        return command_fail(EXIT_USAGE, "%s", why.text);
    return run_files_print(&l->options, stdout);
}

/* Between the creation of the secret and its removal. */
static int run_secured(launcher *l)
{
    pen_error why;
    int code   = 0;
    bool again = true;
    if (secure_job(l, &why) != PEN_OK || timeline_begin(l, &why) != PEN_OK)
        return command_fail(EXIT_USAGE, "%s", why.text);
    if (process_guard_start(&why) != PEN_OK) return command_fail(1, "%s", why.text);
    while (again) {
        code = attempt(l, &again);
        if (again)
            fprintf(stderr, "penstock: restarting, %d of %d\n", ++l->attempt,
                    l->options.max_restarts);
    }
    process_guard_stop();
    timeline_end(l);
    return code;
}

int command_run(int argc, char **argv)
{
    static launcher l;
    pen_error why;
    int code = run_options_parse(argc, argv, &l.options);
    if (code >= 0) return code;
    if (l.options.print_config) return print_config(&l);
    if (l.options.emits) return emit_k8s(&l.options, stdout);
    lines_begin(config_env("PENSTOCK_LOG_FORMAT"));
    if (!command_self(l.self, sizeof l.self)) return 1;
    if (files_check(&why) != PEN_OK) return command_fail(1, "%s", why.text);
    if (launcher_name_job(&l, &why) != PEN_OK) return command_fail(EXIT_USAGE, "%s", why.text);
    l.signals = open_signals();
    if (l.signals < 0) return command_fail(1, "cannot watch signals: %m");
    code = run_secured(&l);
    secure_forget(&l);
    local_socket_sweep(); /* of killed children */
    return code;
}
