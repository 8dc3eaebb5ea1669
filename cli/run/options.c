/* options.c - torchrun's flags, ours, and any setting of the job. */
#include "cli/run/options.h"
#include "cli/command.h"
#include "common/why.h"

#include <argp.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    KEY_NPROC = 256,
    KEY_NNODES,
    KEY_NODE_RANK,
    KEY_MASTER_ADDR,
    KEY_MASTER_PORT,
    KEY_STANDALONE,
    KEY_MAX_RESTARTS,
    KEY_LOG_DIR,
    KEY_FILTER,
    KEY_SERVERS,
    KEY_MODE,
    KEY_STORE,
    KEY_RESUME,
    KEY_FRESH,
    KEY_JOB,
    KEY_NO_PREFIX,
    KEY_GRACE,
    KEY_SETTINGS
};

/* clang-format off */
static const struct argp_option rows[] = {
    {0, 0, 0, 0, "What to start", 1},
    {"nproc-per-node",     KEY_NPROC,        "N|auto", 0, "Workers on this machine (1)", 1},
    {"servers",            KEY_SERVERS,      "S",      0, "Parameter servers, over all machines (0)", 1},
    {"mode",               KEY_MODE,         "MODE",   0, "How the job trains: ps-bsp, ps-ssp, ps-async", 1},
    {"nnodes",             KEY_NNODES,       "N",      0, "Machines in the job (1)", 1},
    {"node-rank",          KEY_NODE_RANK,    "I",      0, "Which of them this one is (0)", 1},
    {"master-addr",        KEY_MASTER_ADDR,  "HOST",   0, "Name or address of machine 0 (127.0.0.1)", 1},
    {"master-port",        KEY_MASTER_PORT,  "PORT",   0, "Port of the scheduler there; 0 picks a free one (29500; 0 on one machine)", 1},
    {"standalone",         KEY_STANDALONE,   0,        0, "One machine, a free port, whatever else was said", 1},
    {"job",                KEY_JOB,          "NAME",   0, "Name of the job (the program's name and four digits)", 1},
    {0, 0, 0, 0, "When something fails", 2},
    {"max-restarts",       KEY_MAX_RESTARTS, "N",      0, "Starts all again this often after a failure (0)", 2},
    {"grace",              KEY_GRACE,        "SECONDS",0, "Time between SIGTERM and SIGKILL when stopping (5)", 2},
    {"store",              KEY_STORE,        "DIR",    0, "Keeps snapshots in DIR", 2},
    {"resume",             KEY_RESUME,       0,        0, "Goes on from the newest snapshot in the store", 2},
    {"fresh",              KEY_FRESH,        0,        0, "Begins anew although the store holds snapshots", 2},
    {0, 0, 0, 0, "Output", 3},
    {"log-dir",            KEY_LOG_DIR,      "DIR",    0, "Where files of output go (a folder under TMPDIR)", 3},
    {"redirects",          'r',              "WHICH",  0, "Output to files only: 0 none, 1 stdout, 2 stderr, 3 both, or LOCALRANK:WHICH,...", 3},
    {"tee",                't',              "WHICH",  0, "Output to files and here; as --redirects", 3},
    {"local-ranks-filter", KEY_FILTER,       "LIST",   0, "Shows the output of these local ranks only", 3},
    {"no-prefix",          KEY_NO_PREFIX,    0,        0, "Leaves out the [rank] before each line", 3},
    {"settings",           KEY_SETTINGS,     0,        0, "Lists the settings of a job; each is also a flag here", 3},
    {0}
};
/* clang-format on */

static const char doc[] =
    "Starts the servers and workers of a job on this machine and ends all when one fails.\v"
    "Flags are those of torchrun, with - or _, and --servers.  Every setting of the job "
    "(--settings lists them) "
    "is accepted too, as in --lease-ms 5000, and reaches all processes as PENSTOCK_<NAME>.\n\n"
    "Exit code: 0; the code of the process that failed first; 128 + n when signal n ended it.";

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

static int parse_number(struct argp_state *state, const char *flag, const char *text, long min,
                        long max)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < min || value > max)
        argp_failure(state, EXIT_USAGE, 0,
                     "--%s is '%s', but must be a whole number from %ld to %ld", flag, text, min,
                     max);
    return (int)value;
}

static int parse_nproc(struct argp_state *state, const char *text)
{
    if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0)
        return (int)sysconf(_SC_NPROCESSORS_ONLN);
    return parse_number(state, "nproc-per-node", text, 1, RUN_LOCAL_MAX);
}

static error_t parse_row(int key, char *text, struct argp_state *state)
{
    run_options *o = state->input;
    switch (key) {
    case KEY_NPROC: o->nproc = parse_nproc(state, text); break;
    case KEY_NNODES: o->nnodes = parse_number(state, "nnodes", text, 1, 100000); break;
    case KEY_NODE_RANK: o->node_rank = parse_number(state, "node-rank", text, 0, 99999); break;
    case KEY_MASTER_ADDR: snprintf(o->master_addr, sizeof o->master_addr, "%s", text); break;
    case KEY_MASTER_PORT:
        o->master_port = parse_number(state, "master-port", text, 0, 65535);
        break;
    case KEY_STANDALONE: o->standalone = true; break;
    case KEY_MAX_RESTARTS:
        o->max_restarts = parse_number(state, "max-restarts", text, 0, 1000000);
        break;
    case KEY_LOG_DIR: o->log_dir = text; break;
    case KEY_FILTER:
        if (!parse_list(text, o->shown))
            argp_failure(state, EXIT_USAGE, 0, "--local-ranks-filter is '%s', but must be like 0,2",
                         text);
        break;
    case KEY_SERVERS: o->servers = parse_number(state, "servers", text, 0, 10000); break;
    case KEY_MODE: o->mode = text; break;
    case KEY_STORE: o->store = text; break;
    case KEY_RESUME: o->resume = true; break;
    case KEY_FRESH: o->fresh = true; break;
    case KEY_JOB: o->job = text; break;
    case KEY_NO_PREFIX: o->prefix = false; break;
    case KEY_GRACE: o->grace_s = parse_number(state, "grace", text, 0, 3600); break;
    case KEY_SETTINGS:
        for (int i = 0; command_tables[i] != NULL; i++)
            config_write_help(command_tables[i], stdout);
        exit(0);
    case 'r':
    case 't':
        if (!parse_which(text, key == 'r' ? o->redirects : o->tee))
            argp_failure(state, EXIT_USAGE, 0,
                         "'%s' says no output: use 0 to 3, or LOCALRANK:0-3,...", text);
        break;
    case ARGP_KEY_ARGS: o->program = state->argv + state->next; break;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which program? say  penstock run [FLAGS] PROG [ARGS]");
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp parser = {rows, parse_row, "PROG [ARGS...]", doc, NULL, NULL, NULL};

static const config_row *find_setting(const char *name)
{
    for (int i = 0; command_tables[i] != NULL; i++)
        for (const config_row *r = command_tables[i]; r->name != NULL; r++)
            if (strcmp(r->name, name) == 0) return r;
    return NULL;
}

static const struct argp_option *find_flag(const char *name)
{
    for (const struct argp_option *r = rows; r->name != NULL || r->doc != NULL; r++)
        if (r->name != NULL && strcmp(r->name, name) == 0) return r;
    return NULL;
}

static void put_setting(const char *name, const char *value)
{
    char variable[128] = "PENSTOCK_";
    size_t n           = strlen(variable);
    for (; *name != '\0' && n + 1 < sizeof variable; name++)
        variable[n++] = (char)toupper((unsigned char)*name);
    variable[n] = '\0';
    setenv(variable, value, 1);
}

static int refuse_flag(const char *name)
{
    const char *names[512];
    size_t n = 0;
    for (const struct argp_option *r = rows; r->name != NULL || r->doc != NULL; r++)
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

/* Whether the setting would be taken by those it is for; -1, or the exit code. */
static int check_setting(const config_row *row, const char *value)
{
    pen_error why;
    char scratch[1 << 16] __attribute__((aligned(16)));
    config_defaults(row, scratch);
    if (config_set(row, scratch, row->name, value, &why) == PEN_OK) return -1;
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

/* Takes the job's settings out of argv and spells the launcher's flags with dashes, up to PROG.  Returns the new
 * argc, or the negative exit code - 1. */
static int normalise(int argc, char **argv, char **out, char (*spelled)[128])
{
    int n = 0, i = 1;
    out[n++] = argv[0];
    for (; i < argc; i++) {
        char name[100], setting[100];
        if (strcmp(argv[i], "--") == 0 || argv[i][0] != '-') break;
        if (strncmp(argv[i], "--", 2) != 0) { /* -r 3, -t3, -? */
            out[n++]        = argv[i];
            bool takes_next = strlen(argv[i]) == 2 && strchr("rt", argv[i][1]) != NULL;
            if (takes_next && i + 1 < argc) out[n++] = argv[++i];
            continue;
        }
        char *value                    = split_flag(argv[i], name, setting, sizeof name);
        const struct argp_option *flag = find_flag(name);
        bool builtin                   = strcmp(name, "help") == 0 || strcmp(name, "usage") == 0;
        if (flag != NULL || builtin) {
            snprintf(spelled[i], sizeof spelled[i], "--%s", name);
            out[n++] = spelled[i];
            if (flag == NULL || flag->arg == NULL) continue;
            if (value == NULL && i + 1 < argc) value = argv[++i];
            if (value != NULL) out[n++] = value;
            continue;
        }
        const config_row *row = find_setting(setting);
        if (row == NULL) return -1 - refuse_flag(name);
        if (value == NULL && row->type == CONFIG_BOOL) value = "yes";
        if (value == NULL && i + 1 < argc) value = argv[++i];
        if (value == NULL) return -1 - command_fail(EXIT_USAGE, "--%s needs a value", name);
        int code = check_setting(row, value);
        if (code >= 0) return -1 - code;
        put_setting(setting, value);
    }
    for (; i < argc; i++) out[n++] = argv[i];
    out[n] = NULL;
    return n;
}

static int check(const run_options *o)
{
    if (o->node_rank >= o->nnodes)
        return command_fail(EXIT_USAGE, "--node-rank %d and --nnodes %d contradict each other",
                            o->node_rank, o->nnodes);
    if (o->mode != NULL && strncmp(o->mode, "ps-", 3) == 0 && o->servers == 0)
        return command_fail(EXIT_USAGE, "--servers 0 and --mode %s contradict each other", o->mode);
    if (o->mode != NULL && strcmp(o->mode, "local") == 0 && o->nproc * o->nnodes > 1)
        return command_fail(EXIT_USAGE, "--mode local and %d workers contradict each other",
                            o->nproc * o->nnodes);
    if (o->mode != NULL && strcmp(o->mode, "local") == 0 && o->servers > 0)
        return command_fail(EXIT_USAGE, "--servers %d and --mode local contradict each other",
                            o->servers);
    if (o->nnodes > 1 && o->master_port == 0)
        return command_fail(EXIT_USAGE, "--nnodes %d needs a --master-port that all machines know",
                            o->nnodes);
    if (o->resume && o->fresh)
        return command_fail(EXIT_USAGE, "--resume and --fresh contradict each other");
    if (o->resume && o->store == NULL)
        return command_fail(EXIT_USAGE, "--resume needs --store DIR");
    pen_error why;
    if (command_check_environment(&why) != PEN_OK) return command_fail(EXIT_USAGE, "%s", why.text);
    return o->mode != NULL ? check_setting(find_setting("mode"), o->mode) : -1;
}

int run_options_parse(int argc, char **argv, run_options *o)
{
    *o = (run_options){.nproc = 1, .nnodes = 1, .grace_s = 5, .master_port = -1, .prefix = true};
    memset(o->shown, true, sizeof o->shown);
    snprintf(o->master_addr, sizeof o->master_addr, "127.0.0.1");

    char **words        = calloc((size_t)argc * 2 + 1,
                                 sizeof *words); /* live as long as the process: PROG points into them */
    char(*spelled)[128] = calloc((size_t)argc + 1, sizeof *spelled);
    if (words == NULL || spelled == NULL) return command_fail(1, "no memory for the command line");
    int n                = normalise(argc, argv, words, spelled);
    words[0]             = "penstock run";
    argp_err_exit_status = EXIT_USAGE;
    int failed           = n < 0 ? 0 : argp_parse(&parser, n, words, ARGP_IN_ORDER, NULL, o);
    free(spelled);
    if (n < 0) free(words);
    if (n < 0) return -1 - n;
    if (failed != 0) return EXIT_USAGE;

    if (o->standalone) {
        o->nnodes      = 1;
        o->node_rank   = 0;
        o->master_port = 0;
    }
    if (o->master_port < 0) o->master_port = o->nnodes > 1 ? 29500 : 0;
    return check(o);
}
