/* files.h - `penstock run --config X.yml --ds-config Y.json`: these files set the launcher's options and PENSTOCK_* of
 * all processes. */
#ifndef CLI_RUN_FILES_H
#define CLI_RUN_FILES_H

#include "cli/run/options.h"

#include <argp.h>
#include <stdio.h>

/* Keys of these flags in the table of options.c. */
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

/* Parses one of these flags; ARGP_ERR_UNKNOWN for others.  state->input is the run_options. */
error_t run_files_flag(int key, char *text, struct argp_state *state);

/* Puts a setting given as a flag into the environment. */
void run_files_put(run_options *o, const char *setting, const char *value);

/* After the flags: reads the files, puts their settings into the environment unless set there or by a flag, and fills
 * in missing options from the files or defaults.  Prints notices and autos once.  -1: continue; else the exit code. */
int run_files_apply(run_options *o);

/* --print-config; returns the exit code. */
int run_files_print(const run_options *o, FILE *out);

#endif
