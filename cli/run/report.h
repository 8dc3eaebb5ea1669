/* report.h - the launcher's report at the end of a job: the cause, then other processes, then the remedy. */
#ifndef CLI_RUN_REPORT_H
#define CLI_RUN_REPORT_H

#include "cli/run/options.h"
#include "cli/run/process.h"

typedef struct {
    const run_options *options;
    const char *program, *job, *log_folder;
    process *all;
    size_t n;
    const pen_error *verdict; /* of the scheduler; NULL: none */
    bool is_told;             /* the verdict: it was printed already */
    int interrupted;          /* the signal that stopped the job; 0: none */
    bool scheduler_hung;      /* alive but not answering */
    bool restarting;
} report_input;

/* The failed child: a hung scheduler; else the verdict's lost peer if it is here; else the first that failed.  NULL: none
 * failed, or the verdict names no process (two ranks disagree). */
process *report_cause(const report_input *in);

/* Prints the report to stderr and returns the exit code of the job. */
int report_write(const report_input *in, const process *cause);

#endif
