/* command_bench.c - `penstock bench NAME`. */
#include "cli/bench/bench.h"
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

const command command_bench_verbs[] = {
    {"push-pull", "goodput and operations per second of push and pull", bench_push_pull},
    {"table", "keys per second of a table by key, compared with a bare one", bench_table},
    {"optim", "update rules, compared with memory bandwidth", bench_optim},
    {"snapshot", "overhead of snapshots on training, and their write speed", bench_snapshot},
    {"all-reduce", "sum over all ranks, compared with memory bandwidth", bench_coll},
    {"broadcast", "one rank to all ranks", bench_coll},
    {"reduce", "sum over all ranks, to one rank", bench_coll},
    {"all-gather", "gather the parts of all ranks on all ranks", bench_coll},
    {"reduce-scatter", "sum over all ranks, one part to each rank", bench_coll},
    {"gather", "gather the parts of all ranks on one rank", bench_coll},
    {"scatter", "one part to each rank, from one rank", bench_coll},
    {"all-to-all", "one part from each rank to each rank", bench_coll},
    {"barrier", "latency of a barrier", bench_coll},
    {"send-recv", "each rank to the next", bench_coll},
    {"tune", "find the fastest collective algorithms here; prints coll_algorithm", bench_tune},
    {0},
};

static int print_help(void)
{
    char usage[4096];
    int n = snprintf(usage, sizeof usage, "usage: penstock bench NAME [FLAGS]\n\n");
    for (const command *c = command_bench_verbs; c->name != NULL; c++)
        n += snprintf(usage + n, sizeof usage - (size_t)n, "  %-15s %s\n", c->name, c->doc);
    snprintf(usage + n, sizeof usage - (size_t)n,
             "\n`penstock bench NAME --help` lists the flags.\n");
    return command_help(usage, NULL);
}

int command_bench(int argc, char **argv)
{
    if (argc < 2 || command_asks_help(2, argv)) {
        const int code = print_help();
        return argc < 2 ? EXIT_USAGE : code;
    }
    if (strcmp(argv[1], "push-pull-rank") == 0)
        return bench_push_pull_rank(argc - 1, argv + 1); /* started by push-pull */
    if (strcmp(argv[1], "table-rank") == 0)
        return bench_table_rank(argc - 1, argv + 1); /* started by table */
    if (strcmp(argv[1], "snapshot-rank") == 0)
        return bench_snapshot_rank(argc - 1, argv + 1); /* started by snapshot */
    if (strcmp(argv[1], "coll-rank") == 0 && argc > 2)
        return bench_coll_rank(argc - 2, argv + 2); /* started by the collectives */
    if (strcmp(argv[1], "tune-rank") == 0 && argc > 2)
        return bench_tune_rank(argc - 2, argv + 2); /* started by tune */
    const command *c = command_verb(command_bench_verbs, "benchmark", argv[1], "");
    return c != NULL ? c->main(argc - 1, argv + 1) : EXIT_USAGE;
}
