/* options.c - torchrun's flags, ours, and any setting of the job. */
#include "cli/run/options.h"
#include "cli/command.h"
#include "cli/config/key_flags.h"
#include "cli/run/external.h"
#include "cli/run/files.h"
#include "common/base/why.h"
#include "common/compute/optim/optim.h"
#include "common/net/own_address.h"
#include "common/system/own_files.h"
#include "server/process/server_settings.h"
#include "server/shard/admission.h"
#include "worker/job_mode.h"

#include <argp.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROGRESS_S = 10, RESTARTS_OF_WAIT = 3 };

enum {
    KEY_NPROC = 256,
    KEY_VISIBLE,
    KEY_NNODES,
    KEY_NODE_RANK,
    KEY_MASTER_ADDR,
    KEY_MASTER_PORT,
    KEY_STANDALONE,
    KEY_RDZV_BACKEND,
    KEY_RDZV_ENDPOINT,
    KEY_RDZV_ID,
    KEY_MAX_RESTARTS,
    KEY_LOG_DIR,
    KEY_FILTER,
    KEY_SERVERS,
    KEY_REPLICAS,
    KEY_SERVER_PROGRAM,
    KEY_MODE,
    KEY_STORE,
    KEY_RESUME,
    KEY_FRESH,
    KEY_JOB,
    KEY_JOIN,
    KEY_NO_PREFIX,
    KEY_GRACE,
    KEY_PROGRESS,
    KEY_ON_LOSS,
    KEY_EMIT,
    KEY_IMAGE,
    KEY_TRACE,
    KEY_SETTINGS
};

/* clang-format off */
const struct argp_option run_options_rows[] = {
    {0, 0, 0, 0, "What to start", 1},
    {"nproc-per-node",     KEY_NPROC,        "N",      0, "Workers per machine (1); gpu: one per CUDA device, cpu: one per core, auto: gpu if there is one, else cpu; MIN:MAX or MIN:N:MAX: elastic, starting with MIN or N; also -n and -np, as mpirun has them", 1},
    {"visible-devices",    KEY_VISIBLE,      "WHICH",  0, "CUDA devices each worker sees: own, the one of its local rank, or all (own)", 1},
    {"module",             'm',              0,        0, "PROG is a Python module, which python3 -m starts", 1},
    {"servers",            KEY_SERVERS,      "S",      0, "Parameter servers on all machines together (0); MIN:MAX or MIN:N:MAX: elastic, starting with MIN or N", 1},
    {"server-program",     KEY_SERVER_PROGRAM,"PROG",  0, "Program that servers run: it calls pen_serve(), with handlers of its own (penstock server)", 1},
    {"replicas",           KEY_REPLICAS,     "R",      0, "Copies of each shard on other servers: 0, 1 or 2 (0)", 1},
    {"mode",               KEY_MODE,         "MODE",   0, "Training mode: ddp, zero1, zero2 or zero3 (or FSDP's names) without servers; ps-bsp, ps-hier, ps-ssp, ps-async, zero2 or zero3 with servers", 1},
    {"nnodes",             KEY_NNODES,       "N",      0, "Machines in the job (1); MIN:MAX: elastic, starting with MIN", 1},
    {"node-rank",          KEY_NODE_RANK,    "I",      0, "Rank of this machine (0)", 1},
    {"master-addr",        KEY_MASTER_ADDR,  "HOST",   0, "Host name or address of machine 0 (127.0.0.1)", 1},
    {"master-port",        KEY_MASTER_PORT,  "PORT",   0, "Port of the scheduler there; 0 picks a free one (29500; 0 on one machine)", 1},
    {"join",               KEY_JOIN,         "FILE",   0, "File with the line that machine 0 printed, its address and the job's secret; - reads stdin", 1},
    {"standalone",         KEY_STANDALONE,   0,        0, "One machine and a free port; overrides the flags above", 1},
    {"rdzv-endpoint",      KEY_RDZV_ENDPOINT,"HOST:PORT", 0, "Same as --master-addr and --master-port, for torchrun", 1},
    {"rdzv-backend",       KEY_RDZV_BACKEND, "NAME",   0, "static or c10d (static); with c10d the endpoint's HOST is machine 0, and the other of two is 1", 1},
    {"rdzv-id",            KEY_RDZV_ID,      "NAME",   0, "Same as --job, for torchrun", 1},
    {"job",                KEY_JOB,          "NAME",   0, "Name of the job (machine 0: program name and four digits; others: as on machine 0)", 1},
    {0, 0, 0, 0, "Configuration files", 4},
    {"config-file",        FILES_CONFIG,       "FILE",   0, "Same as --config, for accelerate", 4},
    {"config",             FILES_CONFIG,       "FILE",   0, "Accelerate configuration if it ends in .yml, .yaml or .json, else settings as  name = value  lines", 4},
    {"ds-config",          FILES_DS_CONFIG,    "FILE",   0, "DeepSpeed JSON configuration", 4},
    {"print-config",       FILES_PRINT_CONFIG, 0,        0, "Print the resolved configuration as JSON and exit", 4},
    {"hidden-size",        FILES_HIDDEN_SIZE,  "N",      0, "Hidden size of the model, for auto bucket sizes in the file", 4},
    {"lr",                 FILES_LR,           "RATE",   0, "Learning rate, for auto in the file", 4},
    {"weight-decay",       FILES_WEIGHT_DECAY, "X",      0, "Weight decay, for auto in the file", 4},
    {"warmup-steps",       FILES_WARMUP_STEPS, "N",      0, "Number of warm-up steps, for auto in the file", 4},
    {"total-steps",        FILES_TOTAL_STEPS,  "N",      0, "Number of schedule steps, for auto in the file", 4},
    {0, 0, 0, 0, "Kubernetes", 5},
    {"emit",               KEY_EMIT,         "k8s",    0, "Print Kubernetes manifests for this job; start nothing", 5},
    {"image",              KEY_IMAGE,        "NAME",   0, "Container image that contains penstock and PROG", 5},
    {0, 0, 0, 0, "Failures and snapshots", 2},
    {"max-restarts",       KEY_MAX_RESTARTS, "N",      0, "Maximum number of restarts of the job, or with --on-worker-loss wait of each worker (0; with wait 3)", 2},
    {"on-worker-loss",     KEY_ON_LOSS,      "RULE",   0, "When a worker dies: fail, continue without it, or wait for its restart (fail; with MIN:MAX continue)", 2},
    {"grace",              KEY_GRACE,        "SECONDS",0, "Time between SIGTERM and SIGKILL when stopping (5)", 2},
    {"store",              KEY_STORE,        "DIR",    0, "Snapshot directory", 2},
    {"resume",             KEY_RESUME,       0,        0, "Resume from the newest snapshot in the store", 2},
    {"fresh",              KEY_FRESH,        0,        0, "Start from scratch although the store has snapshots", 2},
    {0, 0, 0, 0, "Output", 3},
    {"log-dir",            KEY_LOG_DIR,      "DIR",    0, "Directory for output files (under TMPDIR)", 3},
    {"redirects",          'r',              "WHICH",  0, "Write output to files only: 0 none, 1 stdout, 2 stderr, 3 both, or LOCALRANK:WHICH,...", 3},
    {"tee",                't',              "WHICH",  0, "Write output to files and the terminal; values as in --redirects", 3},
    {"local-ranks-filter", KEY_FILTER,       "LIST",   0, "Show only the output of these local ranks", 3},
    {"no-prefix",          KEY_NO_PREFIX,    0,        0, "Omit the [rank] prefix of output lines", 3},
    {"progress",           KEY_PROGRESS,     "SECONDS",0, "Interval of a line with step, scalars, speed and time left, while the program prints nothing; 0: none (10 on a terminal, else 0)", 3},
    {"trace",              KEY_TRACE,        "FILE",   0, "Write a timeline of all processes, for ui.perfetto.dev or chrome://tracing", 3},
    {"settings",           KEY_SETTINGS,     0,        0, "List all settings of a job; each is also a flag", 3},
    {0}
};
/* clang-format on */

/* clang-format off */
#define ABOUT \
    "Starts the servers and workers of a job on this machine, and stops all of them when one fails.  " \
    "Without --servers the workers train with all-reduce."
#define MORE \
    "torchrun's flags are accepted, with - or _.  Every setting of the job (see --settings) is a " \
    "flag too, for example --lease-ms 5000, and reaches all processes as PENSTOCK_<NAME>.  " \
    "torchrun's PET_ variables, for example PET_NNODES, replace missing flags.\n\n" \
    "With --scheduler external, scheduler and servers run elsewhere: this command starts the workers " \
    "of its machine only, and leaves restarts of the job to who starts it.\n\n" \
    "With --on-worker-loss continue the job continues without a dead worker; the exit code is 0 if " \
    "all others exit with 0.  With wait the step waits for the worker, which is restarted up to " \
    "--max-restarts times.  With --replicas the copies take over from a dead server at once, and " \
    "it is restarted.\n\n" \
    "On SIGUSR1 this command prints the last collective call of every worker, as `penstock status " \
    "--stuck` does.\n\n" \
    "Exit code: 0; the code of the process that failed first; 128 + n if signal n killed it."
/* clang-format on */
static const char doc[]        = ABOUT "\v" MORE;
const char run_options_usage[] = "usage: penstock run [FLAGS] PROG [ARGS...]\n\n" ABOUT "\n\n" MORE;

/* "3" for all, or "0:1,2:3" per local rank. */
static bool parse_which(const char *text, uint8_t *which)
{
    if (strchr(text, ':') == NULL) {
        if (strlen(text) != 1 || text[0] < '0' || text[0] > '3') return false;
        memset(which, text[0] - '0', RUN_LOCAL_MAX);
        return true;
    }
    while (*text != '\0') {
        int rank, value, used = 0;
        if (sscanf(text, "%d:%d%n", &rank, &value, &used) != 2 || rank < 0 ||
            rank >= RUN_LOCAL_MAX || value < 0 || value > 3)
            return false;
        which[rank] = (uint8_t)value;
        text += used;
        if (*text == ',')
            text++;
        else if (*text != '\0')
            return false;
    }
    return true;
}

static bool parse_list(const char *text, bool *shown)
{
    memset(shown, 0, RUN_LOCAL_MAX * sizeof *shown);
    while (*text != '\0') {
        char *end;
        long rank = strtol(text, &end, 10);
        if (end == text || rank < 0 || rank >= RUN_LOCAL_MAX) return false;
        shown[rank] = true;
        text        = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != '\0') return false;
    }
    return true;
}

/* The flag, or the variable read instead. */
static const char *name_of(const struct argp_state *state, const char *flag, char name[64])
{
    if (state->hook != NULL) return state->hook;
    snprintf(name, 64, "--%s", flag);
    return name;
}

static int parse_number(struct argp_state *state, const char *flag, const char *text, long min,
                        long max)
{
    char *end, name[64];
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < min || value > max)
        argp_failure(state, EXIT_USAGE, 0, "%s is '%s', but must be a whole number from %ld to %ld",
                     name_of(state, flag, name), text, min, max);
    return (int)value;
}

/* "4", "2:6" (starts with 2) or "2:4:6" (starts with 4). */
static void parse_range(struct argp_state *state, const char *flag, const char *text, long floor,
                        long ceiling, int *min, int *now, int *max)
{
    char part[3][16] = {"", "", ""};
    int used = 0, n = sscanf(text, "%15[^:]:%15[^:]:%15[^:]%n", part[0], part[1], part[2], &used);
    if (n < 1 || (n == 3 && text[used] != '\0')) n = 1;
    const char *first = n == 1 ? text : part[0];
    *min              = parse_number(state, flag, first, floor, ceiling);
    *max              = n == 1 ? *min : parse_number(state, flag, part[n - 1], floor, ceiling);
    *now              = n == 3 ? parse_number(state, flag, part[1], floor, ceiling) : *min;
    char name[64];
    if (*min > *now || *now > *max)
        argp_failure(state, EXIT_USAGE, 0,
                     "%s is '%s', but must be MIN:MAX or MIN:N:MAX in rising order",
                     name_of(state, flag, name), text);
}

static void parse_nproc(struct argp_state *state, const char *text, run_options *o)
{
    static const char *const units[] = {
        [NPROC_GPU] = "gpu", [NPROC_CPU] = "cpu", [NPROC_AUTO] = "auto"};
    char name[64];
    snprintf(o->nproc_name, sizeof o->nproc_name, "%s", name_of(state, "nproc-per-node", name));
    for (o->nproc_unit = NPROC_GPU; o->nproc_unit <= NPROC_AUTO; o->nproc_unit++)
        if (strcmp(text, units[o->nproc_unit]) == 0) return;
    o->nproc_unit = NPROC_NUMBER;
    parse_range(state, "nproc-per-node", text, 1, RUN_LOCAL_MAX, &o->nproc_min, &o->nproc,
                &o->nproc_max);
}

static void parse_visible(struct argp_state *state, const char *text, run_options *o)
{
    o->sees_all = strcmp(text, "all") == 0;
    if (!o->sees_all && strcmp(text, "own") != 0)
        argp_failure(state, EXIT_USAGE, 0, "--visible-devices is '%s', but must be own or all",
                     text);
}

static void parse_backend(struct argp_state *state, const char *text, run_options *o)
{
    char name[64];
    o->is_c10d = strcmp(text, "c10d") == 0;
    if (!o->is_c10d && strcmp(text, "static") != 0)
        argp_failure(state, EXIT_USAGE, 0, "%s is '%s', but must be c10d or static",
                     name_of(state, "rdzv-backend", name), text);
}

enum {
    JOIN_LINES_MAX  = 16, /* of other text before the join line */
    JOIN_LINE_BYTES = SECRET_JOIN_BYTES + 256
};

/* Unbuffered: no copy of the secret is left, and what follows stays unread. */
static void read_join(struct argp_state *state, char *line, size_t size)
{
    if (isatty(STDIN_FILENO)) fprintf(stderr, "penstock: paste the line that machine 0 printed:\n");
    setvbuf(stdin, NULL, _IONBF, 0);
    for (int i = 0; i < JOIN_LINES_MAX; i++) {
        if (fgets(line, (int)size, stdin) == NULL)
            argp_failure(state, EXIT_USAGE, 0, "--join -: no join line on stdin");
        if (secret_is_in(line)) return;
    }
}

static void take_join(struct argp_state *state, char *text, run_options *o)
{
    char line[JOIN_LINE_BYTES] = "", host[SECRET_HOST_BYTES];
    uint32_t port;
    pen_error why;
    pen_status status = PEN_OK;
    if (secret_is_in(text)) {
        memset(text, 'x', strlen(text));
        argp_failure(state, EXIT_USAGE, 0,
                     "--join takes - or a file, not the line itself: other users could read its "
                     "secret in the process list; use --join -, and paste the line");
    }
    if (strcmp(text, "-") == 0)
        read_join(state, line, sizeof line);
    else
        status = own_secret_read("the join line in", text, line, sizeof line, &why);
    if (status == PEN_OK) status = secret_join_parse(line, &o->join, host, &port, &why);
    explicit_bzero(line, sizeof line);
    if (status != PEN_OK) argp_failure(state, EXIT_USAGE, 0, "--join: %s", why.text);
    snprintf(o->master_addr, sizeof o->master_addr, "%s", host);
    o->master_port = (int)port;
    o->has_join    = true;
}

static void take_program(const struct argp_state *state, run_options *o)
{
    static char *python[] = {"python3", "-u", "-m"};
    char **words          = state->argv + state->next;
    const size_t n        = (size_t)(state->argc - state->next);
    o->program            = words;
    if (!o->is_module) return;
    o->program = calloc(3 + n + 1, sizeof *o->program); /* lives as long as the process */
    if (o->program == NULL) argp_failure(state, 1, 0, "out of memory");
    memcpy(o->program, python, sizeof python);
    memcpy(o->program + 3, words, n * sizeof *words);
}

static error_t parse_row(int key, char *text, struct argp_state *state);

/* torchrun's flags as variables, as Kubeflow sets them.  Read first, so that flags override them. */
static void parse_variables(struct argp_state *state)
{
    static const struct {
        const char *name;
        int key;
    } rows[] = {{"PET_NNODES", KEY_NNODES},
                {"PET_NPROC_PER_NODE", KEY_NPROC},
                {"PET_NODE_RANK", KEY_NODE_RANK},
                {"PET_MASTER_ADDR", KEY_MASTER_ADDR},
                {"PET_MASTER_PORT", KEY_MASTER_PORT},
                {"PET_MAX_RESTARTS", KEY_MAX_RESTARTS},
                {"PET_RDZV_BACKEND", KEY_RDZV_BACKEND},
                {"PET_RDZV_ENDPOINT", KEY_RDZV_ENDPOINT},
                {"PET_RDZV_ID", KEY_RDZV_ID}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *text = config_env(rows[i].name);
        if (text == NULL || text[0] == '\0') continue;
        state->hook = (void *)(uintptr_t)rows[i].name;
        (void)parse_row(rows[i].key, (char *)(uintptr_t)text, state); /* only read */
    }
    state->hook = NULL;
}

static error_t parse_row(int key, char *text, struct argp_state *state)
{
    run_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->name = state->argv[0]; /* error messages begin with it; argp sets it later */
        parse_variables(state);
        break;
    case KEY_NPROC: parse_nproc(state, text, o); break;
    case KEY_VISIBLE: parse_visible(state, text, o); break;
    case KEY_NNODES: { /* elastic: starts with the minimum */
        int most;
        parse_range(state, "nnodes", text, 1, 100000, &o->nnodes, &most, &o->nnodes_max);
        break;
    }
    case KEY_NODE_RANK:
        o->node_rank     = parse_number(state, "node-rank", text, 0, 99999);
        o->has_node_rank = true;
        break;
    case KEY_MASTER_ADDR:
        snprintf(o->master_addr, sizeof o->master_addr, "%s", text);
        o->is_address_torchruns = state->hook != NULL;
        break;
    case KEY_MASTER_PORT:
        o->master_port          = parse_number(state, "master-port", text, 0, 65535);
        o->is_address_torchruns = state->hook != NULL;
        break;
    case KEY_STANDALONE: o->standalone = true; break;
    case KEY_RDZV_BACKEND: parse_backend(state, text, o); break;
    case KEY_RDZV_ENDPOINT:
        o->rdzv_endpoint        = text;
        o->is_address_torchruns = state->hook != NULL;
        break;
    case KEY_RDZV_ID: /* torchrun's default is not a name */
        if (o->job == NULL && strcmp(text, "none") != 0) o->job = text;
        break;
    case KEY_MAX_RESTARTS:
        o->max_restarts     = parse_number(state, "max-restarts", text, 0, 1000000);
        o->has_max_restarts = true;
        break;
    case KEY_LOG_DIR: o->log_dir = text; break;
    case KEY_FILTER:
        if (!parse_list(text, o->shown))
            argp_failure(state, EXIT_USAGE, 0, "--local-ranks-filter is '%s', but must be like 0,2",
                         text);
        break;
    case KEY_SERVERS: {
        int least;
        parse_range(state, "servers", text, 0, 10000, &least, &o->servers, &o->servers_max);
        o->has_servers = true;
        break;
    }
    case KEY_SERVER_PROGRAM: o->server_program = text; break;
    case KEY_REPLICAS: o->replicas = parse_number(state, "replicas", text, 0, 2); break;
    case KEY_MODE: o->mode = text; break;
    case KEY_STORE: o->store = text; break;
    case KEY_RESUME: o->resume = true; break;
    case KEY_FRESH: o->fresh = true; break;
    case KEY_JOB: o->job = text; break;
    case KEY_JOIN: take_join(state, text, o); break;
    case KEY_NO_PREFIX: o->prefix = false; break;
    case KEY_EMIT:
        if (strcmp(text, "k8s") != 0)
            argp_failure(state, EXIT_USAGE, 0, "--emit is '%s', but must be k8s", text);
        o->emits = true;
        break;
    case KEY_IMAGE: o->image = text; break;
    case KEY_ON_LOSS: setenv("PENSTOCK_ON_WORKER_LOSS", text, 1); break;
    case KEY_TRACE: setenv("PENSTOCK_TRACE", text, 1); break;
    case KEY_PROGRESS: o->progress_s = parse_number(state, "progress", text, 0, 86400); break;
    case KEY_GRACE: o->grace_s = parse_number(state, "grace", text, 0, 3600); break;
    case KEY_SETTINGS:
        for (int i = 0; command_tables[i] != NULL; i++)
            config_write_help(command_tables[i], stdout);
        exit(0);
    case 'r':
    case 't':
        if (!parse_which(text, key == 'r' ? o->redirects : o->tee))
            argp_failure(state, EXIT_USAGE, 0,
                         "invalid output '%s'; use 0 to 3, or LOCALRANK:0-3,...", text);
        break;
    case 'm': o->is_module = true; break;
    case ARGP_KEY_ARGS: take_program(state, o); break;
    case ARGP_KEY_NO_ARGS:
        if (o->print_config) break;
        argp_error(state, "missing PROG; use penstock run [FLAGS] PROG [ARGS]");
        break;
    default: return run_files_flag(key, text, state);
    }
    return 0;
}

static const struct argp parser = {
    run_options_rows, parse_row, "PROG [ARGS...]", doc, NULL, NULL, NULL};

static const struct argp_option *find_flag(const char *name)
{
    for (const struct argp_option *r = run_options_rows; r->name != NULL || r->doc != NULL; r++)
        if (r->name != NULL && strcmp(r->name, name) == 0) return r;
    return NULL;
}

static int refuse_flag(const char *name, const char *word)
{
    if (config_files_is_yaml(word)) /* as in some documentation of accelerate */
        return command_fail(EXIT_USAGE,
                            "unknown flag '%s'; use --config %s for a configuration file", word,
                            word + 2);
    const char *names[512];
    size_t n = 0;
    for (const struct argp_option *r = run_options_rows; r->name != NULL || r->doc != NULL; r++)
        if (r->name != NULL) names[n++] = r->name;
    for (int i = 0; command_tables[i] != NULL; i++)
        for (const config_row *r = command_tables[i]; r->name != NULL && n < 512; r++)
            names[n++] = r->name;
    char nearest[100];
    snprintf(nearest, sizeof nearest, "%s", command_nearest(name, names, n));
    for (char *c = nearest; *c != '\0'; c++)
        if (*c == '_') *c = '-';
    return command_fail(EXIT_USAGE,
                        "unknown flag '--%s'; did you mean '--%s'?  (penstock run --help)", name,
                        nearest);
}

/* The program or a file may still set the learning rate. */
static int check_optim(const char *value)
{
    pen_error why;
    return optim_check(value, &why) == PEN_OK ? -1 : command_fail(EXIT_USAGE, "%s", why.text);
}

/* Checks a value as the processes would; -1, or the exit code. */
static int check_setting(const config_row *row, const char *value)
{
    pen_error why;
    char scratch[1 << 16] __attribute__((aligned(16)));
    config_defaults(row, scratch);
    if (config_set(row, scratch, row->name, value, &why) == PEN_OK)
        return strcmp(row->name, "optim") == 0 ? check_optim(value) : -1;
    return command_fail(EXIT_USAGE, "%s", why.text);
}

/* Splits "--name=value"; dashes in `as_flag`, underscores in `as_setting`.  Returns the value or NULL. */
static char *split_flag(char *word, char *as_flag, char *as_setting, size_t size)
{
    char *equals = strchr(word, '=');
    size_t n     = equals == NULL ? strlen(word + 2) : (size_t)(equals - word - 2);
    if (n >= size) n = size - 1;
    for (size_t i = 0; i < n; i++) {
        char c        = word[2 + i];
        as_flag[i]    = c == '_' ? '-' : c;
        as_setting[i] = c == '-' ? '_' : c;
    }
    as_flag[n] = as_setting[n] = '\0';
    return equals == NULL ? NULL : equals + 1;
}

/* A flag of `accelerate launch` that means a key of its file: -1 and *i on its last word; *known is false for another.
 * Else the exit code. */
static int take_key(run_options *o, const char *name, const char *value, int argc, char **argv,
                    int *i, bool *known)
{
    pen_error why;
    const char *text;
    const key_row *row = key_flag_find(name, &text);
    *known             = row != NULL;
    if (row == NULL) return -1;
    if (text == NULL) text = value != NULL ? value : *i + 1 < argc ? argv[++*i] : NULL;
    if (text == NULL) return command_fail(EXIT_USAGE, "--%s needs a value", name);
    if (key_flag_put(&o->keys, row, text, &why) == PEN_OK) return -1;
    return command_fail(EXIT_USAGE, "%s", why.text);
}

static bool is_yes(const config_row *row, const char *value)
{
    bool yes                = false;
    const config_row only[] = {{.name = row->name, .type = CONFIG_BOOL, .dfl = "no"}, {0}};
    return config_set(only, &yes, row->name, value, NULL) == PEN_OK && yes;
}

/* Takes the job's settings out of argv and spells the launcher's flags with dashes, up to PROG.  Returns the new
 * argc, or the negative exit code - 1. */
static int normalise(int argc, char **argv, char **out, char (*spelled)[128], run_options *o)
{
    static char per_node[] = "--nproc-per-node";
    int n = 0, i = 1;
    out[n++] = argv[0];
    for (; i < argc; i++) {
        char name[100], setting[100];
        char *word = argv[i];
        if (strcmp(word, "--") == 0 || word[0] != '-') break;
        if (strcmp(word, "-n") == 0 || strcmp(word, "-np") == 0) word = per_node; /* as mpirun */
        if (strncmp(word, "--", 2) != 0) { /* -r 3, -t3, -? */
            out[n++]        = argv[i];
            bool takes_next = strlen(argv[i]) == 2 && strchr("rt", argv[i][1]) != NULL;
            if (takes_next && i + 1 < argc) out[n++] = argv[++i];
            continue;
        }
        char *value                    = split_flag(word, name, setting, sizeof name);
        const struct argp_option *flag = find_flag(name);
        bool builtin                   = strcmp(name, "help") == 0 || strcmp(name, "usage") == 0;
        const config_row *row          = command_setting(setting);
        if (value == NULL && i + 1 < argc && row != NULL && config_is_switch(row) &&
            config_is_switch_value(row, argv[i + 1]))
            value = argv[++i];
        if (flag != NULL && flag->arg == NULL && row != NULL && value != NULL) { /* --resume no */
            int code = check_setting(row, value);
            if (code >= 0) return -1 - code;
            if (!is_yes(row, value)) continue;
        }
        if (flag != NULL || builtin) {
            snprintf(spelled[i], sizeof spelled[i], "--%s", name);
            out[n++] = spelled[i];
            if (flag == NULL || flag->arg == NULL) continue;
            if (value == NULL && i + 1 < argc) value = argv[++i];
            if (value != NULL) out[n++] = value;
            continue;
        }
        bool is_key = false;
        int code    = row == NULL ? take_key(o, setting, value, argc, argv, &i, &is_key) : -1;
        if (code >= 0) return -1 - code;
        if (is_key) continue;
        if (row == NULL) return -1 - refuse_flag(name, argv[i]);
        if (value == NULL && config_is_switch(row)) value = "yes";
        if (value == NULL && i + 1 < argc) value = argv[++i];
        if (value == NULL) return -1 - command_fail(EXIT_USAGE, "--%s needs a value", name);
        code = check_setting(row, value);
        if (code >= 0) return -1 - code;
        run_files_put(o, row->name, value);
    }
    for (; i < argc; i++) out[n++] = argv[i];
    out[n] = NULL;
    return n;
}

bool run_options_has_scheduler(const run_options *o)
{
    return o->node_rank == 0 && !o->is_external;
}

bool run_options_is_elastic(const run_options *o)
{
    return o->nproc_max > o->nproc_min || o->nnodes_max > o->nnodes || o->servers_max > o->servers;
}

bool run_options_survives(const run_options *o)
{
    return o->servers > 0 && (o->replicas > 0 || o->loss != LOSS_FAIL || run_options_is_elastic(o));
}

/* From the flag or the environment, to which the flag is written. */
static int check_loss_rule(run_options *o)
{
    if (config_env("PENSTOCK_ON_WORKER_LOSS") == NULL && run_options_is_elastic(o))
        setenv("PENSTOCK_ON_WORKER_LOSS", "continue", 1);
    const char *rule = config_env("PENSTOCK_ON_WORKER_LOSS");
    if (rule == NULL) return -1;
    const int code = check_setting(command_setting("on_worker_loss"), rule);
    if (code >= 0) return code;
    for (o->loss = LOSS_FAIL; strcmp(rule, settings_loss_rules[o->loss]) != 0;) o->loss++;
    if (o->loss == LOSS_WAIT && o->servers == 0)
        return command_fail(
            EXIT_USAGE,
            "--on-worker-loss wait needs servers, which keep the state of a dead worker, "
            "but got %s; use continue or fail",
            o->has_servers ? "--servers 0" : "no --servers");
    if (o->loss == LOSS_WAIT && !o->has_max_restarts) o->max_restarts = RESTARTS_OF_WAIT;
    return -1;
}

static int check_copies(const run_options *o)
{
    if (o->servers == 0 && run_options_is_elastic(o))
        return command_fail(
            EXIT_USAGE,
            "MIN:MAX needs servers, which keep the state for new workers, but got %s; "
            "add servers, or use fixed numbers",
            o->has_servers ? "--servers 0" : "no --servers");
    if (o->replicas > 0 && o->servers <= o->replicas)
        return command_fail(
            EXIT_USAGE, "--replicas %d needs at least %d servers, one for each copy, but got %d",
            o->replicas, o->replicas + 1, o->servers);
    if (o->nnodes_max > 1 && o->nproc_max > o->nproc_min)
        return command_fail(
            EXIT_USAGE,
            "--nnodes %d and --nproc-per-node %d:%d contradict each other: several machines need a "
            "fixed number of workers each; use --nnodes MIN:MAX",
            o->nnodes_max, o->nproc_min, o->nproc_max);
    return -1;
}

/* ---- checks that the processes would make ---------------------------------------------------------------------- */

enum { SAID_MAX = 8 };

/* Settings that this command passes to its workers, as "name=value". */
typedef struct {
    char text[SAID_MAX][CONFIG_TEXT_BYTES + 64];
    const char *all[SAID_MAX + 1];
    int n;
} said_to_workers;

static void add_setting(said_to_workers *said, const char *name, const char *value)
{
    snprintf(said->text[said->n], sizeof said->text[0], "%s=%s", name, value);
    said->all[said->n] = said->text[said->n];
    said->n++;
}

static pen_status ask_workers(const run_options *o, pen_error *why)
{
    said_to_workers said = {.n = 0};
    char number[24];
    snprintf(number, sizeof number, "%d", o->servers);
    add_setting(&said, "servers", number);
    snprintf(number, sizeof number, "%d", o->nproc_max * o->nnodes_max);
    if (run_options_is_elastic(o)) add_setting(&said, "workers_max", number);
    if (o->mode != NULL) add_setting(&said, "mode", o->mode);
    if (o->store != NULL) add_setting(&said, "store", o->store);
    if (o->resume) add_setting(&said, "resume", "yes");
    if (o->fresh) add_setting(&said, "fresh", "yes");
    return job_settings_foretell(said.all, o->nproc * o->nnodes, why);
}

static pen_status ask_servers(const run_options *o, pen_error *why)
{
    static server_settings s;
    admission taken;
    if (o->servers == 0 || o->is_external) return PEN_OK; /* those have settings of their own */
    config_defaults(server_settings_rows, &s);
    pen_status status = command_read_environment(server_settings_rows, &s, why);
    if (status == PEN_OK && o->store != NULL)
        status = config_set(server_settings_rows, &s, "store", o->store, why);
    if (status == PEN_OK) status = server_settings_check(&s, why);
    return status == PEN_OK ? admission_parse(s.admission, &taken, why) : status;
}

static int check(run_options *o)
{
    if (o->has_join && run_options_has_scheduler(o))
        return command_fail(EXIT_USAGE, "--join is for machines 1 and up; add --nnodes N and "
                                        "--node-rank I");
    if (o->node_rank >= o->nnodes_max)
        return command_fail(EXIT_USAGE, "--node-rank %d and --nnodes %d contradict each other",
                            o->node_rank, o->nnodes_max);
    if (o->mode != NULL && strncmp(o->mode, "ps-", 3) == 0 && o->servers == 0)
        return command_fail(EXIT_USAGE,
                            o->has_servers ? "--servers 0 and --mode %s contradict each other"
                                           : "--mode %s needs servers; set --servers 1 or more",
                            o->mode);
    if (o->mode != NULL && strcmp(o->mode, "local") == 0 && o->nproc * o->nnodes > 1)
        return command_fail(EXIT_USAGE, "--mode local and %d workers contradict each other",
                            o->nproc * o->nnodes);
    const bool serves_nobody =
        o->mode != NULL && (strcmp(o->mode, "local") == 0 || strcmp(o->mode, "allreduce") == 0 ||
                            strcmp(o->mode, "ddp") == 0 || strcmp(o->mode, "no_shard") == 0);
    if (serves_nobody && o->servers > 0)
        return command_fail(EXIT_USAGE, "--servers %d and --mode %s contradict each other",
                            o->servers, o->mode);
    int code = check_loss_rule(o);
    if (code < 0) code = check_copies(o);
    if (code >= 0) return code;
    if (o->nnodes > 1 && o->master_port == 0)
        return command_fail(EXIT_USAGE, "--nnodes %d needs the same --master-port on all machines",
                            o->nnodes);
    if (o->resume && o->fresh)
        return command_fail(EXIT_USAGE, "--resume and --fresh contradict each other");
    if (o->resume && o->store == NULL)
        return command_fail(EXIT_USAGE, "--resume needs --store DIR");
    pen_error why;
    if (command_check_environment(&why) != PEN_OK) return command_fail(EXIT_USAGE, "%s", why.text);
    code = o->mode != NULL ? check_setting(command_setting("mode"), o->mode) : -1;
    if (code >= 0) return code;
    if (ask_workers(o, &why) != PEN_OK || ask_servers(o, &why) != PEN_OK)
        return command_fail(EXIT_USAGE, "%s", why.text);
    return -1;
}

/* "HOST:PORT", "HOST" or "[::1]:PORT"; overrides --master-addr, as in torchrun. */
static int take_endpoint(run_options *o)
{
    enum { C10D_PORT = 29400, STATIC_PORT = 29500 };
    const char *text  = o->rdzv_endpoint;
    const char *colon = strrchr(text, ':');
    if (colon != NULL && strchr(colon, ']') != NULL) colon = NULL;
    const size_t n = colon != NULL ? (size_t)(colon - text) : strlen(text);
    char *end      = NULL;
    const long port =
        colon == NULL ? o->is_c10d ? C10D_PORT : STATIC_PORT : strtol(colon + 1, &end, 10);
    const bool is_number = colon == NULL || (colon[1] != '\0' && end != NULL && *end == '\0');
    if (n == 0 || n >= sizeof o->master_addr || !is_number || port < 0 || port > 65535)
        return command_fail(
            EXIT_USAGE,
            "--rdzv-endpoint is '%.200s', but must be HOST or HOST:PORT with a port "
            "from 0 to 65535",
            text);
    snprintf(o->master_addr, sizeof o->master_addr, "%.*s", (int)n, text);
    o->master_port = (int)port;
    return -1;
}

/* With c10d node ranks are not given: the machine of the endpoint is 0. */
static int choose_node_rank(run_options *o)
{
    if (!o->is_c10d || o->rdzv_endpoint == NULL || o->has_node_rank || o->nnodes_max == 1)
        return -1;
    if (!own_address_is_ours(o->master_addr) && o->nnodes_max > 2)
        return command_fail(
            EXIT_USAGE,
            "missing node rank (%d machines); set --node-rank I, 1 to %d, on all but %s",
            o->nnodes_max, o->nnodes_max - 1, o->master_addr);
    o->node_rank = own_address_is_ours(o->master_addr) ? 0 : 1;
    return -1;
}

int run_options_parse(int argc, char **argv, run_options *o)
{
    *o = (run_options){.node_rank   = -1,
                       .grace_s     = 5,
                       .progress_s  = isatty(STDERR_FILENO) ? PROGRESS_S : 0,
                       .master_port = -1,
                       .prefix      = true,
                       .keys        = {.name = "the flags"}};
    memset(o->shown, true, sizeof o->shown);

    static char help[] = "--help";
    if (argc > 1 && strcmp(argv[1], "-h") == 0) argv[1] = help;
    char **words        = calloc((size_t)argc * 2 + 1,
                                 sizeof *words); /* live as long as the process: PROG points into them */
    char(*spelled)[128] = calloc((size_t)argc + 1, sizeof *spelled);
    if (words == NULL || spelled == NULL) {
        free(words);
        free(spelled);
        return command_fail(1, "no memory for the command line");
    }
    o->words             = words;
    int n                = normalise(argc, argv, words, spelled, o);
    words[0]             = "penstock run";
    argp_err_exit_status = EXIT_USAGE;
    int failed           = n < 0 ? 0 : argp_parse(&parser, n, words, ARGP_IN_ORDER, NULL, o);
    free(spelled);
    if (n < 0) free(words);
    if (n < 0) return -1 - n;
    if (failed != 0) return EXIT_USAGE;

    pen_error why;
    int code = o->rdzv_endpoint != NULL && !o->has_join ? take_endpoint(o) : -1;
    if (code < 0 && external_take(o, &why) != PEN_OK)
        return command_fail(EXIT_USAGE, "%s", why.text);
    if (code < 0) code = run_files_apply(o); /* and defaults */
    if (code < 0) code = choose_node_rank(o);
    if (code >= 0) return code;
    if (o->standalone) {
        o->nnodes = o->nnodes_max = 1;
        o->node_rank              = 0;
        o->master_port            = 0;
        snprintf(o->master_addr, sizeof o->master_addr, "127.0.0.1");
    }
    if (o->master_port < 0) o->master_port = o->nnodes > 1 || o->is_external ? 29500 : 0;
    if (external_check(o, &why) != PEN_OK) return command_fail(EXIT_USAGE, "%s", why.text);
    return check(o);
}
