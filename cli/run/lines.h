/* lines.h - output lines of the children and the launcher on the terminal: as text, or each as a JSON object. */
#ifndef CLI_RUN_LINES_H
#define CLI_RUN_LINES_H

#include "cli/run/process.h"

/* format: "json", or anything else (NULL) for text. */
void lines_begin(const char *format);

/* The verdict is in the launcher's report: lines of stderr that repeat it are not shown.  BORROWED; NULL: none. */
void lines_hide(const char *verdict);

/* Prints the stream's current line, with its newline, to its terminal. */
void lines_show(const process *p, process_stream *s);

/* When a worker's line was printed last, on the real clock; 0: never. */
uint64_t lines_newest_ms(void);

#endif
