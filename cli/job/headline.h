/* headline.h - a job in one line, for `penstock status`, `top` and the progress of `penstock run`. */
#ifndef CLI_HEADLINE_H
#define CLI_HEADLINE_H

#include "proto/wire/wire.h"

enum { HEADLINE_BYTES = 512, HEADLINE_AMOUNT_BYTES = 16 };

/* "step 54 of 200   12.3 steps/s   12 s left   loss 0.8439": what is known of it, from a STATUS.  The scalars are those
 * that the program gives to pen_step_scalar() and pen_metric(), of the lowest rank. */
void headline_progress(const wire_control *status, char text[HEADLINE_BYTES]);

/* "job demo   training   mode ps-bsp   " and the progress. */
void headline_write(const wire_control *status, char text[HEADLINE_BYTES]);

/* "0", "512 B", "4.20 kB", "941 kB", "1.23 GB" */
const char *headline_amount(char text[HEADLINE_AMOUNT_BYTES], double bytes);

/* The value of a member's counter; 0: it has none. */
double headline_stat(const wire_member_status *m, const char *name);

#endif
