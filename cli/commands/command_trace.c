/* command_trace.c - `penstock trace merge`: merges the trace files of a job into one timeline. */
#include "cli/command.h"
#include "cli/trace/timeline.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: penstock trace merge OUT PART...\n\n"
    "Merges trace files, or directories of them (FILE.parts), into the timeline OUT.  The\n"
    "processes of a job write them with the setting trace=FILE.  On one machine\n"
    "`penstock run --trace FILE` merges them itself.\n"
    "OUT is JSON in the Trace Event Format; open it in https://ui.perfetto.dev or\n"
    "chrome://tracing.\n";

static int merge(int argc, char **argv)
{
    char text[400];
    pen_error why;
    if (command_asks_help(argc, argv)) return command_help(usage, NULL);
    if (argc < 3)
        return command_fail(EXIT_USAGE, "missing arguments; use penstock trace merge OUT PART...  "
                                        "(OUT is the file to write; PART may be a directory)");
    if (timeline_merge(argv[1], argv + 2, argc - 2, text, sizeof text, &why) != PEN_OK)
        return command_fail(1, "%s", why.text);
    printf("%s: %s\n", argv[1], text);
    return 0;
}

const command command_trace_verbs[] = {
    {"merge", "merges trace files, or directories of them, into a timeline", merge},
    {0},
};

int command_trace(int argc, char **argv)
{
    if (argc > 1 && command_asks_help(2, argv)) return command_help(usage, NULL);
    if (argc > 1 && strcmp(argv[1], command_trace_verbs[0].name) == 0)
        return merge(argc - 1, argv + 1);
    return command_fail(EXIT_USAGE, "unknown trace command; use penstock trace merge OUT PART...");
}
