/* command_trace.c - `penstock trace merge`: one timeline of what the processes of a job wrote down. */
#include "cli/command.h"
#include "cli/trace/timeline.h"

#include <stdio.h>
#include <string.h>

static const char usage[] =
    "usage: penstock trace merge OUT PART...\n\n"
    "Makes the timeline OUT of parts, or of folders of parts (FILE.parts), which the\n"
    "processes of a job write with the setting trace=FILE.  `penstock run --trace FILE`\n"
    "does so by itself when all its processes are on one machine.\n"
    "OUT is JSON in the Trace Event Format, which https://ui.perfetto.dev and\n"
    "chrome://tracing read.\n";

static bool asks_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int merge(int argc, char **argv)
{
    char text[400];
    pen_error why;
    for (int i = 1; i < argc; i++)
        if (asks_help(argv[i])) return command_help(usage, NULL);
    if (argc < 3)
        return command_fail(EXIT_USAGE, "say  penstock trace merge OUT PART...  (OUT is the file "
                                        "that is made; a PART may be a folder of parts)");
    if (timeline_merge(argv[1], argv + 2, argc - 2, text, sizeof text, &why) != PEN_OK)
        return command_fail(1, "%s", why.text);
    printf("%s: %s\n", argv[1], text);
    return 0;
}

const command command_trace_verbs[] = {
    {"merge", "makes a timeline of parts, or of folders of parts", merge},
    {0},
};

int command_trace(int argc, char **argv)
{
    if (argc > 1 && asks_help(argv[1])) return command_help(usage, NULL);
    if (argc > 1 && strcmp(argv[1], command_trace_verbs[0].name) == 0)
        return merge(argc - 1, argv + 1);
    return command_fail(EXIT_USAGE, "say  penstock trace merge OUT PART...");
}
