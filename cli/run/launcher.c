/* launcher.c - names a job, starts its scheduler, servers and workers with their flags and environment, and says which of
 * them are alive. */
#include "cli/command.h"
#include "cli/job/job_note.h"
#include "cli/run/launcher.h"
#include "common/base/clock.h"
#include "common/base/utf8.h"
#include "common/base/why.h"
#include "common/net/auth/auth.h"
#include "common/net/tcp_address.h"
#include "common/system/own_files.h"
#include "common/system/user_folder.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <libgen.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ANNOUNCE_MS    = 20000, /* the scheduler's port */
    NUMBERS_MAX    = 16,
    NAME_MAX_BYTES = 63,   /* of a job, as the scheduler keeps it */
    INVENTED_BYTES = 58,   /* of a generated name: the program's part */
    LEAVE_MS       = 3000, /* survivors of a verdict may print their sentence and exit */
    STUCK_MS       = 2000  /* workers may take this long to answer */
};

/* ---- names and files -------------------------------------------------------------------------------- */

/* It is part of file names and JSON, and must fit into the scheduler. */
static bool is_name(const char *job)
{
    const size_t n = strlen(job);
    for (const char *c = job; *c != '\0'; c++)
        if (strchr("/\\\"", *c) != NULL) return false;
    return n > 0 && n <= NAME_MAX_BYTES && job[0] != '.' && utf8_is_clean(job);
}

/* Drops characters that a job name cannot have. */
static void invent_name(launcher *l)
{
    size_t n = 0;
    for (const char *c = l->program; *c != '\0' && n < INVENTED_BYTES; c++)
        if (isalnum((unsigned char)*c) || strchr("._-", *c) != NULL) l->job[n++] = *c;
    if (l->job[0] == '.') l->job[0] = '_';
    snprintf(l->job + n, sizeof l->job - n, "-%04x",
             (unsigned)((clock_ns(&clock_real) / 1000 ^ (uint64_t)getpid() << 4) & 0xffff));
}

pen_status launcher_name_job(launcher *l, pen_error *why)
{
    char copy[512];
    snprintf(copy, sizeof copy, "%s", l->options.program[l->options.is_module ? 3 : 0]);
    snprintf(l->program, sizeof l->program, "%s", basename(copy));
    l->is_named = l->options.job != NULL || run_options_has_scheduler(&l->options);
    if (l->options.job == NULL)
        invent_name(l);
    else if (is_name(l->options.job))
        snprintf(l->job, sizeof l->job, "%s", l->options.job);
    else
        return why_set(why, PEN_BAD_SETTING,
                       "invalid job name '%.100s'; use 1 to %d bytes without / \\ \" or control "
                       "characters, and no "
                       "leading dot",
                       l->options.job, NAME_MAX_BYTES);
    return PEN_OK;
}

pen_status launcher_take_name(launcher *l, const char *job, pen_error *why)
{
    if (l->options.job != NULL || job[0] == '\0') return PEN_OK;
    if (!is_name(job))
        return why_set(why, PEN_BAD_SETTING,
                       "the scheduler at %s has a job name that is not usable as a file name; set "
                       "another --job on machine 0",
                       l->address + strlen("tcp://"));
    snprintf(l->job, sizeof l->job, "%s", job);
    l->is_named = true;
    return PEN_OK;
}

static bool keeps_files(const run_options *o)
{
    if (o->log_dir != NULL) return true;
    for (int i = 0; i < o->nproc; i++)
        if (o->redirects[i] != 0 || o->tee[i] != 0) return true;
    return false;
}

static const char *temporary(void)
{
    const char *folder = config_env("TMPDIR");
    return folder != NULL ? folder : "/tmp";
}

/* LOG_DIR/JOB, or in the folder for temporary files one with a name that nobody can make beforehand. */
static pen_status make_log_base(launcher *l, pen_error *why)
{
    if (l->options.log_dir == NULL) {
        snprintf(l->log_base, sizeof l->log_base, "%.200s/penstock-%.100s-XXXXXX", temporary(),
                 l->job);
        if (mkdtemp(l->log_base) != NULL) return PEN_OK;
        why_set(why, PEN_STORE, "cannot create the log folder %s: %m", l->log_base);
        l->log_base[0] = '\0';
        return PEN_STORE;
    }
    mkdir(l->options.log_dir, 0700);
    snprintf(l->log_base, sizeof l->log_base, "%.200s/%s", l->options.log_dir, l->job);
    return PEN_OK;
}

/* attempt_N in it: created if any output goes to files.  Only this user can read it. */
static pen_status make_log_folder(launcher *l, pen_error *why)
{
    char name[32];
    if (!keeps_files(&l->options)) return PEN_OK;
    if (l->log_base[0] == '\0' && make_log_base(l, why) != PEN_OK) return PEN_STORE;
    snprintf(name, sizeof name, "attempt_%d", l->attempt);
    snprintf(l->log_folder, sizeof l->log_folder, "%s/%s", l->log_base, name);
    if (l->attempt == 0 && l->options.log_dir == NULL)
        fprintf(stderr, "penstock: output goes to %s\n", l->log_base);
    const int base = own_folder_open(AT_FDCWD, l->log_base, l->log_base, OWN_FOLDER, why);
    if (base < 0) return PEN_STORE;
    if (l->log_fd > 0) close(l->log_fd);
    l->log_fd = own_folder_open(base, name, l->log_folder, OWN_FOLDER, why);
    close(base);
    return l->log_fd >= 0 ? PEN_OK : PEN_STORE;
}

/* The scheduler's persistent state: a folder of this attempt, unless the setting `state` names one. */
static pen_status make_state_folder(launcher *l, pen_error *why)
{
    const char *given = config_env("PENSTOCK_STATE");
    l->state[0]       = '\0';
    if (!run_options_has_scheduler(&l->options) || !run_options_survives(&l->options))
        return PEN_OK;
    if (given != NULL) {
        snprintf(l->state, sizeof l->state, "%s", given);
        return PEN_OK;
    }
    snprintf(l->state, sizeof l->state, "%.250s/penstock-%.100s-XXXXXX", temporary(), l->job);
    if (mkdtemp(l->state) != NULL) return PEN_OK;
    why_set(why, PEN_STORE, "cannot create the folder %s for the scheduler's state: %m", l->state);
    l->state[0] = '\0';
    return PEN_STORE;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

void launcher_remove_folders(launcher *l)
{
    if (l->state[0] == '\0' || config_env("PENSTOCK_STATE") != NULL) return;
    nftw(l->state, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    l->state[0] = '\0';
}

pen_status launcher_make_folders(launcher *l, pen_error *why)
{
    const pen_status status = make_log_folder(l, why);
    return status == PEN_OK ? make_state_folder(l, why) : status;
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
    char name[40];
    snprintf(name, sizeof name, "%.32s.%s", p->name, suffix);
    for (char *c = name; *c != '\0'; c++)
        if (*c == ' ') *c = '-';
    const int fd = own_file_open(l->log_fd, name, p->restarts == 0 ? O_TRUNC : O_APPEND);
    s->file      = fd >= 0 ? fdopen(fd, p->restarts == 0 ? "w" : "a") : NULL;
    if (s->file == NULL)
        fprintf(stderr, "penstock: cannot write %s/%s: %m; this output is only shown\n",
                l->log_folder, name);
    if (fd >= 0 && s->file == NULL) close(fd);
    if (bit == RUN_STDERR && s->file != NULL)
        snprintf(p->err_path, sizeof p->err_path, "%s/%s", l->log_folder, name);
}

/* Two launchers of one job on one machine share one note. */
void launcher_write_note(launcher *l)
{
    const char *choice  = config_env("PENSTOCK_ENCRYPTION"),
               *file    = config_env("PENSTOCK_SECRET_FILE"),
               *carrier = config_env("PENSTOCK_TRANSPORT");
    job_note n          = {.pid = getpid(), .local_sockets = control_has_local_sockets()};
    snprintf(n.job, sizeof n.job, "%s", l->job);
    snprintf(n.address, sizeof n.address, "%s", l->address);
    snprintf(n.encryption, sizeof n.encryption, "%s", choice != NULL ? choice : "auto");
    snprintf(n.transport, sizeof n.transport, "%s", carrier != NULL ? carrier : "tcp");
    snprintf(n.secret_file, sizeof n.secret_file, "%s", file != NULL ? file : "");
    for (size_t i = 0; i < l->n; i++)
        if (l->all[i].role == PEN_SCHEDULER) n.scheduler = l->all[i].pid;
    if (l->http[0] != '\0') snprintf(n.http, sizeof n.http, "http://%s", l->http);
    job_note_write(&n, !run_options_has_scheduler(&l->options), l->note);
}

/* ---- starting ------------------------------------------------------------------------------------------ */

/* The entry of that process, or a new one. */
static process *place_of(launcher *l, int32_t role, int32_t rank)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->all[i].role == role && l->all[i].rank == rank) return &l->all[i];
    return l->n < l->capacity ? &l->all[l->n++] : NULL;
}

/* NULL: no entry is left, or it still runs. */
static process *add(launcher *l, int32_t role, int32_t rank, int32_t local_rank,
                    const char *role_name, pen_error *why)
{
    process *p = place_of(l, role, rank);
    if (p == NULL || p->pid != 0) {
        why_set(why, PEN_WRONG_STATE, "cannot start %s %d: %s", role_name, rank,
                p == NULL ? "this machine already has all its processes" : "it still runs");
        return NULL;
    }
    const int restarts = p->ended ? p->restarts + 1 : 0;
    *p = (process){.role = role, .rank = rank, .local_rank = local_rank, .restarts = restarts};
    if (role == PEN_SCHEDULER)
        snprintf(p->name, sizeof p->name, "%s", role_name);
    else
        snprintf(p->name, sizeof p->name, "%s %d", role_name, rank);
    if (l->options.prefix && role == PEN_WORKER)
        snprintf(p->prefix, sizeof p->prefix, "[%d] ", rank);
    if (l->options.prefix && role == PEN_SERVER)
        snprintf(p->prefix, sizeof p->prefix, "[server %d] ", rank);
    open_stream(l, p, &p->out, "out", RUN_STDOUT, stdout);
    open_stream(l, p, &p->err, "err", RUN_STDERR, stderr);
    return p;
}

/* Reads the scheduler's port and HTTP address from its announcement pipe. */
static pen_status read_announcement(launcher *l, process *scheduler, int fd, pen_error *why)
{
    char text[320]  = "";
    size_t n        = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (n < sizeof text - 1 && strchr(text, '\n') == NULL) {
        if (poll(&p, 1, ANNOUNCE_MS) <= 0) break;
        ssize_t got = read(fd, text + n, sizeof text - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
        text[n] = '\0';
    }
    l->port    = 0;
    l->http[0] = '\0';
    sscanf(text, "%d %299s", &l->port, l->http);
    if (l->port > 0) return PEN_OK;
    process_signal(scheduler, SIGTERM);
    scheduler->err.terminal = NULL; /* our error contains its own */
    process_read_all(scheduler, &scheduler->err, 2000);
    const char *said = scheduler->err.lines == 0
                           ? "it printed no error"
                           : scheduler->err.tail[(scheduler->err.lines - 1) % PROCESS_TAIL_LINES];
    return why_set(why, PEN_UNREACHABLE, "the scheduler did not start: %s",
                   strncmp(said, "penstock: ", 10) == 0 ? said + 10 : said);
}

typedef struct {
    char text[NUMBERS_MAX][32];
    int n;
} numbers;

static const char *number(numbers *all, long value)
{
    snprintf(all->text[all->n], sizeof all->text[0], "%ld", value);
    return all->text[all->n++];
}

/* The setting http, or a free loopback port.  A restarted scheduler keeps its port. */
static const char *http_of_scheduler(const launcher *l)
{
    const char *given = config_env("PENSTOCK_HTTP");
    if (l->http[0] != '\0') return l->http;
    return given != NULL ? given : "127.0.0.1:0";
}

/* Servers and workers use free ports of the given host; other machines listen on all addresses. */
static const char *http_of_others(const launcher *l, char address[320])
{
    const char *given = config_env("PENSTOCK_HTTP");
    const char *colon = given != NULL ? strrchr(given, ':') : NULL;
    if (colon == NULL) return given;
    const bool is_ours = run_options_has_scheduler(&l->options) || auth_is_loopback(given);
    snprintf(address, 320, "%.*s:0", is_ours ? (int)(colon - given) : 1, is_ours ? given : "*");
    return address;
}

/* Appends "--name value"; both are only read. */
static void flag(char **argv, int *n, const char *name, const char *value)
{
    argv[(*n)++] = (char *)name;
    argv[(*n)++] = (char *)value;
}

pen_status launcher_start_scheduler(launcher *l, pen_error *why)
{
    const run_options *o = &l->options;
    const long workers   = (long)o->nproc * o->nnodes;
    numbers num          = {.n = 0};
    int announce[2], n = 0;
    char http[320];
    snprintf(http, sizeof http, "%s", http_of_scheduler(l));
    if (pipe(announce) != 0) return why_set(why, PEN_STORE, "cannot make a pipe: %m");
    fcntl(announce[0], F_SETFD, FD_CLOEXEC);
    process *p = add(l, PEN_SCHEDULER, 0, -1, "scheduler", why);
    char *argv[32];
    argv[n++] = l->self;
    argv[n++] = (char *)"scheduler";
    flag(argv, &n, "--host",
         (o->nnodes_max > 1 && !auth_is_loopback(o->master_addr) ? "*" : o->master_addr));
    flag(argv, &n, "--port", number(&num, l->port > 0 ? l->port : o->master_port));
    flag(argv, &n, "--world-size", number(&num, workers));
    flag(argv, &n, "--local-world-size", number(&num, o->nproc));
    flag(argv, &n, "--servers", number(&num, o->servers));
    flag(argv, &n, "--job", l->job);
    flag(argv, &n, "--http", http);
    flag(argv, &n, "--announce-fd", number(&num, announce[1]));
    if (run_options_is_elastic(o)) {
        flag(argv, &n, "--workers-min", number(&num, (long)o->nproc_min * o->nnodes));
        flag(argv, &n, "--workers-max", number(&num, (long)o->nproc_max * o->nnodes_max));
        flag(argv, &n, "--servers-max", number(&num, o->servers_max));
    }
    if (o->replicas > 0) flag(argv, &n, "--replicas", number(&num, o->replicas));
    if (l->state[0] != '\0') flag(argv, &n, "--state", l->state);
    argv[n]           = NULL;
    pen_status status = p != NULL ? process_start(p, argv, NULL, 0, why) : PEN_WRONG_STATE;
    close(announce[1]);
    if (status == PEN_OK) status = read_announcement(l, p, announce[0], why);
    close(announce[0]);
    return status;
}

int launcher_node_of_server(const run_options *o, int rank)
{
    return o->is_external ? -1 : rank % o->nnodes;
}

int launcher_node_of_worker(const run_options *o, int rank, int *local_rank)
{
    *local_rank = o->nnodes_max == 1 ? rank : rank % o->nproc;
    return o->nnodes_max == 1 ? 0 : rank / o->nproc;
}

size_t launcher_capacity(const run_options *o)
{
    return (size_t)o->nproc_max + (size_t)o->servers_max + 1;
}

/* All machines of a job choose the same.  With a scheduler elsewhere no worker is at MASTER_ADDR. */
void launcher_choose_store_port(launcher *l)
{
    const run_options *o = &l->options;
    if (o->is_external)
        l->store_port = l->port;
    else if (o->nnodes_max > 1)
        l->store_port = l->port < 65535 ? l->port + 1 : l->port - 1;
    else {
        int fd;
        const int port = tcp_reserve_port(&fd);
        if (port > 0) close(fd); /* as torchrun chooses it: PyTorch binds it later */
        l->store_port = port > 0 ? port : l->port;
    }
}

pen_status launcher_start_server(launcher *l, int rank, pen_error *why)
{
    const run_options *o = &l->options;
    numbers num          = {.n = 0};
    char *argv[20];
    int n              = 0;
    const bool is_ours = o->server_program == NULL;
    const char *port = number(&num, l->port), *rank_text = number(&num, rank);
    argv[n++] = is_ours ? l->self : (char *)(uintptr_t)o->server_program;
    if (is_ours) {
        argv[n++] = (char *)"server";
        flag(argv, &n, "--master-addr", o->master_addr);
        flag(argv, &n, "--master-port", port);
        flag(argv, &n, "--rank", rank_text);
        if (o->store != NULL) { flag(argv, &n, "--store", o->store); }
    }
    argv[n] = NULL;
    /* Values and messages are large and read sequentially, so malloc should use huge pages. */
    const char *tunables = config_env("GLIBC_TUNABLES");
    char http[320];
    process_env env[] = {
        {"PENSTOCK_ROLE", "server"},
        {"PENSTOCK_HTTP", http_of_others(l, http)},
        {"PENSTOCK_JOB", l->is_named ? l->job : NULL},
        {"PENSTOCK_MASTER_ADDR", o->master_addr}, /* for a program of its own */
        {"PENSTOCK_MASTER_PORT", port},
        {"PENSTOCK_RANK", rank_text},
        {"PENSTOCK_STORE", o->store},
        {"GLIBC_TUNABLES", tunables != NULL ? tunables : "glibc.malloc.hugetlb=1"}};
    process *p = add(l, PEN_SERVER, rank, -1, "server", why);
    return p != NULL ? process_start(p, argv, env, sizeof env / sizeof *env, why) : PEN_WRONG_STATE;
}

pen_status launcher_start_worker(launcher *l, int rank, int local_rank, pen_error *why)
{
    const run_options *o  = &l->options;
    numbers num           = {.n = 0};
    long world            = (long)o->nproc * o->nnodes;
    bool threads_given    = config_env("OMP_NUM_THREADS") != NULL;
    long cores            = sysconf(_SC_NPROCESSORS_ONLN),
         threads          = cores / o->nproc > 0 ? cores / o->nproc : 1;
    const char *rank_text = number(&num, rank), *world_text = number(&num, world);
    const char *local_text = number(&num, local_rank),
               *nproc_text = number(
                   &num, local_rank < o->nproc ? o->nproc : local_rank + 1); /* it joined later */
    const char *node_text = number(&num, o->node_rank), *nodes_text = number(&num, o->nnodes);
    const char *device = o->sees_all ? NULL : run_devices_of(&o->devices, local_rank);
    process *p         = add(l, PEN_WORKER, rank, local_rank, "worker", why);
    if (p == NULL) return PEN_WRONG_STATE;
    char http[320];
    process_env env[] = {
        {"PENSTOCK_HTTP", http_of_others(l, http)},
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
        {"MASTER_PORT", number(&num, l->store_port)},
        {"PENSTOCK_MASTER_PORT", number(&num, l->port)},
        {"TORCHELASTIC_RUN_ID", l->job},
        {"TORCHELASTIC_RESTART_COUNT", number(&num, l->attempt + p->restarts)},
        {"TORCHELASTIC_MAX_RESTARTS", number(&num, o->max_restarts)},
        {"CUDA_VISIBLE_DEVICES", device != NULL ? device : config_env("CUDA_VISIBLE_DEVICES")},
        {"PENSTOCK_ROLE", "worker"},
        {"PENSTOCK_SCHEDULER", "external"},
        {"PENSTOCK_JOB", l->is_named ? l->job : NULL},
        {"PENSTOCK_SERVERS", number(&num, o->servers)},
        {"PENSTOCK_WORKERS_MAX", run_options_is_elastic(o)
                                     ? number(&num, (long)o->nproc_max * o->nnodes_max)
                                     : config_env("PENSTOCK_WORKERS_MAX")},
        {threads_given ? "ROLE_NAME" : "OMP_NUM_THREADS",
         threads_given ? "default" : number(&num, threads)},
        {"PENSTOCK_MODE", o->mode != NULL ? o->mode : config_env("PENSTOCK_MODE")},
        {"PENSTOCK_STORE", o->store != NULL ? o->store : config_env("PENSTOCK_STORE")},
        {"PENSTOCK_RESUME",
         o->resume || (o->store != NULL && l->attempt > 0) ? "yes" : config_env("PENSTOCK_RESUME")},
        {"PENSTOCK_FRESH", o->fresh && l->attempt == 0 ? "yes" : config_env("PENSTOCK_FRESH")},
    };
    return process_start(p, o->program, env, sizeof env / sizeof *env, why);
}

/* ---- live processes, and the link to the scheduler ------------------------------------------ */
size_t launcher_alive(const launcher *l, int32_t role)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        const process *p   = &l->all[i];
        const bool is_here = p->pid != 0 && (role == 0 || !p->lost);
        n += (role == 0 || p->role == role) && (is_here || p->due_ms != 0);
    }
    return n;
}

bool launcher_has_survivors(const launcher *l)
{
    size_t n = launcher_alive(l, PEN_SERVER) + launcher_alive(l, PEN_WORKER);
    for (size_t i = 0; i < l->n; i++) {
        const process *p = &l->all[i];
        n -= p->pid != 0 && p->role == l->verdict.role && p->rank == l->verdict.rank &&
             p->role != PEN_SCHEDULER;
    }
    return n > 0;
}

bool launcher_has_unexplained(const launcher *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const process *p  = &l->all[i];
        const bool failed = p->ended && (p->exit_code != 0 || p->exit_signal != 0);
        if (l->options.loss != LOSS_FAIL && p->role == PEN_WORKER && failed && !p->lost)
            return true;
    }
    return false;
}

bool launcher_seeks_link(const launcher *l, uint64_t now)
{
    const bool is_over = launcher_alive(l, PEN_WORKER) + launcher_alive(l, PEN_SERVER) == 0 &&
                         !launcher_has_unexplained(l);
    return !l->had_link && !l->has_verdict && !l->stopping && !is_over && now < l->link_until_ms;
}

void launcher_ask_scheduler(launcher *l, uint64_t now)
{
    if (l->asked) return;
    wire_control question = {.kind = WIRE_STATUS_ASK};
    l->asked              = true;
    l->leave_at_ms        = now + LEAVE_MS;
    if (l->link == NULL || control_send(l->link, &question, NULL) != PEN_OK) l->answered = true;
}

/* ---- SIGUSR1: the last collective calls ------------------------------------------------------------------------ */
void launcher_end_stuck(launcher *l)
{
    if (l->stuck == NULL) return;
    stuck_print(l->stuck, stderr);
    stuck_destroy(l->stuck);
    l->stuck = NULL;
}

void launcher_ask_stuck(launcher *l, uint64_t now)
{
    wire_control status = {.kind = WIRE_STATUS_ASK}, record = {.kind = WIRE_RECORD_ASK};
    if (l->link == NULL || l->stuck != NULL) return;
    if (control_send(l->link, &status, NULL) != PEN_OK) return;
    if (control_send(l->link, &record, NULL) != PEN_OK) return;
    l->stuck          = stuck_create();
    l->stuck_until_ms = now + STUCK_MS;
}

void launcher_take_stuck(launcher *l, const wire_control *m)
{
    if (l->stuck == NULL) return;
    if (m->kind == WIRE_STATUS) stuck_take_status(l->stuck, m);
    if (m->kind == WIRE_RECORD) stuck_take_record(l->stuck, m);
    if (stuck_is_whole(l->stuck)) launcher_end_stuck(l);
}
