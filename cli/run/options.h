/* options.h - what `penstock run` was asked: torchrun's flags, ours, and any setting of the job. */
#ifndef CLI_RUN_OPTIONS_H
#define CLI_RUN_OPTIONS_H

#include "common/config_files/load.h"
#include "common/net/auth/secret.h"
#include "penstock.h"
#include "proto/settings.h"
#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

enum { RUN_LOCAL_MAX = 1024, RUN_STDOUT = 1, RUN_STDERR = 2, RUN_FLAGS_MAX = 256 };

typedef struct {
    int nproc, nproc_min, nproc_max; /* workers on each machine: at first, and while it trains */
    int nnodes, nnodes_max;          /* machines at first, and at most */
    int node_rank;
    int servers, servers_max, replicas;
    int max_restarts, grace_s;
    char master_addr[256];
    int master_port; /* 0 = a free one */
    bool standalone, prefix;
    bool has_servers, has_node_rank; /* somebody said them */
    const char *rdzv_endpoint;       /* of torchrun; NULL: not said */
    bool is_c10d;                    /* --rdzv-backend c10d: node ranks need not be said */
    const char *log_dir, *store, *mode, *job;
    bool resume, fresh;
    loss_rule loss; /* what the death of a worker means */
    bool has_join;  /* the secret came with --join */
    secret join;
    uint8_t redirects
        [RUN_LOCAL_MAX];        /* per local rank: RUN_STDOUT | RUN_STDERR go to files only      */
    uint8_t tee[RUN_LOCAL_MAX]; /*                 go to files and to the terminal              */
    bool shown[RUN_LOCAL_MAX];  /* --local-ranks-filter: whose output reaches the terminal      */
    char **words;               /* of the command line, as long as the process lives */
    char **program;             /* PROG ARGS, NULL-terminated                                    */

    bool emits;        /* --emit k8s: nothing is started */
    const char *image; /* of its containers; NULL: none was said */

    config_files files; /* of accelerate and DeepSpeed */
    document keys;      /* of accelerate's files, that were flags */
    bool print_config;  /* nothing is started: see command_run() */
    const char *flags
        [RUN_FLAGS_MAX]; /* settings that were flags; the others of the environment were there */
    int n_flags;
} run_options;

extern const struct argp_option
    run_options_rows[]; /* the flags of its own; a row of zeros ends them */
extern const char run_options_usage[];

/* Reads argv; settings of the job (--lease-ms 5000) are put into the environment as PENSTOCK_*.
 * -1: go on; else the exit code. */
int run_options_parse(int argc, char **argv, run_options *o);

bool run_options_is_elastic(const run_options *o); /* workers or servers may come and go */
/* The job outlives a death: then its scheduler keeps its state, and is started again. */
bool run_options_survives(const run_options *o);

#endif
