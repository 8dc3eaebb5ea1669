/* main.c - the `penstock` command: picks the subcommand. */
#include "cli/command.h"

#include "common/base/fp_env.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* clang-format off */
const command command_all[] = {
    {"run",       "start a job: servers and workers on this machine, or one machine of many", command_run},
    {"status",    "show the members of a running job, and who waits for whom",                command_status},
    {"top",       "watch a running job: rates of steps and bytes, and who waits for whom",     command_top},
    {"snapshot",  "ask a running job for a snapshot now; list, verify, restore those on disk", command_snapshot, command_snapshot_verbs},
    {"scale",     "more or fewer workers and servers in a running job",                       command_scale},
    {"drain",     "empty a server of a running job and let it go",                            command_drain},
    {"export",    "write the parameters of a snapshot into a safetensors file",               command_export},
    {"import",    "make a store out of a safetensors file, to begin a job with",              command_import},
    {"config",    "write a configuration file of accelerate, for run --config",               command_config},
    {"memory",    "bytes each process holds of a model, by strategy and number of workers",   command_memory},
    {"bench",     "measure what is reached here",                                              command_bench, command_bench_verbs},
    {"keygen",    "make the secret of a job that leaves this machine",                        command_keygen},
    {"doctor",    "what of this machine would make a job slow or fail, and what to do about it", command_doctor},
    {"env",       "show rank, world and address of a process here, and what says so",         command_env},
    {"scheduler", "run a scheduler by hand (run starts one by itself)",                       command_scheduler},
    {"server",    "run a parameter server by hand",                                           command_server},
    {"trace",     "make one timeline of what the processes of a job wrote down",              command_trace, command_trace_verbs},
    {"docs",      "print the generated reference pages",                                      command_docs},
    {"version",   "print the version",                                                        command_version},
    {0},
};
/* clang-format on */
enum { N_COMMANDS = sizeof command_all / sizeof *command_all - 1 };

/* The benchmarks, in as many lines as they need. */
static void print_benches(FILE *out, int at)
{
    enum { COLUMN = 13, WIDTH = 100 };
    for (const command *c = command_bench_verbs; c->name != NULL; c++) {
        const bool is_last = c[1].name == NULL;
        if (at + 2 + (int)strlen(c->name) > WIDTH) at = fprintf(out, "\n%*s", COLUMN - 1, "") - 1;
        at += fprintf(out, " %s%s", c->name, is_last ? "" : ",");
    }
    fputc('\n', out);
}

static void print_command(FILE *out, const command *c)
{
    const int at = fprintf(out, "  %-10s %s", c->name, c->doc);
    if (c->verbs == command_bench_verbs)
        print_benches(out, at + fprintf(out, ":"));
    else
        fputc('\n', out);
}

static void print_help(FILE *out)
{
    fprintf(
        out,
        "usage: penstock COMMAND [ARGS]\n\nTrains models on one machine or many: through parameter "
        "servers, or among the workers (all-reduce, ZeRO).\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) print_command(out, &command_all[i]);
    fprintf(out, "\n`penstock COMMAND --help` says more.  First: penstock run --nproc-per-node 2 "
                 "--servers 1 PROG\n");
}

/* Whoever starts us without stdin, stdout or stderr would find our own files in their place. */
static void hold_standard_files(void)
{
    int fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
    close(fd);
}

int main(int argc, char **argv)
{
    hold_standard_files();
    fp_env_set_ours();
    const char *names[N_COMMANDS];
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? EXIT_USAGE : 0;
    }
    if (strcmp(argv[1], "--version") == 0) return command_version(argc - 1, argv + 1);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], command_all[i].name) == 0)
            return command_all[i].main(argc - 1, argv + 1);
        names[i] = command_all[i].name;
    }
    return command_fail(EXIT_USAGE, "unknown command '%s'; did you mean '%s'?  (penstock --help)",
                        argv[1], command_nearest(argv[1], names, N_COMMANDS));
}
