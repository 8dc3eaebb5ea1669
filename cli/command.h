/* command.h - the subcommands of `penstock`, and their shared functions. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "common/base/config.h"
#include "common/snapshot/store.h"
#include "penstock.h"

#include <stddef.h>

struct json_t;

typedef struct command {
    const char *name;
    const char *doc;                    /* one line of `penstock --help` */
    int (*main)(int argc, char **argv); /* argv[0] is the subcommand; returns the exit code */
    const struct command *verbs; /* `penstock snapshot list`; optional, ends with a row of zeros */
} command;

extern const command command_all[], command_snapshot_verbs[], command_bench_verbs[],
    command_trace_verbs[]; /* end with a row of zeros */

int command_run(int argc, char **argv);
int command_scheduler(int argc, char **argv);
int command_server(int argc, char **argv);
int command_status(int argc, char **argv);
int command_top(int argc, char **argv);
int command_snapshot(int argc, char **argv);
int command_export(int argc, char **argv);
int command_import(int argc, char **argv);
int command_scale(int argc, char **argv);
int command_drain(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_doctor(int argc, char **argv);
int command_docs(int argc, char **argv);
int command_env(int argc, char **argv);
int command_keygen(int argc, char **argv);
int command_config(int argc, char **argv);
int command_memory(int argc, char **argv);
int command_trace(int argc, char **argv);
int command_version(int argc, char **argv);

enum { EXIT_USAGE = 2 };

/* All settings tables, NULL-terminated; a PENSTOCK_* variable in none of them is a typo. */
extern const config_row *const command_tables[];

/* The row of that name in the first table that has it; NULL: unknown setting. */
const config_row *command_setting(const char *name);

/* Each setting once; readers: "worker, server". */
typedef void command_setting_fn(const config_row *row, const char *readers, void *user);
void command_each_setting(command_setting_fn *fn, void *user);

/* Reads these settings from the environment; refuses unknown PENSTOCK_* variables. */
pen_status command_read_environment(const config_row *rows, void *settings, pen_error *why);

/* Prints "penstock: <sentence>" to stderr and returns `code`. */
int command_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Applies environment and flags to a settings struct; prints the failure.  -1: continue, *rest is the first word that
 * is not a flag (rest NULL: such words are refused); else the exit code, also after --help. */
int command_settings(const config_row *rows, void *settings, int argc, char **argv,
                     const char *usage, int *rest);

/* Prints --help of a command: `usage`, and the table (NULL: none).  Returns the exit code. */
int command_help(const char *usage, const config_row *rows);
bool command_asks_help(int argc, char **argv); /* one of the arguments is --help or -h */

/* From now on command_help() calls `hear` instead of printing, so that man pages and shell completion match --help;
 * NULL restores printing. */
typedef void command_hear(const char *usage, const config_row *rows, void *user);
void command_listen(command_hear *hear, void *user);

/* Refuses an environment that the processes of a job would refuse: BAD_SETTING. */
pen_status command_check_environment(pen_error *why);

/* The wanted step, or with -1 the newest, of the complete snapshots in DIR: NOT_FOUND, CORRUPT. */
pen_status command_choose_step(store_reader *r, const char *dir, int64_t wanted, int64_t *step,
                               pen_error *why);

/* Raises this process's limit of open files to the hard limit: sockets are files. */
void command_raise_files(void);

/* The path of this program; false after a printed failure. */
bool command_self(char *path, size_t size);

/* Prints `o` as one line (flags: jansson's, for example JSON_COMPACT) and releases it. */
void command_print_json(struct json_t *o, size_t flags);

/* The verb of that name; NULL after "unknown WHAT 'x'; did you mean 'y'?" and `hint`. */
const command *command_verb(const command *verbs, const char *what, const char *name,
                            const char *hint);

/* Word nearest to `word` among n names (for "did you mean"); never NULL when n > 0. */
const char *command_nearest(const char *word, const char *const *names, size_t n);

#endif
