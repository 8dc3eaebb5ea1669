/* main.c - the `penstock` command: picks the subcommand. */
#include "cli/command.h"

#include "common/compute/device/device.h"
#include "common/system/fp_env.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- penstock version ------------------------------------------------------------------------ */
#ifndef PENSTOCK_GIT
#define PENSTOCK_GIT ""
#endif

int command_version(int argc, char **argv)
{
    if (argc > 1)
        return command_asks_help(argc, argv)
                   ? command_help("usage: penstock version\n\nPrints version, commit and the "
                                  "supported devices.\n",
                                  NULL)
                   : command_fail(EXIT_USAGE, "unexpected argument '%s'", argv[1]);
    printf("penstock %d.%d.%d%s%s\n", PEN_VERSION_MAJOR, PEN_VERSION_MINOR, PEN_VERSION_PATCH,
           PENSTOCK_GIT[0] == '\0' ? "" : "  commit ", PENSTOCK_GIT);
    char note[256];
    for (int i = 0; device_all[i] != NULL; i++) {
        device_all[i]->available(note, sizeof note);
        printf("%-9s%s\n", device_all[i]->name, note);
    }
    return 0;
}

/* clang-format off */
const command command_all[] = {
    {"run",       "start a job: servers and workers on this machine, or one machine of many", command_run},
    {"status",    "show the members of a running job, and which member waits for which",      command_status},
    {"top",       "watch a running job: steps per second, bytes per second, waits",            command_top},
    {"snapshot",  "take a snapshot of a running job; list, verify, restore snapshots on disk", command_snapshot, command_snapshot_verbs},
    {"scale",     "change the number of workers and servers of a running job",                command_scale},
    {"drain",     "empty a server of a running job and stop it",                              command_drain},
    {"export",    "write the parameters of a snapshot to a safetensors file",                 command_export},
    {"import",    "create a snapshot store from a safetensors file, to start a job from",     command_import},
    {"config",    "write an accelerate configuration file, for run --config",                 command_config},
    {"memory",    "estimate memory per process, by model size, strategy and number of workers", command_memory},
    {"bench",     "run a benchmark",                                                          command_bench, command_bench_verbs},
    {"keygen",    "create the secret of a job that spans several machines",                   command_keygen},
    {"doctor",    "check this machine for what makes a job slow or fail, with remedies",      command_doctor},
    {"env",       "show rank, world size and address of a process here, and their source",    command_env},
    {"scheduler", "start a scheduler manually (run starts one itself)",                       command_scheduler},
    {"server",    "start a parameter server manually",                                        command_server},
    {"trace",     "merge the trace files of a job into one timeline",                         command_trace, command_trace_verbs},
    {"docs",      "print the generated reference pages",                                      command_docs},
    {"version",   "print the version",                                                        command_version},
    {0},
};
/* clang-format on */

/* The benchmarks, wrapped. */
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

static void print_help(FILE *out)
{
    fprintf(out, "usage: penstock COMMAND [ARGS]\n\nDistributed training on one machine or many, "
                 "with parameter "
                 "servers or without (all-reduce, ZeRO).\n\n");
    for (const command *c = command_all; c->name != NULL; c++) {
        const int at = fprintf(out, "  %-10s %s", c->name, c->doc);
        if (c->verbs == command_bench_verbs)
            print_benches(out, at + fprintf(out, ":"));
        else
            fputc('\n', out);
    }
    fprintf(out, "\nSee `penstock COMMAND --help`.  Start with: penstock run --nproc-per-node 2 "
                 "--servers 1 PROG\n");
}

int main(int argc, char **argv)
{
    /* Standard files that are closed: a file that we open would become stdin, stdout or stderr. */
    int fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
    close(fd);
    fp_env_set_ours();
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? EXIT_USAGE : 0;
    }
    if (strcmp(argv[1], "--version") == 0) return command_version(argc - 1, argv + 1);
    const command *c = command_verb(command_all, "command", argv[1], "  (penstock --help)");
    return c != NULL ? c->main(argc - 1, argv + 1) : EXIT_USAGE;
}
