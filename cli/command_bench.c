/* command_bench.c - `penstock bench WHAT`. */
#include "cli/bench.h"
#include "cli/command.h"

#include <stdio.h>
#include <string.h>

static const command benches[] = {
    {"push-pull", "goodput and rate of tensor operations through servers", bench_push_pull},
    {"optim", "update rules against the bandwidth of memory", bench_optim},
};
enum { N_BENCHES = sizeof benches / sizeof *benches };

int command_bench(int argc, char **argv)
{
    const char *names[N_BENCHES];
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        printf("usage: penstock bench WHAT [FLAGS]\n\n");
        for (size_t i = 0; i < N_BENCHES; i++)
            printf("  %-10s %s\n", benches[i].name, benches[i].doc);
        printf("\n`penstock bench WHAT --help` lists the flags.\n");
        return argc < 2 ? EXIT_USAGE : 0;
    }
    if (strcmp(argv[1], "push-pull-rank") == 0)
        return bench_push_pull_rank(argc - 1, argv + 1); /* started by push-pull */
    for (size_t i = 0; i < N_BENCHES; i++) {
        if (strcmp(argv[1], benches[i].name) == 0) return benches[i].main(argc - 1, argv + 1);
        names[i] = benches[i].name;
    }
    return command_fail(EXIT_USAGE, "unknown benchmark '%s'; did you mean '%s'?", argv[1],
                        command_nearest(argv[1], names, N_BENCHES));
}
