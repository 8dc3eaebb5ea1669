/* lines.h - how lines of the children, and our own, come to the terminal: as they are, or each as a JSON object. */
#ifndef CLI_RUN_LINES_H
#define CLI_RUN_LINES_H

#include "cli/run/process.h"

/* format: "json", or anything else (NULL) for text. */
void lines_begin(const char *format);

/* The line that is in the stream, with its newline, to its terminal. */
void lines_show(const process *p, process_stream *s);

#endif
