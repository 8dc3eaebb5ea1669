/* report.h - what the launcher says when a job ends: the cause first, once; then who noticed; then what to do. */
#ifndef CLI_RUN_REPORT_H
#define CLI_RUN_REPORT_H

#include "cli/run/options.h"
#include "cli/run/process.h"

typedef struct {
    const run_options *options;
    const char *program, *job, *log_folder;
    process *all;
    size_t n;
    const pen_error *verdict; /* of the scheduler; NULL when none came */
    int interrupted;          /* the signal that asked to stop; 0 = none */
    bool restarting;
} report_input;

/* The child whose failure came first: the verdict's culprit if it is one of ours, else by time.  NULL: none failed. */
process *report_cause(const report_input *in);

/* Prints the report to stderr and returns the exit code of the job. */
int report_write(const report_input *in, const process *cause);

#endif
