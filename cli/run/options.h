/* options.h - what `penstock run` was asked: torchrun's flags, ours, and any setting of the job. */
#ifndef CLI_RUN_OPTIONS_H
#define CLI_RUN_OPTIONS_H

#include "penstock.h"
#include <stdbool.h>
#include <stdint.h>

enum { RUN_LOCAL_MAX = 1024, RUN_STDOUT = 1, RUN_STDERR = 2 };

typedef struct {
    int nproc, nnodes, node_rank, servers, max_restarts, grace_s;
    char master_addr[256];
    int master_port; /* 0 = a free one */
    bool standalone, prefix;
    const char *log_dir, *store, *mode, *job;
    bool resume, fresh;
    uint8_t redirects
        [RUN_LOCAL_MAX];        /* per local rank: RUN_STDOUT | RUN_STDERR go to files only      */
    uint8_t tee[RUN_LOCAL_MAX]; /*                 go to files and to the terminal              */
    bool shown[RUN_LOCAL_MAX];  /* --local-ranks-filter: whose output reaches the terminal      */
    char **program;             /* PROG ARGS, NULL-terminated                                    */
} run_options;

/* Reads argv; settings of the job (--lease-ms 5000) are put into the environment as PENSTOCK_*.
 * -1: go on; else the exit code. */
int run_options_parse(int argc, char **argv, run_options *o);

#endif
