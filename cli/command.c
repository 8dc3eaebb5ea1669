/* command.c - functions shared by the subcommands. */
#include "cli/command.h"
#include "scheduler/core/scheduler_settings.h"
#include "server/process/server_settings.h"
#include "worker/worker_files.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

const config_row *const command_tables[] = {worker_settings_rows, server_settings_rows,
                                            scheduler_settings_rows, NULL};

int command_fail(int code, const char *format, ...)
{
    va_list args;
    char text[2048];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "penstock: %s\n", text);
    return code;
}

const config_row *command_setting(const char *name)
{
    for (int i = 0; command_tables[i] != NULL; i++)
        for (const config_row *row = command_tables[i]; row->name != NULL; row++)
            if (strcmp(row->name, name) == 0) return row;
    return NULL;
}

static bool reads(const config_row *table, const char *name)
{
    while (table->name != NULL && strcmp(table->name, name) != 0) table++;
    return table->name != NULL;
}

void command_each_setting(command_setting_fn *fn, void *user)
{
    static const char *const roles[] = {"worker", "server", "scheduler"};
    for (int i = 0; command_tables[i] != NULL; i++)
        for (const config_row *row = command_tables[i]; row->name != NULL; row++) {
            char readers[32] = "";
            if (command_setting(row->name) != row) continue; /* listed before */
            for (int r = 0, n = 0; command_tables[r] != NULL; r++)
                if (reads(command_tables[r], row->name))
                    n += snprintf(readers + n, sizeof readers - (size_t)n, "%s%s",
                                  n > 0 ? ", " : "", roles[r]);
            fn(row, readers, user);
        }
}

pen_status command_read_environment(const config_row *rows, void *settings, pen_error *why)
{
    const config_row *known[8] = {settings_foreign, rows};
    for (int i = 0; command_tables[i] != NULL; i++) known[i + 2] = command_tables[i];
    return config_from_env(rows, settings, known, why);
}

pen_status command_check_environment(pen_error *why)
{
    pen_status status = PEN_OK;
    for (int i = 0; command_tables[i] != NULL && status == PEN_OK; i++) {
        char scratch[1 << 16] __attribute__((aligned(16)));
        config_defaults(command_tables[i], scratch);
        status = command_read_environment(command_tables[i], scratch, why);
    }
    return status;
}

bool command_asks_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

static command_hear *hear_help;
static void *hear_user;

void command_listen(command_hear *hear, void *user)
{
    hear_help = hear;
    hear_user = user;
}

int command_help(const char *usage, const config_row *rows)
{
    if (hear_help != NULL) {
        hear_help(usage, rows, hear_user);
        return 0;
    }
    printf(rows != NULL ? "%s\n\n" : "%s", usage);
    if (rows != NULL) config_write_help(rows, stdout);
    return 0;
}

/* Reads these settings from files of accelerate or DeepSpeed. */
static pen_status take_files(const config_row *rows, void *settings, pen_error *why)
{
    static resolution r;
    config_files files          = worker_files_named(NULL);
    files.autos.program_may_say = true; /* of workers */
    pen_status status           = worker_files_load(&files, &r, why);
    for (size_t i = 0; i < r.settings.n && status == PEN_OK; i++)
        for (const config_row *row = rows; row->name != NULL && status == PEN_OK; row++)
            if (strcmp(row->name, r.settings.values[i].name) == 0)
                status = config_set(rows, settings, row->name, r.settings.values[i].value, why);
    resolution_free(&r);
    return status;
}

int command_settings(const config_row *rows, void *settings, int argc, char **argv,
                     const char *usage, int *rest)
{
    pen_error why;
    int first;
    if (command_asks_help(argc, argv)) return command_help(usage, rows);
    config_defaults(rows, settings);
    if ((rows == server_settings_rows && take_files(rows, settings, &why) != PEN_OK) ||
        command_read_environment(rows, settings, &why) != PEN_OK ||
        config_from_argv(rows, settings, argc, argv, rest != NULL ? rest : &first, &why) != PEN_OK)
        return command_fail(EXIT_USAGE, "%s", why.text);
    if (rest != NULL || first == argc) return -1;
    return command_fail(EXIT_USAGE, "unexpected argument '%s'", argv[first]);
}

void command_raise_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

bool command_self(char *path, size_t size)
{
    const ssize_t n     = readlink("/proc/self/exe", path, size - 1);
    path[n > 0 ? n : 0] = '\0';
    if (n <= 0) command_fail(1, "cannot read /proc/self/exe: %m");
    return n > 0;
}

void command_print_json(json_t *o, size_t flags)
{
    json_dumpf(o, stdout, flags);
    putchar('\n');
    json_decref(o);
}

const command *command_verb(const command *verbs, const char *what, const char *name,
                            const char *hint)
{
    const char *names[64] = {""};
    size_t n              = 0;
    for (; verbs[n].name != NULL && n < 64; n++) {
        if (strcmp(name, verbs[n].name) == 0) return &verbs[n];
        names[n] = verbs[n].name;
    }
    command_fail(EXIT_USAGE, "unknown %s '%s'; did you mean '%s'?%s", what, name,
                 command_nearest(name, names, n), hint);
    return NULL;
}

const char *command_nearest(const char *word, const char *const *names, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (config_unlikeness(word, names[i]) < config_unlikeness(word, names[best])) best = i;
    return names[best];
}
