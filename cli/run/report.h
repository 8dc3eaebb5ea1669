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
    bool scheduler_hung;      /* it lived, and answered nobody */
    bool restarting;
} report_input;

/* The child to blame: a hung scheduler; else the verdict's lost peer if it is one of ours; else the first that failed.
 * NULL: none failed, or the verdict blames no process (two ranks disagree). */
process *report_cause(const report_input *in);

/* Prints the report to stderr and returns the exit code of the job. */
int report_write(const report_input *in, const process *cause);

#endif
