/* command_bench.c - `penstock bench WHAT`. */
#include "cli/bench/bench.h"
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

const command command_bench_verbs[] = {
    {"push-pull", "goodput and rate of tensor operations through servers", bench_push_pull},
    {"optim", "update rules against the bandwidth of memory", bench_optim},
    {"snapshot", "what snapshots cost a training, and how fast they are written", bench_snapshot},
    {"all-reduce", "what all ranks sum up together, against the bandwidth of memory", bench_coll},
    {"broadcast", "from one rank to all", bench_coll},
    {"reduce", "what all ranks sum up, for one", bench_coll},
    {"all-gather", "the parts of all ranks, for all", bench_coll},
    {"reduce-scatter", "what all ranks sum up, a part for each", bench_coll},
    {"gather", "the parts of all ranks, for one", bench_coll},
    {"scatter", "a part for each from one rank", bench_coll},
    {"all-to-all", "a part from each rank for each", bench_coll},
    {"barrier", "waiting for each other", bench_coll},
    {"send-recv", "from each rank to the next", bench_coll},
    {"tune", "which algorithm of a collective is fastest here, as a setting", bench_tune},
    {0},
};
enum { N_BENCHES = sizeof command_bench_verbs / sizeof *command_bench_verbs - 1 };

static int print_help(void)
{
    char usage[4096];
    int n = snprintf(usage, sizeof usage, "usage: penstock bench WHAT [FLAGS]\n\n");
    for (size_t i = 0; i < N_BENCHES; i++)
        n += snprintf(usage + n, sizeof usage - (size_t)n, "  %-15s %s\n",
                      command_bench_verbs[i].name, command_bench_verbs[i].doc);
    snprintf(usage + n, sizeof usage - (size_t)n,
             "\n`penstock bench WHAT --help` lists the flags.\n");
    return command_help(usage, NULL);
}

int command_bench(int argc, char **argv)
{
    const char *names[N_BENCHES];
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        const int code = print_help();
        return argc < 2 ? EXIT_USAGE : code;
    }
    if (strcmp(argv[1], "push-pull-rank") == 0)
        return bench_push_pull_rank(argc - 1, argv + 1); /* started by push-pull */
    if (strcmp(argv[1], "snapshot-rank") == 0)
        return bench_snapshot_rank(argc - 1, argv + 1); /* started by snapshot */
    if (strcmp(argv[1], "coll-rank") == 0 && argc > 2)
        return bench_coll_rank(argc - 2, argv + 2); /* started by the collectives */
    for (size_t i = 0; i < N_BENCHES; i++) {
        if (strcmp(argv[1], command_bench_verbs[i].name) == 0)
            return command_bench_verbs[i].main(argc - 1, argv + 1);
        names[i] = command_bench_verbs[i].name;
    }
    return command_fail(EXIT_USAGE, "unknown benchmark '%s'; did you mean '%s'?", argv[1],
                        command_nearest(argv[1], names, N_BENCHES));
}
