/* files.h - `penstock run --config X.yml --ds-config Y.json`: what those files say becomes the launcher's own options and
 * PENSTOCK_* of all processes. */
#ifndef CLI_RUN_FILES_H
#define CLI_RUN_FILES_H

#include "cli/run/options.h"

#include <argp.h>
#include <stdio.h>

/* Keys of the flags of this group in the table of options.c. */
enum {
    FILES_CONFIG = 512,
    FILES_DS_CONFIG,
    FILES_PRINT_CONFIG,
    FILES_HIDDEN_SIZE,
    FILES_LR,
    FILES_WEIGHT_DECAY,
    FILES_WARMUP_STEPS,
    FILES_TOTAL_STEPS
};

/* One of these flags; ARGP_ERR_UNKNOWN for others.  state->input is the run_options. */
error_t run_files_flag(int key, char *text, struct argp_state *state);

/* A setting that was a flag goes into the environment, and is remembered as one. */
void run_files_put(run_options *o, const char *setting, const char *value);

/* After the flags: reads the files, puts settings into the environment that neither it nor a flag has, and fills in what
 * no flag said: from the files, or the default.  Tells each notice, and each auto, once.  -1: go on; else the exit code. */
int run_files_apply(run_options *o);

/* --print-config; the exit code. */
int run_files_print(const run_options *o, FILE *out);

#endif
