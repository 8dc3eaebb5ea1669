/* progress.h - the progress line of rank 0: speed, and time per phase of a step.
 *
 * DESIGN.  Calls of the SDK split the time of the program's thread into phases.  Forward lasts from
 * the start of a step or micro-batch to its first gradient, backward from there to the next
 * micro-batch or the end.  Exchange is the time inside pen_step_end(), other the time between
 * steps.  The four add up to the whole.
 * Settings report_every and report_times; DeepSpeed calls them steps_per_print and wall_clock_breakdown.
 */
#ifndef WORKER_PROGRESS_H
#define WORKER_PROGRESS_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    PROGRESS_OTHER,
    PROGRESS_FORWARD,
    PROGRESS_BACKWARD,
    PROGRESS_PS,
    PROGRESS_PHASES
} progress_phase;

typedef struct {
    progress_phase phase;
    uint64_t since_ns;                  /* start of the phase; 0: none has started */
    uint64_t spent_ns[PROGRESS_PHASES]; /* since the last line */
    uint64_t steps, skipped;            /* since the last line */
} progress;

void progress_enter(progress *p, progress_phase phase, uint64_t now_ns);

/* A gradient is ready: the backward pass is running. */
void progress_gradient(progress *p, uint64_t now_ns);

/* Whether progress_step() will give a line for this step. */
bool progress_is_due(const pen_step *step, uint64_t every);

/* Counts a finished step.  True: *text has a line, and the counters restart.  `every` 0: never. */
bool progress_step(progress *p, const pen_step *step, uint64_t every, bool times, char *text,
                   size_t size);

#endif
