/* progress.h - how the training goes: a line of rank 0 every so many steps, and where their time went.
 *
 * DESIGN.  The time of the program's thread is one line, cut where the SDK is called: forward from the begin of a step or
 * micro-batch to its first gradient, backward from there to the next micro-batch or the end, exchange inside
 * pen_step_end(), and what is between two steps is other.  So the four add up to the whole, exactly.
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
    PROGRESS_EXCHANGE,
    PROGRESS_PHASES
} progress_phase;

typedef struct {
    progress_phase phase;
    uint64_t since_ns;                  /* it began; 0: nothing has begun */
    uint64_t spent_ns[PROGRESS_PHASES]; /* since the last line */
    uint64_t steps, skipped;            /* likewise            */
} progress;

void progress_enter(progress *p, progress_phase phase, uint64_t now_ns);

/* A gradient is there: the backward pass has begun, unless it had already. */
void progress_gradient(progress *p, uint64_t now_ns);

/* Counts a step that has ended, of what fill_step() wrote.  True: a line is due; then *text has it and counting begins
 * anew.  `every` 0: never. */
bool progress_step(progress *p, const pen_step *step, uint64_t every, bool times, char *text,
                   size_t size);

#endif
