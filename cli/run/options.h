/* options.h - flags of `penstock run`: torchrun's, its own, and any setting of the job. */
#ifndef CLI_RUN_OPTIONS_H
#define CLI_RUN_OPTIONS_H

#include "cli/run/devices.h"
#include "common/config_files/load.h"
#include "common/net/auth/secret.h"
#include "penstock.h"
#include "proto/settings.h"
#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

enum { RUN_LOCAL_MAX = 1024, RUN_STDOUT = 1, RUN_STDERR = 2, RUN_FLAGS_MAX = 256 };

/* What --nproc-per-node counts. */
typedef enum { NPROC_NUMBER, NPROC_GPU, NPROC_CPU, NPROC_AUTO } nproc_unit;

typedef struct {
    int nproc, nproc_min, nproc_max; /* workers per machine: initial, minimum, maximum */
    nproc_unit nproc_unit;
    char nproc_name[64];    /* the flag or variable that gave it */
    run_devices devices;    /* of this machine */
    bool sees_all;          /* --visible-devices all: workers see every device */
    int nnodes, nnodes_max; /* machines: initial, maximum */
    int node_rank;
    int servers, servers_max, replicas;
    int max_restarts, grace_s;
    int progress_s; /* 0: no lines about progress */
    char master_addr[256];
    int master_port;           /* 0 = a free one */
    bool is_address_torchruns; /* both come from PET_ variables, not from flags */
    bool standalone, prefix;
    bool has_servers, has_node_rank, has_max_restarts; /* given */
    const char *rdzv_endpoint;                         /* of torchrun; NULL: not given */
    bool is_c10d;     /* --rdzv-backend c10d: node ranks may be missing */
    bool is_external; /* scheduler and servers run elsewhere: start workers only */
    const char *log_dir, *store, *mode, *job;
    const char *server_program; /* calls pen_serve(); NULL: `penstock server` */
    bool resume, fresh;
    loss_rule loss; /* when a worker dies */
    bool has_join;  /* the secret came with --join */
    secret join;
    uint8_t redirects[RUN_LOCAL_MAX]; /* per local rank: RUN_STDOUT | RUN_STDERR go to files only */
    uint8_t tee[RUN_LOCAL_MAX];       /*                 go to files and to the terminal */
    bool shown[RUN_LOCAL_MAX];        /* --local-ranks-filter: output on the terminal */
    char **words;                     /* of the command line; lives as long as the process */
    char **program;                   /* PROG ARGS, NULL-terminated */
    bool is_module; /* -m: PROG is python3 -u -m, and its first argument the module */

    bool emits;        /* --emit k8s: start nothing */
    const char *image; /* of its containers; NULL: not given */

    config_files files; /* of accelerate and DeepSpeed */
    document keys;      /* of accelerate, given as flags */
    bool print_config;  /* start nothing: see command_run() */
    /* settings given as flags; others come from the environment */
    const char *flags[RUN_FLAGS_MAX];
    int n_flags;
} run_options;

extern const struct argp_option run_options_rows[]; /* its own flags; ends with a row of zeros */
extern const char run_options_usage[];

/* Parses argv; settings of the job (--lease-ms 5000) go into the environment as PENSTOCK_*. -1: continue; else the exit
 * code. */
int run_options_parse(int argc, char **argv, run_options *o);

bool run_options_has_scheduler(const run_options *o); /* this machine starts it */
bool run_options_is_elastic(const run_options *o);    /* workers or servers may join and leave */
/* The job survives a death: then the scheduler persists its state and is restarted. */
bool run_options_survives(const run_options *o);

#endif
