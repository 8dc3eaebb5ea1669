/* step_log.h - the setting log_to: scalars and metrics of every step in a file, for plots and TensorBoard.
 *
 *   csv:FILE         lines "step,time,name,value" after a header; time in seconds since 1970
 *   tensorboard:DIR  a new event file in DIR: TFRecord frames of Event messages with scalar summaries
 *
 * The lowest live rank writes.  What was written is in the file within a second; a full disk ends the log, with one warning,
 * and not the training.  Several destinations are separated by commas.
 * Source  record framing: tensorflow/core/lib/io/record_writer.h; fields: tensorflow/core/util/event.proto, summary.proto.
 */
#ifndef WORKER_STEP_LOG_H
#define WORKER_STEP_LOG_H

#include "penstock.h"

#include <stdbool.h>

typedef struct step_log step_log;

/* Checks the form only.  BAD_SETTING names the part that is wrong. */
pen_status step_log_check(const char *log_to, pen_error *why);

/* Opens all destinations, after step_log_check(); *log is NULL if there are none.  STORE names the file. */
pen_status step_log_open(const char *log_to, step_log **log, pen_error *why);

/* NULL is fine in all of these. */
void step_log_value(step_log *log, int64_t step, const char *name, double value);
void step_log_step_ended(step_log *log); /* after the last value of a step: writes now and then */
void step_log_close(step_log *log);

#endif
