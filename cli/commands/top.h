/* top.h - the table of `penstock top`: two looks at a job, and the rates between them. */
#ifndef CLI_TOP_H
#define CLI_TOP_H

#include "proto/wire/wire.h"
#include <stdio.h>

typedef struct top top;

top *top_create(void);       /* NULL: no memory */
void top_destroy(top *self); /* NULL is fine */

/* Adds a look: STATUS.  False: no memory. */
bool top_take(top *self, const wire_control *status);

/* Rates between the last two looks, "-" after the first one.  columns: width of the terminal; 0: no limit. */
void top_print(const top *self, bool in_color, int columns, FILE *out);

#endif
